"""A program of the front end as PCOC: one round each, and a memory position for every number that a later round reads.

A number that is kept is received from oneself. A message whose address depends on the machine alone is received from its
sender. Of any other message everyone hears the address and the words, in positions of the sender's own, and takes what is
addressed to it. So a round takes one layer, and memory grows with N; routing over a Beneš network (``mpc_to_pcoc``) takes
2 log2 N - 1 layers, and its padding makes memory grow with N too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posattn.compiler.expressions import Expression, Memory, as_expression, both, either, linear, select
from posattn.compiler.front_end import Sent, Tracing
from posattn.compiler.machine_memory import MISADDRESSES, OVERFLOWS
from posattn.compiler.pcoc import PCOC, Excess, Guard, Local, Round
from posattn.compiler.program_numbers import Computed, Value, computed, needed
from posattn.compiler.traces import Labels, answer_columns


@dataclass(frozen=True)
class WrittenPCOC(PCOC):
    """A PCOC program with its source. ``variables[r]`` says which values the variables have when round r ends, and where."""

    tracing: Tracing = field(kw_only=True)
    variables: tuple[dict[str, tuple[Value, int]], ...] = field(kw_only=True)


class _Layout:
    """Which values a round finds in memory, and where."""

    def __init__(self, tracing: Tracing, r: int, roots: Iterable[Value]):
        ordered = needed(roots, lambda value: value.round == r)
        self.computed = [value for value in ordered if value.round == r and value.x is not None]
        self.heard = [value for value in ordered if value.round == r and value.x is None]
        self.kept = [value for value in ordered if value.round < r]
        self.at: dict[Value, int] = {value: k for k, value in enumerate(tracing.inputs)} if r == 0 else {}

    def place(self, names: dict[Value, str], homes: dict[str, int]) -> dict[str, tuple[Value, int]]:
        """Gives positions to what is in memory: a variable to its own where it can; returns those that have names."""
        taken: set[int] = set()
        found: dict[str, tuple[Value, int]] = {}
        for value in sorted(self.kept, key=lambda value: value not in names):
            name = names.get(value)
            home = None if name is None else homes.get(name)
            self.at[value] = _free(taken | set(homes.values())) if home is None or home in taken else home
            taken.add(self.at[value])
            if name is not None:
                homes.setdefault(name, self.at[value])
            found[name or f"line {value.line}, {value.index}"] = value, self.at[value]
        same: dict[Any, int] = {}
        for value in self.heard:
            key = (value.source, value.senders)
            if key not in same:
                same[key] = _free(taken)
                taken.add(same[key])
            self.at[value] = same[key]
        return found

    def written(self) -> dict[int, Value]:
        """The value that each position is given at the end of the round before."""
        heard = {self.at[value]: value.source for value in self.heard if value.source is not None}
        return heard | {self.at[value]: value for value in self.kept}

    def receive(self, j: int) -> list[tuple[int, Sequence[int]]]:
        heard = {self.at[value]: value.senders[j] for value in self.heard if value.senders[j] >= 0}
        return [*((j, (self.at[value],)) for value in self.kept), *((i, (place,)) for place, i in heard.items())]

    def most_sent(self, n: int) -> int:
        """The most words that one of ``n`` machines sends; a machine's memory bounds it."""
        sent = np.full(n, len(self.kept))
        for senders in {self.at[value]: value.senders for value in self.heard}.values():
            sent += np.bincount([i for i in senders if i >= 0], minlength=n)
        return int(sent.max())

    def expressions(self, memory: Memory) -> Computed:
        """All values of the round over its memory."""
        return computed(self.computed, {value: memory[at] for value, at in self.at.items() if value.pure is None})


def _free(taken: set[int]) -> int:
    return next(place for place in range(len(taken) + 1) if place not in taken)


def as_pcoc(tracing: Tracing, spare: int = 0) -> WrittenPCOC:
    """The PCOC program that runs the traced function; the last ``spare`` machines have inputs 0."""
    last = len(tracing.parts) - 1
    layouts: list[_Layout] = []
    roots: list[Value] = list(tracing.answers)
    for r in reversed(range(last + 1)):
        part = tracing.parts[r]
        guarded = [value for sent in part.sent for value in (sent.to, sent.when)] + [each.value for each in part.stated]
        guarded += [value for value in (tracing.length, tracing.listed) if value is not None and guarded]
        layout = _Layout(tracing, r, [*roots, *guarded])
        if r:  # a trace also shows the variables that the round before assigned
            layout.kept = list(dict.fromkeys([*layout.kept, *_assigned(tracing, r - 1)]))
        roots = [*layout.kept, *(value.source for value in layout.heard if value.source is not None)]
        layouts.insert(0, layout)
    return _assembled(tracing, layouts, spare)


def _assigned(tracing: Tracing, r: int) -> list[Value]:
    """The values that variables were given in a round, but for lists of what depends on the machine alone."""
    names = tracing.parts[r].names.items()
    return [v for v, name in names if v.round == r and v is not tracing.me and (v.pure is None or "[" not in name)]


def _assembled(tracing: Tracing, layouts: list[_Layout], spare: int) -> WrittenPCOC:
    homes: dict[str, int] = {}  # the position of every variable, until no later round has it
    variables = []
    for r, layout in enumerate(layouts[1:]):
        to_come = zip(tracing.parts[r:], layouts[r + 1 :], strict=False)
        alive = {part.names[value] for part, later in to_come for value in later.kept if value in part.names}
        homes = {name: place for name, place in homes.items() if name in alive}
        variables.append(layout.place(tracing.parts[r].names, homes))
    answers = dict(enumerate(tracing.answers))
    variables.append({name: (answers[at], at) for name, at in answer_columns(len(answers)).items()})
    places = (1 + place for layout in layouts for place in layout.at.values())
    size = max(len(tracing.inputs), len(answers), *places, *(layout.most_sent(tracing.n) for layout in layouts[1:]))
    written = [*(layout.written() for layout in layouts[1:]), answers]
    rounds = [
        Round(layout.receive, _compute(layout, written[r], size), _guard(tracing, r, layout))
        for r, layout in enumerate(layouts)
    ]
    return WrittenPCOC(
        machines=tracing.n,
        memory=size,
        inputs=tracing.ranges,
        rounds=tuple(rounds[1:]),
        outputs=tuple(answers),
        start=rounds[0].compute,
        start_guard=rounds[0].guard,
        name=tracing.name,
        spare=spare,
        labels=Labels(
            tuple(tracing.place(r) for r in range(len(variables))),
            tuple({name: at for name, (_, at) in each.items()} for each in variables),
        ),
        lengths=tracing.length is not None,
        tracing=tracing,
        variables=tuple(variables),
    )


def _compute(layout: _Layout, written: dict[int, Value], size: int) -> Local:
    def compute(memory: Memory) -> list[Expression]:
        found = layout.expressions(memory)
        new: list[Expression] = [as_expression(0.0)] * size
        for place, value in written.items():
            new[place] = found[value]
        return new

    return compute


def _guard(tracing: Tracing, r: int, layout: _Layout) -> Guard | None:
    """Counts messages to machines that are not there, and how far whole numbers leave the ranges stated for them."""
    part, last = tracing.parts[r], tracing.n - 1
    lost = []
    for sent in part.sent:
        to, directed = tracing.known[sent.to.index], sent.to.pure is None
        may_miss = not 0 <= to.lo <= to.hi <= last or (tracing.length is not None and directed)
        lost += [sent] if may_miss and (directed or sent.when.pure is None) else []
    if not lost and not part.checked:
        return None

    def guard(memory: Memory) -> list[Excess]:
        found = layout.expressions(memory)
        listed = [] if tracing.listed is None else [found[tracing.listed]]

        def after(sent: Sent) -> Expression:
            """Whether a message is for a machine after the last of the list, if the data says where it goes, or of all."""
            if tracing.length is not None and sent.to.pure is None:
                return found[sent.to] >= found[tracing.length]
            return found[sent.to] > last

        beyond = [(both(found[sent.when], *listed, either(found[sent.to] < 0, after(sent))), 1.0) for sent in lost]
        excesses = [Excess(linear(*beyond), MISADDRESSES)] if beyond else []
        for each in part.checked:
            excess = each.excess(found)
            excesses.append(Excess(select(listed[0], excess, 0) if listed else excess, OVERFLOWS))
        return excesses

    return guard
