"""One file of HTML: what it holds, that it holds no more than fits, and that nothing from outside becomes markup."""

import importlib
import json

import pytest
import torch

from posattn import UsageError
from posattn.explorer import document, explore, of_runs, results
from posattn.explorer.content import Content
from posattn.explorer.networks import Packed

pytestmark = pytest.mark.usefixtures("unchecked")
module = importlib.import_module("posattn.explorer.document")  # the package has the function of that name


def told(html):
    """The page's JSON, as the browser reads it."""
    return json.loads(html.split('id="content">')[1].split("</script>")[0])


def test_a_page_of_own_runs(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "held_in", lambda store: iter(()))
    monkeypatch.chdir(tmp_path)
    content, store = explore(tmp_path / "here/page.html", [trained])
    assert store is None and len(content.networks) == 6
    page = told((tmp_path / "here/page.html").read_text())
    assert [subject["task"] for subject in page["subjects"]] == ["sum", "min"]
    assert "fix-scale" in [figure["name"] for figure in page["results"]]
    for given, said in (
        ({"out": tmp_path / "page.txt"}, "must end in .html"),
        ({"store": tmp_path / "none"}, "there is no such folder"),
        ({"store": tmp_path}, "holds no rows"),
        ({"runs": (), "members": 2}, "members is 2; only runs"),
    ):
        with pytest.raises(UsageError, match=said):
            explore(**{"out": tmp_path / "page.html", "runs": [trained]} | given)


def test_a_page_has_no_more_networks_than_fit(trained, monkeypatch):
    everything = of_runs([trained])
    full = sum(len(packed.weights) for packed in everything.networks)
    monkeypatch.setattr(module, "LARGEST", full * 0.9)
    content = module.fitting([trained], None)
    assert [len(subject["models"][0]["choices"]) for subject in content.subjects] == [1, 1]
    assert "the first network of each run" in content.note
    assert module.fitting([trained], 2).note == ""  # who says how many gets them, or a sentence
    monkeypatch.undo()
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
