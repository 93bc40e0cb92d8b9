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
from posattn.compiler import PROGRAMS, Program, compile_program
from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.expressions import Array
from posattn.compiler.looped_programs import LOOPED_PROGRAMS, looped_program
from posattn.compiler.programs import LETTERS
from posattn.compiler.traces import Labels
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
    "prefix-sum": 8,
    "prefix-min": 8,
    "tree-sum": 8,
    "tree-min": 8,
    "max-subarray": 8,
    "odd-even-sort": 8,
    "bitonic-sort": 8,
    "median": 8,
    "word-count": 4,
    "list-ranking": 4,
    "khop": 4,
    "self-attention": 3,
}
# What a card says of a network: by its kind, or by what feeds queries and keys.
_ABOUT = {
    "scale-exact": "Positional without biases: c times the list gives c times the answer.",
    "compiled": "A program, written into the weights of a positional network.",
    "position": "Attention sees positions, never the numbers.",
    "offset": "One positional layer, again and again: takes lists of any length.",
    "input": "Attention compares the numbers.",
    "both": "Attention compares the numbers and their positions.",
}
# The program that solves a task: the first of several in the library.
_SOLVING = {row.task: row.name for row in reversed(PROGRAMS.values()) if row.task is not None}


@dataclass
class Content:
    """What the page shows: ``networks`` by number, and the rest as JSON."""

    networks: list[Packed] = field(default_factory=list)
    subjects: list[dict[str, Any]] = field(default_factory=list)
    programs: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""  # what was left out
    every_length: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # models per task, until placed
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

    def model(
        self, label: str, kind: str, detail: str, choices: list[dict[str, Any]], lengths: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """A model as the page reads it. ``lengths`` are those of the lists that it takes; None is every length."""
        attends = self.networks[choices[0]["network"]].described["attends"]
        taken = None if lengths is None else list(lengths)
        about = _ABOUT.get(kind, _ABOUT[attends])
        return {"label": label, "kind": kind, "about": about, "detail": detail, "choices": choices, "lengths": taken}

    def compare(
        self, task: str, lengths: Sequence[int], label: str, kind: str, detail: str, choices: list[dict[str, Any]]
    ) -> None:
        """Adds a model to the subject of a task and its lengths."""
        self.subject(task, lengths)["models"].append(self.model(label, kind, detail, choices, lengths))

    def program(self, name: str, machines: int) -> int:
        """Adds a program of the library or of a file to step through, unless it is there; returns its network's number."""
        if (name, machines) in self.compiled:
            return self.compiled[name, machines]
        compiled = compile_program(name, machines)
        number = self.compiled[name, machines] = self.add(compiled.model)
        own = compiled.program.name
        self.programs.append(_described(own, compiled.source, machines, number, own, labels=compiled.model.labels))
        return number

    def add_compiled(self) -> None:
        """Adds to every subject the compiled program that solves it, if there is one."""
        for subject in self.subjects:
            task, lengths = subject["task"], subject["lengths"]
            if task in _SOLVING and len(lengths) == 1:
                choices = [{"network": self.program(_SOLVING[task], lengths[0]), "name": _SOLVING[task]}]
                self.compare(task, lengths, "compiled", "compiled", f"{_SOLVING[task]}, not trained", choices)

    def place_every_length(self) -> None:
        """Adds models of every length to the subjects of their task, or to a new one, with the exact looped program if any."""
        for task, models in self.every_length.items():
            exact = []
            if task in LOOPED_PROGRAMS:
                choices = [{"network": self.add(looped_program(task)), "name": "looped"}]
                exact = [self.model("looped, compiled", "looped", "exact weights, not trained", choices)]
            beside = [subject for subject in self.subjects if subject["task"] == task]
            for subject in beside or [self.subject(task, [min(LONGEST, self._longest_trained(models))])]:
                subject["models"] += [*models, *exact]
                subject["longest"] = max(LONGEST, *subject["lengths"])
        self.every_length = {}

    def _longest_trained(self, models: list[dict[str, Any]]) -> int:
        return max(int(self.networks[model["choices"][0]["network"]].described["n"]) for model in models)


def of_package() -> Content:
    """The networks that come with the package and the programs of the library."""
    content = Content()
    for name in FIVE_TASKS:
        for arch in COMPARED:
            model = pretrained(name, arch)
            choices = [{"network": content.add(model), "name": "median of ten runs"}]
            content.compare(name, [model.config.n], arch, arch, "trained, the median of ten runs", choices)
    for name, machines in STEPPED.items():
        content.program(name, machines)
    content.add_compiled()
    for name in LOOPED_PROGRAMS:
        model = pretrained(name, "looped")
        content.subject(name, content.subjects[0]["lengths"])
        choices = [{"network": content.add(model), "name": "median of five runs"}]
        detail = f"trained on lists up to {model.config.n}, the median of five runs"
        content.every_length[name] = [content.model("looped", "looped", detail, choices)]
    content.place_every_length()
    return content


def of_runs(runs: Iterable[str | Path | AnyRun], members: int | None = None) -> Content:
    """Runs, or the folders of some: trained ones with their first ``members`` networks (all by default), and compiled ones.

    ``my.py:bfs`` is a program of one's own, for as many machines as commands have by default.
    """
    content = Content()
    most = None if members is None else whole("members", members)
    for each in runs:
        if not isinstance(each, AnyRun) and ".py:" in str(each):
            content.program(str(each), MACHINES)
            continue
        run, label = (each, each.kind) if isinstance(each, AnyRun) else (load(each), str(each))
        if isinstance(run, CompiledRun):
            _add_compiled_run(content, run, label)
        else:
            _add_trained_run(content, run, label, most)
    content.add_compiled()
    content.place_every_length()
    return content


def _add_trained_run(content: Content, run: AnyRun, label: str, most: int | None) -> None:
    if run.reads_tokens:
        raise UsageError(f"{label} reads tokens ({run.members[0].task}); the explorer shows networks of lists of numbers.")
    model = run.config
    arch = model.arch if can(model, "show") else "other"
    by_task: dict[str, list[int]] = {}
    for number, member in enumerate(run.members):
        by_task.setdefault(member.task, []).append(number)
    for task, numbers in by_task.items():
        choices = []
        for number in numbers[:most]:
            seed, status = run.members[number].seed, run.status[number]
            name = f"member {number}, seed {seed}" + ("" if status == "ok" else f", {status}")
            choices.append({"network": content.add(run.model(number)), "name": name})
        if model.any_length:
            detail = f"{arch}, trained on lists up to {model.n}"
            content.every_length.setdefault(task, []).append(content.model(label, arch, detail, choices))
        else:
            content.compare(task, run.lengths, label, arch, f"{arch}, n = {model.n}", choices)


def _add_compiled_run(content: Content, run: CompiledRun, label: str) -> None:
    config, name = run.config, run.program
    model = run.model()
    number = content.add(model)
    labels = getattr(model, "labels", None)
    content.programs.append(_described(name, run.row, config.n, number, label, config, labels))
    task = None if run.row is None else run.row.task
    if task in TASKS and config.inputs == config.outputs == 1:
        choices = [{"network": number, "name": name}]
        content.compare(task, [config.n], label, "compiled", f"{name}, saved", choices)


def _described(
    name: str,
    row: Program | None,
    machines: int,
    network: int,
    label: str,
    config: CompiledConfig | None = None,
    labels: Labels | None = None,
) -> dict[str, Any]:
    """A program as the page reads it, with example inputs; programs outside the library get small random numbers."""
    random = np.random.default_rng(0)
    examples: Array
    if row is not None:
        built = row.build(machines, BOUND)
        ranges = [[known.lo, known.hi, known.integer] for known in built.inputs]
        examples = row.sample(random, _EXAMPLES, machines, _LARGEST_EXAMPLE)
    else:
        assert config is not None
        ranges = [[low, high, False] for low, high in config.bounds]
        ends = [(max(low, -_LARGEST_EXAMPLE), min(high, _LARGEST_EXAMPLE)) for low, high in config.bounds]
        examples = np.stack([random.uniform(*end, (_EXAMPLES, machines)) for end in ends], axis=-1)
    examples = examples.round(1)
    lettered = row is not None and row.task is not None and TASKS[row.task].TOKENS == "letters"
    return {
        "name": name,
        "title": "" if row is None else row.title,
        "label": label,
        "machines": machines,
        "network": network,
        "ranges": ranges,
        "alphabet": ascii_lowercase[:LETTERS] if lettered else "",  # of the first input and of the answer
        "examples": examples.tolist(),
        "columns": [] if labels is None else list(labels.columns),  # of variables, after every round
        "answers": [] if row is None else row.answers(examples).tolist(),
    }
