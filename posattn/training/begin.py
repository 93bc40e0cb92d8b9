"""Training that begins with the networks of a run: the same network, or one of a family that extends theirs.

Member k begins with the weights of the run's member k, whose fingerprint becomes part of its identity. Where a looped network
has more classes of positions than the run's, the rows of the run's table go to the same classes and the others are new. The
logits are divided by the factor that sharpening begins with. So in its first step a network attends where the run's network
did, at sharpness S, while the new rows are soft.

A compiled network serves as such a run: all members begin with its weights, and differ in their lists and shuffles alone.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from posattn.compiler import PROGRAMS, compile_program
from posattn.compiler.compiled_model import CompiledTransformer
from posattn.compiler.library import solving
from posattn.compiler.program_network import trainable
from posattn.errors import UsageError, choice
from posattn.looped.families import FAMILIES
from posattn.network import NetworkConfig
from posattn.tasks import task as find_task
from posattn.tasks.own import is_data
from posattn.training.parameters import Parameters
from posattn.training.run import Run
from posattn.training.spec import RunSpec
from posattn.training.trainer import Trainer

_COMPILED = "compiled"  # what stands in place of a run's folder: compiled, or compiled:PROGRAM
_EPSILON = 1e-3  # by how much softmax may move an answer of a program at the beginning


def with_begin(spec: RunSpec, run: Run) -> RunSpec:
    """``spec`` with members that begin with those of ``run``."""
    _check_networks(spec.model, run.spec.model)
    known = _fingerprints(spec, run)
    return replace(spec, members=tuple(replace(member, begin=known[k]) for k, member in enumerate(spec.members)))


def of_task(run: Run, task: str, members: int) -> Run:
    """The networks of ``run`` that learned ``task``, as a run to begin with; all of them if fewer than ``members`` did."""
    kept = [number for number, member in enumerate(run.spec.members) if member.task == task]
    if not members <= len(kept) < len(run):
        return run
    spec = replace(run.spec, members=tuple(run.spec.members[number] for number in kept))
    result = run.result | {"status": [run.status[number] for number in kept]}
    return Run(spec, Parameters(run.spec.model, run.parameters.flat[kept]), result, run.history)


def task_of(run: Run | None, members: int) -> str | list[str] | None:
    """The task of the first ``members`` networks of a run to begin with, or that of each; None where it is not known."""
    names = [] if run is None else [member.task for member in run.spec.members[:members]]
    if not names or not names[0] or is_data(names[0]):
        return None
    return names[0] if len(set(names)) == 1 else names


def names_program(begin: object) -> TypeGuard[str | Path]:
    """Whether ``begin`` is ``compiled`` or ``compiled:PROGRAM``, and no folder has that name."""
    named = isinstance(begin, (str, Path)) and str(begin).partition(":")[0] == _COMPILED
    return named and not Path(str(begin)).exists()


def named_program(begin: str | Path, task: str, n: int) -> CompiledTransformer:
    """The program that ``begin`` names or, if it names none, the library's first that solves the task, for lists of n.

    It is compiled for all numbers of the lists that networks are tested on.
    """
    names = [row.name for row in solving(task)]
    if not names or find_task(task).TOKENS != "none":
        solved = [row.task for row in PROGRAMS.values() if row.task is not None and find_task(row.task).TOKENS == "none"]
        tasks = ", ".join(dict.fromkeys(solved))
        raise UsageError(f"from is {str(begin)!r}; no program of lists solves {task}; there are some for {tasks}.")
    name = str(begin).partition(":")[2] or names[0]
    choice(f"the program for {task}", name, names)
    bound = 2.0 * max(find_task(task).SCALES)  # the lists of scale c are of numbers up to 2 c
    return compile_program(name, n, epsilon=_EPSILON, bound=bound).model


def run_of_program(model: CompiledTransformer, task: str, members: int) -> Run:
    """A compiled network as a run of so many members, all alike, that training can begin with."""
    return Run.of(trainable(model), task, members=members)


def check_begin(spec: RunSpec, run: Run | None) -> None:
    """Raises unless ``run`` has the weights that the members begin with, or is None where they begin with new ones."""
    if run is None and spec.recipe.only is not None:
        raise UsageError(
            f"the recipe {spec.recipe.name} trains {spec.recipe.only!r} alone; give a run to begin with (begin, or --from), "
            "which has the rest."
        )
    given = [None] * len(spec.members) if run is None else _fingerprints(spec, run)
    for number, (member, name) in enumerate(zip(spec.members, given, strict=False)):
        if member.begin != name:
            raise UsageError(f"begin of member {number} is {member.begin}; the weights given for it are {name}.")


def initial_parameters(trainer: Trainer, run: Run, starts: int) -> Parameters:
    """A new trainer's parameters with the weights of ``run``: every member's for all of its starts.

    For classes of positions that the run's networks do not have, the logits are the trainer's own.
    """
    flat = trainer.parameters.flat.clone()
    own, count = trainer.parameters.by_name(flat), len(flat) // starts  # views
    factor = 1.0 if trainer.sharpness is None else trainer.sharpness[1]
    for name, value in run.parameters.named(slice(count)).items():
        old = value.to(flat.device).repeat_interleave(starts, dim=0)
        there = tuple(map(slice, old.shape))  # all but new classes
        own[name][there] = old / factor if name == trainer.config.sharpened else old
    return Parameters(trainer.config, flat)


def _fingerprints(spec: RunSpec, run: Run) -> list[str]:
    """The names of the run's networks; raises if there are fewer than members, or if they are not trained to the end."""
    if "unfinished" in run.result:
        raise UsageError("the run to begin with is not finished; the train command that began it goes on with it.")
    if len(spec.members) > len(run):
        raise UsageError(f"members is {len(spec.members)}; the run to begin with has {len(run)}.")
    return [fingerprint(row) for row in run.parameters.flat]


def fingerprint(weights: Tensor) -> str:
    """A name for one network's weights."""
    return hashlib.sha256(weights.detach().to("cpu", torch.float32).numpy().tobytes()).hexdigest()[:16]


def _check_networks(new: NetworkConfig, old: NetworkConfig) -> None:
    """Raises unless networks of ``new`` can begin with weights of ``old``."""
    wanted, given = new.to_dict(), old.to_dict()
    alike: tuple[str, ...] = ()  # fields on which the weights do not depend
    if wanted.get("any_length") and given.get("any_length"):
        same_input = getattr(new, "input_dim", None) == getattr(old, "input_dim", None)
        alike = ("n", "encoding_dim") if same_input else ("n",)
    family = FAMILIES.get(str(wanted.get("family")))
    if family is not None and family.extends == given.get("family"):
        alike = (*alike, "family")
    for field in wanted | given:
        if field not in alike and wanted.get(field) != given.get(field):
            raise UsageError(
                f"{field} is {wanted.get(field)!r}; that of the run to begin with is {given.get(field)!r}."
            )
