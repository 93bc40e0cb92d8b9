"""Linear bounds of a bias-free ReLU network on simplicial cones, many at once.

The network z_1 = K_1 x, z_l = K_l relu(z_{l-1}), e = K_{L+1} relu(z_L) - y(x) is positively homogeneous, and so is everything
in it. A cone has n generators ("vertices") v_1..v_n. A linear function is determined by its n values at the vertices, and its
maximum on their simplex is the largest of these. So bounds are stored as values at vertices.

With l <= z <= u linear on the cone, an unstable ReLU (of either sign there) lies between two linear functions,

    s z  <=  relu(z)  <=  s z + m,     s in [0, 1],     m(v_k) = max(relu(l_k) - s l_k, relu(u_k) - s u_k):

relu(z) - s z is convex in z and nonnegative, and a convex function is below the linear one through its values at the vertices.
Stable ReLUs are linear and are multiplied out. What is left is

    z_l = D_l + Σ_{k<l} C_lk relu(z_k)      over unstable ReLUs alone, D_l linear,

which shrinks as cones get smaller. That makes a search over many small cones cheap.

Letters: B cones, n vertices, m_l unstable units of layer l, the last "layer" being the outputs e.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Blocks = dict[tuple[int, int], Float[Tensor, "B _ _"]]  # C_lk: (B, m_l, m_k)


@dataclass(frozen=True)
class Cones:
    """A batch of cones, each with what is left of the network on it."""

    V: Float[Tensor, "B n n"]  # vertices as rows
    D: list[Float[Tensor, "B _ n"]]  # (B, m_l, n): values at the vertices
    C: Blocks

    def __len__(self) -> int:
        return len(self.V)

    def __getitem__(self, index: Tensor | slice) -> "Cones":
        return Cones(self.V[index], [d[index] for d in self.D], {at: c[index] for at, c in self.C.items()})


@dataclass(frozen=True)
class Relaxed:
    """The unstable ReLUs of one layer: slope s, excess m at the vertices, and (l + u)/2 there."""

    slope: Float[Tensor, "B m_l"]
    excess: Float[Tensor, "B m_l n"]
    middle: Float[Tensor, "B m_l n"]

    def __getitem__(self, index: Tensor | slice) -> "Relaxed":
        return Relaxed(self.slope[index], self.excess[index], self.middle[index])


def whole_network(
    matrices: list[Float[Tensor, "_ _"]], V: Float[Tensor, "B n n"], y: Float[Tensor, "B n outputs"]
) -> Cones:
    """The whole network on cones with vertices ``V``, where the target is ``y`` (B, vertex, output)."""
    first, *rest = matrices
    nothing = [V.new_zeros(1, len(k), V.shape[1]).expand(len(V), -1, -1) for k in rest[:-1]]
    blocks = {(l, l - 1): k.expand(len(V), -1, -1) for l, k in enumerate(rest, start=1)}
    return Cones(V, [first @ V.mT, *nothing, -y.mT], blocks)


def tighten(cones: Cones) -> tuple[Cones, list[Relaxed]]:
    """Layer by layer, bounds the units, multiplies stable ones out and relaxes the others."""
    layers: list[Relaxed] = []
    for l in range(len(cones.D) - 1):
        lower, upper = bounds(cones, layers, l)
        active, unstable = lower.amin(dim=-1) >= 0, (lower.amin(dim=-1) < 0) & (upper.amax(dim=-1) > 0)
        kept = _unstable_first(unstable)
        cones = _eliminate(cones, l, active, unstable, kept)
        there = unstable.gather(1, kept)[..., None]  # False for padding, which is zero from here on
        layers.append(_relax(_rows(lower, kept) * there, _rows(upper, kept) * there))
    return cones, layers


def _relax(lower: Float[Tensor, "B m n"], upper: Float[Tensor, "B m n"]) -> Relaxed:
    low, high = lower.amin(dim=-1), upper.amax(dim=-1)
    slope = high / (high - low).clamp(min=torch.finfo(high.dtype).tiny)
    s = slope[..., None]
    excess = torch.maximum(lower.relu() - s * lower, upper.relu() - s * upper)
    return Relaxed(slope, excess, (lower + upper) / 2)


def _eliminate(
    cones: Cones, k: int, active: Bool[Tensor, "B m"], unstable: Bool[Tensor, "B m"], kept: Int64[Tensor, "B most"]
) -> Cones:
    """Moves active units of layer k into D and C of the layers above, drops dead ones and keeps the ``kept`` ones."""
    D, C = list(cones.D), dict(cones.C)
    there = unstable.gather(1, kept)[..., None].to(D[k].dtype)
    for l in range(k + 1, len(D)):
        if (l, k) in C:
            through = C[l, k] * active[:, None]
            D[l] = D[l] + through @ D[k]
            for i in range(k):
                if (k, i) in C:
                    C[l, i] = _added(C.get((l, i)), through @ C[k, i])
            C[l, k] = (_rows(C[l, k].mT, kept) * there).mT
    for i in range(k):
        if (k, i) in C:
            C[k, i] = _rows(C[k, i], kept) * there
    D[k] = _rows(D[k], kept) * there
    return Cones(cones.V, D, C)


def bounds(
    cones: Cones, layers: list[Relaxed], l: int, from_below: list[Float[Tensor, "B _"]] | None = None
) -> tuple[Float[Tensor, "B m_l n"], Float[Tensor, "B m_l n"]]:
    """Lower and upper linear bounds of z_l: from the top down, ReLUs of earlier layers are replaced by their bounds.

    ``from_below`` gives other slopes for ReLUs that are bounded from below; that takes one pass per side.
    """
    chord = [own.slope for own in layers]
    if from_below is None:
        return _substituted(cones, layers, l, chord, chord)[:2]
    _, upper, _ = _substituted(cones, layers, l, chord, from_below)
    lower, _, _ = _substituted(cones, layers, l, from_below, chord)
    return lower, upper


def _substituted(
    cones: Cones, layers: list[Relaxed], l: int, rising: list[Tensor], falling: list[Tensor]
) -> tuple[Float[Tensor, "B m_l n"], Float[Tensor, "B m_l n"], dict[int, Float[Tensor, "B m_l _"]]]:
    """Bounds of D_l + Σ C_lk relu(z_k): ``rising`` are the slopes of ReLUs with positive coefficients, ``falling`` of others.

    The lower bound holds if ``falling`` are the chords' slopes, the upper one if ``rising`` are. Last, the coefficients by k.
    """
    value, above, below = cones.D[l], torch.zeros(()), torch.zeros(())
    coefficients: dict[int, Tensor] = {k: cones.C[l, k] for k in range(l) if (l, k) in cones.C}
    for k in range(l - 1, -1, -1):
        if k not in coefficients:
            continue
        positive = coefficients[k].clamp(min=0)
        negative = coefficients[k] - positive
        above, below = above + positive @ layers[k].excess, below + negative @ layers[k].excess
        through = positive * rising[k][:, None] + negative * falling[k][:, None]
        value = value + through @ cones.D[k]
        for i in range(k):
            if (k, i) in cones.C:
                coefficients[i] = _added(coefficients.get(i), through @ cones.C[k, i])
    return value + below, value + above, coefficients


def largest_output(cones: Cones, layers: list[Relaxed]) -> Float[Tensor, " B"]:
    """An upper bound of max |e| on each cone's simplex: per output and side, the better of two choices of slopes."""
    last = len(cones.D) - 1
    nearest = [(own.middle.mean(dim=-1) > 0).to(own.slope.dtype) for own in layers]  # 0 or 1
    sides = []
    for slopes in (None, nearest):
        lower, upper = bounds(cones, layers, last, slopes)
        sides.append(torch.stack([upper.amax(dim=-1), -lower.amin(dim=-1)]))
    return torch.minimum(*sides).amax(dim=(0, 2))


def bisect(cones: Cones, layers: list[Relaxed]) -> Cones:
    """Cuts every cone in two, at the middle of the edge along which the relaxation of the ReLUs loses most."""
    B, n = cones.V.shape[:2]
    lengths = (cones.V[:, :, None] - cones.V[:, None]).norm(dim=-1)
    # On an edge where z goes from -q to p, the chord exceeds relu by min(p, q)/2 in the middle. It counts as much as the ReLU's
    # largest coefficient in any output.
    loss, chord = torch.zeros_like(lengths), [own.slope for own in layers]
    coefficients = _substituted(cones, layers, len(cones.D) - 1, chord, chord)[2]
    for k in sorted(coefficients):
        own, weight = layers[k], coefficients[k].abs().amax(dim=1)
        p, q = own.middle.relu() * weight[..., None], (-own.middle).relu() * weight[..., None]
        one_way = torch.minimum(p[..., :, None], q[..., None, :]).sum(dim=1)
        loss = loss + one_way + one_way.mT
    long_enough = lengths >= 0.25 * lengths.amax(dim=(1, 2), keepdim=True)  # so that cones do not degenerate
    edge = torch.where(long_enough, loss + 1e-12 * lengths, -1.0).flatten(1).argmax(dim=1)
    rows, i, j = torch.arange(B), edge // n, edge % n

    def halves(values: Tensor) -> Tensor:
        """The values (B, ., n) at the vertices of both halves: one lacks vertex i, the other j, and both have the middle."""
        one, other, middle = values.clone(), values.clone(), (values[rows, :, i] + values[rows, :, j]) / 2
        one[rows, :, i], other[rows, :, j] = middle, middle
        return torch.cat([one, other])

    D, C = [halves(values) for values in cones.D], {at: torch.cat([block, block]) for at, block in cones.C.items()}
    return Cones(halves(cones.V.mT).mT, D, C)


def _added(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


def _unstable_first(unstable: Bool[Tensor, "B m"]) -> Int64[Tensor, "B most"]:
    """Indices of the unstable units, padded with others to the largest number that a cone of the batch has."""
    most = int(unstable.sum(dim=1).max())
    return unstable.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]


def _rows(x: Float[Tensor, "B m q"], index: Int64[Tensor, "B most"]) -> Float[Tensor, "B most q"]:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
