"""What the benchmarks of a GPU share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_failed: list[str] = []


@contextmanager
def reported(part: str) -> Iterator[None]:
    """A part that fails is reported in a line, and those after it go on."""
    try:
        yield
    except Exception as error:  # compilers and drivers fail in many ways
        lines = str(error).strip().splitlines() or [""]
        print(f"{part} failed: {type(error).__name__}: {lines[0]}", flush=True)
        _failed.append(part)


def leave() -> None:
    """Ends the program, with an error if a part failed."""
    sys.exit(f"failed: {'; '.join(_failed)}" if _failed else 0)
