"""Communication as a picture: machines from top to bottom, rounds from left to right, one arrow per message (Figures 7 and 8).

Arrows from a machine to itself are thin, those between machines thick. In scans, orange arrows are those that the last
machine's answer needs; they are all the arrows of the program that is not cumulative. A network that was trained has positions
for machines, and layers or loops for rounds.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files as resources
from typing import NamedTuple

import jinja2
import numpy as np
from jaxtyping import Float
from torch import Tensor

from posattn.compiler.benes import size_for
from posattn.compiler.library import PROGRAMS, program
from posattn.compiler.mpc_to_pcoc import fixed_communication
from posattn.compiler.pcoc import IDLE, PCOC
from posattn.errors import UsageError, counted, whole
from posattn.model import Layer, Transformer

_LARGEST = 64  # the most machines that a picture can show
_COLOURS = {"own": "#999", "other": "#0072B2", "orange": "#D55E00"}

Arrow = tuple[int, int, int]  # round, sender, receiver
_TREES = {"prefix-sum": "tree-sum", "prefix-min": "tree-min"}  # cumulative programs, and the others


class Edge(NamedTuple):
    """In a round, counted from 0, the receiver hears the sender; of a network, by which head, and with which effect."""

    round: int
    sender: int
    receiver: int
    weight: float = 1.0
    head: int | None = None  # from 1 on
    effect: float | None = None


@dataclass(frozen=True)
class Graph:
    """Who hears whom. ``orange`` are the arrows drawn in that colour.

    ``step`` is what a round is called, and ``least`` says which edges of a trained network are arrows.
    """

    title: str
    names: tuple[str, ...]
    rounds: int
    edges: tuple[Edge, ...]
    orange: frozenset[Arrow] = frozenset()
    step: str = "round"
    least: str = ""

    @cached_property
    def arrows(self) -> frozenset[Arrow]:
        """The edges of all heads."""
        return frozenset(edge[:3] for edge in self.edges)


def graph_of(name: str, machines: int) -> Graph:
    if name == "benes":
        return benes_graph(whole("machines", machines))
    built = program(name).build(whole("machines", machines), 1.0)
    graph = program_graph(fixed_communication(built))
    if name in _TREES:
        tree = program_graph(PROGRAMS[_TREES[name]].build(machines, 1.0))  # type: ignore[arg-type]
        graph = replace(graph, orange=leading_to(tree, machines - 1) & graph.arrows)
    return graph


def leading_to(graph: Graph, machine: int) -> frozenset[Arrow]:
    """The arrows that lie on a path to ``machine`` at the end."""
    wanted, found = {machine}, set()
    for r in reversed(range(graph.rounds)):
        now = {arrow for arrow in graph.arrows if arrow[0] == r and arrow[2] in wanted}
        wanted = {sender for _, sender, _ in now}
        found |= now
    return frozenset(found)


def program_graph(built: PCOC) -> Graph:
    """The graph of a program: an arrow wherever any memory position is sent."""
    edges = [
        Edge(r, int(j), i)
        for r, table in enumerate(built.sources)
        for i, row in enumerate(table)
        for j in np.unique(row[row != IDLE])
    ]
    return Graph(built.name, numbered(built.machines), len(built.rounds), tuple(sorted(edges)))


def network_graph(model: Transformer, title: str) -> Graph:
    """The graph of the program that a network was compiled from, read from its attention: a head attends to one position.

    The first layer, which does not communicate, and the sink are left out.
    """
    sink = model.config.positions - 1
    edges = []
    for r, layer in enumerate(list(model.layers)[1:]):
        assert isinstance(layer, Layer)
        strongest = layer.attention.weights(model.P).max(dim=-1)
        for (h, i), j in np.ndenumerate(strongest.indices.cpu().numpy()):
            if sink not in (i, j):
                edges.append(Edge(r, int(j), i, float(strongest.values[h, i]), h + 1))
    return Graph(title, numbered(sink), len(model.layers) - 1, tuple(edges))


def attention_graph(
    weights: Float[Tensor, "L H N N"],
    title: str,
    least: float,
    by: str = "attention",
    effect: Float[Tensor, "L H N N"] | None = None,
) -> Graph:
    """The graph of a trained positional network: edges with an attention of at least ``least``.

    ``by`` effect, ``least`` is a share of the largest effect. Layers take the place of rounds, and the scratchpad is the last
    machine.
    """
    strength = weights
    if by == "effect" and effect is not None:
        strength = effect / effect.max().clamp(min=1e-30)  # a dead network has only 0
    edges = tuple(
        Edge(r, j, i, weights[r, h, i, j].item(), h + 1, None if effect is None else effect[r, h, i, j].item())
        for r, h, i, j in (strength >= least).nonzero().tolist()
    )
    names = (*numbered(weights.shape[-1] - 1), "s")
    return Graph(title, names, len(weights), edges, step="layer", least=least_strength(least, by))


def least_strength(least: float, by: str = "attention") -> str:
    """What an edge of a trained network needs to be an arrow, in words."""
    return f"attention of at least {least:g}" if by == "attention" else f"at least {least:g} of the largest effect"


def benes_graph(machines: int) -> Graph:
    """Figure 8: the Beneš network on the next power of two."""
    network = size_for(machines)
    edges = sorted(Edge(step - 1, i, j) for step, i, j in network.edges())
    names = tuple(str(i) for i in range(network.machines))
    return Graph("Beneš network", names, len(network.steps), tuple(edges))


def numbered(machines: int) -> tuple[str, ...]:
    return tuple(str(i + 1) for i in range(machines))


def check_size(count: int, step: str = "round") -> None:
    """Raises if so many machines, or positions of a network with layers, do not fit into a picture."""
    if count > _LARGEST:
        found = f"the network has {count} positions, the scratchpad included" if step == "layer" else f"machines is {count}"
        raise UsageError(f"{found}; a picture has room for {_LARGEST}.")


def svg(graph: Graph) -> str:
    """The picture of a graph as SVG, with its title above and a legend below."""
    check_size(len(graph.names), graph.step)
    place = "machine" if graph.step == "round" else "position"
    title = f"{graph.title}: {counted(len(graph.names), place)}, {counted(graph.rounds, graph.step)}"
    text = resources("posattn").joinpath("graphs/graph.svg").read_text(encoding="utf-8")
    template = jinja2.Template(text, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return template.render(graph=graph, title=title, legend=_legend(graph), colours=_COLOURS) + "\n"


def _legend(graph: Graph) -> list[tuple[str, str]]:
    """Lines of the legend: the colour of an arrow, or a letter, and what it stands for."""
    place, hears = ("machine", "receives from") if graph.step == "round" else ("position", "hears")
    lines = [(_COLOURS["other"], f"{hears} another {place}" + (f" ({graph.least})" if graph.least else ""))]
    if any(j == i for _, j, i in graph.arrows):
        lines.append((_COLOURS["own"], "keeps its own" if graph.step == "round" else "hears itself"))
    if graph.orange:
        lines.append((_COLOURS["orange"], "needed for the answer of the last machine"))
    if "s" in graph.names:
        lines.append(("s", "the scratchpad"))
    return lines
