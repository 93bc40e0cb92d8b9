"""How many programs a kernel starts: a member's tiles are divided among as many as the GPU runs at once."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

_MULTIPROCESSORS = 132  # of an H100 or H200; on other cards the work is merely divided less evenly
_asked: list[int] = []


@contextmanager
def about(programs: int) -> Iterator[None]:
    """While open, every kernel starts about so many programs: with few of them, each takes several tiles of a small batch."""
    _asked.append(programs)
    try:
        yield
    finally:
        _asked.pop()


def divided(tiles: int, members: int, at_once: int) -> tuple[int, int]:
    """Tiles of a program, and programs of a member. A multiprocessor runs ``at_once`` programs."""
    programs = _asked[-1] if _asked else _MULTIPROCESSORS * at_once
    each = math.ceil(tiles / max(1, programs // members))
    return each, math.ceil(tiles / each)
