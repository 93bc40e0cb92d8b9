"""One network for lists of every length: at each it gives the truth, and what the program for exactly that length gives."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError, files
from posattn.compiled_run import save
from posattn.compiler import (
    PROGRAMS,
    Bit,
    N,
    Whole,
    compile_program,
    interpreter,
    minimum,
    program,
    select,
    send,
    within,
)
from posattn.compiler.machine_memory import with_length, within_bounds
from posattn.export import to_torch
from posattn.network import missing

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
UNCHANGED = [
    *("prefix_sum", "prefix_min", "max_subarray", "odd_even_sort", "bitonic_sort", "median", "word_count", "khop"),
    *("khop_scan", "sparse_matrix_vector", "run_length_encoding", "stream_compaction", "dfa_scan", "convolution"),
]


def example(name):
    """A program of the library or of docs/examples."""
    found = PROGRAMS.get(name.replace("_", "-"))
    return files.execute(EXAMPLES / "programs.py", "program")[name] if found is None else found


@program(near=[Whole(0, N)] * 2, start=Bit)
def search(me, n, length, near, start):
    level = select(start, 0, length)
    for _ in range(n - 1):
        heard = yield send(near, level + 1, when=[other < length for other in near])
        level = minimum(level, heard.min(length))
    return level


@search.truth
def _(near, start):
    n = len(start)
    level = [0 if bit else n for bit in start]
    for _ in range(n):
        for i, others in enumerate(near):
            for j in others:
                if j < n:
                    level[j] = min(level[j], level[i] + 1)
    return level


@program(follows=Whole(0, N))
def ranking(me, n, length, follows):
    distance = follows < length
    for _ in range((n - 1).bit_length()):
        asked = (yield send(follows, me, when=follows < length))[0]
        told = (yield send(asked[0], follows, distance, when=asked.present))[0]
        follows, distance = select(told.present, told[0], follows), distance + told[1]
    return distance


@ranking.samples
def _(random, n):
    order, follows = random.permutation(n), np.full((n, 1), n)
    for here, after in pairwise(order):
        follows[here, 0] = after
    return follows


@program(x=Whole(-9, 9))
def rank_sort(me, n, x):
    key = x * n + me
    others = yield send(range(n), key)
    mine = yield send(sum(other.present & (other[0] < key) for other in others), x)
    return mine.get()


@rank_sort.truth
def _(x):
    return sorted(x)


@program(x=Whole(3, 9))
def mirrored(me, n, length, x):
    """The list from its end; the range of the inputs is without 0, and the last answer is the length."""
    heard = yield send(length - 1 - me, x, when=me < length)
    return heard.get(), length


@mirrored.truth
def _(x):
    return [(number, len(x)) for number in reversed(x)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("row", [search, ranking, rank_sort, mirrored], ids=lambda row: row.name)
def test_programs_that_know_the_length_agree_at_every_level_and_length(row, sparse):
    table = compile_program(row, 5, lengths=True, sparse=sparse).check(samples=8)
    assert table["agrees"].all() and {"as written", "PCOC", "hardmax network"} <= set(table["level"])
    assert compile_program(row, 4, sparse=sparse).check(samples=8)["agrees"].all()  # where the length is n


@pytest.mark.parametrize("name", UNCHANGED)
def test_programs_whose_text_does_not_change(name):
    compiled = compile_program(example(name), 5, lengths=True, bound=50.0, sparse=True)
    assert compiled.check(samples=6)["agrees"].all()


def test_the_answers_are_those_of_the_program_for_exactly_so_many_machines():
    compiled = compile_program(example("max_subarray"), 6, lengths=True, bound=9.0)
    for k in range(1, 7):
        x = np.random.default_rng(k).uniform(-9, 9, (3, 2, k, 1))
        exact = compile_program(example("max_subarray"), k, bound=9.0)
        np.testing.assert_allclose(compiled.run(x), exact.run(x), rtol=0, atol=1e-12)
        assert compiled.run(x).shape == (3, 2, k, 1)


def test_a_program_that_uses_n_as_data_is_found_out():
    for name, more in (("tree_sum", ""), ("rule_110", ""), ("list_ranking", r" \(list-ranking .*, round 0, .* its list\)")):
        told = rf"^lengths is True; {name.replace('_', '-')} answers lists of 1 otherwise than for exactly 1 machine{more}; "
        to_author = name == "rule_110"  # the others are the library's
        hint = "where it computes with n, the parameter length may be meant" if to_author else "this program of the library is"
        with pytest.raises(UsageError, match=told + hint):
            compile_program(example(name), 4, lengths=True)


def test_samples_that_break_a_rule_hide_no_use_of_n():
    @program(to=Whole(0, N))
    def empty(me, n, to):
        return (yield send(to, me)).get(empty=n)

    with pytest.raises(UsageError, match=r"^lengths is True; empty answers lists of \d otherwise than for exactly"):
        compile_program(empty, 8, lengths=True)

    @program(k=Whole(0, 10**6))
    def forbidden(me, n, k):
        return within(k, 0, 0)

    with pytest.raises(UsageError, match=r"^lengths is True; forbidden cannot be tried .*\(@forbidden\.samples\)\.$"):
        compile_program(forbidden, 8, lengths=True)


def test_lists_of_one_number_are_not_taken_for_one_list():
    compiled = compile_program(example("prefix_sum"), 4, lengths=True, bound=9.0)
    assert compiled.run([[[1.0]], [[2.0]]]).tolist() == [[[1]], [[2]]] and compiled.run([[1.0], [2.0]]).tolist() == [[1], [3]]
    assert compiled.trace([[[1.0]], [[2.0]]])["answer"][2].tolist() == [[1], [2]]
    for flat in ([1.0], [1.0, 2.0], [[1.0, 2.0]]):
        for ask in (compiled.run, compiled.trace):
            with pytest.raises(UsageError, match=r"with lists of every length it must be \(\.\.\., length, 1\)\.$"):
                ask(flat)


@program(to=Whole(0, N - 1), count=Whole(0, 9))
def counted(me, n, to, count):
    heard = yield send(to, count)
    return within(heard.sum(), 0, 12)


def test_what_breaks_a_rule_within_the_list_is_refused_and_nothing_beyond_it():
    compiled = compile_program(counted, 4, lengths=True)
    levels = (compiled.run, compiled._with_length(lambda x: interpreter.run(compiled.written.tracing, x)))
    for run in levels:
        with pytest.raises(UsageError, match=r"round 0.*machine 1.* (not there|it must be 0 to the last of its list)"):
            run(np.array([[0.0, 1], [2, 1]]))
        with pytest.raises(UsageError, match=r"round 1.*machine 0.* (beyond the range|stated to be from 0 to 12)"):
            run(np.array([[0.0, 9], [0, 4]]))
        assert run(np.array([[1.0, 9], [1, 3]]))[:, 0].tolist() == [0, 12]

    @program(x=Whole(5, 9))
    def alone(me, n, x):
        heard = yield send(me, x)
        return within(heard.sum(), 5, 9)  # a machine beyond the list hears nothing: 0

    assert compile_program(alone, 3, lengths=True).run(np.array([[6.0]])).tolist() == [[6]]


def test_a_list_is_padded_with_legal_numbers_and_its_length():
    x = torch.tensor([[[2.0, 7.5]]])
    found = with_length(x, 3, ((1.0, 4.0), (6.5, 9.0)), (0,))
    assert found.tolist() == [[[2, 7.5, 1], [1, 6.5, 1], [1, 6.5, 1]]]
    assert with_length(torch.tensor([[1.0], [2.0]]), 2, ((-3.0, 3.0),)).tolist() == [[1, 2], [2, 2]]
    assert within_bounds(x[0, 0], 4, ((0.0, 9.0),), lengths=True) is not None
    with pytest.raises(UsageError, match=r"^the list has 2 numbers; this compiled program takes 3\.$"):
        within_bounds(x[0, 0], 3, ((0.0, 9.0),))


def test_other_lengths_and_other_programs_are_refused_in_a_sentence(unchecked):
    model = posattn.compile(example("prefix_sum"), 4, lengths=True)
    for count in (0, 5):
        with pytest.raises(UsageError, match=f"^the list has {count} numbers; this compiled program takes 1 to 4\\.$"):
            model(torch.zeros(count))
    with pytest.raises(UsageError, match=r"^lengths is True; prefix-sum is written round by round for one length; a function"):
        posattn.compile(PROGRAMS["prefix-sum"].build(4, 1.0), lengths=True)
    with pytest.raises(UsageError, match=r"^lengths is True; self-attention has 9 machines for 3 inputs, and one length\.$"):
        posattn.compile("self-attention", 3, lengths=True)
    with pytest.raises(UsageError, match=r"^lengths is True; mixed is not for every length: machines is 1; mixed takes 23 or"):
        posattn.compile("mixed", 23, lengths=True)
    with pytest.raises(UsageError, match=r"^lengths is True and route 'theorem'; a network for lists of every length is lean"):
        posattn.compile("prefix-sum", 3, lengths=True, route="theorem")
    with pytest.raises(UsageError, match=re.escape("lengths is 3; it must be True or False.")):
        posattn.compile(example("prefix_sum"), 4, lengths=3)
    assert "is told the length of its list (lengths)" in missing(model.config, "show")


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_trace_of_a_shorter_list_is_that_of_the_program_as_it_is_written(k):
    compiled = compile_program(ranking, 5, lengths=True)
    config, x = compiled.model.config, ranking.sample(np.random.default_rng(0), 4, k, 1.0)
    every = with_length(torch.from_numpy(x), 5, config.bounds, config.integers).numpy()
    written, found = interpreter.trace(compiled.written, every), compiled.trace(x)
    for own, other in zip(found.rounds, written.rounds, strict=True):
        assert own.keys() == other.keys()
        assert all((own[name] == other[name][..., :k]).all() for name in own)


@pytest.mark.parametrize("sparse", [False, True])
def test_shorter_lists_are_traced_and_asked_of_a_saved_network(tmp_path, unchecked, sparse):
    compiled = compile_program(search, 4, lengths=True, sparse=sparse)
    save(compiled, tmp_path / "own")
    run = posattn.load(tmp_path / "own")
    x = run.as_input([1, 2, 1, 2, 2, 0])  # 0 to 1, and no other; 0 is a start
    assert run.answer(x).tolist() == run.truth(x).tolist() == [0, 1]
    trace = run.trace(x)
    assert trace["level"][0].tolist() == [0, 2] and trace["length"][0].tolist() == [2, 2]
    assert set(trace["listed"][0].tolist()) == {1} and run.evaluate(samples=5)["mse"].item() == 0
    for values, said in (([1.0] * 15, "15"), ([1.0] * 4, "4"), ([], "0")):
        with pytest.raises(
            UsageError, match=f"the list has {said} numbers; this compiled program takes up to 12, 3 for each"
        ):
            run.as_input(values)


def test_a_network_is_exported_for_the_length_that_is_asked_for(tmp_path, unchecked):
    model = posattn.compile(example("prefix_min"), 4, lengths=True, bound=9.0, sparse=True)
    to_torch(model, tmp_path / "least.pt2", length=3)
    found = torch.export.load(tmp_path / "least.pt2").module()(torch.tensor([[3.0, 5.0, -2.0], [1.0, 0.0, 4.0]]))
    assert found.tolist() == [[3, 3, -2], [1, 0, 0]]


def test_machines_beyond_the_list_stay_silent_where_they_leave_a_stated_range():
    @program(d=Whole(1, 3))
    def leaving(me, n, d):
        heard = yield send(me + 1, d, when=me < n - 1)
        for _ in range(5):
            d = within(2 * d - heard.get(empty=2), 1, 3)
        heard = yield send(me - 1, d, when=me >= 1)
        return heard.get()

    leaving.samples(lambda random, n: [[2]] * n)
    found = compile_program(leaving, 6, lengths=True).model(torch.full((3,), 2.0))
    assert found.tolist() == [2, 2, 0]
