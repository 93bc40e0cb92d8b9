"""The fix-scale experiment at smoke scale: rows, figure and page, and that nothing is trained twice."""

import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, SCALES, Experiment, Plan, reproduce
from posattn.experiments.figures import medians, published
from posattn.experiments.report import pivot
from posattn.model import ARCHITECTURES
from posattn.tasks import TASKS
from posattn.training import Recipe, load

CPU = torch.device("cpu")
FIX_SCALE = EXPERIMENTS["fix-scale"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out, said = tmp_path_factory.mktemp("out") / "fix-scale", []
    return out, reproduce(FIX_SCALE, "smoke", out, CPU, said.append), said


def runs_of(out):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (out / "runs").rglob("*") if path.is_file()}


def test_it_leaves_rows_figures_and_a_page(smoke):
    out, outcome, said = smoke
    assert (out / "rows.csv").stat().st_size > 1000
    assert outcome.figure.read_bytes().startswith(b"\x89PNG") and outcome.figure == out / "fix-scale.png"
    assert (out / "fix-scale.pdf").read_bytes().startswith(b"%PDF")
    assert outcome.page == out / "fix-scale.html" and outcome.page.exists()
    assert len(said) == 3 and not [path for path in out.rglob(".*")]


def test_there_is_a_row_for_every_run_scale_and_metric(smoke):
    out, outcome, _ = smoke
    plan, rows = FIX_SCALE.plan("smoke"), outcome.rows
    assert len(rows) == plan.models * len(plan.factors) * 4
    key = ["task", "arch", "seed", "scale", "metric"]
    assert not rows.duplicated(key).any() and rows["value"].notna().all()
    assert set(rows["arch"]) == {"positional", "scale-exact", "standard"} and set(rows["experiment"]) == {"fix-scale"}
    assert rows["run"].nunique() == plan.models
    pd.testing.assert_frame_equal(pd.read_csv(out / "rows.csv"), rows, check_dtype=False)


def test_rows_are_what_the_stored_runs_give(smoke):
    out, outcome, _ = smoke
    for folder in (out / "runs").iterdir():
        run = load(folder)
        own = outcome.rows[(outcome.rows["arch"] == run.spec.model.arch) & (outcome.rows["metric"] == "mse")]
        table = run.evaluate([3], FIX_SCALE.plan("smoke").test_samples)
        assert own[own["scale"] == 3]["value"].tolist() == pytest.approx(table["mse"].tolist(), rel=1e-5)


class Assets(HTMLParser):
    """Whatever a browser would fetch for a page."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "poster")]


def test_the_page_is_self_contained(smoke):
    _, outcome, _ = smoke
    page = outcome.page.read_text(encoding="utf-8")
    assets = Assets()
    assets.feed(page)
    assert len(assets.fetched) == 1 and assets.fetched[0].startswith("data:image/png;base64,")
    assert not {"script", "link", "iframe"} & set(assets.tags) and not re.search(r"https?://|@import|url\(", page)
    for value in outcome.table["median"]:
        assert f"{value:.2e}" in page


def test_the_second_call_trains_nothing_and_gives_the_same_rows(smoke):
    out, outcome, _ = smoke
    before = runs_of(out)
    again = reproduce(FIX_SCALE, "smoke", out, CPU)
    assert runs_of(out) == before
    pd.testing.assert_frame_equal(again.rows, outcome.rows)


def test_networks_that_diverge_are_counted_and_stop_nothing(tmp_path):
    plan = Plan(("sum",), ("positional",), 2, Recipe(samples=20, epochs=2, batch=10, lr=1e18), n=2, factors=(1, 2))
    trial = Experiment("trial", "nowhere", "what goes wrong", {"smoke": plan})
    for _ in range(2):
        outcome = reproduce(trial, "smoke", tmp_path / "out", CPU)
        assert set(outcome.rows["status"]) == {"diverged"} and outcome.table["ok"].tolist() == [0, 0]
        assert outcome.rows["value"].dtype == float and "diverged" in (tmp_path / "out" / "rows.csv").read_text()


def rows(values, metric="mse", arch="positional", status="ok"):
    return pd.DataFrame({"value": values}).assign(metric=metric, arch=arch, task="sum", scale=2.0, status=status)


def test_medians_are_midpoints_and_percentiles_by_hand():
    four = rows([4.0, 1.0, 2.0, 10.0])
    five = rows([5.0, 1.0, 2.0, 9.0, 30.0], arch="standard")
    four.loc[3, "status"] = "diverged"
    table = medians(pd.concat([four, five, rows([99.0], metric="rounding")])).set_index("arch")
    # 1 2 4 10: (2 + 4) / 2; the 10th percentile lies 0.3 of the way from 1 to 2, the 90th 0.7 of it from 4 to 10.
    assert table.loc["positional", ["median", "p10", "p90"]].tolist() == pytest.approx([3.0, 1.3, 8.2])
    # 1 2 5 9 30: 0.4 of the way from 1 to 2, 0.6 from 9 to 30.
    assert table.loc["standard", ["median", "p10", "p90"]].tolist() == pytest.approx([5.0, 1.4, 21.6])
    assert table["runs"].tolist() == [4, 5] and table["ok"].tolist() == [3, 5]


def test_the_table_has_scales_down_and_architectures_across(smoke):
    _, outcome, _ = smoke
    wide = pivot(outcome.table)
    assert wide.index.tolist() == [1, 3] and wide.columns.tolist() == ["positional", "scale-exact", "standard"]
    own = outcome.rows.query("metric == 'mse' and arch == 'standard' and scale == 3")["value"]
    assert wide.loc[3, "standard"] == pytest.approx(own.median())


def test_the_paper_scale_is_the_papers():
    plan = FIX_SCALE.plan("paper")
    assert plan.tasks == ("sum", "min", "median", "sort", "maxsub") and plan.seeds == 10 and plan.n == 8
    assert plan.recipe == Recipe() and plan.factors == tuple(range(1, 11)) and plan.test_samples == 1000
    assert {"positional", "standard"} <= set(plan.archs)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_every_experiment_has_every_scale_and_known_names(experiment):
    assert tuple(experiment.plans) == SCALES
    for plan in experiment.plans.values():
        assert set(plan.tasks) <= set(TASKS) and set(plan.archs) <= set(ARCHITECTURES)
        specs = plan.ensembles()
        identities = {spec.identity(k) for spec in specs for k in range(len(spec.members))}
        assert len(identities) == plan.models == sum(len(spec.members) for spec in specs)


def test_an_unknown_scale_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match=r"^scale is 'huge'; it must be one of smoke, quick, paper\.$"):
        reproduce(FIX_SCALE, "huge", tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


def test_published_medians_come_with_the_package():
    known = published().query("experiment == 'fix-scale' and split == 'test'")
    assert set(known["task"]) == {"sum", "min", "median", "sort", "maxsub"}
    assert (known["p10"] <= known["median"]).all() and (known["median"] <= known["p90"]).all()


def test_a_folder_of_another_scale_or_of_other_files_is_refused_and_left_alone(tmp_path):
    experiment = EXPERIMENTS["fix-scale"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="holds other files"):
        reproduce(experiment, "smoke", tmp_path / "mine", torch.device("cpu"))
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "experiment.json").write_text('{"experiment": "fix-scale", "scale": "quick"}')
    with pytest.raises(UsageError, match="'scale': 'quick'"):
        reproduce(experiment, "smoke", tmp_path / "quick", torch.device("cpu"))
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path.is_file()] == ["notes.txt", "experiment.json"]
