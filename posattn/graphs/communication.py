"""The communication of a trained positional network: which edges its answers need, and which known pattern a layer resembles.

Attention is constant, so the network is a static graph: an edge (ℓ, h, i, j) with the weight A_ij of head h in layer ℓ lets
position i hear position j. A large weight matters little if its value is small, the same for all lists, or unused later. The
*effect* of an edge is how far the answers move, to first order, if i hears the mean of j's messages in place of the message:

    effect(ℓ, h, i, j) = A_ij · rms_x ‖ ∂y/∂a_i · W_Oᵀ (v_j - v̄_j) ‖,        v = X W_V of head h,  a = (⊕_h A v) W_O.

Letters: L layers, H heads, n numbers in a list, N = n + 1 positions with the scratchpad, B lists, d width, x lists, y answers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from posattn.attention import merge_heads, split_heads
from posattn.errors import UsageError, shown, whole
from posattn.model import Layer, Transformer
from posattn.network import require

Weights = Float[Tensor, "L H N N"]

STEPS = 32  # points of the curve of errors, between which cutting searches more finely


def graph_weights(model: nn.Module) -> Weights:
    """A of a positional network; raises for others, whose attention needs an input."""
    if not isinstance(model, Transformer):
        raise UsageError(f"the network is a {type(model).__name__}; a graph is drawn of Transformers.")
    for ability in ("graph", "communicate"):
        require(model.config, ability)
    return model.attention().detach()


def _check_batch(x: object) -> None:
    """Raises unless ``x`` is a batch of lists."""
    if not isinstance(x, Tensor) or x.ndim != 2:
        raise UsageError(f"x is {shown(x)}; it must be a tensor of lists, (batch, n).")


def edges_between(weights: Weights) -> Bool[Tensor, "L H N N"]:
    """The edges between two different positions; an edge from a position to itself is no communication."""
    return (weights > 0) & ~torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device)


# --- effects -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """A network's forward pass: the answers, and per layer the values and what the positions heard."""

    answers: Float[Tensor, "B n"]
    values: list[Float[Tensor, "B H N d_V"]]
    heard: list[Float[Tensor, "B N d"]]


def trace(
    model: Transformer,
    x: Float[Tensor, "B n"],
    weights: Weights,
    beside: Sequence[Float[Tensor, "*B H N d_V"]] | None = None,
) -> Trace:
    """The forward pass over ``x`` with the attention ``weights``; each layer's heads also hear what is in ``beside``."""
    values: list[Tensor] = []
    heard: list[Tensor] = []
    z, _, _ = model.encode(x)
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        values.append(split_heads(layer.attention.W_V(z), layer.attention.heads))
        own = weights[index] @ values[-1]
        heard.append(layer.attention.W_O(merge_heads(own if beside is None else own + beside[index])))
        z = layer.update(heard[-1], z)
    return Trace(model.decode(z), values, heard)


def effects(model: Transformer, x: Float[Tensor, "B n"]) -> Weights:
    """The effect of every edge on the answers to ``x``."""
    weights = graph_weights(model)
    _check_batch(x)
    with torch.enable_grad():
        passed = trace(model, x.detach().requires_grad_(), weights)  # so that frozen weights have gradients too
    spoken = [_beyond_the_mean(values.detach()) for values in passed.values]
    squared = torch.zeros_like(weights)
    for answer in passed.answers.unbind(dim=-1):
        # Lists do not interact, so the gradient of the sum over lists holds each list's own gradient.
        slopes = torch.autograd.grad(answer.sum(), passed.heard, retain_graph=True)
        for index, (layer, slope, own) in enumerate(zip(model.layers, slopes, spoken, strict=True)):
            assert isinstance(layer, Layer)
            heads = split_heads(layer.attention.W_O.weight.detach(), own.shape[1])  # (H, d, d_V)
            # (B, H, N, N): how far this answer moves per unit of weight that i gives to j in head h.
            squared[index] += ((slope[:, None] @ heads) @ own.mT).square().mean(dim=0)
    return weights * squared.sqrt()


def _beyond_the_mean(values: Float[Tensor, "B H N d_V"]) -> Float[Tensor, "B H N d_V"]:
    """v - v̄, and 0 where the difference is only rounding."""
    mean = values.mean(dim=0)
    own = values - mean
    return own * (own.abs() > 16 * torch.finfo(own.dtype).eps * mean.abs())


# --- cutting -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How many edges can be cut, weakest first, before the error is too large; ``curve`` has pairs (edges cut, error)."""

    how: str
    edges: int
    error: float
    allowed: dict[str, int]
    curve: tuple[tuple[int, float], ...]


def silenced(model: Transformer, x: Float[Tensor, "B n"], kept: Bool[Tensor, "L H N N"]) -> Float[Tensor, "B n"]:
    """The answers if every edge that is not ``kept`` carries the sender's mean message over ``x``."""
    weights = graph_weights(model)
    _check_batch(x)
    if not isinstance(kept, Tensor) or kept.dtype != torch.bool or kept.shape != weights.shape:
        raise UsageError(f"kept is {shown(kept)}; it must be torch.bool of shape {tuple(weights.shape)}.")
    lost, values = weights * ~kept, trace(model, x, weights).values
    means = [lost[index] @ value.mean(dim=0) for index, value in enumerate(values)]
    return trace(model, x, weights * kept, means).answers


def renormalised(model: Transformer, x: Float[Tensor, "B n"], kept: Bool[Tensor, "L H N N"]) -> Float[Tensor, "B n"]:
    """The answers if edges that are not ``kept`` have weight 0, and the others of a row are scaled to sum to one."""
    weights = graph_weights(model) * kept
    return trace(model, x, weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)).answers


def cuts(model: Transformer, x: Float[Tensor, "B n"], y: Float[Tensor, "B n"], strength: Weights) -> list[Cut]:
    """Both ways of cutting, weakest edge first: *silenced* ordered by ``strength``, *renormalised* by attention."""
    weights = graph_weights(model)
    every, edges = torch.ones_like(weights, dtype=torch.bool), edges_between(weights).nonzero()
    found = []
    for way, order in ((silenced, strength), (renormalised, weights)):
        weakest = edges[order[tuple(edges.T)].argsort(stable=True)]
        found.append(_cut(way.__name__, partial(way, model, x), y, every, weakest))
    return found


def _cut(
    how: str,
    answers: Callable[[Tensor], Tensor],  # of the network, with the edges that are kept
    y: Float[Tensor, "B n"],
    every: Bool[Tensor, "L H N N"],
    edges: Int64[Tensor, "edges four"],
) -> Cut:
    @cache
    @torch.no_grad()
    def error(count: int) -> float:
        kept = every.clone()
        kept[tuple(edges[:count].T)] = False
        return float((answers(kept) - y).square().mean())

    step = -(-len(edges) // STEPS)
    steps = [*range(0, len(edges), step), len(edges)]
    variance = float((y - y.mean(dim=0)).square().mean())
    limits = {"the error doubles": 2 * error(0), "1% of the answers' variance": 0.01 * variance}
    allowed = {name: _most(error, steps, limit) for name, limit in limits.items()}
    return Cut(how, len(edges), error(0), allowed, tuple((count, error(count)) for count in steps))


def _most(error: Callable[[int], float], steps: list[int], limit: float) -> int:
    """The largest number of edges with an error within ``limit``: finds the first of ``steps`` above it, then bisects."""
    for before, after in pairwise(steps):
        if error(after) > limit:
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (before, middle) if error(middle) > limit else (middle, after)
            return before
    return steps[-1]


# --- patterns ------------------------------------------------------------------------------------------------------------


def scan_edges(n: int, offset: int) -> Iterator[tuple[int, int]]:
    """Edges (i, j): every position i hears the one ``offset`` before it, as in a round of a parallel prefix."""
    return ((i, i - offset) for i in range(offset, n))


def tree_edges(n: int, offset: int) -> Iterator[tuple[int, int]]:
    """The edges of ``scan_edges`` that a binary tree with its root at the end has (the orange arrows of Figure 7)."""
    return ((i, j) for i, j in scan_edges(n, offset) if (n - 1 - i) % (2 * offset) == 0)


def butterfly_edges(n: int, offset: int) -> Iterator[tuple[int, int]]:
    """Partners hear each other, as in bitonic sort and the Beneš network: j = i xor offset."""
    return ((i, i ^ offset) for i in range(n) if i ^ offset < n)


PATTERNS = {"scan": scan_edges, "tree": tree_edges, "butterfly": butterfly_edges}


@dataclass(frozen=True)
class Likeness:
    """How a layer divides its communication, in shares of 1.

    ``earlier``, ``later``: heard from positions before and after the receiver; ``scratchpad``: from or to the scratchpad.
    ``patterns``: per pattern the largest share on its edges, over offsets 1, 2, 4, ..., and the offset that gives it.
    ``uniform``: the same shares in a layer where all edges between two positions are equally strong.
    """

    earlier: float
    later: float
    scratchpad: float
    patterns: dict[str, tuple[float, int]]
    uniform: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        shares = {"earlier": self.earlier, "later": self.later, "scratchpad": self.scratchpad}
        return shares | {
            name: {"share": share, "offset": offset, "uniform": self.uniform[name]}
            for name, (share, offset) in self.patterns.items()
        }


def likeness(strength: Float[Tensor, "H N N"], n: int) -> Likeness | None:
    """The likeness of a layer, from the strength of its edges summed over heads; None if there is no communication."""
    if not isinstance(strength, Tensor) or strength.ndim != 3 or strength.shape[-1] != strength.shape[-2]:
        raise UsageError(f"strength is {shown(strength)}; it must be a tensor of the edges of every head, (heads, N, N).")
    size = strength.shape[-1]
    whole("n", n, most=size)
    mass = strength.sum(dim=0) * ~torch.eye(size, dtype=torch.bool, device=strength.device)
    total = float(mass.sum())
    if not total > 0:
        return None
    among = mass[:n, :n]
    offsets = [1 << k for k in range(max(1, (n - 1).bit_length()))]
    patterns, uniform = {}, {}
    for name, pattern in PATTERNS.items():
        shares = {offset: _on(among, list(pattern(n, offset))) / total for offset in offsets}
        best = max(shares, key=lambda offset: shares[offset])
        patterns[name] = (shares[best], best)
        uniform[name] = len(list(pattern(n, best))) / (size * (size - 1))
    earlier, later = float(among.tril(-1).sum()) / total, float(among.triu(1).sum()) / total
    return Likeness(earlier, later, max(0.0, 1 - earlier - later), patterns, uniform)


def _on(mass: Float[Tensor, "n n"], edges: list[tuple[int, int]]) -> float:
    where: Int64[Tensor, "edges two"] = torch.tensor(edges, dtype=torch.int64, device=mass.device).view(-1, 2)
    return float(mass[where[:, 0], where[:, 1]].sum())
