"""What programs as functions can use, each against plain Python; and errors that name line, variable and round."""

import inspect

import numpy as np
import pytest

import posattn
from posattn import UsageError
from posattn.compiler import (
    Bit,
    N,
    Real,
    Whole,
    absolute,
    both,
    by_machine,
    clamp,
    compile_program,
    either,
    equal,
    fitted,
    greater,
    lookup,
    maximum,
    minimum,
    pcoc,
    relu,
    select,
    send,
    sort_records,
    times,
    within,
)
from posattn.compiler.interpreter import run

TABLE = [1e15, 0.1, -0.2, 3, 7, -7]


@pytest.mark.parametrize(
    ("local", "truth"),
    [
        (lambda me, a, b, x: a // 3, lambda i, a, b, x: a // 3),
        (lambda me, a, b, x: a % 7, lambda i, a, b, x: a % 7),
        (lambda me, a, b, x: (900 * a + b) // 5, lambda i, a, b, x: (900 * a + b) // 5),
        (lambda me, a, b, x: (900 * a + b) % 11, lambda i, a, b, x: (900 * a + b) % 11),
        (lambda me, a, b, x: (me - 1) % 3, lambda i, a, b, x: (i - 1) % 3),
        (lambda me, a, b, x: times(a, b), lambda i, a, b, x: a * b),
        (lambda me, a, b, x: times(a, x), lambda i, a, b, x: a * x),
        (lambda me, a, b, x: lookup(TABLE, b), lambda i, a, b, x: TABLE[b]),
        (lambda me, a, b, x: lookup([[1, 2, 3], [4, 5, 6]], a > 0, b % 3), lambda i, a, b, x: 3 * (a > 0) + b % 3 + 1),
        (lambda me, a, b, x: lookup([a, x, b, me, 0, 1], b), lambda i, a, b, x: [a, x, b, i, 0, 1][b]),
        (lambda me, a, b, x: clamp(x, -1, b), lambda i, a, b, x: max(min(x, b), -1)),
        (lambda me, a, b, x: greater(x, 0.25, gap=0.25), lambda i, a, b, x: x > 0.25),
        (lambda me, a, b, x: ~(a > 0) & (b < 3) | (a == 2), lambda i, a, b, x: (a <= 0 and b < 3) or a == 2),
        (lambda me, a, b, x: 1 & (a != b) | 0, lambda i, a, b, x: a != b),
        (lambda me, a, b, x: abs(a) + absolute(x) - 2 * -x / 4, lambda i, a, b, x: abs(a) + abs(x) + x / 2),
        (lambda me, a, b, x: select(a >= b, maximum(a, x), relu(x)), lambda i, a, b, x: max(a, x) if a >= b else max(x, 0)),
        (lambda me, a, b, x: both(a > 0, either(b <= 1, equal(a, 3))), lambda i, a, b, x: a > 0 and (b <= 1 or a == 3)),
        (lambda me, a, b, x: sort_records([[a, x], [b, 1]])[0][1], lambda i, a, b, x: x if a <= b else 1),
        (lambda me, a, b, x: by_machine([3, 1e-9, 5]) + a, lambda i, a, b, x: [3, 1e-9, 5][min(i, 2)] + a),
        (lambda me, a, b, x: within(a + b, -9, 14), lambda i, a, b, x: a + b),
        (lambda me, a, b, x: fitted(lambda t: 3 * t, x), lambda i, a, b, x: 3 * x),
    ],
)  # fmt: skip
def test_local_functions_are_those_of_python(local, truth):
    @posattn.program(a=Whole(-9, 9), b=Whole(0, 5), x=Real(-8, 8))
    def tried(me, n, a, b, x):
        return local(me, a, b, x)

    @tried.samples
    def _(random, n):
        quarters = random.integers(-32, 33, n) / 4  # multiples of the gap, which greater needs
        return np.stack([random.integers(-9, 10, n), random.integers(0, 6, n), quarters], axis=-1)

    @tried.truth
    def _(a, b, x):
        return [truth(i, *each) for i, each in enumerate(zip(a, b, x, strict=True))]

    table = compile_program(tried, 4).check(samples=40)
    assert table["agrees"].all(), table


def test_numbers_keep_their_small_digits():
    @posattn.program(place=Whole(0, 3))
    def tried(me, n, x, place):
        heard = yield send(place, x)
        return heard.min(empty=0), heard.max(empty=0), heard[1][0], lookup([1e6, x, -1e6, 1e6], place)

    x = np.array([[3e-12, 1], [2e-12, 1], [-1e-12, 0], [5e-12, 1]])
    wanted = [[-1e-12, -1e-12, 0, 3e-12 * 0 + 3e-12], [2e-12, 5e-12, 2e-12, 2e-12], [0, 0, 0, 1e6], [0, 0, 0, 5e-12]]
    found = compile_program(tried, 4, bound=1e6).run(x)
    np.testing.assert_allclose(found[:, :3], np.array(wanted)[:, :3], rtol=1e-9, atol=0)
    np.testing.assert_array_equal(found[:, 3], [3e-12, 2e-12, 1e6, 5e-12])


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_inboxes_have_what_arrived_in_the_order_of_senders(fixed, kept):
    @posattn.program(to=Whole(0, N - 1), bit=Bit)
    def tried(me, n, to, bit, x):
        heard = yield send(me // 2 if fixed else to, x, me, when=1 if kept else bit)
        first, third = heard[0], heard[2]
        sums = heard.count(), heard.sum(), heard.sum(1), heard.min(-5), heard.max(-5), heard.min(9, 1), heard.max(9, 1)
        return *sums, first.present, first[0], third.present, third[1], heard.get(1, empty=-1), heard[9].present

    @tried.truth
    def _(to, bit, x):
        rows = []
        for j in range(len(x)):
            senders = [i for i in range(len(x)) if (i // 2 if fixed else to[i]) == j and (kept or bit[i])]
            words = [x[i] for i in senders]
            row = [len(words), sum(words), sum(senders), min(words, default=-5), max(words, default=-5)]
            row += [min(senders, default=9), max(senders, default=9), bool(words), words[0] if words else 0]
            row += [len(words) > 2, senders[2] if len(words) > 2 else 0, senders[0] if words else -1, 0]
            rows.append(row)
        return rows

    table = compile_program(tried, 4, bound=10.0).check(samples=50)
    assert table["agrees"].all(), table


def test_a_send_to_several_machines_is_one_inbox_and_several_sends_are_several():
    @posattn.program(a=Whole(0, N - 1), b=Whole(0, N - 1))
    def tried(me, n, a, b):
        heard, = yield [send([a, b], me + 1)]  # fmt: skip
        everyone, _, none = yield send(range(n), me + 1), send(me, me), send([], me)
        return heard.sum(), heard.count(), everyone.sum(), everyone.count(), none.count()

    @tried.truth
    def _(a, b):
        n = len(a)
        arrived = [[i + 1 for i in range(n) for to in (a[i], b[i]) if to == j] for j in range(n)]
        return [(sum(each), len(each), n * (n + 1) / 2, n, 0) for each in arrived]

    table = compile_program(tried, 5).check()
    assert table["agrees"].all(), table


@pytest.mark.parametrize("machines", [1, 2, 8])
def test_one_machine_can_send_to_all(machines):
    @posattn.program
    def tried(me, n, x):
        heard = yield send(range(n), x, when=me == 0)
        return heard.get()

    compiled = compile_program(tried, machines)
    x = np.arange(5.0, 5 + machines)[:, None]
    for level, run_at in levels(compiled).items():
        assert run_at(x).tolist() == [[5.0]] * machines, level


def test_words_and_addresses_that_one_bit_gates_are_kept_apart():
    @posattn.program(x=Whole(0, 3), go=Bit)
    def tried(me, n, x, go):
        words, addressed = yield send(1, x, when=go), send(x, 7, when=go)
        return words.sum(), addressed.sum()

    x = np.array([[1.0, 0], [2, 1], [1, 0], [3, 0]])
    for level, run_at in levels(compile_program(tried, 4)).items():
        assert run_at(x).tolist() == [[0, 0], [2, 0], [0, 7], [0, 0]], level


def test_a_variable_of_an_early_round_keeps_its_value():
    @posattn.program(k=Whole(0, 9))
    def tried(me, n, k):
        double, late = 2 * k, k
        for _ in range(2):
            late = late + (yield send((me + 1) % n, late)).get()
        return double + late - k

    found = compile_program(tried, 3).run(np.array([[4.0], [6.0], [1.0]]))
    # after two rounds, x_i + 2 x_{i-1} + x_{i-2}
    assert found[:, 0].tolist() == [4 + (4 + 2 * 1 + 6), 6 + (6 + 2 * 4 + 1), 1 + (1 + 2 * 6 + 4)]


def test_variables_keep_their_columns_and_no_more_is_kept_than_is_read():
    @posattn.program
    def tried(me, n, x):
        early, total, unused = x + 1, 2 * x, 3 * x  # noqa: F841
        for r in range(3):
            heard = yield send((me + 1) % n, total)
            total = total + heard.get() + (early if r == 0 else 0)
        return total

    columns = compile_program(tried, 3).program.labels.columns
    assert [each["total"] for each in columns[:3]] == [1, 1, 1] and columns[0]["early"] == 0
    assert "unused" in columns[0] and all("unused" not in each for each in columns[1:])
    assert list(columns[1]) == ["total"] and columns[-1] == {"answer": 0}


def _line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(k for k, line in enumerate(lines) if text in line)


def real_comparison(me, n, x):
    other = (yield send(me, x)).get()
    bigger = other > x  # here
    return bigger


def branches(me, n, x):
    yield send(me, x)
    if x:  # here
        return x
    return me


def sends_by_reals(me, n, x):
    yield send(x, me)  # here


def sends_beyond(me, n, x):
    yield send(me + 1, me)  # here


def no_bit(me, n, x):
    yield send(me, x, when=me)  # here


def yields_numbers(me, n, x):
    yield me, x  # here


def multiplies(me, n, x):
    twice = x * 2
    return twice * x  # here


def divides(me, n, x):
    yield send(me, x)
    return x // 2  # here


def divides_by_nothing(me, n, x):
    return me % 0  # here


def divides_by_numbers(me, n, x):
    return me % (me + 1)  # here


def adds_an_inbox(me, n, x):
    heard = yield send(me, x)
    return heard + 1  # here


def adds_to_an_inbox(me, n, x):
    heard = yield send(me, x)
    return minimum(x, 2) + heard  # here


def compares_a_message(me, n, x):
    heard = yield send(me, me)
    return me < heard[0]  # here


def states_too_little(me, n, x):
    return within(me, 0, 1)  # here


def selects_by_half(me, n, x):
    return select(0.5, x, me)  # here


def selects_by_minus_one(me, n, x):
    return select(-1, x, me)  # here


STRAY = []


def keeps_numbers(me, n, x):
    STRAY.append(x)
    return x + STRAY[0]  # here


def is_wrong(me, n, x):
    return x + nothing  # noqa: F821  # here


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (real_comparison, "round 1 (x, other): a comparison is of numbers that need not be integers"),
        (branches, "round 1 (x): machines run in step"),
        (sends_by_reals, "round 0: a message is for a machine whose number need not be whole"),
        (sends_beyond, "round 0: machine 3 sends to machine 4, which is not there; use when=."),
        (no_bit, "round 0 (me): when was given a number in [0, 4]; it needs a bit, 0 or 1."),
        (yields_numbers, "round 0 (me): a number is yielded"),
        (multiplies, "round 0 (x, twice): two expressions are multiplied"),
        (divides, "round 1 (x): // and % are of numbers that need not be whole"),
        (divides_by_nothing, "round 0 (me): the divisor of // or % is 0"),
        (divides_by_numbers, "round 0 (me): the divisor of // or % is a number that machines compute"),
        (adds_an_inbox, "round 1: an inbox is used as a number; take one from it"),
        (adds_to_an_inbox, "round 1: an inbox is used as a number; take one from it"),
        (compares_a_message, "round 1 (me): a message is used as a number; take a word of it, such as message[0]."),
        (states_too_little, "round 0 (me): machine 2 has 2, stated to be from 0 to 1."),
        (selects_by_half, "round 0 (me, x): 0.5 is used as a bit"),
        (selects_by_minus_one, "round 0 (me, x): -1 is used as a bit"),
        (is_wrong, "round 0: NameError: name 'nothing' is not defined."),
    ],
)
def test_errors_name_the_line_the_round_and_the_variables(function, told):
    with pytest.raises(UsageError) as error:
        compile_program(posattn.program(function), 4)
    name, line = function.__name__.replace("_", "-"), _line_of(function, "# here")
    assert str(error.value).startswith(f"{name} (test_front_end.py:{line}), {told}"), error.value


def test_a_number_of_another_trace_is_refused():
    program = posattn.program(keeps_numbers)
    compile_program(program, 4)
    line = _line_of(keeps_numbers, "# here")
    with pytest.raises(UsageError, match=rf"\(test_front_end.py:{line}\), round 0: a number was kept from another"):
        compile_program(program, 5)


def levels(compiled):
    return {
        "as written": lambda x: run(compiled.written.tracing, x),
        "PCOC": lambda x: pcoc.run(compiled.program, x),
        "network": compiled.run,
    }


@pytest.mark.parametrize("level", ["as written", "PCOC", "network"])
def test_every_level_refuses_by_line_round_and_machine(level):
    @posattn.program(to=Whole(0, 9))
    def tried(me, n, to):
        heard = yield send(me, to)
        second = yield send(heard.get() - 1, me)
        return within(second.sum(), 0, 3)

    run_at = levels(compile_program(tried, 3))[level]
    assert run_at(np.array([[1.0], [2.0], [3.0]])).tolist() == [[0], [1], [2]]
    assert run_at(np.array([[3.0], [3.0], [3.0]])).tolist() == [[0], [0], [3]]
    first = inspect.getsourcelines(tried.function)[1]
    place = rf"tried \(test_front_end.py:{first + 3}\), round 1"
    for beyond in (-1, 3, 7):
        with pytest.raises(UsageError, match=rf"{place}[,:] machine 1"):
            run_at(np.array([[1.0], [beyond + 1.0], [3.0]]))


@pytest.mark.parametrize("level", ["as written", "PCOC", "network"])
def test_a_stated_range_is_checked(level):
    @posattn.program(k=Whole(0, 9))
    def tried(me, n, k):
        heard = yield send(0, k)
        return within(heard.sum(), 0, 12)

    compiled = compile_program(tried, 3)
    assert levels(compiled)[level](np.array([[3.0], [4.0], [5.0]]))[0] == 12
    line = inspect.getsourcelines(tried.function)[1] + 3
    with pytest.raises(UsageError, match=rf"tried \(test_front_end.py:{line}\), round 1[,:] machine 0.*(13|1 beyond)"):
        levels(compiled)[level](np.array([[4.0], [4.0], [5.0]]))


@pytest.mark.parametrize("level", ["as written", "PCOC", "network"])
def test_a_stated_range_of_reals_is_believed(level):
    @posattn.program(x=Real(-5, 5))
    def tried(me, n, x):
        return within(x, 0, 1)

    assert levels(compile_program(tried, 2))[level](np.array([[3.0], [0.5]])).tolist() == [[3.0], [0.5]]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: posattn.program(lambda me, n: me), "has no inputs"),
        (lambda: posattn.program(y=Bit)(lambda me, n, x: x), "states a range for y, which is none of its inputs: x."),
        (lambda: posattn.program(x=3)(lambda me, n, x: x), "x is 3; it must be Whole"),
        (lambda: posattn.program(x=Whole(0, N // 2)), "N is divided; a limit is a sum or multiple of N"),
        (lambda: posattn.program(x=Real(0, N / 2)), "N is divided; a limit is a sum or multiple of N"),
        (lambda: posattn.program(dict.get), "program is .*; it must be a function of Python with named inputs"),
        (lambda: posattn.program(min), "program is .*; it must be a function of Python with named inputs"),
        (lambda: posattn.program(7), "program is 7; it must be a function"),
        (lambda: lookup([1], 0), "outside of one"),
        (lambda: send(1), "no words"),
        (lambda: send([1, 2], 3, when=[1]), "2 addresses and 1 bits"),
    ],
)
def test_bad_programs_are_refused_at_once(make, told):
    with pytest.raises(UsageError, match=told):
        make()


def test_ranges_can_depend_on_the_number_of_machines():
    @posattn.program(k=Whole(1 - N, 2 * N + 1))
    def tried(me, n, k):
        return k

    assert tried.build(5, 1.0).bounds == ((-4, 11),)


def test_long_computations_compile():
    @posattn.program(x=Whole(0, 9))
    def tried(me, n, x):
        y = x
        for k in range(300):
            y = select(x > k % 9, minimum(y + 1, 50), y)
        return (yield send(me, y)).get()

    @tried.truth
    def _(x):
        return [min(each + sum(each > k % 9 for k in range(300)), 50) if each else each for each in x]

    compiled = compile_program(tried, 2)
    x = np.array([[[0.0], [1.0]], [[5.0], [9.0]]])
    assert (run(compiled.written.tracing, x) == tried.answers(x)).all()
    assert (compiled.run(x) == tried.answers(x)).all()


@pytest.mark.parametrize("most", [10**8, 10**12])
@pytest.mark.parametrize("sparse", [False, True])
def test_large_whole_numbers_are_divided_multiplied_and_compared_exactly(most, sparse):
    """The units of a digit are as large as the number; in a sum they would take the digits below 2^53 from each other."""

    @posattn.program(k=Whole(-most, most), x=Real())
    def large(me, n, k, x):
        return k // 7, k % 7, times(k, x), 1000 * (100 * k > 5) + 777 * (100 * k > 99)

    random = np.random.default_rng(0)
    k, x = random.integers(-most, most + 1, (50, 2)), random.uniform(-10, 10, (50, 2))
    found = compile_program(large, 2, bound=10.0, sparse=sparse).run(np.stack([k, x], axis=-1))
    assert (found[..., 0] == k // 7).all() and (found[..., 1] == k % 7).all()
    np.testing.assert_allclose(found[..., 2], k * x, rtol=0, atol=1e-14 * 10 * most)
    assert (found[..., 3] == 1000 * (k > 0) + 777 * (k > 0)).all()


@pytest.mark.parametrize("most", [10**5, 10**6])
def test_softmax_moves_products_of_large_whole_numbers_by_no_more_than_it_says(most):
    @posattn.program(k=Whole(-most, most), x=Real())
    def product(me, n, k, x):
        return times(k, x)

    random = np.random.default_rng(0)
    k, x = random.integers(-most, most + 1, (500, 2)), random.uniform(-10, 10, (500, 2))
    soft = compile_program(product, 2, bound=10.0, epsilon=1e-3)
    assert soft.lowered.error <= 1.001e-3
    np.testing.assert_allclose(soft.run(np.stack([k, x], axis=-1))[..., 0], k * x, rtol=0, atol=soft.lowered.error)


def test_idle_machines_hear_nothing_where_a_number_leaves_its_range_on_the_blank_sink():
    @posattn.program(year=Whole(1990, 2030))
    def phase(me, n, year):
        heard = yield send(me + 1, (2030 - year) % 4, when=me < n - 1)
        return heard.get()

    years = np.array([2001.0, 2002, 2003, 2004])[:, None]
    for options in ({}, {"sparse": True}, {"route": "theorem"}):
        assert compile_program(phase, 4, **options).run(years)[:, 0].tolist() == [0, 1, 0, 3]
    assert compile_program(phase, 4).check(samples=5)["agrees"].all()


def test_the_sink_breaks_no_rule_where_a_number_leaves_its_range_on_blank_memory():
    @posattn.program(p=Whole(0, N - 1))
    def depth(me, n, p):
        d, hop = p != me, 1
        while hop < n:
            asked = yield send(p, me)
            back = yield [send(q[0], d, p, when=q.present) for q in asked]
            d = within(d + sum(b.get(0) for b in back), 0, n)
            p = within(sum(b.get(1) for b in back), 0, n - 1)
            hop *= 2
        return d

    assert compile_program(depth, 3).run(np.array([[0.0], [0], [1]]))[:, 0].tolist() == [0, 1, 2]


def test_check_allows_every_output_an_error_of_its_own_size():
    @posattn.program(x=Real(0, 1))
    def two_sizes(me, n, x):
        return 1e6 * x, x

    two_sizes.truth(lambda x: [[1e6 * number, number + 1e-6] for number in x])
    table = compile_program(two_sizes, 3).check(samples=3).set_index("level")
    for level in ("as written", "PCOC", "hardmax network"):
        assert table["allowed"][level] == 1e-9 and not table["agrees"][level]


def test_places_are_shared_by_all_addresses_of_one_condition():
    @posattn.program(p=Bit)
    def starts(me, n, p):
        heard = yield send(range(n), me, when=p)
        return heard.count(), heard.sum()

    compiled = compile_program(starts, 6)
    assert compiled.model.config.heads == 13
    assert compiled.check(samples=5)["agrees"].all()


def test_a_gap_that_float64_does_not_see_is_refused():
    with pytest.raises(UsageError, match="gap is 1e-10; of numbers so large"):
        compile_program(posattn.program(lambda me, n, x, y: greater(x, y, 1e-10)), 2)


def test_numbers_that_differ_by_exactly_the_gap():
    steps = posattn.program(x=Real(0, 1))(lambda me, n, x: greater(x, 0.2, gap=0.1))
    assert 0.3 - 0.2 < 0.1
    assert run(steps.traced(1, 1.0), np.array([[0.3]])).tolist() == [[1]]


def test_a_changed_constant_is_compiled_anew():
    factor = [2]
    scaled = posattn.program(lambda me, n, x: factor[0] * x)
    assert compile_program(scaled, 1).run(np.array([[1.0]])).tolist() == [[2]]
    factor[0] = 3
    assert compile_program(scaled, 1).run(np.array([[1.0]])).tolist() == [[3]]


def test_whole_numbers_are_sampled_within_fractional_limits():
    halves = posattn.program(x=Whole(0.5, 3))(lambda me, n, x: x)
    assert set(halves.sample(np.random.default_rng(0), 50, 2, 1.0).ravel().tolist()) == {1, 2, 3}
