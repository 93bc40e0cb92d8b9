"""Every function and command that takes a number of samples, members or machines refuses one that no memory holds."""

import re

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.baselines import gpt2
from posattn.export import to_torch
from posattn.graphs.reports import trained_report
from posattn.tasks import sample_lists, sample_shift

BILLION = 10**9
TOLD = r"^{} need at least [\d.e+]+ GB of memory, and [\d.]+ GB are free on the CPU{}\.$"


@pytest.fixture(autouse=True)
def little(monkeypatch):
    """Eight gigabytes, whatever this machine has."""
    monkeypatch.setattr("posattn.devices.free_bytes", lambda device: 8e9)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "sort", "--members", 10**18), "members is 10+; so many networks"),
        (("train", "sort", "--n", 100_000), "the weights of a network for ModelConfig.*"),
        (("evaluate", "--pretrained", "sort", "--samples", BILLION),
         "samples is 10+; so many lists of 8 numbers"),
        (("evaluate", "--pretrained", "sum", "--arch", "looped", "--lengths", BILLION, "--samples", 9),
         "samples is 9; so many lists of 10+ .*"),
        (("graph", "--pretrained", "sort", "--samples", BILLION), "samples is 10+; the effects on so many lists"),
        (("ood-probability", "--n", 10**12), "count is 1; so many lists of 10+ numbers"),
        (("compile", "prefix-sum", "--check", "--samples", BILLION), "samples is 10+; the states of .* for so many inputs"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_commands_refuse_what_no_memory_holds(arguments, told, posattn_command):
    code, _, error = posattn_command(*arguments)
    assert code == 2
    sentence = TOLD.format(told, "").removeprefix("^")
    assert re.fullmatch("posattn: " + sentence.removesuffix("$"), error.strip())


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sample_lists(BILLION), "count is 10+; so many lists of 8 numbers"),
        (lambda: sample_lists(10**8, seed=range(10)), "count is 10+; so many lists of 8 numbers, for each of 10 seeds,"),
        (lambda: sample_shift("gaussian", BILLION), "count is 10+; so many lists of 8 numbers"),
        (lambda: posattn.task("khop").sample(BILLION), "count is 10+; so many lists of 30 numbers"),
        (lambda: posattn.Transformer(ModelConfig(n=100_000)), r"the weights of a network for ModelConfig\(n=100000,.*"),
        (lambda: posattn.GraphConfig(n=10**6).build(), r"the weights of a network for GraphConfig\(n=1000000,.*"),
        (lambda: posattn.LoopedConfig(n=8, width=10**6).build(), r"the weights of a network for LoopedConfig.*"),
        (lambda: posattn.PositionalAttention(10**6, 64, d_k=10**6), "the weights of n_positions = 1000000, .*"),
        (lambda: trained_report(posattn.pretrained("sort"), "sort", "sorting", 0.3, "effect", BILLION), "samples is .*"),
        (lambda: gpt2.evaluate(gpt2.FineTuning("mixed-min"), None, None, 0, [1], BILLION), "samples is .*"),
        (lambda: gpt2.fine_tune(gpt2.FineTuning("mixed-min", samples=BILLION), None, None, 0, None), "samples is .*"),
    ],
)  # fmt: skip
def test_python_refuses_it_with_the_same_sentence(call, told):
    with pytest.raises(UsageError, match=TOLD.format(told, "")):
        call()


def test_an_exported_list_must_fit(tmp_path):
    with pytest.raises(
        UsageError, match=TOLD.format("the list has 10+ numbers, which", r"; this model takes up to \d+")
    ):
        to_torch(posattn.pretrained("sum", arch="looped"), tmp_path / "n.pt2", BILLION)


def test_what_has_no_memory_is_not_refused():
    with torch.device("meta"):
        assert posattn.PositionalAttention(10**6, 64).attention.W_Q.weight.is_meta


def test_simulation_ends_in_minutes():
    with pytest.raises(UsageError, match=r"^samples is 1000000000000000000; it must be at most 1e\+09\.$"):
        posattn.ood_probability(8, 10, samples=10**18)
