"""Graphs with their numbers: a compiled folder has the program's edges, scans are scans, and dead networks have a report."""

from functools import partial

import numpy as np
import pytest
import torch

from posattn import TokenConfig, UsageError, pretrained
from posattn.compiled_run import save
from posattn.compiler import compile_program
from posattn.compiler.pcoc import IDLE
from posattn.graphs.reports import compiled_report, report_of, trained_report

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("name", ["prefix-min", "odd-even-sort", "word-count"])
def test_of_a_compiled_folder_the_report_has_the_edges_of_the_programs_oracle(name, tmp_path):
    compiled = compile_program(name, 4, bound=10.0)
    save(compiled, tmp_path / "own")
    report = report_of(str(tmp_path / "own"))
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
    compiled = partial(report_of, str(tmp_path / "own"))
    trained = partial(trained_report, pretrained("sum"), "sum", "", samples=2)
    for report, own in ((compiled, 4), (trained, 8)):
        assert report(machines=own).graph.arrows == report().graph.arrows
        with pytest.raises(UsageError, match=rf"^machines is 5; this network is for lists of {own}\.$"):
            report(machines=5)
    tokens = trained_report(TokenConfig(6, tokens="letters", causal=True).build(), "khop", "")
    assert len(tokens.graph.names) == 7
    with pytest.raises(UsageError, match=r"^machines is 5; this network is for 6 tokens\.$"):
        trained_report(TokenConfig(6, tokens="letters", causal=True).build(), "khop", "", machines=5)
    with pytest.raises(UsageError, match=r"^by is 'effect'; of a looped network only the attention is known\.$"):
        trained_report(pretrained("sum", "looped"), "sum", "", by="effect")


def test_a_compiled_scan_is_a_scan_and_a_tree_a_tree():
    for name, pattern in (("prefix-sum", "scan"), ("tree-sum", "tree"), ("bitonic-sort", "butterfly")):
        model = compile_program(name, 8, epsilon=0.01, bound=4.0).model
        for own in compiled_report(model, name).layers:
            assert own is not None and own.patterns[pattern][0] == pytest.approx(1)


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
