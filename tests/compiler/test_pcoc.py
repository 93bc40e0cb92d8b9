"""PCOC: the model's rules are checked, and a program is its network."""

import numpy as np
import pytest
import torch

from posattn import UsageError
from posattn.compiler import PCOC, Known, Round, compile, compile_program, pcoc, select
from posattn.compiler.pcoc import Excess
from posattn.compiler.pcoc_to_weights import hardmax_temperature, lower

REAL = (Known(-5.0, 5.0),)


def shift(machines=5, **changes):
    """Every machine ends with twice its left neighbour's number; the first receives nothing."""
    fields = {
        "machines": machines,
        "memory": 2,
        "inputs": REAL,
        "rounds": (Round(lambda i: [(i - 1, (1,))] if i else [], lambda m: [m[1] * 2, m[0]]),),
        "start": lambda m: [m[0], m[0]],
    }
    return PCOC(**fields | changes)


def test_an_idle_position_is_blank():
    x = np.array([[[1.0], [2.0], [3.0], [4.0], [5.0]]])
    assert pcoc.run(shift(), x)[0, :, 0].tolist() == [0, 2, 4, 6, 8]
    assert compile(shift())(torch.from_numpy(x[..., 0])).tolist() == [[0, 2, 4, 6, 8]]


def test_the_sink_is_blank_even_if_a_program_would_fill_it():
    """Machines add 1 in the first computation; so would the sink, and the first machine would hear it."""
    program = shift(start=lambda m: [m[0] + 1, m[0] + 1])
    x = np.arange(5.0).reshape(1, 5, 1)
    expected = [0, 2, 4, 6, 8]
    assert pcoc.run(program, x)[0, :, 0].tolist() == expected
    assert compile(program)(torch.from_numpy(x[..., 0])).tolist() == [expected]


def test_every_state_of_the_network_is_a_memory_with_numbers_beside():
    program = shift()
    x = np.random.default_rng(0).uniform(-5, 5, (3, 5, 1))
    network = compile_program(program).model.states(torch.from_numpy(x[..., 0]))
    for memory, state in zip(pcoc.states(program, x), network[1:], strict=True):
        np.testing.assert_array_equal(state[:, :-1, :-1].numpy(), memory)
        np.testing.assert_array_equal(state[..., -1].numpy(), np.broadcast_to(np.arange(6.0), (3, 6)))


@pytest.mark.parametrize("lean", [False, True])
def test_weights_are_those_of_the_proof(lean):
    program = shift()
    model = lower(program, temperature=3.0, lean=lean).model
    s, n = 2, 6
    attention = model.layers[1].attention
    w_q = attention.W_Q.weight.view(s, n, n).mT / n**0.5
    pattern = (w_q / 3.0 + 1) / 2
    # Head 1 receives nothing, so all attend to the sink; in head 2 each machine attends to its left neighbour.
    assert pattern[0].argmax(dim=-1).tolist() == [5, 5, 5, 5, 5, 5]
    assert pattern[1].argmax(dim=-1).tolist() == [5, 0, 1, 2, 3, 5]
    assert (pattern.sum(dim=-1).round(decimals=12) == 1).all() and set(
        pattern.round(decimals=12).unique().tolist()
    ) == {0, 1}
    assert (attention.W_K.weight.view(s, n, n) == torch.eye(n)).all()
    if not lean:
        assert (attention.W_V.weight.view(s, s + 1, s + 1) == torch.eye(s + 1)).all()
        # W_O: head h's column h is row h + (h - 1)(s + 1), counted from 1.
        rows = {(int(r) + 1, int(h) + 1) for h, r in attention.W_O.weight.nonzero()}
        assert rows == {(h + (h - 1) * (s + 1), h) for h in (1, 2)}


def test_softmax_is_near_hardmax_at_the_temperature_of_the_lemma():
    program = shift(machines=6)
    for epsilon in (0.3, 0.01, 1e-5):
        temperature = hardmax_temperature(7, epsilon)
        soft = lower(program, temperature=temperature).model.attention()
        hard = lower(program).model.attention()
        difference = (soft - hard).abs().max().item()
        assert difference <= epsilon
        assert soft.min() > 0  # not yet hardmax in float64
    assert (lower(program, temperature=400.0).model.attention() == hard).all()


def test_the_error_that_is_promised_holds_and_is_not_idle():
    program = shift()
    x = torch.from_numpy(np.random.default_rng(1).uniform(-5, 5, (50, 5)))
    exact = lower(program).model(x)
    for epsilon in (1.0, 1e-2, 1e-6):
        lowered = lower(program, epsilon)
        moved = (lowered.model(x) - exact).abs().max().item()
        assert lowered.error == pytest.approx(epsilon)
        assert epsilon / 100 < moved <= epsilon


@pytest.mark.parametrize(
    ("receive", "message"),
    [
        (lambda i: [(i, (0,)), (0, (0,))], "machine 0 receives from machine 0 at position 0, where machine 0 already"),
        (lambda i: [(i, (2,))], "position 2; it must be a whole number from 0 to 1"),
        (lambda i: [(9, (0,))], "receives from machine 9; it must be a whole number from 0 to 4"),
        (lambda i: [((i + 1) / 2, (0,))], "machine 0.5; it must be a whole number from 0 to 4"),
        (lambda i: [(3, (0,))], "machine 3 sends 5 words; its memory of 2"),
    ],
)
def test_a_breach_of_the_rules_is_named(receive, message):
    program = shift(rounds=(Round(receive, lambda m: [m[0], m[1]]),))
    with pytest.raises(UsageError, match=message):
        pcoc.run(program, np.zeros((1, 5, 1)))
    with pytest.raises(UsageError, match="round 1"):
        compile(program)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machines": 0}, "machines is 0"),
        ({"memory": 0}, "memory is 0"),
        ({"inputs": REAL * 3}, "has 3 inputs; it must have 1 to 2"),
        ({"outputs": (2,)}, "output position 2"),
        ({"start": lambda m: [m[0]]}, "gives 1 words for 2 positions"),
    ],
)
def test_a_program_that_is_none_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        compile(shift(**changes))


def test_inputs_outside_the_bounds_are_refused():
    model = compile(shift())
    with pytest.raises(UsageError, match="compiled for -5 to 5"):
        model(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.1]))
    with pytest.raises(UsageError, match="takes 5"):
        model(torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(UsageError, match=r"takes \(..., 5, 1\)"):
        pcoc.run(shift(), np.zeros((1, 4, 1)))


def test_a_guard_stops_the_interpreter_with_its_place():
    program = shift(rounds=(Round(lambda i: [(i, (0,))], lambda m: [m[0], m[0]], guard=lambda m: [Excess(m[0] - 4)]),))
    pcoc.run(program, np.full((1, 5, 1), 4.0))
    with pytest.raises(UsageError, match="round 1: machine 2 overflows by 1"):
        pcoc.run(program, np.array([[[1.0], [2.0], [5.0], [0.0], [4.0]]]))


def test_rounds_of_one_computation_but_different_guards_are_not_confused():
    """Both rounds pass the word on; only the second must not see more than 1."""

    def keep(memory):
        return [memory[0]]

    stay = lambda i: [(i, (0,))]  # noqa: E731
    rounds = (Round(stay, keep), Round(stay, keep, guard=lambda memory: [Excess(memory[0] - 1)]))
    program = PCOC(2, 1, (Known(0, 3, True),), rounds)
    model = compile(program)
    assert model(torch.tensor([0.0, 1.0])).tolist() == [0, 1]
    with pytest.raises(UsageError, match="round 2: machine 1 overflows"):
        model(torch.tensor([0.0, 3.0]))


def test_a_temperature_too_low_for_comparisons_promises_nothing():
    program = shift(inputs=(Known(0, 5, True),), start=lambda m: [select(m[0] > 2, 5, 0), 0])
    assert lower(program, temperature=0.5).error == float("inf")
    assert lower(program, temperature=9.0).error < 1


def test_a_bit_that_softmax_moved_selects_as_if_it_had_not():
    program = PCOC(3, 2, (Known(0, 1, True), Known(-100.0, 100.0)), (), start=lambda m: [select(m[0], m[1], 7), 0])
    x = torch.tensor([[0.0, 50.0], [1.0, -60.0], [1.0, 70.0]], dtype=torch.float64)
    lowered = lower(program, 0.5)
    assert (lowered.model(x) - torch.tensor([7.0, -60.0, 70.0])).abs().max() <= 0.5
    assert lower(program).model(x).tolist() == [7, -60, 70]


@pytest.mark.parametrize("temperature", [0.0, -3.0, float("nan"), float("inf"), True])
def test_a_temperature_is_a_number_above_zero(temperature):
    with pytest.raises(UsageError, match=r"temperature is .*; it must be a finite number above 0"):
        lower(shift(), temperature=temperature)


def test_a_temperature_beyond_the_exponentials_of_float64_is_refused():
    with pytest.raises(UsageError, match="temperature is 601; it must be at most 600"):
        lower(shift(), temperature=601.0)
    with pytest.raises(UsageError, match=r"epsilon is 0\.0"):
        hardmax_temperature(5, 0.0)


@pytest.mark.parametrize(
    "known", [Known(5, -5), Known(-float("inf"), float("inf")), Known(float("nan"), 1), Known(-1e308, 1e308)]
)
def test_ranges_of_inputs_are_ranges(known):
    with pytest.raises(UsageError, match=r"has input 0 in .*; the bounds must be numbers of at most 1.07e"):
        shift(inputs=(known,))


def test_interpreters_check_their_inputs():
    whole = shift(inputs=(Known(0, 5, True),))
    for x, message in ((6.0, "compiled for 0 to 5"), (float("nan"), "compiled for 0 to 5"), (1.5, "whole numbers")):
        for run in (lambda x: pcoc.run(whole, x), compile_program(whole).run):
            with pytest.raises(UsageError, match=message):
                run(np.full((1, 5, 1), x))
    with pytest.raises(UsageError, match=r"shape \(\)"):
        pcoc.run(whole, 3.0)
    with pytest.raises(UsageError, match="must be an array of real numbers"):
        pcoc.run(whole, [["a"]])


# --- what softmax adds, at the lowest temperature that the analysis allows -----------------------------------------------


def lowest_temperature(program):
    """The network at the temperature where a comparison, not the answer's own error, sets the limit."""
    return lower(program, 1e3)


def extreme(machines, low, high):
    """One machine has one end of the range and all others the other: what they add moves it as far as can be."""
    x = torch.full((2, machines), high, dtype=torch.float64)
    x[0, 0], x[1], x[1, 0] = low, low, high
    return x


def test_comparisons_are_exact_at_the_lowest_temperature():
    program = PCOC(40, 1, (Known(0, 9, True),), (), start=lambda m: [select(m[0] > 4, 100, 3)])
    lowered = lowest_temperature(program)
    x = extreme(40, 4.0, 9.0)
    assert lowered.model(x).tolist() == lower(program).model(x).tolist()
    moved = lowered.model.attention()[0, 0, 0, 1:-1].sum() * 9  # how far a 0 among nines moves
    assert 0.15 < moved <= 0.2
    assert lower(program, temperature=lowered.temperature - 0.01).error == float("inf")


def test_a_bit_is_made_one_again_before_it_gates():
    program = PCOC(40, 1, (Known(0, 1, True),), (), start=lambda m: [select(m[0], 100, 3)])
    x = extreme(40, 0.0, 1.0)
    assert lowest_temperature(program).model(x).tolist() == lower(program).model(x).tolist()


def test_gates_stay_shut_for_what_softmax_adds():
    """B = 128 for numbers up to 100, so the gate leaks when softmax moves them by more than 28."""
    program = PCOC(40, 1, (Known(-100.0, 100.0),), (), start=lambda m: [select(m.me >= 39, m[0], 7)])
    lowered = lowest_temperature(program)
    assert lowered.error == pytest.approx(28)
    assert lower(program, temperature=lowered.temperature + 0.01).error < 28
    assert lower(program, temperature=lowered.temperature - 0.01).error == float("inf")
    x = extreme(40, -100.0, 100.0)
    assert (lowered.model(x)[:, :39] == 7).all()


def test_an_expression_of_an_earlier_round_is_refused():
    kept = []

    def start(memory):
        kept[:] = [memory[0]]
        return [memory[0] * 2]

    stays = Round(lambda i: [(i, (0,))], lambda memory: [memory[0] + kept[0]])
    guarded = Round(lambda i: [(i, (0,))], tuple, lambda memory: [Excess(kept[0])])
    for each in (stays, guarded):
        program = PCOC(2, 1, (Known(-9, 9),), (each,), start=start, name="recall")
        for run in (lambda p: pcoc.run(p, np.ones((2, 1))), compile_program):
            with pytest.raises(UsageError, match=r"^recall, round 1: an expression reads the memory of another round"):
                run(program)
