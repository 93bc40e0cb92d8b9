"""Files written whole or not at all, checked when read, never unpickled; and locks.

A tensor file ``NAME.safetensors`` has a ``NAME.json`` beside it with its SHA-256 and whatever describes it; the JSON is
sealed by a checksum of its own. The JSON is written last, so a file that has one is complete.

:func:`write` is for files in folders of the package's own, and replaces nothing but regular files. :func:`output` is for a file
that the user names, which may be a device or a pipe. Both write through symbolic links.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import runpy
import stat
import sys
import time
import traceback
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
_ABANDONED = 3600.0  # seconds after which nobody is writing a partial file any more
_NO_FILE = "it is not a regular file"


class Damaged(UsageError):
    """A file is truncated, altered or missing its other half."""


class InUse(UsageError):
    """Another process holds the lock."""


def output(path: Path, content: bytes) -> None:
    """Writes a file that the user names: as :func:`write` does, or into a device, a pipe or the standard output as it is."""
    try:
        there = os.stat(path) if path.exists() else None
        stream = None if there is None else _standard_stream(there)
        if stream is None and (there is None or stat.S_ISREG(there.st_mode)):
            return write(path, content)
        with open(path if stream is None else os.dup(stream), "wb") as file:
            file.write(content)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _standard_stream(there: os.stat_result) -> int | None:
    """The descriptor of the standard output or error if it is the file ``there``; what was printed before goes there first."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream may be closed, or be no file
            if os.path.samestat(there, os.fstat(stream.fileno())):
                stream.flush()
                return stream.fileno()
    return None


def write(path: Path, content: bytes) -> None:
    """Puts ``content`` at ``path`` whole or not at all; what was there stays if anything goes wrong.

    A symbolic link stays, and its target is written. A file keeps its mode and, where this is permitted, its owner. What is
    there and is no regular file is refused. What killed processes left half written of this file is removed.
    """
    temporary = None
    try:
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        before = os.stat(place) if os.path.lexists(place) else None
        if before is not None and not stat.S_ISREG(before.st_mode):
            raise UsageError(f"cannot write {path}: {_NO_FILE}.")
        for left in half_written(place.parent, glob.escape(place.name)):
            with contextlib.suppress(OSError):  # a file that a process may still be writing is younger
                if time.time() - left.stat().st_mtime > _ABANDONED:
                    left.unlink()
        temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}{_PARTIAL}")
        mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if before is not None:
                with contextlib.suppress(OSError, AttributeError):  # not permitted, or not known to the system
                    os.chown(temporary, before.st_uid, before.st_gid)
                os.chmod(temporary, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> UsageError:
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return UsageError(f"cannot write {path}: {reason}.")


def half_written(folder: Path, *names: str) -> list[Path]:
    """Partial files that a killed process left in ``folder``; ``names`` are patterns of the files it was writing."""
    return [path for name in names for path in folder.glob(f".{name}.*{_PARTIAL}")]


def check_new(folder: Path, *names: str) -> None:
    """Raises unless ``folder`` is new or empty; a lock, and half-written files of ``names``, do not count."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out is {str(folder)!r}, which is not a folder.")
    if folder.exists() and set(folder.iterdir()) - {folder / "lock", *half_written(folder, *names)}:
        raise UsageError(f"out is {str(folder)!r}, which holds other files; give an empty or a new folder.")


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
    write(path, as_json(value))


def as_json(value: object) -> bytes:
    """The content of a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def read_json(path: Path) -> Any:
    content = read(path)
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no JSON, or nested beyond reason
        raise Damaged(f"{path} is damaged: it is not valid JSON.") from error


def read(path: Path, most: int = -1) -> bytes:
    """The content, or the first ``most`` bytes, of a regular file. Others are refused: reading a pipe may never end."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Damaged(f"cannot read {path}: {_NO_FILE}.")
            return file.read(most)
    except OSError as error:
        raise Damaged(f"cannot read {path}: {error.strerror}.") from error


def write_sealed(path: Path, description: dict[str, Any]) -> None:
    """Writes a JSON object with a checksum of its own, the seal."""
    write_json(path, description | {"seal": _seal(description)})


def read_sealed(path: Path) -> dict[str, Any]:
    """The object that ``write_sealed`` wrote, without its seal; raises if it was altered."""
    described = read_json(path)
    if not isinstance(described, dict) or described.pop("seal", None) != _seal(described):
        raise Damaged(f"{path} is damaged: its checksum does not match.")
    return described


def save_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Writes ``path`` and the JSON beside it."""
    content = packed(tensors)
    write(path, content)
    write_sealed(path.with_suffix(".json"), description | {"sha256": sha256(content)})


def packed(tensors: dict[str, Tensor]) -> bytes:
    """The content of a tensor file."""
    return safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors at ``path`` and their description, after checking both."""
    described = read_sealed(path.with_suffix(".json"))
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
    content = read(path)
    if sha256(content) != checksum:
        raise Damaged(f"{path} is damaged: its checksum does not match.")
    return content


def execute(path: Path, what: str) -> dict[str, Any]:
    """Runs a Python file of the user's, called ``what`` in errors; returns the names that it defines."""
    if path.suffix != ".py":
        raise UsageError(f"{what} is {str(path)!r}; it must be a Python file, which ends in .py.")
    if not path.is_file():
        raise UsageError(f"{what} is {str(path)!r}, which does not exist.")
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # so that it imports modules beside it, as under `python FILE`
    try:
        return runpy.run_path(str(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except Exception as error:
        reason = " ".join(str(error).split())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""  # a syntax error names its line itself
        raise UsageError(f"{path} could not be run{where}: {type(error).__name__}: {reason}.") from error
    finally:
        with contextlib.suppress(ValueError):  # the file may have removed it
            sys.path.remove(folder)


def refuse_pickle(path: Path) -> None:
    """Raises if ``path`` is a pickle or a PyTorch archive, which could run any code when read."""
    head = read(path, 9)
    if head[8:] == b"{":  # safetensors: eight bytes of length, then JSON
        return
    suspicious = path.suffix in {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}
    if suspicious or head[:1] == b"\x80" or head[:4] == b"PK\x03\x04":
        raise UsageError(f"{path} is a pickle file, which can run code when read; posattn reads safetensors only.")
