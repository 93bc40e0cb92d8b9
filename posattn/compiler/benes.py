"""The Beneš network (Definition A.4) and its routing in two phases (Lemma B.1).

The network has N = 2^k machines in 2k layers. Between layer ℓ and layer ℓ + 1 machine i is joined to itself and to its Hamming
neighbour in bit k - |k - ℓ|, counted from the most significant. In the *fragmentation* phase, steps 1 to k - 1, every machine
keeps half of each message and passes the other half on. In the *collection* phase, steps k to 2k - 1, step k + t routes a word
by bit t of its destination, counted from the least significant.
"""

from collections.abc import Iterator
from dataclasses import dataclass


def hamming_neighbour(i: int, j: int, k: int) -> int:
    """The number that differs from ``i`` in the j-th of its k bits, counted from the most significant (Definition A.3)."""
    return i ^ (1 << (k - j))


@dataclass(frozen=True)
class Benes:
    """The network on 2^k machines."""

    k: int  # at least 1

    @property
    def machines(self) -> int:
        return 1 << self.k

    @property
    def steps(self) -> range:
        """1 to 2k - 1, one between every two layers."""
        return range(1, 2 * self.k)

    def partner(self, step: int, i: int) -> int:
        return hamming_neighbour(i, self.k - abs(self.k - step), self.k)

    def fragments(self, step: int) -> bool:
        return step < self.k

    def edges(self) -> Iterator[tuple[int, int, int]]:
        """All edges of the network as (step, from, to)."""
        for step in self.steps:
            for i in range(self.machines):
                yield step, i, i
                yield step, i, self.partner(step, i)


def size_for(machines: int) -> Benes:
    """The smallest network with at least this many machines."""
    return Benes(max(1, (machines - 1).bit_length()))
