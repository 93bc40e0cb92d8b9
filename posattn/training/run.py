"""A run: an ensemble that was trained, and its folder.

runs/sort/run.json               what determines the numbers: model, recipe, members (the run's identity)
runs/sort/checkpoint-*           while training: the newest two states
runs/sort/weights.safetensors    when done: every parameter with a leading member axis; weights.json beside it
runs/sort/history.csv            when done: loss and learning rate of every member and epoch
"""

import platform
import reprlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posattn.errors import UsageError, several
from posattn.model import Transformer
from posattn.tasks import SHIFTS, Task, task
from posattn.training import checkpoints, files, metrics
from posattn.training.network import NetworkConfig
from posattn.training.program import Parameters, Precision, Program
from posattn.training.recipe import Recipe
from posattn.training.scores import ROW_NAMES, row_metrics, scores_of
from posattn.training.spec import RunSpec
from posattn.training.trainer import Member
from posattn.training.workers import Workers


class Run:
    """A trained ensemble. ``status`` says of each member whether it is ``ok``, ``diverged`` or ``dead``."""

    def __init__(self, spec: RunSpec, parameters: Parameters, result: dict[str, Any], history: pd.DataFrame):
        self.spec, self.parameters, self.result, self.history = spec, parameters, result, history

    @classmethod
    def of(cls, model: Transformer, task: str, seed: int = 0) -> "Run":
        """A network from elsewhere as a run of one member, to be tested as those trained here, on the lists of that seed."""
        plan, named = Recipe(), {name: value.detach()[None] for name, value in model.named_parameters()}
        spec = RunSpec(model.config, plan, (Member(task, seed, plan.lr),))
        return cls(spec, Parameters.of(model.config, named), {"status": ["ok"]}, pd.DataFrame())

    @property
    def status(self) -> list[str]:
        return list(self.result["status"])

    def __len__(self) -> int:
        return len(self.spec.members)

    def model(self, member: int = 0) -> nn.Module:
        """One member as a plain ``nn.Module``."""
        self.check_member(member)
        return self.parameters.model(member).eval()

    def check_member(self, member: int) -> None:
        if not 0 <= member < len(self):
            raise UsageError(f"member is {member}; this run has members 0 to {len(self) - 1}.")

    @property
    def kept(self) -> list[Member]:
        """The members with the seeds of the starts kept, by which their initial weights and training lists were drawn."""
        starts = self.result.get("start", [0] * len(self))
        return [member.starts(start + 1)[start] for member, start in zip(self.spec.members, starts, strict=True)]

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(member.task for member in self.spec.members))
        return f"Run({tasks}; {self.spec.model.arch}, n={self.spec.model.n}, {len(self)} members)"

    def predict(self, x: Shaped[Tensor, "*batch k"] | Sequence[Any]) -> Float[Tensor, "M *answers"]:
        """Every member's answer to the same lists, which may be plain Python lists; tokens as their task gives them.

        Numbers must be finite. A network itself, ``model(x)``, does not look: of inf or nan it makes nan, as PyTorch does.
        """
        kind = torch.int64 if self.task.LOSS == "cross-entropy" else torch.float32
        x = as_tensor(x, kind, self.device)
        if not bool(x.isfinite().all()):
            raise UsageError(f"x has {x[~x.isfinite()][0].item():g}; it must be numbers up to 3e38.")
        with torch.no_grad():
            return torch.stack([self.model(member)(x) for member in range(len(self))])

    @property
    def task(self) -> Task:
        """The first member's task; all are of one kind."""
        return task(self.spec.members[0].task)

    @property
    def device(self) -> torch.device:
        return self.parameters.flat.device

    @property
    def kind(self) -> str:
        """What tables call the networks."""
        return self.spec.model.arch

    def as_input(self, values: list[float]) -> Float[Tensor, " k"]:
        """A list of numbers as the networks take it."""
        return torch.tensor(values, device=self.device)

    def answer(self, x: Shaped[Tensor, "*batch k"], member: int = 0) -> Float[Tensor, "*answers"]:
        """One member's answer to what its task gives."""
        model = self.model(member)
        with torch.no_grad():
            return model(x.to(self.device)).cpu()

    def examples(self) -> Tensor | None:
        """Lists to check an exported network with, where random ones will not do."""
        return None

    def truth(self, x: Float[Tensor, "*batch k"], member: int = 0) -> Float[Tensor, "*batch k"]:
        """The right answers to the task of a member."""
        return task(self.spec.members[member].task).target(x)

    @property
    def reads_tokens(self) -> bool:
        return self.task.TOKENS != "none"

    def evaluate(self, scales: Iterable[float] | None = None, samples: int = 1000, split: str = "test") -> pd.DataFrame:
        """One row a member and scale: ``mse``, ``mse/c²``, ``rounding`` and ``closeness`` accuracy, and ``status``.

        Tasks of tokens have metrics of their own (``posattn.training.scores``). Scales are 1 to 10 by default, or the task's.
        """
        device, factors = self.parameters.flat.device, self.task.SCALES if scales is None else several("scales", scales)
        predict, score = predictor(self.parameters), scores_of(self.task.name)
        members = self._members(split)
        return self._named(score.evaluate(predict, members, self.spec.lengths, factors, samples, split, device))

    def evaluate_lengths(
        self, lengths: Iterable[int], scales: Iterable[float] = (1.0, 10.0), samples: int = 1000, split: str = "test"
    ) -> pd.DataFrame:
        """One row a member, length and scale: ``mse``, ``relative_square`` (mse over mean square answer), ``closeness``."""
        if not getattr(self.spec.model, "any_length", False):
            raise UsageError(f"the {self.kind} network is for lists of up to {self.spec.model.n} numbers only.")
        given = (
            self._members(split),
            several("lengths", lengths),
            several("scales", scales),
            samples,
            split,
            self.device,
        )
        return self._named(metrics.evaluate_lengths(predictor(self.parameters), *given))

    def evaluate_shifts(self, names: Iterable[str] = tuple(SHIFTS), samples: int = 1000) -> pd.DataFrame:
        """One row a member and distribution: ``mse``, ``relative`` error, ``closeness`` accuracy, and ``status``."""
        self._refuse_tokens()
        device = self.parameters.flat.device
        predict, members = predictor(self.parameters), self._members("test")
        return self._named(metrics.evaluate_shifts(predict, members, self.spec.lengths, names, samples, device))

    def _refuse_tokens(self) -> None:
        if self.task.TOKENS != "none":
            raise UsageError(f"the task {self.task.name} has no lists of numbers, of which other distributions are.")

    def _members(self, split: str) -> list[tuple[str, int]]:
        """The task and the seed of every member's lists: of split ``train`` those that it was trained on."""
        return [(member.task, member.seed) for member in (self.kept if split == "train" else self.spec.members)]

    def _named(self, table: pd.DataFrame) -> pd.DataFrame:
        """With every member's own seed, and status."""
        rows = list(table["member"])
        return table.assign(
            seed=[self.spec.members[row].seed for row in rows], status=[self.status[row] for row in rows]
        )

    def rows(self, table: pd.DataFrame, experiment: str = "", split: str = "test") -> pd.DataFrame:
        """A table of ``evaluate`` as result rows: one a member, scale and metric, with the settings beside each."""
        name = self.task.name
        kept = table.rename(columns=ROW_NAMES)
        own = kept.melt(["member", "scale", *scores_of(name).by], row_metrics(name), "metric", "value")
        return self.described(own, experiment, split)

    def described(self, values: pd.DataFrame, experiment: str = "", split: str = "test") -> pd.DataFrame:
        """Result rows from ``values``, whose columns are member, scale, metric, value and any of its own."""
        model, spec = self.spec.model, self.spec
        members, status = [spec.members[member] for member in values["member"]], self.status
        own: tuple[str, ...] = getattr(model, "COLUMNS", ())  # what only this kind of network has
        extra = [column for column in values if column not in (*ROW_COLUMNS, "member")]
        settings = {
            "experiment": experiment,
            "run": [spec.identity(member) for member in values["member"]],
            "task": [member.task for member in members],
            "arch": model.arch,
            "n": model.n,
            "samples": spec.recipe.samples,
            **{field: getattr(model, field, None) for field in ("layers", "width", "encoding", *own)},
            "recipe": spec.recipe.name,
            "precision": spec.precision,
            "epochs": spec.recipe.epochs,
            "batch": spec.recipe.batch,
            "lr": [member.lr for member in members],
            "seed": [member.seed for member in members],
            "split": split,
            "domain": ["ood" if scale > 1 else "id" for scale in values["scale"]],
            "status": [status[member] for member in values["member"]],
        }
        given = {name: value for name, value in settings.items() if name not in values}
        return values.assign(**given)[[*ROW_COLUMNS, *own, *extra]]


def as_tensor(x: object, kind: torch.dtype, device: torch.device) -> Tensor:
    """A tensor, or plain lists, as one of ``kind``."""
    try:
        return torch.as_tensor(x, dtype=kind, device=device)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"x is {reprlib.repr(x)}; it must be a tensor, or numbers in lists of one length.") from error


ROW_COLUMNS = (
    *("experiment", "run", "task", "arch", "n", "samples", "layers", "width", "encoding", "recipe", "precision"),
    *("epochs", "batch", "lr", "seed", "split", "domain", "scale", "metric", "value", "status"),
)


_TILE = 5000  # lists, of up to
_SHORT = 64  # numbers


def _tile(config: NetworkConfig, n: int) -> int:
    """Lists that take as much memory as ``_TILE`` short ones: attention matrices grow with n², everything else with n."""
    longer = max(1.0, n / _SHORT)
    return max(1, int(_TILE / (longer if getattr(config, "family", None) else longer**2)))


def predictor(parameters: Parameters) -> metrics.Predict:
    """Outputs of all members, each on lists of its own, in float32 whatever the training's precision."""
    device, members = parameters.flat.device, len(parameters.flat)
    program = Program(parameters.config, device)
    groups = [slice(k, k + 1) for k in range(members)] if device.type == "cpu" else [slice(0, members)]

    def predict(x: Shaped[Tensor, "M b k"]) -> Float[Tensor, "M b *out"]:
        def part(group: slice) -> Tensor:
            with torch.no_grad():
                prepared = program.prepare(parameters, group, x.shape[-1]).tensors
                tile = _tile(parameters.config, x.shape[-1])
                # In tiles, which bounds the memory of large tests.
                return torch.cat([program.predict(prepared, tile) for tile in x[group].split(tile, dim=1)], dim=1)

        with Workers() as workers, Precision("fp32", device):
            return torch.cat(workers.map(part, groups))

    return predict


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


def hardware(device: torch.device) -> str:
    """The device in words, for results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def save(folder: Path, run: Run) -> None:
    history = run.history.to_csv(index=False).encode()
    files.write(folder / "history.csv", history)
    described = run.result | {"run": run.spec.digest, "history_sha256": files.sha256(history)}
    weights = {name: value.cpu() for name, value in run.parameters.named().items()}
    files.save_tensors(folder / "weights.safetensors", weights, described)
    checkpoints.clear(folder)


def load(path: str | Path, device: str | torch.device | None = "cpu") -> Run:
    """The finished run in a folder."""
    folder, place = Path(path), pick_device(device)
    if folder.is_file():
        files.refuse_pickle(folder)
        raise UsageError(f"{folder} is a file; give the run's folder.")
    if not folder.exists():
        raise UsageError(f"there is no folder {folder}; give that of a run.")
    if not (folder / "run.json").exists():
        raise UsageError(f"{folder} holds no run: it has no run.json.")
    content = files.read_json(folder / "run.json")
    try:
        spec = RunSpec.from_dict(content)
    except UsageError as error:
        raise files.Damaged(f"{folder / 'run.json'} does not describe a run: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise files.Damaged(f"{folder / 'run.json'} does not describe a run.") from error
    if not (folder / "weights.json").exists():
        raise UsageError(f"the run in {folder} is not finished; the train command that began it goes on with it.")
    weights, history = folder / "weights.safetensors", folder / "history.csv"
    named, result = files.load_tensors(weights)
    if result.pop("run", None) != spec.digest:
        raise files.Damaged(f"{weights} belongs to another run than {folder / 'run.json'}.")
    table = pd.read_csv(BytesIO(files.read_checked(history, result.pop("history_sha256", None))))
    return Run(spec, Parameters.of(spec.model, {name: value.to(place) for name, value in named.items()}), result, table)
