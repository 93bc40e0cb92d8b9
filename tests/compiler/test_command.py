"""compile and graph: sizes, agreement, folders that other commands take, pictures; and errors in one sentence."""

import json
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiler import PCOC, PROGRAMS, Known, Round, compile_program
from posattn.compiler.graph import (
    attention_graph,
    benes_graph,
    graph_of,
    leading_to,
    network_graph,
    program_graph,
    svg,
)
from posattn.compiler.graph_report import compiled_report, folder_report, pretrained_report, trained_report
from posattn.compiler.pcoc import IDLE
from posattn.compiler.saved import CompiledRun, save
from posattn.export import to_torch
from posattn.training.files import Damaged


@pytest.fixture(scope="module")
def sorter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled") / "sorter"
    save(compile_program("bitonic-sort", 5), folder)
    return folder


def test_compile_shows_sizes_and_that_all_levels_agree(posattn_command):
    code, shown, error = posattn_command("compile", "prefix-min", "--machines", 4, "--check", "--save", "here")
    assert (code, error) == (0, "")
    assert "R + 1 = 3" in shown and shown.count("yes") == 3 and "NO" not in shown
    loaded = posattn.load("here")
    assert isinstance(loaded, CompiledRun) and len(loaded) == 1
    assert loaded.model()(torch.tensor([3.0, 1.0, 2.0, 0.0])).tolist() == [3, 1, 1, 0]


def test_compile_with_softmax_says_how_far_answers_move(posattn_command):
    code, shown, _ = posattn_command("compile", "prefix-sum", "--machines", 4, "--epsilon", 0.01, "--bound", 10)
    assert code == 0 and "no answer moves by more than 0.01" in shown


def test_the_list_of_programs(posattn_command):
    code, shown, _ = posattn_command("compile", "--list")
    assert code == 0 and all(name in shown for name in PROGRAMS)


def test_evaluate_and_predict_take_a_compiled_program(posattn_command, sorter):
    code, shown, _ = posattn_command("evaluate", sorter, "--scales", "1,1000", "--samples", 50)
    assert code == 0 and "compiled bitonic-sort" in shown
    table = posattn.load(sorter).evaluate([1, 1000], samples=50)
    assert table["mse"].tolist() == [0, 0] and (table["rounding"] == 1).all()
    code, shown, _ = posattn_command("predict", sorter, "5,-1,4,2,3")
    assert code == 0 and shown.count("+0.0000") == 5 and "-1.0000" in shown


def test_a_saved_network_is_the_network(sorter):
    x = torch.randn(20, 5, dtype=torch.float64)
    run = posattn.load(sorter)
    assert (run.predict(x)[0] == compile_program("bitonic-sort", 5).model(x)).all()
    assert (run.truth(x) == x.sort(dim=-1).values).all()


def test_programs_of_several_inputs_are_saved_too(posattn_command):
    posattn_command("compile", "word-count", "--machines", 2, "--save", "counter", "--values", "lean")
    code, shown, _ = posattn_command("predict", "counter", "1,2.5,1,4")
    assert code == 0 and "6.5000" in shown and "1 2.5" in shown
    code, _, error = posattn_command("evaluate", "counter")
    assert code == 2 and "solves none of the tasks" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compile", "heap-sort"), "program is 'heap-sort'; it must be one of prefix-sum"),
        (("compile", "prefix-sum", "--machines", 0), "machines is 0"),
        (("compile", "prefix-sum", "--epsilon", -1), "epsilon is -1"),
        (("compile", "prefix-sum", "--check", "--samples", 0), "samples is 0"),
        (("graph", "nothing"), "FOLDER is 'nothing', which does not exist; a PROGRAM must be one of prefix-sum, "),
        (("graph", "prefix-sum", "--out", "picture.png"), "must end in .svg"),
        (("graph", "prefix-sum", "--machines", 100), "room for 64"),
        (("graph",), "a graph is drawn of one thing"),
        (("graph", "benes", "--pretrained", "sum"), "a graph is drawn of one thing"),
        (("graph", "--pretrained", "heap"), "task is 'heap'"),
        (("graph", "--pretrained", "sum", "--arch", "standard"), "depends on the input"),
        (("graph", "--pretrained", "sum", "--by", "colour"), "by is 'colour'"),
        (("graph", "--pretrained", "sum", "--samples", 1), "samples is 1"),
    ],
)
def test_bad_input_is_one_sentence(posattn_command, arguments, message):
    code, _, error = posattn_command(*arguments)
    assert code == 2 and message in error and error.count("\n") == 1


def test_wrong_lists_for_a_compiled_program(posattn_command, sorter):
    assert "takes 5" in posattn_command("predict", sorter, "1,2")[2]
    assert "compiled for -1e+06 to 1e+06" in posattn_command("predict", sorter, "1,2,3,4,1e9")[2]
    assert "member 0 only" in posattn_command("predict", sorter, "1,2,3,4,5", "--member", 1)[2]


def test_damaged_folders_are_refused(sorter, tmp_path):
    save(compile_program("prefix-sum", 2), tmp_path / "own")
    (tmp_path / "own" / "program.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(Damaged, match="does not describe a compiled program"):
        posattn.load(tmp_path / "own")
    save(compile_program("prefix-sum", 2), tmp_path / "other")
    weights = tmp_path / "other" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(Damaged, match="checksum"):
        posattn.load(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a trained run"):
        save(compile_program("prefix-sum", 2), tmp_path / "run")


# --- pictures ------------------------------------------------------------------------------------------------------------


def test_prefix_sum_is_drawn_as_in_figure_7():
    graph = program_graph(PROGRAMS["prefix-sum"].build(4, 1.0))
    others = {(r, j, i) for r, j, i in graph.arrows if i != j}
    assert others == {(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 2), (1, 1, 3)}
    assert len(graph.arrows) - len(others) == 2 * 4


def test_in_orange_is_the_tree_of_the_sum_that_is_not_cumulative():
    tree = leading_to(program_graph(PROGRAMS["tree-sum"].build(4, 1.0)), 3)
    assert tree == {(0, 0, 1), (0, 1, 1), (0, 2, 3), (0, 3, 3), (1, 1, 3), (1, 3, 3)}
    assert svg(graph_of("prefix-sum", 4)).count("#D55E00") == len(tree)


def test_odd_even_sort_is_drawn_as_in_figure_7():
    graph = program_graph(PROGRAMS["odd-even-sort"].build(4, 1.0))
    pairs = {r: {frozenset((j, i)) for q, j, i in graph.arrows if q == r and i != j} for r in range(3)}
    assert (
        pairs[0] == {frozenset((0, 1)), frozenset((2, 3))} and pairs[1] == {frozenset((1, 2))} and pairs[2] == pairs[0]
    )


@pytest.mark.parametrize(
    ("name", "asked", "drawn"), [("benes", 6, 8), ("bitonic-sort", 5, 8), ("self-attention", 2, 4)]
)
def test_a_graph_of_more_machines_than_asked_for_says_so(posattn_command, name, asked, drawn):
    code, shown, _ = posattn_command("graph", name, "--machines", asked, "--json", "own.json")
    assert code == 0 and shown.startswith(f"{name} for {asked} has {drawn} machines, and all are drawn.\n")
    assert len(json.loads(Path("own.json").read_text())["nodes"]) == drawn
    code, shown, _ = posattn_command("graph", "prefix-sum", "--machines", asked)
    assert code == 0 and "are drawn" not in shown


def test_a_bound_that_a_program_does_not_read_is_named(posattn_command):
    taken = {
        "list-ranking": "0 to 2",
        "khop": "0 to 25, and from 0 to 3",
        "self-attention": "-1 to 1, and from -1 to 1",
    }
    for name in (*taken, "prefix-sum", "word-count"):
        code, shown, _ = posattn_command("compile", name, "--machines", 2, "--bound", 37, "--values", "lean")
        said = [line for line in shown.splitlines() if line.startswith("The bound")]
        own = [f"The bound of 37 does not matter: {name} takes numbers from {taken[name]}."] if name in taken else []
        assert code == 0 and said == own
    assert "does not matter" not in posattn_command("compile", "list-ranking", "--machines", 2)[1]


def test_the_benes_network_is_drawn_as_in_figure_8():
    graph = benes_graph(8)
    assert (graph.rounds, len(graph.names), len(graph.arrows)) == (5, 8, 5 * 16)


@pytest.mark.parametrize("name", ["prefix-sum", "bitonic-sort", "tree-min"])
def test_the_network_communicates_as_the_program_does(name):
    compiled = compile_program(name, 5, epsilon=0.1, bound=10.0)
    assert network_graph(compiled.model, name).arrows == program_graph(compiled.program).arrows


def test_the_picture_is_svg_with_an_arrow_for_every_message(posattn_command, sorter):
    for what, machines in (("prefix-sum", 4), ("benes", 8), (sorter, 5)):
        code, shown, _ = posattn_command("graph", what, "--machines", machines, "--out", "picture.svg")
        assert code == 0 and "picture.svg" in shown
        assert ElementTree.parse("picture.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    graph = program_graph(PROGRAMS["prefix-sum"].build(4, 1.0))
    picture = svg(graph)
    assert picture.count("<line") == len(graph.arrows) == 13
    assert picture.count("<circle") == 4 * 3


def test_a_trained_network_is_drawn_where_its_attention_is_strong(posattn_command, lively):
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
    model = lively(n=3, heads=2, embed=8, width=8)
    strong = attention_graph(model.attention(), "lively", 0.4)
    expected = {(l, j, i) for l, h, i, j in (model.attention() >= 0.4).nonzero().tolist()}
    assert strong.arrows == expected and 0 < len(expected) < 2 * 16


@pytest.mark.parametrize("name", ["prefix-min", "odd-even-sort", "word-count"])
def test_of_a_compiled_folder_the_report_has_the_edges_of_the_programs_oracle(name, tmp_path):
    compiled = compile_program(name, 4, bound=10.0)
    save(compiled, tmp_path / "own")
    report = folder_report(str(tmp_path / "own"))
    oracle = {
        (r, position + 1, str(j + 1), str(i + 1))
        for r, table in enumerate(compiled.program.sources, start=1)
        for (i, position), j in np.ndenumerate(table)
        if j != IDLE
    }
    listed = [(edge["layer"], edge["head"], edge["from"], edge["to"]) for edge in report.edges]
    assert set(listed) == oracle and len(listed) == len(oracle)
    assert all(edge["weight"] == 1 for edge in report.edges)


def test_a_graph_does_not_overlook_what_it_is_asked_for(tmp_path):
    save(compile_program("prefix-min", 4), tmp_path / "own")
    compiled, trained = partial(folder_report, str(tmp_path / "own")), partial(pretrained_report, "sum", samples=2)
    for report, own in ((compiled, 4), (trained, 8)):
        assert report(machines=own).graph.arrows == report().graph.arrows
        with pytest.raises(UsageError, match=rf"^machines is 5; this network is for lists of {own}\.$"):
            report(machines=5)
    with pytest.raises(UsageError, match=r"^by is 'effect'; of a looped network only the attention is known\.$"):
        pretrained_report("sum", "looped", by="effect")


def test_a_compiled_scan_is_a_scan_and_a_tree_a_tree():
    for name, pattern in (("prefix-sum", "scan"), ("tree-sum", "tree"), ("bitonic-sort", "butterfly")):
        model = compile_program(name, 8, epsilon=0.01, bound=4.0).model
        for own in compiled_report(model, name).layers:
            assert own is not None and own.patterns[pattern][0] == pytest.approx(1)


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


def test_networks_that_died_or_diverged_have_a_report_or_a_sentence(lively):
    model = lively(n=3, embed=8, width=8)
    with torch.no_grad():
        model.layers[0].W_1.weight.zero_()
        model.layers[0].W_1.bias.fill_(-1.0)
    dead = trained_report(model.float(), "sum", "dead", by="effect", samples=20)
    assert dead.edges == [] and dead.layers == [None, None] and (dead.patterns()["scan"] == "-").all()
    assert dead.cuts[0].allowed["the error doubles"] == dead.cuts[0].edges
    with torch.no_grad():
        model.decoder.bias.fill_(float("nan"))
        model.decoder.weight.fill_(float("nan"))
    with pytest.raises(UsageError, match="not finite"):
        trained_report(model, "sum", "diverged", samples=20)


def test_of_a_network_on_tokens_the_attention_is_drawn(posattn_command):
    config = posattn.ModelConfig(**(posattn.task("mixed-min").NETWORK | {"layers": 1, "embed": 8, "width": 8}))
    posattn.train("mixed-min", config, samples=20, epochs=1, batch=10, out="prompts")
    code, shown, _ = posattn_command("graph", "prompts", "--least", 0.04)
    assert code == 0 and "butterfly" in shown and "silenced" not in shown
    assert "a task on tokens" in posattn_command("graph", "prompts", "--by", "effect")[2]


def test_vectors_integers_and_small_bounds_are_exported(tmp_path, unchecked):
    """Machine i ends with the sum of its two inputs and its left neighbour's integer."""
    rounds = (Round(lambda i: [(i, (0, 1)), *([(i - 1, (2,))] if i else [])], lambda m: [m[0] + m[1], m[2], 0]),)
    inputs = (Known(0, 3, True), Known(-0.5, 0.5))
    program = PCOC(3, 3, inputs, rounds, (0, 1), start=lambda m: [m[0], m[1], m[0]])
    assert to_torch(compile_program(program).model, tmp_path / "own.pt2") < 1e-6
    found = torch.export.load(tmp_path / "own.pt2").module()(torch.tensor([[[1.0, 0.5], [3.0, -0.5], [2.0, 0.25]]]))
    assert found.tolist() == [[[1.5, 0], [2.5, 1], [2.25, 3]]]


@pytest.mark.parametrize("name", ["word-count", "list-ranking", "prefix-sum"])
def test_an_export_is_checked_with_inputs_that_the_program_answers(name):
    run = CompiledRun(name, compile_program(name, 3, bound=0.25, values="lean").model)
    x = run.examples()
    torch.testing.assert_close(run.predict(x)[0], run.truth(x))
    assert x.shape == (100, 3, 2)[: 2 + (name == "word-count")]


def test_exporting_leaves_a_network_in_float64(tmp_path, unchecked):
    model = posattn.compile("prefix-sum", 3, bound=10.0)
    assert to_torch(model, tmp_path / "sum.pt2") < 1e-5
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_what_float32_cannot_hold_is_not_exported(tmp_path, unchecked):
    """(x + 1) - x, where x is so large that float32 does not see the 1."""
    rounds = (Round(lambda i: [(i, (0, 1))], lambda m: [m[0] - m[1], 0]),)
    program = PCOC(2, 2, (Known(1e11, 1e12),), rounds, start=lambda m: [m[0] + 1, m[0]])
    with pytest.raises(UsageError, match=r"in float32 the compiled program errs by .* smaller bound"):
        to_torch(compile_program(program).model, tmp_path / "one.pt2")


def test_lists_that_a_network_refuses_are_no_check(tmp_path, unchecked):
    with pytest.raises(UsageError, match="lists that it refuses, so give others: input 0 has numbers from 2 to 2"):
        to_torch(posattn.compile("prefix-sum", 3, bound=1.0), tmp_path / "sum.pt2", lists=torch.full((4, 3), 2.0))


def test_a_compiled_khop_is_evaluated_and_asked_like_a_trained_one(posattn_command):
    posattn_command("compile", "khop", "--machines", 2, "--direct", "--values", "lean", "--save", "hops")
    code, shown, error = posattn_command("evaluate", "hops", "--samples", 50)
    assert (code, error) == (0, "") and "compiled khop" in shown and "accuracy_found" in shown
    table = posattn.load("hops").evaluate(samples=50)
    assert set(table["scale"]) == {1, 2} and (table["accuracy"] == 1).all() and (table["cross_entropy"] == 0).all()
    code, shown, _ = posattn_command("predict", "hops", "0fg")  # letters out of distribution
    assert code == 0 and "model   fg" in shown and "right  2 of 2" in shown
    assert "the sequence has 4 tokens; this compiled program takes 3." in posattn_command("predict", "hops", "0fgf")[2]
    assert "member 0 only" in posattn_command("predict", "hops", "0fg", "--member", 1)[2]
    with pytest.raises(UsageError, match="no lists of numbers"):
        posattn.load("hops").evaluate_shifts()


def test_a_compiled_program_is_exported(posattn_command, unchecked):
    posattn_command("compile", "prefix-min", "--machines", 3, "--bound", 5, "--save", "least")
    code, shown, _ = posattn_command("export", "least", "--torch", "least.pt2")
    assert code == 0 and "least.pt2" in shown and "within its bounds" in shown
    program = torch.export.load("least.pt2").module()
    torch.testing.assert_close(
        program(torch.tensor([[3.0, 5.0, -2.0]])), torch.tensor([[3.0, 3.0, -2.0]]), rtol=0, atol=1e-4
    )


def test_a_folder_of_another_program_is_refused(posattn_command, tmp_path):
    assert posattn_command("compile", "prefix-sum", "--machines", 2, "--save", "own")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    code, _, told = posattn_command("compile", "prefix-min", "--machines", 2, "--save", "own")
    assert code == 2 and "own holds prefix-sum, compiled otherwise; give another folder." in told
    assert before == {path: path.read_bytes() for path in (tmp_path / "own").iterdir()}
