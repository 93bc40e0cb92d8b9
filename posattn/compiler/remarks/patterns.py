"""Attention parameters from a wanted pattern: any softmax pattern (Remark B.2), hardmax patterns of all lengths (Remark B.1).

A softmax pattern B is row-stochastic with entries in (0, 1). With W_K = I the equation

    (P W_Q)(P W_K)ᵀ = √d_k ln B        has the solution        W_Q = √d_k P⁻¹ (ln B) P⁻ᵀ

whenever P is square and invertible. (The published runs divide logits by √d_k, so the factor is there.)

Hardmax patterns Ā^(k), one per length k up to n, need encodings that distinguish lengths. The text asks for O(n³) dimensions;
3n are enough. Let c_1..c_n be points on a circle, so that c_j · c_a is largest for j = a, and

    P^(k)_i = e_i ⊕ (e_k ⊗ c_i),      e_i W_Q = ⊕_k τ c_a(k,i),      (e_k ⊗ c_j) W_K = e_k ⊗ c_j,

where a(k, i) is the position that i attends to at length k. Then the logit of j is τ c_a(k,i) · c_j: the keys of each length
lie in their own plane, and W_Q holds a direction in every plane. Fewer than n dimensions do not suffice: at length n every row
may choose the first or the second position, so the signs of n rows times one vector must be free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.attention import attention_weights
from posattn.compiler.pcoc_to_weights import hardmax_temperature
from posattn.errors import UsageError, positive


def softmax_pattern(
    pattern: Float[Tensor, "n n"], encodings: Float[Tensor, "n d_P"]
) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """(W_Q, W_K), in float64, for which positional attention on ``encodings`` is ``pattern``."""
    b, p = pattern.double(), encodings.double()
    if b.ndim != 2 or b.shape[0] != b.shape[1]:
        raise UsageError(f"the pattern has shape {tuple(b.shape)}; it must be square.")
    if p.shape != b.shape or torch.linalg.matrix_rank(p) < len(p):
        raise UsageError(
            f"the encodings have shape {tuple(p.shape)}; they must be an invertible matrix of {len(b)} rows."
        )
    if not bool((b > 0).all()) or not bool(((b.sum(dim=-1) - 1).abs() < 1e-6).all()):
        raise UsageError("the pattern must have entries above 0 and rows that sum to 1; softmax gives no others.")
    n = len(b)
    # W_K = I: P W_Q Pᵀ = √n ln B.
    w_q = math.sqrt(n) * torch.linalg.solve(p, torch.linalg.solve(p, b.log().mT).mT)
    return w_q, torch.eye(n, dtype=torch.float64)


@dataclass(frozen=True)
class PatternsOfAllLengths:
    """One W_Q, one W_K and encodings per length, for which attention at length k is close to the k-th pattern."""

    encodings: tuple[Tensor, ...]
    w_q: Tensor
    w_k: Tensor
    temperature: float

    @property
    def dimension(self) -> int:
        """d_P."""
        return self.w_q.shape[0]

    def weights(self, length: int) -> Float[Tensor, "k k"]:
        if not 1 <= length <= len(self.encodings):
            raise UsageError(f"length is {length}; there are patterns of lengths 1 to {len(self.encodings)}.")
        p = self.encodings[length - 1]
        return attention_weights(p @ self.w_q, p @ self.w_k)


def all_lengths(patterns: Sequence[Float[Tensor, "_ _"]], epsilon: float) -> PatternsOfAllLengths:
    """Parameters for hardmax patterns of all lengths 1 to n, each met within ``epsilon``."""
    n = len(patterns)
    if not n:
        raise UsageError("no patterns are given; there must be one for each length from 1 on.")
    targets = []
    for k, pattern in enumerate(patterns, start=1):
        if pattern.shape != (k, k) or not bool(
            ((pattern == 0) | (pattern == 1)).all() and (pattern.sum(dim=-1) == 1).all()
        ):
            raise UsageError(f"pattern {k} must be {k} by {k}, with a single 1 in every row and zeros beside it.")
        targets.append(pattern.argmax(dim=-1))
    angles = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    circle = torch.stack([angles.cos(), angles.sin()], dim=-1)
    # The target's logit exceeds the others by at least τ (1 - cos(2π/n)), which Lemma B.3 calls 2T.
    gap = 1 - math.cos(2 * math.pi / n) if n > 1 else 1.0
    temperature = 2 * hardmax_temperature(n, positive("epsilon", epsilon)) / gap
    w_q, w_k = torch.zeros(3 * n, 2 * n, dtype=torch.float64), torch.zeros(3 * n, 2 * n, dtype=torch.float64)
    w_k[n:] = torch.eye(2 * n, dtype=torch.float64)
    encodings = []
    for k, target in enumerate(targets, start=1):
        plane = slice(2 * (k - 1), 2 * k)
        w_q[:k, plane] = temperature * math.sqrt(2 * n) * circle[target]
        encoding = torch.zeros(k, 3 * n, dtype=torch.float64)
        encoding[:, :k] = torch.eye(k, dtype=torch.float64)
        encoding[:, n:][:, plane] = circle[:k]
        encodings.append(encoding)
    return PatternsOfAllLengths(tuple(encodings), w_q, w_k, temperature)
