"""``train``: from settings to a finished run, resuming what a folder holds."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from posattn.errors import UsageError, whole
from posattn.looped import serves
from posattn.tasks import task
from posattn.training import checkpoints, files, metrics
from posattn.training.begin import begins, begun, check_given
from posattn.training.cuda import CudaTrainer
from posattn.training.losses import surprise
from posattn.training.network import NetworkConfig, doubt_family, network_for, reading
from posattn.training.polish import polish
from posattn.training.program import Precision, has_kernels
from posattn.training.progress import Progress, Stop, event_writer
from posattn.training.recipe import OF_FAMILIES, Recipe, recipe
from posattn.training.run import Run, hardware, load, pick_device, predictor, save
from posattn.training.scores import scores_of
from posattn.training.spec import RunSpec
from posattn.training.trainer import Member, Trainer
from posattn.training.workers import Workers


def train(
    task: str | Sequence[str],
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
    begin: Run | str | Path | None = None,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    out: str | Path | None = None,
    save_every: float = 60.0,
    tensorboard: bool = False,
    progress: bool | None = None,
) -> Run:
    """Trains an ensemble of ``members`` networks whose seeds are ``seed``, ``seed`` + 1, ... and returns it.

    With ``out`` the run has a folder: a second call with the same arguments resumes it or, if it is done, reads it.

    Args:
        task: a task's name, or one for each member.
        config: the network; by default the paper's positional Transformer for the task, for lists of 8 where it has lists.
            One that says nothing of tokens reads those of the task.
        samples: training lists, in place of the recipe's number.
        epochs: in place of the recipe's.
        batch: in place of the recipe's.
        lr: in place of the recipe's, for all members or one for each.
        polish: the last steps of looped networks, in place of the recipe's number.
        recipe: ``paper``, ``tuned``, ``looped``, ``sorter``, ``selector`` or a :class:`Recipe`; by default ``paper``, and for a
            looped positional network the one of its family.
        variable_length: train on lists of 1 to n numbers, or of the lengths given, equally often, each batch of one length.
        begin: a run, or its folder: member k begins with the weights of its member k, and not with new ones. The network is
            the run's by default; it may be of a family that extends the run's, or for another n where it takes every length.
        device: ``cpu`` or ``cuda``; a GPU if there is one.
        precision: ``fp32``, or on a GPU ``tf32`` or ``fp16``: what matrix products read. Evaluation is always in fp32.
        save_every: seconds between checkpoints.
        tensorboard: also write TensorBoard events into the folder.
        progress: show a progress bar; by default if standard error is a terminal.
    """
    place = pick_device(device)
    if begin is not None and not isinstance(begin, (Run, str, Path)):
        raise UsageError(f"begin is a {type(begin).__name__}; it must be a run, or the folder of one.")
    before = load(begin) if isinstance(begin, (str, Path)) else begin
    if before is not None and config is None:
        config = before.spec.model
    spec = _spec(task, config, members, samples, epochs, batch, lr, polish, recipe, seed, variable_length, precision)
    if before is not None:
        spec = begins(spec, before)
    doubt_family(spec.model, [member.task for member in spec.members], spec.lengths)
    if tensorboard and out is None:
        raise UsageError("tensorboard is on and out is not given; events need a folder.")
    folder = None if out is None else Path(out)
    return train_spec(spec, place, folder, save_every, tensorboard, progress, begin=before)


def _spec(
    names: str | Sequence[str],
    config: NetworkConfig | None,
    members: int,
    samples: int | None,
    epochs: int | None,
    batch: int | None,
    lr: float | Sequence[float] | None,
    polish: int | None,
    base: str | Recipe | None,
    seed: int,
    variable_length: bool | Sequence[int],
    precision: str,
) -> RunSpec:
    whole("members", members)
    whole("seed", seed, least=0)
    tasks = [names] * members if isinstance(names, str) else list(names)
    _check_count("task", tasks, members)
    model = network_for(tasks[0]) if config is None else config
    if not callable(getattr(model, "build", None)):
        raise UsageError(f"config is {model!r}; it must be a ModelConfig.")
    model = reading(model, tasks[0])
    base = OF_FAMILIES.get(getattr(model, "family", None) or "", "paper") if base is None else base
    one_rate = None if isinstance(lr, Sequence) else lr
    own = recipe(base, samples=samples, epochs=epochs, batch=batch, lr=one_rate, polish=polish)
    rates = [recipe(own, lr=rate).lr for rate in lr] if isinstance(lr, Sequence) else [own.lr] * members
    _check_count("lr", rates, members)
    if polish and not serves(model):
        raise UsageError(f"polish is {polish}; only looped networks have last steps, and this one is {model.arch}.")
    team = tuple(Member(name, seed + k, rate) for k, (name, rate) in enumerate(zip(tasks, rates, strict=True)))
    lengths = variable_length if isinstance(variable_length, bool) else tuple(variable_length)
    return RunSpec(model, own, team, lengths, precision)


def _check_count(field: str, values: Sequence[object], members: int) -> None:
    if len(values) != members:
        raise UsageError(f"{field} lists {len(values)} values; it must have one for each of the {members} members.")


def train_spec(
    spec: RunSpec,
    device: torch.device,
    folder: Path | None = None,
    save_every: float = 60.0,
    tensorboard: bool = False,
    progress: bool | None = None,
    report: Callable[[int], None] | None = None,
    begin: Run | None = None,
) -> Run:
    """Trains ``spec``, or goes on where its folder stopped; ``report`` gets the number of epochs done, after each.

    ``begin`` is the run that the members of ``spec`` begin with, if they do.
    """
    if not isinstance(save_every, (int, float)) or not save_every >= 0:
        raise UsageError(f"save_every is {save_every!r}; it must be a number of seconds of at least 0.")
    if tensorboard:
        event_writer()
    if folder is not None and _finished(folder, spec):
        return load(folder, device)
    check_precision(spec.model, spec.precision, device)
    check_given(spec, begin)
    started = time.monotonic()
    with ExitStack() as held:
        state = None
        if folder is not None and (folder / "run.json").exists():
            held.enter_context(files.sole_user(folder / "run.json"))
            if _finished(folder, spec):  # by another process, a moment ago
                return load(folder, device)
        with ExitStack() as stack:
            team = [start for member in spec.members for start in member.starts(spec.recipe.starts)]
            trainer = trainer_for(
                spec, spec.recipe, team, device, stack.enter_context(Workers()), only=spec.recipe.only
            )
            if begin is not None:
                trainer.parameters = begun(trainer, begin, spec.recipe.starts)
            # The kernels take the precision themselves, and what is around them stays exact.
            stack.enter_context(Precision("fp32" if trainer.program.kernels else spec.precision, device))
            if folder is not None:
                if not (folder / "run.json").exists():
                    files.write_json(folder / "run.json", spec.to_dict())
                    held.enter_context(files.sole_user(folder / "run.json"))
                files.sweep(folder)
                state = checkpoints.load(folder, spec.digest)
            stop = stack.enter_context(Stop(active=folder is not None))
            if state is not None:
                trainer.load_state_dict(state)
                started -= float(state["seconds"])
            shown = stack.enter_context(Progress(trainer, progress, folder if tensorboard else None, report))
            saved = time.monotonic()
            for _ in trainer.steps():
                shown.update()
                due = time.monotonic() - saved >= save_every
                if folder is not None and (due or stop.asked):
                    _checkpoint(folder, spec, trainer, started)
                    saved = time.monotonic()
                    stop.leave(
                        f"Stopped at epoch {trainer.epoch} of {spec.recipe.epochs}; the same command goes on from there."
                    )
            shown.update()
            if folder is not None and spec.recipe.polish:
                _checkpoint(folder, spec, trainer, started)
                stop.leave("Stopped before the last steps; the same command goes on from there.")
            stop.close()  # the last steps write nothing: a signal may end them at once, and they are then done again
            about = _choose(trainer, spec.recipe.starts) | _polish(trainer, spec.recipe.polish, shown)
        run = _finish(spec, trainer, time.monotonic() - started, about)
        if folder is not None:
            save(folder, run)
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
    given = (spec.model, plan, members, device, workers, spec.variable_length)
    try:
        return kind(*given, precision=spec.precision, **more)
    except (MemoryError, RuntimeError) as error:
        reason = str(error).lower()
        if isinstance(error, MemoryError) or "alloc" in reason or "memory" in reason or "overflow" in reason:
            raise UsageError(
                "the run does not fit in memory; take fewer samples, epochs or members, or a smaller n."
            ) from error
        raise


def _finished(folder: Path, spec: RunSpec) -> bool:
    """Whether the run is in ``folder``, finished. Anything that is not this run's is refused and left alone."""
    described = folder / "run.json"
    if not described.exists():
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"out is {str(folder)!r}, which is not a folder.")
        if folder.exists() and set(folder.iterdir()) - set(files.leftovers(folder)):
            raise UsageError(f"out is {str(folder)!r}, which holds other files; give an empty or a new folder.")
        return False
    before, now = files.read_json(described), json.loads(json.dumps(spec.to_dict()))
    if not isinstance(before, dict):
        raise files.Damaged(f"{described} does not describe a run: it is not an object.")
    if before != now:
        raise UsageError(
            f"out is {str(folder)!r}, which holds another run ({_difference(before, now)}); give another folder."
        )
    return (folder / "weights.json").exists()


def _difference(before: Any, now: Any, path: str = "") -> str:
    """The first place where two descriptions differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now | before:
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"it has {len(before)} {path}, not {len(now)}"
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            if one != other:
                return _difference(one, other, f"{path}[{index}]")
    return f"its {path} is {before}, not {now}"


def _checkpoint(folder: Path, spec: RunSpec, trainer: Trainer, started: float) -> None:
    spent = {"seconds": torch.tensor(time.monotonic() - started)}
    checkpoints.save(folder, spec.digest, trainer.steps_done, trainer.state_dict() | spent)


def _choose(trainer: Trainer, starts: int) -> dict[str, Any]:
    """Keeps, of the starts of every member, the one with the least loss in the last epoch; returns what the run says of it."""
    if starts == 1:
        return {}
    losses = (
        trainer.history[-1, 0]
        .nan_to_num(math.inf, math.inf)
        .masked_fill(~trainer.alive.cpu(), math.inf)
        .view(-1, starts)
    )
    best = losses.argmin(dim=1)
    trainer.keep((starts * torch.arange(len(best)) + best).tolist())
    return {"start": best.tolist(), "start_losses": [_finite(row) for row in losses.tolist()]}


def _polish(trainer: Trainer, steps: int, shown: Progress) -> dict[str, Any]:
    """The last steps of looped networks, if the recipe has any; returns what the run says of them."""
    if not steps or not serves(trainer.config):
        return {}
    x, y = trainer.blocks[-1].x, trainer.blocks[-1].y
    tasks = [task(member.task) for member in trainer.members]
    advance = shown.last_steps(steps * len(tasks))
    shorter = [block.x.shape[-1] for block in trainer.blocks[:-1]]
    trainer.parameters, better = polish(trainer.parameters, x, tasks, steps, trainer.workers, advance, shorter)
    errors = metrics.mean_squared_error(predictor(trainer.parameters)(x[:, :1000]), y[:, :1000])
    return {"polished": better, "train_loss": _finite(errors.tolist())}


def _finish(spec: RunSpec, trainer: Trainer, seconds: float, about: dict[str, Any]) -> Run:
    """The run from a trainer that is done, with the fate of every member."""
    own, predict = [(member.task, member.seed) for member in spec.members], predictor(trainer.parameters)
    x, y = metrics.draw(own, 1000, spec.model.n, 1.0, "validation", device=trainer.device)
    out = predict(x)
    words = out.ndim > y.ndim  # a logit for every word
    # Dead: every ReLU of some layer is off, so the answer is the same whatever the list.
    moved = (out - out.mean(dim=1, keepdim=True)).abs().flatten(1).amax(dim=1)
    dead = moved <= 1e-6 * (1 if words else y.std(dim=(1, 2)))
    samples = max(1000, len(spec.lengths))
    if words:
        errors = surprise(out, y).double().mean(dim=(1, 2)).tolist()
    else:
        score = scores_of(spec.members[0].task)
        errors = score.evaluate(predict, own, spec.lengths, [1.0], samples, "validation", trainer.device)[
            "mse"
        ].tolist()
    status = [
        "diverged" if not alive or not math.isfinite(loss) else "dead" if gone else "ok"
        for alive, loss, gone in zip(trainer.alive.tolist(), errors, dead.tolist(), strict=True)
    ]
    result = {
        "status": status,
        "train_loss": _finite(trainer.history[-1, 0].tolist()),
        "validation_loss": _finite(errors),
        "hardware": hardware(trainer.device),
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
    } | about
    epochs, _, count = trainer.history.shape
    loss, rate = trainer.history[:, 0], trainer.history[:, 1]
    history = pd.DataFrame(
        {
            "epoch": torch.arange(epochs).repeat_interleave(count).numpy(),
            "member": torch.arange(count).repeat(epochs).numpy(),
            "loss": loss.flatten().numpy(),
            "lr": rate.flatten().numpy(),
        }
    )
    return Run(spec, trainer.parameters, result, history)


def _finite(values: list[float]) -> list[float | None]:
    """JSON has no nan or inf: a loss that is neither is None."""
    return [value if math.isfinite(value) else None for value in values]
