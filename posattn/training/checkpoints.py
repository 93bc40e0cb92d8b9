"""Checkpoints of a run in training: the last two, so that a damaged one costs an interval and not the run."""

import warnings
from pathlib import Path

from posattn.folding import Tensors
from posattn.training.files import Damaged, load_tensors, refuse_pickle, save_tensors

_KEEP = 2


def save(folder: Path, steps: int, state: Tensors) -> None:
    """Writes ``checkpoint-STEPS`` and removes all but the newest two."""
    save_tensors(folder / f"checkpoint-{steps:010d}.safetensors", state, {"steps": steps})
    for old in _newest_first(folder)[_KEEP:]:
        remove(old)


def load(folder: Path) -> Tensors | None:
    """The newest checkpoint that is whole; a warning names each one that is not. None if there is none."""
    for path in _newest_first(folder):
        try:
            refuse_pickle(path)
            state, _ = load_tensors(path)
        except Damaged as damage:
            warnings.warn(f"{damage} The checkpoint before it is used.", stacklevel=2)
        else:
            return state
    return None


def clear(folder: Path) -> None:
    for path in _newest_first(folder):
        remove(path)


def remove(path: Path) -> None:
    path.with_suffix(".json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)
