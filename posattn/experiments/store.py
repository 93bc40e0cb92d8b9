"""The store: what was trained and measured, by what determines it. Nothing in it is computed twice.

store/runs/ARCH-DIGEST/            an ensemble, in training or trained (see posattn.run_folder)
store/rows/ARCH-DIGEST-MEASURE.*   what one measure gave for it: rows (.csv.gz), and configuration and result (.json)
store/computed/NAME-SIZE.*         rows that need no runs, such as those of compiled programs (.csv), and their checksum (.json)
store/lock                         held by the process that writes

A row belongs to a run, whichever ensemble trained it and whichever experiment asked for it. Experiments that share runs share
rows, even if one asks for fewer scales than the other. Rows are complete once their JSON is there, which is written last; it is
sealed, and has their checksum. Several processes may use one store: an ensemble is trained by the process that holds its
folder, and one process at a time lays out new ensembles or writes rows.
"""

import contextlib
import gzip
import hashlib
import json
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from posattn import files
from posattn.encodings import encoding_of_own
from posattn.errors import UsageError
from posattn.experiments.measures import Measure
from posattn.names import PRECISIONS
from posattn.network import NetworkConfig
from posattn.run_folder import Answers, RunFolder, check_answers
from posattn.tasks import TASKS
from posattn.tasks.own import answers_of_own
from posattn.training import Member, Recipe, RunSpec
from posattn.training.run import read_spec

STORES = (Path("out/store"), Path("results/store"))  # one's own, then those of a checkout
_PRECISION = "fp32"  # of what is trained, unless another is asked for
_AT_ONCE = 50  # runs in one ensemble at most
_WAIT = 2.0  # seconds between looks at what another process is training


@dataclass(frozen=True)
class Cell:
    """One run of a grid, and what is measured of it."""

    label: str
    model: NetworkConfig
    recipe: Recipe
    member: Member
    variable_length: bool | tuple[int, ...]
    measure: Measure

    def spec(self, precision: str = _PRECISION) -> RunSpec:
        """This run as an ensemble of one."""
        return RunSpec(self.model, self.recipe, (self.member,), self.variable_length, precision)

    @cached_property
    def key(self) -> str:
        """The identity of the run, whatever precision it is computed in."""
        return self.spec().identity(0, precision=False)

    @cached_property
    def point(self) -> str:
        """The identity that runs share if only their seeds differ: a point of the figure."""
        return replace(self, member=replace(self.member, seed=0)).key


class AnyEngine(Protocol):
    """What trains ensembles: this machine, a Ray cluster, or an engine of your own."""

    def check(self, cells: Iterable[Cell], precision: str) -> None:
        """Raises if a cell cannot train in ``precision`` there."""
        ...

    def run(self, specs: list[RunSpec], measure: Measure, store: "Store") -> list[RunSpec]:
        """Trains and measures the ensembles; returns those that another process is training."""
        ...


@dataclass(frozen=True)
class Stored:
    """Where the rows of one run are: the file, and the run's identity in it."""

    path: Path
    run: str


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Adds to an error on a damaged file what to do about it."""
    try:
        yield
    except files.Damaged as damage:
        raise files.Damaged(f"{damage} Restore it, or remove it to train its runs again.") from damage


class Store:
    """The store in the folder ``root``, which need not exist yet."""

    def __init__(self, root: Path):
        self.root = root
        self._index: dict[Path, tuple[object, dict[str, Any]]] = {}  # by rows: what describes them, after its version

    def complete(self, cells: Iterable[Cell], engine: AnyEngine, precision: str | None = None) -> None:
        """Trains and measures until every cell of a grid has rows; waits for what another process is training.

        Without a ``precision``, rows of any precision serve, and missing runs train in fp32.
        """
        missing = list(cells)
        if missing:
            self._drop_damaged()
        while missing:
            measure = missing[0].measure
            found = self.find(missing, measure, precision)
            missing = [cell for cell in missing if cell.key not in found]
            if missing:
                engine.check(missing, precision or _PRECISION)
                if engine.run(self.lay_out(missing, precision), measure, self):
                    time.sleep(_WAIT)

    def lay_out(self, cells: Iterable[Cell], precision: str | None = None) -> list[RunSpec]:
        """The ensembles that hold these runs: those the store has, finished or not, and new ones for the rest."""
        with self._alone():
            missing, there = {cell.key: cell for cell in cells}, []
            for spec in self._ensembles():
                finished = RunFolder(self.folder(spec)).finished
                if spec.precision == (precision or _PRECISION) or (precision is None and finished):
                    keys = {spec.identity(member, precision=False) for member in range(len(spec.members))}
                    if keys & missing.keys():
                        there.append(spec)
                        missing = {key: cell for key, cell in missing.items() if key not in keys}
            new = _group(missing.values(), precision or _PRECISION)
            for spec in there:
                RunFolder(self.folder(spec)).knows(partial(answers_in, spec), *self._named)
            for spec in new:
                RunFolder(self.folder(spec)).describe(spec)
            return there + new

    @property
    def _named(self) -> tuple[str, str]:
        """What an error calls a store whose networks learn other functions, and what to do about it."""
        return f"store is {str(self.root)!r}", "give another folder by --store"

    def folder(self, spec: RunSpec) -> Path:
        return self.root / "runs" / f"{spec.model.arch}-{spec.digest}"

    def write(self, spec: RunSpec, measure: Measure, rows: pd.DataFrame, result: dict[str, Any]) -> None:
        path = self.root / "rows" / f"{spec.model.arch}-{spec.digest}-{digest(measure.key())}.csv.gz"
        described = {"spec": spec.to_dict(), "measure": measure.key(), "result": result, "runs": _runs(spec)}
        if answers := answers_in(spec):
            described["answers"] = answers
        self._write(path, gzip.compress(as_csv(rows), mtime=0), described)

    def _write(self, path: Path, content: bytes, described: dict[str, Any]) -> None:
        with self._alone():
            files.write(path, content)
            files.write_sealed(_beside(path), described | {"sha256": files.sha256(content)})

    def _remove(self, path: Path) -> None:
        with self._alone():
            for each in (_beside(path), path):
                with contextlib.suppress(OSError):  # what stays is named when new rows are written
                    each.unlink()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the store, and removes what a killed process left half written."""
        with files.lock(self.root / "lock", wait=True):
            for folder in ("rows", "computed"):
                for path in files.half_written(self.root / folder, "*.csv.gz", "*.csv", "*.json"):
                    path.unlink(missing_ok=True)
            yield

    def _drop_damaged(self) -> None:
        """Removes damaged rows of ensembles that are here, so that these are measured again; names each in a warning."""
        for path in self._rows():
            if RunFolder(self.root / "runs" / path.name.rpartition("-")[0]).finished:
                try:
                    if described := self._described(path):
                        files.read_checked(path, described["sha256"])
                except files.Damaged as damage:
                    warnings.warn(f"{damage} Its runs are measured again.", stacklevel=3)
                    self._remove(path)

    @_advised()
    def find(self, cells: Iterable[Cell], measure: Measure, precision: str | None) -> dict[str, Stored]:
        """Where the rows of each run are, by the run's key; runs without rows are left out.

        If a run was trained twice, its rows are of the better precision, then of this very measure, then of the file with
        more of the runs, so that an experiment does not mix what another trained again. Raises if the rows are of another
        function or encoding of one's own that had the name before.
        """
        wanted, own = {cell.key: cell for cell in cells}, measure.key()
        ranked = []
        for path in self._rows():
            if described := self._described(path):
                kind, runs = described["spec"]["precision"], described["runs"]
                held = [key for key in runs if key in wanted]  # in the order of the file, whatever Python's hashes are
                if held and precision in (None, kind) and measure.held_by(described["measure"]):
                    self._check_answers(path, described, [wanted[key] for key in held])
                    rank = (PRECISIONS.index(kind), described["measure"] != own, -len(held), path)
                    ranked.append((rank, {key: Stored(path, runs[key]) for key in held}))
        found: dict[str, Stored] = {}
        for _, stored in sorted(ranked, key=lambda each: each[0]):
            found = stored | found
        return found

    def _check_answers(self, path: Path, described: dict[str, Any], cells: list[Cell]) -> None:
        """Raises if the rows at ``path`` are of functions or of an encoding of one's own that are not today's."""
        if "answers" in described:  # else all is the package's own, or an earlier version wrote them
            model = cells[0].model  # of all
            now = answers_of_own([cell.member.task for cell in cells], model.n) | encoding_of_own(model)
            check_answers(_beside(path), described["answers"], now, *self._named)

    def _rows(self) -> list[Path]:
        return sorted(self.root.glob("rows/*.csv.gz"))

    @_advised()
    def rows(self, found: dict[str, Stored], measure: Measure) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
        """All rows of what ``find`` gave for ``measure``, and the descriptions of the files that held them."""
        tables, described = [], []
        for path in dict.fromkeys(stored.path for stored in found.values()):
            about = self._described(path)
            table = _table(path, about)
            runs = {stored.run for stored in found.values() if stored.path == path}
            tables.append(measure.own(table[table["run"].isin(runs)]))
            described.append(about)
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(), described

    def has_computed(self, name: str) -> bool:
        return _beside(self._computed(name)).exists()

    def _computed(self, name: str) -> Path:
        return self.root / "computed" / f"{name}.csv"

    def computed(self, name: str, rows: Callable[[], pd.DataFrame], keep: bool = True) -> pd.DataFrame:
        """Rows that come from no run: read if they are there and whole, computed otherwise and, to ``keep`` them, written."""
        path = self._computed(name)
        if self.has_computed(name):
            try:
                described = files.read_sealed(_beside(path))
                if described.get("name") != name:
                    raise files.Damaged(f"{_beside(path)} describes the rows of another experiment.")
                return _table(path, described)
            except files.Damaged as damage:
                warnings.warn(f"{damage} Its rows are computed again.", stacklevel=2)
                if keep:
                    self._remove(path)
        content = as_csv(rows())
        if keep:
            self._write(path, content, {"name": name})
        return pd.read_csv(BytesIO(content))

    def _ensembles(self) -> Iterator[RunSpec]:
        for folder in map(RunFolder, sorted(self.root.glob("runs/*"))):
            if folder.kind == "trained":
                try:
                    yield read_spec(folder)
                except files.Damaged:
                    raise
                except UsageError:  # a network or task that someone else's file defines
                    continue

    def _described(self, path: Path) -> dict[str, Any]:
        """What describes the rows at ``path``; nothing if they are not complete.

        A process reads a description once, and again when another file has taken its place.
        """
        about = _beside(path)
        try:
            now = about.stat()
        except FileNotFoundError:
            return {}
        version = (now.st_ino, now.st_mtime_ns, now.st_size)
        before, described = self._index.get(path, (None, {}))
        if version != before:
            described = _check_description(about, files.read_sealed(about))
            self._index[path] = version, described
        return described


def _beside(rows: Path) -> Path:
    """The file that describes the rows in ``rows``."""
    return rows.with_name(rows.name.removesuffix(".gz").removesuffix(".csv") + ".json")


def _check_description(path: Path, described: Any) -> dict[str, Any]:
    """What describes rows, if it has all that is looked up in it."""
    try:
        spec, result, runs = described["spec"], described["result"], described["runs"]
        spec["model"]["n"], spec["recipe"]["samples"], spec["members"][0]["task"], described["sha256"]
        float(result["seconds"]), str(result["hardware"]), PRECISIONS.index(spec["precision"])
        texts = (*runs, *runs.values(), *result["status"])
        whole = bool(runs) and {*map(type, texts)} == {str} and isinstance(described["measure"], dict)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise files.Damaged(f"{path} does not describe rows.")
    return dict(described)


def as_csv(rows: pd.DataFrame) -> bytes:
    return rows.to_csv(index=False, na_rep="nan").encode()


def _table(path: Path, described: dict[str, Any]) -> pd.DataFrame:
    """The rows at ``path``, which ends in .csv or, of runs, in .csv.gz, if they are those that were described."""
    content, of_runs = files.read_checked(path, described.get("sha256")), path.suffix == ".gz"
    try:
        # A run's identity may look like a number.
        rows = pd.read_csv(BytesIO(content), compression="gzip" if of_runs else None, dtype={"run": str} if of_runs else None)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise files.Damaged(f"{path} is damaged: it is not a table.") from error
    if of_runs and not {"run", "metric", "value"} <= set(rows):
        raise files.Damaged(f"{path} is damaged: it is not a table of results.")
    return rows


def answers_in(spec: RunSpec) -> Answers:
    """What functions of one's own that an ensemble learns answer to a few lists, if they are there; numbers of its encoding."""
    tasks = [member.task for member in spec.members if member.task in TASKS]
    return answers_of_own(tasks, spec.model.n) | encoding_of_own(spec.model)


def _runs(spec: RunSpec) -> dict[str, str]:
    """The identity of every run of an ensemble, by its key."""
    return {spec.identity(member, precision=False): spec.identity(member) for member in range(len(spec.members))}


def _group(cells: Iterable[Cell], precision: str) -> list[RunSpec]:
    """Ensembles for the cells: runs that share everything but their member, up to fifty together."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        alike = cell.spec(precision).to_dict() | {"members": None}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(cell)
    return [
        replace(group[0].spec(precision), members=tuple(cell.member for cell in group[start : start + _AT_ONCE]))
        for group in groups.values()
        for start in range(0, len(group), _AT_ONCE)
    ]


def digest(content: Any) -> str:
    """A short name for anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def first_store() -> Path | None:
    """The first of the usual folders that holds results."""
    return next((path for path in STORES if (path / "rows").is_dir()), None)
