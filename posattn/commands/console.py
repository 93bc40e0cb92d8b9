"""What the verbs share: options that several of them take, lists and scales in, tables and JSON out."""

import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from typer import Argument, Option

from posattn.errors import UsageError, shown

if TYPE_CHECKING:  # torch and pandas are slow to import, and help needs neither
    import pandas as pd

    from posattn.runs import AnyRun


def _execute(path: Path | None) -> Path | None:
    if path is not None:
        from posattn import files
        from posattn.tasks import TASKS
        from posattn.tasks.own import functions_defined

        before = dict(TASKS)
        functions_defined(files.execute(path, "--task-file"), before)
    return path


_FOLDER = "Folder of a run, as given to train --out; one that is not finished answers from its last checkpoint."
RUN_IF_ANY: Any = Argument(None, metavar="RUN", help=_FOLDER)
MEMBER: Any = Option(0, help="Which network of the run.")
PRETRAINED: Any = Option(None, metavar="TASK", help="In RUN's place: the network for TASK that comes with the package.")
PRETRAINED_ARCH: Any = Option(None, help="Which of these: positional (the default), scale-exact, standard or looped.")
TASK_FILE: Any = Option(
    None,
    metavar="FILE.py",
    callback=_execute,
    is_eager=True,  # what the file defines is there when other options are read
    help="Python file with functions to learn, or tasks, encodings, programs, networks of your own; it is executed.",
)
DEVICE: Any = Option(None, help="cpu or cuda (default: a GPU if there is one).")
AS_JSON: Any = Option(False, "--json", help="Print one JSON object instead of tables.")

_LARGEST = 3.4028234663852886e38  # of float32
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
            wanted = "numbers above 0, a range from the lower one, such as 1:10, 1:10:3 or 1,2.5"
            raise UsageError(f"scales has {shown(part)}; it must be {wanted}.")
        if (stop - start) / step > 1000:
            raise UsageError(f"scales has {shown(part)}; it must be at most 1000 numbers.")
        factors += [start + k * step for k in range(int((stop - start) / step + 1e-9) + 1)]
    return factors


def parse_lengths(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 20 and int(part)):
            raise UsageError(f"lengths has {shown(part)}; it must be whole numbers above 0, such as 16,1024.")
    return [int(part) for part in parts]


def parse_list(text: str) -> list[float]:
    """Finite numbers with commas or spaces between them, with or without brackets around them."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    try:
        values = [float(part) for part in re.split(r"\s*,\s*|\s+", inner)]
    except ValueError:
        values = [math.nan]
    if not all(abs(value) <= _LARGEST for value in values):
        raise UsageError(f"the list is {shown(text)}; it must be numbers up to 3e38, such as 3.2,1.5,-0.5 or 3.2 1.5 -0.5.")
    return values


def networks(
    run: str | Path | None, pretrained: str | None, arch: str | None, device: str | None
) -> "tuple[AnyRun, str]":
    """The networks of a folder, or the one that comes with the package; and what tables call their origin."""
    from posattn.pretrained import pretrained_run
    from posattn.runs import load

    check_one(run, pretrained, arch)
    if pretrained is not None:
        return pretrained_run(pretrained, arch or "positional", device), f"{arch or 'positional'}, with the package"
    return load(str(run), device), str(run)


def check_one(run: object, pretrained: str | None, arch: str | None, what: str = "RUN") -> None:
    """Raises unless a command is given its own argument or ``--pretrained``, and ``--arch`` only with the latter."""
    if (run is None) == (pretrained is None):
        found = "no network is named" if run is None else "two networks are named"
        raise UsageError(f"{found}; give {what}, or --pretrained TASK.")
    if pretrained is None and arch is not None:
        raise UsageError(f"arch is {arch!r}; a run has its own.")


def print_table(title: str | None, columns: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    """Prints a table, floats with three digits; one that is too wide for the terminal has its columns as rows.

    No number is cut: what is too wide both ways is wider than the terminal.
    """
    names, cells = [_text(name) for name in columns], [[_text(value) for value in row] for row in rows]
    # Names are printed as they are: [red] and :cat: may be parts of a folder's.
    out = Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False)

    def needs(table: Table) -> int:
        return Measurement.get(out, out.options.update(max_width=10_000), table).minimum

    table = _table(title, names, cells)
    if needs(table) > out.width:
        first, *others = zip(names, *cells, strict=True)
        table = min(_table(title, first, others), table, key=needs)
    out.print(table, width=max(out.width, needs(table)), crop=False)


def print_frame(title: str, frame: "pd.DataFrame") -> None:
    print_table(title, frame.columns, frame.itertuples(index=False))


def _table(title: str | None, names: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table whose columns of numbers are aligned right, and those of text left."""
    cells, table = list(rows), Table(title=title)
    for place, (name, *column) in enumerate(zip(names, *cells, strict=True)):
        numbers = [len(cell) for cell in column if _NUMBER.fullmatch(cell)]  # these and what is named stay whole
        justify: JustifyMethod = "right" if numbers else "left"
        table.add_column(name, justify=justify, no_wrap=place == 0, min_width=max(numbers, default=0))
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
