"""How many numbers a compiled network will hold, and whether they fit into the free memory of this computer."""

from itertools import pairwise

from posattn.devices import require_room

_NUMBER = 8 / 0.95  # bytes: weights are float64, and building them takes a twentieth of the memory beside


def attention_parameters(n: int, heads: int, embed: int, d_v: int, sparse: bool = False) -> int:
    """Numbers of one layer's attention on n positions: W_Q and W_K (d_P = d_k = n), W_V and W_O, with biases; or indices."""
    if sparse:
        return n * heads
    return 2 * heads * n * (n + 1) + heads * d_v * (embed + 1) + embed * (heads * d_v + 1)


def mlp_parameters(embed: int, hidden: tuple[int, ...]) -> int:
    return sum((a + 1) * b for a, b in pairwise((2 * embed, *hidden, embed)))


def require_room_for(name: str, count: int, sparse: bool = False) -> None:
    """Raises if a program whose network holds at least ``count`` numbers does not fit into free memory."""
    fewer = "; take fewer machines" + ("" if sparse else ", or a sparse network (sparse=True, --sparse)")
    require_room(f"{name} compiles to {count:.3g} numbers or more, which", count * _NUMBER, instead=fewer)
