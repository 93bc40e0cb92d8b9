"""What a Ray worker does with an ensemble, and what travels between it and the driver, the process that asked.

The worker needs this package as the driver has it, and sees no store: it reports epochs and checkpoints through a queue, and
the run and its rows are what the task returns.
"""

import contextlib
import hashlib
import platform
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import posattn
from posattn import network
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError
from posattn.experiments.measures import Measure
from posattn.model import ARCHITECTURES
from posattn.run_folder import RunFolder
from posattn.tasks import SHIFTS, TASKS
from posattn.training import RunSpec, train_spec

# A program may have added rows of its own, which a worker is to know too.
TABLES: tuple[dict[str, Any], ...] = (TASKS, SHIFTS, ENCODINGS, ARCHITECTURES, network.KINDS, network.MAKERS)


def load_ray() -> Any:
    try:
        import ray
        import ray.util.queue
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UsageError(
            "engine is 'ray' and Ray is not installed; install it with pip install 'posattn[ray]'."
        ) from error
    return ray


@dataclass(frozen=True)
class Group:
    """One task: trains an ensemble, or goes on from ``begun``, and measures it.

    ``begun`` holds files of its folder by name: those of a finished run, those of a checkpoint, or none.
    """

    spec: RunSpec
    measure: Measure
    begun: dict[str, bytes]
    threads: int = 1
    cuda: bool = False
    every: float = 5.0
    save_every: float = 60.0

    def packed(self) -> bytes:
        """The group as bytes, with the tables in which its names are looked up."""
        return load_ray().cloudpickle.dumps(([dict(table) for table in TABLES], self))

    @staticmethod
    def unpacked(content: bytes) -> "Group":
        tables, group = load_ray().cloudpickle.loads(content)
        for table, rows in zip(TABLES, tables, strict=True):
            table.update(rows)
        return group

    def work(self, reports: Any) -> tuple[dict[str, bytes], pd.DataFrame]:
        """Trains and measures; returns the files of the finished run, and its rows."""
        torch.set_num_threads(self.threads)
        device = torch.device("cuda" if self.cuda else "cpu")
        if self.cuda and not torch.cuda.is_available():
            raise UsageError(f"the task has a GPU of {platform.node()}, where PyTorch finds none; give it 0 GPUs.")
        with tempfile.TemporaryDirectory() as temporary:
            folder = RunFolder(temporary)
            folder.describe(self.spec)
            folder.unpack(self.begun)
            report = Reporter(reports, self.spec.digest, device, folder, self.every)
            try:
                run = train_spec(self.spec, device, folder.path, self.save_every, progress=False, report=report)
            except SystemExit as stopped:  # asked to, after a checkpoint
                ray = load_ray()
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.get(report.send(), timeout=5)
                if stopped.code == 128 + signal.SIGINT:
                    raise KeyboardInterrupt from None  # by the driver, and the worker may live on
                raise
            return folder.pack(), self.measure.rows(run)


class Reporter:
    """Tells the driver every few seconds how many epochs a task has done, and hands it each new checkpoint."""

    def __init__(self, reports: Any, digest: str, device: torch.device, folder: RunFolder, every: float):
        node = load_ray().get_runtime_context().get_node_id()
        self.reports, self.digest, self.folder, self.every = reports, digest, folder, every
        self.place = f"{platform.node()} ({node[:6]}, {device.type})"
        self.epoch, self.sent = 0, -float("inf")
        self.known = next(iter(folder.pack_checkpoint()), "")  # the driver's newest checkpoint

    def __call__(self, epoch: int) -> None:
        self.epoch = epoch
        if time.monotonic() - self.sent >= self.every:
            # Nothing waits for the answer: Ray would lend a waiting task's cores to another.
            self.send()

    def send(self) -> Any:
        """Sends a report, with the newest checkpoint if the driver lacks it; returns a reference that is ready on arrival.

        The report is a plain tuple, so that the queue's process imports nothing.
        """
        checkpoint = self.folder.pack_checkpoint(after=self.known)
        self.sent, self.known = time.monotonic(), next(iter(checkpoint), self.known)
        return self.reports.put_nowait.remote((self.digest, self.epoch, self.place, checkpoint))


def code() -> str:
    """Which posattn this process has: its version, and a checksum of its source."""
    root = Path(posattn.__file__).parent
    content = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"{posattn.__version__} ({content.hexdigest()[:8]})"


def task_function() -> Callable[[bytes, Any], Any]:
    """The function that a worker runs. It travels as code, not as a name, so that it can say what the node lacks."""
    wanted = code()

    def work(packed: bytes, reports: Any) -> Any:
        import platform

        node, need = platform.node(), f"every node needs the driver's posattn, which is {wanted}"
        try:
            from posattn.experiments import ray_task

            found = ray_task.code()
        except ImportError as error:
            raise ImportError(f"{node} cannot import what a task needs ({error}); {need}.") from error
        if found != wanted:
            raise ImportError(f"{node} has posattn {found}; {need}.")
        try:
            group = ray_task.Group.unpacked(packed)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"{node} cannot import what a task needs ({error}); networks and measures of your own must be in modules there."
            ) from error
        return group.work(reports)

    return work
