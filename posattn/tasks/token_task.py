"""What tasks on tokens share: a sampler in and out of distribution, and conversion between tokens and text."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn.errors import UsageError, choice, shown, whole
from posattn.tasks.numeric import Task
from posattn.tasks.sampling import Drawn, Seeds, drawn_by, factor, uniform


class TokenTask(Task):
    """A task whose inputs are tokens. Subclasses turn uniform numbers into sequences, and tokens into text and back."""

    UNIFORMS: ClassVar[int | None] = None  # how many uniform numbers a sequence takes; None for one per token

    def sample(
        self, count: int, n: int | None = None, scale: float = 1.0, seed: Seeds = 0, *, domain: str | None = None,
        **drawn: Unpack[Drawn],
    ) -> tuple[Shaped[Tensor, "*members count n"], Shaped[Tensor, "*members count out"]]:  # fmt: skip
        """(x, y) for sequences of n tokens (by default the paper's n), with a leading axis if several seeds are given.

        They are in distribution up to scale 1 and out of it above; ``domain`` (id or ood) overrides that. A sequence depends
        on the seed, the split, its own settings and its index.
        """
        split, integers, device = drawn_by(**drawn)
        if integers:
            raise UsageError(f"integers is True; the task {self.name} has no lists of integers.")
        c, length = factor(scale), whole("n", self.NETWORK["n"] if n is None else n, least=2)
        where = choice("domain", ("ood" if c > 1 else "id") if domain is None else domain, ("id", "ood"))
        purpose = self._purpose(split, length, where, c)
        x = self._sequences(uniform(count, self.UNIFORMS or length, seed, device, *purpose), where, c)
        return self.laid_out(x, length), self.target(x)

    def laid_out(self, x: Tensor, n: int) -> Tensor:
        """Sequences as networks of n positions read them."""
        return x

    @abstractmethod
    def _purpose(self, split: str, n: int, where: str, c: float) -> tuple[str | int, ...]:
        """The name of the stream of random numbers."""

    @abstractmethod
    def _sequences(self, u: Float[Tensor, "*members count uniforms"], where: str, c: float) -> Tensor:
        """The sequences made from uniform numbers."""

    @abstractmethod
    def encode(self, text: str) -> Shaped[Tensor, " n"]:
        """The tokens of a text; raises with the place of the error if it is no text of this task."""

    @abstractmethod
    def spell(self, tokens: Shaped[Tensor, " n"]) -> str:
        """The text of a sequence of tokens."""

    def decode(self, tokens: Shaped[Tensor, "*batch n"] | Sequence[Any]) -> Any:
        """The text of one sequence, or a list of texts for several; plain Python lists are accepted."""
        try:
            x = torch.as_tensor(tokens)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"tokens is {shown(tokens)}; it must be a tensor, or numbers in lists of one length.") from error
        if not x.ndim or x.is_meta:
            raise UsageError(f"tokens is {shown(tokens)}; it must be a sequence of tokens, or several.")
        return self.spell(x) if x.ndim == 1 else [self.decode(row) for row in x]
