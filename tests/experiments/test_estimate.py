"""How long training takes: operations are counted right, and times said in words."""

import pytest
import torch

from posattn.experiments.estimate import in_words, operations
from posattn.model import Transformer
from posattn.tokens import TokenConfig


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
    said = {0: "none", 0.2: "1 seconds", 119: "119 seconds", 120: "2 minutes", 7200: "2 hours", 3 * 86_400: "3 days"}
    assert {time: in_words(time) for time in said} == said
