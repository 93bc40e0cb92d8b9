"""Estimates how long an experiment will train on this machine: times a step of each network and counts the steps."""

import math
import time
from collections.abc import Iterable
from functools import cache

import torch

from posattn.experiments.cells import Cell
from posattn.folding.queries_and_keys import keeps_queries_apart
from posattn.model import ModelConfig
from posattn.network import NetworkConfig, can
from posattn.tasks import TASKS
from posattn.training import Member, Trainer
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

_ENTRIES = 1800  # timed at once: 200 lists of 8 numbers
# Seconds per list and member on an H200 in fp16, by benchmarks/gpu.py at n = 8 with four layers.
_GPU = {"position": 2.7e-8, "input": 6.1e-8}
_GPU_APART = 2.5e-7  # queries and keys that do not multiply out, 15 members
_GPU_UNFOLDED = 1e-6  # networks that do not fold: a guess, not measured
# Operations per second of networks of tokens: khop, 3 members (5.4e13 standard, 8.2e13 positional); mixed-scale, 12 members.
_GPU_RATE = {"letters": 6e13, "prompts": 3e13}


def seconds(cells: Iterable[Cell], device: torch.device) -> float:
    """The estimated training time of all cells together."""
    total = 0.0
    for cell in cells:
        lists = cell.recipe.epochs * cell.recipe.samples * cell.recipe.starts
        each = _on_cpu(cell.model) if device.type == "cpu" else _on_gpu(cell.model)
        total += lists * each
    return total


@cache
def _on_cpu(model: NetworkConfig) -> float:
    """Seconds per list, timed with as many members as keep all cores busy, on a task that the network can read."""
    task = next(name for name, row in TASKS.items() if model.reads == row.TOKENS)
    lists = max(20, _ENTRIES // (model.n + 1))
    with Workers() as workers:
        team = [Member(task, seed, 1e-4) for seed in range(workers.threads)]
        plan = recipe("paper", samples=3 * lists, batch=lists, epochs=1)
        steps = Trainer(model, plan, team, torch.device("cpu"), workers).steps()
        next(steps)
        start = time.perf_counter()
        for _ in steps:
            pass
        return (time.perf_counter() - start) / (2 * lists * len(team))


def _on_gpu(model: NetworkConfig) -> float:
    if not can(model, "fold"):
        return _GPU_UNFOLDED
    assert isinstance(model, ModelConfig)
    if model.reads != "none":
        return operations(model) / _GPU_RATE[model.reads]
    entries = (model.n + 1) * model.layers / 36
    return (_GPU_APART if keeps_queries_apart(model) else _GPU[model.design.attends]) * entries


def operations(model: ModelConfig) -> float:
    """Floating-point operations of one list in training: two per multiplication, backwards twice what forwards takes."""
    d, d_k, heads, positions = model.embed, model.d_k, model.heads, model.positions
    # A of P is computed once for all lists.
    features = {"position": 0, "input": d, "both": d + model.encoding_dim}[model.design.attends]
    linear = 2 * features * heads * d_k + 2 * d * d + 2 * d * model.width + model.width * d
    mixing = positions * (d + (heads * d_k if features else 0))
    return 6.0 * positions * (model.layers * (linear + mixing) + model.input_dim * d)


def in_words(duration: float) -> str:
    if not duration:  # nothing to train
        return "none"
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if duration >= 2 * size:
            return f"{duration / size:.0f} {unit}"
    return f"{max(1, math.ceil(duration))} seconds"
