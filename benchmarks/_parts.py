"""What the benchmarks of a GPU share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_failed: list[str] = []


@contextmanager
def reported(part: str, needed: bool = True) -> Iterator[None]:
    """A part that fails is reported in a line, and those after it go on; ``leave`` counts it as failed if it is ``needed``."""
    try:
        yield
    except Exception as error:  # compilers and drivers fail in many ways
        lines = str(error).strip().splitlines() or [""]
        print(f"{part} failed: {type(error).__name__}: {lines[0]}", flush=True)
        _failed.extend([part] * needed)


def leave() -> None:
    """Ends the program with an error if a part failed."""
    if _failed:
        sys.exit(f"failed: {'; '.join(_failed)}")
