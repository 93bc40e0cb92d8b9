"""Yardsticks: ignoring the query is the mean over all choices of four, a constant scores the variance, both are drawn."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS
from posattn.experiments.declaration import series
from posattn.experiments.measures import EachShift, Scales, Shifts
from posattn.experiments.styles import looks
from posattn.experiments.yardsticks import YARDSTICKS, ignoring_query, yardstick_rows


@pytest.mark.parametrize("layout", ["elements", "characters"])
def test_ignoring_the_query_is_the_mean_over_all_queries(layout):
    """Against brute force: the same prompt with each of the 70 queries it could have."""
    prompt = (
        "['Cat2', 3.45, 'Cat+7', 'Cat5', 1.23, 'Cat7', 0.65, 'Cat8', 2.23, 'Cat11', 'Cat-8', 4.10, 'Cat13', 1.10, "
        "'Cat14', 0.10, 'Cat20', 2.75, 'Find max of Cat5, Cat8, Cat11 and Cat20']"
    )
    task, names = posattn.task("mixed-max"), ["Cat2", "Cat5", "Cat7", "Cat8", "Cat11", "Cat13", "Cat14", "Cat20"]
    asked = [
        prompt.replace("Cat5, Cat8, Cat11 and Cat20", f"{a}, {b}, {c} and {d}") for a, b, c, d in combinations(names, 4)
    ]
    right = torch.stack([task.target(task.encode(each)) for each in asked])
    torch.testing.assert_close(ignoring_query(task.encode(prompt, layout)), right.mean(dim=0))


def test_rows_have_both_yardsticks_at_every_scale():
    rows = yardstick_rows(("mixed-sum", "mixed-multitask"), (23,), (40,), Scales((1, 10), samples=300))
    mse = rows[rows["metric"] == "mse"].set_index(["series", "task", "scale"])["value"]
    assert len(mse) == 2 * 2 * 2
    for name, scale in (("mixed-sum", 1.0), ("mixed-multitask", 10.0)):
        _, y = posattn.task(name).sample(300, scale=scale, split="test")
        assert mse["a constant", name, scale] == pytest.approx(y.var(correction=0).item(), rel=1e-4)
        assert 0 < mse["ignoring the query", name, scale] < mse["a constant", name, scale] / 4


def test_training_prompts_are_as_many_as_networks_saw():
    """The error of a constant is the variance of the answers, here to the first 40 and the first 90 training prompts."""
    rows = yardstick_rows(("mixed-min",), (101,), (40, 90), Scales((1,), samples=60, train=True))
    found = rows[(rows["metric"] == "mse") & (rows["series"] == "a constant") & (rows["split"] == "train")]
    assert found["samples"].tolist() == [40, 90] and set(rows["n"]) == {101}
    for value, seen in zip(found["value"], (40, 60), strict=True):
        _, y = posattn.task("mixed-min").sample(seen)
        assert value == pytest.approx(y.var(correction=0).item(), rel=1e-4)
    tested = rows[rows["split"] == "test"].groupby(["series", "metric"])["value"]
    assert (tested.nunique() == 1).all() and (tested.size() == 2).all()  # whatever networks are trained on


def test_the_query_costs_as_much_with_training_words_as_with_unseen_ones():
    rows = yardstick_rows(("mixed-min",), (101,), (40,), EachShift((1, 3), samples=20_000))
    mse = rows[(rows["metric"] == "mse") & (rows["series"] == "ignoring the query")].set_index(["words", "scale"])["value"]
    for words in EachShift.WORDS:
        assert mse[words, 1] == pytest.approx(0.067, rel=0.1) and mse[words, 3] == pytest.approx(0.67, rel=0.1)


def test_they_are_for_prompts_alone():
    for changes in ({"tasks": ("sum",), "series": series("positional")}, {"measure": Shifts()}):
        with pytest.raises(UsageError, match="the grid has yardsticks; these are for mixed-type prompts"):
            replace(EXPERIMENTS["mixed-scale"].source, **changes)


def test_figures_on_prompts_draw_them_as_plain_lines():
    for name in ("mixed-scale", "mixed-shift", "mixed-samples", "mixed-elements", "mixed-elements-samples", "mixed-scan"):
        assert EXPERIMENTS[name].source.yardsticks
    labels = ["positional", *YARDSTICKS, "table"]
    assert all(looks(labels)[name].marker == "" for name in YARDSTICKS)
    assert looks(labels)["table"] == looks(["positional", "table"])["table"]
