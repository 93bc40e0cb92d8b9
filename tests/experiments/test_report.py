"""Pages and tables: what they say of runs, that a page needs nothing else, and that text stays text."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from trials import grid_changed, small

from posattn.experiments import EXPERIMENTS, Lines, Store, View, report, reproduce, series
from posattn.training.recipe import recipe

RESULTS = Path(__file__).parents[2] / "results"


class Assets(HTMLParser):
    """Whatever a browser would fetch for a page."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        own = [value for name, value in attributes if name in ("src", "href", "srcset", "data", "poster")]
        self.fetched += [value for value in own if not value.startswith("#")]  # a place on the page itself


def test_a_page_is_self_contained_counts_the_runs_that_are_there_and_names_its_ensembles(tmp_path, engine):
    figure = Lines(columns=("samples",))
    two = replace(small(archs=("positional", "standard"), seeds=5, figure=figure), reference="Figure 4")
    two, store = grid_changed(two, samples=(20, 40)), Store(tmp_path / "store")
    reproduce(two, "paper", tmp_path / "out", store, engine, only=["standard"])
    outcome = reproduce(two, "paper", tmp_path / "out", store, engine, runs=2)
    page, assets = outcome.page.read_text(encoding="utf-8"), Assets()
    assets.feed(page)
    assert len(assets.fetched) == 1 and assets.fetched[0].startswith("data:image/png;base64,")
    assert not {"script", "link", "iframe"} & set(assets.tags) and not re.search(r"https?://|@import|url\(", page)
    assert all(f"<td>{value:.2e}</td>" in page for value in outcome.table["median"])
    assert "<p>Figure 4 of the paper, at paper scale. " in page
    assert "<td>14 of 20: 2, 5 a point</td>" in page  # positional, standard; two numbers of lists each
    assert all(f"{arch}, n = 2, 2 layers, one-hot encodings, width 64, {lists} lists</td>" in page
               for arch in ("positional", "standard") for lists in (20, 40))  # fmt: skip


def test_a_page_says_which_tasks_only_paper_scale_has_and_counts_one_in_the_singular(tmp_path, engine):
    two = grid_changed(small(tasks=("sum", "min"), seeds=1), layers=(1,), recipe=recipe(epochs=1, batch=20))
    said = {size: report.fewer_tasks(two, size) for size in ("smoke", "paper")}
    assert said == {"smoke": "This scale has sum alone; paper scale also has min.", "paper": ""}
    page = reproduce(two, "smoke", tmp_path / "out", Store(tmp_path / "store"), engine).page.read_text()
    assert f"at smoke scale. {said['smoke']} Models are" in page
    assert re.search(r"<td>\d+ lists, 1 epoch, batches", page) and ", 1 layer, one-hot" in page


def test_a_page_speaks_of_sequences_where_these_were_trained_on(tmp_path, engine):
    figure = Lines(views=(View("", metric="accuracy"),), columns=("hops",))
    letters = grid_changed(small(tasks=("khop",), n=6, seeds=1, figure=figure), series=series("standard", embed=8, width=8))
    page = reproduce(letters, "paper", tmp_path / "out", Store(tmp_path / "store"), engine).page.read_text()
    assert "<td>sequence length n</td>" in page and "<td>40 sequences, 2 epochs" in page
    assert "width 8, 40 sequences</td>" in page and " lists" not in page and "letters a-e (scale 1)" in page


def test_names_are_text_on_a_page_and_in_tables():
    """A label of HTML is shown as it is, and LaTeX gets its signs escaped."""
    label = "<b>50%_x</b> & 'y'"
    row = {"task": "sum", "arch": "standard", "series": label, "split": "test", "scale": 1.0, "metric": "mse"}
    shown = report.Shown(Lines(), pd.DataFrame([row | {"value": 2.0, "status": "ok"}]))
    page = report.page(label, [report.section(small(), "paper", shown, [], [])]).decode()
    assert "<b>" not in page and page.count("&lt;b&gt;50%_x&lt;/b&gt; &amp; &#39;y&#39;") == 2  # title, table
    (title, table) = shown.tables[0]
    assert report._markdown(title, report._cells(table)).splitlines()[-2:] == ["| 1 | 2.00e+00 |", ""]
    assert r"scale & <b>50\%\_x</b> \& 'y' \\" in report._latex(title, report._cells(table))


SIGNS = "a\nb\\c&d%e$f#g_h{i}j~k^l|m<n>o*p`q[r]s"


def test_every_sign_of_a_label_is_escaped_in_tables():
    latex = r"a b\textbackslash c\&d\%e\$f\#g\_h\{i\}j\textasciitilde k\textasciicircum l|m<n>o*p`q[r]s"
    table = report._latex(SIGNS, [["x", SIGNS], [SIGNS, "1"]]).splitlines()
    assert table[0] == f"% {' '.join(SIGNS.split())}" and len(table) == 9
    assert table[3] == rf"x & {latex} \\" and table[5] == rf"{latex} & 1 \\"
    markdown = r"a b\\c\&d%e$f\#g_h{i}j~k^l\|m\<n\>o\*p\`q\[r\]s"
    lines = report._markdown(SIGNS, [["x", SIGNS], [SIGNS, "_1_"]]).splitlines()
    assert lines == [
        f"### {markdown}", "", f"| x | {markdown} |", "| --- | --- |", rf"| {markdown} | \_1\_ |", ""
    ]  # fmt: skip


def test_a_browser_loads_and_runs_nothing_but_what_is_on_a_page():
    row = {"task": "sum", "arch": "standard", "series": "x", "split": "test", "scale": 1.0, "metric": "mse"}
    shown = report.Shown(Lines(), pd.DataFrame([row | {"value": 2.0, "status": "ok"}]))
    page = report.page("any", [report.section(small(), "paper", shown, [b"picture"], [])], contents=True).decode()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*)">', page)
    (style,) = re.findall(r"<style>(.*)</style>", page, flags=re.DOTALL)
    checksum = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy).split("; "))
    assert rules == {
        "default-src": "'none'", "style-src": f"'sha256-{checksum}'", "img-src": "data:", "base-uri": "'none'",
        "form-action": "'none'",
    }  # fmt: skip
    assert page.count("<details>") and "<details open>" not in page and "<nav>" in page  # contents, and numbers folded away
    assert "table {" in style and " style=" not in page and page.index(policy) < page.index("<style>")


DRAWN = sorted(set(RESULTS.glob("*/experiment.json")) - {RESULTS / "diagrams" / "experiment.json"})  # which are pictures alone


@pytest.mark.parametrize("about", DRAWN, ids=lambda about: about.parent.name)
def test_stored_tables_are_those_of_the_stored_rows(about):
    told = json.loads(about.read_text())
    experiment = EXPERIMENTS[told["experiment"]]
    rows, _ = experiment.held(told["scale"], Store(RESULTS / "store")).read()
    assert report.Shown(experiment.figure, rows).drawn_before(about.parent / experiment.name)
