"""Rounds of MPC whose addresses do not depend on the data: one round of PCOC each, without routing.

Messages are edges between senders and receivers. The edges are coloured so that no two edges of a machine share a colour; the
largest number of edges of any machine is enough colours (König). Then all messages travel at once, a message of colour c in
memory block c. The receiver sorts them by sender, as an inbox is sorted; the colours of all senders are known beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posattn.compiler.expressions import (
    Expression,
    Memory,
    as_expression,
    both,
    by_machine,
    cells_read,
    evaluate_expressions,
    select,
    sort_records,
)
from posattn.compiler.mpc import MPC, Sent

Edge = tuple[int, int, int]  # sender, number of its message, receiver


@dataclass(frozen=True)
class Schedule:
    """The colour of every message. Memory has ``places`` blocks of 1 + ``longest`` positions, one per colour."""

    colours: dict[Edge, int]
    machines: int
    places: int
    longest: int

    def _block(self, colour: int) -> range:
        return range(colour * (self.longest + 1), (colour + 1) * (self.longest + 1))

    def receive(self, j: int) -> list[tuple[int, Sequence[int]]]:
        return [(i, self._block(colour)) for (i, _, to), colour in self.colours.items() if to == j]

    def place(self, messages: Sequence[Sent]) -> list[Expression]:
        """What a machine writes: into each colour's block the message of that colour, if it is sent."""
        found: list[Expression] = []
        for colour in range(self.places):
            block: list[Expression] = [as_expression(0.0)] * (self.longest + 1)
            for m, message in enumerate(messages):
                owners = {i for (i, own, _), c in self.colours.items() if (own, c) == (m, colour)}
                if owners:
                    mine = by_machine(float(i in owners) for i in range(self.machines + 1))
                    sent = both(mine, message.when)
                    written = [as_expression(1.0), *message.words]
                    block = [select(sent, new, old) for new, old in zip(written, block, strict=True)]
            found += block
        return found

    def inbox(self, memory: Memory) -> list[list[Expression]]:
        """(present, words) of every place, ordered by sender and then by message; empty places come last."""
        order = np.full((self.machines + 1, self.places), float(self.places))
        for j in range(self.machines):
            arriving = sorted((i, m, colour) for (i, m, to), colour in self.colours.items() if to == j)
            for place, (_, _, colour) in enumerate(arriving):
                order[j, colour] = place
        records = []
        for colour in range(self.places):
            present, *words = (memory[position] for position in self._block(colour))
            key = select(present, by_machine(order[:, colour].tolist()), self.places)
            records.append([key, present, *words])
        return [record[1:] for record in sort_records(records)]


def schedule(program: MPC, r: int, machines: int) -> Schedule | None:
    """The schedule of round ``r``; None if its addresses depend on data, or if a machine sends or receives too many words.

    A message to a machine that does not exist has no edge; the round's guard reports it if it is sent.
    """
    messages = program.messages(r, program.view())
    addresses = [message.to for message in messages]
    if cells_read(addresses):
        return None
    numbers = np.arange(program.machines, dtype=float)
    table = evaluate_expressions(addresses, np.zeros((program.machines, 1)), numbers)
    edges = [
        (i, m, int(to[i]))
        for m, to in enumerate(table)
        for i in range(program.machines)
        if 0 <= to[i] < program.machines
    ]
    lengths = [messages[m].length for _, m, _ in edges]
    words = [np.bincount([edge[end] for edge in edges], lengths, minlength=1).max() for end in (0, 2)] if edges else [0]
    if max(words) > program.memory:
        return None
    return Schedule(coloured(edges, program.places), machines, program.places, program.longest)


def coloured(edges: Sequence[Edge], colours: int) -> dict[Edge, int]:
    """A colour for every edge, such that no sender and no receiver has two edges of one colour.

    ``colours`` must be at least the largest number of edges of a sender or a receiver.
    """
    at: dict[tuple[str, int, int], Edge] = {}  # (side, machine, colour) to the edge there

    def ends(edge: Edge) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("from", edge[0]), ("to", edge[2])

    def free(end: tuple[str, int]) -> int:
        return next(colour for colour in range(colours) if (*end, colour) not in at)

    found: dict[Edge, int] = {}
    for edge in edges:
        sender, receiver = ends(edge)
        a, b = free(sender), free(receiver)
        # Exchange a and b along the path of colours a, b, a, ... that begins at the receiver: then a is free at both ends.
        path, end, colour = [], receiver, a
        while (*end, colour) in at:
            following = at[(*end, colour)]
            path.append(following)
            end = next(other for other in ends(following) if other != end)
            colour = a + b - colour
        for each in path:
            for end in ends(each):
                del at[(*end, found[each])]
        for each in path:
            found[each] = a + b - found[each]
            for end in ends(each):
                at[(*end, found[each])] = each
        found[edge] = a
        at[(*sender, a)] = at[(*receiver, a)] = edge
    return found
