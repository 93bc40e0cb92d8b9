"""The commands of the theory, which :mod:`posattn.cli` takes up: each prints a table, or with --json one object."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to ``app``."""
    app.command("ood-probability")(ood_probability_command)


def ood_probability_command(
    n: Annotated[int, typer.Option("--n", help="Numbers in a list, at least 2.")] = 8,
    c: Annotated[float, typer.Option("--c", help="Scale of the test lists, above 1.")] = 10.0,
    samples: Annotated[int, typer.Option(help="Lists to simulate.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    lists: Annotated[int, typer.Option(help="N of the Chernoff bound: the size of a test set.")] = 1000,
    epsilon: Annotated[float, typer.Option(help="ε of the Chernoff bound.")] = 0.05,
    as_json: AsJson = False,
) -> None:
    """How likely a list drawn at scale c lies inside the training domain all the same (Appendix E).

    Example: posattn ood-probability --n 8 --c 10
    """
    from posattn.theory.ood import ood_probability

    found = ood_probability(n, c, samples, seed)
    tail = found.chernoff(lists, epsilon)
    if as_json:
        chernoff = asdict(tail) | {"inside": tail.inside, "probability": tail.probability}
        return _print_json(asdict(found) | {"chernoff": chernoff})
    low, high = found.interval
    rows = [
        ("exact, by quadrature", _short(found.exact)),
        ("the paper's bound (Eq. 27, 28)", _short(found.bound)),
        (f"simulated, {found.samples} lists", f"{_short(found.simulated)}  ({_short(low)} to {_short(high)}, 99%)"),
    ]
    if found.printed < found.exact:
        rows.insert(2, ("the same as printed, which is too low", _short(found.printed)))
    print_table(f"P(list inside the training domain), n = {n}, c = {c:g}", ("", "probability"), rows)
    print(
        f"Eq. 29: of {lists} such lists, fewer than {tail.inside:.2%} lie inside with a probability of at least "
        f"{tail.probability:.4g}."
    )


def print_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))


def _short(value: float) -> str:
    return f"{value:.4g}"
