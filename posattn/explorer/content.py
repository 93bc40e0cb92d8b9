"""What the page shows: per task the networks that answer it, and the compiled programs that can be stepped through.

A *subject* is a task with lists of one length, or of every length if a model takes them. Its *models* are compared on it; each
has one network or several to choose from (the members of a run). A *program* is a compiled network with inputs to try.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from torch import nn

from posattn.compiled_run import CompiledRun
from posattn.compiler import Program, compile_program
from posattn.compiler.compiled_model import CompiledTransformer
from posattn.compiler.expressions import Array
from posattn.compiler.library import solving
from posattn.compiler.looped_programs import LOOPED_PROGRAMS, looped_program
from posattn.errors import UsageError, whole
from posattn.explorer.networks import Packed, pack
from posattn.names import BOUND, MACHINES
from posattn.network import can
from posattn.pretrained import COMPARED, pretrained
from posattn.runs import AnyRun, load
from posattn.tasks import FIVE_TASKS, TASKS

_EXAMPLES = 12  # inputs to try per program
_LARGEST_EXAMPLE = 8.0
LONGEST = 64  # the longest list for networks of every length
# Programs to step through, and their machines (or tokens).
STEPPED = {
    "prefix-sum": 8, "prefix-min": 8, "tree-sum": 8, "tree-min": 8, "max-subarray": 8, "odd-even-sort": 8,
    "bitonic-sort": 8, "median": 8, "word-count": 4, "list-ranking": 4, "khop": 4, "khop-scan": 6, "self-attention": 3,
    "mixed": 23,
}  # fmt: skip
# What a card says of a network: by its kind, or by what feeds queries and keys.
_ABOUT = {
    "scale-exact": "Positional without biases: c times the list gives c times the answer.",
    "compiled": "A program, written into the weights of a positional network.",
    "position": "Attention sees positions, never the numbers.",
    "offset": "One positional layer, again and again: takes lists of any length.",
    "input": "Attention compares the numbers.",
    "both": "Attention compares the numbers and their positions.",
}


@dataclass
class Content:
    """What the page shows: ``networks`` by number, and the rest as JSON."""

    networks: list[Packed] = field(default_factory=list)
    subjects: list[dict[str, Any]] = field(default_factory=list)
    programs: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""  # what was left out
    every_length: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # models per task
    compiled: dict[tuple[str, int], int] = field(default_factory=dict)  # networks by program, as given, and machines

    def add(self, model: nn.Module) -> int:
        """Adds a network and returns its number."""
        self.networks.append(pack(model))
        return len(self.networks) - 1

    def subject(self, task: str, lengths: Sequence[int]) -> dict[str, Any]:
        """The subject of a task and its lengths, made if it is new. ``longest`` is set if models take every length."""
        for found in self.subjects:
            if found["task"] == task and found["lengths"] == list(lengths):
                return found
        title = TASKS[task].title if task in TASKS else task
        made: dict[str, Any] = {"task": task, "title": title, "lengths": list(lengths), "longest": None, "models": []}
        self.subjects.append(made)
        return made

    def compare(
        self,
        task: str,
        lengths: Sequence[int] | None,
        label: str,
        kind: str,
        detail: str,
        choices: Iterable[tuple[int, str]],
    ) -> None:
        """Adds a model to the subject of a task and its lengths; None is every length, which ``complete`` places.

        ``choices`` are numbers of networks, and their names.
        """
        given: list[dict[str, Any]] = [{"network": number, "name": name} for number, name in choices]
        about = _ABOUT.get(kind, _ABOUT[self.networks[given[0]["network"]].described["attends"]])
        taken = None if lengths is None else list(lengths)
        made = {"label": label, "kind": kind, "about": about, "detail": detail, "choices": given, "lengths": taken}
        beside = self.every_length.setdefault(task, []) if lengths is None else self.subject(task, lengths)["models"]
        beside.append(made)

    def program(self, name: str, machines: int) -> int:
        """Adds a program of the library or of a file to step through, unless it is there; returns its network's number."""
        if (name, machines) not in self.compiled:
            compiled = compile_program(name, machines)
            own = compiled.program.name
            self.compiled[name, machines] = self.step_through(own, compiled.source, compiled.model, own)
        return self.compiled[name, machines]

    def step_through(self, name: str, row: Program | None, model: nn.Module, label: str) -> int:
        """Adds a compiled program, with inputs to try, and returns its network's number.

        Programs outside the library get small random numbers.
        """
        number = self.add(model)
        assert isinstance(model, CompiledTransformer)
        machines, bounds, random = model.config.n, model.config.bounds, np.random.default_rng(0)
        examples: Array
        if row is not None:
            ranges = [[known.lo, known.hi, known.integer] for known in row.build(machines, BOUND).inputs]
            examples = row.sample(random, _EXAMPLES, machines, _LARGEST_EXAMPLE)
        else:
            ranges = [[low, high, place in model.config.integers] for place, (low, high) in enumerate(bounds)]
            ends = [(max(low, -_LARGEST_EXAMPLE), min(high, _LARGEST_EXAMPLE)) for low, high in bounds]
            examples = np.stack([random.uniform(*end, (_EXAMPLES, machines)) for end in ends], axis=-1)
            integers = list(model.config.integers)
            examples[..., integers] = examples[..., integers].round()
        examples = examples.round(1)
        lettered = row is not None and row.task is not None and TASKS[row.task].TOKENS == "letters"
        described = {
            "name": name,
            "title": "" if row is None else row.title,
            "label": label,
            "machines": machines,
            "network": number,
            "ranges": ranges,
            "alphabet": ascii_lowercase[: int(ranges[0][1]) + 1] if lettered else "",  # of the first input and of the answer
            "examples": examples.tolist(),
            "columns": [] if model.labels is None else list(model.labels.columns),  # of variables, after every round
            "answers": [] if row is None else row.answers(examples).tolist(),
        }
        self.programs.append(described)
        return number

    def complete(self) -> "Content":
        """Adds to every subject the compiled program that solves it, if there is one, and the models of every length.

        A task of which there are only such models is a subject too. The exact looped program stands beside them, if any.
        """
        for subject in self.subjects:
            task, lengths = subject["task"], subject["lengths"]
            for row in solving(task)[:1] if len(lengths) == 1 else ():
                choices = [(self.program(row.name, lengths[0]), row.name)]
                self.compare(task, lengths, "compiled", "compiled", f"{row.name}, not trained", choices)
        for task, models in self.every_length.items():
            trained = [self.networks[model["choices"][0]["network"]].described["n"] for model in models]
            if task in LOOPED_PROGRAMS:
                choices = [(self.add(looped_program(task)), "looped")]
                self.compare(task, None, "looped, compiled", "looped", "exact weights, not trained", choices)
            beside = [subject for subject in self.subjects if subject["task"] == task]
            for subject in beside or [self.subject(task, [min(LONGEST, max(trained))])]:
                subject["models"] += models
                subject["longest"] = max(LONGEST, *subject["lengths"])
        return self


def of_package() -> Content:
    """The networks that come with the package and the programs of the library."""
    content = Content()
    for name in FIVE_TASKS:
        for arch in COMPARED:
            model = pretrained(name, arch)
            choices = [(content.add(model), "median of ten runs")]
            content.compare(name, [model.config.n], arch, arch, "trained, the median of ten runs", choices)
    for name, machines in STEPPED.items():
        content.program(name, machines)
    for name in LOOPED_PROGRAMS:
        model = pretrained(name, "looped")
        content.subject(name, content.subjects[0]["lengths"])
        detail = f"trained on lists up to {model.config.n}, the median of five runs"
        content.compare(name, None, "looped", "looped", detail, [(content.add(model), "median of five runs")])
    return content.complete()


def is_program(run: str | Path | AnyRun) -> bool:
    """Whether this is a program of one's own, ``my.py:bfs``."""
    return not isinstance(run, AnyRun) and ".py:" in str(run)


def of_runs(
    runs: Iterable[str | Path | AnyRun], members: int | None = None, machines: int | None = None
) -> Content:
    """Runs, or the folders of some: trained ones with their first ``members`` networks (all by default), and compiled ones.

    ``my.py:bfs`` is a program of one's own, for ``machines``, which are 8 by default.
    """
    content = Content()
    most = None if members is None else whole("members", members)
    for each in runs:
        if is_program(each):
            content.program(str(each), MACHINES if machines is None else machines)
            continue
        run, label = (each, each.kind) if isinstance(each, AnyRun) else (load(each), str(each))
        if isinstance(run, CompiledRun):
            _add_compiled_run(content, run, label)
        else:
            _add_trained_run(content, run, label, most)
    return content.complete()


def _add_trained_run(content: Content, run: AnyRun, label: str, most: int | None) -> None:
    if run.reads_tokens:
        raise UsageError(f"{label} reads tokens ({run.members[0].task}); the explorer shows networks of lists of numbers.")
    model = run.config
    arch = model.arch if can(model, "show") else "other"
    by_task: dict[str, list[int]] = {}
    for number, member in enumerate(run.members):
        by_task.setdefault(member.task, []).append(number)
    detail = f"{arch}, trained on lists up to {model.n}" if model.any_length else f"{arch}, n = {model.n}"
    for task, numbers in by_task.items():
        choices = []
        for number in numbers[:most]:
            seed, status = run.members[number].seed, run.status[number]
            name = f"member {number}, seed {seed}" + ("" if status == "ok" else f", {status}")
            choices.append((content.add(run.model(number)), name))
        content.compare(task, None if model.any_length else run.lengths, label, arch, detail, choices)


def _add_compiled_run(content: Content, run: CompiledRun, label: str) -> None:
    config, name = run.config, run.program
    number = content.step_through(name, run.row, run.model(), label)
    task = None if run.row is None else run.row.task
    if task in TASKS and config.inputs == config.outputs == 1:
        content.compare(task, [config.n], label, "compiled", f"{name}, saved", [(number, name)])
