"""Streams against SplitMix64 in plain integers, against the uniform distribution, and in what they may not depend on."""

import math

import pytest
import torch

from posattn import streams
from posattn.streams import bits, fold_in, permutation, stream, uniform

WORD = (1 << 64) - 1
KEYS = [0, 1, -1, 2**63 - 1, -(2**63), stream(0, "data")]


def splitmix64(key, count):
    """Steele, Lea and Flood (2014), as its authors' C code has it, on unsigned 64-bit integers."""
    state, numbers = key & WORD, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        numbers.append(z ^ (z >> 31))
    return numbers


@pytest.mark.parametrize("key", KEYS)
def test_bits_are_splitmix64(key):
    ours = [number & WORD for number in bits(torch.tensor(key), 50).tolist()]
    assert ours == splitmix64(key, 50)


def test_a_published_value_of_splitmix64():
    """The first number from state 0, as in the reference implementation's test vectors."""
    assert bits(torch.tensor(0), 1).item() & WORD == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("key", KEYS)
def test_uniform_is_the_upper_24_bits(key):
    assert uniform(torch.tensor(key), 50).tolist() == [(z >> 40) / 2**24 for z in splitmix64(key, 50)]


def test_uniform_is_uniform():
    count = 200_000
    u = uniform(torch.tensor(stream(7, "test")), count).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 1 / 2) < 5 * math.sqrt(1 / 12 / count)
    assert abs(u.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / count)
    ks = (u.sort().values - (torch.arange(count) + 0.5) / count).abs().max()
    assert ks < math.sqrt(-math.log(1e-6 / 2) / 2 / count)
    neighbours = torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(count)


@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (40_000,)])
@pytest.mark.parametrize("count", [1, 7])
def test_each_key_alone_and_in_a_batch(shape, count):
    keys = bits(torch.tensor(5), math.prod(shape)).reshape(shape)
    together = uniform(keys, count)
    assert together.shape == (*shape, count)
    for index in range(0, keys.numel(), max(1, keys.numel() // 7)):
        key = keys.reshape(-1)[index]
        assert torch.equal(together.reshape(-1, count)[index], uniform(key, count))
        assert torch.equal(bits(keys, count).reshape(-1, count)[index], bits(key, count))
        assert torch.equal(fold_in(keys, 3).reshape(-1)[index], fold_in(key, 3))
        assert torch.equal(permutation(keys, count).reshape(-1, count)[index], permutation(key, count))


@pytest.mark.parametrize("chunk", [1, 13, 1 << 30])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_chunks_do_not_show(monkeypatch, chunk, shape):
    keys = bits(torch.tensor(6), math.prod(shape)).reshape(shape)
    expected = uniform(keys, 101)
    monkeypatch.setattr(streams, "_CHUNK", chunk)
    assert torch.equal(uniform(keys, 101), expected)


def test_chunks_do_not_show_in_long_streams():
    keys = torch.tensor([3, -8])
    long = uniform(keys, 3 * streams._CHUNK + 17)
    whole = (bits(keys, long.shape[-1]) >> 40 & 0xFFFFFF) / 2.0**24
    assert torch.equal(long, whole)
    assert torch.equal(long[:, :1000], uniform(keys, 1000)), "a longer draw begins with the shorter one"


def test_no_numbers_and_no_keys():
    assert uniform(torch.tensor([1, 2]), 0).shape == (2, 0)
    assert uniform(torch.empty(0, dtype=torch.int64), 5).shape == (0, 5)


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_permutation_is_one(count):
    orders = permutation(bits(torch.tensor(1), 6).reshape(2, 3), count)
    assert orders.shape == (2, 3, count)
    assert torch.equal(orders.sort(dim=-1).values, torch.arange(count).expand(2, 3, count))


def test_permutations_differ_among_epochs_and_keys():
    keys = torch.tensor([stream(seed, "shuffle") for seed in range(4)])
    orders = [tuple(row) for epoch in range(5) for row in permutation(fold_in(keys, epoch), 100).tolist()]
    assert len(set(orders)) == 20


def test_permutations_are_equally_likely():
    orders = permutation(bits(torch.tensor(2), 60_000), 3) @ torch.tensor([9, 3, 1])
    counts = orders.unique(return_counts=True)[1].double()
    assert len(counts) == 6
    chi_squared = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_squared < 36.0, "five degrees of freedom: one in a million exceeds it"


def test_fold_in_gives_distinct_keys_and_unrelated_streams():
    keys = torch.arange(-50, 50)
    children = torch.stack([fold_in(keys, number) for number in range(100)])
    assert len(torch.cat([children.reshape(-1), keys]).unique()) == 100 * 100 + 100
    assert torch.equal(fold_in(keys, torch.tensor(3)), children[3])
    assert torch.equal(keys, torch.arange(-50, 50)), "the keys themselves are left as they were"
    u = uniform(fold_in(torch.tensor(0), 1), 50_000), uniform(fold_in(torch.tensor(0), 2), 50_000)
    assert abs(torch.corrcoef(torch.stack(u))[0, 1]) < 5 / math.sqrt(50_000)


def test_a_folded_stream_is_no_stretch_of_its_parents():
    parent = set(bits(torch.tensor(9), 20_000).tolist())
    assert parent.isdisjoint(bits(fold_in(torch.tensor(9), 1), 20_000).tolist())


def test_purposes_and_seeds_have_streams_of_their_own():
    purposes = [(), ("data",), ("data", "train"), ("data", "test"), ("weights",), ("data", 1), (1,), (11,)]
    keys = [stream(seed, *purpose) for seed in (0, 1, 10, -1) for purpose in purposes]
    assert len(set(keys)) == len(keys)
    assert all(-(2**63) <= key < 2**63 for key in keys)
