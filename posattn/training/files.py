"""Files of a run: safetensors and JSON, written atomically, checked when read. Nothing is ever unpickled.

A tensor file ``NAME.safetensors`` has a ``NAME.json`` beside it with its SHA-256 and whatever describes it; the JSON is
sealed by a checksum of its own. The JSON is written last, so a file that has one is complete.
"""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from posattn.errors import UsageError
from posattn.folding import Tensors

_PARTIAL = ".partial"


try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]


class Damaged(UsageError):
    """A file is truncated, altered or missing its other half."""


def write(path: Path, content: bytes) -> None:
    """Puts ``content`` at ``path`` whole or not at all; what was there stays if anything goes wrong."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
        raise UsageError(f"cannot write {path}: {reason}.") from error


def touch(path: Path) -> None:
    """Makes an empty file if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}.") from error


def sweep(folder: Path) -> None:
    """Removes what a process that was killed while writing left in ``folder``."""
    for path in leftovers(folder):
        path.unlink(missing_ok=True)


def leftovers(folder: Path) -> list[Path]:
    """Half-written files of a run in ``folder``."""
    names = ("run.json", "history.csv", "weights.*", "checkpoint-*")
    return [path for name in names for path in folder.glob(f".{name}.*{_PARTIAL}")]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: object) -> None:
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Damaged(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged: it is not valid JSON.") from error


def save_tensors(path: Path, tensors: Tensors, description: dict[str, Any]) -> None:
    """Writes ``path`` and the JSON beside it."""
    content = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
    write(path, content)
    sealed = description | {"sha256": sha256(content)}
    write_json(path.with_suffix(".json"), sealed | {"seal": _seal(sealed)})


def load_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors at ``path`` and their description, after checking both."""
    described = read_json(path.with_suffix(".json"))
    if not isinstance(described, dict) or described.pop("seal", None) != _seal(described):
        raise Damaged(f"{path.with_suffix('.json')} is damaged: its checksum does not match.")
    content = read_checked(path, described.pop("sha256", None))
    try:
        return safetensors.torch.load(content), described
    except safetensors.SafetensorError as error:
        raise Damaged(f"{path} is damaged: it is not a safetensors file.") from error


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


class InUse(UsageError):
    """Another process holds the file."""


@contextlib.contextmanager
def sole_user(path: Path, wait: bool = False) -> Iterator[None]:
    """Holds the file ``path`` for this process; where the system has no file locks it holds nothing."""
    with path.open("rb") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                raise InUse(f"another process is using {path.parent}; wait for it or give another folder.") from error
        yield


def _seal(description: dict[str, Any]) -> str:
    return sha256(json.dumps(description, sort_keys=True).encode())


def refuse_pickle(path: Path) -> None:
    """Raises if ``path`` is a pickle or a PyTorch archive, which could run any code when read."""
    with path.open("rb") as file:
        head = file.read(9)
    if head[8:] == b"{":  # safetensors: eight bytes of length, then JSON
        return
    suspicious = path.suffix in {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}
    if suspicious or head[:1] == b"\x80" or head[:4] == b"PK\x03\x04":
        raise UsageError(f"{path} is a pickle file, which can run code when read; posattn reads safetensors only.")
