"""The network of the generalization proof (Eq. 9), as matrices, and its norms (the class of Eq. 10).

    F_l = σ([A_1 F W_V,1, ..., A_H F W_V,H, F] W_1) W_2,     A_h = softmax(P M_h Pᵀ) or softmax(F M_h Fᵀ),     F = F_{l-1}

with W_O absorbed into W_1, M = W_Q W_Kᵀ (divided by √d_k where the network does so), F_0 = X, and the scalar wᵀ F_L[i].
σ is ReLU, so L_σ = 1.

Letters: L layers, H heads, n positions, d width of F, d_V width of a head's values, k hidden width, B_X and B_P the largest
norm of a row of X and P.
"""

from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One layer of Eq. 9."""

    W_V: Float[Tensor, "H d d_V"]
    M: Float[Tensor, "H f f"]
    W_1: Float[Tensor, "HdV_d k"]
    W_2: Float[Tensor, "k d2"]


@dataclass(frozen=True)
class Network:
    """Eq. 9 with its readout. Attention depends on F if ``self_attention`` is true, else on ``P``."""

    layers: tuple[LayerWeights, ...]
    w: Float[Tensor, " d"]
    P: Float[Tensor, "n d_P"]
    B_X: float
    self_attention: bool = False

    def states(self, x: Float[Tensor, "*batch n d_X"]) -> list[Float[Tensor, "*batch n d"]]:
        """F_0, F_1, ..., F_L."""
        states = [x]
        for layer in self.layers:
            states.append(apply_layer(layer, states[-1], states[-1] if self.self_attention else self.P))
        return states

    def __call__(self, x: Float[Tensor, "*batch n d_X"]) -> Float[Tensor, "*batch n"]:
        """wᵀ F_L[i] for every position i."""
        return self.states(x)[-1] @ self.w


def attention(layer: LayerWeights, features: Float[Tensor, "*batch n f"]) -> Float[Tensor, "*batch H n n"]:
    """A_h = softmax(P M_h Pᵀ) for features P."""
    return (features[..., None, :, :] @ layer.M @ features[..., None, :, :].mT).softmax(dim=-1)


def mlp_input(
    layer: LayerWeights, f: Float[Tensor, "*batch n d"], features: Float[Tensor, "*any n f"]
) -> Float[Tensor, "*batch n HdV_d"]:
    """g of Eq. 15: [A_1 F W_V,1, ..., A_H F W_V,H, F]."""
    heads = attention(layer, features) @ (f[..., None, :, :] @ layer.W_V)
    return torch.cat([*heads.unbind(dim=-3), f], dim=-1)


def apply_layer(
    layer: LayerWeights, f: Float[Tensor, "*batch n d"], features: Float[Tensor, "*any n f"]
) -> Float[Tensor, "*batch n d2"]:
    """Eq. 9."""
    return torch.relu(mlp_input(layer, f, features) @ layer.W_1) @ layer.W_2


def row_norm(x: Float[Tensor, "*batch n d"]) -> float:
    """‖Xᵀ‖_{2,∞}: the largest norm of a row, over all matrices given."""
    return float(x.norm(dim=-1).max())


def spectral(w: Float[Tensor, "rows columns"]) -> float:
    """‖W‖_2."""
    return float(torch.linalg.matrix_norm(w.double(), ord=2))


def two_one(w: Float[Tensor, "rows columns"]) -> float:
    """‖W‖_{2,1}: the sum of the norms of the columns, which belong to the outputs of x ↦ x W."""
    return float(w.double().norm(dim=0).sum())


@dataclass(frozen=True)
class ClassNorms:
    """The norms that the bound depends on: the smallest class of Eq. 10 that contains a network."""

    L: int
    H: int
    n: int  # positions
    d: int  # the largest of d_X, d_V, k and d_out
    d_P: int
    B_2: float
    B_21: float
    B_w: float
    B_QK: float  # ‖M‖_2, for self-attention alone
    B_X: float
    B_P: float
    L_sigma: float = 1.0

    @classmethod
    def of(cls, network: Network) -> "ClassNorms":
        """The norms of ``network``; B_2 and B_{2,1} are at least one, as the theorem assumes."""
        table, layers = norm_table(network), network.layers
        mixing = table["matrix"].str.startswith("M")
        widths = [w.shape[-1] for layer in layers for w in (layer.W_V, layer.W_1, layer.W_2)]
        return cls(
            L=len(layers),
            H=len(layers[0].W_V),
            n=len(network.P),
            d=max(layers[0].W_V.shape[-2], *widths),
            d_P=network.P.shape[-1],
            B_2=max(1.0, float(table[~mixing]["spectral"].max())),
            B_21=max(1.0, float(table["two_one"].max())),
            B_w=float(network.w.double().norm()),
            B_QK=float(table[mixing]["spectral"].max()),
            B_X=network.B_X,
            B_P=row_norm(network.P),
        )

    def holds(self, other: "ClassNorms") -> bool:
        """Whether this class (Eq. 10) contains ``other``: the same layers, heads and positions, and no smaller norm."""
        norms = ("B_2", "B_21", "B_w", "B_QK", "B_X", "B_P", "L_sigma")
        same = (self.L, self.H, self.n) == (other.L, other.H, other.n)
        return same and all(getattr(other, name) <= getattr(self, name) for name in norms)


def norm_table(network: Network) -> pd.DataFrame:
    """‖·‖_2 and ‖·‖_{2,1} of every matrix: one row per layer and matrix; M = W_Q W_Kᵀ and W_V have one per head."""
    rows = []
    for index, layer in enumerate(network.layers, start=1):
        heads = {f"{name},{h}": w for name in ("M", "W_V") for h, w in enumerate(getattr(layer, name), start=1)}
        for name, w in (heads | {"W_1": layer.W_1, "W_2": layer.W_2}).items():
            rows.append({"layer": index, "matrix": name, "spectral": spectral(w), "two_one": two_one(w)})
    return pd.DataFrame(rows)
