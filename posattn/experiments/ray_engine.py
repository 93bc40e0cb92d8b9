"""A Ray cluster as an engine: every ensemble is a task, and its runs and rows are those that the local engine gives.

The driver is the process that asks. It holds the ensembles' folders, hands out the tasks, announces how far each is and writes
what comes back. A worker needs this package as the driver has it, and sees no store: it reports epochs and checkpoints through
a queue, and returns the run and its rows. The driver keeps the checkpoints in the store. So an ensemble whose worker is lost
goes on from its last checkpoint on another, and so does a command that was stopped, with either engine.
"""

import contextlib
import hashlib
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import torch

import posattn
from posattn import files, network
from posattn.devices import pick_device
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, extra, positive, whole
from posattn.experiments.engine import Engine, called, plan
from posattn.experiments.measures import Measure
from posattn.experiments.store import AnyEngine, Cell, Store, answers_in
from posattn.model import ARCHITECTURES
from posattn.run_folder import RunFolder
from posattn.tasks import SHIFTS, TASKS
from posattn.training import RunSpec, train_spec
from posattn.training.run import trained

_SILENT = "where no Ray cluster answers; start one with ray start."
# A program may have added rows of its own, which a worker is to know too.
TABLES: tuple[dict[str, Any], ...] = (TASKS, SHIFTS, ENCODINGS, ARCHITECTURES, network.KINDS, network.MAKERS)


@dataclass(frozen=True)
class RayEngine:
    """A Ray cluster: ensembles side by side, as tasks.

    ``address`` is ``auto`` for the cluster that this machine is part of, or ``host:port``; None starts Ray on this machine
    alone. A process that is part of a cluster already stays in that one.
    """

    address: str | None = None
    gpus: float = 0  # per task: 0.25 lets four share one, 0 trains on the CPU
    cpus: float = 1  # cores per task, and threads
    announce: Callable[[str], None] = lambda message: None  # called with lines on what happens and how far ensembles are
    retries: int = 3  # of an ensemble whose worker was lost
    every: float = 5.0  # seconds between lines on progress
    save_every: float = 60.0  # seconds between checkpoints
    _waited_for: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        positive("cpus", self.cpus)
        if self.gpus != 0 and positive("gpus", self.gpus) > 1 and self.gpus != int(self.gpus):
            raise UsageError(f"gpus is {self.gpus}; it must be from 0 to 1, or a whole number.")
        whole("retries", self.retries, least=0)

    def check(self, cells: Iterable[Cell], precision: str) -> None:
        """Raises if no cluster answers or, for training on CPUs, if a cell cannot train on one."""
        load_ray()
        _check_reachable(self.address)
        if not self.gpus:
            Engine(torch.device("cpu")).check(cells, precision)

    def run(self, specs: list[RunSpec], measure: Measure, store: Store) -> list[RunSpec]:
        """If one ensemble fails, its error is raised when the others are done."""
        own: list[Ensemble] = []
        elsewhere: list[RunSpec] = []
        with contextlib.ExitStack() as held:
            for spec in specs:
                folder = RunFolder(store.folder(spec))
                try:
                    held.enter_context(folder.claim(spec, answers_in(spec)))
                    own.append(Ensemble(spec, folder))
                except files.InUse:
                    elsewhere.append(spec)
                    if spec.digest not in self._waited_for:
                        self.announce(f"{plan(spec)}: another process is training these; waiting for it.")
                        self._waited_for.add(spec.digest)
            for number, ensemble in enumerate(own, start=1):
                place = f"{number}/{len(own)}"  # because several may be called the same
                ensemble.name = f"{place} {called(ensemble.spec)}"
                self.announce(f"{place} {plan(ensemble.spec)}")
            if own:
                with _joined(self.address), _ended_by_sigterm():
                    self._check_resources()
                    with contextlib.closing(Tasks(self, measure, store, own)) as tasks:
                        tasks.finish()
        return elsewhere

    def _check_resources(self) -> None:
        """Raises or announces that no node has what a task takes: Ray would let the task wait in silence."""
        need = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = [node["Resources"] for node in load_ray().nodes() if node["Alive"]]
        if any(all(node.get(kind, 0) >= count for kind, count in need.items()) for node in nodes):
            return
        lack = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        if self.address is None:
            raise UsageError(f"a task is to have {lack}; this machine has fewer.")
        self.announce(f"No node of the cluster has {lack}, which a task is to have; waiting for one that does.")


def engine_named(
    name: str,
    announce: Callable[[str], None] = lambda message: None,
    device: str | None = None,
    address: str | None = None,
    gpus_per_task: float = 0,
    cpus_per_task: float = 1,
) -> AnyEngine:
    """``local``, which is this machine, or ``ray``; raises for a setting that only the other one has."""
    if choice("engine", name, ("local", "ray")) == "ray":
        if device is not None:
            raise UsageError(f"device is {device!r}; with engine ray it follows from gpus-per-task.")
        return RayEngine(address, gpus_per_task, cpus_per_task, announce)
    given = {"address": (address, None), "gpus-per-task": (gpus_per_task, 0), "cpus-per-task": (cpus_per_task, 1)}
    for option, (value, default) in given.items():
        if value != default:
            raise UsageError(f"{option} is {value!r}; only engine ray takes one.")
    return Engine(pick_device(device), announce)


def load_ray() -> Any:
    return extra("ray", "ray", "ray.util.queue", "ray.util.scheduling_strategies")


# --- the driver ---------------------------------------------------------------------------------------------------------


@dataclass
class Ensemble:
    """An ensemble whose folder this driver holds."""

    spec: RunSpec
    folder: RunFolder
    name: str = ""
    lost: int = 0  # workers


class Tasks:
    """The tasks of one call: given out, followed, written when done, given out again when lost."""

    def __init__(self, engine: RayEngine, measure: Measure, store: Store, ensembles: list[Ensemble]):
        ray = self.ray = load_ray()
        self.engine, self.measure, self.store = engine, measure, store
        # Beside the driver, so that the queue is lost with no other node.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.reports = ray.util.queue.Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        # Retries are the driver's, which has the newest checkpoint.
        self.work = ray.remote(task_function()).options(
            num_cpus=engine.cpus, num_gpus=engine.gpus, scheduling_strategy="SPREAD", max_retries=0
        )
        self.unfinished = {ensemble.spec.digest: ensemble for ensemble in ensembles}
        self.waiting: dict[Any, Ensemble] = {}
        self.errors: list[Exception] = []

    def finish(self) -> None:
        for ensemble in self.unfinished.values():
            self._hand_out(ensemble)
        while self.waiting:
            done, _ = self.ray.wait(list(self.waiting), timeout=self.engine.every)
            for task in done:
                self._end(task)
            self._follow()
        if self.errors:
            raise self.errors[0]

    def _hand_out(self, ensemble: Ensemble) -> None:
        spec, folder, engine = ensemble.spec, ensemble.folder, self.engine
        begun: dict[str, bytes] = {}
        if folder.finished:
            begun = folder.pack()
        elif folder.load_checkpoint(spec) is not None:
            begun = folder.pack_checkpoint()
        threads = max(1, int(engine.cpus))
        group = Group(spec, self.measure, begun, threads, engine.gpus > 0, engine.every, engine.save_every)
        self.waiting[self.work.remote(group.packed(), self.reports.actor)] = ensemble

    def _end(self, task: Any) -> None:
        ensemble, failed = self.waiting.pop(task), self.ray.exceptions
        spec, folder = ensemble.spec, ensemble.folder
        try:
            finished, rows = self.ray.get(task)
        except failed.RayTaskError as error:  # the task's own
            told = isinstance(error.cause, (UsageError, ImportError))
            return self._fail(ensemble, UsageError(str(error.cause)) if told else error)
        except failed.RayError as error:  # the worker, its node or its memory
            return self._retry(ensemble, error)
        if not folder.finished:
            folder.unpack(finished)
        self.store.write(spec, self.measure, rows, trained(folder.path).result)
        folder.sweep()
        del self.unfinished[spec.digest]
        self.engine.announce(f"{ensemble.name}: done")

    def _retry(self, ensemble: Ensemble, error: Exception) -> None:
        ensemble.lost += 1
        if ensemble.lost > self.engine.retries:
            limit = f"more often than retries allows, which is {self.engine.retries} ({type(error).__name__})"
            return self._fail(ensemble, UsageError(f"{called(ensemble.spec)}: its worker was lost {limit}."))
        self._follow()
        way = "goes on from its last checkpoint" if ensemble.folder.checkpoints() else "starts again"
        self.engine.announce(f"{ensemble.name}: its worker was lost; it {way} on another")
        self._hand_out(ensemble)

    def _fail(self, ensemble: Ensemble, error: Exception) -> None:
        self.errors.append(error)
        del self.unfinished[ensemble.spec.digest]
        reason = getattr(error, "cause", None) or error
        self.engine.announce(f"{ensemble.name}: failed: {' '.join(str(reason).split())}")

    def _follow(self, tell: bool = True) -> None:
        """Announces how far each ensemble is, and puts its newest checkpoint into the store."""
        newest: dict[str, str] = {}
        for digest, epoch, place, checkpoint in self.reports.get_nowait_batch(self.reports.qsize()):
            if ensemble := self.unfinished.get(digest):
                ensemble.folder.unpack(checkpoint)
                newest[ensemble.name] = f"epoch {epoch} of {ensemble.spec.recipe.epochs} on {place}"
        for name, said in newest.items() if tell else ():
            self.engine.announce(f"{name}: {said}")

    def close(self) -> None:
        """If the driver leaves early, stops the tasks that are left and keeps their last checkpoints."""
        if self.waiting:
            for task in self.waiting:
                self.ray.cancel(task)
            self.ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=10)
            self._follow(tell=False)
            print("Stopped; the same command goes on from the last checkpoints.", file=sys.stderr)
        self.reports.shutdown(force=True)


@contextlib.contextmanager
def _joined(address: str | None) -> Iterator[None]:
    """Makes this process part of the cluster while open. A process that is in a cluster already stays in that one."""
    ray = load_ray()
    if ray.is_initialized():
        yield
        return
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own = {"address": "local", "include_dashboard": False} if address is None else {"address": address}
    try:
        with warnings.catch_warnings(), _on_loopback() if address is None else contextlib.nullcontext():
            warnings.simplefilter("ignore")
            ray.init(**own, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise UsageError(f"address is {address!r}, {_SILENT}") from error
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(f"address is {address!r}, and joining the cluster failed: {reason}.") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Lets a Ray that starts while open listen on the loopback address alone; on Linux it would on every interface.

    Ray has this as its setting for systems without clusters, which it reads when it is imported. It replaces a
    ``_node_ip_address`` of 127.0.0.1 by that of an interface.
    """
    constants, variable = load_ray()._private.ray_constants, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, told = constants.ENABLE_RAY_CLUSTER, os.environ.pop(variable, None)
    constants.ENABLE_RAY_CLUSTER = False
    os.environ[variable] = "0"  # for the processes that Ray starts
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        del os.environ[variable]
        os.environ |= {} if told is None else {variable: told}


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end the process in order while open, as Ctrl-C does; Ray's own handler would abort it."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    own = threading.current_thread() is threading.main_thread()  # elsewhere signals are somebody else's business
    before = signal.signal(signal.SIGTERM, leave) if own else None
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _check_reachable(address: str | None) -> None:
    """Raises if nothing answers at the address within ten seconds; Ray itself would try for longer."""
    if address in (None, "auto"):
        return  # Ray looks on this machine only
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"address is {address!r}; it must be auto, or host:port of a Ray cluster.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(f"address is {address!r}, {_SILENT}") from error


# --- a worker -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One task: trains an ensemble, or goes on from ``begun``, and measures it.

    ``begun`` holds files of its folder by name: those of a finished run, those of a checkpoint, or none.
    """

    spec: RunSpec
    measure: Measure
    begun: dict[str, bytes]
    threads: int
    cuda: bool
    every: float
    save_every: float

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
                with contextlib.suppress(load_ray().exceptions.RayError):
                    load_ray().get(report.send(), timeout=5)
                if stopped.code == 128 + signal.SIGINT:
                    raise KeyboardInterrupt from None  # by the driver, and the worker may live on
                raise
            return folder.pack(), self.measure.rows(run)


class Reporter:
    """Tells the driver every few seconds how many epochs a task has done, and hands it each new checkpoint."""

    def __init__(self, reports: Any, digest: str, device: torch.device, folder: RunFolder, every: float):
        self.reports, self.digest, self.folder, self.every = reports, digest, folder, every
        node = load_ray().get_runtime_context().get_node_id()[:6]
        self.place = f"{platform.node()} ({node}, {device.type})"
        self.epoch, self.sent = 0, -float("inf")
        self.known = next((path.name for path in folder.checkpoints()), "")  # the driver's newest checkpoint

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
            from posattn.experiments import ray_engine

            found = ray_engine.code()
        except ImportError as error:
            raise ImportError(f"{node} cannot import what a task needs ({error}); {need}.") from error
        if found != wanted:
            raise ImportError(f"{node} has posattn {found}; {need}.")
        try:
            group = ray_engine.Group.unpacked(packed)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"{node} cannot import what a task needs ({error}); networks and measures of your own must be in modules there."
            ) from error
        return group.work(reports)

    return work
