"""A scan in other orders than that of the loops: in whichever order stretches are joined, the answers must be the same.

The loops join stretches of 1, 2, 4, ... numbers. In a list of 16 the last loop joins stretches of 8, and of what it makes only
the answer is read: joins of more than 4 numbers are never tested whole, and longer lists are made of them. Joined in another
order, such as 1, 2, 4, 5, 10, 15, 16, the same 16 numbers test more.

Letters: n numbers a list, d width of the state.
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
    """Joins of the longest stretch with it or one that is there, on either side, until lists of n are covered."""
    draw, lengths, joins = random.Random(stream(number, "joins", n)), [1], []
    while lengths[-1] < n:
        pair = [lengths[-1], draw.choice(lengths)]
        draw.shuffle(pair)
        joins.append((pair[0], pair[1]))
        lengths.append(sum(pair))
    return tuple(joins)


class OrderedScan(nn.Module):
    """The scan of a looped network in an order that is given, or in its own."""

    def __init__(self, network: LoopedTransformer):
        super().__init__()
        self.network = network

    def forward(self, x: Float[Tensor, "*batch n"], order: Order | None = None) -> Float[Tensor, "*batch n"]:
        if order is None:
            own: Tensor = self.network(x)
            return own
        n, state = x.shape[-1], self.network.encoder(x[..., None])
        stretches = {1: state}  # by length, those that end at every position
        for earlier, later in order:
            # One list after the other: in the second, the place n + later back is where the earlier stretch ends, in the first.
            both = torch.cat([stretches[earlier], stretches[later]], dim=-2)
            state = stretches[earlier + later] = self.network.layer(both, Loop(n + later))[..., n:, :]
        answers: Tensor = self.network.decoder(state)[..., 0]
        return answers
