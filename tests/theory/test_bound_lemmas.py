"""The lemmas and the cover of Appendix C against random and adversarial weights.

The corrected ones hold; the printed ones are broken where docs/errata.md says so.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from posattn.theory.bound import ATTENTION, Term, layer_constants
from posattn.theory.matrices import (
    ClassNorms,
    LayerWeights,
    Network,
    apply_layer,
    attention,
    mlp_input,
    row_norm,
    spectral,
    two_one,
)

N, D, D_V, K, D_P = 5, 3, 2, 7, 4  # positions, state, values, hidden, encodings


def largest_row(x):
    return x.norm(dim=-1).amax()


def random_layer(heads, self_attention, size=1.0, dtype=torch.float64):
    f = D if self_attention else D_P
    shapes = ((heads, D, D_V), (heads, f, f), (heads * D_V + D, K), (K, D))
    return LayerWeights(*(size * torch.randn(*shape, dtype=dtype) for shape in shapes))


def random_network(layers, heads, self_attention, size=1.0):
    built = tuple(random_layer(heads, self_attention, size) for _ in range(layers))
    p = torch.nn.functional.normalize(torch.randn(N, D_P, dtype=torch.float64), dim=-1)
    return Network(built, torch.randn(D, dtype=torch.float64), p, 1.0, self_attention)


def near(network, distance):
    """The network with every matrix moved."""
    moved = tuple(
        LayerWeights(*(w + distance * torch.randn_like(w) for w in (l.W_V, l.M, l.W_1, l.W_2))) for l in network.layers
    )
    return replace(network, layers=moved)


# Lemma C.3


@given(st.integers(2, 12), st.floats(-6, 2), st.integers(0, 10_000))
def test_softmax_is_two_lipschitz_and_in_fact_one_lipschitz(n, log_step, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(n, generator=generator, dtype=torch.float64)
    y = x + 10**log_step * torch.randn(n, generator=generator, dtype=torch.float64)
    moved = (x.softmax(0) - y.softmax(0)).abs().sum()
    assert moved <= (x - y).abs().max() * (1 + 1e-9) + 1e-15


def test_the_softmax_constant_one_is_reached():
    """Half of the mass goes up and half of it down."""
    x, step = torch.zeros(6, dtype=torch.float64), 1e-6
    y = x + step * torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)
    assert (x.softmax(0) - y.softmax(0)).abs().sum() / step == pytest.approx(1, rel=1e-6)


# Lemma C.5


def optimal_split(a, b, epsilon):
    """The ε_i and Σ a_i/ε_i² = ν³/ε² by the terms of the bound."""
    terms = [Term(1, "V", math.log(a_i), math.log(b_i)) for a_i, b_i in zip(a, b, strict=True)]
    nu = sum(math.exp(term.log_nu) for term in terms)
    return [epsilon * math.exp(term.log_split) / nu for term in terms], nu**3 / epsilon**2


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=6), st.floats(0.1, 10))
def test_the_split_of_epsilon_is_feasible_and_its_value_is_what_it_gives(pairs, epsilon):
    a, b = (list(column) for column in zip(*pairs, strict=True))
    split, value = optimal_split(a, b, epsilon)
    assert sum(b_i * e for b_i, e in zip(b, split, strict=True)) == pytest.approx(epsilon)
    assert sum(a_i / e**2 for a_i, e in zip(a, split, strict=True)) == pytest.approx(value)


def test_no_other_split_is_better():
    a, b, epsilon = [2.0, 0.3, 11.0], [0.5, 4.0, 1.0], 0.7
    _, value = optimal_split(a, b, epsilon)

    def cost(logs):
        raw = [math.exp(v) for v in logs]
        scale = epsilon / sum(b_i * r for b_i, r in zip(b, raw, strict=True))
        return sum(a_i / (scale * r) ** 2 for a_i, r in zip(a, raw, strict=True))

    best = min(
        minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-8}).fun for start in ([0, 0, 0], [2, -1, 1])
    )
    assert best == pytest.approx(value, rel=1e-5)


def test_the_printed_split_with_a_1_in_every_place_is_not_feasible():
    a, b, epsilon = [2.0, 0.3, 11.0], [0.5, 4.0, 1.0], 0.7
    nu = sum(a_i ** (1 / 3) * b_i ** (2 / 3) for a_i, b_i in zip(a, b, strict=True))
    printed = [epsilon * (a[0] / b_i) ** (1 / 3) / nu for b_i in b]
    assert abs(sum(b_i * e for b_i, e in zip(b, printed, strict=True)) / epsilon - 1) > 0.1


# Lemma C.6


def sides_of_c6(layer, other, z, z_hat, p):
    """The left side, and the three parts of the right: by the state, by M, by W_V."""
    left = largest_row(mlp_input(layer, z, p) - mlp_input(other, z_hat, p))
    logits = largest_row(((layer.M - other.M) @ p.mT).mT)
    values = ((layer.W_V - other.W_V).mT @ z_hat.mT).mT.norm(dim=-1).amax()
    return left, largest_row(z - z_hat), 2 * largest_row(z) * largest_row(p) * logits, values


def printed_c6(layer, other, z, z_hat, p):
    left, state, logits, values = sides_of_c6(layer, other, z, z_hat, p)
    factor = max(1.0, *(spectral(w) for w in layer.W_V))
    return float(left / (factor * (state + logits) + math.sqrt(len(layer.W_V)) * values))


def corrected_c6(layer, other, z, z_hat, p):
    """sqrt(1 + Σ_h ‖W_V,h‖²) for the state and sqrt(Σ_h ‖W_V,h‖²) for M, in place of max(‖W_V‖, 1) for both."""
    left, state, logits, values = sides_of_c6(layer, other, z, z_hat, p)
    squares = torch.linalg.matrix_norm(layer.W_V, ord=2).square().sum()
    return left / ((1 + squares).sqrt() * state + squares.sqrt() * logits + math.sqrt(len(layer.W_V)) * values)


def test_the_printed_attention_lemma_is_broken_by_the_square_root_of_h_plus_one():
    """Two heads, W_V = I, and a shift that is the same for all rows: every block of g moves by the whole shift."""
    layer = replace(random_layer(2, False), W_V=torch.eye(D, dtype=torch.float64).expand(2, D, D))
    z, p = torch.randn(N, D, dtype=torch.float64), torch.randn(N, D_P, dtype=torch.float64)
    shifted = z + torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    assert printed_c6(layer, layer, z, shifted, p) == pytest.approx(math.sqrt(3))
    assert float(corrected_c6(layer, layer, z, shifted, p)) == pytest.approx(1)


def test_the_part_of_the_logits_lacks_a_root_of_h_too():
    """With nine heads whose weights all move alike; softmax's constant of 2, where 1 would do, hides it up to H = 4."""
    heads, step = 9, 1e-4
    still = torch.zeros(heads, 2, 2, dtype=torch.float64)
    moved = still + step * torch.tensor([[1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    values = torch.eye(2, dtype=torch.float64).expand(heads, 2, 2)
    layer, other = (LayerWeights(values, m, torch.zeros(1, 1), torch.zeros(1, 1)) for m in (still, moved))
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    p = torch.eye(2, dtype=torch.float64)
    assert printed_c6(layer, other, z, z, p) == pytest.approx(math.sqrt(heads) / 2, rel=1e-3)
    assert float(corrected_c6(layer, other, z, z, p)) == pytest.approx(1 / 2, rel=1e-3)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_the_corrected_attention_lemma_survives_an_adversary(heads):
    """Gradient ascent on the ratio of the two sides, from random weights: it nears 1 and does not pass it."""
    torch.manual_seed(heads)
    start = (random_layer(heads, False), random_layer(heads, False))
    points = torch.randn(2, N, D, dtype=torch.float64)
    free = [start[0].W_V, start[0].M, start[1].W_V, start[1].M, *points, torch.randn(N, D_P, dtype=torch.float64)]
    ratios = []
    for step in range(150):
        free = [t.detach().requires_grad_() for t in free]
        layer, other = (replace(each, W_V=v, M=m) for each, v, m in zip(start, free[0:4:2], free[1:4:2], strict=True))
        ratio = corrected_c6(layer, other, *free[4:])
        ratios.append(ratio.item())
        slopes = torch.autograd.grad(ratio, free)
        free = [t + 0.1 * 0.99**step * slope / (slope.norm() + 1e-12) for t, slope in zip(free, slopes, strict=True)]
    assert ratios[0] < max(ratios) <= 1 + 1e-9 and max(ratios) > 0.5


def test_the_attention_lemma_holds_with_the_transpose_that_the_cover_bounds_and_the_two_differ():
    """Entries p_i ΔM p_j are at most ‖ΔMᵀ p_i‖ ‖p_j‖ as well as ‖p_i‖ ‖ΔM p_j‖. C.6 has ΔM P, the cover (ΔM)ᵀ P."""
    p = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    moved = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert largest_row((moved @ p.mT).mT) == 1 and largest_row((moved.mT @ p.mT).mT) == 0  # one may vanish alone
    for trial in range(50):
        torch.manual_seed(trial)
        layer, other = random_layer(2, False), random_layer(2, False)
        other = replace(other, W_V=layer.W_V)
        z, p = torch.randn(N, D, dtype=torch.float64), torch.randn(N, D_P, dtype=torch.float64)
        left = largest_row(mlp_input(layer, z, p) - mlp_input(other, z, p))
        transposed = (p @ (layer.M - other.M)).norm(dim=-1).amax()
        squares = torch.linalg.matrix_norm(layer.W_V, ord=2).square().sum()
        assert left <= squares.sqrt() * 2 * largest_row(z) * largest_row(p) * transposed


# Lemma C.7 and Eq. 18: the network's deviation from a cover's element


def class_of(*networks):
    """The smallest class that holds all of them, at inputs of norm one."""
    found = [ClassNorms.of(each) for each in networks]
    largest = {name: max(getattr(each, name) for each in found) for name in ("B_2", "B_21", "B_QK", "B_w")}
    return replace(found[0], **largest)


def deviation(network, other, x, radius=1.0):
    """‖F_L - F̂_L‖ over Σ α (ε_W2 + β ε_W1 + γ ε_QK + η ε_V), the parts measured on the other network's own states."""
    kind = ATTENTION[network.self_attention]
    norms = replace(class_of(network, other), B_X=radius)
    total = 0.0
    states, states_hat = network.states(x), other.states(x)
    for own, layer, hat, f in zip(
        layer_constants(norms, kind, False), network.layers, other.layers, states_hat[:-1], strict=True
    ):
        features = f if network.self_attention else network.P
        g = mlp_input(hat, f, features)
        parts = {
            "W_2": largest_row(torch.relu(g @ hat.W_1) @ (layer.W_2 - hat.W_2)),
            "W_1": largest_row(g @ (layer.W_1 - hat.W_1)) * math.exp(own.beta),
            "QK": (features[..., None, :, :] @ (layer.M - hat.M)).norm(dim=-1).amax() * math.exp(own.gamma),
            "V": (f[..., None, :, :] @ (layer.W_V - hat.W_V)).norm(dim=-1).amax() * math.exp(own.eta),
        }
        total += math.exp(own.alpha) * float(sum(parts.values()))
    return float(largest_row(states[-1] - states_hat[-1])) / total


@pytest.mark.parametrize("self_attention", [False, True])
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 2), (2, 3), (4, 2)])
def test_the_deviation_of_a_network_is_within_what_the_cover_allows(self_attention, layers, heads):
    for trial in range(15):
        network = random_network(layers, heads, self_attention, size=0.3 + 0.1 * trial)
        other = near(network, 10.0 ** (-trial / 4))
        x = torch.nn.functional.normalize(torch.randn(6, N, D, dtype=torch.float64), dim=-1)
        assert 0 < deviation(network, other, x) <= 1


def normalised(x):
    """Rows projected to the unit ball, as the Remark has it."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1)


def normalised_states(network, x):
    """F_0, ..., F_L and g_1, ..., g_L of the network whose every g and F is projected."""
    states, inputs = [x], []
    for layer in network.layers:
        features = states[-1] if network.self_attention else network.P
        inputs.append(normalised(mlp_input(layer, states[-1], features)))
        states.append(normalised(torch.relu(inputs[-1] @ layer.W_1) @ layer.W_2))
    return states, inputs


@pytest.mark.parametrize("self_attention", [False, True])
@pytest.mark.parametrize(("layers", "heads"), [(1, 2), (3, 2), (4, 1)])
def test_normalised_networks_stay_within_the_constants_of_the_remark(self_attention, layers, heads):
    """Radii R_1 = B_X, R_l = 1, ‖g‖ <= 1, ‖σ(g W_1)‖ <= B_2, and the deviation by Eq. 18, from inputs of norm 3."""
    for trial in range(10):
        network = random_network(layers, heads, self_attention, size=0.3 + 0.2 * trial)
        other = near(network, 10.0 ** (-trial / 3))
        x = 3 * torch.nn.functional.normalize(torch.randn(6, N, D, dtype=torch.float64), dim=-1)
        constants = layer_constants(replace(class_of(network, other), B_X=3.0), ATTENTION[self_attention], True)
        (states, _), (states_hat, inputs_hat) = (normalised_states(each, x) for each in (network, other))
        total = 0.0
        for l, (own, layer, hat) in enumerate(zip(constants, network.layers, other.layers, strict=True)):
            f, g = states_hat[l], inputs_hat[l]
            hidden = torch.relu(g @ hat.W_1)
            for measured, log_radius in ((f, own.radius), (g, own.mlp_radius), (hidden, own.hidden_radius)):
                assert row_norm(measured) <= math.exp(log_radius) * (1 + 1e-9)
            features = f if self_attention else network.P
            parts = (
                largest_row(hidden @ (layer.W_2 - hat.W_2)),
                largest_row(g @ (layer.W_1 - hat.W_1)) * math.exp(own.beta),
                (features[..., None, :, :] @ (layer.M - hat.M)).norm(dim=-1).amax() * math.exp(own.gamma),
                (f[..., None, :, :] @ (layer.W_V - hat.W_V)).norm(dim=-1).amax() * math.exp(own.eta),
            )
            total += math.exp(own.alpha) * float(sum(parts))
        assert 0 < float(largest_row(states[-1] - states_hat[-1])) <= total
    assert row_norm(states_hat[0]) == pytest.approx(math.exp(constants[0].radius)) == pytest.approx(3)


def test_the_value_term_reads_the_other_networks_state():
    """Lemma C.7 prints F(X; W) there; with F(X; W) = 0 and F(X; Ŵ) = 1 the printed right side is 1 and the left about 10."""
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    m = torch.zeros(1, 2, 2, dtype=torch.float64)
    first = LayerWeights(zero[None], m, torch.tensor([[0.0], [1.0]], dtype=torch.float64), one)
    reads = torch.tensor([[1.0], [0.0]], dtype=torch.float64)  # W_1 of the second layer takes the head's output
    network, other = (
        Network((replace(first, W_2=w_2), LayerWeights(w_v[None], m, reads, one)), one[0], torch.eye(2).double(), 1.0)
        for w_2, w_v in ((zero, zero), (one, 10 * one))
    )
    x = torch.ones(2, 1, dtype=torch.float64)
    (_, f, out), (_, f_hat, out_hat) = network.states(x), other.states(x)
    left, moved = float(largest_row(out - out_hat)), float(largest_row(f - f_hat))
    values = [float(largest_row(own @ (network.layers[1].W_V - other.layers[1].W_V)[0])) for own in (f, f_hat)]
    assert left == 10 and moved == 1 and values == [0, 10]  # printed: 1 + 0; with Ŵ: 1 + 10
    assert moved + values[0] < left <= moved + values[1]


def constant_network(layers, heads):
    """Every W_V the identity, W_1 summing all blocks, all norms as the class allows: a shift grows by Λ a layer."""
    d = 1
    one = torch.ones(heads, d, d, dtype=torch.float64)
    w_1 = torch.ones(heads * d + d, 1, dtype=torch.float64) / math.sqrt(heads + 1)
    layer = LayerWeights(one, torch.zeros(heads, 2, 2, dtype=torch.float64), w_1, torch.ones(1, 1, dtype=torch.float64))
    return Network((layer,) * layers, torch.ones(1, dtype=torch.float64), torch.eye(2, dtype=torch.float64), 1.0)


def test_alpha_counts_the_layers_above_and_not_those_below():
    """A change in the first of five layers is multiplied by the four above it: sqrt(1 + H)^4; α as printed says 1."""
    network = constant_network(5, 2)
    first = replace(network.layers[0], W_2=1.001 * network.layers[0].W_2)
    moved = replace(network, layers=(first, *network.layers[1:]))
    x = torch.ones(2, 1, dtype=torch.float64)
    measured = largest_row(network.states(x)[-1] - moved.states(x)[-1])
    epsilon = 0.001 * float(network.states(x)[1].max())  # ε_W2 of layer 1
    assert float(measured) / epsilon == pytest.approx(3**2)
    constants = layer_constants(class_of(network), "positional", False)
    assert math.exp(constants[0].alpha) == pytest.approx(3**2) and math.exp(constants[-1].alpha) == 1


def test_gamma_grows_with_the_input():
    """Attention mixes rows of X, so what a change of the logits does is proportional to B_X, which the printed γ lacks."""
    layer = LayerWeights(
        torch.ones(1, 1, 1, dtype=torch.float64),
        torch.zeros(1, 2, 2, dtype=torch.float64),
        torch.tensor([[1.0], [0.0]], dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.float64),
    )
    moved = replace(layer, M=layer.M + torch.tensor([[0.1, -0.1], [0.1, -0.1]], dtype=torch.float64))
    p = torch.eye(2, dtype=torch.float64)
    x = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    changes = [
        float(largest_row(apply_layer(layer, size * x, p) - apply_layer(moved, size * x, p))) for size in (1.0, 100.0)
    ]
    assert changes[1] == pytest.approx(100 * changes[0])
    network = Network((layer,), torch.ones(1, dtype=torch.float64), p, 1.0)
    norms = class_of(network)
    small, large = (layer_constants(replace(norms, B_X=size), "positional", False)[0].gamma for size in (1.0, 100.0))
    assert large - small == pytest.approx(math.log(100))
    assert deviation(network, replace(network, layers=(moved,)), 100 * x, radius=100.0) <= 1


@pytest.mark.parametrize("heads", [1, 2])
def test_the_radii_bound_the_states_and_are_reached(heads):
    """At H = B_2 = 1 too, where B_l = 2^(l/2) and (H L_σ B_2)^O(L) is 1."""
    network = constant_network(4, heads)
    largest = class_of(network).B_2
    assert largest == pytest.approx(1)
    x = torch.ones(2, 1, dtype=torch.float64)
    constants = layer_constants(class_of(network), "positional", False)
    assert (
        math.exp(constants[-1].B) == pytest.approx((heads + 1) ** 2) == pytest.approx(row_norm(network.states(x)[-1]))
    )
    for state, own in zip(network.states(x), constants, strict=False):
        assert row_norm(state) == pytest.approx(
            math.exp(own.radius)
        )  # so W_V of layer l reads rows of norm B_{l-1} B_X


def test_the_printed_product_of_queries_and_keys_can_vanish_while_the_logits_do_not():
    w_q = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    w_k = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert two_one(w_k.mT @ w_q) == 0
    m = (5 * w_q @ w_k.mT)[None]
    assert two_one(m[0]) == 5
    layer = LayerWeights(m, m, m[0], m[0])
    assert float(attention(layer, torch.eye(2, dtype=torch.float64))[0, 0, 1]) > 0.99


def test_the_four_of_kappa_is_two_of_softmax_and_two_of_the_logits():
    """κ = 1 + (softmax's constant of Lemma C.3) · (how fast logits move) · R, the second found by moving both sides."""
    radius, b_qk, step = 1.7, 0.9, 1e-6
    aligned = torch.tensor([[radius, 0.0]], dtype=torch.float64)
    inwards = aligned * (1 - step / radius)  # by ``step``, and still within the radius
    logits = [float(b_qk * (f @ f.mT)) for f in (aligned, inwards)]  # M = B_QK I
    speed = (logits[0] - logits[1]) / step
    norms = ClassNorms(L=1, H=2, n=2, d=2, d_P=2, B_2=1.0, B_21=1.0, B_w=1.0, B_QK=b_qk, B_X=radius, B_P=1.0)
    found = math.exp(layer_constants(norms, "self-attention", False)[0].lipschitz)
    kappa = math.sqrt((found**2 - 1) / 2)  # Λ = sqrt(1 + H κ²)
    assert kappa == pytest.approx(1 + 2 * speed * radius, rel=1e-5)


def test_self_attention_multiplies_norms_of_queries_and_keys_into_its_lipschitz_constant():
    """A shift of one row moves the logits of a network with a large M, and so its attention; the positional one stays put."""
    torch.manual_seed(3)
    small, large = random_network(1, 1, True, 1.0), random_network(1, 1, True, 1.0)
    large = replace(large, layers=(replace(small.layers[0], M=30 * small.layers[0].M),))
    x = torch.nn.functional.normalize(torch.randn(200, N, D, dtype=torch.float64), dim=-1)
    step = 1e-5 * torch.nn.functional.normalize(torch.randn(200, N, D, dtype=torch.float64), dim=-1)
    slopes = [
        float((each.states(x + step)[-1] - each.states(x)[-1]).norm(dim=-1).amax() / 1e-5) for each in (small, large)
    ]
    bounds = [
        math.exp(layer_constants(class_of(each), "self-attention", False)[0].lipschitz) for each in (small, large)
    ]
    assert slopes[1] > 2 * slopes[0] and slopes[0] <= bounds[0] and slopes[1] <= bounds[1]


# The cover: the display before Eq. 20, and elements that leave the class


def printed_constants(L, H=1.0, B2=2.0):
    """α, β, γ, η and B of the last layer as printed, with L_σ = B_P = 1."""
    growth = B2**2 * math.sqrt(1 + H * B2**2)
    return B2 ** (3 * L - 3), B2, 2 * growth ** (L - 1) * B2**3, math.sqrt(H) * B2**2, growth**L


def test_the_display_before_equation_20_needs_b_2_to_the_6l_and_b_l_to_the_fourth():
    """H B_L² α² (β² + γ² + η²) is within a constant of B_2^6L B_L⁴ H², and leaves B_2^3L B_L² H² behind exponentially."""
    for H in (1.0, 4.0):
        for L in range(1, 13):
            alpha, beta, gamma, eta, B = printed_constants(L, H)
            before = H * B**2 * alpha**2 * (beta**2 + gamma**2 + eta**2)
            assert before <= 6 * 2.0 ** (6 * L) * B**4 * H**2
            assert L == 1 or before > 8.0**L * 2.0 ** (3 * L) * B**2 * H**2


def test_elements_of_a_sparse_cover_leave_the_class_and_moving_them_into_it_doubles_the_radius():
    """W = I has ‖W‖_2 = 1, ‖W‖_{2,1} = 4; a mean of k atoms of norm 4, of which covers are made, has a larger ‖·‖_2."""
    atoms = 4 * torch.eye(4, dtype=torch.float64)
    x = torch.nn.functional.normalize(torch.randn(50, 4, dtype=torch.float64), dim=-1)
    for k in (1, 2, 6):
        picked = torch.bincount(torch.randint(4, (k,)), minlength=4).double() / k
        assert spectral(torch.diag(picked) @ atoms) > 1 and two_one(torch.diag(picked) @ atoms) == pytest.approx(4)
    # Outside elements u, each replaced by a member of the class within ε of it: what was within ε of u is within 2ε.
    members = torch.stack([torch.diag(torch.rand(4, dtype=torch.float64)) for _ in range(200)])
    outside = torch.stack([members[i] + 0.1 * torch.randn(4, 4, dtype=torch.float64) for i in range(0, 200, 4)])
    between = torch.stack([(x @ (u - members)).norm(dim=-1).amax(dim=-1) for u in outside])  # (outside, member)
    epsilon = between.amin(dim=0).amax()  # the radius of the cover from outside
    used = between.amin(dim=1) <= epsilon
    inside = members[between.argmin(dim=1)[used]]
    radius = torch.stack([(x @ (v - members)).norm(dim=-1).amax(dim=-1) for v in inside]).amin(dim=0).amax()
    assert radius <= 2 * epsilon
