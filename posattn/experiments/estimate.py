"""How long an experiment will train on this machine, roughly: a step of each network is timed, and the steps are counted."""

import math
import time
from collections.abc import Iterable
from functools import cache

import torch

from posattn.experiments.declaration import Cell
from posattn.folding import folds
from posattn.training import Member, Trainer
from posattn.training.network import NetworkConfig
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

_LISTS = 200  # timed at once
# Seconds a list and member on an H200 in fp16, by benchmarks/gpu.py at n = 8 with four layers.
_GPU = {"position": 2.7e-8, "input": 6.1e-8}
_GPU_UNFOLDED = 1e-6  # networks that do not fold: a guess, not measured


def seconds(cells: Iterable[Cell], device: torch.device) -> float:
    """The training time of the cells together."""
    total = 0.0
    for cell in cells:
        lists = cell.recipe.epochs * cell.recipe.samples
        each = _on_cpu(cell.model) if device.type == "cpu" else _on_gpu(cell.model)
        total += lists * each
    return total


@cache
def _on_cpu(model: NetworkConfig) -> float:
    """Seconds a list, with as many members as keep all cores busy."""
    with Workers() as workers:
        team = [Member("sum", seed, 1e-4) for seed in range(workers.threads)]
        plan = recipe("paper", samples=3 * _LISTS, batch=_LISTS, epochs=1)
        steps = Trainer(model, plan, team, torch.device("cpu"), workers).steps()
        next(steps)
        start = time.perf_counter()
        for _ in steps:
            pass
        return (time.perf_counter() - start) / (2 * _LISTS * len(team))


def _on_gpu(model: NetworkConfig) -> float:
    if not folds(model):
        return _GPU_UNFOLDED
    entries = (model.n + 1) * getattr(model, "layers", 4) / 36
    return _GPU[model.design.attends] * entries  # type: ignore[attr-defined]


def in_words(duration: float) -> str:
    if not duration:  # nothing to train
        return "none"
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if duration >= 2 * size:
            return f"{duration / size:.0f} {unit}"
    return f"{max(1, math.ceil(duration))} seconds"
