"""Declarations: bad ones get one sentence, smaller sizes are smaller, and computations are computed once."""

from dataclasses import replace

import pandas as pd
import pytest
from trials import FIGURE, rows_of, small

import posattn
from posattn.errors import UsageError
from posattn.experiments import (
    EXPERIMENTS,
    Computation,
    Experiment,
    FineTuned,
    Grid,
    Lines,
    Scales,
    Series,
    Store,
    View,
    series,
)
from posattn.experiments.attention_study import AttentionStudy
from posattn.experiments.ood_study import ood_probability_rows
from posattn.runs import ROW_COLUMNS
from posattn.training.recipe import recipe


def declared(name="trial", figure=FIGURE, **grid):
    """An experiment of one architecture on one task, with these changes."""
    own = {"tasks": ("sum",), "series": series("positional"), "seeds": 2} | grid
    return Experiment(name, "nowhere", "a trial", Grid(**own), figure)


GRAPH = Series("g", kind=posattn.GraphConfig)
BAD = [
    ({"name": "../x"}, r"^name is '\.\./x'; it must be letters, digits, dots and dashes\.$"),
    ({"seeds": 0}, r"^grid\.seeds is 0; it must be a whole number"),
    ({"seeds": 1.5}, r"^grid\.seeds is 1\.5; it must be a whole number"),
    ({"n": ()}, r"^grid\.n is empty; it must have at least one value\.$"),
    ({"n": (0,)}, r"^grid\.n is 0"),
    ({"samples": ()}, r"^grid\.samples is empty"),
    ({"layers": (0,)}, r"^grid\.layers is 0"),
    ({"tasks": ()}, r"^grid\.tasks is empty"),
    ({"tasks": ("product",)}, r"^grid\.tasks is 'product'; it must be one of sum, "),
    ({"series": (Series("a", {"colour": 3}),)}, r"^the series 'a' has settings that its network does not take: .*colour"),
    ({"series": ()}, r"^grid\.series is empty"),
    ({"series": 2 * series("positional")}, r"^the grid has two series of one label; every label must be its own\.$"),
    ({"series": (*series("positional"), GRAPH), "measure": FineTuned()}, r"^the series 'g' is a graph network, which has"),
    ({"series": (GRAPH,), "measure": AttentionStudy()}, r"^the series 'g' is no Transformer of lists of up to n numbers, who"),
    ({"series": series("looped"), "measure": AttentionStudy()}, r"^the series 'looped' is no Transformer of lists of up"),
    ({"recipe": recipe("selector")}, r"^the recipe trains 'attention\.logits' alone, which takes a run to begin with\.$"),
    ({"series": (Series("a", recipe=recipe("selector")),)}, r"^the recipe trains 'attention\.logits' alone, which takes a"),
    ({"series": (Series("a", recipe="tuned"),)}, r"^recipe is 'tuned'; it must be a Recipe such as RECIPES\[\"paper\"\]\.$"),
    ({"recipe": "tuned"}, r"^recipe is 'tuned'; it must be a Recipe"),
    ({"figure": Scales()}, r"^figure is Scales\(.*\); it must be a figure, such as Lines\(\); a measure goes into "),
    ({"figure": Lines(views=(View("", {"split": "test", "scale": 4}),)), "measure": Scales((1, 2))},
     r"^the figure has a panel of scale 4; the experiment measures 1, 2\.$"),
    ({"figure": Lines(views=(View("", {"split": "train"}),))}, r"^the figure has a panel of training lists; it must mea"),
    ({"figure": Lines(views=(View("", metric="beauty"),))}, r"^figure\.views\.metric is 'beauty'; it must be one of mse, "),
    ({"figure": Lines(views=(View("", {"colour": 1}),))}, r"^figure\.views\.where is 'colour'"),
    ({"figure": Lines(columns=("moon",))}, r"^figure\.columns is 'moon'"),
    ({"figure": Lines(columns=("hops",))}, r"^figure\.columns is 'hops'"),
    ({"figure": Lines("moon")}, r"^figure\.x is 'moon'"),
    ({"n": (4, 16)}, r"^grid\.n is \(4, 16\), of which the figure would draw one median; n must be its x, one of its"),
    ({"samples": (20, 40)}, r"^grid\.samples is \(20, 40\), of which the figure would draw one median; samples must be"),
    ({"layers": (1, 2), "figure": Lines(views=(View("", {"layers": 1}), View("all")))}, r"^grid\.layers is \(1, 2\), of which"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_bad_declarations_get_one_sentence_before_anything_is_trained(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        declared(**changes)


class Own(Lines):
    def medians(self, rows):
        return super().medians(rows.assign(series=rows["series"] + rows["n"].astype(str)))


@pytest.mark.parametrize(
    "figure", [Lines("n"), Lines(columns=("task", "n")), Lines(views=(View("4", {"n": 4}), View("8", {"n": 8}))), Own()]
)
def test_a_figure_tells_lengths_apart_by_x_columns_views_or_medians_of_its_own(figure):
    assert {cell.model.n for cell in declared(n=(4, 8), figure=figure).cells("paper")} == {4, 8}
    assert declared(n=(4, 4)).source.n == (4, 4)


def test_token_tasks_have_columns_and_metrics_of_their_own():
    figure = Lines("layers", (View("", metric="accuracy"),), columns=("hops",))
    cells = declared(tasks=("khop",), n=(12,), layers=(1, 2), figure=figure).cells("paper")
    assert {(cell.model.tokens, cell.model.causal, cell.model.layers) for cell in cells} == {
        ("letters", True, 1),
        ("letters", True, 2),
    }
    with pytest.raises(UsageError, match=r"^figure\.views\.metric is 'mse'; it must be one of cross_entropy, accuracy, "):
        declared(tasks=("khop",), n=(12,))


def test_smaller_sizes_are_never_larger_than_what_was_declared():
    grid = small().source.at("quick")
    assert grid.recipe.epochs == 2 and grid.samples == (40,) and grid.recipe.batch == 20 and grid.seeds == 2


def test_runs_that_lack_a_part_of_the_measure_are_drawn_without_it(tmp_path, engine):
    """Here of test lists but not of training lists; a run that is trained has both."""
    store, plain = Store(tmp_path), small(seeds=2)
    both = small(measure=replace(plain.source.measure, train=True), seeds=2)
    store.complete(plain.cells("paper"), engine)
    rows, _ = both.held("paper", store).read()
    assert rows["run"].nunique() == 2 and set(rows["split"]) == {"test"}
    store.complete(both.cells("paper"), engine)
    rows, _ = both.held("paper", store).read()
    assert set(rows["split"]) == {"test", "train"} and rows["run"].nunique() == 2
    assert set(plain.held("paper", store).read()[0]["split"]) == {"test"}


def test_computed_rows_have_the_columns_of_every_result_and_then_their_own(tmp_path):
    values = pd.DataFrame([{"metric": "bound", "value": 1.0, "z": 2}, {"metric": "x", "value": 2.0, "task": "sum"}])
    trial = Experiment("own", "none", "none", Computation(lambda size: values))
    rows, _ = trial.held("smoke", Store(tmp_path)).read()
    assert list(rows) == [*ROW_COLUMNS, "z"] and rows["task"].tolist()[1] == "sum" and rows["run"].isna().all()
    assert (set(rows["experiment"]), set(rows["split"]), set(rows["domain"])) == ({"own"}, {"test"}, {"ood"})


def test_rows_are_computed_once_and_damaged_ones_again(tmp_path, engine):
    asked = []
    computed = Computation(lambda size: asked.append(size) or ood_probability_rows(size))
    trial = replace(EXPERIMENTS["ood-probability"], source=computed)
    store = Store(tmp_path / "store")
    first, again = (rows_of(trial, store, engine, size="smoke") for _ in range(2))
    assert asked == ["smoke"] and trial.cells("paper") == []
    pd.testing.assert_frame_equal(first, again)
    (tmp_path / "store" / "computed" / "ood-probability-smoke.csv").write_text("")
    with pytest.warns(UserWarning, match=r"ood-probability-smoke\.csv is damaged"):
        anew = rows_of(trial, store, engine, size="smoke")
    assert asked == ["smoke", "smoke"]
    pd.testing.assert_frame_equal(first, anew)
