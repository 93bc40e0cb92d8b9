"""What compiled programs add to the model: vectors, numbers of positions, deeper MLPs; and that others stay as they were."""

import pytest
import torch

from posattn import ModelConfig, Transformer, UsageError
from posattn.attention import hardmax
from posattn.memory import BREACHES, breach_code, memory_cells, refuse_breaches, within_bounds

WIDE = {"n": 3, "layers": 2, "heads": 2, "embed": 5, "d_v": 7, "inputs": 2, "outputs": 3, "numbered": True, "spare": 1}


def test_trained_models_are_described_as_before():
    """A run's identity is a hash of this description."""
    names = ["n", "arch", "layers", "heads", "embed", "width", "encoding", "encoding_dim", "d_k", "bias"]
    assert list(ModelConfig(8).to_dict()) == names
    assert not ModelConfig(8).compiled and ModelConfig(8, hardmax=True).compiled
    parts = {name.split(".", 2)[2] for name in Transformer(ModelConfig(4)).state_dict() if name.startswith("layers.")}
    assert parts == {f"{linear}.{kind}" for kind in ("weight", "bias") for linear in
                     ("attention.W_Q", "attention.W_K", "attention.W_V", "attention.W_O", "W_1", "W_2")}  # fmt: skip


def test_a_layer_of_a_deeper_mlp_by_hand():
    model = Transformer(ModelConfig(**WIDE, mlp=((11, 13), (17,)))).double()
    x = torch.randn(19, 3, 2, dtype=torch.float64)
    assert model(x).shape == (19, 3, 3)
    before, after, last = model.states(x)
    layer = model.layers[0]
    a = layer.weights(before, model.P, torch.arange(5))
    values = layer.attention.W_V(before).unflatten(-1, (2, 7))
    mixed = torch.cat([a[h] @ values[..., h, :] for h in range(2)], dim=-1)
    z = torch.cat([layer.attention.W_O(mixed), before], dim=-1)
    z = layer.between[0](layer.W_1(z).relu()).relu()
    torch.testing.assert_close(layer.W_2(z), after)
    assert len(model.layers[1].between) == 0
    torch.testing.assert_close(model.decoder(last)[:, :3], model(x))


def test_memory_cells_hold_inputs_numbers_and_blanks():
    x = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    cells = memory_cells(x, torch.arange(4), 2, numbered=True)
    assert cells.tolist() == [[5, 6, 0], [7, 8, 1], [0, 0, 2], [0, 0, 3]]
    assert memory_cells(x[:, 0], torch.arange(3), 1, numbered=False).tolist() == [[5], [7], [0]]


def test_hardmax_is_one_at_every_largest_entry():
    assert hardmax(torch.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 4.0]])).tolist() == [[0, 1, 0], [1, 0, 1]]
    model = Transformer(ModelConfig(5, hardmax=True))
    assert set(model.attention().unique().tolist()) == {0.0, 1.0}


def test_bounds():
    x = torch.tensor([[1.0, -2.0], [0.0, 9.0]])
    assert within_bounds(x, 2, ((0.0, 1.0), (-2.0, 9.0))) is x
    with pytest.raises(UsageError, match="input 1 has numbers from -2 to 9; the program was compiled for -1 to 9"):
        within_bounds(x, 2, ((0.0, 1.0), (-1.0, 9.0)))
    with pytest.raises(UsageError, match="compiled for 0 to 1"):
        within_bounds(torch.tensor([0.5, float("nan")]), 2, ((0.0, 1.0),))
    with pytest.raises(UsageError, match=r"it must be \(..., 2, 3\)"):
        within_bounds(x, 2, ((0.0, 1.0),) * 3)


def test_integers_are_checked_to_be_integers():
    x = torch.tensor([[1.0, 0.5], [2.0, 1.5]])
    assert within_bounds(x, 2, ((0.0, 2.0), (0.0, 2.0)), (0,)) is x
    with pytest.raises(UsageError, match=r"input 1 has the number 0\.5; the program was compiled for whole numbers"):
        within_bounds(x, 2, ((0.0, 2.0), (0.0, 2.0)), (0, 1))


def test_a_single_number_is_no_list():
    with pytest.raises(UsageError, match=r"shape \(\); it must be \(..., 2\)"):
        within_bounds(torch.tensor(1.0), 2, ((0.0, 1.0),))
    with pytest.raises(UsageError, match=r"shape \(\); it must be \(..., 2, 3\)"):
        within_bounds(torch.tensor(1.0), 2, ((0.0, 1.0),) * 3)


@pytest.mark.parametrize("kind", range(len(BREACHES)))
@pytest.mark.parametrize(("layers", "r", "count"), [(1, 0, 1), (5, 0, 7), (5, 4, 2), (13, 6, 1000)])
def test_a_lost_number_tells_machine_round_and_count(kind, layers, r, count):
    lost = breach_code(kind, count, layers) - (layers - 1 - r)
    later = breach_code(0, 1, layers)  # in the last round
    z = torch.tensor([[0.0, 1.0, 2.0], [0.0, later, lost]], dtype=torch.float64)[..., None]
    told = BREACHES[kind].format(count)
    told = (
        told if count > 1 else told.replace("words", "word").replace("tuples", "tuple").replace("messages", "message")
    )
    machine, told = (2, told) if r < layers - 1 else (1, "overflows by 1 word")
    with pytest.raises(UsageError) as error:
        refuse_breaches(z, layers)
    assert str(error.value) == f"round {r}: machine {machine} {told}."


def test_machines_that_have_their_numbers_pass():
    z = torch.randn(2, 3, 5)
    z[..., -1] = torch.arange(3)
    assert refuse_breaches(z, 4) is z


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": 0}, "inputs is 0"),
        ({"outputs": 1.5}, "outputs is 1.5"),
        ({"mlp": ((3,),)}, "mlp has 1 rows; .* each of 2 layers"),
        ({"mlp": ((3,), ())}, "mlp has 2 rows"),
        ({"bounds": ((0.0, 1.0),)}, "bounds has 1 rows; .* each of 2 inputs"),
        ({"d_v": None}, "embed is 5; it must be a multiple of heads"),
    ],
)
def test_bad_configurations(fields, message):
    with pytest.raises(UsageError, match=message):
        ModelConfig(**WIDE | fields)


def test_a_compiled_program_takes_lists_of_one_length():
    with pytest.raises(UsageError, match="takes 3"):
        Transformer(ModelConfig(**WIDE))(torch.zeros(2, 2))
