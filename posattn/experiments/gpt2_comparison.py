"""Figure 34: a fine-tuned GPT-2 on the prompts of a mixed task, and a trained Transformer beside it on the same prompts.

out/gpt2.json           what is compared: settings, scales, numbers of prompts
out/trial-SEED.csv      what one fine-tuning gave at every scale; a trial that is there is not repeated
out/rows.csv, gpt2.*    all rows, figure, tables, as every experiment leaves them
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from posattn import files
from posattn.baselines import gpt2
from posattn.errors import UsageError, instance, several, whole
from posattn.experiments.figures import Lines, View
from posattn.experiments.report import Shown
from posattn.experiments.rows import read_rows, result_rows
from posattn.runs import AnyRun, load
from posattn.tasks.prompts import POSITIONS
from posattn.tasks.sampling import factor
from posattn.tokens import TokenConfig

METRICS = ("mse", "mape", "unparsed")
FIGURE = Lines(views=tuple(View("", metric=metric) for metric in METRICS))
_MOST_TRIALS = 1000  # fine-tunings that anyone can wait for


@dataclass(frozen=True)
class Comparison:
    """Fine-tunings of one kind, a trial for each seed from 0, tested on ``samples`` prompts at every scale."""

    settings: gpt2.FineTuning
    trials: int = 1
    scales: tuple[float, ...] = tuple(range(1, 11))
    samples: int = 1000

    def __post_init__(self) -> None:
        instance("settings", self.settings, gpt2.FineTuning, "a FineTuning")
        whole("runs", self.trials, most=_MOST_TRIALS)
        whole("test_samples", self.samples)
        for scale in several("scales", self.scales):
            factor(scale)
        if not len(self.scales):
            raise UsageError("scales is empty; give at least one number above 0.")

    def describe(self) -> dict[str, object]:
        """What all trials share."""
        return asdict(self.settings) | {"scales": [float(scale) for scale in self.scales], "test_samples": self.samples}


def compare(
    what: Comparison,
    out: Path,
    device: torch.device,
    against: Sequence[Path] = (),
    announce: Callable[[str], None] = lambda line: None,
) -> Shown:
    """Runs the trials that ``out`` lacks, and writes all rows, ``gpt2.png`` and tables; ``against`` are folders of runs."""
    gpt2.require_room_for_prompts("samples", what.settings.samples)
    gpt2.require_room_for_prompts("test_samples", what.samples)
    beside = [_beside(folder, what.settings.task) for folder in against]
    described = out / "gpt2.json"
    if described.exists():
        if files.read_json(described) != what.describe():
            raise UsageError(f"out is {str(out)!r}, which holds a comparison with other settings; give another folder.")
    else:
        files.check_new(out, described.name)
    for seed in range(what.trials):
        if not (out / f"trial-{seed}.csv").exists():
            _trial(what, seed, out, device, announce)
    trials = [read_rows(path, files.read(path)) for path in sorted(out.glob("trial-*.csv"))]
    others = [run.rows(run.evaluate(what.scales, what.samples), "gpt2").assign(series=_called(run)) for run in beside]
    shown = Shown(FIGURE, pd.concat([*trials, *others], ignore_index=True))
    shown.write(out / "gpt2")
    return shown


def _beside(folder: Path, task: str) -> AnyRun:
    run = load(folder)
    tasks = {member.task for member in run.members}
    if tasks != {task}:
        raise UsageError(f"against is {str(folder)!r}, a run of {', '.join(sorted(tasks))}; it must be one of {task}.")
    return run


def _called(run: AnyRun) -> str:
    return f"{run.kind}, relative" if isinstance(run.config, TokenConfig) and run.config.relative else run.kind


def _trial(what: Comparison, seed: int, out: Path, device: torch.device, announce: Callable[[str], None]) -> None:
    settings = what.settings
    announce(f"GPT-2 ({settings.checkpoint}), trial {seed + 1} of {what.trials}: loading")
    network, tokenizer = gpt2.checkpoint(settings, seed)
    files.write_json(out / "gpt2.json", what.describe())
    announce(f"fine-tuning on {settings.samples} prompts, {settings.epochs} epochs")
    losses = gpt2.fine_tune(settings, network, tokenizer, seed, device)
    announce(f"loss of the last epoch {losses[-1]:.4f}; testing at {len(what.scales)} scales")
    table = gpt2.evaluate(settings, network, tokenizer, seed, what.scales, what.samples)
    name = "tiny, from scratch" if settings.checkpoint == gpt2.TINY else Path(settings.checkpoint).name
    values = table.melt("scale", METRICS, "metric", "value")
    own = {column: value for column, value in asdict(settings).items() if column != "checkpoint"}
    rows = result_rows(
        values.assign(domain=["ood" if scale > 1 else "id" for scale in values["scale"]]),
        experiment="gpt2",
        run=f"gpt2-{seed}",
        arch=f"GPT-2 ({name})",
        n=POSITIONS,
        layers=network.config.n_layer,
        width=network.config.n_embd,
        encoding="learned",
        recipe="fine-tuning",
        precision="fp32" if device.type == "cpu" else "bf16",
        seed=seed,
        series=f"GPT-2 ({name})",
        **own,
    )
    files.write(out / f"trial-{seed}.csv", rows.to_csv(index=False, na_rep="nan").encode())
