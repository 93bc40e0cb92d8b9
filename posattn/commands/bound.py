"""``posattn bound``: the generalization bound of a trained network, term by term."""

from dataclasses import asdict
from pathlib import Path

from typer import Option

from posattn.commands import console


def command(
    run: Path | None = console.RUN_IF_ANY,
    member: int = console.MEMBER,
    samples: int | None = Option(None, help="Training lists m (default: those of the run)."),
    delta: float = Option(0.05, help="The bound holds with probability 1 - delta."),
    cap: float = Option(1.0, help="Where the squared error is cut off."),
    layer_norm: bool = Option(False, "--layer-norm", help="Project every layer of the weights to the unit ball."),
    gap: float = Option(0.1, help="A wanted gap: how many samples would it take?"),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    as_json: bool = console.AS_JSON,
) -> None:
    """The generalization bound of a trained network (Theorem 6.1), and its self-attention counterpart, term by term.

    Example: posattn bound runs/sort
    """
    from posattn.guarantees import generalization_bound, network_of
    from posattn.theory.bound import ATTENTION, in_digits
    from posattn.theory.matrices import norm_table
    from posattn.training.run import trained

    found, origin = console.networks(run, pretrained, arch, "cpu")
    model = found.model(member)
    network = network_of(model)
    m = trained(found).spec.recipe.samples if samples is None else samples
    bounds = {kind: generalization_bound(model, m, delta, cap, layer_norm, kind) for kind in ATTENTION}
    own, norms = ATTENTION[network.self_attention], norm_table(network)
    if as_json:
        about = {"run": origin, "member": member, "attention": own, "constants": "one"}
        about |= {"class": asdict(bounds[own].norms), "norms": norms.to_dict("records")}
        return console.print_json(about | {kind: found.to_dict(gap) for kind, found in bounds.items()})
    signs = {"spectral": "‖·‖₂", "two_one": "‖·‖₂,₁"}
    wide = norms.pivot(index="matrix", columns="layer", values=list(signs))  # matrices down, layers across
    wide.columns = [f"{signs[kind]} {layer}" for kind, layer in wide.columns]
    console.print_frame(f"norms of network {member} of {origin} (M = W_Q W_Kᵀ/√d_k, W_O in W_1)", wide.reset_index())
    letters: tuple[str, ...] = ("L", "H", "B_2", "B_21", "B_w", "B_QK", "B_X", "B_P", "L_sigma")
    console.print_table("its class (Eq. 10)", letters, [[getattr(bounds[own].norms, letter) for letter in letters]])
    here = bounds[own]
    title = f"|risk - empirical risk| with probability {1 - here.delta:g}, m = {here.samples:g}"
    title += ", layer-normalised" if here.layer_norm else ""
    rows: list[tuple[object, ...]] = [
        (
            f"{kind} ({'this model' if kind == own else 'the same norms'})",
            *(f"{value:.4g}" for value in (each.gap, each.complexity, each.confidence, each.samples_for(gap))),
        )
        for kind, each in bounds.items()
    ]
    console.print_table(title, ("attention", "bound", "complexity", "confidence", f"m for a gap of {gap:g}"), rows)
    for kind, each in bounds.items():
        constants = each.constants()
        letters = tuple(name.removeprefix("log10 ") for name in constants)
        rows = [(int(layer), *map(in_digits, logs)) for layer, *logs in constants.itertuples(index=False)]
        console.print_table(f"constants of Eq. 18, {kind}; B, R: radii, Λ: Lipschitz", letters, rows)
    shares = {kind: each.table()["share"] for kind, each in bounds.items()}
    rows = [
        (term.layer or "readout", term.matrix, *(f"{share[index]:.2e}" for share in shares.values()))
        for index, term in enumerate(here.terms)
    ]
    console.print_table("share of ν, whose cube is the cover's exponent", ("layer", "matrix", *shares), rows)
    print("Constants that the paper leaves unnamed are set to one.")
    if here.vacuous:
        print(f"The bound is above the cap of {cap:g}: the number says nothing, only how it grows does.")
