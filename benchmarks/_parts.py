"""What the benchmarks of a GPU share."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reported(part: str) -> Iterator[None]:
    """A part that fails is reported in a line, and those after it go on."""
    try:
        yield
    except Exception as error:  # compilers and drivers fail in many ways
        lines = str(error).strip().splitlines() or [""]
        print(f"{part} failed: {type(error).__name__}: {lines[0]}", flush=True)
