"""``posattn ood-probability``: how often a test list lies inside the training domain all the same."""

from dataclasses import asdict

from typer import Option

from posattn.commands import console
from posattn.errors import counted


def command(
    n: int = Option(8, "--n", help="Numbers in a list."),
    c: float = Option(10.0, "--c", help="Scale of the test lists, above 1."),
    samples: int = Option(100_000, help="Lists to simulate."),
    seed: int = Option(0, help="Seed of the simulation."),
    lists: int = Option(1000, help="N of the Chernoff bound: the size of a test set."),
    epsilon: float = Option(0.05, help="ε of the Chernoff bound."),
    as_json: bool = console.AS_JSON,
) -> None:
    """How likely a list drawn at scale c lies inside the training domain all the same (Appendix E).

    Example: posattn ood-probability --n 8 --c 10
    """
    from posattn.theory.ood import above_one, ood_probability

    found = ood_probability(n, above_one("c", c), samples, seed)
    tail = found.chernoff(lists, epsilon)
    if as_json:
        chernoff = asdict(tail) | {"inside": tail.inside, "probability": tail.probability}
        return console.print_json(asdict(found) | {"chernoff": chernoff})
    low, high = found.interval
    rows = [
        ("exact, by quadrature", f"{found.exact:.4g}"),
        ("the paper's bound (Eq. 27, 28)", f"{found.bound:.4g}" if n > 1 else "none for n = 1"),
        (f"simulated, {counted(found.samples, 'list')}", f"{found.simulated:.4g}  ({low:.4g} to {high:.4g}, 99%)"),
    ]
    if found.printed < found.exact:
        rows.insert(2, ("the same as printed, which is too low", f"{found.printed:.4g}"))
    console.print_table(f"P(list inside the training domain), n = {n}, c = {c:g}", ("", "probability"), rows)
    print(
        f"Eq. 29: of {lists} such lists, fewer than {tail.inside:.2%} lie inside with a probability of at least "
        f"{tail.probability:.4g}."
    )
