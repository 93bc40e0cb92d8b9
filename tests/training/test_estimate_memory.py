"""What does not fit into memory is refused before any of it is asked for, and what may fit is not."""

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.devices import CPU
from posattn.training.estimate import require_room_to_train
from posattn.training.recipe import recipe

KINDS = [
    *({"n": 5, "arch": arch} for arch in posattn.ARCHITECTURES),
    {"n": 5, "arch": "looped"},
    {"n": 5, "arch": "looped", "family": "butterfly"},
    {"n": 5, "kind": "graph", "arch": "gat"},
    {"n": 5, "kind": "any-length", "arch": "randomized"},
    {"n": 5, "kind": "any-length", "arch": "alibi", "looped": True},
    {"n": 6, "tokens": "letters", "tied": True},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_least_that_a_network_takes_is_no_more_than_it_takes(kind):
    config = posattn.network.configuration(**kind)
    model = config.build()
    held = sum(value.numel() for value in model.parameters())
    assert held / 2 < config.least_numbers <= held
    beside = 0 if config.kind == "looped" else posattn.network.OBJECTS * len(model.layers)
    assert config.least_beside == beside + sum(value.nbytes for name, value in model.named_buffers() if name != "table")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"members": 10**18}, "members is 1000000000000000000; so many networks"),
        ({"members": 10**9}, "members is 1000000000; so many networks"),
        ({"samples": 10**11}, "samples is 100000000000; so many training lists of n = 8"),
        (
            {"epochs": 10**12},
            "epochs is 1000000000000; the losses and learning rates of so many",
        ),
        ({"config": ModelConfig(n=100_000)}, r"the weights of a network for ModelConfig\(n=100000, .*"),
        (
            {"config": ModelConfig(n=2, layers=10**9, embed=2, width=1)},
            r"the weights of a network for ModelConfig\(n=2.*",
        ),
    ],
)
def test_a_run_that_no_memory_holds_is_refused_before_it_begins(settings, told, tmp_path, monkeypatch):
    monkeypatch.setattr("posattn.streams.uniform", None)  # nothing is drawn
    sentence = rf"^{told} need at least [\d.e+]+ GB of memory, and [\d.]+ GB are free on the CPU\.$"
    with pytest.raises(UsageError, match=sentence):
        posattn.train("sort", **settings, device="cpu", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_just_fits_is_not_refused(monkeypatch):
    config, plan = ModelConfig(n=8), recipe(samples=1000, epochs=10, batch=100)
    networks, lists, noted = 3 * 4 * config.least_numbers, 2 * 4 * 8 * 1000, 2 * 4 * 10 + 24 * 10 * 10
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    monkeypatch.setattr("posattn.devices.free_bytes", lambda _: networks + lists + noted)
    require_room_to_train(config, plan, 1, [8], CPU)
    with pytest.raises(UsageError, match=r"^members is 2; so many networks need at least"):
        require_room_to_train(config, plan, 2, [8], CPU)


def test_a_gpu_holds_the_losses_and_the_rates_of_every_step_and_the_cpu_computes_and_reads_them(monkeypatch):
    plan, place = recipe(samples=1000, epochs=10**6, batch=100), torch.device("cuda")
    config, history = ModelConfig(n=2, layers=1, embed=2, width=1), 2 * 4 * 10**6
    on_gpu = 3 * 4 * config.least_numbers + 2 * 4 * 2 * 1000 + history + 2 * 4 * 10**7
    on_cpu = history + 24 * 10**7
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    for lacks in (CPU, place, None):
        free = {CPU: on_cpu - (lacks == CPU), place: on_gpu - (lacks == place)}
        monkeypatch.setattr("posattn.devices.free_bytes", free.__getitem__)
        if lacks is None:
            require_room_to_train(config, plan, 1, [2], place)
            continue
        with pytest.raises(UsageError, match=rf"^epochs is 1000000; .* are free on the {'CPU' if lacks == CPU else 'GPU'}\.$"):
            require_room_to_train(config, plan, 1, [2], place)


def test_lists_of_many_lengths_are_counted_without_listing_the_lengths():
    with pytest.raises(UsageError, match="so many training lists of n = 1000000000000 need"):
        require_room_to_train(posattn.LoopedConfig(n=10**12), recipe(samples=10**12), 1, range(1, 10**12 + 1), CPU)
