"""MPC: the interpreter keeps the model's bounds, and Lemma B.1 and B.2 give the same answers by fixed communication."""

import numpy as np
import pytest
import torch

from posattn import UsageError
from posattn.compiler import Known, compile_program, mpc, pcoc
from posattn.compiler.mpc import MPC, Message
from posattn.compiler.mpc_to_pcoc import layout, simulate


def gather(machines, memory=4):
    """Every machine sends its value where its first input says; each adds up what it received."""

    def send(machine):
        to, value = machine.inbox[0].words
        return [Message(to, (value,))]

    def finish(machine):
        total = machine.inbox[0].words[0]
        for box in machine.inbox[1:]:
            total = total + box.words[0]
        return [total]

    inputs = (Known(0, machines - 1, True), Known(-10.0, 10.0))  # two words, so every message has two
    return MPC(machines, memory, 2, inputs, (send,), finish, name="gather")


def addressed(machines, addresses, seed=0):
    values = np.random.default_rng(seed).uniform(-10, 10, (1, machines))
    return np.stack([np.broadcast_to(np.array(addresses, dtype=float), (1, machines)), values], axis=-1)


def expected(x):
    answers = np.zeros(x.shape[1])
    for to, value in x[0]:
        answers[int(to)] += value
    return answers


@pytest.mark.parametrize(
    ("machines", "addresses"),
    [(2, [1, 1]), (3, [2, 0, 2]), (4, [3, 3, 0, 0]), (5, [4, 4, 1, 1, 0]), (8, [7, 6, 5, 4, 3, 2, 1, 0])],
)
def test_messages_go_where_the_data_says(machines, addresses):
    program, x = gather(machines), addressed(machines, addresses)
    compiled = compile_program(program)
    for found in (mpc.run(program, x), pcoc.run(compiled.program, x), compiled.run(x)):
        np.testing.assert_allclose(found[0, :, 0], expected(x), rtol=0, atol=1e-14)


def test_the_communication_is_the_benes_network_whatever_the_program():
    a, b = simulate(gather(8)), simulate(gather(8, memory=8))
    assert len(a.rounds) == len(b.rounds) == 5  # 2k - 1 for one round of MPC
    for table in (a.sources, b.sources):
        half = table.shape[-1] // 2
        assert (table[:, :, :half] == np.arange(8)[None, :, None]).all()  # what stays
        partners = table[:, :, half:]
        assert (partners == partners[:, :, :1]).all()
        masks = (partners[..., 0] ^ np.arange(8)).max(axis=1)
        assert masks.tolist() == [4, 2, 1, 2, 4]


@pytest.mark.parametrize(("machines", "memory", "factor"), [(2, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (16, 6, 4)])
def test_padding_is_reported(machines, memory, factor):
    """A message of two words fills the next multiple of 2^(k-1) tuples."""
    plan = layout(gather(machines, memory))
    assert plan.factor == factor
    assert plan.memory == 4 * memory * factor  # two halves, two numbers a tuple


def test_overflow_is_an_error_with_its_place_at_every_level():
    program, x = gather(4), addressed(4, [1, 1, 1, 0])
    compiled, softmax = compile_program(program), compile_program(program, epsilon=1e-3)
    with pytest.raises(UsageError, match="gather, round 1: machine 1 receives 6 words; its memory holds 4"):
        mpc.run(program, x)
    with pytest.raises(UsageError, match=r"^gather, round 3: machine 1 receives 2 words more than its memory holds\.$"):
        pcoc.run(compiled.program, x)
    for network in (compiled, softmax):
        with pytest.raises(UsageError, match=r"^round 3: machine 1 receives 2 words more than its memory holds\.$"):
            network.run(x)


def test_sending_too_much_is_an_error_at_every_level():
    def send(machine):
        number = machine.inbox[0].words[0]
        return [Message(to, (number,), number > to) for to in range(3)]

    program = MPC(4, 2, 1, (Known(0, 9, True),), (send,), lambda machine: [machine.inbox[0].present], name="chatter")
    fine, much = np.array([[[2.0], [1.0], [0.0], [0.0]]]), np.array([[[0.0], [3.0], [0.0], [0.0]]])
    compiled = compile_program(program)
    np.testing.assert_array_equal(compiled.run(fine), mpc.run(program, fine))
    with pytest.raises(UsageError, match="round 1: machine 1 sends 3 words"):
        mpc.run(program, much)
    for run in (lambda x: pcoc.run(compiled.program, x), compiled.run):
        with pytest.raises(UsageError, match="round 0: machine 1 sends 1 word more than its memory holds"):
            run(much)


def test_the_inbox_is_in_the_order_of_senders_and_messages():
    """Machine 0 receives two messages from each of two machines."""

    def send(machine):
        number = machine.inbox[0].words[0]
        return [Message(0, (number, part), machine.me >= 1) for part in (1, 2)]

    def finish(machine):
        return [word for box in machine.inbox for word in (box.present, *box.words)]

    program = MPC(3, 8, 2, (Known(-9.0, 9.0),), (send,), finish, name="order")
    x = np.array([[[5.0], [6.0], [-7.0]]])
    compiled = compile_program(program)
    for found in (mpc.run(program, x), pcoc.run(compiled.program, x), compiled.run(x)):
        assert found[0, 0].tolist() == [1, 6, 1, 1, 6, 2, 1, -7, 1, 1, -7, 2]
        assert (found[0, 1:] == 0).all()


def test_a_program_without_rounds_only_finishes():
    program = MPC(3, 1, 1, (Known(-9.0, 9.0),), (), lambda machine: [machine.inbox[0].words[0] * 2], name="double")
    x = np.array([[[1.0], [2.0], [3.0]]])
    compiled = compile_program(program)
    for found in (mpc.run(program, x), compiled.run(x)):
        assert found[0, :, 0].tolist() == [2, 4, 6]
    assert compiled.model.config.layers == 1


def test_reals_are_not_compared_even_if_words_travel_together():
    """Word 0 is an integer and word 1 is not; in memory they mix, but what is known of each is kept apart."""

    def send(machine):
        key, value = machine.inbox[0].words
        return [Message(machine.me, (key, value))]

    def comparing(word):
        return MPC(
            4, 2, 2, (Known(0, 3, True), Known(-1.0, 1.0)), (send,), lambda m: [m.inbox[0].words[word] > 1], name="x"
        )

    x = np.stack([np.arange(4.0), np.linspace(-1, 1, 4)], axis=-1)[None]
    assert compile_program(comparing(0)).run(x)[0, :, 0].tolist() == [0, 0, 1, 1]
    with pytest.raises(UsageError, match="need not be integers"):
        compile_program(comparing(1))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((2, 1, 1), "has 2 inputs; it must have 1 to 1"), ((2, 1, 2), "1 to 1"), ((0, 2, 2), "machines is 0")],
)
def test_a_program_that_is_none_is_refused(sizes, message):
    with pytest.raises(UsageError, match=message):
        MPC(*sizes, (Known(0, 1),) * 2, (), lambda m: [m.me])


def test_an_address_must_be_a_machine():
    program = MPC(2, 1, 1, (Known(0, 5, True),), (lambda m: [Message(m.inbox[0].words[0], (1,))],), lambda m: [m.me])
    with pytest.raises(UsageError, match="machine 1 sends to machine 2; it must be 0 to 1"):
        mpc.run(program, np.array([[[0.0], [2.0]]]))
    with pytest.raises(UsageError, match=r"takes \(..., 2, 1\)"):
        mpc.run(program, np.zeros((1, 3, 1)))


def test_the_interpreter_checks_its_inputs():
    for x, message in (
        ([[4.0, 0.0]], "compiled for 0 to 3"),
        ([[0.5, 0.0]], "whole"),
        ([[0.0, 11.0]], "for -10 to 10"),
    ):
        with pytest.raises(UsageError, match=message):
            mpc.run(gather(4), np.array(x * 4))


def test_a_round_may_be_silent():
    program = MPC(2, 1, 1, (Known(0, 1),), (lambda m: [],), lambda m: [m.inbox[0].present + m.me], name="silent")
    x = np.zeros((3, 2, 1))
    for found in (mpc.run(program, x), compile_program(program).run(x)):
        assert found[..., 0].tolist() == [[0, 1]] * 3


def test_an_expression_of_an_earlier_round_is_refused_at_every_level():
    """A machine holds only its new inbox, so the cells of the old one now hold something else."""
    kept = []

    def first(machine):
        kept[:] = [machine.inbox[0].words[0]]
        return [Message(machine.me, (machine.inbox[0].words[0] * 2,))]

    def second(machine):
        return [Message(machine.me, (machine.inbox[0].words[0] + kept[0],))]

    def finish(machine):
        return [machine.inbox[0].words[0]]

    def recalling(machine):
        return [kept[0]]

    x = np.array([[1.0], [2.0]])
    for program, where in (
        (MPC(2, 1, 1, (Known(-9, 9),), (first, second), finish, name="recall"), "recall, round 2"),
        (MPC(2, 1, 1, (Known(-9, 9),), (first,), recalling, name="recall"), "recall, finish"),
    ):
        for run in (lambda p: mpc.run(p, x), compile_program):
            with pytest.raises(UsageError, match=f"^{where}: an expression reads the memory of another round"):
                run(program)


def kept_for_a_round(**changes):
    """Every machine keeps its number for a round."""
    fields = {
        "machines": 2,
        "memory": 1,
        "longest": 1,
        "inputs": (Known(-9, 9),),
        "rounds": (lambda machine: [Message(machine.me, (machine.inbox[0].words[0],))],),
        "finish": lambda machine: [machine.inbox[0].words[0]],
    }
    return MPC(**fields | changes)


def test_rounds_words_and_answers_may_be_generators():
    def send(machine):
        yield Message(machine.me, (word * 2 for word in machine.inbox[0].words))

    program, x = kept_for_a_round(rounds=(send,), finish=lambda machine: iter(machine.inbox[0].words)), [[1.0], [2.0]]
    compiled = compile_program(program)
    for found in (mpc.run(program, x), pcoc.run(compiled.program, x), compiled.run(x)):
        assert found.tolist() == [[2], [4]]


def test_no_inputs_have_no_answers_at_every_level():
    program = kept_for_a_round()
    compiled, none = compile_program(program), np.ones((3, 0, 2, 1))
    for found in (mpc.run(program, none), pcoc.run(compiled.program, none), compiled.run(none)):
        assert found.shape == (3, 0, 2, 1)
    assert compile_program(program, sparse=True).model(torch.ones(3, 0, 2)).shape == (3, 0, 2)


@pytest.mark.usefixtures("unchecked")
def test_complex_numbers_are_refused_at_every_level():
    program = kept_for_a_round()
    compiled, x = compile_program(program), np.full((2, 1), 1 + 1j)
    for run in (lambda: mpc.run(program, x), lambda: pcoc.run(compiled.program, x), lambda: compiled.run(x)):
        with pytest.raises(UsageError, match=r"^the input of program must be an array of real numbers\.$"):
            run()
    for network in (compiled.model, compile_program(program, sparse=True).model):
        with pytest.raises(UsageError, match=r"^the input is of torch\.complex128; this network reads torch\.float64"):
            network(torch.from_numpy(x[:, 0]))
