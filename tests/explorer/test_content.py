"""What goes on the page: the user's runs, the store's figures, and what is refused, in one sentence."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler import compile_program
from posattn.compiler.pcoc import PCOC
from posattn.compiler.saved import save
from posattn.experiments import EXPERIMENTS, Store, engine, figures
from posattn.explorer import command, document, of_runs, results
from posattn.explorer.content import Content
from posattn.explorer.networks import Packed

SHORT = {"samples": 20, "epochs": 1, "batch": 10, "progress": False}
TINY = posattn.ModelConfig(n=3, layers=1, embed=4, width=4, heads=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two members of each of two tasks in one folder."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    posattn.train(["sum", "min", "sum", "min"], TINY, members=4, out=folder, **SHORT)
    return folder


def told(html):
    """The page's JSON, as the browser reads it."""
    return json.loads(html.split('id="content">')[1].split("</script>")[0])


def test_members_stand_by_their_task_with_the_program_that_solves_it(trained):
    content = of_runs([trained])
    by_task = {subject["task"]: subject for subject in content.subjects}
    assert list(by_task) == ["sum", "min"]
    for task, numbers, program in (("sum", (0, 2), "prefix-sum"), ("min", (1, 3), "prefix-min")):
        own, compiled = by_task[task]["models"]
        assert [choice["name"] for choice in own["choices"]] == [f"member {k}, seed {k}" for k in numbers]
        assert own["label"] == str(trained)
        assert compiled["choices"][0]["name"] == program
        assert content.networks[compiled["choices"][0]["network"]].described["n"] == 3
    assert [len(subject["models"][0]["choices"]) for subject in of_runs([trained], members=1).subjects] == [1, 1]
    with pytest.raises(UsageError, match="members is 0"):
        of_runs([trained], members=0)


def test_networks_of_every_length_stand_alone_or_beside_those_of_one_length(trained, tmp_path):
    looped = posattn.ModelConfig(n=100, arch="looped", width=4)
    short = SHORT | {"polish": 0, "variable_length": (2, 100), "out": tmp_path / "looped"}
    with pytest.warns(UserWarning, match="no looped network is known to solve median"):
        posattn.train(["sum", "median"], looped, members=2, **short)
    alone = {subject["task"]: subject for subject in of_runs([tmp_path / "looped"]).subjects}
    labels = {task: [model["label"] for model in subject["models"]] for task, subject in alone.items()}
    own = str(tmp_path / "looped")
    assert labels == {"sum": [own, "looped, compiled"], "median": [own]}  # nobody wrote a looped median
    assert alone["sum"]["longest"] == 64 and alone["sum"]["lengths"] == [64]  # as long as the page has room
    content = of_runs([tmp_path / "looped", trained])
    both = {subject["task"]: subject for subject in content.subjects}
    takes = [model["lengths"] for model in both["sum"]["models"]]
    assert takes == [[3], [3], None, None] and both["sum"]["longest"] == 64
    assert both["min"]["longest"] is None and len(both["min"]["models"]) == 2


def test_saved_programs_are_shown_and_stepped_through(tmp_path):
    """One of the library, and one of one's own, whose answer the page cannot know."""
    save(compile_program("odd-even-sort", 5), tmp_path / "sorter")
    own = PCOC(2, 1, (posattn.compiler.Known(-3, 3),), (), name="nothing")
    save(compile_program(own), tmp_path / "own")
    content = of_runs([tmp_path / "sorter", tmp_path / "own"])
    sorter, nothing, *_ = content.programs
    assert (sorter["name"], sorter["machines"], sorter["label"]) == ("odd-even-sort", 5, str(tmp_path / "sorter"))
    assert [subject["task"] for subject in content.subjects] == ["sort"]
    assert (nothing["name"], nothing["ranges"]) == ("nothing", [[-3.0, 3.0, False]])
    assert np.abs(nothing["examples"]).max() <= 3
    assert content.networks[nothing["network"]].described["compiled"]


def test_token_runs_and_graph_networks_are_refused(tmp_path, posattn_command):
    small = posattn.ModelConfig(n=9, layers=1, embed=4, width=4, heads=1)
    posattn.train("khop", small, out=tmp_path / "letters", **SHORT)
    code, shown, error = posattn_command("explore", tmp_path / "letters")
    assert (code, shown) == (2, "") and "reads tokens (khop)" in error and error.count("\n") == 1
    posattn.train("sum", posattn.GraphConfig(n=3), out=tmp_path / "graph", **SHORT)
    with pytest.raises(UsageError, match="the explorer shows"):
        of_runs([tmp_path / "graph"])
    code, _, error = posattn_command("explore", tmp_path / "nowhere")
    assert code == 2 and "there is no folder" in error


def test_command_writes_a_page_of_own_runs(trained, posattn_command, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "reportable", lambda store: iter(()))
    code, shown, error = posattn_command("explore", trained, "--out", "here/page.html")
    assert (code, error) == (0, "") and "published medians alone" in shown
    page = told((tmp_path / "here/page.html").read_text())
    assert [subject["task"] for subject in page["subjects"]] == ["sum", "min"]
    assert "fix-scale" in [figure["name"] for figure in page["results"]]
    for wrong, said in ((["--out", "page.txt"], "must end in .html"), (["--store", "none"], "holds no rows")):
        code, _, error = posattn_command("explore", trained, *wrong)
        assert code == 2 and said in error
    assert "members is 2; only runs" in posattn_command("explore", "--members", 2)[2]


def test_a_page_has_no_more_networks_than_fit(trained, monkeypatch):
    everything = of_runs([trained])
    full = sum(len(packed.weights) for packed in everything.networks)
    monkeypatch.setattr(command, "LARGEST", full * 0.9)
    content = command.fitting([trained], None)
    assert [len(subject["models"][0]["choices"]) for subject in content.subjects] == [1, 1]
    assert "the first network of each run" in content.note
    assert command.fitting([trained], 2).note == ""  # who says how many gets them, or a sentence
    with pytest.raises(UsageError, match=r"the page would have 9\.\d MB; it may have 8"):
        document(Content(networks=[Packed({}, "0" * 9_000_000)]), [], "a test")


def test_json_is_inert_and_whole():
    """No character begins a tag, and the browser's reading gives back what was written."""
    name = "</script><!-- & \u2028 {{WEIGHTS}} 'ü\""
    content = Content(subjects=[{"task": name, "lengths": [1], "models": [], "title": name}])
    html = document(content, [], name)
    inside = html.split('id="content">')[1].split("</script>")[0]
    assert not set("<>&\u2028") & set(inside)
    assert told(html)["subjects"][0]["title"] == told(html)["source"] == name
    with pytest.raises(ValueError, match="JSON"):
        document(Content(subjects=[{"task": float("nan")}]), [], "")


def test_weights_have_no_character_that_html_reads(lively):
    content = Content()
    content.add(lively(torch.float32, n=8))
    assert not set("<>&\"'\\") & set(content.networks[0].weights)


@pytest.fixture
def one_experiment(monkeypatch):
    """Only fix-scale, with two tasks at smoke scale, in a store of made-up rows, and one that is computed."""
    chosen = {name: EXPERIMENTS[name] for name in ("fix-scale", "ood-probability")}
    monkeypatch.setattr(engine, "EXPERIMENTS", chosen)
    monkeypatch.setattr(results, "EXPERIMENTS", chosen)
    return chosen["fix-scale"]


def test_figures_hold_medians_bands_and_published_lines(one_experiment, tmp_path):
    """Rows of known values through the store: their median and percentiles come out, beside the published ones."""
    store, measure = Store(tmp_path), one_experiment.measure.at("smoke")
    for spec in Store(tmp_path / "plan").lay_out(one_experiment.cells("smoke"), None, "fp32", 50):
        made = [
            {"run": spec.identity(k), "task": member.task, "arch": spec.model.arch, "split": "test", "scale": scale}
            | {"metric": "mse", "value": scale * (1 + member.seed), "status": "ok"}
            for k, member in enumerate(spec.members)
            for scale in measure.factors
        ]
        store.write(spec, measure, pd.DataFrame(made), {"status": ["ok"] * len(spec.members)})
    store.computed("ood-probability-smoke", lambda: pd.DataFrame({"value": [1.0]}))  # level lines, which are not drawn
    drawn = results.figures_of(store)
    assert [(figure["name"], figure["scale"]) for figure in drawn] == [("fix-scale", "smoke")]
    panels = drawn[0]["panels"]
    own = next(line for line in panels[0]["series"] if line["label"] == "standard")
    seeds = 1 + np.arange(len({cell.member.seed for cell in one_experiment.cells("smoke")}))
    low, middle, high = np.quantile(seeds, [0.1, 0.5, 0.9])
    ours = np.array([[1.0, middle, low, high], [3.0, 3 * middle, 3 * low, 3 * high]])
    assert np.array(own["points"]) == pytest.approx(ours)
    known = figures.published()
    known = known[(known["experiment"] == "fix-scale") & (known["split"] == "test")]
    known = known[(known["task"] == "sum") & (known["arch"] == "standard")]
    assert [point[:2] for point in own["published"]] == known.sort_values("scale")[
        ["scale", "median"]
    ].to_numpy().tolist()
    assert panels[0]["ylog"] and own["colour"] == figures.STYLES["standard"][0]
