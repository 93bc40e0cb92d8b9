"""The bound of a model: its matrices are the model's, its arithmetic is the proof's, and it grows as the theory says."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posattn
from posattn.theory.bound import evaluate, layer_constants
from posattn.theory.models import features_of, network_of
from posattn.theory.network import ClassNorms, norm_table, row_norm, spectral, two_one

NORMS = ClassNorms(L=3, H=2, n=5, d=7, d_P=4, B_2=1.5, B_21=3.0, B_w=0.8, B_QK=2.0, B_X=1.7, B_P=1.2)
COVERED = ["positional", "scale-exact", "standard", "positional-input", "misaligned", "no-encoding"]


@pytest.mark.parametrize("arch", COVERED)
def test_the_matrices_of_equation_9_make_the_models_outputs(arch, lively):
    """W_O absorbed, biases and encoder too; a shorter list has fewer rows of P."""
    model = lively(n=7, arch=arch, embed=10, width=11, heads=2)
    x = torch.randn(4, 7, dtype=torch.float64)
    network = network_of(model)
    torch.testing.assert_close(network(features_of(model, x))[..., :-1], model(x))
    assert network.self_attention == (model.config.design.attends == "input")


@pytest.mark.parametrize("arch", ["positional", "standard", "positional-input"])
def test_the_radius_of_the_input_is_reached_and_not_passed(arch, lively):
    model = lively(n=5, arch=arch, embed=4, width=3)
    x = 4 * torch.rand(500, 5, dtype=torch.float64) - 2
    x[0, 0] = -2
    assert row_norm(features_of(model, x)) == pytest.approx(network_of(model).B_X)


def test_norms_by_hand():
    w = torch.tensor([[3.0, 0.0], [4.0, 2.0]])
    assert two_one(w) == 7 and spectral(w) == pytest.approx(float(torch.linalg.svdvals(w)[0]))
    assert row_norm(w) == pytest.approx(math.sqrt(20))


def test_the_table_has_every_matrix_of_every_layer_and_the_class_its_largest(lively):
    network = network_of(lively(n=5, embed=6, width=7, heads=3))
    table, norms = norm_table(network), ClassNorms.of(network)
    assert len(table) == 3 * (3 + 3 + 2) and norms.H == 3 and norms.L == 3 and norms.n == 6
    assert table["two_one"].max() == norms.B_21
    assert table[~table["matrix"].str.startswith("M")]["spectral"].max() == norms.B_2
    assert (norms.d, norms.d_P) == (8, 7)  # hidden width and encodings, each with the constant


def by_the_proof(norms, m, delta, cap, outputs):
    """The positional bound written out plainly, without logarithms, from the displays of Appendix C as corrected."""
    L, H, B2, B21, Bw, BX, BP = norms.L, norms.H, norms.B_2, norms.B_21, norms.B_w, norms.B_X, norms.B_P
    lam = B2**2 * math.sqrt(1 + H * B2**2)
    log = math.log((H + 1) * (norms.d + norms.d_P) * m * norms.n)
    nu = (lam ** (2 * L) * BX**2 * Bw**2 * math.log(m)) ** (1 / 3)
    for l in range(1, L + 1):
        alpha, below, here = lam ** (L - l), lam ** (l - 1), lam**l
        terms = [
            (H * B21**2 * below**2 * BX**2, math.sqrt(H) * B2**2),
            (H * B21**2 * BP**2, 2 * B2**3 * math.sqrt(H) * below * BX * BP),
            (B21**2 * here**2 * BX**2, B2),
            (B21**2 * here**2 * BX**2, 1.0),
        ]
        nu += sum((a * log) ** (1 / 3) * (Bw * alpha * b) ** (2 / 3) for a, b in terms)
    root = math.sqrt(nu**3 / m)
    rademacher = root * (1 + max(0.0, math.log(Bw * lam**L * BX / root)))
    return 4 * 2 * math.sqrt(cap) * rademacher + 2 * cap * math.sqrt(math.log(outputs / delta) / (2 * m))


@pytest.mark.parametrize("m", [100, 30_000, 10**40])
def test_the_bound_is_the_proofs_arithmetic(m):
    found = evaluate(NORMS, m, delta=0.01, cap=2.5, outputs=4)
    assert found.gap == pytest.approx(by_the_proof(NORMS, m, 0.01, 2.5, 4), rel=1e-9)
    assert found.gap == pytest.approx(10**found.log10_gap) and found.gap == found.complexity + found.confidence


def test_shares_add_up_and_the_split_of_epsilon_is_feasible():
    table = evaluate(NORMS, 1000).table()
    assert table["share"].sum() == pytest.approx(1)
    assert (10 ** (table["log10 ε_i/ε"] + table["log10 b"])).sum() == pytest.approx(1)
    assert set(table["layer"]) == {0, 1, 2, 3} and len(table) == 1 + 3 * 4


@given(st.floats(1.0, 1e4), st.integers(1, 12), st.booleans())
def test_scaling_queries_and_keys_by_t_costs_at_most_t_squared_at_any_depth(t, layers, layer_norm):
    """M grows by t², and with it B_QK and at most B_{2,1}."""
    norms = replace(NORMS, L=layers)
    scaled = replace(norms, B_21=norms.B_21 * t**2, B_QK=norms.B_QK * t**2)
    before, after = (evaluate(each, 1e5, layer_norm=layer_norm).log10_gap for each in (norms, scaled))
    assert before <= after + 1e-12 <= before + 2 * math.log10(t) + 1e-9


@pytest.mark.parametrize("layers", [1, 2, 4, 8])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_self_attention_bound_grows_like_t_to_the_twice_depth(layers, layer_norm):
    """Exponent derived in docs/bound.md: t² from B_{2,1}, and t² from every layer above the first."""
    norms = replace(NORMS, L=layers)

    def at(t):
        scaled = replace(norms, B_21=norms.B_21 * t**2, B_QK=norms.B_QK * t**2)
        return evaluate(scaled, 1e5, "self-attention", layer_norm=layer_norm).log_cover / (2 * math.log(10))

    assert at(1e6) - at(1e5) == pytest.approx(2 * layers, rel=1e-3)


def test_scaling_a_real_model_does_what_scaling_its_norms_does():
    model = posattn.pretrained("sum")
    before = {
        kind: posattn.generalization_bound(model, 30_000, attention=kind) for kind in ("positional", "self-attention")
    }
    with torch.no_grad():
        for layer in model.layers:
            for linear in (layer.attention.W_Q, layer.attention.W_K):
                linear.weight *= 3
                linear.bias *= 3
    after = {kind: posattn.generalization_bound(model, 30_000, attention=kind) for kind in before}
    grown = {kind: after[kind].log10_gap - before[kind].log10_gap for kind in before}
    assert 0 <= grown["positional"] <= 2 * math.log10(3) + 1e-9 < 4 * math.log10(3) < grown["self-attention"]


def test_without_queries_and_keys_self_attention_costs_what_positional_does():
    norms = replace(NORMS, B_QK=0.0)
    own, other = (layer_constants(norms, kind, False) for kind in ("positional", "self-attention"))
    assert [each.alpha for each in own] == pytest.approx([each.alpha for each in other])


@given(st.floats(0.01, 1e6), st.sampled_from(["positional", "self-attention"]), st.booleans())
def test_samples_needed_are_enough_and_no_fewer_are(gap, kind, layer_norm):
    found = evaluate(NORMS, 100, kind, layer_norm=layer_norm)
    m = found.samples_for(gap)
    assert evaluate(NORMS, m, kind, layer_norm=layer_norm).gap <= gap * (1 + 1e-6)
    fewer = max(2, m * 0.99 - 1)
    assert m == 2 or evaluate(NORMS, fewer, kind, layer_norm=layer_norm).gap > gap


def test_more_samples_and_layer_normalisation_tighten_and_more_outputs_loosen():
    gap = evaluate(NORMS, 1e6).gap
    assert evaluate(NORMS, 1e7).gap < gap and evaluate(NORMS, 1e6, layer_norm=True).gap < gap
    assert evaluate(NORMS, 1e6, outputs=50).gap > gap and evaluate(NORMS, 1e6, "self-attention").gap > gap


def test_astronomic_bounds_are_infinite_and_have_a_logarithm():
    found = evaluate(replace(NORMS, L=900), 1000)
    assert (
        found.gap == math.inf and 500 < found.log10_gap < 1e5 and found.vacuous and found.samples_for(0.1) == math.inf
    )


def test_the_model_is_told_what_it_is_and_may_be_asked_for_the_other():
    model = posattn.pretrained("sum", arch="standard")
    assert posattn.generalization_bound(model, samples=1000).attention == "self-attention"
    assert posattn.generalization_bound(model, samples=1000, attention="positional").attention == "positional"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"samples": 1}, "samples is 1; it must be a whole number of at least 2."),
        ({"samples": 10, "delta": 0.7}, "delta is 0.7; it must be above 0 and below 0.5."),
        ({"samples": 10, "cap": 0.0}, "cap is 0.0; it must be a finite number above 0."),
        ({"samples": 10, "attention": "none"}, "attention is 'none'; it must be one of positional, self-attention."),
    ],
)
def test_bad_input_is_one_sentence(given, sentence):
    model = posattn.Transformer(posattn.ModelConfig(3, embed=4, width=4))
    with pytest.raises(posattn.UsageError) as caught:
        posattn.generalization_bound(model, **given)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("arch", ["rope-only", "standard-rope", "input-regularized"])
def test_architectures_that_the_proof_does_not_cover_are_refused(arch):
    with pytest.raises(posattn.UsageError, match="that the proof does not cover"):
        posattn.generalization_bound(posattn.Transformer(posattn.ModelConfig(3, arch)), samples=10)
    with pytest.raises(posattn.UsageError, match="the model is a Linear"):
        posattn.generalization_bound(torch.nn.Linear(2, 2), samples=10)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pair"
    config = posattn.ModelConfig(3, "scale-exact", embed=8, width=8)
    posattn.train("sum", config, members=2, samples=60, epochs=2, batch=30, device="cpu", out=folder)
    return folder


def test_the_command_says_what_the_function_finds(run, posattn_command):
    found = posattn.generalization_bound(posattn.load(run).model(1), samples=60, delta=0.1)
    code, shown, said = posattn_command("bound", run, "--member", 1, "--delta", 0.1, "--gap", 0.5)
    assert (code, said) == (0, "")
    assert (
        f"{found.gap:.4g}" in shown and f"{found.samples_for(0.5):.4g}" in shown and f"{found.norms.B_21:.3g}" in shown
    )
    code, shown, _ = posattn_command("bound", run, "--samples", 1000, "--layer-norm", "--json")
    content = json.loads(shown)
    other = posattn.generalization_bound(
        posattn.load(run).model(0), samples=1000, attention="self-attention", layer_norm=True
    )
    assert content["self-attention"]["log10_gap"] == pytest.approx(other.log10_gap)
    assert {row["matrix"] for row in content["positional"]["terms"]} == {"w", "V", "QK", "W_1", "W_2"}
    for options, sentence in (
        ("--delta 0", "delta is 0.0;"),
        ("--member 5", "member is 5;"),
        ("--gap 0", "gap is 0.0;"),
    ):
        code, _, said = posattn_command("bound", run, *options.split())
        assert code == 2 and said.startswith(f"posattn: {sentence}") and said.count("\n") == 1
