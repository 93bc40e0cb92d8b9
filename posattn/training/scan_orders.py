"""Scans that join stretches in other orders than the loops do: a right join gives the same answers in every order.

The loops join stretches of 1, 2, 4, ... numbers. In a list of 16 the last loop joins stretches of 8, and only the answer is
read off the state that it makes. So training on 16 numbers tests the whole state of stretches of up to 8 numbers only, while
longer lists depend on the states of longer ones. Joined in another order, such as 1, 2, 4, 5, 10, 15, 16, the same 16 numbers
test those as well.

Letters: n numbers per list.
"""

import random

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posattn.looped.families import Loop
from posattn.looped.looped_model import LoopedTransformer
from posattn.streams import stream

Order = tuple[tuple[int, int], ...]  # how many numbers the earlier and the later stretch of each join have


def random_order(n: int, number: int) -> Order:
    """A random order: each join puts the longest stretch so far beside itself or a shorter one, until n numbers are joined."""
    draw, lengths, joins = random.Random(stream(number, "joins", n)), [1], []
    while lengths[-1] < n:
        pair = [lengths[-1], draw.choice(lengths)]
        draw.shuffle(pair)
        joins.append((pair[0], pair[1]))
        lengths.append(sum(pair))
    return tuple(joins)


class OrderedScan(nn.Module):
    """The scan of a looped network in a given order, or without one in that of its loops."""

    def __init__(self, network: LoopedTransformer):
        super().__init__()
        self.network = network

    def forward(self, x: Float[Tensor, "*batch n"], order: Order | None = None) -> Float[Tensor, "*batch n"]:
        if order is None:
            own: Tensor = self.network(x)
            return own
        n, state = x.shape[-1], self.network.encoder(x[..., None])
        stretches = {1: state}  # by length, the states of the stretches that end at each position
        for earlier, later in order:
            # Both lists in one: from a position of the second, n + later back is where, in the first, the earlier stretch ends.
            both = torch.cat([stretches[earlier], stretches[later]], dim=-2)
            state = stretches[earlier + later] = self.network.layer(both, Loop(n + later))[..., n:, :]
        answers: Tensor = self.network.decoder(state)[..., 0]
        return answers
