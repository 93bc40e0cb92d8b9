"""Certificates: sound against dense sampling, exact where the worst case is known, and the law they go with."""

import math
import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import posattn
from posattn.guarantees import certify_model, relu_matrices
from posattn.model import Architecture
from posattn.tasks import task
from posattn.theory.certificate import BREAKS, certify, largest_on_cube, linear_cells, signed_errors, worst_list
from posattn.theory.cones import bisect, bounds, largest_output, tighten, whole_network
from posattn.theory.law import law_factor, law_table


def random_matrices(n, widths, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = [n, *widths, n]
    return [torch.randn(b, a, generator=generator, dtype=torch.float64) / a**0.5 for a, b in pairwise(sizes)]


def inside(vertices, count, seed=0):
    """Points of every simplex: (count, B, n), and their weights."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, *vertices.shape[:2], generator=generator, dtype=torch.float64) ** 3
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return torch.einsum("cbk,bkn->cbn", weights, vertices), weights


# Cones


@given(st.integers(2, 4), st.integers(0, 10_000), st.floats(0.05, 3.0))
@settings(max_examples=25)
def test_bounds_of_every_layer_hold_inside_the_cone(n, seed, size):
    matrices = random_matrices(n, (7, 6, 5), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    centre = torch.randn(3, 1, n, generator=generator, dtype=torch.float64)
    vertices = centre + size * torch.randn(3, n, n, generator=generator, dtype=torch.float64)
    y = torch.zeros(3, n, n, dtype=torch.float64)
    cones, layers = tighten(whole_network(matrices, vertices, y))
    x, weights = inside(vertices, 200)
    z = x
    for k in matrices[:-1]:
        z = (z @ k.mT).relu()
    e = z @ matrices[-1].mT
    lower, upper = bounds(cones, layers, len(matrices) - 1)
    assert (torch.einsum("cbk,bok->cbo", weights, upper) >= e - 1e-9).all()
    assert (torch.einsum("cbk,bok->cbo", weights, lower) <= e + 1e-9).all()
    assert (largest_output(cones, layers) >= e.abs().amax(dim=(0, 2)) - 1e-9).all()


def test_stable_units_are_multiplied_out_exactly():
    """On a thin cone few ReLUs are unstable, and what is left with them still is the network."""
    matrices = random_matrices(3, (20, 20), 5)
    vertices = torch.tensor([[1.0, 0.5, -0.3]], dtype=torch.float64) + 0.2 * torch.randn(6, 3, 3, dtype=torch.float64)
    cones, _ = tighten(whole_network(matrices, vertices, torch.zeros(6, 3, 3, dtype=torch.float64)))
    assert 0 < sum(d.shape[1] for d in cones.D[:-1]) < 30
    x, weights = inside(vertices, 50)
    # z_l = D_l + Σ C_lk relu(z_k), evaluated at a point as the combination of vertices that it is
    for point, weight in zip(x, weights, strict=True):
        z = []
        for l, d in enumerate(cones.D):
            own = torch.einsum("bmk,bk->bm", d, weight)
            for k in range(l):
                own = own + torch.einsum("blm,bm->bl", cones.C[l, k], z[k].relu())
            z.append(own)
        expected = signed_errors(matrices, torch.zeros_like, point)[:, :3] * point.abs().amax(dim=1, keepdim=True)
        torch.testing.assert_close(z[-1], expected)


def test_bisection_covers_the_cone_and_lowers_its_bound():
    matrices = random_matrices(3, (9, 8), 1)
    vertices = linear_cells(task("min").target, BREAKS["min"](3))
    cones, layers = tighten(whole_network(matrices, vertices, task("min").target(vertices)))
    before = largest_output(cones, layers)
    halves, their_layers = tighten(bisect(cones, layers))
    after = largest_output(halves, their_layers).view(2, -1).amax(dim=0)
    assert (after <= before + 1e-9).all() and after.sum() < 0.9 * before.sum()
    volumes = torch.linalg.det(halves.V).abs().view(2, -1).sum(dim=0)
    torch.testing.assert_close(volumes, torch.linalg.det(cones.V).abs())


@pytest.mark.parametrize("name", list(BREAKS))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_cells_cover_the_boundary_of_the_cube_and_the_task_is_linear_on_each(name, n):
    target = task(name).target
    cells = linear_cells(target, BREAKS[name](n))
    assert torch.linalg.det(cells).abs().sum() / torch.arange(1, n + 1).prod() == pytest.approx(
        2**n
    )  # as cones, the cube
    assert (cells.abs().amax(dim=-1) - 1).abs().max() < 1e-9
    x, weights = inside(cells, 200)
    torch.testing.assert_close(target(x), torch.einsum("cbk,bko->cbo", weights, target(cells)))


# Certificates


def test_an_error_known_by_hand_is_certified_exactly():
    """x_i = relu(x_i) - relu(-x_i); the first output is 1.1 x_1 where x_1 > 0, so the worst error is 0.1."""
    split = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    out = torch.tril(torch.ones(3, 3)).double()
    out = torch.cat([out, -out], dim=1)
    out[0, 0] = 1.1
    found = certify([split, out], task("sum").target, "sum")
    assert found.adversarial == pytest.approx(0.1) and found.bound == pytest.approx(0.1, rel=1e-6) and found.complete
    assert found.worst[0] == pytest.approx(1)


@pytest.mark.parametrize("name", list(BREAKS))
def test_the_certificate_is_above_every_error_and_close_to_the_largest(name):
    matrices = random_matrices(3, (8, 8), 2)
    target = task(name).target
    found = certify(matrices, target, name, ratio=1.2)
    assert found.complete and 1 <= found.ratio <= 1.2
    x = 2 * torch.rand(300_000, 3, dtype=torch.float64) - 1
    errors = signed_errors(matrices, target, x).amax(dim=1)
    assert errors.max() <= found.bound and found.adversarial >= 0.999 * errors.max()
    worst = torch.tensor([found.worst], dtype=torch.float64)
    assert float(signed_errors(matrices, target, worst).max()) == pytest.approx(found.adversarial)


def test_out_of_time_it_is_still_sound_and_says_so():
    matrices = random_matrices(3, (16, 16), 3)
    quick = certify(matrices, task("sort").target, "sort", ratio=1 + 1e-6, seconds=1e-6)
    longer = certify(matrices, task("sort").target, "sort", ratio=1.5)
    assert not quick.complete and longer.complete and quick.bound >= longer.adversarial and quick.ratio > 1 + 1e-6


@pytest.mark.parametrize("seconds", [1e-6, 0.4, 1.5])
def test_the_time_is_a_hard_limit_and_what_it_leaves_open_is_bounded_all_the_same(seconds):
    """Lists of 6, for which bounding every cone just once takes many seconds."""
    matrices, target = random_matrices(6, (60, 60), 4), task("sort").target
    start = time.process_time()
    found = certify(matrices, target, "sort", ratio=1 + 1e-6, seconds=seconds)
    assert time.process_time() - start <= seconds + 1.0 and found.seconds <= seconds + 1.0
    assert not found.complete and math.isfinite(found.bound)
    x = 2 * torch.rand(20_000, 6, dtype=torch.float64) - 1
    assert signed_errors(matrices, target, x).max() <= found.bound


def test_the_bound_on_the_whole_cube_holds_and_is_exact_for_one_linear_map():
    matrices, target = random_matrices(3, (9, 8), 6), task("min").target
    y = target(linear_cells(target, BREAKS["min"](3)))
    x = 2 * torch.rand(50_000, 3, dtype=torch.float64) - 1
    errors = signed_errors(matrices, target, x) * x.abs().amax(dim=1, keepdim=True)
    assert errors.max() <= largest_on_cube(matrices, y)
    alone = [torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)]
    assert largest_on_cube(alone, torch.zeros(1, 2, 2, dtype=torch.float64)) == 3.5
    assert largest_on_cube(alone, torch.full((1, 2, 2), -2.0, dtype=torch.float64)) == 5.5


@pytest.fixture(scope="module")
def model():
    """A small scale-exact model, trained a little."""
    config = posattn.ModelConfig(3, "scale-exact", embed=8, width=6)
    return posattn.train("min", config, samples=2000, epochs=15, batch=100, recipe="tuned", device="cpu").model()


def test_the_matrices_are_the_model(model):
    x = torch.randn(50, 3, dtype=torch.float64)
    matrices = relu_matrices(model)
    errors = signed_errors(matrices, torch.zeros_like, x)[:, :3] * x.abs().amax(dim=1, keepdim=True)
    torch.testing.assert_close(errors, model.double()(x))
    model.float()


def test_a_models_certificate_holds_at_every_scale(model):
    found = certify_model(model, "min", ratio=1.5)
    assert found.complete and found.ratio <= 1.5
    for limit in (1e-3, 1.0, 1e3):
        x = limit * (2 * torch.rand(20_000, 3) - 1)
        with torch.no_grad():
            errors = (model(x) - task("min").target(x)).abs().max()
        assert errors <= found.at(limit) * (1 + 1e-4) and errors > 0.3 * found.at(limit)


def test_the_search_finds_what_dense_sampling_does_not_pass():
    matrices = random_matrices(4, (12, 12), 7)
    target = task("sum").target
    worst = worst_list(matrices, target, lists=2000)
    x = 2 * torch.rand(200_000, 4, dtype=torch.float64) - 1
    assert signed_errors(matrices, target, worst[None]).max() >= signed_errors(matrices, target, x).max()


def test_what_cannot_be_certified_is_refused(model, monkeypatch):
    diagonal = Architecture("position", diagonal_input=True, biases=False)
    monkeypatch.setitem(posattn.ARCHITECTURES, "diagonal", diagonal)
    for arch, why in (
        ("positional", "has biases"),
        ("standard", "has attention that depends on the input"),
        ("misaligned", "reads more than the numbers at each position"),
        ("diagonal", "reads more than the numbers at each position"),
    ):
        config = posattn.ModelConfig(3, arch, bias=arch == "positional")
        sentence = (
            rf"^the {arch} network {why}; the certificate is for bias-free positional networks \(--arch scale-exact\)"
        )
        with pytest.raises(posattn.UsageError, match=sentence):
            certify_model(posattn.Transformer(config), "sum")
    with pytest.raises(posattn.UsageError, match=r"^ratio is 1.0; it must be above 1\.$"):
        certify_model(model, "sum", ratio=1.0)
    with pytest.raises(posattn.UsageError, match=r"^n is 8; the certificate is for lists of at most 6 numbers\.$"):
        certify_model(posattn.pretrained("sum", arch="scale-exact"), "sum")
    with pytest.raises(posattn.UsageError, match="it cannot be certified"):
        certify(relu_matrices(model), torch.square, "min")
    with pytest.raises(posattn.UsageError, match="task is 'range'"):
        certify(relu_matrices(model), torch.square, "range")


# The law


def test_the_factor():
    assert law_factor(10) == 101 and law_factor(0.5) == 0.25 and law_factor(1) == 1
    with pytest.raises(posattn.UsageError, match="scale is 0"):
        law_factor(0)


def test_trained_weights_obey_the_law_and_others_do_not():
    model = posattn.Frozen(posattn.pretrained("sum", arch="scale-exact"))
    table = law_table(model, task("sum"), 8, (0.5, 3, 10), samples=10_000)
    assert table["scale"].tolist() == [1, 0.5, 3, 10]
    assert ((table["ratio"] - 1).abs() <= 5 * table["noise"] + 1e-3).all() and (table["noise"] < 0.05).all()
    with_biases = law_table(posattn.Frozen(posattn.pretrained("sum")), task("sum"), 8, (10,), samples=2000)
    assert with_biases["ratio"].iloc[-1] > 2


def test_networks_that_are_not_finite_get_no_certificate_and_no_bound():
    model = posattn.Transformer(posattn.ModelConfig(3, "scale-exact", embed=8, width=8))
    with torch.no_grad():
        model.decoder.weight[0, 0] = float("nan")
    for asked in (lambda: certify_model(model, "sum"), lambda: posattn.generalization_bound(model, samples=100)):
        with pytest.raises(posattn.UsageError, match=r"^decoder\.weight of the model has entries that are not finite"):
            asked()


def test_numbers_beyond_float64_certify_nothing():
    huge = [torch.full((2, 2), 1e170, dtype=torch.float64)] * 2
    with pytest.raises(posattn.UsageError, match="no bound on them can be certified"):
        largest_on_cube(huge, torch.zeros(1, 2, 2, dtype=torch.float64))
