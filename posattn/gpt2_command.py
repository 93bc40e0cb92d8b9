"""The command ``posattn gpt2``: GPT-2 on the prompts of a mixed task, as text."""

from pathlib import Path
from typing import Annotated

import typer

from posattn.console import parse_scales, print_frame
from posattn.devices import pick_device


def gpt2_command(
    name: Annotated[str, typer.Argument(metavar="TASK", help="A mixed task, such as mixed-min.")],
    checkpoint: Annotated[
        str,
        typer.Option(help="A GPT-2 of the Hugging Face hub, a folder that holds one, or tiny: a small untrained one."),
    ] = "gpt2-large",
    samples: Annotated[int, typer.Option(help="Training prompts.")] = 50_000,
    epochs: Annotated[int, typer.Option(help="Passes over them.")] = 3,
    batch: Annotated[int, typer.Option(help="Prompts a step.")] = 16,
    lr: Annotated[float, typer.Option(help="Learning rate, which falls linearly to zero.")] = 5e-5,
    runs: Annotated[int, typer.Option(help="Independent fine-tunings, with seeds from 0.")] = 1,
    scales: Annotated[str, typer.Option(help="Scale factors: 1:10, or 1,2,5; 1 is the training range.")] = "1:10",
    test_samples: Annotated[int, typer.Option(help="Test prompts a scale factor.")] = 1000,
    against: Annotated[list[Path] | None, typer.Option(help="Folder of a trained run to show beside it.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU if there is one).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for rows and figure (default out/gpt2-TASK).")] = None,
) -> None:
    """Fine-tune GPT-2 on the prompts of a mixed task as text, and test it in and out of distribution (Figure 34).

    Example: posattn gpt2 mixed-min --checkpoint gpt2-large --against runs/mixed-min
    """
    from posattn.baselines.gpt2 import FineTuning
    from posattn.experiments import figures, report
    from posattn.experiments.gpt2 import SHOWN, Comparison, compare

    settings = FineTuning(name, checkpoint, samples, epochs, batch, lr)
    what = Comparison(settings, runs, tuple(parse_scales(scales)), test_samples)
    folder = Path("out") / f"gpt2-{name}" if out is None else out
    rows, figure = compare(what, folder, pick_device(device), against or (), lambda line: print(line, flush=True))
    for title, table in report.pivots(figures.medians(rows, SHOWN), SHOWN):
        print_frame(table.reset_index(), title)
    print(f"Rows:   {folder / 'rows.csv'}\nFigure: {figure}")
