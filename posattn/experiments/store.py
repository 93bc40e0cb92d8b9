"""The store: what was trained and measured, by what determines it. Nothing in it is computed twice.

store/runs/ARCH-DIGEST/            an ensemble, in training or trained (see posattn.run_folder)
store/rows/ARCH-DIGEST-MEASURE.*   what one measure gave for it: rows (.csv.gz), and configuration and result (.json)
store/computed/NAME-SIZE.csv       rows of an experiment that needs no runs, or of compiled programs

A row belongs to a run, whichever ensemble trained it and whichever experiment asked for it. Experiments that share runs share
rows, even if one asks for fewer scales than the other. Rows are complete once their JSON is there, which is written last.
Several processes may use one store: an ensemble is trained by the process that holds its folder, and new ensembles are laid
out by one process at a time.
"""

import gzip
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from posattn import files
from posattn.errors import UsageError
from posattn.experiments.cells import Cell
from posattn.experiments.measures import Measure
from posattn.run_folder import RunFolder
from posattn.training import RunSpec
from posattn.training.run import read_spec
from posattn.training.spec import PRECISIONS

_PRECISION = "fp32"  # of what is trained, unless another is asked for
_AT_ONCE = 50  # runs in one ensemble at most
_WAIT = 2.0  # seconds between looks at what another process is training


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
    """Where the rows of one run are: the file, the run's identity in it, and its precision."""

    path: Path
    run: str
    precision: str


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
        while missing:
            measure = missing[0].measure
            found = self.find(missing, measure, precision)
            missing = [cell for cell in missing if cell.key not in found]
            if missing:
                engine.check(missing, precision or _PRECISION)
                if engine.run(self.lay_out(missing, precision), measure, self):
                    time.sleep(_WAIT)

    def lay_out(self, cells: Iterable[Cell], precision: str | None = None) -> list[RunSpec]:
        """The ensembles that hold these runs: those the store has, finished or not, and new ones for the rest.

        Without a ``precision``, finished runs of any precision serve, and new ones train in fp32.
        """
        with files.lock(self.root / "lock", wait=True):
            missing = {cell.key: cell for cell in cells}
            specs: dict[str, RunSpec] = {}
            for spec in self._ensembles():
                finished = RunFolder(self.folder(spec)).finished
                if spec.precision != (precision or _PRECISION) and not (precision is None and finished):
                    continue
                held = [key for key in _keys(spec) if key in missing]
                if held:
                    specs[spec.digest] = spec
                    for key in held:
                        del missing[key]
            for spec in _group(missing.values(), precision or _PRECISION):
                RunFolder(self.folder(spec)).describe(spec)
                specs[spec.digest] = spec
            return list(specs.values())

    def folder(self, spec: RunSpec) -> Path:
        return self.root / "runs" / f"{spec.model.arch}-{spec.digest}"

    def write(self, spec: RunSpec, measure: Measure, rows: pd.DataFrame, result: dict[str, Any]) -> None:
        content = gzip.compress(rows.to_csv(index=False, na_rep="nan").encode(), mtime=0)
        path = self.root / "rows" / f"{spec.model.arch}-{spec.digest}-{digest(measure.key())}.csv.gz"
        files.write(path, content)
        described = {
            "spec": spec.to_dict(),
            "measure": measure.key(),
            "result": result,
            "sha256": files.sha256(content),
            "runs": {key: spec.identity(member) for member, key in enumerate(_keys(spec))},
        }
        files.write_json(_beside(path), described)

    def find(self, cells: Iterable[Cell], measure: Measure, precision: str | None) -> dict[str, Stored]:
        """Where the rows of each run are, by the run's key; runs without rows are left out.

        If a run was trained twice, its rows are of the better precision, then of this very measure, then of the file with
        more of the runs, so that an experiment does not mix what another trained again.
        """
        wanted, own = {cell.key for cell in cells}, measure.key()
        files_by_rank = []
        for path in sorted(self.root.glob("rows/*.csv.gz")):
            described = self._described(path)
            if not described:
                continue
            kind, held = described["spec"]["precision"], described["runs"].keys() & wanted
            if held and (precision is None or kind == precision) and measure.held_by(described["measure"]):
                rank = (PRECISIONS.index(kind), described["measure"] != own, -len(held), path)
                files_by_rank.append((rank, {key: Stored(path, described["runs"][key], kind) for key in held}))
        found: dict[str, Stored] = {}
        for _, stored in sorted(files_by_rank, key=lambda each: each[0]):
            found = stored | found
        return found

    def rows(self, found: dict[str, Stored], measure: Measure) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
        """All rows of what ``find`` gave for ``measure``, and the descriptions of the files that held them."""
        tables, described = [], []
        for path in dict.fromkeys(stored.path for stored in found.values()):
            about = self._described(path)
            content = files.read_checked(path, about.get("sha256"))
            table = pd.read_csv(BytesIO(gzip.decompress(content)), dtype={"run": str})
            runs = {stored.run for stored in found.values() if stored.path == path}
            tables.append(measure.own(table[table["run"].isin(runs)]))
            described.append(about)
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(), described

    def has_computed(self, name: str) -> bool:
        """Whether the rows of that name were computed before."""
        return self._computed(name).exists()

    def _computed(self, name: str) -> Path:
        return self.root / "computed" / f"{name}.csv"

    def computed(self, name: str, rows: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Rows that come from no run: computed the first time they are asked for, and read from then on."""
        path = self._computed(name)
        if not path.exists():
            files.write(path, rows().to_csv(index=False, na_rep="nan").encode())
        try:
            return pd.read_csv(path)
        except ValueError as error:
            raise files.Damaged(f"{path} is damaged: it is not a table.") from error

    def _ensembles(self) -> list[RunSpec]:
        specs = []
        for path in sorted(self.root.glob("runs/*")):
            folder = RunFolder(path)
            if folder.kind == "trained":
                try:
                    specs.append(read_spec(folder))
                except files.Damaged:
                    raise
                except UsageError:  # a network or task that someone else's file defines
                    continue
        return specs

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
            described = files.read_json(about)
            whole = isinstance(described, dict) and {"spec", "measure", "runs", "result"} <= set(described)
            if not whole or not isinstance(described["measure"], dict):
                raise files.Damaged(f"{about} does not describe rows.")
            self._index[path] = version, described
        return described


def _beside(rows: Path) -> Path:
    """The file that describes the rows in ``rows``."""
    return rows.with_name(rows.name.removesuffix(".csv.gz") + ".json")


def _keys(spec: RunSpec) -> list[str]:
    return [spec.identity(member, precision=False) for member in range(len(spec.members))]


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
