"""Every program of the library gives one answer at every level: direct Python, MPC, PCOC, hardmax and softmax networks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler import PROGRAMS, compile_program, pcoc, send
from posattn.compiler.compiling import Compilation
from posattn.compiler.library import program
from posattn.tasks import FIVE_TASKS

CONTRACT = [
    *("prefix-sum", "prefix-min", "tree-sum", "tree-min", "max-subarray", "odd-even-sort", "bitonic-sort", "median"),
    *("word-count", "list-ranking", "khop"),
]


def test_the_library_has_the_programs_it_promises():
    assert set(CONTRACT) <= set(PROGRAMS)


@pytest.mark.parametrize("name", CONTRACT)
@pytest.mark.parametrize("machines", [1, 2, 5, 8])
def test_programs_agree_at_every_level(name, machines):
    table = compile_program(name, machines, bound=50.0).check(samples=30)
    assert table["agrees"].all(), table
    soft = table.iloc[-1]
    if machines > 1 or name != "list-ranking":  # whose answer is then 0 whatever comes in
        assert soft["largest difference"] > 0, "softmax is not yet hardmax at that temperature"


@pytest.mark.parametrize("tokens", [2, 3])
def test_self_attention_agrees_at_every_level(tokens):
    table = compile_program("self-attention", tokens).check(samples=10)
    assert table["agrees"].all(), table


@pytest.mark.parametrize(
    ("name", "machines", "route"), [("list-ranking", 8, "theorem"), ("word-count", 4, "theorem"), ("bitonic-sort", 37, "lean")]
)
def test_larger_programs_agree_without_their_matrices(name, machines, route):
    row = PROGRAMS[name]
    network = posattn.compile(name, machines, bound=50.0, route=route, sparse=True)
    x = row.sample(np.random.default_rng(3), 20, machines, 50.0)
    found = network(torch.from_numpy(x if x.shape[-1] > 1 else x[..., 0])).numpy()
    np.testing.assert_allclose(found, row.answers(x)[..., 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, row in PROGRAMS.items() if row.task in FIVE_TASKS])
def test_programs_solve_the_tasks_they_name(name):
    row = program(name)
    x, y = posattn.task(row.task).sample(50, n=6, scale=5.0)
    model = posattn.compile(name, machines=6, bound=20.0)
    torch.testing.assert_close(model(x), y.double(), rtol=1e-6, atol=1e-5)


def test_sizes_are_those_of_the_theorem():
    for name, machines in (("prefix-sum", 8), ("bitonic-sort", 8), ("median", 4)):
        compiled = compile_program(name, machines)
        config = compiled.model.config
        assert config.layers == len(compiled.program.rounds) + 1
        assert (config.heads, config.embed) == (compiled.program.memory, compiled.program.memory + 1)
        assert config.positions == machines + 1
    assert len(compile_program("prefix-sum", 8).program.rounds) == 3
    assert len(compile_program("bitonic-sort", 8).program.rounds) == 6
    compiled = compile_program("list-ranking", 4, route="theorem")
    rounds, k = len(compiled.written.rounds), 2
    assert compiled.model.config.layers == (2 * k - 1) * rounds + 1 <= 2 * rounds * k
    # 2s heads, times what padding adds, times two numbers a tuple
    assert compiled.model.config.heads == 2 * compiled.written.memory * compiled.routing.factor * 2
    sizes = compiled.sizes().set_index("size")
    assert sizes.loc["layers", "network"] == compiled.model.config.layers
    assert f"2R⌈log N⌉ = {2 * rounds * k}" in sizes.loc["layers", "theorem"]


def test_self_attention_needs_n_squared_machines_and_log_n_rounds():
    compiled = compile_program("self-attention", 4)
    assert compiled.program.machines == 16 and len(compiled.program.rounds) == 2 * 2 + 1
    assert 0 < compiled.lowered.misfit < 0.01
    sizes = compiled.sizes().set_index("size")
    # Remark 5.1: O(N²) nodes, O(L log N) layers, and as many heads as memory, which does not grow with N.
    assert sizes.loc["nodes n"].tolist() == [17, "O(N²): N² + 1 = 17"]
    assert sizes.loc["layers"].tolist() == [6, "O(L log N): 2⌈log N⌉ + 2 = 6, L = 1"]
    assert sizes.loc["heads", "network"] == 8 and "sublinear" in sizes.loc["heads", "theorem"]


@pytest.mark.parametrize(
    ("name", "machines", "nodes", "words"),
    [
        ("word-count", 3, 4, 1),
        ("list-ranking", 3, 4, 4 / 3),
        ("list-ranking", 5, 8, 4 / 3),
        ("bitonic-sort", 5, 5, None),
    ],
)
def test_paddings_are_reported(name, machines, nodes, words):
    """Machines to a power of two; words of a message to a multiple of 2^(k-1): 3 to 4 in list ranking."""
    sizes = compile_program(name, machines, route="theorem").sizes().set_index("size")["network"]
    assert sizes["padding of machines"] == nodes / machines and sizes["nodes n"] == nodes + 1
    assert sizes.get("padding of words") == words
    assert isinstance(sizes["layers"], int)


def test_lean_values_compute_the_same():
    x = torch.linspace(-5, 5, 6)
    lean, proved = (posattn.compile("bitonic-sort", 6, route=route) for route in ("lean", "theorem"))
    assert (lean(x) == proved(x)).all()
    assert lean.layers[0].attention.W_V.out_features == 2 and proved.layers[0].attention.W_V.out_features == 6


def test_odd_even_sort_needs_as_many_rounds_as_machines():
    """The text says N - 1; with one round less the reversed list of four stays unsorted."""
    built = PROGRAMS["odd-even-sort"].build(4, 10.0)
    x = np.array([4.0, 3.0, 2.0, 1.0]).reshape(1, 4, 1)
    assert pcoc.run(built, x)[0, :, 0].tolist() == [1, 2, 3, 4]
    assert pcoc.run(replace(built, rounds=built.rounds[:-1]), x)[0, :, 0].tolist() == [1, 3, 2, 4]


def test_a_compiled_sort_is_right_at_any_scale():
    model = posattn.compile("bitonic-sort", 8, bound=1e12)
    for scale in (1.0, 1e3, 1e6):
        x = (scale * torch.randn(100, 8, dtype=torch.float64)).round()
        assert (model(x) == x.sort(dim=-1).values).all()


@pytest.mark.parametrize("machines", [3, 5, 7, 8])
@pytest.mark.parametrize("name", ["bitonic-sort", "median"])
def test_small_numbers_keep_their_digits(name, machines):
    x = PROGRAMS[name].sample(np.random.default_rng(0), 50, machines, 1e-12)
    found = compile_program(name, machines, bound=1e6).run(x)
    np.testing.assert_allclose(found, PROGRAMS[name].answers(x), rtol=1e-12, atol=1e-25)


def test_the_check_finds_digits_that_small_numbers_lose():
    """A network that adds the bound and takes it away again errs by rounding at the bound alone."""

    @posattn.program
    def lossy(me, n, x):
        far = x + 1e6
        heard = yield send(me, far)
        return heard.get() - 1e6

    lossy.truth(lambda x: x)
    table = compile_program(lossy, 3).check(samples=5).set_index("level")["agrees"]
    assert table["PCOC"] and table["hardmax network"]
    assert not table["PCOC, numbers times 1e-18"] and not table["hardmax network, numbers times 1e-18"]


def test_a_compiled_khop_names_letters_it_never_saw():
    """The sequence of the paper's task: a b a c with one hop answers ~ ~ b ~, for any letters."""
    model = posattn.compile("khop", 4)
    for a, b, c in ((0, 1, 2), (5, 9, 25)):
        letters = torch.tensor([a, b, a, c], dtype=torch.float64)
        answers = model(torch.stack([letters, torch.ones(4, dtype=torch.float64)], dim=-1))
        assert answers.tolist() == [-1, -1, b, -1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"program": "quicksort", "machines": 8}, "program is 'quicksort'; it must be one of prefix-sum"),
        ({"program": "prefix-sum"}, "machines is None"),
        ({"program": "prefix-sum", "machines": 2.5}, "machines is 2.5"),
        ({"program": "prefix-sum", "machines": 4, "bound": -1}, "bound is -1"),
        ({"program": "prefix-sum", "machines": 4, "epsilon": 0.0}, "epsilon is 0.0"),
        ({"program": "prefix-sum", "machines": 4, "route": "dense"}, "route is 'dense'"),
        ({"program": 7, "machines": 4}, "program is 7"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(UsageError, match=message):
        posattn.compile(**arguments)


def test_a_level_that_is_wrong_is_told_so(monkeypatch):
    """Networks that answer 1e-2 too much; softmax is held to the ε that was asked for."""
    made = compile_program("prefix-sum", 4, bound=10)
    assert made.check(epsilon=1e-3)["agrees"].all()
    run = Compilation.run
    monkeypatch.setattr(Compilation, "run", lambda self, x: run(self, x) + 1e-2)
    assert made.check(epsilon=1e-3)["agrees"].tolist() == [True] * 4 + [False] * 3
    assert made.check(epsilon=1e-1)["agrees"].tolist() == [True] * 4 + [False, False, True]


def test_a_list_without_an_end_has_no_ranks():
    with pytest.raises(UsageError, match=r"^the list of node 0 never ends\.$"):
        PROGRAMS["list-ranking"].answers(np.array([[[1.0], [0.0], [3.0]]]))


def test_a_file_without_a_program_is_told_how_to_name_one():
    with pytest.raises(UsageError, match=r"program is 'my.py', a file; name a program in it, as in my.py:NAME"):
        compile_program("my.py", 4)
