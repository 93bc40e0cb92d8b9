"""``train``: from settings to a finished run, resuming what a folder holds."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posattn import metrics
from posattn.compiler.compiled_model import CompiledTransformer
from posattn.devices import current, hardware, out_of_memory, pick_device, require_room
from posattn.encodings import encoding_of_own
from posattn.errors import UsageError, counted, flag, instance, seed_number, several, whole
from posattn.model import Transformer
from posattn.network import NetworkConfig, can, require
from posattn.run_folder import Answers, RunFolder
from posattn.tasks import Data
from posattn.tasks import task as find_task
from posattn.tasks.own import Learned, answers_of_own, check_target, is_data, tasks_named
from posattn.training.begin import (
    check_begin,
    initial_parameters,
    named_program,
    names_program,
    of_task,
    run_of_program,
    task_of,
    with_begin,
)
from posattn.training.cuda import CudaTrainer
from posattn.training.estimate import opening, require_room_to_train
from posattn.training.polish import polish
from posattn.training.progress import Progress, Stop, event_writer
from posattn.training.recipe import Recipe
from posattn.training.recipe import recipe as find_recipe
from posattn.training.run import Run, finite, history_table, losses_of_starts, predictor, read_run, save, trained
from posattn.training.spec import RunSpec
from posattn.training.suitability import check_beginning, doubt_family, network_for, suited
from posattn.training.trainer import Member, Trainer
from posattn.training.ways import has_kernels
from posattn.training.workers import Workers


def train(
    task: Learned | None = None,
    config: NetworkConfig | None = None,
    *,
    members: int = 1,
    samples: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | Sequence[float] | None = None,
    polish: int | None = None,
    recipe: str | Recipe | None = None,
    seed: int = 0,
    variable_length: bool | Sequence[int] = False,
    begin: Run | Transformer | str | Path | None = None,
    name: str | None = None,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    out: str | Path | None = None,
    save_every: float = 60.0,
    tensorboard: bool = False,
    progress: bool | None = None,
    announce: Callable[[str], None] | None = None,
) -> Run:
    """Trains an ensemble of ``members`` networks whose seeds are ``seed``, ``seed`` + 1, ... and returns it.

    With ``out`` the run has a folder: a second call with the same arguments resumes it or, if it is done, reads it.

    Args:
        task: what to learn: a task's name, or one for each member; a function from lists (batch, n) to answers of that shape;
            or data, (x, y), two tensors (samples, n) of lists and their answers. By default that of ``begin``.
        config: the network; by default the paper's positional Transformer for the task, for lists of 8 where it has lists.
            A ModelConfig, which names no tokens, reads those of the task.
        samples: training lists, in place of the recipe's number; so are epochs and batch.
        lr: in place of the recipe's, for all members or one for each.
        polish: the last steps of looped networks, in place of the recipe's number.
        recipe: ``paper``, ``tuned``, ``looped``, ``sorter``, ``selector`` or a :class:`Recipe`; by default ``paper``, and for a
            looped positional network the one of its family.
        variable_length: train on lists of 1 to n numbers, or of the lengths given, equally often, each batch of one length.
            With True the recipes shuffle the batches of all lengths anew in every epoch (``Recipe.shuffle_lengths``); given
            lengths, and those of networks for every length, come in turn.
        begin: a run, its folder, or a network that comes with the package: member k begins with the weights of its member k.
            The network is the run's by default; it may be of a family that extends the run's, or for another n where it takes
            every length. Or a compiled network with softmax, ``posattn.compile(..., epsilon=1e-3)``, with whose weights all
            members begin; ``compiled`` and ``compiled:PROGRAM`` are the library's for the task.
        name: of the task that a function is, in place of the function's own.
        device: ``cpu`` or ``cuda``; a GPU if there is one.
        precision: ``fp32``, or on a GPU ``tf32`` or ``fp16``: what matrix products read. Evaluation is always in fp32.
        save_every: seconds between checkpoints.
        tensorboard: also write TensorBoard events into the folder.
        progress: show a progress bar; by default if standard error is a terminal, and else a plain line every half minute.
        announce: called before the first step with a line on what is trained, and about how long it takes.
    """
    place = pick_device(device)
    whole("members", members)
    seed_number(seed)
    before: Run | None = None
    if isinstance(begin, Transformer) and not isinstance(begin, CompiledTransformer):
        before = Run.of(begin, begin.trained_on or "")
    elif begin is not None and not isinstance(begin, Transformer) and not names_program(begin):
        before = trained(begin, "begin")
    if task is None:
        task = task_of(before, members)
        if task is None:
            raise UsageError("task is missing; give a task's name, a function of lists, or data (x, y).")
    with tasks_named(task, name) as known:
        names = [known] if isinstance(known, str) else known
        if not names:
            raise UsageError("task is empty; give a task, or one for each member.")
        if names_program(begin):
            begin = named_program(begin, names[0], network_for(names[0]).n if config is None else config.n)
        if before is not None and isinstance(known, str):
            before = of_task(before, known, members)
        if isinstance(begin, CompiledTransformer):
            if len(set(names)) > 1:
                raise UsageError(f"the members have the tasks {', '.join(names)}; a program to begin with solves only one.")
            before = run_of_program(begin, names[0], members)
        if before is not None:
            check_beginning(before.spec.model, names[0])
        if config is None:
            config = network_for(names[0]) if before is None else before.spec.model
        model = suited(instance("config", config, NetworkConfig, "a ModelConfig"), names[0])
        model.require_room()
        record = 200  # bytes at least of the Python objects that describe a member
        require_room(f"members is {members}; so many networks", members * (record + 4 * model.least_numbers))
        recipe = model.recipe if recipe is None else recipe
        data = find_task(names[0])
        if isinstance(data, Data) and samples is None:
            samples = len(data.x)
        one_rate = None if isinstance(lr, (list, tuple)) else lr
        plan = find_recipe(recipe, samples=samples, epochs=epochs, batch=batch, lr=one_rate, polish=polish)
        if variable_length is True and not isinstance(recipe, Recipe) and not can(model, "every length"):
            plan = replace(plan, shuffle_lengths=True)
        names = names * members if isinstance(known, str) else names
        rates = [find_recipe(plan, lr=rate).lr for rate in lr] if isinstance(lr, (list, tuple)) else [plan.lr] * members
        for field, values in (("task", names), ("lr", rates)):
            if len(values) != members:
                found = f"{field} lists {counted(len(values), 'value')}"
                raise UsageError(f"{found}; it must have one for each of {counted(members, 'member')}.")
        if isinstance(data, Data) and plan.polish:
            raise UsageError(f"polish is {plan.polish}; data of one's own answers no longer lists, so it must be 0.")
        if polish:
            require(model, "last steps")
        team = tuple(Member(each, seed + k, rate) for k, (each, rate) in enumerate(zip(names, rates, strict=True)))
        lengths = variable_length if isinstance(variable_length, bool) else tuple(several("variable_length", variable_length))
        spec = RunSpec(model, plan, team, lengths, precision)
        if before is not None:
            spec = with_begin(spec, before)
        doubt_family(spec.model, names, spec.lengths)
        if flag("tensorboard", tensorboard) and out is None:
            raise UsageError("tensorboard is on and out is not given; events need a folder.")
        return train_spec(spec, place, out, save_every, tensorboard, progress, begin=before, announce=announce)


def train_spec(
    spec: RunSpec,
    device: torch.device,
    out: str | Path | None = None,
    save_every: float = 60.0,
    tensorboard: bool = False,
    progress: bool | None = None,
    report: Callable[[int], None] | None = None,
    begin: Run | None = None,
    announce: Callable[[str], None] | None = None,
) -> Run:
    """Trains ``spec``, from ``begin`` if given, or resumes it. ``report`` gets the number of epochs done, after each."""
    if isinstance(save_every, bool) or not isinstance(save_every, (int, float)) or not save_every >= 0:
        raise UsageError(f"save_every is {save_every!r}; it must be a number of seconds of at least 0.")
    if progress is not None:
        flag("progress", progress)
    if tensorboard:
        event_writer()
    folder = None if out is None else RunFolder(out)

    def answers() -> Answers:
        tasks = [member.task for member in spec.members]
        return answers_of_own(tasks, spec.lengths[-1], device) | encoding_of_own(spec.model)

    if folder is not None:
        finished = folder.holds(spec)
        folder.knows(answers)
        if finished:
            folder.sweep()
            return read_run(folder, device)
    check_precision(spec.model, spec.precision, device)
    check_begin(spec, begin)
    require_room_to_train(spec.model, spec.recipe, len(spec.members), spec.lengths, device)
    for learned in dict.fromkeys(member.task for member in spec.members):
        for length in dict.fromkeys((spec.lengths[0], spec.lengths[-1])):
            check_target(find_task(learned), length, device)
    started = time.monotonic()

    def checkpoint(folder: RunFolder) -> None:
        spent = {"seconds": torch.tensor(time.monotonic() - started)}
        folder.save_checkpoint(spec, trainer.steps_done, trainer.state_dict() | spent)

    with ExitStack() as held:
        # The trainer is built before the folder of a new run, so that a run too large for the memory leaves no folder.
        new = folder is not None and folder.kind is None
        if folder is not None and not new and held.enter_context(folder.claim(spec, answers())):
            return read_run(folder, device)  # another process finished it a moment ago
        with ExitStack() as stack:
            team = [start for member in spec.members for start in member.starts(spec.recipe.starts)]
            workers = stack.enter_context(Workers())
            stack.enter_context(current(device))
            trainer = trainer_for(spec, spec.recipe, team, device, workers, only=spec.recipe.only)
            if begin is not None:
                trainer.parameters = initial_parameters(trainer, begin, spec.recipe.starts)
            if folder is not None and new and held.enter_context(folder.claim(spec, answers())):
                return read_run(folder, device)
            stop = stack.enter_context(Stop(active=folder is not None))
            if folder is not None and (state := folder.load_checkpoint(spec, trainer.fits)) is not None:
                trainer.load_state_dict(state)
                started -= float(state["seconds"])
            if announce is not None:
                announce(opening(spec, device, trainer.epoch, trainer.total - trainer.steps_done, workers.threads))
                before = [] if begin is None else [member.task for member in begin.members]
                if len(set(before)) > 1:
                    first = before[: len(spec.members)]
                    some = f"the first {len(first)} of the run's {counted(len(before), 'network')}"
                    announce(f"It begins with {some}, trained on {', '.join(dict.fromkeys(first))}.")
            events = folder.path if folder is not None and tensorboard else None
            shown = stack.enter_context(Progress(trainer, progress, events, report))
            saved = time.monotonic()
            for _ in trainer.steps():
                shown.update()
                due = time.monotonic() - saved >= save_every
                if folder is not None and (due or stop.asked):
                    checkpoint(folder)
                    saved, where = time.monotonic(), f"epoch {trainer.epoch} of {spec.recipe.epochs}"
                    stop.leave(f"Stopped at {where}; the same command goes on from there.")
            shown.update()
            if folder is not None and spec.recipe.polish:
                checkpoint(folder)
                stop.leave("Stopped before the last steps; the same command goes on from there.")
            stop.close()  # the last steps write nothing, so a signal may end them at once; the next call does them again
            about = _choose(trainer, spec.recipe.starts) | _polish(trainer, spec.recipe.polish, shown)
        run = _finish(spec, trainer, time.monotonic() - started, about)
        if folder is not None:
            save(folder, run)
            run.folder = folder
    return run


def check_precision(model: NetworkConfig, precision: str, device: torch.device) -> None:
    """Raises if a network cannot train in a precision on a device."""
    if precision != "fp32" and device.type == "cpu":
        raise UsageError(f"precision is {precision!r}, which only a GPU has; on the CPU it must be fp32.")
    if precision == "fp16" and not has_kernels(model, device, precision):
        raise UsageError(
            f"precision is 'fp16', for which the {model.arch} network has no kernels here; it must be tf32 or fp32."
        )


def trainer_for(
    spec: RunSpec, plan: Recipe, members: Sequence[Member], device: torch.device, workers: Workers, **more: Any
) -> Trainer:
    """The trainer for a device; ``plan`` and ``members`` may differ from those of ``spec``."""
    kind = Trainer if device.type == "cpu" else CudaTrainer
    given = (spec.model, plan, members, device, workers, spec.lengths)
    try:
        return kind(*given, precision=spec.precision, **more)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        less = "take fewer samples, epochs or members, or a smaller n"
        raise UsageError(f"the run does not fit in memory; {less}.") from error


def _choose(trainer: Trainer, starts: int) -> dict[str, Any]:
    """Keeps per member the start with the least loss in the last epoch; returns what the run's result says of it."""
    if starts == 1:
        return {}
    losses = losses_of_starts(trainer.history.cpu(), trainer.alive.cpu(), starts)
    best = losses.argmin(dim=1)
    trainer.keep((starts * torch.arange(len(best)) + best).tolist())
    return {"start": best.tolist(), "start_losses": [finite(row) for row in losses.tolist()]}


def _polish(trainer: Trainer, steps: int, shown: Progress) -> dict[str, Any]:
    """The last steps of looped networks, if the recipe has any; returns what the run's result says of them."""
    if not steps or not can(trainer.config, "last steps"):
        return {}
    x, y = trainer.blocks[-1].x, trainer.blocks[-1].y
    tasks = [find_task(member.task) for member in trainer.members]
    advance = shown.last_steps(steps * len(tasks))
    shorter = [block.x.shape[-1] for block in trainer.blocks[:-1]]
    trainer.parameters, better = polish(trainer.parameters, x, tasks, steps, trainer.workers, advance, shorter)
    errors = metrics.mean_squared_error(predictor(trainer.parameters)(x[:, :1000]), y[:, :1000])
    return {"polished": better, "train_loss": finite(errors.tolist())}


def _finish(spec: RunSpec, trainer: Trainer, seconds: float, about: dict[str, Any]) -> Run:
    """The run from a trainer that is done, with the fate of every member."""
    own, samples = [metrics.Tested(member.task, member.seed) for member in spec.members], max(1000, len(spec.lengths))
    test = metrics.Evaluation(predictor(trainer.parameters), own, samples, "validation", trainer.device)
    data = is_data(own[0].task)  # which has no lists but those of training
    x = trainer.blocks[-1].x[:, :1000] if data else replace(test, samples=1000).draw(spec.model.n)
    out, y = test.predict(x), trainer.blocks[-1].y[:, :1000] if data else test.targets(x)
    words = out.ndim > y.ndim  # the network gives a logit per word
    # Dead: every ReLU of some layer is off, so all lists get the same answer.
    moved = (out - out.mean(dim=1, keepdim=True)).abs().flatten(1).amax(dim=1)
    dead = moved <= 1e-6 * (1 if words else y.std(dim=(1, 2)))
    if words:
        errors = metrics.cross_entropies(out, y).double().mean(dim=(1, 2)).tolist()
    elif data:
        errors = metrics.mean_squared_error(out, y).tolist()
    else:
        errors = metrics.scores_of(own[0].task).evaluate(test, spec.lengths, [1.0])["mse"].tolist()
    status = [
        "diverged" if not alive or not math.isfinite(loss) else "dead" if gone else "ok"
        for alive, loss, gone in zip(trainer.alive.tolist(), errors, dead.tolist(), strict=True)
    ]
    result = {
        "status": status,
        "train_loss": finite(trainer.history[-1, 0].tolist()),
        "validation_loss": [None] * len(own) if data else finite(errors),
        "hardware": hardware(trainer.device),
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
    } | about
    return Run(spec, trainer.parameters, result, history_table(trainer.history.cpu()))
