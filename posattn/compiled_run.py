"""A compiled program as a run: it can be asked, tested, saved and loaded like a trained one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from posattn import files
from posattn.compiler import khop_programs, prompt_programs
from posattn.compiler.compiled_model import CompiledConfig, CompiledTransformer
from posattn.compiler.compiling import EXACT, Compilation
from posattn.compiler.function_programs import OWN_PROGRAMS, Program
from posattn.compiler.library import PROGRAMS
from posattn.compiler.mpc_to_pcoc import fixed_communication
from posattn.compiler.pcoc_to_weights import blank_transformer
from posattn.compiler.traces import Labels, Trace
from posattn.errors import UsageError, counted, instance, several, some, whole
from posattn.metrics import OF_LENGTHS, OF_SHIFTS, Measure, Tested
from posattn.model import Transformer
from posattn.names import ROUTES
from posattn.network import from_dict
from posattn.run_folder import RunFolder
from posattn.runs import AnyRun
from posattn.tasks import Task, task
from posattn.tasks.mixed import ANY_QUERY

_FORMAT = 1
# By the tokens of a task: how machines are given them, and what the machines' answers are an answer of.
_READS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "none": (lambda x: x, lambda answers: answers),
    "letters": (khop_programs.machine_inputs, khop_programs.as_logits),
    "prompts": (prompt_programs.machine_inputs, lambda answers: answers[..., :1]),
}


class CompiledRun(AnyRun):
    """A compiled program, which answers in float64: a member for each task that it solves. Nothing of it was trained.

    Args:
        program: its name, in the library or not. A program that solves no task is its own task, by this name.
        network: what :func:`posattn.compile` gives, sparse or not.
        own: whether the program is the user's, even if the library has one of that name. Its right answers are those of a
            function of that name (``@posattn.program``) in this process.
        bound: of an own program, the largest absolute value of real inputs without a stated range; by default the largest
            bound of any real input.
    """

    def __init__(self, program: str, network: Transformer, own: bool = False, bound: float | None = None):
        instance("program", program, str, "a program's name")
        if not isinstance(network, CompiledTransformer):
            raise UsageError(f"network is a {type(network).__name__}; it must be a compiled program.")
        self.program, self.network = program, network
        self._bound = bound if own and bound is not None else _largest(network.config)
        self.row = _own_row(program, network, self._bound) if own else PROGRAMS.get(program)
        self._tasks = () if self.row is None else self.row.tasks
        self._tokens = task(self._tasks[0]).TOKENS if self._tasks else "none"
        # A sequence of letters begins with the hop count, which every machine is given.
        length = network.config.n + (self._tokens == "letters")
        self.config: CompiledConfig  # a narrower type than AnyRun's
        members = [Tested(name, 0) for name in self._tasks or (program,)]
        super().__init__(
            f"compiled {program}", network.config, members, [length], ["ok"] * len(members), network.P.device
        )

    @property
    def reads_tokens(self) -> bool:
        return self._tokens != "none"

    @property
    def _reads(self) -> torch.dtype:
        return torch.int64 if self._tokens == "letters" else torch.float64

    @property
    def _axes(self) -> int:
        return 1 if self.reads_tokens or self.config.inputs == 1 else 2  # machines, and the inputs of each

    def reader(self, member: int = 0) -> Task:
        """One program answers all queries, so it reads the prompts of all tasks."""
        return ANY_QUERY if self._tokens == "prompts" else super().reader(member)

    def model(self, member: int = 0) -> nn.Module:
        self.check_member(member)
        return self.network

    def as_input(self, values: list[float]) -> Tensor:
        """All inputs of the first machine, then those of the second, and so on."""
        n, c = self.config.n, self.config.inputs
        if len(values) % c or not self._takes(len(values) // c):
            each, up_to = "" if c == 1 else f", {c} for each of {n} machines", "up to " * self.config.lengths
            found = f"the list has {counted(len(values), 'number')}"
            raise UsageError(f"{found}; this compiled program takes {up_to}{n * c}{each}.")
        x = torch.tensor(values, dtype=torch.float64, device=self.device)
        return x if c == 1 else x.view(-1, c)

    def _takes(self, length: int) -> bool:
        """Whether the network answers lists of a length."""
        return length == self.config.n or (self.config.lengths and 1 <= length < self.config.n)

    def _outputs(self, x: Tensor, member: int = 0) -> Tensor:
        beside = self.lengths[0] - self.config.n  # tokens that no machine is for: the hop count
        if self.reads_tokens and (not x.ndim or not self._takes(x.shape[-1] - beside)):
            found, up_to = x.shape[-1] if x.ndim else "no", f"{1 + beside} to " * self.config.lengths
            raise UsageError(f"the sequence has {found} tokens; this compiled program takes {up_to}{self.lengths[0]}.")
        machine_inputs, answer = _READS[self._tokens]
        return answer(self.network(machine_inputs(x)))

    def trace(self, x: Tensor) -> Trace:
        """Every variable of the program at every machine and round, from the states of the network."""
        machine_inputs, _ = _READS[self._tokens]
        return self.network.trace(machine_inputs(self._given(x)), self.program)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(OF_SHIFTS) if self._own else super().metrics

    @property
    def _own(self) -> bool:
        return self.row is not None and self.row.own

    def evaluate(
        self, scales: Iterable[float] | None = None, samples: int = 1000, split: str = "test", domain: str | None = None
    ) -> pd.DataFrame:
        """As for any run; a program of one's own is tested on inputs that its samples give, at scale 1."""
        if not self._own:
            return super().evaluate(scales, samples, split, domain)
        return self._tested_alone([self.config.n], scales, samples, domain, OF_SHIFTS).drop(columns="n")

    def _tested_alone(
        self, lengths: list[int], scales: Iterable[float] | None, samples: int, domain: str | None,
        measures: Mapping[str, Measure],
    ) -> pd.DataFrame:  # fmt: skip
        """One row per length of an own program, on inputs that its samples give."""
        if domain is not None:
            raise UsageError(f"domain is {domain!r}; {self.program} is a program of your own, which has none.")
        if scales is not None and several("scales", scales) != [1.0]:
            raise UsageError(f"{self.program} is a program of your own, which is tested on inputs of scale 1 alone.")
        rows = []
        for n in lengths:
            x = self._examples(whole("samples", samples), n)
            out, y = self.predict(x)[0].flatten(1), self.truth(x).flatten(1)
            found = {name: measure(out, y).item() for name, measure in measures.items()}
            rows.append({"member": 0, "task": self.program, "scale": 1.0, "n": n} | found)
        return self._named(pd.DataFrame(rows))

    def evaluate_lengths(
        self, lengths: Iterable[int], scales: Iterable[float] | None = None, samples: int = 1000, split: str = "test",
        domain: str | None = None,
    ) -> pd.DataFrame:  # fmt: skip
        """As for any run; a program compiled for one length is tested on lists of that length alone."""
        given = some("lengths", lengths)
        test = None if self._own else self._test(samples, split, domain, numbers="lengths")
        for n in given:
            if not self._takes(whole("lengths", n)):
                one_length = not self.config.lengths and n < self.config.n
                others = "; one that is compiled with lengths=True (--lengths) takes shorter ones too" * one_length
                up_to = "up to " * self.config.lengths
                raise UsageError(f"lengths has {n}; this compiled program takes lists of {up_to}{self.config.n}{others}.")
        if test is None:
            return self._tested_alone(given, scales, samples, domain, OF_LENGTHS)
        return self._named(test.by_length(given, scales))

    def _tested(self, split: str) -> list[Tested]:
        if not self._tasks:
            tasks = ", ".join(name for name, row in PROGRAMS.items() if row.tasks)
            own = "; one of your own is evaluated with the file that defines it (--task-file)" if self.row is None else ""
            raise UsageError(f"{self.program} solves none of the tasks to evaluate on; these programs do: {tasks}{own}.")
        return self.members

    def examples(self, length: int | None = None) -> Tensor | None:
        """Inputs that the program accepts, where they are known; random ones may break its rules."""
        n = length if length is not None and self._takes(whole("length", length)) else self.config.n
        return None if self.row is None else self._examples(100, n)

    def _examples(self, count: int, n: int) -> Tensor:
        assert self.row is not None
        x = torch.from_numpy(self.row.sample(np.random.default_rng(0), count, n, self._bound))
        return x if self.config.inputs > 1 else x[..., 0]

    def truth(self, x: Tensor, member: int = 0) -> Tensor:
        """The direct answer, for a program of the library or one that a function here describes."""
        if self._tokens == "prompts":
            return super().truth(x, member)
        if self.row is None:
            why = "so nothing says what its answers should be; a file that defines it does (--task-file)"
            raise UsageError(f"{self.program} is not in the library, {why}.")
        rows = instance("x", x, Tensor, "a tensor").double().cpu().numpy()
        n, c = self.config.n, self.config.inputs
        inputs = rows if c > 1 else rows[..., None]
        if inputs.ndim < 2 or inputs.shape[-1] != c or not self._takes(inputs.shape[-2]):
            raise UsageError(f"x has shape {tuple(x.shape)}; {self.program} takes (..., {n}{f', {c}' * (c > 1)}).")
        answers = self.row.answers(inputs)
        return torch.from_numpy(answers if self.config.outputs > 1 else answers[..., 0]).to(x.device)

    def _settings(self, members: list[int]) -> dict[str, Any]:
        """The columns about training stay empty."""
        return {"run": f"compiled-{self.program}-{self.config.n}", "arch": "compiled", "precision": "fp64"}

    def __repr__(self) -> str:
        return f"CompiledRun({self.program}, n={self.config.n})"


def _own_row(name: str, network: CompiledTransformer, bound: float) -> Program | None:
    """The function here that describes an own program: one of that name, with the network's inputs and variables."""
    labels, row, config = network.labels, OWN_PROGRAMS.get(name), network.config
    if labels is None or row is None:
        return None
    for route in ROUTES[: 1 if config.lengths else None]:
        try:
            built = fixed_communication(row.build(config.n, bound, route, config.lengths))
        except UsageError:  # a program of that name that cannot be built is another one
            continue
        same = built.labels is not None and built.labels.columns == labels.columns
        if same and (built.bounds, built.integers) == (config.bounds, config.integers):
            return row
    return None


def _largest(config: CompiledConfig) -> float:
    """The largest absolute value of the real inputs."""
    reals = [max(map(abs, ends)) for k, ends in enumerate(config.bounds) if k not in config.integers]
    return max(reals, default=1.0)


def save(compilation: Compilation, path: str | Path) -> None:
    """Writes the network and what it was compiled from; raises if the folder holds anything else."""
    lowered = instance("compilation", compilation, Compilation, "what compile_program returns").lowered
    described = {
        "format": _FORMAT,
        "program": compilation.program.name,
        "machines": compilation.model.config.n,
        "bound": compilation.bound,
        "temperature": lowered.temperature,
        "error": lowered.error,
        "misfit": lowered.misfit,
    }
    if compilation.source is None or compilation.source.own:
        described["own"] = True
    if (labels := compilation.program.labels) is not None:
        described["labels"] = asdict(labels)
    weights = {name: value for name, value in compilation.model.tensors().items() if value.count_nonzero()}
    RunFolder(path).save_program(described, weights, {"model": compilation.model.config.to_dict()})


def read_program(folder: RunFolder, device: torch.device) -> CompiledRun:
    """The compiled program in a folder.

    A folder of an earlier version does not say which weights belong to the program. A program of the library must then give
    the direct answers for some inputs; of any other program, the number of machines must be that of the network.
    """
    described, tensors, about = folder.read_program()
    name, wrong = described.get("program"), f"{folder.program} does not describe a compiled program."
    if described.get("format") != _FORMAT or not isinstance(name, str):
        raise files.Damaged(wrong)
    try:
        config = from_dict(about["model"])
        assert isinstance(config, CompiledConfig)
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise files.Damaged(f"{folder.about} does not describe a compiled program.") from error
    network = blank_transformer(config)
    assert isinstance(network, CompiledTransformer)
    own = network.tensors()
    fits = set(tensors) <= set(own) and all(_alike(own[key], value) for key, value in tensors.items())
    for key, value in tensors.items() if fits else ():
        own[key].copy_(value)
    if not fits or not network.sound:
        raise files.Damaged(f"{folder.weights} does not fit the network that is described beside it.")
    if "labels" in described:
        network.labels = Labels(*(tuple(described["labels"][field]) for field in ("rounds", "columns")))
    run = CompiledRun(name, network.eval().to(device), own=described.get("own", False), bound=described.get("bound"))
    if described.get("machines") != config.n or ("sha256" not in described and not _answers(run, described)):
        raise files.Damaged(f"{folder.weights} belongs to another program than {folder.program}.")
    return run


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _answers(run: CompiledRun, described: dict[str, Any]) -> bool:
    """Whether a program of the library gives the direct answers, up to the errors in its description."""
    try:
        x = run.examples()
        if x is None:
            return True
        found, truth = run.network(x[:10].to(run.device)), run.truth(x[:10]).to(run.device)
        allowed = EXACT * max(1.0, truth.abs().max().item()) + described["error"] + described["misfit"]
        return found.shape == truth.shape and bool(((found - truth).abs() <= allowed).all())
    except (UsageError, ValueError, TypeError, IndexError, RuntimeError):  # the inputs of another program
        return False
