"""The published recipe, and what a recipe refuses."""

import math

import pytest

from posattn.errors import UsageError
from posattn.training import RECIPES, Recipe
from posattn.training.recipe import recipe


def test_the_paper_recipe_is_the_published_one_and_the_default():
    assert recipe() == Recipe() == RECIPES["paper"]
    assert Recipe().to_dict() == {
        **{"name": "paper", "schedule": "plateau", "lr": 5e-4, "epochs": 2001, "batch": 1000, "samples": 30_000},
        **{"factor": 0.9, "patience": 50, "threshold": 1e-4, "floor": 1e-6, "warmup": 0.0, "clip": None},
        **{"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8},  # Adam's own, which the published runs left alone
    }


def test_the_tuned_recipe_warms_up_clips_and_stays_below_the_rate_where_runs_die():
    tuned = recipe("tuned")
    assert tuned.schedule == "cosine" and tuned.clip is not None and 0 < tuned.warmup < 1
    assert tuned.lr < 2e-3  # notes, 5.2
    assert (tuned.samples, tuned.batch) == (30_000, 1000)


def test_changes_replace_fields_and_none_leaves_them():
    changed = recipe("paper", epochs=7, lr=None, batch=3)
    assert changed == Recipe(epochs=7, batch=3)
    assert recipe(changed, lr=1e-3) == Recipe(epochs=7, batch=3, lr=1e-3)
    assert RECIPES["paper"] == Recipe()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("lr", value) for value in (0, -1e-3, math.nan, math.inf, "fast", True)),
        *((field, value) for field in ("epochs", "batch", "samples") for value in (0, -1, 2.5, "3", True)),
        *(("clip", value) for value in (0, -1.0, math.nan)),
        *(("warmup", value) for value in (-0.1, 1.0, math.nan)),
        *(("factor", value) for value in (0, -0.5, math.nan)),
        *(("only", value) for value in ("", 3)),
        ("schedule", "linear"),
    ],
)
def test_a_bad_value_is_named_with_its_field(field, value):
    with pytest.raises(UsageError) as refused:
        Recipe(**{field: value})
    assert str(refused.value).startswith(f"{field} is {value!r}; it must be")
    assert str(refused.value).endswith(".")


def test_an_unknown_recipe_is_named_with_those_there_are():
    with pytest.raises(
        UsageError, match=r"^recipe is 'papre' \(did you mean paper\?\); it must be one of paper, tuned, .*, selector\.$"
    ):
        recipe("papre")


def test_last_steps_that_move_every_weight_do_not_go_with_training_some():
    assert recipe("selector").only == "attention.logits" and recipe("selector").polish == 0
    with pytest.raises(UsageError, match=r"^polish is 3; it must be 0 where 'attention\.logits' alone is trained: "):
        recipe("selector", polish=3)
