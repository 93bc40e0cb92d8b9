"""Compiled programs in folders, which commands take like those of trained runs.

runs/sorter/program.json           which program, for how many machines, with which bound and ε
runs/sorter/weights.safetensors    the network; weights.json beside it
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.compiling import Compilation
from posattn.compiler.letters import answer_letters
from posattn.compiler.library import PROGRAMS
from posattn.compiler.pcoc_to_weights import blank_transformer
from posattn.compiler.selection import SelectionNetwork
from posattn.errors import UsageError
from posattn.model import Transformer
from posattn.network import from_dict
from posattn.tasks import SHIFTS
from posattn.training import Run, files, metrics, pick_device
from posattn.training import load as load_trained
from posattn.training.run import ROW_COLUMNS, as_tensor
from posattn.training.scores import scores_of

_FILE = "program.json"
_FORMAT = 1


@dataclass(frozen=True)
class _Member:
    """As a trained run's member: what it answers. The task of a program that is no task is its name."""

    task: str
    seed: int = 0


@dataclass(frozen=True)
class _Spec:
    """What commands ask of a run's specification."""

    model: CompiledConfig
    members: tuple[_Member, ...]
    program: str
    length: int  # of the task's lists or sequences
    variable_length: bool = False

    @property
    def lengths(self) -> range:
        return range(self.length, self.length + 1)


class CompiledRun(Run):
    """A compiled program, with the methods of a trained run of one member; it answers in float64."""

    spec: Any
    network: Any  # a Transformer, or a SelectionNetwork that computes the same

    def __init__(self, program: str, network: Transformer | SelectionNetwork):
        row = PROGRAMS.get(program)
        answers = program if row is None or row.task is None else row.task
        self.network, self.program = network, row
        # A sequence of tokens begins with the hop count, which every machine is given.
        self.spec = _Spec(network.config, (_Member(answers),), program, network.config.n + self.reads_tokens)
        self.result = {"status": ["ok"]}
        self.history = pd.DataFrame()

    @property
    def device(self) -> torch.device:
        return self.network.P.device if isinstance(self.network, Transformer) else torch.device("cpu")

    @property
    def kind(self) -> str:
        return f"compiled {self.spec.program}"

    def as_input(self, values: list[float]) -> Tensor:
        """Machine after machine, each with all of its inputs."""
        n, c = self.network.config.n, self.network.config.inputs
        if len(values) != n * c:
            each = "" if c == 1 else f", {c} for each of {n} machines"
            raise UsageError(f"the list has {len(values)} numbers; this compiled program takes {n * c}{each}.")
        x = torch.tensor(values, dtype=torch.float64, device=self.device)
        return x if c == 1 else x.view(n, c)

    def check_member(self, member: int) -> None:
        if member != 0:
            raise UsageError(f"member is {member}; a compiled program has member 0 only.")

    def model(self, member: int = 0) -> nn.Module:
        self.check_member(member)
        if not isinstance(self.network, Transformer):
            raise UsageError(f"{self.spec.program} is here without its large matrices; it is no Transformer.")
        return self.network

    def predict(self, x: Any) -> Tensor:
        given = as_tensor(x, torch.int64 if self.reads_tokens else torch.float64, self.device)
        if self.reads_tokens and given.shape[-1:] != (self.spec.length,):
            found = given.shape[-1] if given.ndim else "no"
            raise UsageError(f"the sequence has {found} tokens; this compiled program takes {self.spec.length}.")
        with torch.no_grad():
            return (answer_letters(self.network, given) if self.reads_tokens else self.network(given))[None]

    def answer(self, x: Tensor, member: int = 0) -> Tensor:
        self.check_member(member)
        return self.predict(x)[0].cpu()

    def examples(self) -> Tensor | None:
        """Inputs that the program answers, for one of the library: random ones may break its rules."""
        if self.program is None:
            return None
        config = self.network.config
        reals = [max(map(abs, ends)) for place, ends in enumerate(config.bounds) if place not in config.integers]
        x = torch.from_numpy(self.program.sample(np.random.default_rng(0), 100, config.n, max(reals, default=1.0)))
        return x if config.inputs > 1 else x[..., 0]

    def truth(self, x: Tensor, member: int = 0) -> Tensor:
        """The direct answer, for a program of the library."""
        if self.program is None:
            raise UsageError(f"{self.spec.program} is not in the library, so nothing says what its answers should be.")
        rows = x.double().cpu().numpy()
        answers = self.program.answers(rows if self.network.config.inputs > 1 else rows[..., None])
        return torch.from_numpy(answers if self.network.config.outputs > 1 else answers[..., 0]).to(x.device)

    @property
    def reads_tokens(self) -> bool:
        return self.program is not None and self.program.task == "khop"

    def evaluate(self, scales: Iterable[float] | None = None, samples: int = 1000, split: str = "test") -> pd.DataFrame:
        members = self._task_members()
        factors, score = self.task.SCALES if scales is None else scales, scores_of(self.task.name)
        table = score.evaluate(self._answer, members, self.spec.lengths, factors, samples, split, self.device)
        return table.assign(status="ok")

    def evaluate_shifts(self, names: Iterable[str] = tuple(SHIFTS), samples: int = 1000) -> pd.DataFrame:
        members = self._task_members()
        self._refuse_tokens()
        table = metrics.evaluate_shifts(self._answer, members, self.spec.lengths, names, samples, self.device)
        return table.assign(status="ok")

    def described(self, values: pd.DataFrame, experiment: str = "", split: str = "test") -> pd.DataFrame:
        """Result rows as of a trained run; what only training has is empty."""
        model = self.network.config
        settings = {
            "experiment": experiment,
            "run": f"compiled-{self.spec.program}-{model.n}",
            "task": self.spec.members[0].task,
            "arch": "compiled",
            "n": self.spec.length,
            **{field: getattr(model, field) for field in ("layers", "width", "encoding")},
            "precision": "fp64",
            "seed": 0,
            "split": split,
            "domain": ["ood" if scale > 1 else "id" for scale in values["scale"]],
            "status": "ok",
        }
        return values.assign(**{name: value for name, value in settings.items() if name not in values}).reindex(
            columns=[*ROW_COLUMNS, *(column for column in values if column not in (*ROW_COLUMNS, "member"))]
        )

    def _answer(self, x: Tensor) -> Tensor:
        return self.predict(x[0])

    def _task_members(self) -> list[tuple[str, int]]:
        if self.program is None or self.program.task is None:
            tasks = ", ".join(name for name, row in PROGRAMS.items() if row.task)
            raise UsageError(
                f"{self.spec.program} solves none of the tasks to evaluate on; these programs do: {tasks}."
            )
        return [(self.program.task, 0)]

    def __repr__(self) -> str:
        return f"CompiledRun({self.spec.program}, n={self.spec.model.n})"


def save(compilation: Compilation, folder: str | Path) -> None:
    """Writes the network and what it was compiled from; a folder of another program, or of a run, is refused."""
    path = Path(folder)
    if (path / "run.json").exists():
        raise UsageError(f"{path} holds a trained run; give another folder.")
    lowered = compilation.lowered
    described = {
        "format": _FORMAT,
        "program": compilation.program.name,
        "machines": compilation.model.config.n,
        "bound": compilation.bound,
        "temperature": lowered.temperature,
        "error": lowered.error,
        "misfit": lowered.misfit,
    }
    if (path / _FILE).exists() and (held := files.read_json(path / _FILE)) != described:
        raise UsageError(
            f"{path} holds {held.get('program', 'another program')}, compiled otherwise; give another folder."
        )
    files.save_tensors(
        path / "weights.safetensors",
        {name: value for name, value in compilation.model.state_dict().items() if value.count_nonzero()},
        {"model": compilation.model.config.to_dict()},
    )
    files.write_json(path / _FILE, described)


def load(path: str | Path, device: str | torch.device | None = "cpu") -> Run:
    """The finished run, or the compiled program, in a folder."""
    folder = Path(path)
    if not (folder / _FILE).exists():
        return load_trained(path, device)
    described = files.read_json(folder / _FILE)
    if not isinstance(described, dict) or described.get("format") != _FORMAT or "program" not in described:
        raise files.Damaged(f"{folder / _FILE} does not describe a compiled program.")
    tensors, about = files.load_tensors(folder / "weights.safetensors")
    try:
        config = from_dict(about["model"])
    except (KeyError, TypeError) as error:
        raise files.Damaged(f"{folder / 'weights.json'} does not describe a compiled program.") from error
    assert isinstance(config, CompiledConfig)
    network = blank_transformer(config)
    own = dict(network.named_parameters())
    if not set(tensors) <= set(own) or any(own[name].shape != value.shape for name, value in tensors.items()):
        raise files.Damaged(f"{folder / 'weights.safetensors'} does not fit the network that is described beside it.")
    for name, value in tensors.items():
        own[name].copy_(value)
    return CompiledRun(described["program"], network.eval().to(pick_device(device)))
