"""What a compiled program reads, the bounds that it is held to, and the breaches of its machines.

What breaks the rules of MPC is an error at every level, with machine, round and count, and never a wrong answer.
"""

import re

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler import Bit, Known, compile_program, mpc, pcoc, select, send
from posattn.compiler.machine_memory import BREACHES, breach_code, memory_cells, refuse_breaches, within_bounds
from posattn.compiler.mpc import MPC, Message
from posattn.compiler.mpc_to_pcoc import simulate

MACHINES, MEMORY = 4, 6
TOLD = re.compile(r"round (\d+): machine (\d+) (sends|receives|has to pass on) (\d+) (word|message|tuple)s?")


def test_memory_cells_hold_inputs_numbers_and_blanks():
    x = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    cells = memory_cells(x, torch.arange(4))
    assert cells.tolist() == [[5, 6, 0], [7, 8, 1], [0, 0, 2], [0, 0, 3]]
    assert memory_cells(x[:, :1], torch.arange(3)).tolist() == [[5, 0], [7, 1], [0, 2]]


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


def test_bits_may_be_booleans(unchecked):
    @posattn.program(cell=Bit)
    def flipped(me, n, cell):
        return ~cell

    assert posattn.compile(flipped, 3)(torch.tensor([True, False, True])).tolist() == [0, 1, 0]


def test_a_single_number_is_no_list(unchecked):
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


def letters(rounds=2):
    """Every machine sends a message, another, or both, or none, where its inputs say; three are more than a memory holds."""

    def send(machine):
        to, one, other = machine.inbox[0].words
        return [Message(to, (machine.me + 1,), one), Message(to, (machine.me + 10, 20, 30), other)]

    def keep(machine):
        return [Message(machine.me, box.words[:1], box.present) for box in machine.inbox]

    def finish(machine):
        return [word for box in machine.inbox for word in (box.present, *box.words)]

    inputs = (Known(-1, MACHINES, True), Known(0, 1, True), Known(0, 1, True))
    return MPC(MACHINES, MEMORY, 3, inputs, (send, keep)[:rounds], finish, name="letters")


def random_inputs(count):
    random = np.random.default_rng(1)
    to = random.choice([-1, 0, 1, 2, 3, 4], (count, MACHINES, 1), p=[0.04, 0.2, 0.3, 0.2, 0.2, 0.06])
    return np.concatenate([to, random.random((count, MACHINES, 2)) < [0.6, 0.3]], axis=-1).astype(float)


def outcome(run, x):
    """The answer, or what was told."""
    try:
        return run(x), None
    except UsageError as error:
        return None, str(error)


@pytest.mark.parametrize("rounds", [1, 2])
def test_all_levels_refuse_the_same_inputs_and_answer_the_others_alike(rounds):
    program = letters(rounds)
    fixed = simulate(program)
    network = compile_program(fixed, sparse=True).model
    kinds = []
    for x in random_inputs(40):
        truth, reason = outcome(lambda x: mpc.run(program, x), x)
        by_pcoc, told = outcome(lambda x: pcoc.run(fixed, x), x)
        by_network, repeated = outcome(lambda x: network(torch.from_numpy(x)).numpy(), x)
        if reason is None:
            np.testing.assert_array_equal(by_pcoc, truth)
            np.testing.assert_array_equal(by_network, truth)
            kinds.append("right")
        else:
            assert told == f"letters, {repeated}"
            assert TOLD.search(repeated)
            kinds.append(TOLD.search(repeated)[3])
    assert min(kinds.count(kind) for kind in ("right", "sends", "receives")) >= 5


@pytest.fixture(scope="module")
def compiled():
    """The program, and its networks with hardmax and softmax."""
    program = letters()
    return program, *(compile_program(program, epsilon=epsilon) for epsilon in (None, 0.1))


def sent(*rows):
    """Inputs (to, short, long) of the first machines; the others send nothing."""
    return np.array([*rows, *[(0, 0, 0)] * (MACHINES - len(rows))], dtype=float)


@pytest.mark.parametrize(
    ("x", "by_mpc", "elsewhere"),
    [
        (sent((0, 1, 0), (4, 1, 0)), "round 1: machine 1 sends to machine 4; it must be 0 to 3",
         "round 0: machine 1 sends 1 message to machines that are not there"),
        (sent((-1, 1, 1)), "round 1: machine 0 sends to machine -1", "round 0: machine 0 sends 2 messages to machines"),
        (sent((2, 1, 1), (2, 0, 1)), "round 1: machine 2 receives 9 words; its memory holds 6",
         "round 3: machine 2 receives 3 words more than its memory holds"),
        (sent((2, 1, 0), (2, 1, 1), (2, 1, 0)), "machine 2 receives 12 words", "round 3: machine 2 receives 6 words more"),
    ],
)  # fmt: skip
def test_the_breach_is_told_with_its_place_and_count(compiled, x, by_mpc, elsewhere):
    program, hard, soft = compiled
    with pytest.raises(UsageError, match=by_mpc):
        mpc.run(program, x)
    for run in (lambda x: pcoc.run(hard.program, x), hard.run, soft.run):
        with pytest.raises(UsageError, match=elsewhere):
            run(x)


def ring(last):
    """Each machine sends to the next, the last one to ``last`` if its input says so."""

    def send(machine):
        return [Message(machine.me + 1, (1,), machine.me < MACHINES - 1),
                Message(last, (1,), machine.inbox[0].words[0])]  # fmt: skip

    return MPC(MACHINES, 2, 1, (Known(0, 1, True),), (send,), lambda m: [m.inbox[0].present], name="ring")


def test_known_addresses_of_no_machine_are_told_if_they_are_used():
    program = ring(MACHINES + 3)
    compiled = compile_program(program)
    quiet, loud = np.zeros((1, MACHINES, 1)), np.array([[[0.0], [0.0], [1.0], [0.0]]])
    for run in (lambda x: mpc.run(program, x), lambda x: pcoc.run(compiled.program, x), compiled.run):
        assert run(quiet)[0, :, 0].tolist() == [0, 1, 1, 1]
        with pytest.raises(UsageError, match="machine 2 sends"):
            run(loud)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (lambda m: Message(m.inbox[0].words[0], (1,)), "message 1 is for a machine whose number need not be whole"),
        (lambda m: Message(0, (1,), m.inbox[0].words[0]), r"when of message 1 was given a number in \[0, 2\]"),
    ],
)
def test_addresses_are_whole_and_conditions_are_bits(message, told):
    program = MPC(4, 1, 1, (Known(0, 2),), (lambda m: [message(m)],), lambda m: [m.me], name="x")
    with pytest.raises(UsageError, match=told):
        simulate(program)


def test_an_exported_program_answers_a_breach_with_what_is_no_number(unchecked):
    @posattn.program(lost=Bit)
    def astray(me, n, lost):
        heard = yield send(select(lost, n, me), me)
        return heard.count()

    model = posattn.compile(astray, machines=MACHINES)
    traced = torch.export.export(model, (torch.zeros(2, MACHINES),)).module()
    x = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    found = traced(x)
    assert found[0].tolist() == [1, 1, 1, 1] and found[1].isnan().all()


def test_a_machine_on_the_way_that_has_no_room_is_told():
    """Eight messages to one machine, which has room for two: they meet before they arrive."""

    def send(machine):
        return [Message(0, (machine.me,), machine.inbox[0].words[0])]

    program = MPC(8, 2, 1, (Known(0, 1, True),), (send,), lambda m: [m.inbox[1].words[0]], name="crowd")
    fixed = simulate(program)
    network, x = compile_program(fixed, sparse=True).model, np.ones((8, 1))
    with pytest.raises(UsageError, match="machine 0 receives 8 words; its memory holds 2"):
        mpc.run(program, x)
    with pytest.raises(
        UsageError, match=r"^crowd, round 4: machine 0 has to pass on 8 tuples more than it has room for\.$"
    ):
        pcoc.run(fixed, x)
    with pytest.raises(UsageError, match=r"^round 4: machine 0 has to pass on 8 tuples more than it has room for\.$"):
        network(torch.from_numpy(x[:, 0]))
    x[2:] = 0
    assert network(torch.from_numpy(x[:, 0])).tolist() == mpc.run(program, x)[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_a_sender_s_words_are_counted_not_its_messages():
    """Two messages of three words: fewer than the four places, more than the four words."""

    def send(machine):
        return [Message(0, (1,), 0), *(Message(to, (1, 2, 3), machine.inbox[0].words[0]) for to in (2, 3))]

    program = MPC(4, 4, 3, (Known(0, 1, True),), (send,), lambda m: [m.inbox[0].present], name="talker")
    compiled, x = compile_program(program), np.array([[0.0], [1.0], [0.0], [0.0]])
    with pytest.raises(UsageError, match="round 1: machine 1 sends 6 words; its memory holds 4"):
        mpc.run(program, x)
    for run in (lambda x: pcoc.run(compiled.program, x), compiled.run):
        with pytest.raises(UsageError, match="round 0: machine 1 sends 2 words more than its memory holds"):
            run(x)
