"""Communication as a picture: machines down, rounds from left to right, an arrow for every message (Figures 7 and 8).

What a machine keeps for itself is drawn thin, what it receives from others thick. In scans, orange arrows are those that the
last machine's answer needs: the program that is not cumulative has no others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from torch import nn

from posattn.compiler.benes import size_for
from posattn.compiler.library import PROGRAMS, program
from posattn.compiler.mpc import MPC
from posattn.compiler.mpc_to_pcoc import simulate
from posattn.compiler.pcoc import IDLE, PCOC
from posattn.compiler.saved import CompiledRun, load
from posattn.errors import UsageError, whole
from posattn.model import Layer, Transformer
from posattn.offsets import edges

_LARGEST = 64  # machines beyond which a picture shows nothing
_ACROSS, _DOWN, _RADIUS, _MARGIN = 110, 46, 15, 40


Arrow = tuple[int, int, int]
_TREES = {"prefix-sum": "tree-sum", "prefix-min": "tree-min"}  # what is cumulative, and what is not


@dataclass(frozen=True)
class Graph:
    """Arrows (r, j, i): in round r machine i receives from machine j. ``names`` are the machines', ``orange`` some arrows."""

    title: str
    names: tuple[str, ...]
    rounds: int
    arrows: frozenset[Arrow]
    orange: frozenset[Arrow] = frozenset()


def drawing_of(what: str, machines: int, member: int = 0, least: float = 0.3) -> str:
    """The SVG of a program by name, of ``benes``, or of a network in a folder: ``member`` of a trained run."""
    if Path(what).exists():
        run = load(what)
        if isinstance(run, CompiledRun):
            return svg(network_graph(run.network, run.spec.program))
        title = f"{run.spec.members[member].task} by {what}"
        return svg(attention_graph(run.model(member), title, least, whole("machines", machines)))
    if what == "benes":
        return svg(benes_graph(whole("machines", machines)))
    built = program(what).build(whole("machines", machines), 1.0)
    graph = program_graph(simulate(built) if isinstance(built, MPC) else built)
    if what in _TREES:
        tree = program_graph(PROGRAMS[_TREES[what]].build(machines, 1.0))  # type: ignore[arg-type]
        graph = replace(graph, orange=leading_to(tree, machines - 1) & graph.arrows)
    return svg(graph)


def leading_to(graph: Graph, machine: int) -> frozenset[Arrow]:
    """The arrows on whose way something reaches ``machine`` at the end."""
    wanted, found = {machine}, set()
    for r in reversed(range(graph.rounds)):
        now = {arrow for arrow in graph.arrows if arrow[0] == r and arrow[2] in wanted}
        wanted = {sender for _, sender, _ in now}
        found |= now
    return frozenset(found)


def program_graph(built: PCOC) -> Graph:
    """Who sends to whom in a program, position by position laid over each other."""
    arrows = {
        (r, int(j), i)
        for r, table in enumerate(built.sources)
        for i, row in enumerate(table)
        for j in np.unique(row[row != IDLE])
    }
    return Graph(built.name, _numbers(built.machines), len(built.rounds), frozenset(arrows))


def network_graph(model: Transformer, title: str) -> Graph:
    """The same from the attention of a compiled network: its heads attend to one position each. The sink is left out."""
    arrows = set()
    sink = model.config.positions - 1
    for r, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        for head in layer.attention.weights(model.P).argmax(dim=-1).tolist():
            arrows |= {(r - 1, j, i) for i, j in enumerate(head) if r and sink not in (i, j)}
    return Graph(title, _numbers(sink), len(model.layers) - 1, frozenset(arrows))


def attention_graph(model: nn.Module, title: str, least: float, machines: int = 8) -> Graph:
    """Of a trained positional network: an arrow where a head of the layer gives at least the weight ``least``.

    Layers take the place of rounds, and the scratchpad is the last machine. Of a looped network, loops do, and it is drawn for
    lists of as many numbers as there are ``machines``.
    """
    if not isinstance(model, Transformer):
        raise UsageError(f"the network is a {type(model).__name__}; a graph is drawn of Transformers.")
    if not 0 < least <= 1:
        raise UsageError(f"least is {least:g}; it must be above 0 and at most 1.")
    if model.config.family is not None:
        rounds = edges(model.offset_attention(), machines, least)
        looks = frozenset((r, j, i) for r, found in enumerate(rounds) for j, i, _ in found)
        return Graph(title, _numbers(machines), len(rounds), looks)
    if model.config.design.attends != "position":
        raise UsageError(
            f"the attention of the {model.config.arch} architecture depends on the input; it has no one graph."
        )
    strong = (model.attention() >= least).any(dim=1)
    arrows = frozenset((r, j, i) for r, i, j in strong.nonzero().tolist())
    return Graph(title, (*_numbers(model.config.n), "s"), model.config.layers, arrows)


def benes_graph(machines: int) -> Graph:
    """Figure 8: the Beneš network on the next power of two."""
    network = size_for(machines)
    arrows = {(step - 1, i, j) for step, i, j in network.edges()}
    names = tuple(str(i) for i in range(network.machines))
    return Graph("Beneš network", names, len(network.steps), frozenset(arrows))


def _numbers(machines: int) -> tuple[str, ...]:
    """From 1 on, as the paper's Figure 7 counts."""
    return tuple(str(i + 1) for i in range(machines))


def svg(graph: Graph) -> str:
    count = len(graph.names)
    if count > _LARGEST:
        raise UsageError(f"machines is {count}; a picture has room for {_LARGEST}.")
    width, height = 2 * _MARGIN + _ACROSS * graph.rounds, 2 * _MARGIN + _DOWN * (count - 1) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>',
        f"<title>{escape(graph.title)}: {count} machines, {graph.rounds} rounds</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        *(_arrow(*arrow, arrow in graph.orange) for arrow in sorted(graph.arrows)),
        *_machines(graph),
        *(f'<text x="{_x(r)}" y="{height - 12}" fill="#555">round {r}</text>' for r in range(graph.rounds + 1)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _machines(graph: Graph) -> Iterable[str]:
    for r in range(graph.rounds + 1):
        for i, name in enumerate(graph.names):
            yield f'<circle cx="{_x(r)}" cy="{_y(i)}" r="{_RADIUS}" fill="white" stroke="black"/>'
            yield f'<text x="{_x(r)}" y="{_y(i) + 4}">{escape(name)}</text>'


def _x(r: int) -> int:
    return _MARGIN + _ACROSS * r


def _y(i: int) -> int:
    return _MARGIN + _DOWN * i


def _arrow(r: int, sender: int, receiver: int, orange: bool) -> str:
    across, down = _x(r + 1) - _x(r), _y(receiver) - _y(sender)
    length = (across**2 + down**2) ** 0.5
    dx, dy = _RADIUS * across / length, _RADIUS * down / length
    colour = "#D55E00" if orange else "#999" if sender == receiver else "#0072B2"
    look = f'stroke="{colour}" stroke-width="{1 if sender == receiver else 1.8}"'
    return (
        f'<line x1="{_x(r) + dx:.1f}" y1="{_y(sender) + dy:.1f}" x2="{_x(r + 1) - dx:.1f}" '
        f'y2="{_y(receiver) - dy:.1f}" {look} marker-end="url(#tip)"/>'
    )
