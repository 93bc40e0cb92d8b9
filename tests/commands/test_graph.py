"""posattn graph: pictures and edges of programs, folders and networks of the package."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import posattn
from posattn.training import network_for

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "FOLDER is 'nothing', which does not exist; a PROGRAM must be one of prefix-sum, "),
        (("prefix-sum", "--out", "picture.png"), "must end in .svg"),
        (("prefix-sum", "--machines", 100), "room for 64"),
        ((), "no network is named; give a program, benes or a folder, or "),
        (("benes", "--pretrained", "sum"), "two networks are named; give a program, benes or a folder, or "),
        (("--pretrained", "heap"), "task is 'heap'"),
        (("--pretrained", "sum", "--arch", "standard"), "depends on the input"),
        (("--pretrained", "sum", "--by", "colour"), "by is 'colour'"),
        (("--pretrained", "sum", "--samples", 1), "samples is 1"),
    ],
)
def test_bad_input_is_one_sentence(posattn_command, arguments, message):
    code, _, error = posattn_command("graph", *arguments)
    assert code == 2 and message in error and error.count("\n") == 1


@pytest.mark.parametrize(("name", "asked", "drawn"), [("benes", 6, 8), ("self-attention", 2, 4)])
def test_a_graph_of_more_machines_than_asked_for_says_so(posattn_command, name, asked, drawn):
    code, shown, _ = posattn_command("graph", name, "--machines", asked, "--json", "own.json")
    assert code == 0 and shown.startswith(f"{name} for {asked} has {drawn} machines, and all are drawn.\n")
    assert len(json.loads(Path("own.json").read_text())["nodes"]) == drawn
    code, shown, _ = posattn_command("graph", "prefix-sum", "--machines", asked)
    assert code == 0 and "are drawn" not in shown


def test_the_picture_is_svg(posattn_command, sorter):
    for what, machines in (("prefix-sum", 4), ("benes", 8), (sorter, 5)):
        code, shown, _ = posattn_command("graph", what, "--machines", machines, "--out", "picture.svg")
        assert code == 0 and "picture.svg" in shown
        assert ElementTree.parse("picture.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_trained_network_is_drawn_where_its_attention_is_strong(posattn_command):
    posattn.train("sum", posattn.ModelConfig(3, embed=8, width=8), samples=20, epochs=1, batch=10, out="run")
    asked = ("graph", "run", "--least", 0.01, "--samples", 50, "--out", "picture.svg", "--json", "edges.json")
    code, shown, _ = posattn_command(*asked)
    assert code == 0 and "picture.svg" in shown and "silenced" in shown
    told = json.loads(Path("edges.json").read_text())
    weights = posattn.load("run").model().attention()
    listed = {
        (layer["layer"], edge["head"], edge["to"], edge["from"]): edge
        for layer in told["layers"]
        for edge in layer["edges"]
    }
    assert len(listed) == int((weights >= 0.01).sum()) and told["nodes"] == ["1", "2", "3", "s"]
    assert listed[2, 1, "s", "3"]["weight"] == pytest.approx(weights[1, 0, 3, 2].item())
    assert told["settings"]["least"] == 0.01 and told["cuts"][0]["edges"] == 2 * 2 * 4 * 3
    assert posattn_command("graph", "run", "--least", 0)[0] == 2


def test_packaged_networks_are_drawn_by_attention_or_effect(posattn_command):
    asked = ("graph", "--pretrained", "maxsub", "--arch", "scale-exact", "--samples", 200, "--json", "edges.json")
    pictures = []
    for by in ("attention", "effect"):
        code, shown, _ = posattn_command(*asked, "--by", by)
        assert code == 0 and "maxsub, scale-exact" in shown
        pictures.append(Path("graph.svg").read_text())
    assert pictures[0] != pictures[1]
    told = json.loads(Path("edges.json").read_text())
    largest = max(edge["effect"] for layer in told["layers"] for edge in layer["edges"])
    assert all(edge["effect"] >= 0.299 * largest for layer in told["layers"] for edge in layer["edges"])
    assert told["layers"][0]["shares"]["scan"]["share"] > 3 * told["layers"][0]["shares"]["scan"]["uniform"]


def test_of_a_network_on_tokens_the_attention_is_drawn(posattn_command):
    config = posattn.TokenConfig(**(posattn.task("mixed-min").NETWORK | {"layers": 1, "embed": 8, "width": 8}))
    posattn.train("mixed-min", config, samples=20, epochs=1, batch=10, out="prompts")
    code, shown, _ = posattn_command("graph", "prompts", "--least", 0.04)
    assert code == 0 and "butterfly" in shown and "silenced" not in shown
    assert "a task on tokens" in posattn_command("graph", "prompts", "--by", "effect")[2]
    config = network_for("mixed-min", layout="characters", layers=1, embed=8, width=8)
    posattn.train("mixed-min", config, samples=20, epochs=1, batch=10, out="characters")
    told = "posattn: the network has 102 positions, the scratchpad included; a picture has room for 64.\n"
    assert posattn_command("graph", "characters") == (2, "", told)
