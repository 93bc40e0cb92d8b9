"""What tasks of tokens share: a sampler in and out of distribution, and texts that can be read and written."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn import streams
from posattn.errors import UsageError, choice, positive, whole
from posattn.tasks.numeric import Task
from posattn.tasks.sampling import Device, Seeds, keys_of, named_split


class TokenTask(Task):
    """A task whose x are tokens. Subclasses say how uniform numbers become sequences, and how a sequence is spelled."""

    def sample(
        self,
        count: int,
        n: int | None = None,
        scale: float = 1.0,
        seed: Seeds = 0,
        *,
        split: str = "train",
        integers: bool = False,
        domain: str | None = None,
        device: Device = None,
    ) -> tuple[Shaped[Tensor, "*members count n"], Shaped[Tensor, "*members count out"]]:
        """(x, y) of sequences of n tokens, by default as many as the paper's, with a leading axis if several seeds are given.

        Up to scale 1 they are in distribution, above it out of it; ``domain`` (id or ood) says so whatever the scale. A
        sequence depends on the seed, the split, what it is asked to be, and its index.
        """
        if integers:
            raise UsageError(f"integers is {integers!r}; the task {self.name} has no lists of integers.")
        c, length = positive("scale", scale), whole("n", self.NETWORK["n"] if n is None else n, least=2)
        where = choice("domain", ("ood" if c > 1 else "id") if domain is None else domain, ("id", "ood"))
        keys = keys_of(seed, device, *self._purpose(named_split(split), length, where, c))
        u = streams.uniform(keys, whole("count", count) * self._uniforms(length)).unflatten(-1, (count, -1))
        x = self._sequences(u, where, c)
        return x, self.target(x)

    @abstractmethod
    def _purpose(self, split: str, n: int, where: str, c: float) -> tuple[str | int, ...]:
        """What names the stream of random numbers."""

    @abstractmethod
    def _uniforms(self, n: int) -> int:
        """How many uniform numbers a sequence takes."""

    @abstractmethod
    def _sequences(self, u: Float[Tensor, "*members count uniforms"], where: str, c: float) -> Tensor:
        """The sequences that uniform numbers give."""

    @abstractmethod
    def encode(self, text: str) -> Shaped[Tensor, " n"]:
        """The tokens of a text; a text that is none of this task's gets a sentence with the place of the error."""

    @abstractmethod
    def spell(self, tokens: Shaped[Tensor, " n"]) -> str:
        """The text of a sequence of tokens."""

    def decode(self, tokens: Shaped[Tensor, "*batch n"] | Sequence[Any]) -> Any:
        """The characters: a text for one sequence, a list of texts for several. Plain Python lists will do."""
        x = torch.as_tensor(tokens)
        return self.spell(x) if x.ndim == 1 else [self.decode(row) for row in x]
