"""Attention over offsets, against its definition written out position by position."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posattn.looped import LoopedConfig
from posattn.looped.families import MIDDLE, OUTWARDS, Loop
from posattn.looped.offsets import OffsetAttention, edges, rows

CASES = [("dilated", n) for n in (1, 2, 3, 5, 16, 23)] + [("butterfly", n) for n in (1, 2, 3, 6, 8, 13)]
CASES += [("selector", n) for n in (1, 2, 3, 6, 9)]


def attention(family, heads=3, sharpness=2.0, d=6):
    torch.manual_seed(0)
    made = OffsetAttention(d, heads, d // heads, family, sharpness).double()
    return made.requires_grad_(False)


def digit(number, place):
    return number >> place & 1


def class_of(i, n, loop):
    if loop.stage is None:
        return 0
    middle = [j for j in range(n) if abs(2 * j - (n - 1)) <= 1]  # one, or two if n is even
    left, right = middle[0], middle[-1]
    if loop.stage == MIDDLE:
        return {left: 4, right: 5}.get(i, 6)
    if loop.stage == OUTWARDS:
        return 1 if i <= left - loop.stride else 3 if i >= right + loop.stride else 6
    return 2 * digit(i // loop.stride, 0) + (digit(i, loop.stage) != digit(n - 1, loop.stage))


def written_out(layer, x, loop):
    """(⊕_h A_h X W_V,h) W_O and m, one position and one head at a time."""
    n, values = len(x), x @ layer.W_V.weight.T
    width, attended, shares = values.shape[1] // layer.heads, torch.zeros_like(values), torch.ones(n).double()
    for i in range(n):
        c = class_of(i, n, loop)
        for h in range(layer.heads):
            weights = torch.softmax(layer.sharpness * layer.logits[h, c], dim=0)
            outside = 0.0
            for r, weight in zip(layer.family.candidates, weights, strict=False):
                j = i + r * loop.stride
                columns = slice(h * width, (h + 1) * width)
                if 0 <= j < n:
                    attended[i, columns] += weight * values[j, columns]
                else:
                    outside += weight
            shares[i] *= 1 - outside
    return attended @ layer.W_O.weight.T, shares


@pytest.mark.parametrize(("family", "n"), CASES)
def test_equals_its_definition_in_every_loop(family, n):
    layer, x = attention(family), torch.randn(n, 6, dtype=torch.float64)
    for loop in layer.family.loops(n):
        a, m = layer.weights(n, loop)
        expected, share = written_out(layer, x, loop)
        torch.testing.assert_close(layer.mix(a, layer.W_V(x), loop), expected)
        torch.testing.assert_close(m, share)
        middle = n // 2  # and a part of the positions
        torch.testing.assert_close(layer.mix(a[:, middle:], layer.W_V(x), loop, middle), expected[middle:])


@pytest.mark.parametrize(("family", "n"), CASES)
def test_its_matrix_has_rows_that_sum_to_one_and_gives_the_same_values(family, n):
    layer, x = attention(family), torch.randn(n, 6, dtype=torch.float64)
    for loop in layer.family.loops(n):
        dense = layer.matrix(n, loop)
        torch.testing.assert_close(dense.sum(dim=-1), torch.ones(3, n + 1).double())
        blank = torch.cat([layer.W_V(x), torch.zeros(1, 6).double()]).unflatten(-1, (3, 2)).transpose(0, 1)
        mixed = (dense @ blank)[:, :n].transpose(0, 1).flatten(1) @ layer.W_O.weight.T
        torch.testing.assert_close(mixed, layer.mix(layer.weights(n, loop)[0], layer.W_V(x), loop))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(-12, 12), st.integers(1, 9))
def test_rows_are_the_lists_own_and_blank_outside(n, start, count):
    x = torch.arange(1, n + 1).float()[:, None]
    expected = [[float(i + 1)] if 0 <= i < n else [0.0] for i in range(start, start + count)]
    assert rows(x, start, start + count).tolist() == expected


def test_edges_are_the_strong_entries_of_the_matrices():
    layer, n = attention("butterfly", sharpness=3.0), 11
    for loop, found in zip(layer.family.loops(n), edges(layer, n, 0.4), strict=True):
        strong = (layer.matrix(n, loop)[:, :n, :n].amax(dim=0) >= 0.4).nonzero().tolist()
        assert sorted((i, j) for j, i, _ in found) == sorted(tuple(pair) for pair in strong) and found


def test_sharpness_makes_softmax_hard():
    soft, sharp = attention("dilated", sharpness=1.0), attention("dilated", sharpness=1e4)
    assert soft.table().amax() < 0.9
    assert ((sharp.table() == 0) | (sharp.table() == 1)).all()
    assert torch.equal(sharp.table().argmax(-1), soft.table().argmax(-1))
    assert Loop(4) == Loop(4, None)


def test_an_edge_has_some_weight():
    """In float32 a least weight of 1e-300 is 0, which places outside the list have."""
    attention = LoopedConfig(n=5).build().layer.attention
    assert all(0 <= j < 5 and weight > 0 for loop in edges(attention, 5, 1e-300) for j, _, weight in loop)
