"""The bound of a model: its matrices are the model's, its arithmetic is the proof's, and it grows as the theory says."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posattn
from posattn.guarantees import certify_model, features_of, network_of
from posattn.theory.bound import GeneralizationBound, in_digits, layer_constants
from posattn.theory.matrices import ClassNorms, norm_table, row_norm, spectral, two_one

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


@pytest.mark.parametrize("name", ["B_2", "B_21", "B_w", "B_QK", "B_X", "B_P", "L_sigma"])
def test_a_class_holds_what_has_no_larger_norm(name):
    larger = replace(NORMS, **{name: 1.01 * getattr(NORMS, name)})
    assert NORMS.holds(NORMS) and larger.holds(NORMS) and not NORMS.holds(larger)
    assert not replace(larger, L=4).holds(NORMS) and not replace(larger, H=3).holds(NORMS)


def by_the_proof(norms, m, delta, cap, outputs, kind="positional", layer_norm=False):
    """The bound written out plainly, without logarithms and from the last layer down, from Appendix C as corrected.

    Self-attention: a head's output moves by κ a unit of F, with softmax's constant 2 (Lemma C.3), logits that move by R B_QK
    for each of their two sides, and mixed rows of norm R: κ = 1 + 2 · 2 R B_QK · R. Normalised: F and g lie in the unit ball.
    """
    L, H, B2, B21, Bw, BX, BP = norms.L, norms.H, norms.B_2, norms.B_21, norms.B_w, norms.B_X, norms.B_P
    s, attends = norms.L_sigma, kind == "self-attention"
    log = math.log((H + 1) * (norms.d + norms.d_P) * m * norms.n)
    largest = [BX]  # ‖F_l‖
    for _ in range(L):
        largest.append(1.0 if layer_norm else largest[-1] * s * B2 * B2 * math.sqrt(1 + H * B2**2))
    nu, alpha = (largest[L] ** 2 * Bw**2 * math.log(m)) ** (1 / 3), 1.0
    for l in range(L, 0, -1):
        R, above = largest[l - 1], largest[l]
        hidden = s * B2 if layer_norm else above
        P = R if attends else BP
        terms = [
            (H * B21**2 * R**2, s * B2 * B2 * math.sqrt(H)),  # V
            (H * B21**2 * P**2, s * B2 * B2 * math.sqrt(H) * B2 * R * 2 * P),  # QK
            (B21**2 * above**2, s * B2),  # W_1, which reads g
            (B21**2 * hidden**2, 1.0),  # W_2
        ]
        nu += sum((a * log) ** (1 / 3) * (Bw * alpha * b) ** (2 / 3) for a, b in terms)
        kappa = 1 + (2 * (R * norms.B_QK + R * norms.B_QK) * R if attends else 0)
        alpha *= s * B2 * B2 * math.sqrt(1 + H * (B2 * kappa) ** 2)
    root = math.sqrt(nu**3 / m)
    rademacher = root * (1 + max(0.0, math.log(Bw * largest[L] / root)))
    return 4 * 2 * math.sqrt(cap) * rademacher + 2 * cap * math.sqrt(math.log(outputs / delta) / (2 * m))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", ["positional", "self-attention"])
@pytest.mark.parametrize("m", [100, 30_000, 10**40])
def test_the_bound_is_the_proofs_arithmetic(m, kind, layer_norm):
    for norms in (NORMS, replace(NORMS, L_sigma=1.3), replace(NORMS, L=1), replace(NORMS, B_QK=0.0)):
        found = GeneralizationBound(norms, m, kind, delta=0.01, cap=2.5, outputs=4, layer_norm=layer_norm)
        assert found.gap == pytest.approx(by_the_proof(norms, m, 0.01, 2.5, 4, kind, layer_norm), rel=1e-9)
        assert found.gap == pytest.approx(10**found.log10_gap) and found.gap == found.complexity + found.confidence


def test_outputs_share_delta():
    """Each of k outputs is off with a probability of δ/k, so one of them with δ: the confidence is that of one at δ/k."""
    for k in (1, 8, 50):
        assert GeneralizationBound(NORMS, 500, delta=0.08, outputs=k).confidence == pytest.approx(
            GeneralizationBound(NORMS, 500, delta=0.08 / k).confidence
        )
    model = posattn.Transformer(posattn.ModelConfig(5, embed=4, width=4))
    assert posattn.generalization_bound(model, samples=500).outputs == 5  # not the scratchpad's


@pytest.mark.filterwarnings("error")
def test_a_model_in_float64_has_the_same_bound_without_a_warning():
    """Without biases and conversions its matrices are views of the parameters, whose gradients do not matter here."""
    model = posattn.Transformer(posattn.ModelConfig(5, "scale-exact", embed=4, width=4))
    single = posattn.generalization_bound(model, samples=500).gap
    assert posattn.generalization_bound(model.double(), samples=500).gap == pytest.approx(single)


def test_the_constants_are_shown_and_are_those_of_the_proof():
    shown = GeneralizationBound(NORMS, 100).constants().set_index("layer")
    growth = NORMS.B_2**2 * math.sqrt(1 + NORMS.H * NORMS.B_2**2)
    for l in (1, 2, 3):
        own = {name.removeprefix("log10 "): 10**value for name, value in shown.loc[l].items()}
        assert own["B"] == pytest.approx(growth**l) and own["R"] == pytest.approx(growth ** (l - 1) * NORMS.B_X)
        assert own["α"] == pytest.approx(growth ** (3 - l)) and own["β"] == pytest.approx(1.5)
        assert own["γ"] == pytest.approx(2 * math.sqrt(2) * 1.5**3 * own["R"] * 1.2)
        assert own["η"] == pytest.approx(math.sqrt(2) * 1.5**2) and own["Λ"] == pytest.approx(growth)
    assert (GeneralizationBound(NORMS, 100, layer_norm=True).constants()["log10 B"] == 0).all()


@pytest.mark.parametrize("layers", [3, 900])
def test_it_prints_in_one_line(layers):
    found = GeneralizationBound(replace(NORMS, L=layers), 30_000, layer_norm=layers == 3)
    assert len(repr(found)) < 160 and repr(found) == str(found) and "\n" not in repr(found)
    assert f"{layers} layers of positional" in repr(found) and "vacuous" in repr(found)
    if layers == 3:
        assert f"gap <= {found.gap:.1e}" in repr(found)


@given(st.floats(-300, 300))
def test_numbers_by_their_logarithm_are_written_as_floats_are(log10):
    assert float(in_digits(log10)) == pytest.approx(10**log10, rel=0.051)
    assert in_digits(400.3) == "2.0e+400" and in_digits(-0.001) == "1.0e+00"


def test_shares_add_up_and_the_split_of_epsilon_is_feasible():
    table = GeneralizationBound(NORMS, 1000).table()
    assert table["share"].sum() == pytest.approx(1)
    assert (10 ** (table["log10 ε_i/ε"] + table["log10 b"])).sum() == pytest.approx(1)
    assert set(table["layer"]) == {0, 1, 2, 3} and len(table) == 1 + 3 * 4


@given(st.floats(1.0, 1e4), st.integers(1, 12), st.booleans())
def test_scaling_queries_and_keys_by_t_costs_at_most_t_squared_at_any_depth(t, layers, layer_norm):
    """M grows by t², and with it B_QK and at most B_{2,1}."""
    norms = replace(NORMS, L=layers)
    scaled = replace(norms, B_21=norms.B_21 * t**2, B_QK=norms.B_QK * t**2)
    before, after = (GeneralizationBound(each, 1e5, layer_norm=layer_norm).log10_gap for each in (norms, scaled))
    assert before <= after + 1e-12 <= before + 2 * math.log10(t) + 1e-9


@pytest.mark.parametrize("layers", [1, 2, 4, 8])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_self_attention_bound_grows_like_t_to_the_twice_depth(layers, layer_norm):
    """Exponent derived in docs/bound.md: t² from B_{2,1}, and t² from every layer above the first."""
    norms = replace(NORMS, L=layers)

    def at(t):
        scaled = replace(norms, B_21=norms.B_21 * t**2, B_QK=norms.B_QK * t**2)
        return GeneralizationBound(scaled, 1e5, "self-attention", layer_norm=layer_norm).log_cover / (2 * math.log(10))

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
    found = GeneralizationBound(NORMS, 100, kind, layer_norm=layer_norm)
    m = found.samples_for(gap)
    assert GeneralizationBound(NORMS, m, kind, layer_norm=layer_norm).gap <= gap * (1 + 1e-6)
    fewer = max(2, m * 0.99 - 1)
    assert m == 2 or GeneralizationBound(NORMS, fewer, kind, layer_norm=layer_norm).gap > gap


def test_more_samples_and_layer_normalisation_tighten_and_more_outputs_loosen():
    gap = GeneralizationBound(NORMS, 1e6).gap
    assert GeneralizationBound(NORMS, 1e7).gap < gap and GeneralizationBound(NORMS, 1e6, layer_norm=True).gap < gap
    assert GeneralizationBound(NORMS, 1e6, outputs=50).gap > gap and GeneralizationBound(NORMS, 1e6, "self-attention").gap > gap


def test_astronomic_bounds_are_infinite_and_have_a_logarithm():
    found = GeneralizationBound(replace(NORMS, L=900), 1000)
    assert (
        found.gap == math.inf and 500 < found.log10_gap < 1e5 and found.vacuous and found.samples_for(0.1) == math.inf
    )


def test_the_model_is_told_what_it_is_and_may_be_asked_for_the_other():
    model = posattn.pretrained("sum", arch="standard")
    assert posattn.generalization_bound(model, samples=1000).attention == "self-attention"
    assert posattn.generalization_bound(model, samples=1000, attention="positional").attention == "positional"
    for kind, named in (("positional", "positional attention"), ("self-attention", "self-attention")):
        shown = repr(posattn.generalization_bound(model, samples=1000, attention=kind))
        assert shown.startswith(f"GeneralizationBound(4 layers of {named}, 1000 samples, ")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"samples": 1}, "samples is 1; it must be a whole number of at least 2."),
        ({"samples": 10, "delta": 0.7}, "delta is 0.7; it must be above 0 and below 0.5."),
        ({"samples": 10**320}, "samples is a number of 321 digits; it must be at most 1e+300."),
        ({"samples": 10**305}, "samples is a number of 306 digits; it must be at most 1e+300."),
        ({"samples": 10, "cap": 0.0}, "cap is 0.0; it must be a finite number above 0."),
        ({"samples": 10, "cap": 1e-320}, "cap is 9.99989e-321; it must be from 1e-100 to 1e+100."),
        ({"samples": 10, "limit": -2}, "limit is -2; it must be a finite number above 0."),
        ({"samples": 10, "limit": 1e200}, "limit is 1e+200; it must be from 1e-100 to 1e+100."),
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


def test_networks_of_words_and_compiled_programs_are_refused():
    reads = posattn.Transformer(posattn.TokenConfig(**posattn.task("khop").NETWORK | {"layers": 1, "embed": 6}))
    program = posattn.compile("prefix-sum", machines=2)
    for model, about in ((reads, "reads letters"), (program, "is a compiled program")):
        for asked in (
            lambda model=model: posattn.generalization_bound(model, samples=100),
            lambda model=model: certify_model(model, "sum"),
        ):
            with pytest.raises(posattn.UsageError, match=f"^the positional network {about}; the .* trained on lists"):
                asked()


@pytest.mark.parametrize("extreme", [{"delta": 5e-324}, {"cap": 1e100}, {"cap": 1e-100}, {"limit": 1e100}])
@pytest.mark.parametrize("kind", ["positional", "self-attention"])
def test_extreme_settings_give_numbers(extreme, kind):
    model = posattn.Transformer(posattn.ModelConfig(3, embed=4, width=4))
    found = posattn.generalization_bound(model, samples=10**300, attention=kind, **extreme)
    assert math.isfinite(found.log10_gap) and not math.isnan(found.gap) and found.confidence > 0
    shown = found.constants().to_numpy()
    assert (shown == shown).all() and abs(shown).max() < 1e4
