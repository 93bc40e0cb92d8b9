"""Files written whole or not at all, checked when read, never unpickled; and locks.

A tensor file ``NAME.safetensors`` has a ``NAME.json`` beside it with its SHA-256 and whatever describes it; the JSON is
sealed by a checksum of its own. The JSON is written last, so a file that has one is complete.
"""

import contextlib
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import safetensors
import safetensors.torch
from torch import Tensor

from posattn.errors import UsageError

_PARTIAL = ".partial"


class Damaged(UsageError):
    """A file is truncated, altered or missing its other half."""


class InUse(UsageError):
    """Another process holds the lock."""


def write(path: Path, content: bytes) -> None:
    """Puts ``content`` at ``path`` whole or not at all; what was there stays if anything goes wrong."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> UsageError:
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return UsageError(f"cannot write {path}: {reason}.")


def half_written(folder: Path, *names: str) -> list[Path]:
    """Partial files that a killed process left in ``folder``; ``names`` are patterns of the files it was writing."""
    return [path for name in names for path in folder.glob(f".{name}.*{_PARTIAL}")]


@contextlib.contextmanager
def lock(path: Path, wait: bool = False) -> Iterator[None]:
    """Holds the lock file ``path`` until the block ends or the process does, and makes its folder if there is none.

    If another process holds it, this raises :class:`InUse`, or with ``wait`` waits. The file itself stays: a lock on a file
    that is removed would not exclude a process that creates the file anew.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(filelock.FileLock(path, timeout=-1 if wait else 0))
        except filelock.Timeout as error:
            raise InUse(f"another process is using {path.parent}; wait for it or give another folder.") from error
        except OSError as error:
            raise _cannot_write(path.parent, error) from error
        yield


def write_json(path: Path, value: object) -> None:
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Damaged(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged: it is not valid JSON.") from error


def save_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Writes ``path`` and the JSON beside it."""
    content = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
    write(path, content)
    sealed = description | {"sha256": sha256(content)}
    write_json(path.with_suffix(".json"), sealed | {"seal": _seal(sealed)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors at ``path`` and their description, after checking both."""
    described = read_json(path.with_suffix(".json"))
    if not isinstance(described, dict) or described.pop("seal", None) != _seal(described):
        raise Damaged(f"{path.with_suffix('.json')} is damaged: its checksum does not match.")
    content = read_checked(path, described.pop("sha256", None))
    try:
        return safetensors.torch.load(content), described
    except safetensors.SafetensorError as error:
        raise Damaged(f"{path} is damaged: it is not a safetensors file.") from error


def _seal(description: dict[str, Any]) -> str:
    return sha256(json.dumps(description, sort_keys=True).encode())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_checked(path: Path, checksum: str | None) -> bytes:
    """The content of ``path`` if it has that SHA-256."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Damaged(f"cannot read {path}: {error.strerror}.") from error
    if sha256(content) != checksum:
        raise Damaged(f"{path} is damaged: its checksum does not match.")
    return content


def refuse_pickle(path: Path) -> None:
    """Raises if ``path`` is a pickle or a PyTorch archive, which could run any code when read."""
    with path.open("rb") as file:
        head = file.read(9)
    if head[8:] == b"{":  # safetensors: eight bytes of length, then JSON
        return
    suspicious = path.suffix in {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}
    if suspicious or head[:1] == b"\x80" or head[:4] == b"PK\x03\x04":
        raise UsageError(f"{path} is a pickle file, which can run code when read; posattn reads safetensors only.")
