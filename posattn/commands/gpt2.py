"""``posattn gpt2``: GPT-2 on the prompts of a mixed task, as text."""

from pathlib import Path

from typer import Argument, Option

from posattn.commands import console


def command(
    name: str = Argument(metavar="TASK", help="A mixed task, such as mixed-min."),
    checkpoint: str = Option(
        "gpt2-large", help="A GPT-2 of the Hugging Face hub, a folder that holds one, or tiny: a small untrained one."
    ),
    samples: int = Option(50_000, help="Training prompts."),
    epochs: int = Option(3, help="Passes over them."),
    batch: int = Option(16, help="Prompts per step."),
    lr: float = Option(5e-5, help="Learning rate, which falls linearly to zero."),
    runs: int = Option(1, help="Independent fine-tunings, with seeds from 0."),
    scales: str = Option("1:10", help="Scale factors: 1:10, or 1,2,5; 1 is the training range."),
    test_samples: int = Option(1000, help="Test prompts per scale factor."),
    against: list[Path] | None = Option(None, help="Folder of a trained run to show beside it."),
    device: str | None = console.DEVICE,
    out: Path | None = Option(None, help="Folder for rows and figure (default out/gpt2-TASK)."),
) -> None:
    """Fine-tune GPT-2 on the prompts of a mixed task as text, and test it in and out of distribution (Figure 34).

    Example: posattn gpt2 mixed-min --checkpoint gpt2-large --against runs/mixed-min
    """
    from posattn.baselines.gpt2 import FineTuning
    from posattn.devices import pick_device
    from posattn.experiments.gpt2_comparison import Comparison, compare

    settings = FineTuning(name, checkpoint, samples, epochs, batch, lr)
    what = Comparison(settings, runs, tuple(console.parse_scales(scales)), test_samples)
    folder = Path("out") / f"gpt2-{name}" if out is None else out
    shown = compare(what, folder, pick_device(device), against or (), lambda line: print(line, flush=True))
    for title, table in shown.tables:
        console.print_frame(title, table.reset_index())
    print(f"Rows:   {folder / 'rows.csv'}\nFigure: {folder / 'gpt2.png'}")
