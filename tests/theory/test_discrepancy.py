"""Appendix G: the networks of the class are what they should be, and the discrepancy and its claims are right."""

import itertools

import pytest
import torch

import posattn
from posattn.guarantees import class_model, extremum_model
from posattn.theory.discrepancy import (
    Members,
    chance_of_both_ends,
    claimed_chance,
    empirical_discrepancy,
    extremum,
    least_length,
    part_of_the_class,
    rademacher,
    sample_integers,
    tree_of_extrema,
)


@pytest.mark.parametrize("n", [2, 4, 16])
def test_min_and_max_are_in_the_class_exactly(n):
    """As real models, in float32 on integers and in float64 on any numbers, at every position."""
    integers = sample_integers(300, n, 9) - 4
    for maximum, truth in ((False, torch.amin), (True, torch.amax)):
        model = extremum_model(n, maximum)
        answers = truth(integers, dim=1, keepdim=True).expand(-1, n)
        assert torch.equal(model(integers), answers)
        x = torch.randn(200, n, dtype=torch.float64)
        torch.testing.assert_close(
            model.double()(x), truth(x, dim=1, keepdim=True).expand(-1, n), rtol=1e-12, atol=1e-12
        )
    config = model.config
    assert (config.layers, config.heads, config.width) == (n.bit_length() - 1, 2, 4)
    for layer in model.layers:
        assert torch.equal(layer.attention.W_V.weight, torch.eye(2)) and torch.equal(
            layer.attention.W_O.weight, torch.eye(2)
        )


def random_members(n, count=3):
    layers = n.bit_length() - 1
    shapes = ((2, n, n), (3, 4), (4,))
    return Members(*(torch.randn(count, layers, *shape) for shape in shapes))


def test_a_member_is_the_formula_of_the_class_at_every_position_in_turn():
    members, x = random_members(4), torch.randn(5, 4)
    for index, (logits, w_1, w_2) in enumerate(zip(members.logits, members.W_1, members.W_2, strict=True)):
        for row, numbers in enumerate(x.tolist()):
            s = torch.tensor(numbers)
            for layer in range(2):
                attention = logits[layer].softmax(dim=-1)
                reads = [torch.stack([attention[0, i] @ s, attention[1, i] @ s, s[i]]) for i in range(4)]
                s = torch.stack([w_2[layer] @ torch.relu(w_1[layer].T @ g) for g in reads])
            assert float(members(x)[index, row]) == pytest.approx(float(s[-1]), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("n", [2, 8])
def test_members_are_real_models_of_the_class(n):
    """The model gives the member's answers, and has what the appendix asks for: W_V = W_O = I, width 4, log2 n layers."""
    members, x = random_members(n), torch.randn(50, n)
    for index, answers in enumerate(members(x)):
        model = class_model(members.member(index))
        torch.testing.assert_close(model(x)[:, -1], answers, rtol=1e-4, atol=1e-4)
        for layer in model.layers:
            assert torch.equal(layer.attention.W_V.weight, torch.eye(2))
            assert torch.equal(layer.attention.W_O.weight, torch.eye(2))
        assert model.config.width == 4 and len(model.layers) == n.bit_length() - 1
        assert (model.attention()[..., :n, n] == 0).all()  # nobody reads the scratchpad
    torch.testing.assert_close(members.member(1)(x)[0], members(x)[1])


def test_the_exact_members_are_min_and_max():
    x = torch.randn(100, 8)
    torch.testing.assert_close(extremum(8)(x)[0], x.amin(dim=1))
    torch.testing.assert_close(extremum(8, maximum=True)(x)[0], x.amax(dim=1))


def test_the_sampler_is_uniform_on_the_integers_and_splits_differ():
    x = sample_integers(20_000, 4, 3, seed=5)
    counts = torch.bincount(x.flatten().long(), minlength=4)
    assert len(counts) == 4 and (counts / counts.sum() - 0.25).abs().max() < 0.01
    assert not torch.equal(x, sample_integers(20_000, 4, 3, seed=5, split="test"))
    assert torch.equal(x[:10], sample_integers(10, 4, 3, seed=5))


def test_trees_by_brute_force():
    x = torch.randn(100, 4)
    assert torch.equal(tree_of_extrema(x, (False, False)), x.amin(dim=1))
    assert torch.equal(tree_of_extrema(x, (True, True)), x.amax(dim=1))
    assert torch.equal(tree_of_extrema(x, (True, False)), torch.stack([x[:, :2].amax(1), x[:, 2:].amax(1)]).amin(0))
    values = part_of_the_class(x)
    assert values.shape == (4 + 4, 100) and torch.equal(values[0], x.amin(1)) and torch.equal(values[3], x.amax(1))


def test_the_discrepancy_is_the_largest_over_pairs():
    train, test = sample_integers(400, 8, 3), sample_integers(300, 8, 5, split="test")
    found = empirical_discrepancy(train, test)
    ours = [
        abs(float((a - b).abs().mean() - (c - d).abs().mean()))
        for (a, c), (b, d) in itertools.combinations(
            zip(part_of_the_class(test), part_of_the_class(train), strict=True), 2
        )
    ]
    assert found.largest == pytest.approx(max(ours), rel=1e-5)
    ranges = [float((x.amax(1) - x.amin(1)).mean()) for x in (test, train)]
    assert found.min_and_max == pytest.approx(ranges[0] - ranges[1], rel=1e-5) and found.min_and_max <= found.largest


def test_the_terms_of_corollary_7_by_another_way():
    """disc + 4 (R_test + R_train), the complexities by all 2^m signs instead of random ones."""
    train, test = sample_integers(8, 4, 3), sample_integers(8, 4, 4, split="test")
    found = empirical_discrepancy(train, test, signs=40_000)
    exact = []
    for x in (train, test):
        values = part_of_the_class(x)
        sups = [
            max(float(values[g] @ torch.tensor(signs)) for g in range(len(values)))
            for signs in itertools.product((-1.0, 1.0), repeat=8)
        ]
        exact.append(sum(sups) / len(sups) / 8)
    assert (found.rademacher_train, found.rademacher_test) == pytest.approx(tuple(exact), rel=0.02)
    assert found.terms == pytest.approx(found.largest + 4 * sum(exact), rel=0.02)


@pytest.mark.parametrize("z", [1, 3])
def test_min_and_max_alone_make_the_discrepancy_z_for_long_lists_and_any_number_of_them(z):
    for m in (100, 2000):
        train, test = sample_integers(m, 64, 3), sample_integers(m, 64, 3 + z, split="test")
        assert empirical_discrepancy(train, test, signs=10).min_and_max == pytest.approx(z, abs=1e-2)


def test_rademacher_by_hand_and_its_fall_with_the_root_of_m():
    assert rademacher(torch.ones(1, 5), signs=20_000) == pytest.approx(0, abs=0.01)
    # {h, -h} with |h| = 1: E|Σ ε_i|/m, which is 3/8 of ... for m = 4: (4·2 + 2·8 + 0·6)/16/4 = 0.375
    assert rademacher(torch.tensor([[1.0] * 4, [-1.0] * 4]), signs=40_000) == pytest.approx(0.375, abs=0.01)
    small, large = (rademacher(part_of_the_class(sample_integers(m, 8, 3)), signs=400) for m in (100, 1600))
    assert large == pytest.approx(small / 4, rel=0.25)


@pytest.mark.parametrize(("n", "largest", "m"), [(4, 1, 1), (6, 3, 2), (10, 3, 1), (20, 4, 20)])
def test_the_chance_of_both_ends_against_simulation_and_the_claim(n, largest, m):
    x = sample_integers(20_000 * m, n, largest, seed=3).unflatten(0, (20_000, m))
    seen = ((x == 0).any(-1) & (x == largest).any(-1)).all(-1).double().mean()
    assert float(seen) == pytest.approx(chance_of_both_ends(n, largest, m), abs=0.015)
    assert claimed_chance(n, largest, m) <= chance_of_both_ends(n, largest, m)


@pytest.mark.parametrize(("largest", "z", "power"), [(3, 1, 1), (3, 1, 3), (1, 1, 2)])
def test_from_the_least_length_on_the_claim_holds(largest, z, power):
    n = least_length(largest, z, power)
    for longer in range(n, 3 * n):
        both = claimed_chance(longer, largest, longer**power) * claimed_chance(longer, largest + z, longer**power)
        assert both >= 0.81
    assert claimed_chance(n - 1, largest + z, (n - 1) ** power) < 0.9 or n <= 2 + power / 0.2


def test_lists_of_26_numbers_suffice_for_the_claimed_probability():
    """L = 3, z = 1, m = n: both samples hold both ends with probability 0.8 from n = 26 on, which the claim's bounds show."""
    for chance in (chance_of_both_ends, claimed_chance):
        both = [chance(n, 3, n) * chance(n, 4, n) for n in range(5, 80)]
        assert [p >= 0.8 for p in both] == [n >= 26 for n in range(5, 80)]


def test_bad_input_is_one_sentence():
    with pytest.raises(posattn.UsageError, match=r"^n is 6; it must be a power of two"):
        extremum_model(6)
    with pytest.raises(posattn.UsageError, match=r"^largest is 0"):
        sample_integers(3, 4, 0)
