"""Encodings against their formulas, and the rotary embedding against what makes it one: only offsets matter."""

import math

import pytest
import torch

import posattn
from posattn import ModelConfig, Transformer, UsageError
from posattn.attention import Attention
from posattn.encodings import ENCODINGS, Encoding, binary, encoding_of_own, one_hot, random_places, rotate, sinusoidal
from posattn.model import ARCHITECTURES

NO_ENCODINGS = ("no-encoding", "rope-only", "alibi", "positional-input")


@pytest.mark.parametrize("positions", [1, 2, 9])
def test_one_hot_is_the_identity(positions):
    assert ENCODINGS["one-hot"].dim(positions - 1, positions) == positions
    assert torch.equal(one_hot(positions, positions), torch.eye(positions))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 15, 16, 31])
def test_binary_digits_give_the_position_back(n):
    dim = ENCODINGS["binary"].dim(n, n + 1)
    assert 2**dim >= n + 1 > 2 ** (dim - 1), "as many digits as the n + 1 positions need, and no more"
    p = binary(n + 1, dim)
    assert p.abs().eq(1).all()
    value = ((p + 1) / 2) @ (2.0 ** torch.arange(dim - 1, -1, -1))
    assert value.tolist() == list(range(n + 1))


def test_spare_binary_digits_are_zero_even_beyond_an_integers_width():
    assert torch.equal(binary(9, 70), torch.cat([torch.full((9, 66), -1.0), binary(9, 4)], dim=1))


def test_the_papers_binary_dimension_gives_the_scratchpad_the_code_of_the_first_position():
    rows = Transformer(ModelConfig(n=8, encoding="binary", encoding_dim=3)).P
    assert rows.shape == (9, 3)
    assert torch.equal(rows[8], rows[0])
    assert len(rows.unique(dim=0)) == 8
    assert len(Transformer(ModelConfig(n=8, encoding="binary")).P.unique(dim=0)) == 9


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (2, 1), (7, 4), (8, 4), (9, 5), (32, 16)])
def test_sinusoidal_formula(n, dim):
    assert ENCODINGS["sinusoidal"].dim(n, n + 1) == dim
    p = sinusoidal(n + 1, dim)
    for i in range(n + 1):
        for k in range(dim):
            angle = i / 10000 ** (2 * (k // 2) / dim)
            assert p[i, k].item() == pytest.approx(math.cos(angle) if k % 2 else math.sin(angle), abs=1e-5)


def test_one_hot_of_another_dimension_is_refused():
    with pytest.raises(UsageError, match="encoding_dim is 5; one-hot needs 9"):
        ModelConfig(n=8, encoding_dim=5)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch != "looped"])  # which has no queries
def test_every_encoding_trains_in_every_architecture_or_is_refused(arch, encoding):
    fields = {"n": 5, "arch": arch, "encoding": encoding, "embed": 6, "width": 7}
    if arch in NO_ENCODINGS and encoding != "one-hot":
        with pytest.raises(UsageError, match=f"^encoding is '{encoding}'; the {arch} architecture takes none.$"):
            ModelConfig(**fields)
        return
    model = Transformer(ModelConfig(**fields))
    model(torch.randn(11, 5)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
    assert model.layers[0].attention.W_Q.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    "arch", [arch for arch in ARCHITECTURES if arch not in (*NO_ENCODINGS, "looped", "randomized")]
)
def test_the_encoding_changes_what_the_model_computes(lively, arch):
    model, x = lively(n=5, arch=arch, encoding="binary"), torch.randn(3, 5, dtype=torch.float64)
    before = model(x)
    model.P.copy_(sinusoidal(6, 3))
    assert (model(x) - before).norm() > 1e-3 * before.norm()


@pytest.mark.parametrize("arch", NO_ENCODINGS)
def test_architectures_that_refuse_encodings_would_not_read_them(lively, arch):
    model, x = lively(n=5, arch=arch), torch.randn(3, 5, dtype=torch.float64)
    before = model(x)
    model.P.normal_()
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("d", [1, 2, 6, 7])
def test_rotation_keeps_norms_and_leaves_position_zero(d):
    x = torch.randn(3, 5, d, dtype=torch.float64)
    turned = rotate(x, torch.tensor([0, 1, 4, 9, 30]))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert torch.equal(turned[:, 0], x[:, 0])
    if d > 1:
        assert (turned - x)[:, 1:].norm(dim=-1).min() > 1e-3
    if d % 2:
        assert torch.equal(turned[..., -1], x[..., -1])


@pytest.mark.parametrize("d", [2, 6, 7])
def test_rotation_turns_each_pair_by_its_angle(d):
    x, positions = torch.randn(4, d, dtype=torch.float64), [0, 1, 5, 11]
    turned = rotate(x, torch.tensor(positions))
    for row, i in enumerate(positions):
        for k in range(d // 2):
            before = complex(x[row, k], x[row, k + d // 2])
            after = complex(turned[row, k], turned[row, k + d // 2])
            angle = i / 10000 ** (2 * k / d)
            assert after == pytest.approx(before * complex(math.cos(angle), math.sin(angle)), abs=1e-5)


@pytest.mark.parametrize("d", [2, 6, 7])
def test_rotary_logits_depend_on_the_offset_alone(d):
    """The same query and key at every position: the logits form a Toeplitz matrix, and not a constant one."""
    q, k = torch.randn(2, d, dtype=torch.float64)
    positions = torch.arange(12)
    logits = rotate(q.expand(12, d), positions) @ rotate(k.expand(12, d), positions).mT
    torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1], rtol=0, atol=1e-5)
    assert logits[0].std() > 1e-2


@pytest.mark.parametrize("d_k", [6, 7])
@pytest.mark.parametrize("offset", [1, 37])
def test_rotary_attention_does_not_see_where_the_list_starts(d_k, offset):
    attention = Attention(d_model=10, d_features=5, d_k=d_k, heads=2, rotary=True).double()
    with torch.no_grad():
        attention.W_Q.weight *= 5
    features, positions = torch.randn(3, 8, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 5, 6, 11])
    a = attention.weights(features, positions)
    torch.testing.assert_close(attention.weights(features, positions + offset), a, rtol=0, atol=1e-5)
    stretched = attention.weights(features, 2 * positions)
    assert (stretched - a).abs().max() > 1e-2, "offsets themselves do matter"


@pytest.mark.parametrize("d_k", [6, 7])
def test_rotary_changes_the_attention(d_k):
    """Theirs: rotated along the head axis, which cancels in the dot product and leaves attention as it was."""
    plain = Attention(d_model=10, d_features=5, d_k=d_k, heads=2)
    rotary = Attention(d_model=10, d_features=5, d_k=d_k, heads=2, rotary=True)
    rotary.load_state_dict(plain.state_dict())
    features = torch.randn(3, 8, 5)
    assert (rotary.weights(features) - plain.weights(features)).abs().max() > 1e-2
    assert torch.equal(rotary.weights(features), rotary.weights(features, torch.arange(8)))


def test_randomized_places_are_different_ordered_and_spread_over_the_range():
    places = random_places(torch.randn(400, 12, dtype=torch.float64), 2048)
    assert (places.diff(dim=-1) > 0).all() and places.min() >= 0 and places.max() < 2048
    assert abs(places.float().mean() - 1024) < 50 and places.float().std() > 500
    assert len(places.unique(dim=0)) == 400
    assert random_places(torch.randn(2, 2048, dtype=torch.float64), 2048).tolist() == [list(range(2048))] * 2


def ramp(times):
    def matrix(positions, dim):
        return times * torch.linspace(0, 1, positions)[:, None] ** torch.arange(dim)

    return Encoding(lambda n, positions: n, matrix)


def test_a_run_is_not_read_with_an_encoding_of_ones_own_that_changed(tmp_path, tables):
    ENCODINGS["ramp"] = ramp(1)
    small = {"config": ModelConfig(n=3, embed=8, width=8, encoding="ramp"), "samples": 20, "epochs": 1, "out": tmp_path / "run"}
    first = posattn.train("sum", **small)
    ENCODINGS["ramp"] = ramp(1 + 1e-6)  # as a machine may round otherwise
    assert torch.equal(posattn.load(tmp_path / "run").parameters.flat, first.parameters.flat)
    told = "whose networks read another encoding of the name 'ramp'; "
    for _ in range(2):
        ENCODINGS["ramp"] = ramp(2)
        with pytest.raises(UsageError, match=rf"^run is .*, {told}register the one that they read\.$"):
            posattn.load(tmp_path / "run")
        with pytest.raises(UsageError, match=rf"^out is .*, {told}give another folder\.$"):
            posattn.train("sum", **small)
        (tmp_path / "run" / "weights.json").unlink(missing_ok=True)  # then as killed before the end
    ENCODINGS["ramp"] = ramp(1)
    assert torch.equal(posattn.train("sum", **small).parameters.flat, first.parameters.flat)
    (tmp_path / "run" / "answers.json").write_text('{"twice": [[1, 2, 3]]}')  # of a version that knew functions alone
    assert len(posattn.load(tmp_path / "run")) == 1


def test_only_encodings_of_ones_own_are_known_by_numbers(tables):
    ENCODINGS["ramp"], ENCODINGS["other"] = ramp(1), Encoding(lambda n, positions: n, binary)
    assert not any(encoding_of_own(ModelConfig(n=4, encoding=name)) for name in ("one-hot", "binary", "sinusoidal"))
    assert encoding_of_own(posattn.LoopedConfig(n=4)) == {}
    (known,), (other,) = (encoding_of_own(ModelConfig(n=4, encoding=name)).values() for name in ("ramp", "other"))
    assert len(known[0]) == 4 and known != other
