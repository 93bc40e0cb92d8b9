"""Figures 1, 7 and 8: the two attentions side by side, graphs of parallel programs, a Beneš network.

The package's own objects give the rows: which inputs move the queries, keys and values of a layer (its derivatives), the
attention of trained networks, who hears whom in a program, the edges of the network that routing uses. Pictures are drawn from
the rows. Names of machines and rounds are those of the paper: from 1 on in Figure 7, from 0 in 8.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from posattn.experiments.attention_study import LISTS, entries, show_weights
from posattn.experiments.figures import Lines, View
from posattn.graphs.pictures import Graph, graph_of
from posattn.model import Layer, ModelConfig, Transformer, input_features
from posattn.pretrained import pretrained

Row = dict[str, Any]

ATTENTIONS = {"standard": "self-attention", "positional": "positional attention"}
_FACTORS = (1.0, 3.0)
_LAYER = 1  # whose attention is shown, from 0 on
GRAPHS = {
    "7": (("cumulative sum or minimum", "prefix-sum", 4), ("odd-even sort", "odd-even-sort", 4)),
    "8": (("Beneš network", "benes", 8),),
}


def diagram_rows(size: str) -> pd.DataFrame:
    """Edges of the three figures, attention weights for the first, and messages per round for the others."""
    rows = []
    for arch, title in ATTENTIONS.items():
        rows += [_edge("1", title, 0, *ends) for ends in [*depends(arch), *_FLOW]]
        rows += _maps(arch, title)
    for number, panels in GRAPHS.items():
        for title, name, machines in panels:
            rows += _of_graph(number, title, graph_of(name, machines))
    return pd.DataFrame(rows)


# --- Figure 1 ------------------------------------------------------------------------------------------------------------

# Eq. 1 to 3 from queries, keys and values on, in which the two attentions do not differ.
_FLOW = [
    ("Q", "Mul"), ("K", "Mul"), ("Mul", "softmax"), ("softmax", "A"), ("A", "Mul "), ("V", "Mul "), ("Mul ", "O"),
    ("O", "MLP"), ("X", "MLP"),
]  # fmt: skip


def depends(arch: str) -> list[tuple[str, str]]:
    """Pairs of an input, P or X, and what it moves in a layer with this attention: X itself, queries, keys or values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(ModelConfig(4, arch, encoding_dim=5)).double()
        p, x = (torch.randn(5, width, dtype=torch.float64, requires_grad=True) for width in (5, model.config.embed))
        numbers = torch.randn(4, dtype=torch.float64)
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    attention, positions = layer.attention, torch.arange(5)
    read: dict[str, Tensor] = {}
    for name in "QKV":
        getattr(attention, f"W_{name}").register_forward_hook(lambda *given, name=name: read.update({name: given[-1]}))
    layer(x, p, positions)
    first = input_features(numbers[..., None], p, positions, model.config)
    found = [("P", "X")] if first.requires_grad else []
    for made, value in read.items():
        for given, source in (("P", p), ("X", x)):
            (slope,) = torch.autograd.grad(value.square().sum(), source, retain_graph=True, allow_unused=True)
            if slope is not None and bool(slope.abs().max() > 0):
                found.append((given, made))
    return found


def _maps(arch: str, title: str) -> Iterator[Row]:
    model, numbers = pretrained("sort", arch), torch.tensor(LISTS["Figure 36"])
    for factor in _FACTORS:
        weights = model.attention(factor * numbers)[_LAYER, 0]
        yield from entries(weights, figure="1", series=title, scale=factor)


# What the diagram shows, where, and what it calls it.
_NODES = {
    "P": ((0.6, 0.0), "P"),
    "X": ((3.0, 0.0), r"$X^{(\ell-1)}$"),
    "Q": ((0.0, 1.2), r"$Q^{(\ell)}$"),
    "K": ((1.2, 1.2), r"$K^{(\ell)}$"),
    "V": ((3.0, 1.2), r"$V^{(\ell)}$"),
    "Mul": ((0.6, 2.4), "Mul"),
    "softmax": ((0.6, 3.4), "softmax"),
    "A": ((0.6, 5.2), r"$A^{(\ell)}$"),
    "Mul ": ((2.0, 6.8), "Mul"),
    "O": ((2.0, 7.8), r"$O^{(\ell)}$"),
    "MLP": ((2.0, 8.8), "MLP"),
}


def _draw_attentions(rows: pd.DataFrame) -> Figure:
    figure, panels = plt.subplots(1, len(ATTENTIONS), figsize=(9.6, 8.2), layout="constrained")
    for axes, title in zip(panels, ATTENTIONS.values(), strict=True):
        own = rows[rows["series"] == title]
        axes.set(xlim=(-1.5, 4.2), ylim=(-0.6, 9.4), title=title, aspect="equal")
        axes.axis("off")
        for sender, receiver in own[own["metric"] == "edge"][["from", "to"]].itertuples(index=False):
            _flow(axes, str(sender), str(receiver))
        for name, ((x, y), text) in _NODES.items():
            if name != "A":
                box = {"boxstyle": "round,pad=0.35", "facecolor": "#e8f1fa" if name in "PX" else "white"}
                axes.text(x, y, text, ha="center", va="center", bbox=box)
        _inset_maps(axes, own[own["metric"] == "attention"])
    return figure


def _flow(axes: Axes, sender: str, receiver: str) -> None:
    (x0, y0), (x1, y1) = _NODES[sender][0], _NODES[receiver][0]
    style = {"arrowstyle": "-|>", "color": "#0072B2" if receiver in "QKVX" else "#555", "shrinkA": 12, "shrinkB": 12}
    if (sender, receiver) == ("X", "MLP"):  # around the others
        style["connectionstyle"] = "arc3,rad=0.35"
    if receiver == "X":  # the encodings are appended to the input of the first layer alone
        style["shrinkB"] = 27
        axes.text((x0 + x1) / 2, y0 - 0.25, r"$\ell = 1$", ha="center", va="top", fontsize="small")
    if "A" in (sender, receiver):  # the maps take more room than a word
        y0, y1 = y0 + 0.75 * (sender == "A"), y1 - 0.85 * (receiver == "A")
    axes.annotate("", (x1, y1), (x0, y0), arrowprops=style)


def _inset_maps(axes: Axes, weights: pd.DataFrame) -> None:
    """A for the list and for its multiple, where the diagram says A."""
    x, y = _NODES["A"][0]
    for place, (factor, own) in enumerate(weights.groupby("scale")):
        inset = axes.inset_axes((x - 1.45 + 1.55 * place, y - 0.7, 1.35, 1.35), transform=axes.transData)
        show_weights(inset, own, vmin=0, cmap="Blues")
        inset.set_title(rf"$A^{{(\ell)}}$ of {'' if factor == 1 else f'{factor:g}'}X", fontsize="small", pad=2)


# --- Figures 7 and 8 -----------------------------------------------------------------------------------------------------


def _of_graph(number: str, title: str, graph: Graph) -> Iterator[Row]:
    for r, j, i in sorted(graph.arrows):
        yield _edge(number, title, r + 1, graph.names[j], graph.names[i]) | {"orange": (r, j, i) in graph.orange}
    for r in range(graph.rounds):
        sent = sum(q == r and i != j for q, j, i in graph.arrows)
        yield {"figure": number, "series": title, "round": r + 1, "metric": "messages", "value": sent}


def _edge(figure: str, title: str, r: int, sender: str, receiver: str) -> Row:
    place = {"figure": figure, "series": title, "round": r, "from": sender, "to": receiver}
    return place | {"metric": "edge", "value": 1.0}


def _draw_graphs(rows: pd.DataFrame) -> Figure:
    edges = rows[rows["metric"] == "edge"]
    graphs = {str(title): own for title, own in edges.groupby("series", sort=False)}
    widths = [int(own["round"].max()) + 1 for own in graphs.values()]
    size = (1.0 + 1.15 * sum(widths), 0.8 + 0.75 * edges["to"].nunique())
    figure = plt.figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(graphs), width_ratios=widths, squeeze=False)
    for axes, (title, own) in zip(panels[0], graphs.items(), strict=True):
        _graph_panel(axes, own, title)
    return figure


def _graph_panel(axes: Axes, rows: pd.DataFrame, title: str) -> None:
    names = sorted(set(rows["to"].astype(int)))
    rounds = int(rows["round"].max())
    axes.set(xlim=(-0.4, rounds + 0.4), ylim=(max(names) + 0.5, min(names) - 0.5), title=title)
    axes.axis("off")
    for row in rows.to_dict("records"):
        orange = str(row["orange"]) == "True"  # it has been a file
        style = {"arrowstyle": "-|>", "color": "#D55E00" if orange else "black", "shrinkA": 13, "shrinkB": 13}
        axes.annotate("", (row["round"], int(row["to"])), (row["round"] - 1, int(row["from"])), arrowprops=style)
    for r in range(rounds + 1):
        for name in names:
            text = rf"${name}^{{({r})}}$" if min(names) else f"{name}"  # Figure 8 numbers machines alone
            circle = {"boxstyle": "circle,pad=0.25", "facecolor": "white"}
            axes.text(r, name, text, ha="center", va="center", fontsize="small", bbox=circle)


@dataclass(frozen=True)
class Diagrams(Lines):
    """Figures 1, 7 and 8: the names of the last two end in ``-7`` and ``-8``. The tables hold messages per round."""

    x: str = "round"
    views: tuple[View, ...] = (View("messages between machines", metric="messages"),)
    columns: tuple[str, ...] = ()

    def draw(self, rows: pd.DataFrame, medians: pd.DataFrame) -> dict[str, Figure]:
        of = dict(list(rows.astype({"figure": str}).groupby("figure")))
        return {"": _draw_attentions(of["1"])} | {f"-{number}": _draw_graphs(of[number]) for number in GRAPHS}
