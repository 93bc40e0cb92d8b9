"""The weights in the package are the networks whose errors the package states."""

import pickle

import pytest
import torch

import posattn
from posattn import metrics
from posattn.pretrained import pretrained_errors

ERRORS = pretrained_errors()
NETWORKS = ERRORS[["arch", "task", "seed"]].drop_duplicates()


@pytest.mark.parametrize(("arch", "task", "seed"), list(NETWORKS.itertuples(index=False, name=None)))
def test_the_stated_errors_are_those_of_the_weights(arch, task, seed):
    model = posattn.pretrained(task, arch=arch)
    stated = ERRORS[(ERRORS["arch"] == arch) & (ERRORS["task"] == task)].sort_values("scale")
    with torch.no_grad():
        table = metrics.Evaluation(lambda x: model(x), [(task, seed)]).by_scale([8], stated["scale"])
    assert len(stated) == 10
    # Errors of looped networks are near those of rounding, which another machine does in another order.
    assert table["mse"].to_numpy() == pytest.approx(stated["mse"].to_numpy(), rel=0.5 if arch == "looped" else 2e-3)
    for accuracy in ("rounding", "closeness"):  # a list on the edge may fall either way on another machine
        assert table[accuracy].to_numpy() == pytest.approx(stated[accuracy].to_numpy(), abs=0.004)


def test_five_tasks_of_each_and_only_what_there_is():
    tasks = NETWORKS.groupby("arch")["task"].agg(set).to_dict()
    five = {"sum", "min", "median", "sort", "maxsub"}
    every_length = five - {"median"} | {"median-total"}
    assert tasks == dict.fromkeys(("positional", "scale-exact", "standard"), five) | {"looped": every_length}
    with pytest.raises(posattn.UsageError, match="task is 'median'"):
        posattn.pretrained("median", arch="looped")
    assert posattn.pretrained("sort").config == posattn.ModelConfig(8)
    with pytest.raises(posattn.UsageError, match=r"^task is 'khop'; .* maxsub, median-total \(with arch looped\)\.$"):
        posattn.pretrained("khop")
    with pytest.raises(posattn.UsageError, match="arch is 'rope-only'"):
        posattn.pretrained("sort", arch="rope-only")


@pytest.mark.parametrize(
    ("task", "most"), [("sum", 1e-4), ("min", 1e-4), ("sort", 0.02), ("maxsub", 0.02), ("median-total", 0.02)]
)
def test_looped_networks_take_lists_of_every_length(task, most):
    """Largest errors, as shares of the largest answer, on lists 64 times as long and 10 times as large as those trained on."""
    model, row = posattn.pretrained(task, arch="looped"), posattn.task(task)
    for n in (1, 7, 1000):
        x, y = row.sample(5, n=n, scale=10, seed=3)
        assert (model(x) - y).abs().max() <= most * y.abs().max()


def test_a_pretrained_network_sorts():
    numbers = torch.tensor([3.2, 1.5, -0.5, 2.0, 8.0, -4.0, 0.0, 1.0])
    assert (posattn.pretrained("sort", arch="scale-exact")(numbers) - numbers.sort().values).abs().max() < 0.2


def test_it_is_pickled_by_its_name_as_a_function_is():
    again = pickle.loads(pickle.dumps(posattn.pretrained))
    assert again is posattn.pretrained and isinstance(again("sort"), posattn.Transformer)
