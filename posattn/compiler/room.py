"""How many numbers a compiled network will hold, and whether they fit into the free memory of this computer."""

from itertools import pairwise

import torch

from posattn.compiler.compiled_model import CompiledConfig
from posattn.devices import free_bytes
from posattn.errors import UsageError

_NUMBER = 8  # bytes: weights are float64
_KEPT = 0.95  # the share of free memory that weights may take


def attention_parameters(n: int, heads: int, embed: int, d_v: int) -> int:
    """Parameters of one layer's attention on n positions: W_Q and W_K (d_P = d_k = n), W_V and W_O, with biases."""
    return 2 * heads * n * (n + 1) + heads * d_v * (embed + 1) + embed * (heads * d_v + 1)


def mlp_parameters(embed: int, hidden: tuple[int, ...]) -> int:
    return sum((a + 1) * b for a, b in pairwise((2 * embed, *hidden, embed)))


def parameters(config: CompiledConfig) -> int:
    """How many parameters a compiled network has, without building it."""
    layer = attention_parameters(config.positions, config.heads, config.embed, config.d_v)
    ends = (config.input_dim + 1) * config.embed + (config.embed + 1) * config.outputs
    return ends + sum(layer + mlp_parameters(config.embed, hidden) for hidden in config.mlp)


def require_room(name: str, count: int, least: bool = False) -> None:
    """Raises if ``count`` numbers do not fit into free memory; ``least`` says that ``count`` is a lower bound."""
    needed, free = count * _NUMBER, free_bytes(torch.device("cpu"))
    if needed > _KEPT * free:
        raise UsageError(
            f"{name} would hold {'at least ' * least}{count:.3g} numbers, {needed / 2**30:.3g} GiB, and "
            f"{free / 2**30:.3g} GiB are free; take fewer machines, or a SelectionNetwork, which holds no large matrices."
        )
