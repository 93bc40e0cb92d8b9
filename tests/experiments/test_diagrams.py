"""Figures 1, 7 and 8: what they show is true of the networks and programs."""

import pytest
import torch

from posattn.compiler.benes import hamming_neighbour
from posattn.experiments.diagrams import depends, diagram_rows


@pytest.fixture(scope="module")
def rows():
    return diagram_rows("smoke")


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("standard", {("P", "X"), ("X", "Q"), ("X", "K"), ("X", "V")}),
        ("positional", {("P", "Q"), ("P", "K"), ("X", "V")}),
        ("misaligned", {("P", "X"), ("P", "Q"), ("P", "K"), ("X", "V")}),
        ("no-encoding", {("X", "Q"), ("X", "K"), ("X", "V")}),
    ],
)
def test_what_feeds_queries_keys_and_values(arch, expected):
    state = torch.random.get_rng_state()
    assert set(depends(arch)) == expected
    assert torch.equal(torch.random.get_rng_state(), state)


def test_positional_attention_stands_still_and_self_attention_moves(rows):
    maps = rows[rows["metric"] == "attention"].pivot(index=["series", "query", "key"], columns="scale", values="value")
    moved = (maps[1.0] - maps[3.0]).abs().groupby("series").max()
    assert moved["positional attention"] == 0 and moved["self-attention"] > 0.2
    sums = rows[rows["metric"] == "attention"].groupby(["series", "scale", "query"])["value"].sum()
    assert len(sums) == 2 * 2 * 9 and sums.tolist() == pytest.approx([1] * 36, abs=1e-5)


def test_the_graphs_are_those_of_the_paper(rows):
    edges = rows[rows["metric"] == "edge"]
    benes = edges[edges["figure"] == "8"]
    expected = {
        (step, str(i), str(j))
        for step in range(1, 6)
        for i in range(8)
        for j in (i, hamming_neighbour(i, 3 - abs(3 - step), 3))
    }
    assert set(benes[["round", "from", "to"]].itertuples(index=False, name=None)) == expected
    orange = edges[edges["orange"] == True]  # noqa: E712
    assert set(orange["series"]) == {"cumulative sum or minimum"} and len(orange) == 6
    sent = rows[rows["metric"] == "messages"].groupby("series")["value"].sum()
    assert sent.to_dict() == {"cumulative sum or minimum": 5, "odd-even sort": 12, "Beneš network": 40}
