"""A Ray cluster as an engine: every ensemble is a task, and its runs and rows are those that the local engine gives.

The driver is the process that asks. It holds the ensembles' folders, hands out the tasks and writes what comes back; no worker
needs to see the store. Workers report epochs and checkpoints through a queue. The driver tells how far each is, and keeps the
checkpoints in the store: an ensemble whose worker is lost goes on from the last one elsewhere, and so does a command that was
stopped, with either engine. Every node needs this package in the driver's version.
"""

import contextlib
import os
import platform
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from posattn.errors import UsageError, positive, whole
from posattn.experiments.declaration import Cell
from posattn.experiments.engine import called, plan
from posattn.experiments.measures import Measure
from posattn.experiments.store import Store
from posattn.training import Run, RunSpec, checkpoints, files, load, train_spec
from posattn.training.fit import check_precision
from posattn.training.program import Parameters
from posattn.training.run import save


@dataclass(frozen=True)
class Trained:
    """A finished run on its way between processes."""

    weights: np.ndarray[Any, Any]  # (M, P), a row for each member
    result: dict[str, Any]
    history: pd.DataFrame

    @classmethod
    def of(cls, run: Run) -> "Trained":
        return cls(run.parameters.flat.detach().cpu().numpy(), run.result, run.history)

    def run(self, spec: RunSpec, device: torch.device) -> Run:
        flat = torch.tensor(self.weights, device=device)
        return Run(spec, Parameters(spec.model, flat), self.result, self.history)


@dataclass(frozen=True)
class Group:
    """What a task does: trains an ensemble, unless it is ``trained``, and measures it."""

    spec: RunSpec
    measure: Measure
    trained: Trained | None = None
    checkpoint: dict[str, bytes] = field(default_factory=dict)
    threads: int = 1
    cuda: bool = False
    every: float = 5.0
    save_every: float = 60.0

    def work(self, reports: Any) -> tuple[Trained | None, pd.DataFrame]:
        """The run, if this trained it, and its rows."""
        torch.set_num_threads(self.threads)
        device = torch.device("cuda" if self.cuda and torch.cuda.is_available() else "cpu")
        if self.trained is not None:
            return None, self.measure.rows(self.trained.run(self.spec, device))
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            files.write_json(folder / "run.json", self.spec.to_dict())
            checkpoints.unpack(folder, self.checkpoint)
            report = Reporter(reports, self.spec.digest, device, folder, self.every)
            try:
                run = train_spec(self.spec, device, folder, self.save_every, progress=False, report=report)
            except SystemExit as stopped:  # asked to, after a checkpoint
                _ray().get(report.send(), timeout=5)
                if stopped.code == 128 + signal.SIGINT:
                    raise KeyboardInterrupt from None  # by the driver, and the worker may live on
                raise
        return Trained.of(run), self.measure.rows(run)


class Reporter:
    """Tells the driver, now and then, how many epochs a task has done, and hands it each new checkpoint."""

    def __init__(self, reports: Any, digest: str, device: torch.device, folder: Path, every: float):
        node = _ray().get_runtime_context().get_node_id()
        self.reports, self.digest, self.folder, self.every = reports, digest, folder, every
        self.place = f"{platform.node()} ({node[:6]}, {device.type})"
        self.epoch, self.sent, self.kept = 0, -float("inf"), list(checkpoints.pack(folder))

    def __call__(self, epoch: int) -> None:
        self.epoch = epoch
        if time.monotonic() - self.sent >= self.every:
            # Nothing waits for the answer: Ray would lend a waiting task's cores to another.
            self.send()

    def send(self) -> Any:
        """Reports now; the answer comes when the driver's queue has it."""
        checkpoint = checkpoints.pack(self.folder)
        new = list(checkpoint) != self.kept
        self.sent, self.kept = time.monotonic(), list(checkpoint)
        return self.reports.put_nowait.remote(Report(self.digest, self.epoch, self.place, checkpoint if new else {}))


class Report(NamedTuple):
    """What a worker tells the driver of an ensemble."""

    digest: str
    epoch: int
    place: str
    checkpoint: dict[str, bytes]  # empty where there is none newer than the last


@dataclass(frozen=True)
class RayEngine:
    """A Ray cluster: ensembles side by side, as tasks.

    Args:
        address: ``auto`` for the cluster that this machine is part of, or ``host:port``; None starts Ray on this machine alone.
        gpus: what a task takes of a GPU; 0.25 lets four tasks share one, 0 trains on the CPU.
        cpus: how many cores a task takes; it computes with as many threads.
        announce: gets a line for what happens, and for each ensemble's progress.
        retries: how often an ensemble whose worker was lost is given to another.
        every: seconds between lines on progress.
        save_every: seconds between checkpoints.
    """

    address: str | None = None
    gpus: float = 0
    cpus: float = 1
    announce: Callable[[str], None] = lambda message: None
    retries: int = 3
    every: float = 5.0
    save_every: float = 60.0

    def __post_init__(self) -> None:
        positive("cpus", self.cpus)
        if self.gpus != 0 and positive("gpus", self.gpus) > 1 and self.gpus != int(self.gpus):
            raise UsageError(f"gpus is {self.gpus}; it must be from 0 to 1, or a whole number.")
        whole("retries", self.retries, least=0)

    def check(self, cells: Iterable[Cell], precision: str) -> None:
        """A cluster's GPUs are not known here; without any, only fp32 can train."""
        if not self.gpus:
            for cell in cells:
                check_precision(cell.model, precision, torch.device("cpu"))

    def run(self, specs: list[RunSpec], measure: Measure, store: Store) -> list[RunSpec]:
        """Trains and measures the ensembles; returns those that another process is at.

        An error of one ensemble is raised when the others are done.
        """
        elsewhere = []
        with _joined(self.address), ExitStack() as held:
            self._check_resources()
            tasks = Tasks(self, measure, store)
            for spec in specs:
                self.announce(plan(spec))
                own = held.enter_context(ExitStack())
                try:
                    own.enter_context(_held(store.folder(spec), spec))
                except files.InUse:
                    elsewhere.append(spec)
                    continue
                tasks.submit(spec, own)
            held.callback(tasks.stop)  # before the folders are let go
            tasks.finish()
        return elsewhere

    def _check_resources(self) -> None:
        """Without this a task that fits nowhere would wait in silence."""
        need = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
        if any(all(node.get(kind, 0) >= count for kind, count in need.items()) for node in nodes):
            return
        lack = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        if self.address is None:
            raise UsageError(f"a task is to have {lack}; this machine has fewer.")
        self.announce(f"No node of the cluster has {lack}, which a task is to have; waiting for one that does.")


class Tasks:
    """The tasks of one call: given out, followed, written when done, given out again when lost."""

    def __init__(self, engine: RayEngine, measure: Measure, store: Store):
        ray = self.ray = _ray()
        self.engine, self.measure, self.store = engine, measure, store
        # Beside the driver, so that the queue is lost with no other node.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.reports = ray.util.queue.Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self.reports.qsize()  # started: no result waits for it later
        # Retries are the driver's, which has the newest checkpoint.
        self.work = ray.remote(Group.work).options(
            num_cpus=engine.cpus, num_gpus=engine.gpus, scheduling_strategy="SPREAD", max_retries=0
        )
        self.waiting: dict[Any, RunSpec] = {}
        self.unfinished: dict[str, tuple[RunSpec, ExitStack]] = {}
        self.lost: dict[str, int] = {}
        self.errors: list[Exception] = []

    def submit(self, spec: RunSpec, held: ExitStack) -> None:
        """Gives the ensemble to a worker; ``held`` lets go of its folder."""
        self.unfinished[spec.digest] = spec, held
        self._hand_out(spec)

    def _hand_out(self, spec: RunSpec) -> None:
        folder, engine = self.store.folder(spec), self.engine
        group = Group(
            spec,
            self.measure,
            threads=max(1, int(engine.cpus)),
            cuda=engine.gpus > 0,
            every=engine.every,
            save_every=engine.save_every,
        )
        if (folder / "weights.json").exists():
            group = replace(group, trained=Trained.of(load(folder)))
        elif checkpoints.load(folder, spec.digest) is not None:
            group = replace(group, checkpoint=checkpoints.pack(folder))
        self.waiting[self.work.remote(group, self.reports.actor)] = spec

    def finish(self) -> None:
        looked = time.monotonic()
        while self.waiting:
            done, _ = self.ray.wait(list(self.waiting), timeout=self.engine.every)
            for task in done:
                self._end(task)
            if self.waiting and time.monotonic() - looked >= self.engine.every:
                self._follow()
                looked = time.monotonic()
        if self.errors:
            raise self.errors[0]

    def _end(self, task: Any) -> None:
        spec, failed = self.waiting.pop(task), self.ray.exceptions
        try:
            trained, rows = self.ray.get(task)
        except (
            failed.WorkerCrashedError,
            failed.NodeDiedError,
            failed.LocalRayletDiedError,
            failed.ObjectLostError,
            failed.OutOfMemoryError,
        ) as error:
            self._retry(spec, error)
        except failed.RayTaskError as error:
            self._fail(spec, error.cause if isinstance(error.cause, UsageError) else error)
        else:
            self._write(spec, trained, rows)

    def _write(self, spec: RunSpec, trained: Trained | None, rows: pd.DataFrame) -> None:
        folder = self.store.folder(spec)
        if trained is not None:
            save(folder, trained.run(spec, torch.device("cpu")))
        result = load(folder).result if trained is None else trained.result
        self.store.write(spec, self.measure, rows, result)
        self._let_go(spec)
        self.engine.announce(f"{called(spec)}: done")

    def _retry(self, spec: RunSpec, error: Exception) -> None:
        times = self.lost[spec.digest] = self.lost.get(spec.digest, 0) + 1
        if times > self.engine.retries:
            limit = f"more often than retries allows, which is {self.engine.retries}"
            self._fail(spec, UsageError(f"{called(spec)}: its worker was lost {limit} ({type(error).__name__})."))
            return
        self._follow()
        begun = any(self.store.folder(spec).glob("checkpoint-*.json"))
        way = "goes on from its last checkpoint" if begun else "starts again"
        self.engine.announce(f"{called(spec)}: its worker was lost; it {way} on another")
        self._hand_out(spec)

    def _fail(self, spec: RunSpec, error: Exception) -> None:
        self.errors.append(error)
        self._let_go(spec)
        if self.waiting:
            self.engine.announce(f"{called(spec)}: failed; the others go on")

    def _follow(self, tell: bool = True) -> None:
        """Tells how far each ensemble is, and puts its newest checkpoint into the store."""
        newest: dict[str, Report] = {}
        for report in self.reports.get_nowait_batch(self.reports.qsize()):
            if report.digest in self.unfinished:
                spec, _ = self.unfinished[report.digest]
                checkpoints.unpack(self.store.folder(spec), report.checkpoint)
                newest[report.digest] = report
        for report in newest.values() if tell else ():
            spec, _ = self.unfinished[report.digest]
            self.engine.announce(f"{called(spec)}: epoch {report.epoch} of {spec.recipe.epochs} on {report.place}")

    def _let_go(self, spec: RunSpec) -> None:
        _, held = self.unfinished.pop(spec.digest)
        held.close()

    def stop(self) -> None:
        """Ends what is left where the driver is leaving early, and keeps its last checkpoints."""
        if self.waiting:
            for task in self.waiting:
                self.ray.cancel(task)
            self.ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=10)
            self._follow(tell=False)
            print("Stopped; the same command goes on from the last checkpoints.", file=sys.stderr)
        self.reports.shutdown(force=True)


@contextlib.contextmanager
def _held(folder: Path, spec: RunSpec) -> Iterator[None]:
    """Holds an ensemble's folder for this process, as training there would."""
    if not (folder / "run.json").exists():
        files.write_json(folder / "run.json", spec.to_dict())
    with files.sole_user(folder / "run.json"):
        files.sweep(folder)
        yield


@contextlib.contextmanager
def _joined(address: str | None) -> Iterator[None]:
    """While open, this process is part of the cluster. One that is part of a cluster already stays in it."""
    ray = _ray()
    if address is not None:
        _check_reachable(address)
    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"address": "local", "include_dashboard": False}
    else:
        settings["address"] = address
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**settings)
    except ConnectionError as error:
        raise UsageError(f"address is {address!r}, {_SILENT}") from error
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(f"address is {address!r}, and joining the cluster failed: {reason}.") from error
    try:
        yield
    finally:
        ray.shutdown()


_SILENT = "where no Ray cluster answers; start one with ray start."


def _check_reachable(address: str) -> None:
    """Ray itself would try for a long time."""
    if address == "auto":
        return  # Ray looks on this machine only
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"address is {address!r}; it must be auto, or host:port of a Ray cluster.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(f"address is {address!r}, {_SILENT}") from error


def _ray() -> Any:
    try:
        import ray
        import ray.util.queue
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UsageError(
            "engine is 'ray' and Ray is not installed; install it with pip install 'posattn[ray]'."
        ) from error
    return ray
