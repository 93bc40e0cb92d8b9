"""What commands read and print: lists of numbers and scales in, tables out."""

import sys

import pandas as pd
import torch
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from posattn.errors import UsageError


def parse_scales(text: str) -> list[float]:
    """``1:10`` is 1, 2, ..., 10; ``1:10:3`` is 1, 4, 7, 10; commas join several."""
    factors: list[float] = []
    for part in text.split(","):
        try:
            ends = [float(end) for end in part.split(":")]
        except ValueError:
            ends = []
        start, stop, step = (
            (*ends, *(ends[:1] if len(ends) == 1 else ()), 1.0)[:3] if 1 <= len(ends) <= 3 else (0, 0, 0)
        )
        if not (0 < start <= stop < float("inf") and step > 0):
            raise UsageError(f"scales has {part!r}; it must be numbers above 0 such as 1:10, 1:10:3 or 1,2.5.")
        if (stop - start) / step > 1000:
            raise UsageError(f"scales has {part!r}; it must be at most 1000 numbers.")
        factors += [start + k * step for k in range(int((stop - start) / step + 1e-9) + 1)]
    return factors


def parse_lengths(text: str) -> list[int]:
    """Whole numbers above 0 with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and int(part)):
            raise UsageError(f"lengths has {part!r}; it must be whole numbers above 0, such as 16,1024.")
    return [int(part) for part in parts]


def parse_list(text: str) -> list[float]:
    """Finite numbers with commas between them."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [float("nan")]
    if not all(abs(value) <= torch.finfo(torch.float32).max for value in values):
        raise UsageError(
            f"the list is {text!r}; it must be numbers up to 3e38 with commas between them, such as 3.2,1.5,-0.5."
        )
    return values


def print_frame(frame: pd.DataFrame, title: str) -> None:
    """A table; one that is too wide is turned, its columns into rows."""
    out, table = console(), _table(frame, title)
    if Measurement.get(out, out.options.update(max_width=10_000), table).minimum > out.width:
        turned = frame.set_index(frame.columns[0]).T
        turned.insert(0, frame.columns[0], turned.index)
        table = _table(turned, title)
    out.print(table)


def _table(frame: pd.DataFrame, title: str) -> Table:
    table = Table(title=title)
    for column in frame.columns:
        table.add_column(f"{column:g}" if isinstance(column, float) else str(column), justify="right")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
    return table


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120)
