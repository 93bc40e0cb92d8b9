"""The input of a compiled program: X of Lemma B.2, whose row i is the memory of machine i.

Letters: n machines, c numbers that a machine is given, N positions with spare machines and the sink.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from posattn.errors import UsageError


def within_bounds(
    x: Float[Tensor, "*batch"], n: int, bounds: tuple[tuple[float, float], ...]
) -> Float[Tensor, "*batch"]:
    """``x`` if each of its c inputs lies within its bounds: the weights of a program are right for no others."""
    c = len(bounds)
    if c > 1 and (x.ndim < 2 or x.shape[-1] != c):
        raise UsageError(f"the input has shape {tuple(x.shape)}; it must be (..., {n}, {c}).")
    if torch.compiler.is_compiling():  # an exported program cannot refuse
        return x
    for place, (low, high) in enumerate(bounds):
        numbers = x if c == 1 else x[..., place]
        if numbers.numel() and not bool(((numbers >= low) & (numbers <= high)).all()):
            found = f"{numbers.min().item():g} to {numbers.max().item():g}"
            raise UsageError(
                f"input {place} has numbers from {found}; the program was compiled for {low:g} to {high:g}."
            )
    return x


def memory_cells(
    x: Float[Tensor, "*batch"], positions: Int64[Tensor, " N"], c: int, numbered: bool
) -> Float[Tensor, "*any N d_in"]:
    """A machine's input and, if ``numbered``, its number in the last column; spare machines and the sink hold 0."""
    words = x[..., None] if c == 1 else x
    words = pad(words, (0, 0, 0, len(positions) - words.shape[-2]))
    if not numbered:
        return words
    return torch.cat([words, positions.to(x.dtype)[:, None].expand(*words.shape[:-1], 1)], dim=-1)


def check_numbers(numbers: Float[Tensor, "*batch N"], rounds: int) -> None:
    """Raises if a machine has overflowed: it then has no number but -1, less one for every round since."""
    if not torch.compiler.is_compiling() and bool((numbers < -0.5).any()):
        since = numbers.min()
        place = (numbers == since).nonzero()[0]
        r = rounds + 1 + round(since.item())
        raise UsageError(f"round {r}: machine {int(place[-1])} overflows; the program breaks the bound on its memory.")
