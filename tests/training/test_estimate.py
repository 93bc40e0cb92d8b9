"""How long training takes: operations are counted right, and times said in words."""

from dataclasses import replace

import pytest
import torch

from posattn.looped import LoopedConfig, PromptTableConfig, TableConfig
from posattn.model import ModelConfig, Transformer
from posattn.tokens import TokenConfig
from posattn.training.estimate import in_words, operations, seconds
from posattn.training.recipe import recipe


def test_operations_are_those_that_pytorch_counts():
    """Two for a multiplication, and backwards twice what forwards takes, less what the first layer's input does not need."""
    from torch.utils.flop_counter import FlopCounterMode

    for arch in ("positional", "standard"):
        config = TokenConfig(30, arch, tokens="letters", causal=True, embed=60, layers=6)
        model = Transformer(config)
        x = torch.randint(16, (64, 30))
        with FlopCounterMode(display=False) as counted:
            model(x).sum().backward()
        assert operations(config) == pytest.approx(counted.get_total_flops() / 64, rel=0.05)


def test_times_are_said_in_the_largest_unit_of_which_there_are_two():
    said = {0: "none", 0.2: "1 second", 119: "119 seconds", 120: "2 minutes", 7200: "2 hours", 3 * 86_400: "3 days"}
    assert {time: in_words(time) for time in said} == said


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_core_trains_one_network_at_a_time_and_a_gpu_all():
    model, plan = ModelConfig(8), recipe("paper")
    torch.set_num_threads(2)
    try:
        times = [seconds(model, plan, CPU, members) for members in (1, 2, 3, 4)]
        assert times == [times[0], times[0], 2 * times[0], 2 * times[0]]
        assert seconds(model, plan, CPU) == times[0] / 2  # where the other core has work too
    finally:
        torch.set_num_threads(1)
    assert seconds(model, plan, GPU, 1) == seconds(model, plan, GPU, 10) < seconds(model, plan, GPU, 100)
    assert seconds(model, plan, GPU, 100) == pytest.approx(100 * seconds(model, plan, GPU))
    letters = TokenConfig(30, tokens="letters", causal=True)  # of which few fill a GPU
    assert seconds(letters, plan, GPU, 1) == seconds(letters, plan, GPU, 3) == 3 * seconds(letters, plan, GPU)


def test_shorter_lists_take_less():
    """Lists of 1 to 8 numbers have 5.5 positions on average, with the scratchpad, where those of 8 have 9."""
    model, plan = ModelConfig(8, "standard"), recipe("paper", samples=500_000, batch=2048)
    assert seconds(model, plan, GPU, lengths=range(1, 9)) == pytest.approx(5.5 / 9 * seconds(model, plan, GPU))
    assert seconds(model, plan, GPU, lengths=(8,)) == seconds(model, plan, GPU)


def test_kinds_of_one_architecture_have_times_of_their_own():
    """Both are called table: a run on prompts takes about 80 seconds of a core, one on letters one to two minutes."""
    assert 60 < seconds(PromptTableConfig(23), recipe("prompt-table"), CPU, 1) < 120
    assert 40 < seconds(TableConfig(30), recipe("table"), CPU, 1) < 120


def test_steps_of_small_batches_and_networks_take_their_time_on_a_core_alone():
    small, few = ModelConfig(5, embed=16, width=16), recipe("paper", samples=2000, epochs=10, batch=100)
    assert 1 <= seconds(small, few, CPU, 1) < 1.2  # 200 steps
    assert seconds(ModelConfig(8), few, CPU, 1) == pytest.approx(
        seconds(ModelConfig(8), replace(few, batch=1000), CPU, 1) + 180 * 0.005
    )
    assert seconds(small, few, GPU, 1) == seconds(small, replace(few, batch=1000), GPU, 1)


@pytest.mark.parametrize(
    "model", [ModelConfig(8), ModelConfig(8, "standard"), LoopedConfig(16), ModelConfig(8, "alibi")]
)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_time_grows_with_the_lists_that_are_trained_on(model, device):
    short, long = (seconds(model, recipe("paper", epochs=epochs), device, 1) for epochs in (10, 30))
    assert short > 0 and long == pytest.approx(3 * short)
