"""``posattn ood-probability``: how often a test list lies inside the training domain all the same."""

from dataclasses import asdict
from typing import Annotated

import typer

from posattn.commands.console import AsJson, print_json, print_table
from posattn.theory.ood import above_one
from posattn.theory.ood import ood_probability as probability


def ood_probability(
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
    found = probability(n, above_one("c", c), samples, seed)
    tail = found.chernoff(lists, epsilon)
    if as_json:
        chernoff = asdict(tail) | {"inside": tail.inside, "probability": tail.probability}
        return print_json(asdict(found) | {"chernoff": chernoff})
    low, high = found.interval
    rows = [
        ("exact, by quadrature", f"{found.exact:.4g}"),
        ("the paper's bound (Eq. 27, 28)", f"{found.bound:.4g}"),
        (f"simulated, {found.samples} lists", f"{found.simulated:.4g}  ({low:.4g} to {high:.4g}, 99%)"),
    ]
    if found.printed < found.exact:
        rows.insert(2, ("the same as printed, which is too low", f"{found.printed:.4g}"))
    print_table(f"P(list inside the training domain), n = {n}, c = {c:g}", ("", "probability"), rows)
    print(
        f"Eq. 29: of {lists} such lists, fewer than {tail.inside:.2%} lie inside with a probability of at least "
        f"{tail.probability:.4g}."
    )
