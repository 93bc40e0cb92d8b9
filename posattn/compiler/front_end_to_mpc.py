"""A program of the front end as MPC, for the theorem's own route: messages go where the data says, and Lemma B.1 routes them.

After a round a machine of MPC has its inbox alone. So it sends to itself what later rounds read, in messages of their own.
The first word of every message is its tag: which of its sender's messages it is, and who the sender is. All messages are
padded to one length, so the memory s is this length times the most messages that a machine may receive or send in a round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from posattn.compiler.benes import size_for
from posattn.compiler.expressions import Assume, Expression, as_expression, by_machine, equal, linear, select
from posattn.compiler.front_end import Sent, Tracing
from posattn.compiler.mpc import MPC, Machine, Message
from posattn.compiler.program_numbers import Computed, Value, computed, needed


def directed_by_data(tracing: Tracing) -> bool:
    """Whether the address of any message depends on the data; if none does, the program is PCOC already."""
    return any(sent.to.pure is None for part in tracing.parts for sent in part.sent)


@dataclass(frozen=True)
class _Plan:
    """What machines keep, and how long messages are. ``needed[r]`` is what round r takes from its inbox or computes."""

    tracing: Tracing
    needed: list[list[Value]]

    @cached_property
    def longest(self) -> int:
        """Words of a message: those of the longest, or the inputs. What is kept fills messages of the padded length."""
        sent = max((len(each.words) for part in self.tracing.parts for each in part.sent), default=0)
        least = max(1 + sent, len(self.tracing.inputs))
        unit = 1 << (size_for(self.tracing.n).k - 1)  # routing pads words to a multiple of this
        kept = max(len(self.kept(r)) for r in range(len(self.needed)))
        return max(least, min(-(-max(least, 2) // unit) * unit, 1 + kept))

    def kept(self, r: int) -> list[Value]:
        """The values of earlier rounds that round r finds."""
        return [value for value in self.needed[r] if value.round < r]

    def own(self, r: int) -> list[list[Value]]:
        """What round r finds of its own past, message by message."""
        words, kept = self.longest - 1, self.kept(r)
        return [kept[start : start + words] for start in range(0, len(kept), words)]

    @property
    def memory(self) -> int:
        rounds = range(len(self.tracing.parts) - 1)
        counts = [(len(self.own(r + 1)), self.tracing.parts[r].sent) for r in rounds]
        return self.longest * max(own + max(len(sent), _most_received(self.tracing, sent)) for own, sent in counts)

    def tag(self, r: int, number: int, sender: int) -> int:
        """The tag of a message of round r; those before it are what the machine sends to itself."""
        return 1 + len(self.own(r + 1)) + number * self.tracing.n + sender

    def values(self, r: int, machine: Machine) -> Computed:
        """All values of round r from the inbox."""
        if r == 0:
            found: dict[Value, Expression] = dict(zip(self.tracing.inputs, machine.inbox[0].words, strict=False))
        else:
            found = {}
            for number, own in enumerate(self.own(r), start=1):
                hits = [equal(box.words[0], number) for box in machine.inbox]
                for place, value in enumerate(own, start=1):
                    found[value] = self._taken(value, hits, [box.words[place] for box in machine.inbox])
            found |= self._heard(r, machine)
        return computed((value for value in self.needed[r] if value not in found), found)

    def _heard(self, r: int, machine: Machine) -> dict[Value, Expression]:
        found: dict[Value, Expression] = {}
        hit: dict[Any, list[Expression]] = {}
        for value in self.needed[r]:
            if value.round == r and value.delivered is not None:
                numbers, word = value.delivered
                message = numbers, value.senders
                if message not in hit:
                    pairs = zip(numbers, value.senders, strict=True)
                    tags = by_machine(self.tag(r - 1, number, i) if i >= 0 else -1 for number, i in pairs)
                    hit[message] = [equal(box.words[0], tags) for box in machine.inbox]
                words = [as_expression(1.0) if word < 0 else box.words[1 + word] for box in machine.inbox]
                found[value] = self._taken(value, hit[message], words)
        return found

    def _taken(self, value: Value, hits: Sequence[Expression], words: Sequence[Expression]) -> Expression:
        """A word of the one message that is hit, or 0."""
        known = self.tracing.known[value.index]
        found = linear(*((select(hit, word, 0), 1.0) for hit, word in zip(hits, words, strict=True)))
        return Assume(found, min(known.lo, 0.0), max(known.hi, 0.0), known.integer)

    def sends(self, r: int, machine: Machine) -> list[Message]:
        """The messages of round r: to oneself what is kept, then the program's own."""
        found = self.values(r, machine)
        messages = []
        for number, own in enumerate(self.own(r + 1), start=1):
            messages.append(Message(machine.me, [number, *(found[value] for value in own)]))
        for number, sent in enumerate(self.tracing.parts[r].sent):
            to, when, *words = (found[value] for value in (sent.to, sent.when, *sent.words))
            messages.append(Message(to, [machine.me + self.tag(r, number, 0), *words], when))
        return messages

    def checks(self, r: int, machine: Machine) -> list[Expression]:
        """By how much whole numbers leave the ranges that round r states for them."""
        checked = self.tracing.parts[r].checked
        found = self.values(r, machine) if checked else Computed()
        return [each.excess(found) for each in checked]

    def answers(self, machine: Machine) -> list[Expression]:
        found = self.values(len(self.tracing.parts) - 1, machine)
        return [found[answer] for answer in self.tracing.answers]


def as_mpc(tracing: Tracing) -> MPC:
    """The MPC program that runs the traced function."""
    last = len(tracing.parts) - 1
    found: list[list[Value]] = []
    following = tracing.answers
    for r in reversed(range(last + 1)):
        found.insert(0, _needed(tracing, r, following))
        following = [value for value in found[0] if value.round < r]
    plan = _Plan(tracing, found)

    def sending(r: int) -> Any:
        return lambda machine: plan.sends(r, machine)

    return MPC(
        machines=tracing.n,
        memory=plan.memory,
        longest=plan.longest,
        inputs=tracing.ranges,
        rounds=tuple(sending(r) for r in range(last)),
        finish=plan.answers,
        name=tracing.name,
        checks=plan.checks,
        names=tuple(tracing.place(r) for r in range(last + 1)),
    )


def _needed(tracing: Tracing, r: int, following: Iterable[Value]) -> list[Value]:
    """The values that round r takes from its inbox or computes, for what it sends and states and for later rounds."""
    part = tracing.parts[r]
    sent = [value for each in part.sent for value in (each.to, each.when, *each.words)]
    stated = [each.value for each in part.stated if each.integer]
    return needed([*sent, *stated, *following], lambda value: value.round == r and value.delivered is None)


def _most_received(tracing: Tracing, sent: Sequence[Sent]) -> int:
    """The most messages of a round that a machine may receive, as far as addresses and ``most`` tell."""
    count = np.zeros(tracing.n, dtype=int)
    for _, group in groupby(sent, key=lambda each: id(each.send)):
        messages, own = list(group), np.zeros(tracing.n, dtype=int)
        for each in messages:
            to = tracing.receivers(each) if each.to.pure is not None else None
            own += tracing.n if to is None else np.bincount(to[to >= 0], minlength=tracing.n)
        most = messages[0].send.most
        count += own if most is None else np.minimum(own, most)
    return int(count.max())
