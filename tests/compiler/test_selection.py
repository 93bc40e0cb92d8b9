"""A sparse network is the Transformer without its large matrices: the same states, answers and refusals, saved and loaded."""

import copy
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import posattn
from posattn import Transformer, UsageError, files
from posattn.compiled_run import save
from posattn.compiler import Whole, compile_program, program, send, within
from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.selection import SelectionConfig, SelectionNetwork, SparseLinear
from posattn.export import to_torch
from posattn.files import Damaged
from posattn.network import from_dict, missing

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PAIRS = [
    *(("prefix-min", 7), ("bitonic-sort", 6), ("max-subarray", 5), ("self-attention", 2)),
    *(("programs.py:bfs", 5), ("programs.py:rank_sort", 4), ("programs.py:sparse_matrix_vector", 4)),
    *(("word-count", 5), ("median", 4)),
]


def both(name, machines, **options):
    """A program compiled densely and sparsely, and inputs for it."""
    name = str(EXAMPLES / name) if ".py:" in name else name
    dense, sparse = (compile_program(name, machines, sparse=each, **options) for each in (False, True))
    return dense, sparse, dense.source.sample(np.random.default_rng(0), 20, machines, dense.bound)


def words(x):
    return torch.from_numpy(x if x.shape[-1] > 1 else x[..., 0])


@pytest.mark.parametrize(("name", "machines"), PAIRS)
def test_it_equals_the_transformer_in_states_answers_and_attention(name, machines):
    dense, sparse, x = both(name, machines, bound=9.0)
    assert isinstance(sparse.model, SelectionNetwork) and isinstance(sparse.model, Transformer)
    states = zip(dense.model.states(words(x)), sparse.model.states(words(x)), strict=True)
    for theirs, ours in states:
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-13)
    torch.testing.assert_close(sparse.model(words(x)), dense.model(words(x)), rtol=1e-14, atol=1e-13)
    if set(range(x.shape[-1])) == set(dense.program.integers):  # integers are exact
        assert (sparse.model(words(x)) == dense.model(words(x))).all()
    assert (sparse.model.attention() == dense.model.attention()).all()
    held = sum(value.numel() for value in sparse.model.tensors().values())
    assert sparse.model.stored < held < sum(p.numel() for p in dense.model.parameters())
    assert sparse.model.config.dense == replace(dense.model.config, d_v=1)


@pytest.mark.parametrize(("name", "machines"), [("programs.py:bfs", 4), ("prefix-min", 5)])
def test_its_trace_is_that_of_the_transformer(name, machines):
    dense, sparse, x = both(name, machines)
    theirs, ours = dense.trace(x), sparse.trace(x)
    assert ours.places == theirs.places
    for own, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert own.keys() == other.keys() and all((own[name] == other[name]).all() for name in own)


def test_every_level_agrees_with_it():
    for name in ("prefix-sum", str(EXAMPLES / "programs.py:stream_compaction")):
        table = compile_program(name, 5, sparse=True).check(samples=10)
        assert table["agrees"].all() and table["level"].str.startswith("hardmax network").any()


@program(to=Whole(0, 5), count=Whole(0, 9))
def breaches(me, n, to, count):
    heard = yield send(to, count)
    return within(heard.sum(), 0, 12)


def test_it_refuses_what_the_transformer_refuses_in_the_same_words(unchecked):
    dense, sparse = (compile_program(breaches, 4, sparse=each) for each in (False, True))
    told = []
    for x in np.random.default_rng(1).integers(0, [6, 10], (40, 4, 2)).astype(float):
        outcomes = []
        for run in (dense.run, sparse.run):
            try:
                outcomes.append(run(x).tolist())
            except UsageError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        told.append(outcomes[0] if isinstance(outcomes[0], str) else "right")
    assert {"right", "sends", "beyond"} <= {word for each in told for word in re.split(r"\W", each)}
    for model in (dense.model, sparse.model):
        for x, said in (
            (torch.full((4, 2), 7), "input 0 has numbers from 7 to 7; the program was compiled for 0 to 5"),
            (torch.full((4, 2), 0.5), "input 0 has the number 0.5; the program was compiled for whole numbers"),
            (torch.zeros(3, 2), "the list has 3 numbers; this compiled program takes 4"),
        ):
            with pytest.raises(UsageError, match=said):
                model(x)
        assert model(torch.zeros(4, 2, dtype=torch.int64)).tolist() == [0, 0, 0, 0]


def test_large_sums_of_integers_are_exact():
    network = posattn.compile("prefix-sum", 1024, sparse=True)
    x = torch.from_numpy(np.random.default_rng(0).integers(-1000, 1000, (3, 1024)).astype(float))
    assert (network(x) == x.cumsum(dim=-1)).all()


def test_the_transformer_of_many_machines_is_exact_too():
    x = torch.from_numpy(np.random.default_rng(0).integers(-1000, 1000, (2, 100)).astype(float))
    assert (posattn.compile("prefix-sum", machines=100)(x) == x.cumsum(dim=-1)).all()


def test_lists_are_taken_in_tiles_that_change_nothing(monkeypatch):
    network = posattn.compile("prefix-min", 5, bound=9.0, sparse=True)
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    whole = network(x)
    monkeypatch.setattr("posattn.compiler.selection._TILE", 1)
    assert (network(x) == whole).all() and whole.shape == (2, 7, 5)
    assert network(x[0, 0]).shape == (5,)


def test_a_sparse_map_by_hand():
    made = SparseLinear(3, 4, 4).double()
    made.write(np.array([(3, 1), (0, 2), (0, 0), (2, 1)]), np.array([5.0, 3.0, 2.0, 4.0]), np.array([1.0, 0, 0, 7]))
    assert made.dense().weight.tolist() == [[2, 0, 3], [0, 0, 0], [0, 4, 0], [0, 5, 0]] and made.sound
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(made(x), made.dense()(x))


# --- folders -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["bitonic-sort", str(EXAMPLES / "programs.py:rule_110")])
def test_a_saved_network_is_the_network(tmp_path, name):
    compiled = compile_program(name, 5, sparse=True)
    save(compiled, tmp_path / "own")
    run = posattn.load(tmp_path / "own")
    x = words(compiled.source.sample(np.random.default_rng(0), 20, 5, 1e6))
    assert isinstance(run.model(), SelectionNetwork) and run.config == compiled.model.config
    assert (run.predict(x)[0] == compiled.model(x)).all()
    torch.testing.assert_close(run.predict(x)[0], run.truth(x))
    assert run.trace(x).as_json() == compiled.model.trace(x, run.program).as_json()
    shared = [layer.W_1 for layer in run.model().layers]
    assert len(set(shared)) == len(run.config.entries) <= len(shared) - 2 * (name != "bitonic-sort")
    stored, _ = files.load_tensors(tmp_path / "own" / "weights.safetensors")
    assert sum(value.numel() for value in stored.values()) <= 3 * compiled.model.stored
    with pytest.raises(UsageError, match="compiled otherwise; give another folder"):
        save(compile_program(name, 5), tmp_path / "own")
    save(compiled, tmp_path / "own")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("ending", "number"),
    [("columns", 99), ("columns", -1), ("starts", 99), ("sources", 5), ("sources", -1), ("starts", -1)],
)
def test_places_outside_of_the_network_are_refused(tmp_path, ending, number):
    """They would be read from beyond the memory of a tensor."""
    save(compile_program("prefix-min", 4, sparse=True), tmp_path / "own")
    weights = tmp_path / "own" / "weights.safetensors"
    tensors, about = files.load_tensors(weights)
    name = next(name for name in tensors if name.startswith("layers.1") and name.endswith(ending))
    tensors[name].view(-1)[1] = number
    files.save_tensors(weights, tensors, about)
    described = files.read_sealed(tmp_path / "own" / "program.json")
    files.write_sealed(tmp_path / "own" / "program.json", described | {"sha256": files.sha256(weights.read_bytes())})
    with pytest.raises(Damaged, match="does not fit the network that is described beside it"):
        posattn.load(tmp_path / "own")


@pytest.mark.usefixtures("unchecked")
def test_an_exported_network_keeps_indices_and_gives_the_same_answers(tmp_path):
    _, sparse, x = both("programs.py:rank_sort", 4)
    assert to_torch(sparse.model, tmp_path / "own.pt2", lists=words(x)) == 0
    found = torch.export.load(tmp_path / "own.pt2").module()(words(x).float())
    assert (found == sparse.model(words(x))).all()
    assert isinstance(sparse.model.layers[0].W_1, SparseLinear)  # the caller's stays as it is


# --- what it is not ----------------------------------------------------------------------------------------------------


def test_softmax_values_and_training_are_refused_in_a_sentence():
    for options, said in (
        ({"epsilon": 0.1}, "epsilon is 0.1; a sparse network has indices for attention, which are hardmax."),
        ({"temperature": 9.0}, "temperature is 9.0; a sparse network has indices for attention, which are hardmax."),
        ({"sparse": "yes"}, "sparse is 'yes'; it must be True or False."),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
            posattn.compile("prefix-sum", 4, **{"sparse": True} | options)
    config = posattn.compile("prefix-sum", 4, sparse=True).config
    with pytest.raises(UsageError, match="config is a SelectionConfig; a compiled program has its weights, and is not"):
        posattn.train("sum", config)
    assert "has indices in place of queries and keys (sparse)" in missing(config, "show")


def test_a_network_that_fits_into_no_memory_is_refused(monkeypatch):
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    monkeypatch.setattr("posattn.devices.free_bytes", lambda _: 8 * 40)
    with pytest.raises(UsageError, match=r"^prefix-sum compiles to .* are free on the CPU; take fewer machines\.$"):
        posattn.compile("prefix-sum", 8, sparse=True)


def test_the_configuration_describes_the_network_and_refuses_what_does_not_fit(unchecked):
    config = posattn.compile("prefix-sum", 4, sparse=True).config
    assert from_dict(config.to_dict()) == config == copy.deepcopy(config)
    blank = config.build()
    assert isinstance(blank, SelectionNetwork) and blank.sound and not list(blank.parameters())
    own = {each.name: getattr(config, each.name) for each in fields(CompiledConfig)}
    for change, said in (
        ({"hardmax": False}, "hardmax is False; attention by indices is hardmax."),
        ({"d_v": 3}, "d_v is 3; attention by indices brings every head one number."),
        ({"entries": 3}, "entries is 3; it must be a tuple with a tuple of counts for each MLP."),
        ({"entries": ((-1, 2),)}, "entries is -1; it must be a whole number of at least 0."),
        ({"uses": (0, 1)}, "uses is (0, 1); it must be the number of an MLP for each of 3 layers."),
        ({"uses": (0, 0, 9)}, "uses is (0, 0, 9); it must be the number of an MLP for each of 3 layers."),
        ({"entries": ((3,), (3,), (3,))}, "entries has (3,) for MLP 0, which does not suit the widths"),
    ):
        with pytest.raises(UsageError, match="^" + re.escape(said)):
            SelectionConfig(**own | {"entries": config.entries, "uses": config.uses} | change)
    with pytest.raises(UsageError, match=r"^entries is missing; SelectionConfig has no default for it\.$"):
        SelectionConfig(**own)
