"""Figure 34: GPT-2 fine-tuned on the prompts of mixed tasks as text, beside trained networks on the same prompts.

A *trial* is one fine-tuning, of a task and a seed. The store keeps its rows once it is done, and no trial is repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from posattn.baselines import gpt2
from posattn.errors import UsageError, counted
from posattn.experiments.declaration import Experiment, Grid, Held, Source
from posattn.experiments.store import Cell, Store, digest
from posattn.runs import result_rows
from posattn.tasks.prompts import POSITIONS

METRICS = ("mse", "mape", "unparsed")
_LARGE, _SMALL_RATE = "gpt2-large", 1e-3  # the paper's checkpoint, and the learning rate of a network without one


@dataclass(frozen=True)
class _Trials:
    """How many trials a task has, how many prompts and epochs each trains for, and on how many prompts a scale it is tested."""

    seeds: int
    samples: int
    epochs: int
    test_samples: int


_AT = {"smoke": _Trials(1, 16, 1, 4), "quick": _Trials(3, 2000, 3, 50), "paper": _Trials(10, 50_000, 3, 1000)}


@dataclass(frozen=True)
class FineTunings(Source):
    """Trials of GPT-2 on the tasks of ``beside``, and the networks of that grid, tested at the same scales.

    ``checkpoint`` is known by its name alone, so that a folder gpt2-large stands for the one of the hub. Without one it is
    gpt2-large at paper scale, and below it the small network that needs none. A trial's name leaves out the precision: as
    for runs, rows of any serve, and say which they are of.
    """

    beside: Grid
    checkpoint: str | None = None

    def cells(self, size: str) -> list[Cell]:
        return self._networks(size).cells()

    def more(self, size: str) -> str:
        return f"{counted(len(self._trials(size)), 'fine-tuning')} of GPT-2"

    def _networks(self, size: str) -> Grid:
        """The trained networks at a size: of all tasks, unless it is ``smoke``."""
        own = self.beside.at(size)
        return own if size == "smoke" else replace(own, tasks=self.beside.tasks)

    def _trials(self, size: str) -> dict[str, tuple[gpt2.FineTuning, int]]:
        """Settings and seed of every trial, by the name of its rows in the store."""
        own, networks = _AT[size], self._networks(size)
        checkpoint = self.checkpoint
        if checkpoint is None:
            checkpoint = _LARGE if size == "paper" else gpt2.TINY
        lr = _SMALL_RATE if checkpoint == gpt2.TINY else gpt2.FineTuning.lr
        found: dict[str, tuple[gpt2.FineTuning, int]] = {}
        for task in networks.tasks:
            settings = gpt2.FineTuning(task, checkpoint, own.samples, own.epochs, lr=lr)
            known = asdict(settings) | {"checkpoint": _name(checkpoint), "test_samples": own.test_samples}
            called = f"gpt2-{size}-{task}-{digest([known, list(networks.measure.key()['factors'])])}"
            found |= {f"{called}-{seed}": (settings, seed) for seed in range(own.seeds)}
        return found

    def prepare(
        self, size: str, store: Store, runs: int | None, device: torch.device, announce: Callable[[str], None]
    ) -> None:
        trials = self._trials(size)
        wanted = {name: trial for name, trial in trials.items() if runs is None or trial[1] < runs}
        for number, (name, (settings, seed)) in enumerate(wanted.items(), start=1):
            said = f"{label(settings)} on {settings.task}, trial {number} of {len(wanted)}"
            if not store.has_computed(name):
                announce(f"{said}: {counted(settings.epochs, 'epoch')} of {counted(settings.samples, 'prompt')}")
            store.computed(name, partial(self._rows, size, settings, seed, device))

    def _rows(self, size: str, settings: gpt2.FineTuning, seed: int, device: torch.device) -> pd.DataFrame:
        network, tokenizer = gpt2.checkpoint(settings, seed)
        gpt2.fine_tune(settings, network, tokenizer, seed, device)
        scales = self._networks(size).measure.key()["factors"]
        table = gpt2.evaluate(settings, network, tokenizer, seed, scales, _AT[size].test_samples)
        about = {
            "run": f"gpt2-{settings.task}-{seed}",
            "arch": label(settings),
            "n": POSITIONS,
            "layers": network.config.n_layer,
            "width": network.config.n_embd,
            "encoding": "learned",
            "recipe": "fine-tuning",
            "precision": "fp32" if device.type == "cpu" else "bf16",
            "seed": seed,
            "split": "test",
            "status": "ok",
            "series": label(settings),
            **{column: value for column, value in asdict(settings).items() if column != "checkpoint"},
        }
        return result_rows(table.melt("scale", METRICS, "metric", "value"), about)

    def held(self, name: str, size: str, store: Store, precision: str | None = None) -> Held:
        """Enough for a figure is a trial of every task."""
        trials = self._trials(size)
        there = {called: settings.task for called, (settings, _) in trials.items() if store.has_computed(called)}
        networks = self._networks(size).held(name, "paper", store, precision)

        def read(keep: bool = False) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
            rows, ensembles = networks.read(keep)
            tables = [store.computed(called, partial(_repeat, called), keep=False) for called in there]
            return pd.concat([*tables, rows], ignore_index=True).assign(experiment=name), ensembles

        enough = {settings.task for settings, _ in trials.values()} == set(there.values())
        return Held(
            bool(there) or networks.some, enough, f"{len(there)} of {counted(len(trials), 'trial')}, {networks.said}", read
        )


def with_checkpoint(experiments: Sequence[Experiment], checkpoint: str) -> list[Experiment]:
    """The experiments, those of GPT-2 with another checkpoint; raises if there are none of these."""
    if not any(isinstance(each.source, FineTunings) for each in experiments):
        raise UsageError(
            f"checkpoint is {checkpoint!r}; it is for the experiment gpt2 alone, not for {experiments[0].name}."
        )
    return [
        replace(each, source=replace(each.source, checkpoint=checkpoint))
        if isinstance(each.source, FineTunings)
        else each
        for each in experiments
    ]


def label(settings: gpt2.FineTuning) -> str:
    """What a figure calls the network."""
    name = "tiny, from scratch" if settings.checkpoint == gpt2.TINY else _name(settings.checkpoint)
    return f"GPT-2 ({name})"


def _name(checkpoint: str) -> str:
    """That of a folder, or the full one on the hub."""
    folder = Path(checkpoint)
    return folder.resolve().name if folder.is_absolute() or folder.is_dir() else checkpoint


def _repeat(called: str) -> pd.DataFrame:
    raise UsageError(f"the rows of the trial {called} are damaged; posattn reproduce gpt2 repeats it.")
