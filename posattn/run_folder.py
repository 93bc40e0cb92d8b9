"""The folder of a run: which files it has, which process works in it, whether it is finished, and its checkpoints."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from posattn import files
from posattn.errors import UsageError, path_of
from posattn.names import KNOWN_ENCODING

_KEPT = 2  # checkpoints
# What may be there half written.
_FILES = ("run.json", "program.json", "answers.json", "history.csv", "weights.*", "checkpoint-*")
_UNSEALED = {"format", "program", "machines", "bound", "temperature", "error", "misfit"}  # fields of an older program.json


Answers = dict[str, list[list[float]]]  # by the name of a task or, after KNOWN_ENCODING, of an encoding


class Spec(Protocol):
    """What determines a run's numbers, as its folder knows it."""

    @property
    def digest(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


class RunFolder:
    """The folder of a run, trained or compiled. Only this class knows the names of its files:

    run.json               of a trained run: model, recipe, members, all that determines the numbers
    program.json           of a compiled program: which one, for how many machines, with which bound, ε and weights
    weights.safetensors    when done: every parameter, of a trained run with a leading member axis; weights.json beside it
    answers.json           of a run of one's own function: its answers to a few lists; of one's own encoding: numbers of it
    history.csv            when done: loss and learning rate per member and epoch
    checkpoint-STEPS.*     while training: the newest two states, so that a damaged one costs an interval and not the run
    lock                   while training or saving: held by the process that does; a folder of only a lock counts as new
    """

    def __init__(self, path: str | Path):
        self.path = path_of("the run's folder", path)
        self.run, self.program = self.path / "run.json", self.path / "program.json"
        self.weights, self.about = self.path / "weights.safetensors", self.path / "weights.json"
        self.history, self._lock = self.path / "history.csv", self.path / "lock"
        self._answers = self.path / "answers.json"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def kind(self) -> str | None:
        """``trained`` or ``compiled``, whether finished or not; None if no run is here."""
        return "compiled" if self.program.exists() else "trained" if self.run.exists() else None

    @property
    def finished(self) -> bool:
        return self.about.exists()  # written last

    def describe(self, spec: Spec) -> None:
        """Writes the description that makes this the folder of a run."""
        files.write_json(self.run, spec.to_dict())

    def holds(self, spec: Spec) -> bool:
        """Whether the run is here and finished. Raises if the folder holds anything else, and changes nothing."""
        if not self.run.exists():
            files.check_new(self.path, *_FILES)
            return False
        before, now = files.read_json(self.run), json.loads(json.dumps(spec.to_dict()))
        if not isinstance(before, dict):
            raise files.Damaged(f"{self.run} does not describe a run: it is not an object.")
        if before != now:
            other = _difference(before, now)
            raise UsageError(f"out is {str(self)!r}, which holds another run ({other}); give another folder.")
        return self.finished

    def knows(self, answers: Callable[[], Answers], whose: str = "", instead: str = "give another folder") -> None:
        """Raises if the run here is of functions or encodings of one's own that are known by other numbers than these.

        The error says ``whose`` the run is and what to do ``instead``, by default for the folder that ``train`` is given.
        """
        if self._answers.exists():  # else there are none, or an earlier version began the run
            before = files.read_json(self._answers)
            check_answers(self._answers, before, answers(), whose or f"out is {str(self)!r}", instead)

    @contextlib.contextmanager
    def claim(self, spec: Spec, answers: Answers | None = None) -> Iterator[bool]:
        """Locks the folder, or raises ``files.InUse``; writes the run's description, and yields whether the run is finished.

        ``answers`` are what functions of one's own answer to a few lists, and numbers of an encoding of one's own.
        """
        with self._alone():
            finished = self.holds(spec)
            if not self.run.exists():
                self.describe(spec)
            if answers and not finished and not self._answers.exists() and not self.checkpoints():
                files.write_json(self._answers, answers)
            self.knows(lambda: answers or {})
            yield finished

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the folder, and removes what a killed process left half written."""
        with files.lock(self._lock):
            for path in files.half_written(self.path, *_FILES):
                path.unlink(missing_ok=True)
            try:
                yield
            finally:
                if self.finished:
                    self.sweep()

    def sweep(self) -> None:
        """Removes what a finished run needs no more, also if the process that finished it was killed before it did."""
        with contextlib.suppress(OSError):
            self.clear_checkpoints()
            self._lock.unlink(missing_ok=True)

    def save_program(self, described: dict[str, Any], weights: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Writes a compiled program; raises if the folder holds anything else, or if another process has its lock."""
        content = files.packed(weights)
        tied = described | {"sha256": files.sha256(content)}
        self._check_program(tied, about)
        with self._alone():
            self._check_program(tied, about)
            files.write_sealed(self.program, tied)
            files.save_tensors(self.weights, weights, about)

    def _check_program(self, described: dict[str, Any], about: dict[str, Any]) -> None:
        """Raises unless the folder is new or holds this very program.

        Fields of the program that an earlier version lacks do not count, nor fields of its network that only that version had.
        """
        if self.run.exists():
            raise UsageError(f"{self} holds a trained run; give another folder.")
        if not self.program.exists():
            return files.check_new(self.path, *_FILES)
        held, given = self._program(), json.loads(json.dumps(described | about["model"]))
        if self.finished:
            beside = files.read_sealed(self.about)
            network = {field: value for field, value in beside["model"].items() if field in given}
            held = {"sha256": beside["sha256"]} | held | network
        if any(given.get(field) != value for field, value in held.items()):
            raise UsageError(f"{self} holds {held.get('program')}, compiled otherwise; give another folder.")

    def read_program(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        """What ``save_program`` was given; the description also has the checksum of the weights, unless it is not sealed."""
        described = self._program()
        if not self.finished:
            raise UsageError(f"the program in {self} is not saved to the end; the same command saves it again.")
        weights, about = files.load_tensors(self.weights)
        if "sha256" in described and described["sha256"] != files.read_sealed(self.about).get("sha256"):
            raise files.Damaged(f"{self.weights} belongs to another program than {self.program}.")
        return described, weights, about

    def _program(self) -> dict[str, Any]:
        """What describes the compiled program. Folders of earlier versions have no seal."""
        described = files.read_json(self.program)
        if isinstance(described, dict) and described.keys() == _UNSEALED:
            return described
        return files.read_sealed(self.program)

    def save(self, spec: Spec, weights: dict[str, Tensor], about: dict[str, Any], history: bytes) -> None:
        """Writes what training gave, after which the run is finished."""
        files.write(self.history, history)
        described = about | {"run": spec.digest, "history_sha256": files.sha256(history)}
        files.save_tensors(self.weights, weights, described)
        self.clear_checkpoints()

    def read(self, spec: Spec) -> tuple[dict[str, Tensor], dict[str, Any], bytes]:
        """What ``save`` wrote, of a finished run: weights, what is known of them, history."""
        weights, about = files.load_tensors(self.weights)
        if about.pop("run", None) != spec.digest:
            raise files.Damaged(f"{self.weights} belongs to another run than {self.run}.")
        return weights, about, files.read_checked(self.history, about.pop("history_sha256", None))

    def pack(self) -> dict[str, bytes]:
        """The files of a finished run by name, to be sent elsewhere. The file that marks the run as finished is last."""
        return {path.name: files.read(path) for path in (self.history, self.weights, self.about)}

    def unpack(self, content: dict[str, bytes]) -> None:
        """Writes what ``pack`` or ``pack_checkpoint`` gave, and removes the checkpoints that are not needed then."""
        for name, part in content.items():
            files.write(self.path / name, part)
        self.clear_checkpoints(keep=0 if self.finished else _KEPT)

    def checkpoints(self) -> list[Path]:
        """The tensor files of all checkpoints, newest first."""
        return sorted(self.path.glob("checkpoint-*.safetensors"), reverse=True)

    def save_checkpoint(self, spec: Spec, steps: int, state: dict[str, Tensor]) -> None:
        """Writes the state after so many steps, and removes all checkpoints but the newest two."""
        path = self.path / f"checkpoint-{steps:010d}.safetensors"
        files.save_tensors(path, state, {"run": spec.digest, "steps": steps})
        self.clear_checkpoints(keep=_KEPT)

    def load_checkpoint(
        self, spec: Spec, fits: Callable[[dict[str, Tensor]], bool] = lambda state: True, keep: bool = False
    ) -> dict[str, Tensor] | None:
        """The newest undamaged state of this run that ``fits``. Any other checkpoint is named in a warning and removed.

        With ``keep`` nothing is removed: this is for processes that only read, while another may be training.
        """
        paths = self.checkpoints()
        for index, path in enumerate(paths):
            try:
                files.refuse_pickle(path)
                state, described = files.load_tensors(path)
                if described.get("run") != spec.digest:
                    raise files.Damaged(f"{path} belongs to another run.")
                if not fits(state):
                    raise files.Damaged(f"{path} does not fit the run.")
                return state
            except files.Damaged as damage:
                if keep and not path.with_suffix(".json").exists():
                    continue  # the process that trains is writing or removing it
                over = "" if keep else " Training starts over."
                then = " The checkpoint before it is used." if index + 1 < len(paths) else over
                warnings.warn(f"{damage}{then}", stacklevel=2)
                if not keep:
                    _remove(path)
        return None

    def pack_checkpoint(self, after: str = "") -> dict[str, bytes]:
        """The newest checkpoint's files by name, to be sent elsewhere; none unless it is newer than the one named ``after``."""
        for path in self.checkpoints()[:1]:
            if path.name > after:
                return {part.name: files.read(part) for part in (path, path.with_suffix(".json")) if part.exists()}
        return {}

    def clear_checkpoints(self, keep: int = 0) -> None:
        for path in self.checkpoints()[keep:]:
            _remove(path)


def check_answers(file: Path, before: Any, now: Answers, whose: str, instead: str) -> None:
    """Raises if functions or encodings of one's own are known by other numbers than ``before``, which ``file`` holds."""
    for name, values in now.items():
        own, given = name.removeprefix(KNOWN_ENCODING), np.array(values)
        try:
            if own != name and name not in before:
                continue  # an earlier version knew functions alone
            held = np.array(before[name], dtype=float).reshape(given.shape)
        except (LookupError, TypeError, ValueError) as error:
            raise files.Damaged(f"{file} does not hold the answers of {name}.") from error
        if not np.abs(held - given).max() <= 1e-4 * np.abs(given).max():
            what = "learn another function" if own == name else "read another encoding"
            raise UsageError(f"{whose}, whose networks {what} of the name {own!r}; {instead}.")


def _remove(checkpoint: Path) -> None:
    for path in (checkpoint.with_suffix(".json"), checkpoint):
        with contextlib.suppress(OSError):
            path.unlink()


def _difference(before: Any, now: Any, path: str = "") -> str:
    """The first place where two descriptions differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now | before:
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"it has {len(before)} {path}, not {len(now)}"
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            if one != other:
                return _difference(one, other, f"{path}[{index}]")
    return f"its {path} is {before}, not {now}"
