"""Which loops and classes the families have, and that exchanges by them scan, sort and select."""

import pytest
import torch

from posattn.looped.families import FAMILIES, MIDDLE, depth


def test_a_scan_doubles_its_reach_and_no_position_looks_ahead():
    for n in range(1, 70):
        loops = FAMILIES["dilated"].loops(n)
        assert [loop.stride for loop in loops] == [2**step for step in range(depth(n))]
        assert 2 ** len(loops) >= n and (n == 1 or 2 ** (len(loops) - 1) < n)
    assert max(FAMILIES["dilated"].candidates) == 0


@pytest.mark.parametrize("n", range(1, 34))
def test_exchanges_by_the_classes_of_the_butterfly_sort_lists_of_every_length(n):
    """The classes say who keeps the smaller number; partners outside the list count as infinite."""
    family, numbers = FAMILIES["butterfly"], torch.randn(50, n, generator=torch.Generator().manual_seed(n))
    expected = numbers.sort(dim=-1).values
    for loop in family.loops(n):
        classes = family.class_of(n, loop)
        partner = torch.arange(n) + torch.where(classes < 2, loop.stride, -loop.stride)
        paired = partner < n
        assert (partner >= 0).all() and (partner[partner[paired]] == torch.arange(n)[paired]).all()
        other = numbers[:, partner.clamp(max=n - 1)]
        less = (classes == 0) | (classes == 3)
        kept = torch.where(less, torch.minimum(numbers, other), torch.maximum(numbers, other))
        numbers = torch.where(paired, kept, numbers)
    assert torch.equal(numbers, expected)


@pytest.mark.parametrize("n", range(1, 34))
def test_after_sorting_the_selector_carries_the_middle_to_every_position_in_logarithmic_depth(n):
    family, sorter = FAMILIES["selector"], FAMILIES[FAMILIES["selector"].extends]
    loops, sorting = family.loops(n), sorter.loops(n)
    assert loops[: len(sorting)] == sorting and family.candidates == sorter.candidates
    assert len(loops) - len(sorting) <= 1 + depth(n)
    for loop in sorting:
        assert torch.equal(family.class_of(n, loop), sorter.class_of(n, loop))
    known = {(n - 1) // 2, n // 2}  # who has the median
    for loop in loops[len(sorting) :]:
        classes = family.class_of(n, loop).tolist()
        if loop.stage == MIDDLE:
            assert n % 2 == 0 and classes[n // 2 - 1 : n // 2 + 1] == [4, 5] and classes.count(6) == n - 2
            continue
        steps = {1: loop.stride, 3: -loop.stride, 6: 0}
        known |= {i for i, c in enumerate(classes) if i + steps[c] in known}
    assert known == set(range(n))
