"""A run: an ensemble that was trained, or is being trained, and its folder.

runs/sort/run.json               what determines the numbers: model, recipe, members (the run's identity)
runs/sort/checkpoint-*           while training: the newest two states
runs/sort/weights.safetensors    when done: every parameter with a leading member axis; weights.json beside it
runs/sort/history.csv            when done: loss and learning rate of every member and epoch
"""

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import UsageError, choice, whole
from posattn.model import ModelConfig, Transformer
from posattn.tasks import task
from posattn.training import checkpoints, files, metrics
from posattn.training.program import Parameters, Program
from posattn.training.progress import Progress, Stop
from posattn.training.recipe import Recipe, recipe
from posattn.training.trainer import Member, Trainer
from posattn.training.workers import Workers

PRECISIONS = ("fp32", "tf32")
_FORMAT = 1


@dataclass(frozen=True)
class RunSpec:
    """What determines an ensemble's numbers, and nothing else."""

    model: ModelConfig
    recipe: Recipe
    members: tuple[Member, ...]
    variable_length: bool = False
    precision: str = "fp32"

    def __post_init__(self) -> None:
        choice("precision", self.precision, PRECISIONS)
        for member in self.members:
            task(member.task)

    def to_dict(self) -> dict[str, Any]:
        return {"format": _FORMAT} | asdict(self) | {"members": [asdict(member) for member in self.members]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "RunSpec":
        fields = dict(content)
        if fields.pop("format", None) != _FORMAT:
            raise UsageError(f"the run's format is {content.get('format')!r}; this version reads format {_FORMAT}.")
        fields["model"] = ModelConfig(**fields["model"])
        fields["recipe"] = Recipe(**fields["recipe"])
        fields["members"] = tuple(Member(**member) for member in fields["members"])
        return cls(**fields)

    def identity(self, member: int) -> str:
        """A name for one member's numbers: equal for equal settings, whatever it was trained beside."""
        alone = self.to_dict() | {"members": [asdict(self.members[member])]}
        return hashlib.sha256(json.dumps(alone, sort_keys=True).encode()).hexdigest()[:16]


class Run:
    """A trained ensemble. ``status`` says of each member whether it is ``ok``, ``diverged`` or ``dead``."""

    def __init__(self, spec: RunSpec, parameters: Parameters, result: dict[str, Any], history: pd.DataFrame):
        self.spec, self.parameters, self.result, self.history = spec, parameters, result, history

    @property
    def status(self) -> list[str]:
        return list(self.result["status"])

    def __len__(self) -> int:
        return len(self.spec.members)

    def model(self, member: int = 0) -> Transformer:
        """One member as a plain ``nn.Module``."""
        if not 0 <= member < len(self):
            raise UsageError(f"member is {member}; this run has members 0 to {len(self) - 1}.")
        return self.parameters.model(member).eval()

    def predict(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "M *batch k"]:
        """Every member's answer to the same lists."""
        with torch.no_grad():
            return torch.stack([self.model(member)(x) for member in range(len(self))])

    def evaluate(
        self, scales: Iterable[float] = range(1, 11), samples: int = 1000, split: str = "test"
    ) -> pd.DataFrame:
        """One row a member and scale: ``mse``, ``mse/c²``, ``rounding`` and ``closeness`` accuracy, and ``status``."""
        own = [(member.task, member.seed) for member in self.spec.members]
        device = self.parameters.flat.device
        table = metrics.evaluate(_predictor(self.parameters), own, self.spec.model.n, scales, samples, split, device)
        return table.assign(status=[self.status[member] for member in table["member"]])

    def rows(self, table: pd.DataFrame, experiment: str = "", split: str = "test") -> pd.DataFrame:
        """A table of ``evaluate`` as result rows: one a member, scale and metric, with the settings beside each."""
        model, spec = self.spec.model, self.spec
        kept = table.rename(columns={"mse/c²": "mse_over_c2"})
        long = kept.melt(
            ["member", "task", "seed", "scale", "status"],
            ["mse", "mse_over_c2", "rounding", "closeness"],
            "metric",
            "value",
        )
        long["run"] = [spec.identity(member) for member in long["member"]]
        long["domain"] = ["ood" if scale > 1 else "id" for scale in long["scale"]]
        settings = {
            "experiment": experiment,
            "arch": model.arch,
            "n": model.n,
            "samples": spec.recipe.samples,
            "layers": model.layers,
            "width": model.width,
            "encoding": model.encoding,
            "recipe": spec.recipe.name,
            "precision": spec.precision,
            "split": split,
        }
        return long.assign(**settings)[list(ROW_COLUMNS)]


ROW_COLUMNS = (
    *("experiment", "run", "task", "arch", "n", "samples", "layers", "width", "encoding", "recipe", "precision"),
    *("seed", "split", "domain", "scale", "metric", "value", "status"),
)


def _predictor(parameters: Parameters) -> metrics.Predict:
    """Outputs of all members, each on lists of its own, in float32 whatever the training's precision."""
    device = parameters.flat.device
    program = Program(parameters.config, device)

    def predict(x: Float[Tensor, "M b k"]) -> Float[Tensor, "M b k"]:
        with torch.no_grad(), Precision("fp32"):
            out = []
            for member in range(len(x)) if device.type == "cpu" else [slice(None)]:
                group = slice(member, member + 1) if isinstance(member, int) else member
                prepared = program.prepare(program.leaves(parameters, group), x.shape[-1])
                out.append(program.predict(prepared, x[group]))
            return torch.cat(out)

    return predict


class Precision:
    """Float32 products on a GPU in full (``fp32``) or in TensorFloat-32 (``tf32``), while open."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self._before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.name == "tf32"

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self._before


def pick_device(name: str | torch.device | None) -> torch.device:
    """``cpu`` or ``cuda``; by default a GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {str(name)!r}; it must be cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda'; this machine has no GPU that PyTorch can use, so give cpu.")
    return device


def train(
    task: str | Sequence[str],
    config: ModelConfig | None = None,
    *,
    members: int = 1,
    samples: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | Sequence[float] | None = None,
    recipe: str | Recipe = "paper",
    seed: int = 0,
    variable_length: bool = False,
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
        config: the network; the paper's positional Transformer for lists of 8 by default.
        samples, epochs, batch: in place of the recipe's.
        lr: in place of the recipe's, for all members or one for each.
        recipe: ``paper``, ``tuned`` or a :class:`Recipe`.
        variable_length: train on lists of 1 to n numbers, equally often, each batch of one length.
        device: ``cpu`` or ``cuda``; a GPU if there is one.
        precision: ``fp32``, or ``tf32`` on a GPU. Evaluation is always in fp32.
        save_every: seconds between checkpoints.
        tensorboard: also write TensorBoard events into the folder.
        progress: show a progress bar; by default if standard error is a terminal.
    """
    spec = _spec(task, config, members, samples, epochs, batch, lr, recipe, seed, variable_length, precision)
    place = pick_device(device)
    if spec.precision == "tf32" and place.type == "cpu":
        raise UsageError("precision is 'tf32', which only a GPU has; on the CPU it must be fp32.")
    if tensorboard and out is None:
        raise UsageError("tensorboard is on and out is not given; events need a folder.")
    return train_spec(spec, place, None if out is None else Path(out), save_every, tensorboard, progress)


def _spec(
    names: str | Sequence[str],
    config: ModelConfig | None,
    members: int,
    samples: int | None,
    epochs: int | None,
    batch: int | None,
    lr: float | Sequence[float] | None,
    base: str | Recipe,
    seed: int,
    variable_length: bool,
    precision: str,
) -> RunSpec:
    whole("members", members)
    whole("seed", seed, least=0)
    one_rate = None if isinstance(lr, Sequence) else lr
    own = recipe(base, samples=samples, epochs=epochs, batch=batch, lr=one_rate)
    rates = [recipe(own, lr=rate).lr for rate in lr] if isinstance(lr, Sequence) else [own.lr] * members
    tasks = [names] * members if isinstance(names, str) else list(names)
    for field, values in (("lr", rates), ("task", tasks)):
        if len(values) != members:
            raise UsageError(f"{field} lists {len(values)} values; it must have one for each of the {members} members.")
    model = ModelConfig(n=8) if config is None else config
    team = tuple(Member(name, seed + k, rate) for k, (name, rate) in enumerate(zip(tasks, rates, strict=True)))
    return RunSpec(model, own, team, variable_length, precision)


def train_spec(
    spec: RunSpec,
    device: torch.device,
    folder: Path | None = None,
    save_every: float = 60.0,
    tensorboard: bool = False,
    progress: bool | None = None,
) -> Run:
    """Trains ``spec``, or goes on where its folder stopped."""
    if folder is not None and _claim(folder, spec):
        return load(folder, device)
    started = time.monotonic()
    with ExitStack() as stack:
        workers = stack.enter_context(Workers())
        stack.enter_context(Precision(spec.precision))
        trainer = Trainer(spec.model, spec.recipe, spec.members, device, workers, spec.variable_length)
        stop = stack.enter_context(Stop(active=folder is not None))
        state = None if folder is None else checkpoints.load(folder)
        if state is not None:
            trainer.load_state_dict(state)
        shown = stack.enter_context(Progress(trainer, progress, folder if tensorboard else None))
        saved = time.monotonic()
        for _ in trainer.steps():
            shown.update()
            due = time.monotonic() - saved >= save_every
            if folder is not None and (due or stop.asked):
                checkpoints.save(folder, trainer.steps_done, trainer.state_dict())
                saved = time.monotonic()
                stop.leave(
                    f"Stopped at epoch {trainer.epoch} of {spec.recipe.epochs}; the same command goes on from there."
                )
        shown.finish()
    run = _finish(spec, trainer, time.monotonic() - started)
    if folder is not None:
        _save(folder, run)
    return run


def _claim(folder: Path, spec: RunSpec) -> bool:
    """Makes ``folder`` the folder of ``spec``. True if the run is in it already, finished."""
    described = folder / "run.json"
    if not described.exists():
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"out is {str(folder)!r}, which is not a folder.")
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"out is {str(folder)!r}, which holds other files; give an empty or a new folder.")
        files.write_json(described, spec.to_dict())
        return False
    before, now = files.read_json(described), json.loads(json.dumps(spec.to_dict()))
    if before != now:
        raise UsageError(
            f"out is {str(folder)!r}, which holds another run ({_difference(before, now)}); give another folder."
        )
    return (folder / "weights.json").exists()


def _difference(before: Any, now: Any, path: str = "") -> str:
    """The first place where two descriptions differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now:
            if before.get(key) != now[key]:
                return _difference(before.get(key), now[key], f"{path}.{key}" if path else key)
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"it has {len(before)} {path}, not {len(now)}"
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            if one != other:
                return _difference(one, other, f"{path}[{index}]")
    return f"its {path} is {before}, not {now}"


def _finish(spec: RunSpec, trainer: Trainer, seconds: float) -> Run:
    """The run from a trainer that is done, with the fate of every member."""
    validation = [
        task(member.task).sample(1000, spec.model.n, seed=member.seed, split="validation") for member in spec.members
    ]
    x = torch.stack([x for x, _ in validation]).to(trainer.device)
    y = torch.stack([y for _, y in validation]).to(trainer.device)
    out = _predictor(trainer.parameters)(x)
    # Dead: every ReLU of some layer is off, so the answer is the same whatever the list.
    dead = (out - out.mean(dim=1, keepdim=True)).abs().amax(dim=(1, 2)) <= 1e-6 * y.std(dim=(1, 2))
    status = [
        "diverged" if not alive else "dead" if gone else "ok"
        for alive, gone in zip(trainer.alive.tolist(), dead.tolist(), strict=True)
    ]
    result = {
        "status": status,
        "train_loss": trainer.history[-1, 0].tolist(),
        "validation_loss": metrics.mean_squared_error(out, y).tolist(),
        "hardware": hardware(trainer.device),
        "torch": torch.__version__,
        "seconds_since_last_start": round(seconds, 1),
    }
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


def hardware(device: torch.device) -> str:
    """The device in words, for results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def _save(folder: Path, run: Run) -> None:
    files.write(folder / "history.csv", run.history.to_csv(index=False).encode())
    weights = {name: value.cpu() for name, value in run.parameters.named().items()}
    files.save_tensors(folder / "weights.safetensors", weights, run.result)
    checkpoints.clear(folder)


def load(path: str | Path, device: str | torch.device | None = "cpu") -> Run:
    """The finished run in a folder."""
    folder, place = Path(path), pick_device(device)
    if folder.is_file():
        files.refuse_pickle(folder)
        raise UsageError(f"{folder} is a file; give the run's folder.")
    if not (folder / "run.json").exists():
        raise UsageError(f"{folder} holds no run: it has no run.json.")
    try:
        spec = RunSpec.from_dict(files.read_json(folder / "run.json"))
    except (KeyError, TypeError, AttributeError) as error:
        raise files.Damaged(f"{folder / 'run.json'} is damaged: it does not describe a run.") from error
    if not (folder / "weights.json").exists():
        raise UsageError(f"the run in {folder} is not finished; the train command that began it goes on with it.")
    named, result = files.load_tensors(folder / "weights.safetensors")
    parameters = Parameters.of(spec.model, {name: value.to(place) for name, value in named.items()})
    return Run(spec, parameters, result, pd.read_csv(folder / "history.csv"))
