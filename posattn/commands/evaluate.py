"""``posattn evaluate``: networks in and out of distribution."""

from pathlib import Path
from typing import Annotated

import typer

from posattn.commands.console import (
    Device,
    Pretrained,
    PretrainedArch,
    RunIfAny,
    networks,
    parse_lengths,
    parse_scales,
    print_frame,
)
from posattn.errors import UsageError
from posattn.training import files
from posattn.training.scores import LENGTH_SCORES, scores_of


def evaluate(
    run: RunIfAny = None,
    scales: Annotated[
        str | None,
        typer.Option(
            help="Scale factors: 1:10 (default; 1,2 for khop; 1,10 with --lengths), or 1,2,5; 1 is the training range."
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Numbers in the test lists, 16,1024: for networks that take any (looped).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Test lists of each scale factor, and of each length.")] = 1000,
    each: Annotated[
        bool, typer.Option("--each", help="A row for every network instead of the median over them.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write every network's numbers to this CSV file.")] = None,
    pretrained: Pretrained = None,
    arch: PretrainedArch = None,
    device: Device = None,
) -> None:
    """Test a run in and out of distribution: squared error and the paper's two accuracies at every scale factor.

    Token tasks have other columns: cross-entropy and accuracy by hop count (khop), squared and percentage error (mixed).
    """
    factors = None if scales is None else parse_scales(scales)
    if (run is None) == (pretrained is None):
        raise UsageError("networks are tested; give RUN, or --pretrained TASK.")
    trained, title = networks(run, pretrained, arch, device)
    if lengths is None:
        table, score = trained.evaluate(factors, samples), scores_of(trained.task.name)
    else:
        table, score = trained.evaluate_lengths(parse_lengths(lengths), factors or (1, 10), samples), LENGTH_SCORES
    if csv is not None:
        files.write(csv, table.to_csv(index=False).encode())
        print(f"Every network's numbers: {csv}")
    keys = ["task", "scale", *score.by] if not each else ["member", "task", "seed", "scale", *score.by]
    shown = table if each else table.groupby(keys, sort=False).median(numeric_only=True).reset_index()
    kind = trained.kind + (", each network" if each else f", median of {len(trained)}")
    print_frame(f"{title} ({kind})", shown[[*keys, *score.metrics]])
    failed = [f"member {k} {status}" for k, status in enumerate(trained.status) if status != "ok"]
    if failed:
        print(f"Not all networks trained: {', '.join(failed)}.")
