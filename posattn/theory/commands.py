"""The commands of the theory, which :mod:`posattn.cli` takes up: each prints a table, or with --json one object."""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from posattn.runs import AnyRun
    from posattn.theory.bound import GeneralizationBound

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, as given to train --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to ``app``."""
    app.command("bound")(bound_command)
    app.command("certify")(certify_command)
    app.command("ood-probability")(ood_probability_command)


def bound_command(
    run: RunFolder,
    member: Annotated[int, typer.Option(help="Which network of the run.")] = 0,
    samples: Annotated[int | None, typer.Option(help="Training lists m (default: those of the run).")] = None,
    delta: Annotated[float, typer.Option(help="The bound holds with probability 1 - delta.")] = 0.05,
    cap: Annotated[float, typer.Option(help="Where the squared error is cut off.")] = 1.0,
    layer_norm: Annotated[
        bool, typer.Option("--layer-norm", help="The same weights with every layer projected to the unit ball.")
    ] = False,
    gap: Annotated[float, typer.Option(help="A wanted gap: how many samples would it take?")] = 0.1,
    as_json: AsJson = False,
) -> None:
    """The generalization bound of a trained network (Theorem 6.1), and its self-attention counterpart, term by term.

    Example: posattn bound runs/sort
    """
    from posattn.theory.bound import ATTENTION
    from posattn.theory.models import generalization_bound, network_of
    from posattn.theory.network import norm_table
    from posattn.training.run import trained as trained_run

    trained = _loaded(run)
    model = trained.model(member)
    network = network_of(model)
    m = trained_run(trained).spec.recipe.samples if samples is None else samples
    bounds = {kind: generalization_bound(model, m, delta, cap, layer_norm, kind) for kind in ATTENTION}
    own = ATTENTION[network.self_attention]
    if as_json:
        about = {"run": str(run), "member": member, "attention": own, "constants": "one"}
        about |= {"class": asdict(bounds[own].norms), "norms": norm_table(network).to_dict("records")}
        return _print_json(about | {kind: _described(found, gap) for kind, found in bounds.items()})
    _print_norms(norm_table(network), f"norms of network {member} of {run} (M = W_Q W_Kᵀ/√d_k, W_O in W_1)")
    letters = ("L", "H", "B_2", "B_21", "B_w", "B_QK", "B_X", "B_P", "L_sigma")
    print_table("its class (Eq. 10)", letters, [[f"{getattr(bounds[own].norms, letter):.3g}" for letter in letters]])
    _print_bounds(bounds, own, gap)
    print("Constants that the paper leaves unnamed are set to one.")
    if bounds[own].vacuous:
        print(f"The bound is above the cap of {cap:g}: the number says nothing, only how it grows does.")


def _described(bound: "GeneralizationBound", gap: float) -> dict[str, Any]:
    """A bound for JSON."""
    named = ("samples", "delta", "cap", "outputs", "layer_norm", "gap", "complexity", "confidence", "log10_gap")
    found = {name: getattr(bound, name) for name in (*named, "vacuous")} | {"samples_for_gap": bound.samples_for(gap)}
    return found | {"layers": bound.constants().to_dict("records"), "terms": bound.table().to_dict("records")}


def _print_norms(table: "pd.DataFrame", title: str) -> None:
    """Matrices down, and for each norm the layers across."""
    wide = table.pivot(index="matrix", columns="layer", values=["spectral", "two_one"])
    signs = {"spectral": "‖·‖₂", "two_one": "‖·‖₂,₁"}
    header = ("matrix", *(f"{signs[kind]} {layer}" for kind, layer in wide.columns))
    print_table(title, header, [(name, *(f"{value:.3g}" for value in wide.loc[name])) for name in wide.index])


def _print_bounds(bounds: "dict[str, GeneralizationBound]", own: str, gap: float) -> None:
    """The two bounds, their constants, and where in the network each comes from."""
    from posattn.theory.bound import in_digits

    any_of_them = bounds[own]
    title = f"|risk - empirical risk| with probability {1 - any_of_them.delta:g}, m = {any_of_them.samples:g}"
    title += ", layer-normalised" if any_of_them.layer_norm else ""
    rows = [
        (
            f"{kind} ({'this model' if kind == own else 'the same norms'})",
            *(_short(value) for value in (found.gap, found.complexity, found.confidence, found.samples_for(gap))),
        )
        for kind, found in bounds.items()
    ]
    print_table(title, ("attention", "bound", "complexity", "confidence", f"m for a gap of {gap:g}"), rows)
    for kind, found in bounds.items():
        constants = found.constants()
        letters = [name.removeprefix("log10 ") for name in constants]
        rows = [(f"{int(layer)}", *map(in_digits, logs)) for layer, *logs in constants.itertuples(index=False)]
        print_table(f"constants of Eq. 18, {kind}; B, R: radii, Λ: Lipschitz", letters, rows)
    shares = {kind: found.table() for kind, found in bounds.items()}
    rows = [
        (f"{term.layer or 'readout'}", term.matrix, *(f"{each['share'][index]:.2e}" for each in shares.values()))
        for index, term in enumerate(any_of_them.terms)
    ]
    print_table("share of ν, whose cube is the cover's exponent", ("layer", "matrix", *shares), rows)


def certify_command(
    run: RunFolder,
    member: Annotated[int, typer.Option(help="Which network of the run.")] = 0,
    ratio: Annotated[float, typer.Option(help="Stop when the bound is this many times the worst error found.")] = 1.9,
    seconds: Annotated[float, typer.Option(help="Stop after this much CPU time, with a looser bound.")] = 600.0,
    limit: Annotated[float, typer.Option(help="Also say what the certificate means for values up to this.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """A certified bound on the error of a scale-exact network over all lists, and the worst list that a search finds.

    For short lists: minutes at n = 4. Example: posattn certify runs/sum
    """
    from posattn.errors import positive
    from posattn.theory.models import certify_model

    trained = _loaded(run)
    positive("limit", limit)
    found = certify_model(trained.model(member), trained.members[member].task, ratio, seconds)
    if as_json:
        return _print_json(asdict(found) | {"ratio": found.ratio, "limit": limit, "at_limit": found.at(limit)})
    rows = [
        ("certified: |error| / max|x| of no list is above", _short(found.bound)),
        ("found: the worst list has", _short(found.adversarial)),
        ("ratio", _short(found.ratio)),
        (f"so with values up to {limit:g} no output is off by more than", _short(found.at(limit))),
        ("cones, CPU seconds", f"{found.cones}, {found.seconds:.0f}"),
    ]
    print_table(f"{found.task} by network {member} of {run}, lists of {found.n}", ("", "value"), rows)
    print("The worst list: " + ", ".join(f"{value:.4g}" for value in found.worst))
    if not found.complete:
        print(f"The time was over before the ratio of {ratio:g} was reached; the bound holds all the same.")


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
    from posattn.theory.ood import above_one, ood_probability

    found = ood_probability(n, above_one("c", c), samples, seed)
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


def _loaded(folder: Path) -> "AnyRun":
    """A trained run or a compiled program, which the theory's functions then refuse by name."""
    from posattn.runs import load

    return load(folder, "cpu")


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(_without_infinities(content), indent=2, allow_nan=False))


def _without_infinities(content: Any) -> Any:
    """The same with null for what JSON has no number for."""
    if isinstance(content, dict):
        return {key: _without_infinities(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_infinities(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _short(value: float) -> str:
    return f"{value:.4g}"
