"""What the verbs share: options that several of them take, lists and scales in, tables and JSON out."""

import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from typer import Argument, Option

from posattn.errors import UsageError, shown
from posattn.pretrained import pretrained_run
from posattn.runs import AnyRun, load

_FOLDER = "Folder of a finished run, as given to train --out."
RUN: Any = Argument(metavar="RUN", help=_FOLDER)
RUN_IF_ANY: Any = Argument(None, metavar="RUN", help=_FOLDER)
MEMBER: Any = Option(0, help="Which network of the run.")
PRETRAINED: Any = Option(None, metavar="TASK", help="In RUN's place: the network for TASK that comes with the package.")
PRETRAINED_ARCH: Any = Option(None, help="Which of these: positional (the default), scale-exact, standard or looped.")
DEVICE: Any = Option(None, help="cpu or cuda (default: a GPU if there is one).")
AS_JSON: Any = Option(False, "--json", help="Print one JSON object instead of tables.")

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]\d+)?|[-+]?inf|nan|-")  # a dash stands where a number is missing


def parse_scales(text: str) -> list[float]:
    """``1:10`` is 1, 2, ..., 10; ``1:10:3`` is 1, 4, 7, 10; commas join several."""
    factors: list[float] = []
    for part in text.split(","):
        try:
            start, *more = map(float, part.split(":"))
            stop, step = (*more, *(start, 1.0)[len(more) :])
        except ValueError:
            start = stop = step = 0.0
        if not (0 < start <= stop < math.inf and step > 0):
            raise UsageError(f"scales has {shown(part)}; it must be numbers above 0 such as 1:10, 1:10:3 or 1,2.5.")
        if (stop - start) / step > 1000:
            raise UsageError(f"scales has {shown(part)}; it must be at most 1000 numbers.")
        factors += [start + k * step for k in range(int((stop - start) / step + 1e-9) + 1)]
    return factors


def parse_lengths(text: str) -> list[int]:
    """Whole numbers above 0 with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 20 and int(part)):
            raise UsageError(f"lengths has {shown(part)}; it must be whole numbers above 0, such as 16,1024.")
    return [int(part) for part in parts]


def parse_list(text: str) -> list[float]:
    """Finite numbers with commas between them."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(abs(value) <= torch.finfo(torch.float32).max for value in values):
        raise UsageError(
            f"the list is {shown(text)}; it must be numbers up to 3e38 with commas between them, such as 3.2,1.5,-0.5."
        )
    return values


def networks(run: str | Path | None, pretrained: str | None, arch: str | None, device: str | None) -> tuple[AnyRun, str]:
    """The networks of a folder, or the one that comes with the package; and what tables call their origin."""
    if pretrained is not None:
        return pretrained_run(pretrained, arch or "positional", device), f"{arch or 'positional'}, with the package"
    if arch is not None:
        raise UsageError(f"arch is {arch!r}; a run has its own.")
    return load(str(run), device), str(run)


def print_table(title: str | None, columns: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    """Prints a table, floats with three digits; one that is too wide for the terminal has its columns as rows."""
    names, cells = [_text(name) for name in columns], [[_text(value) for value in row] for row in rows]
    # Names are printed as they are: [red] and :cat: may be parts of a folder's.
    out = Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False)
    table = _table(title, names, cells)
    if Measurement.get(out, out.options.update(max_width=10_000), table).minimum > out.width:
        first, *others = zip(names, *cells, strict=True)
        table = _table(title, first, others)
    out.print(table)


def print_frame(title: str, frame: pd.DataFrame) -> None:
    print_table(title, frame.columns, frame.itertuples(index=False))


def _table(title: str | None, names: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table whose columns of numbers are aligned right, and those of text left."""
    cells, table = list(rows), Table(title=title)
    for name, *column in zip(names, *cells, strict=True):
        table.add_column(name, justify="right" if any(map(_NUMBER.fullmatch, column)) else "left")
    for row in cells:
        table.add_row(*row)
    return table


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def print_json(content: dict[str, Any]) -> None:
    """Prints one JSON object, with null for inf and nan, which JSON lacks."""
    print(json.dumps(json.loads(json.dumps(content), parse_constant=lambda name: None), indent=2))
