"""Checkpoints of a run in training: the last two, so that a damaged one costs an interval and not the run."""

import warnings
from pathlib import Path

from posattn.folding import Tensors
from posattn.training.files import Damaged, load_tensors, refuse_pickle, save_tensors, write

_KEEP = 2


def save(folder: Path, run: str, steps: int, state: Tensors) -> None:
    """Writes ``checkpoint-STEPS`` of the run with that digest, and removes all but the newest two."""
    save_tensors(folder / f"checkpoint-{steps:010d}.safetensors", state, {"run": run, "steps": steps})
    for old in _newest_first(folder)[_KEEP:]:
        remove(old)


def load(folder: Path, run: str) -> Tensors | None:
    """The newest checkpoint that is whole and the run's own; one that is not is named in a warning and removed."""
    paths = _newest_first(folder)
    for index, path in enumerate(paths):
        try:
            refuse_pickle(path)
            state, described = load_tensors(path)
            if described.get("run") != run:
                raise Damaged(f"{path} belongs to another run.")
        except Damaged as damage:
            then = "The checkpoint before it is used." if index + 1 < len(paths) else "Training starts over."
            warnings.warn(f"{damage} {then}", stacklevel=2)
            remove(path)
        else:
            return state
    return None


def pack(folder: Path, after: str = "") -> dict[str, bytes]:
    """The newest checkpoint as the contents of its files, by name, to be sent elsewhere.

    Empty if there is none, or none newer than ``after``, the first name of an earlier one.
    """
    for path in _newest_first(folder)[:1]:
        if path.name > after:
            return {part.name: part.read_bytes() for part in (path, path.with_suffix(".json")) if part.exists()}
    return {}


def unpack(folder: Path, content: dict[str, bytes]) -> None:
    """Writes what ``pack`` gave, and removes all but the newest two."""
    for name, part in content.items():
        write(folder / name, part)
    for old in _newest_first(folder)[_KEEP:]:
        remove(old)


def clear(folder: Path) -> None:
    for path in _newest_first(folder):
        remove(path)


def remove(path: Path) -> None:
    path.with_suffix(".json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)
