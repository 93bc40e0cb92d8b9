"""Programs as plain functions: one answer at every level, and errors that name the program's own lines and rounds."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError, files
from posattn.compiler import PROGRAMS as LIBRARY
from posattn.compiler import Program, Whole, compile_program, mpc, pcoc, send, within
from posattn.compiler.interpreter import run, trace
from posattn.compiler.mpc import MPC

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "programs.py"
PROGRAMS = {
    name: found for name, found in files.execute(EXAMPLES, "examples").items() if isinstance(found, Program)
}
OTHER_MACHINES = ("self-attention", "mixed")  # N², and 23 or 101
SIZES = {"life": (9,), "rule_110": (3, 6), "bfs": (2, 5), "components": (2, 5)}


def test_the_ten_examples_are_there():
    assert len(PROGRAMS) == 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_agree_at_every_level(name):
    row = PROGRAMS[name]
    for machines in SIZES.get(name, (1, 2, 5)):
        compiled = compile_program(row, machines, bound=50.0)
        x = row.sample(np.random.default_rng(1), 100, machines, 50.0)
        truth = row.answers(x)
        np.testing.assert_allclose(run(compiled.written.tracing, x), truth, rtol=0, atol=1e-12)
        np.testing.assert_allclose(pcoc.run(compiled.program, x), truth, rtol=0, atol=1e-12)
        table = compiled.check(samples=20)
        assert table["agrees"].all(), (machines, table)


@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_of_the_network_are_those_of_the_program(name):
    row, machines = PROGRAMS[name], SIZES.get(name, (4,))[-1]
    compiled = compile_program(row, machines, bound=50.0)
    x = row.sample(np.random.default_rng(2), 20, machines, 50.0)
    found, right = compiled.trace(x), trace(compiled.written, x)
    assert found.names == right.names and found.places == right.places
    for ours, theirs in zip(found.rounds, right.rounds, strict=True):
        for variable, values in theirs.items():
            np.testing.assert_allclose(ours[variable], values, rtol=0, atol=1e-12, err_msg=variable)
    np.testing.assert_allclose(found["answer" if "answer" in found.names else "answer[0]"][len(found.rounds) - 1],
                               row.answers(x)[..., 0], atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("name", [*PROGRAMS, *(name for name in LIBRARY if name not in OTHER_MACHINES)])
def test_networks_are_small_without_being_asked(name):
    compiled = compile_program({**LIBRARY, **PROGRAMS}[name], 9 if name == "life" else 8)
    assert sum(each.numel() for each in compiled.model.parameters()) < 600_000
    assert compiled.model.config.layers == len(compiled.written.tracing.parts)


DIRECTED = {
    name: row
    for name, row in {**LIBRARY, **PROGRAMS}.items()
    if name not in OTHER_MACHINES and isinstance(row.build(4, 1.0, "theorem"), MPC)
}


def test_the_theorem_routes_what_the_data_directs():
    names = "bfs components list-ranking rank_sort run_length_encoding sparse_matrix_vector stream_compaction word-count"
    assert sorted(DIRECTED) == names.split()


@pytest.mark.parametrize(("name", "machines"), [(name, 2 if name in ("bfs", "components") else 3) for name in DIRECTED])
def test_the_theorems_route_gives_the_same_answers(name, machines):
    """As written, MPC, PCOC (Lemma B.1) and the network without its matrices."""
    row = DIRECTED[name]
    built = row.build(machines, 50.0, "theorem")
    x = row.sample(np.random.default_rng(4), 30, machines, 50.0)
    truth = row.answers(x)
    compiled = compile_program(built, sparse=True)
    found = compiled.model(torch.from_numpy(x if x.shape[-1] > 1 else x[..., 0])).numpy().reshape(truth.shape)
    for answers in (run(row.traced(machines, 50.0), x), mpc.run(built, x), pcoc.run(compiled.program, x), found):
        np.testing.assert_allclose(answers, truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["list-ranking", "word-count", "prefix-sum", "khop", "rule_110"])
def test_all_levels_agree_on_the_theorems_route(name):
    compiled = compile_program({**LIBRARY, **PROGRAMS}[name], 3, bound=50.0, route="theorem")
    table = compiled.check(samples=10)
    assert table["agrees"].all(), table
    assert ("MPC" in set(table["level"])) == (name in DIRECTED)
    assert compiled.model.config.d_v == compiled.program.memory + 1  # W_V = I


def test_the_theorems_route_has_the_sizes_of_the_theorem():
    """List ranking of 4: 2 log N rounds of MPC, and memory for two messages of three words."""
    compiled = compile_program("list-ranking", 4, route="theorem")
    assert (len(compiled.written.rounds), compiled.written.memory, compiled.written.longest) == (4, 6, 3)
    assert compiled.model.config.layers == 3 * 4 + 1


@posattn.program(to=Whole(0, 9), k=Whole(0, 9))
def careless(me, n, to, k):
    early = k
    heard = yield send(to, k, when=k > 0, most=2)
    return within(heard.sum(), 0, 12) + early  # here


RIGHT = [[0, 3], [0, 9], [2, 1], [3, 0]]


@pytest.mark.parametrize("route", ["lean", "theorem"])
@pytest.mark.parametrize(
    ("x", "r", "told"),
    [
        ([[0, 3], [4, 1], [2, 1], [3, 0]], 0, "machine 1"),  # sends to machine 4
        ([[0, 3], [0, 1], [0, 1], [3, 0]], 1, "machine 0"),  # three messages
        ([[0, 8], [0, 9], [2, 1], [3, 0]], 1, "machine 0"),  # 17 is beyond 12
    ],
)
def test_both_routes_refuse_at_every_level_in_the_programs_own_words(route, x, r, told):
    compiled = compile_program(careless, 4, route=route)
    first = inspect.getsourcelines(careless.function)[1]
    levels = [compiled.run, lambda x: run(careless.traced(4, 1e6), x), lambda x: pcoc.run(compiled.program, x)]
    levels += [lambda x: mpc.run(compiled.written, x)] * (route == "theorem")
    for level in levels:
        assert level(np.array(RIGHT, dtype=float)).tolist() == [[15], [9], [2], [0]]
        with pytest.raises(UsageError) as error:
            level(np.array(x, dtype=float))
        # A network names the line at which the round first states something.
        lines = [first + 3] if r == 0 else [first + 3, first + 4]
        rounds = {0, r} if "words; its memory" in str(error.value) else {r}  # MPC names the round that sends too much
        places = {f"careless (test_function_programs.py:{line}), round {each}" for line in lines for each in rounds}
        assert str(error.value).startswith(tuple(places)) and told in str(error.value)


def test_a_trace_takes_a_flat_list_of_a_program_with_one_input():
    compiled = compile_program("prefix-sum", 4)
    assert compiled.trace([1, 2, 3, 4])["x"][0].tolist() == [1, 2, 3, 4]
    assert compiled.trace([1, 2, 3, 4])["answer"][2].tolist() == [1, 3, 6, 10]
    assert compiled.trace([[1, 2, 3, 4]] * 2)["answer"][2].tolist() == [[1, 3, 6, 10]] * 2
    assert compiled.run([1, 2, 3, 4]).tolist() == [[1], [3], [6], [10]]
    assert compile_program("prefix-sum", 4, route="theorem").trace([1, 2, 3, 4])["answer"][2].tolist() == [1, 3, 6, 10]
    routed = compile_program("list-ranking", 2, route="theorem").trace([1, 2])
    assert routed.names == ["answer"] and routed["answer"][2].tolist() == [1, 0]


def doubled():
    @posattn.program
    def tried(me, n, x):
        return 2 * x

    return tried


@pytest.mark.parametrize(
    ("truth", "told"),
    [
        (lambda x: x[1:], "the truth of tried has shape (2, 1); it must be (3, 1): one row for each machine."),
        (lambda x: None, "the truth of tried is None; it must be a row of numbers for each machine."),
        (lambda x: [1, [2, 3], 4], "the truth of tried is [1, [2, 3], 4]; it must be a row of numbers for each machine."),
        (lambda x: ["a", "b", "c"], "the truth of tried is ['a', 'b', 'c']; it must be a row of numbers"),
        (lambda x: [[2 * each] * 2 for each in x], "the truth of tried has shape (3, 2); it must be (3, 1)"),
    ],
)
def test_a_truth_of_another_shape_is_refused(truth, told):
    tried = doubled()
    tried.truth(truth)
    with pytest.raises(UsageError) as error:
        compile_program(tried, 3).check(samples=2)
    assert str(error.value).startswith(told), error.value


@pytest.mark.parametrize("rows", [2, 4, None])
def test_samples_of_another_shape_are_refused(rows):
    tried = doubled()
    tried.samples(lambda random, n: None if rows is None else np.zeros((rows, 1)))
    with pytest.raises(UsageError, match=r"^the sample of tried (is None|has shape)"):
        compile_program(tried, 3).check(samples=2)


def test_the_theorems_route_refuses_spare_machines_that_the_data_addresses():
    @posattn.program(to=Whole(0, 5))
    def spread(me, n, to):
        return (yield send(to, me)).count()

    spread.machines = lambda n: 2 * n
    assert compile_program(spread, 3).model.config.n == 3
    with pytest.raises(UsageError, match=r"^route is 'theorem'; spread has 6 machines for 3 inputs, and its data directs "):
        compile_program(spread, 3, route="theorem")


def test_answers_to_integers_are_those_to_floats():
    sums = LIBRARY["prefix-sum"]
    assert sums.answers(np.array([[3], [1], [-2]])).tolist() == [[3.0], [4.0], [2.0]]
