"""What training takes: an estimate of its time, and the memory that it needs at least.

The time is the operations of a list at the speed of machines that were measured, and on a CPU a cost per step. Nothing is
timed, so that it is there at once and is the same each time. A CPU core counts as one of the machine that made the quick
results (an AMD EPYC), and a GPU as an H200 in fp16; ``REST`` says so in words.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from posattn.devices import CPU, require_room
from posattn.errors import apiece, counted
from posattn.folding.queries_and_keys import keeps_queries_apart
from posattn.model import ModelConfig
from posattn.network import NetworkConfig, can
from posattn.tokens import TokenConfig
from posattn.training.recipe import Recipe
from posattn.training.spec import RunSpec

REST = {"cpu": "those of an AMD EPYC", "cuda": "an H200 in fp16"}  # what estimates rest on
_LONG = 600.0  # seconds, beyond which a quicker way is named
# Operations per second of a core, by what a network that folds reads: medians over the networks of the experiments.
_CORE_RATE = {"none": 5e10, "letters": 4.5e10, "prompts": 2.7e10}
# Seconds of a core per step of a network that folds, beside its operations: PyTorch's calls take their time however small the
# tensors are. Networks of width 16 took 13 ms a step on a slow, busy core; 5 ms is a guess for one that is neither. The rates
# of networks that do not fold were measured with their steps.
_CORE_STEP = 0.005
# Seconds of a core per list and position, of networks that do not fold: by their kind, or by their architecture.
_CORE_UNFOLDED = {"looped": 8e-6, "prompt-table": 9e-6, "tokens": 3e-6, "gcn": 5e-6, "gat": 1.4e-5}
_CORE_OTHERS = 4e-5
# Seconds per list and member on an H200 in fp16, by benchmarks/gpu.py at n = 8 with four layers.
_GPU = {"position": 1.8e-8, "input": 5.0e-8}
_GPU_APART = 2.5e-7  # queries and keys that do not multiply out, 15 members
_GPU_UNFOLDED = 1e-6  # networks that do not fold: a guess, not measured
_GPU_MEMBERS = {"lists": 15, "tokens": 3}  # fewer take as long as so many
# Operations per second of networks of tokens, by their vocabulary: letters with 3 members (1.1e14 standard, 1.25e14
# positional), characters with 10 (1.3e14 both), elements of prompts with 12 (4.4e13 and 5.2e13).
# Those that share digits were not measured.
_GPU_RATE = {"letters": 1.2e14, "characters": 1.3e14, "prompts": 4.8e13, "elements-shared": 4.8e13}


def seconds(
    model: NetworkConfig,
    recipe: Recipe,
    device: torch.device,
    members: int | None = None,
    cores: int | None = None,
    lengths: Sequence[int] = (),
) -> float:
    """The estimated time to train ``members`` networks; by default the share of one, where others keep the device busy.

    ``lengths`` are those of the lists, if not all are as long as the network's. The work of a network that folds is in
    proportion to the positions; others were measured at the lengths that they train on.
    """
    lists = float(recipe.epochs * recipe.samples)
    if lengths and can(model, "fold"):
        lists *= (_mean(lengths) + 1) / (model.n + 1)
    if device.type != "cpu":
        fewest = _GPU_MEMBERS["tokens" if isinstance(model, TokenConfig) else "lists"]
        alone = 1 if members is None else max(members * recipe.starts, fewest) / recipe.starts
        return lists * recipe.starts * alone * _on_gpu(model)
    # On a CPU each network has a core to itself.
    cores = cores or torch.get_num_threads()
    turns = recipe.starts / cores if members is None else math.ceil(members * recipe.starts / cores)
    steps = recipe.epochs * math.ceil(recipe.samples / recipe.batch) if can(model, "fold") else 0
    return turns * (lists * _on_core(model) + steps * _CORE_STEP)


def where(device: torch.device, cores: int | None = None) -> str:
    """What trains, in words."""
    cores = cores or torch.get_num_threads()
    return "a GPU" if device.type != "cpu" else "one CPU core" if cores == 1 else f"{cores} CPU cores"


def opening(spec: RunSpec, device: torch.device, epoch: int, steps: int, cores: int) -> str:
    """What is about to be trained, from an epoch on, and about how long it takes; beyond ten minutes also what is quicker.

    On a CPU that is with so many ``cores``: while its workers run, PyTorch itself counts one.
    """
    plan, count = spec.recipe, len(spec.members)
    took = seconds(spec.model, plan, device, count, cores, spec.lengths) * (1 - epoch / plan.epochs)
    tasks = ", ".join(dict.fromkeys(member.task for member in spec.members))
    line = f"{counted(count, f'{spec.model.arch} network')} for {tasks}, {counted(steps, 'step', ',')}"
    line += f" from epoch {epoch} of {plan.epochs}" if epoch else ""
    line += f": about {in_words(took)} on {where(device, cores)} as fast as {REST[device.type]}."
    look = replace(plan, samples=min(plan.samples, 2000), epochs=min(plan.epochs, 20))
    quick = seconds(spec.model, look, device, count, cores, spec.lengths)
    if took > _LONG and not epoch and quick < took / 10:
        options = f"--samples {look.samples} --epochs {look.epochs}"
        line += f" For a first look take {options} (about {in_words(quick)}; it learns little)."
    return line


def _on_core(model: NetworkConfig) -> float:
    """Seconds of a core per list, beside what a step takes."""
    if not can(model, "fold"):
        others = _CORE_UNFOLDED.get(model.arch, _CORE_OTHERS)
        return _CORE_UNFOLDED.get(model.kind, others) * (model.n + 1)
    assert isinstance(model, ModelConfig)
    return operations(model) / _CORE_RATE[model.reads]


def _on_gpu(model: NetworkConfig) -> float:
    if not can(model, "fold"):
        return _GPU_UNFOLDED
    assert isinstance(model, ModelConfig)
    if isinstance(model, TokenConfig):
        return operations(model) / _GPU_RATE[model.tokens]
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


def _mean(lengths: Sequence[int]) -> float:
    """Of a range without counting it through: it may be absurdly long."""
    return (lengths[0] + lengths[-1]) / 2 if isinstance(lengths, range) else sum(lengths) / len(lengths)


def in_words(duration: float) -> str:
    """A time in the largest unit of which there are two."""
    if not duration:  # nothing to train
        return "none"
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if duration >= 2 * size:
            return f"{duration / size:.0f} {unit}"
    return counted(max(1, math.ceil(duration)), "second")


def require_room_to_train(
    model: NetworkConfig, recipe: Recipe, members: int, lengths: Sequence[int], device: torch.device
) -> None:
    """Raises if training does not fit into memory; the sentence names the part that takes most of it."""
    networks = members * recipe.starts
    each = apiece(networks, "network")
    length = _mean(lengths)
    parts = {  # weights, lists and losses are float32, of 4 bytes
        # Weights and two moments.
        f"members is {members}; so many networks": 3 * 4 * networks * model.least_numbers,
        # x and, in tasks of lists, y.
        f"samples is {recipe.samples}; so many training lists of n = {model.n}{each}": (
            (2 if model.reads == "none" else 1) * 4 * networks * recipe.samples * length
        ),
    }
    steps, history = recipe.epochs * math.ceil(recipe.samples / recipe.batch), 2 * 4 * networks * recipe.epochs
    epochs = f"epochs is {recipe.epochs}; the losses and learning rates of so many{each}"
    # A step's two rates are computed in float64 by the CPU. A GPU keeps them and the history, which the CPU reads at the end.
    of_cpu, of_gpu = {epochs: 24 * steps + history}, {epochs: 2 * 4 * steps + history}
    for place, needs in ((CPU, parts | of_cpu),) if device.type == "cpu" else ((device, parts | of_gpu), (CPU, of_cpu)):
        require_room(max(needs, key=lambda what: needs[what]), sum(needs.values()), place)
