"""Rounds of known addresses go without routing, and give the same answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posattn.compiler import MPC, Known, Message, by_machine, compile_program, mpc, pcoc
from posattn.compiler.direct_rounds import coloured, schedule
from posattn.compiler.mpc_to_pcoc import simulate


@given(machines=st.integers(1, 8), degree=st.integers(1, 5), seed=st.integers(0, 1000))
def test_no_colour_twice_at_a_machine_and_no_more_colours_than_edges(machines, degree, seed):
    random = np.random.default_rng(seed)
    edges = [(i, m, int(j)) for m in range(degree) for i, j in enumerate(random.permutation(machines))]
    edges = [edge for edge in edges if random.random() < 0.8]
    colours = coloured(edges, degree)
    assert set(colours) == set(edges) and all(0 <= colour < degree for colour in colours.values())
    for side in (0, 2):
        assert len({(edge[side], colour) for edge, colour in colours.items()}) == len(edges)


def neighbours(machines):
    """Every machine sends its number to both neighbours in a ring, to the right one only if it is odd."""

    def send(machine):
        number = machine.inbox[0].words[0]
        left, right = (by_machine((i + d) % machines for i in range(machines)) for d in (-1, 1))
        odd = by_machine(i % 2 for i in range(machines))
        return [Message(left, (number, 1)), Message(right, (number, 2), odd)]

    def finish(machine):
        return [word for box in machine.inbox for word in (box.present, *box.words)]

    return MPC(machines, 4, 2, (Known(-9.0, 9.0),), (send,), finish, name="ring")


@pytest.mark.parametrize("machines", [4, 5])
def test_the_inbox_is_the_same_without_routing(machines):
    program = neighbours(machines)
    x = np.random.default_rng(0).uniform(-9, 9, (5, machines, 1))
    truth = mpc.run(program, x)
    straight, soft = (compile_program(program, direct=True, epsilon=epsilon) for epsilon in (None, 1e-3))
    assert len(straight.program.rounds) == 1 < len(simulate(program).rounds)
    np.testing.assert_array_equal(pcoc.run(straight.program, x), truth)
    np.testing.assert_array_equal(straight.run(x), truth)
    assert 0 < np.abs(soft.run(x) - truth).max() <= 1e-3


def test_addresses_that_depend_on_data_are_routed():
    def send(machine):
        return [Message(machine.inbox[0].words[0], (1,))]

    program = MPC(4, 4, 1, (Known(0, 3, True),), (send,), lambda machine: [machine.inbox[0].present], name="x")
    assert schedule(program, 0, 4) is None
    assert len(simulate(program, direct=True).rounds) == 3


def test_more_messages_than_a_machine_has_room_for_are_routed():
    """All send to machine 0, which has room for two; whether they do is in the data."""

    def send(machine):
        return [Message(0, (machine.me,), machine.inbox[0].words[0])]

    program = MPC(4, 2, 1, (Known(0, 1, True),), (send,), lambda machine: [machine.inbox[1].words[0]], name="x")
    assert schedule(program, 0, 4) is None
    x = np.array([[[0.0], [1.0], [0.0], [1.0]]])
    assert compile_program(program, direct=True).run(x)[0, :, 0].tolist() == [3, 0, 0, 0]
