"""``posattn certify``: a bound on the error of a scale-exact network over all lists."""

from dataclasses import asdict
from pathlib import Path

from typer import Option

from posattn.commands import console
from posattn.errors import positive


def command(
    run: Path | None = console.RUN_IF_ANY,
    member: int = console.MEMBER,
    ratio: float = Option(1.9, help="Stop when the bound is this many times the worst error found."),
    seconds: float = Option(600.0, help="Stop after this much CPU time, with a looser bound."),
    limit: float = Option(2.0, help="Also say what the certificate means for values up to this."),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    as_json: bool = console.AS_JSON,
) -> None:
    """A certified bound on the error of a scale-exact network over all lists, and the worst list that a search finds.

    For short lists: minutes at n = 4. Example: posattn certify runs/sum
    """
    from posattn.guarantees import certify_model

    trained, origin = console.networks(run, pretrained, arch, "cpu")
    positive("limit", limit)  # before minutes of search
    found = certify_model(trained.model(member), trained.task_of(member).name, ratio, seconds)
    if as_json:
        return console.print_json(asdict(found) | {"ratio": found.ratio, "limit": limit, "at_limit": found.at(limit)})
    rows = [
        ("certified: |error| / max|x| of no list is above", f"{found.bound:.4g}"),
        ("found: the worst list has", f"{found.adversarial:.4g}"),
        ("ratio", f"{found.ratio:.4g}"),
        (f"so with values up to {limit:g} no output is off by more than", f"{found.at(limit):.4g}"),
        ("cones, CPU seconds", f"{found.cones}, {found.seconds:.0f}"),
    ]
    console.print_table(f"{found.task} by network {member} of {origin}, lists of {found.n}", ("", "value"), rows)
    print("The worst list: " + ", ".join(f"{value:.4g}" for value in found.worst))
    if not found.complete:
        print(f"The time was over before the ratio of {ratio:g} was reached; the bound holds all the same.")
