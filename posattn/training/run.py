"""A trained ensemble: what it answers, and its folder."""

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posattn.encodings import encoding_of_own
from posattn.errors import UsageError, counted, instance
from posattn.files import Damaged, read_json
from posattn.metrics import Predict
from posattn.network import NetworkConfig
from posattn.run_folder import RunFolder
from posattn.runs import AnyRun, load, tile
from posattn.tasks.own import answers_of_own
from posattn.training.parameters import Parameters
from posattn.training.recipe import Recipe
from posattn.training.spec import RunSpec
from posattn.training.trainer import Member, units
from posattn.training.ways import Precision, way_for
from posattn.training.workers import Workers


class Run(AnyRun):
    """A trained ensemble, one network or several."""

    def __init__(
        self, spec: RunSpec, parameters: Parameters, result: dict[str, Any], history: pd.DataFrame,
        folder: RunFolder | None = None,
    ):  # fmt: skip
        members = [(member.task, member.seed) for member in spec.members]
        super().__init__(spec.model.arch, spec.model, members, spec.lengths, result["status"], parameters.flat.device)
        self.spec, self.parameters, self.result, self.history = spec, parameters, result, history
        self.folder = folder

    @classmethod
    def of(cls, model: nn.Module, task: str, seed: int = 0, members: int = 1) -> "Run":
        """A network from elsewhere as a run whose members are all like it, to be tested on the lists of ``seed``."""
        plan, config = Recipe(), instance("model", getattr(model, "config", model), NetworkConfig, "a Transformer")
        spec = RunSpec(config, plan, (Member(task, seed, plan.lr),) * members)
        own = Parameters.of(config, {name: value.detach()[None] for name, value in model.named_parameters()})
        parameters = Parameters(config, own.flat.repeat(members, 1))
        return cls(spec, parameters, {"status": ["ok"] * members}, pd.DataFrame())

    @property
    def best_starts(self) -> list[Member]:
        """Per member the start that was kept: its seed drew the initial weights and the training lists."""
        starts = self.result.get("start", [0] * len(self))
        return [member.starts(start + 1)[start] for member, start in zip(self.spec.members, starts, strict=True)]

    def model(self, member: int = 0) -> nn.Module:
        self.check_member(member)
        return self.parameters.model(member).eval()

    def _given(self, x: object) -> Tensor:
        """Also warns if the lists are shorter than any that the networks were trained on."""
        given = super()._given(x)
        if reason := self.too_short(given.shape[-1] if given.ndim else 0):
            warnings.warn(f"{reason}.", stacklevel=3)
        return given

    def too_short(self, length: int) -> str | None:
        takes_shorter = self.spec.variable_length or self.reads_tokens or self.config.any_length
        if takes_shorter or not 0 < length < self.config.n:
            return None
        return f"the list has {counted(length, 'number')}; this network was trained on {self.config.n} only"

    def check_functions(self, names: Iterable[str]) -> None:
        if self.folder is not None:
            answers = partial(answers_of_own, names, self.spec.model.n, self.device)
            self.folder.knows(answers, f"run is {str(self.folder)!r}", "register the one that they learn")

    def _predict(self) -> Predict:
        return predictor(self.parameters)

    def _tested(self, split: str) -> Sequence[tuple[str, int]]:
        """For split ``train`` the seeds of the lists that the members were trained on."""
        return [(start.task, start.seed) for start in self.best_starts] if split == "train" else self.members

    def _settings(self, members: list[int]) -> dict[str, Any]:
        spec = self.spec
        plan = {field: getattr(spec.recipe, field) for field in ("samples", "epochs", "batch")}
        plan |= {"arch": spec.model.arch, "recipe": spec.recipe.name, "precision": spec.precision}
        own = {"run": [spec.identity(member) for member in members], "lr": [spec.members[k].lr for k in members]}
        return plan | own

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(member.task for member in self.members))
        return f"Run({tasks}; {self.kind}, n={self.config.n}, {counted(len(self), 'member')})"


def predictor(parameters: Parameters) -> Predict:
    """A function from every member's own lists to their outputs, in float32 whatever the training's precision."""
    config, device = parameters.config, parameters.flat.device
    way = way_for(config, device)

    def predict(x: Shaped[Tensor, "M b k"]) -> Float[Tensor, "M b *out"]:
        most = tile(config, x.shape[-1])

        def part(group: slice) -> Tensor:
            with torch.no_grad():
                prepared = way.prepare(parameters, group, x.shape[-1]).tensors
                return torch.cat([way.predict(prepared, lists) for lists in x[group].split(most, dim=1)], dim=1)

        with Workers() as workers, Precision("fp32", device):
            return torch.cat(workers.map(part, units(len(parameters.flat), device)))

    return predict


def save(folder: RunFolder, run: Run) -> None:
    weights = {name: value.cpu() for name, value in run.parameters.named().items()}
    folder.save(run.spec, weights, run.result, run.history.to_csv(index=False).encode())


def read_spec(folder: RunFolder) -> RunSpec:
    """What determines the numbers of the run in a folder, finished or not."""
    content = read_json(folder.run)
    try:
        return RunSpec.from_dict(content)
    except UsageError as error:  # such as a network or an encoding that someone else's file defines
        hint = "If a file of your own defines that, run it first, or give it as --task-file."
        raise UsageError(f"{folder.run} cannot be read: {error} {hint}") from error
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Damaged(f"{folder.run} does not describe a run.") from error


def history_table(history: Float[Tensor, "epochs 2 M"]) -> pd.DataFrame:
    """The loss and learning rate of every epoch and member."""
    epochs, _, count = history.shape
    places = pd.MultiIndex.from_product([range(epochs), range(count)], names=["epoch", "member"])
    return pd.DataFrame(history.transpose(1, 2).flatten(0, 1).numpy(), places, ["loss", "lr"]).reset_index()


def losses_of_starts(
    history: Float[Tensor, "epochs 2 networks"], alive: Shaped[Tensor, " networks"], starts: int
) -> Float[Tensor, "M starts"]:
    """Every start's loss in the last epoch; inf for those that diverged."""
    return history[-1, 0].nan_to_num(math.inf, math.inf).masked_fill(~alive, math.inf).view(-1, starts)


def finite(values: list[float]) -> list[float | None]:
    """The values for JSON, which has no nan and inf: None stands for these."""
    return [value if math.isfinite(value) else None for value in values]


def read_run(folder: RunFolder, device: torch.device) -> Run:
    """The run in a folder. If it is not finished, its last checkpoint answers, with a warning."""
    spec = read_spec(folder)
    known = f"run is {str(folder)!r}", "register the one that they read"
    folder.knows(partial(encoding_of_own, spec.model), *known)
    if not folder.finished:
        return _unfinished(folder, spec, device)
    weights, result, history = folder.read(spec)
    blank, members = Parameters.initial(spec.model, [0], torch.device("cpu")), len(spec.members)
    shapes = {name: (members, *shape) for name, shape in blank.shapes.items()}
    types = {value.dtype for value in weights.values()}
    if {name: tuple(value.shape) for name, value in weights.items()} != shapes or types != {blank.flat.dtype}:
        raise Damaged(f"{folder.weights} does not fit the network that {folder.run} describes.")
    for name in ("status", "train_loss", "validation_loss"):
        if not isinstance(result.get(name), list) or len(result[name]) != members:
            raise Damaged(f"{folder.about} does not describe a run: it lacks the {name} of every member.")
    parameters = Parameters.of(spec.model, {name: value.to(device) for name, value in weights.items()})
    try:
        return Run(spec, parameters, result, pd.read_csv(BytesIO(history)), folder)
    except ValueError as error:
        raise Damaged(f"{folder.history} is damaged: it is not a table.") from error


def _unfinished(folder: RunFolder, spec: RunSpec, device: torch.device) -> Run:
    """The run as its last checkpoint has it: per member the start that is best so far."""
    members, starts = len(spec.members), spec.recipe.starts
    size = Parameters.initial(spec.model, [0], torch.device("cpu")).flat.shape[1]

    def fits(state: dict[str, Tensor]) -> bool:
        rows = members * starts
        wanted = {"parameters": (torch.float32, (rows, size)), "alive": (torch.bool, (rows,))}
        wanted["history"] = (torch.float32, (*state["history"].shape[:1], 2, rows) if "history" in state else ())
        return all(name in state and (state[name].dtype, state[name].shape) == own for name, own in wanted.items())

    state = folder.load_checkpoint(spec, fits, keep=True)
    if state is None and folder.finished:  # since it was looked at
        return read_run(folder, device)
    if state is None:
        missing = f"the run in {folder} is not finished, and has no checkpoint to answer from"
        raise UsageError(f"{missing}; the train command that began it ends it.")
    history, alive, rows = state["history"], state["alive"], torch.arange(members) * starts
    chosen = losses_of_starts(history, alive, starts).argmin(dim=1) if len(history) else torch.zeros_like(rows)
    rows += chosen
    place = f"epoch {len(history)} of {spec.recipe.epochs}"
    result = {
        "status": ["unfinished" if lives else "diverged" for lives in alive[rows].tolist()],
        "train_loss": finite(history[-1, 0, rows].tolist()) if len(history) else [None] * members,
        "validation_loss": [None] * members,
        "start": chosen.tolist(),
        "unfinished": place,
    }
    warnings.warn(f"the run in {folder} is unfinished: its last checkpoint, at {place}, answers.", stacklevel=2)
    parameters = Parameters(spec.model, state["parameters"][rows].to(device))
    return Run(spec, parameters, result, history_table(history[:, :, rows]), folder)


def trained(run: object, field: str = "run") -> Run:
    """A trained run, given as such or by its folder; raises for anything else, naming ``field``."""
    found = load(run) if isinstance(run, (str, Path)) else run
    if isinstance(found, Run):
        return found
    what = f"the {found.kind}, which was not trained" if isinstance(found, AnyRun) else f"a {type(found).__name__}"
    raise UsageError(f"{field} is {what}; it must be a trained run, or the folder of one.")
