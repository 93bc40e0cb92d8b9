"""Expressions mean the same in numpy and as ReLU layers, bit for bit where nothing is added, and bounds are checked."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posattn import UsageError
from posattn.compiler import expressions as ex
from posattn.compiler.analysis import Analysis, Known, Margins
from posattn.compiler.expressions_to_relu import relu_layers

MACHINES = 7
REALS, INTEGERS = 3, 4
KNOWN = [Known(-10.0, 10.0)] * REALS + [Known(0.0, 6.0, True)] * INTEGERS
MEMORY = ex.Memory(REALS + INTEGERS)
A, B, C, I, J, K, L = MEMORY


def network(maps, x):
    for depth, own in enumerate(maps, start=1):
        x = x @ own.dense().T + own.bias
        x = np.maximum(x, 0) if depth < len(maps) else x
    return x


def memories(count=200, seed=0):
    random = np.random.default_rng(seed)
    reals = random.uniform(-10, 10, (count, MACHINES, REALS))
    return np.concatenate([reals, random.integers(0, 7, (count, MACHINES, INTEGERS))], axis=-1)


def both_ways(expressions, cells=None):
    """(numpy's values, the network's values, its maps)."""
    cells = memories() if cells is None else cells
    me = np.arange(MACHINES, dtype=float)
    maps = relu_layers(expressions, Analysis(KNOWN, MACHINES), range(cells.shape[-1] + 1), cells.shape[-1] + 1)
    numbers = np.broadcast_to(me, cells.shape[:-1])[..., None]
    direct = np.stack(ex.evaluate_expressions(expressions, cells, me), axis=-1)
    return direct, network(maps, np.concatenate([cells, numbers], axis=-1)), maps


EXACT = {
    "comparison": lambda: [I > J, I >= J, I < J, I <= J, ex.equal(I, J), I > 3],
    "bits": lambda: [ex.both(I > J, K > L), ex.either(I > J, K > L), 1 - (I > J)],
    "operators": lambda: [(I > J) & (K > L), (I > J) | (K > L) | 0, 1 & ~(I > J), +I],
    "select": lambda: [ex.select(I > J, A, B), ex.select(ex.equal(I, J), A + B, 0), ex.select(MEMORY.me >= 4, I, C)],
    "table": lambda: [ex.by_machine([3, 1, 4, 1, 5, 9, 2]), ex.select(ex.by_machine([0, 1] * 3 + [1]), A, B)],
    "relu and abs": lambda: [ex.relu(A), ex.absolute(B), ex.relu(I - J)],
    "sort": lambda: [part for row in ex.sort_records([(I, A), (J, B), (K, C), (L, A)]) for part in row],
    "machine": lambda: [MEMORY.me, MEMORY.me * 2 - I],
    "constant": lambda: [ex.as_expression(2.5), ex.select(I > J, 1, -1)],
}


@pytest.mark.parametrize("name", EXACT)
def test_no_rounding_where_values_are_only_moved(name):
    direct, computed, _ = both_ways(EXACT[name]())
    assert (direct == computed).all()


def test_arithmetic_is_exact_up_to_rounding():
    direct, computed, _ = both_ways([ex.minimum(A, B), ex.maximum(A, B), 2 * A - B * 0.1 + 3, ex.minimum(A, I)])
    assert np.abs(direct - computed).max() < 1e-13


@pytest.mark.parametrize(
    "table",
    [[1e15, 0.1, 0.2, 0.3], [0.1, 1e300, -1e-300, 0.0, 1e-5, 1e15, 7.0], [-0.1], [0.0, 0.7]],
    ids=["first large", "all magnitudes", "one value", "shorter"],
)
def test_a_table_is_read_without_rounding(table):
    _, computed, _ = both_ways([ex.by_machine(table), -ex.by_machine(table)])
    wanted = np.array([*table, *[table[-1]] * (MACHINES - len(table))])
    assert (computed[..., 0] == wanted).all() and (computed[..., 1] == -wanted).all()


def test_integers_of_a_table_are_compared_exactly():
    table = np.random.default_rng(0).integers(-(2**48), 2**48, 64).astype(float)
    bits = [ex.equal(MEMORY[0], ex.by_machine(table)), MEMORY[0] > ex.by_machine(table)]
    maps = relu_layers(bits, Analysis([Known(-(2.0**49), 2.0**49, True)], 64), range(2), 2)
    for step, wanted in ((-1, [0, 0]), (0, [1, 0]), (1, [0, 1])):
        assert network(maps, np.stack([table + step, np.arange(64)], axis=-1)).tolist() == [wanted] * 64


def test_integers_beside_small_numbers_leave_them_their_digits():
    """The units of a table or of a comparison are larger than what they add up to."""
    table = ex.by_machine([1e6, 0, 1e6, 0, 0, 1, 0])
    cells = memories() * ([1e-12] * REALS + [1] * INTEGERS)
    direct, computed, _ = both_ways([A + table, ex.minimum(A, table), A + (I > J), ex.minimum(A, I > J)], cells)
    np.testing.assert_allclose(computed[:, [1, 3, 4, 6]], direct[:, [1, 3, 4, 6]], rtol=1e-15)


def test_an_expression_may_be_as_deep_as_it_likes():
    cells = memories(5)
    select, least, total = A, A, A
    for step in range(1500):
        select = ex.select(MEMORY.me >= step % MACHINES, B, select)
        least = ex.minimum(least, C + step)
        total = ex.relu(total + I)
    deep = [select, least, total, ex.sort_records([(ex.select(I > J, I, K), select), (J, least)])[0][1]]
    assert [len(ex.cells_read([each])) for each in deep[:3]] == [2, 2, 2]
    found = ex.evaluate_expressions(deep, cells, np.arange(MACHINES, dtype=float))
    assert (found[1] == np.minimum(cells[..., 0], cells[..., 2])).all()
    analysis = Analysis(KNOWN, MACHINES)
    assert [analysis.known(each).size for each in deep[:2]] == [10, 10]


def test_a_deep_expression_is_lowered():
    deep = A
    for step in range(400):
        deep = ex.minimum(deep, B + step)
    direct, computed, _ = both_ways([deep], memories(5))
    np.testing.assert_allclose(computed, direct, atol=1e-12)


def test_values_of_a_comparison_and_a_select():
    cells = np.zeros((1, MACHINES, REALS + INTEGERS))
    cells[..., 0], cells[..., 3], cells[..., 4] = 1.5, np.arange(MACHINES), 3
    direct, _, _ = both_ways([I > J, ex.select(I > J, A, -1)], cells)
    assert direct[0, :, 0].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert direct[0, :, 1].tolist() == [-1, -1, -1, -1, 1.5, 1.5, 1.5]


@given(count=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_comparators_sort_any_number_of_records(count, seed):
    keys = np.random.default_rng(seed).integers(0, 4, (50, count))
    expected = np.sort(keys, axis=-1)
    for low, high in ex.comparators(count):
        keys[:, [low, high]] = np.sort(keys[:, [low, high]], axis=-1)
    assert (keys == expected).all()


def test_sorting_moves_whole_records():
    rows = ex.sort_records([(I, A), (J, B), (K, C)])
    direct, computed, _ = both_ways([part for row in rows for part in row])
    cells = memories()
    for found in (direct, computed):
        records = found.reshape(*found.shape[:-1], 3, 2)
        assert (np.diff(records[..., 0], axis=-1) >= 0).all()
        given_pairs = np.stack([cells[..., 3:6], cells[..., :3]], axis=-1)
        for a, b in zip(records.reshape(-1, 3, 2), given_pairs.reshape(-1, 3, 2), strict=True):
            assert sorted(map(tuple, a)) == sorted(map(tuple, b))


def test_a_sum_needs_one_hidden_layer_and_a_select_three():
    assert [len(both_ways([e])[2]) for e in (A + B, ex.minimum(A, B))] == [2, 2]
    assert len(both_ways([ex.select(I > J, A, B)])[2]) == 4


def test_a_fitted_function_reports_the_error_it_has():
    analysis = Analysis(KNOWN, MACHINES)
    node = ex.fitted(np.square, A, units=40)
    known = analysis.known(node)
    direct, computed, _ = both_ways([node])
    measured = np.abs(direct - computed).max()
    # Interpolation at distance h errs by at most h²/8 times the second derivative.
    assert 0 < measured <= known.misfit <= (20 / 40) ** 2 / 8 * 2 + 1e-9


def test_a_function_that_is_zero_at_all_knots_does_not_pass_for_zero():
    """Points at equal distances would all meet the zeros of this sine; the points that are tried also lie between."""
    node = ex.fitted(lambda a: np.sin(1280 * np.pi * a), A, units=64)
    assert Analysis([Known(0.0, 1.0)], MACHINES).known(node).misfit > 0.9


def test_a_function_of_two_arguments_is_fitted_better_with_more_units():
    def error(units):
        return Analysis(KNOWN, MACHINES).fit(ex.fitted(lambda a, b: a * b, A, B, units=units)).error

    few, many = error(20), error(200)
    assert many < few / 4
    direct, computed, _ = both_ways([ex.fitted(lambda a, b: a * b, A, B, units=200)])
    assert np.abs(direct - computed).max() <= many * 1.2


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (lambda: A > B, "need not be integers"),
        (lambda: ex.select(A, B, C), "it needs a bit"),
        (lambda: ex.select(I, B, C), r"select was given a number in \[0, 6\]; it needs a bit"),
        (lambda: ex.both(I > J, I), r"both was given a number in \[0, 6\]; it needs a bit"),
        (lambda: ex.either(I > J, A), r"either was given a number in \[-10, 10\] that need not be whole; it needs a bit"),
        (lambda: ex.both(I > J, 2), r"both was given a number in \[2, 2\]"),
        (lambda: (I > J) & K, r"both was given a number in \[0, 6\]"),
        (lambda: I | (I > J), r"either was given a number in \[0, 6\]"),
        (lambda: ~I, r"~ was given a number in \[0, 6\]"),
        (lambda: ex.fitted(np.log, A, units=4), "one finite number"),
        (lambda: ex.sort_records([(A, B), (B, C)])[0][0], "need not be integers"),
    ],
)
def test_what_a_network_cannot_compute_is_refused(node, message):
    with pytest.raises(UsageError, match=message), np.errstate(all="ignore"):
        both_ways([node()])


def test_mistakes_in_a_program_are_found_while_it_is_written():
    with pytest.raises(UsageError, match="constant factor"):
        A * B
    with pytest.raises(UsageError, match="no truth value"):
        if I > J:
            pass
    with pytest.raises(UsageError, match="number of fields"):
        ex.sort_records([(I, A), (J,)])


@given(seed=st.integers(0, 10_000))
def test_ranges_hold(seed):
    """Interval arithmetic never says less than what is found."""
    expressions = [e for make in EXACT.values() for e in make()]
    analysis = Analysis(KNOWN, MACHINES)
    values = ex.evaluate_expressions(expressions, memories(20, seed), np.arange(MACHINES, dtype=float))
    for expression, found in zip(expressions, values, strict=True):
        known = analysis.known(expression)
        assert known.lo <= found.min() and found.max() <= known.hi
        assert not known.integer or (found == found.round()).all()


@pytest.mark.parametrize("size", [2.0**49, 2.0**49 - 1])
def test_large_integers_are_compared_exactly_up_to_the_bound(size):
    known = [Known(-size, size, True)] * 2
    bits = [MEMORY[0] > MEMORY[1], ex.equal(MEMORY[0], MEMORY[1])]
    maps = relu_layers(bits, Analysis(known, MACHINES), range(3), 3)
    pairs = np.array(
        [[size, size - 1, 0], [size - 1, size, 0], [size, -size, 0], [-size, -size, 0], [1 - size, -size, 0]]
    )
    assert network(maps, pairs).tolist() == [[1, 0], [0, 0], [1, 0], [0, 1], [1, 0]]


def test_larger_integers_are_not_compared():
    known = [Known(0, 2.0**50, True), Known(0, 1, True)]
    with pytest.raises(UsageError, match=r"integers of up to 1.126e\+15 and 1; .* 2\^50 = 1.126e\+15"):
        relu_layers([MEMORY[0] > MEMORY[1]], Analysis(known, MACHINES), range(3), 3)
    with pytest.raises(UsageError, match="integers of up to"):
        rows = ex.sort_records([(MEMORY[0],), (MEMORY[1],)])
        relu_layers(rows[0], Analysis(known, MACHINES), range(3), 3)


def test_numbers_beyond_what_gates_can_hold_are_refused():
    known = Analysis([Known(-1e308, 1e308)], MACHINES, place="here: ")
    for node in (MEMORY[0] + MEMORY[0], MEMORY[0]):
        with pytest.raises(
            UsageError, match=r"^here: numbers may reach (inf|1e\+308); weights can be made for 1.07e\+301"
        ):
            known.known(node)
    largest = 2.0**1000
    analysis = Analysis([Known(-largest, largest), Known(0, 1, True)], MACHINES)
    maps = relu_layers([ex.select(MEMORY[1], MEMORY[0], 1)], analysis, range(3), 3)
    assert network(maps, np.array([[largest, 1, 0], [largest, 0, 0], [-largest, 1, 0]])).tolist() == [
        [largest],
        [1],
        [-largest],
    ]


def test_a_function_of_plain_numbers_is_fitted_as_one_of_arrays_is():
    def bump(a):
        return 1.0 if a > 0.25 else math.cos(a)

    direct, computed, _ = both_ways([ex.fitted(math.sin, A), ex.fitted(lambda a: 3.0, A), ex.fitted(bump, A)])
    arrays, again, _ = both_ways([ex.fitted(np.sin, A)])
    np.testing.assert_allclose(direct[..., 0], arrays[..., 0], rtol=1e-14)
    np.testing.assert_allclose(computed[..., 0], again[..., 0], rtol=1e-9, atol=1e-12)
    assert (direct[..., 1] == 3).all() and np.abs(computed[..., 1] - 3).max() < 1e-12
    cells = memories()[..., 0]
    np.testing.assert_allclose(direct[..., 2], np.where(cells > 0.25, 1, np.cos(cells)))


def test_errors_of_fitted_functions_go_through_others_and_are_not_compared():
    """The misfit of f(g(x)), that of f and the slope of f times that of g, is no less than measured and not ten times more."""
    analysis = Analysis(KNOWN, MACHINES)
    inner = ex.fitted(np.square, A, units=20)
    outer = ex.fitted(lambda x: 5 * np.abs(x - 30), inner, units=200)
    direct, computed, _ = both_ways([outer, inner + 2 * inner])
    measured = np.abs(direct - computed).max(axis=(0, 1))
    for node, found, alone in zip((outer, inner + 2 * inner), measured, (5, 3), strict=True):
        known = analysis.known(node)
        assert found <= known.misfit <= 10 * found
        assert known.misfit >= alone * analysis.known(inner).misfit > 0
    rounded = ex.Assume(inner, 0, 100, True)
    with pytest.raises(UsageError, match="fitted numbers with an error of"):
        analysis.known(rounded > 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ex.fitted(np.cos), "at least one expression"),
        (lambda: ex.fitted("cos", A), "takes a function"),
        (lambda: both_ways([ex.fitted(math.sqrt, A)]), r"fails at \(-10\): ValueError"),
        (lambda: both_ways([ex.fitted(lambda a: 1 // int(a - a), A)]), "fails at .* ZeroDivisionError"),
        (lambda: ex.by_machine([]), "no values"),
        (lambda: ex.by_machine([1, float("nan")]), "nan is used as a constant"),
        (lambda: A + "one", "'one' is no number and no expression"),
        (lambda: A * float("inf"), "inf is used as a constant"),
        (lambda: ex.sort_records([(I, A), (J, B)], key=2), "key is 2; .* 0 to 1"),
        (lambda: ex.sort_records([(I, A), (J, B)], key=-1), "key is -1"),
        (lambda: I % 2, "% is applied to an expression; it is not piecewise linear"),
        (lambda: 2 % I, "% is applied"),
        (lambda: I // 2, "// is applied"),
        (lambda: I**2, r"\*\* is applied"),
        (lambda: 2**I, r"\*\* is applied"),
        (lambda: I ^ J, r"\^ is applied"),
        (lambda: I << 1, "<< is applied"),
        (lambda: 1 / A, "1 / x is applied"),
        (lambda: round(A), "round is applied"),
        (lambda: float(A), "float is applied"),
        (lambda: int(A), "int is applied"),
        (lambda: divmod(I, 2), "divmod is applied"),
        (lambda: A * 1j, "1j is no number"),
        (lambda: MEMORY[7], "memory position 7 is read; positions are 0 to 6"),
    ],
)
def test_what_is_no_expression_is_told_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_gate_of_what_is_always_zero_needs_no_room_it_has_not():
    """relu of a number that is never positive is 0, but what softmax adds to it is not."""
    margins = Margins()
    analysis = Analysis([Known(-5.0, 0.0, error=5.0), Known(0, 1, True)], MACHINES, margins)
    analysis.known(ex.select(MEMORY[1], ex.relu(MEMORY[0]), 1))
    assert 0 < margins.epsilon < 1


def test_a_part_of_a_memory_is_a_list_that_words_can_be_added_to():
    memory = ex.Memory(3)
    words = memory[1:]
    words += [memory[0]]
    assert isinstance(words, list) and [word.index for word in words] == [1, 2, 0]


def test_equality_is_a_comparison_and_no_truth_value():
    """Python's own == of two objects would be False, a constant 0 that no level could tell from what was meant."""
    memory = ex.Memory(2)
    x = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    me = np.arange(3.0)
    assert ex.evaluate_expressions([memory[0] == 1], x, me)[0].tolist() == [0, 1, 0]
    assert ex.evaluate_expressions([memory[0] != memory[1]], x, me)[0].tolist() == [1, 0, 1]
    assert ex.evaluate_expressions([abs(memory[0] - 1) / 2], x, me)[0].tolist() == [0.5, 0, 0.5]
    assert ex.evaluate_expressions([ex.select(1, memory[0], 7), ex.both(memory[1], 1)], x, me)[0].tolist() == [0, 1, 2]
    for ask in (lambda: memory[0] / 0, lambda: memory[0] / memory[1]):
        with pytest.raises(UsageError, match=r"divided"):
            ask()
    with pytest.raises(UsageError, match="truth value"):
        assert memory[0] == 1
