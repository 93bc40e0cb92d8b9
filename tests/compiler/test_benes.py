"""The Beneš network: its shape, its two phases, and the two facts of Lemma B.1."""

import numpy as np
import pytest

from posattn.compiler.benes import Benes, hamming_neighbour, size_for


def route(k, sent):
    """Carries tuples (destination, content) through the network as Lemma B.1 does, in plain Python.

    Returns what every machine ends with, sorted, and the largest number of tuples that any machine held after a step.
    """
    network, held = Benes(k), [sorted(own) for own in sent]
    peak = max(map(len, held))
    for step in network.steps:
        following = [[] for _ in held]
        for i, own in enumerate(held):
            partner = network.partner(step, i)
            for place, item in enumerate(own):
                if network.fragments(step):
                    stays = place % 2 == 0
                else:
                    bit = 1 << (step - k)
                    stays = (item[0] & bit) == (i & bit)
                following[i if stays else partner].append(item)
        held = [sorted(own) for own in following]
        peak = max(peak, *map(len, held))
    return held, peak


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_network_is_that_of_the_definition(k):
    network = Benes(k)
    edges = set(network.edges())
    assert len(edges) == 2 * network.machines * (2 * k - 1)
    for step, i, j in edges:
        assert i == j or bin(i ^ j).count("1") == 1
        if i != j:  # bit k - |k - step| counted from the most significant, 1
            assert i ^ j == 1 << (k - (k - abs(k - step)))


def test_hamming_neighbours_count_from_the_most_significant_bit():
    assert [hamming_neighbour(0b000, j, 3) for j in (1, 2, 3)] == [0b100, 0b010, 0b001]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_any_messages_arrive_and_no_machine_holds_more_than_s(k):
    random = np.random.default_rng(k)
    n, block = 1 << k, 1 << (k - 1)
    for _ in range(20):
        sent = [[] for _ in range(n)]
        permutations = [random.permutation(n) for _ in range(3)]  # so that each receives three messages too
        for p in permutations:
            for i, j in enumerate(p):
                sent[i] += [(int(j), 1000 * i + 10 * len(sent[i]) + pos) for pos in range(block)]
        held, peak = route(k, sent)
        assert peak == 3 * block
        for j, own in enumerate(held):
            assert sorted(own) == sorted(item for each in sent for item in each if item[0] == j)


def test_without_padding_bit_reversal_peaks_at_four_words_on_sixteen_machines():
    sent = [[(int(f"{i:04b}"[::-1], 2), i)] for i in range(16)]
    held, peak = route(4, sent)
    assert [own[0][0] for own in held] == list(range(16))
    assert peak == 4


def test_sizes():
    assert [size_for(n).machines for n in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, 16]
