"""How many programs a kernel starts: a member's tiles are divided among as many as the GPU runs at once."""

import math

_MULTIPROCESSORS = 132  # of an H100 or H200; on other cards the work is merely divided less evenly


def programs(at_once: int) -> int:
    """How many run where a multiprocessor runs ``at_once``. With fewer, each takes several tiles of a small batch."""
    return _MULTIPROCESSORS * at_once


def divided(tiles: int, members: int, at_once: int) -> tuple[int, int]:
    """Tiles of a program, and programs of a member."""
    each = math.ceil(tiles / max(1, programs(at_once) // members))
    return each, math.ceil(tiles / each)
