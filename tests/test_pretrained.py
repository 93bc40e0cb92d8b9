"""The weights in the package are the networks whose errors the package states."""

import pytest
import torch

import posattn
from posattn.pretrained import pretrained_errors
from posattn.training import metrics

ERRORS = pretrained_errors()
NETWORKS = ERRORS[["arch", "task", "seed"]].drop_duplicates()


@pytest.mark.parametrize(("arch", "task", "seed"), list(NETWORKS.itertuples(index=False, name=None)))
def test_the_stated_errors_are_those_of_the_weights(arch, task, seed):
    model = posattn.pretrained(task, arch=arch)
    stated = ERRORS[(ERRORS["arch"] == arch) & (ERRORS["task"] == task)].sort_values("scale")
    with torch.no_grad():
        table = metrics.evaluate(lambda x: model(x), [(task, seed)], [8], stated["scale"])
    assert len(stated) == 10
    assert table["mse"].to_numpy() == pytest.approx(stated["mse"].to_numpy(), rel=2e-3)
    for accuracy in ("rounding", "closeness"):  # a list on the edge may fall either way on another machine
        assert table[accuracy].to_numpy() == pytest.approx(stated[accuracy].to_numpy(), abs=0.004)


def test_five_tasks_of_each_and_only_what_there_is():
    assert set(NETWORKS["task"]) == {"sum", "min", "median", "sort", "maxsub"} and len(NETWORKS) % 5 == 0
    assert posattn.pretrained("sort").config == posattn.ModelConfig(8)
    with pytest.raises(posattn.UsageError, match="task is 'khop'"):
        posattn.pretrained("khop")
    with pytest.raises(posattn.UsageError, match="arch is 'rope-only'"):
        posattn.pretrained("sort", arch="rope-only")


def test_a_pretrained_network_sorts():
    numbers = torch.tensor([3.2, 1.5, -0.5, 2.0, 8.0, -4.0, 0.0, 1.0])
    assert (posattn.pretrained("sort", arch="scale-exact")(numbers) - numbers.sort().values).abs().max() < 0.2
