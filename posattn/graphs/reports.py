"""A communication graph with its numbers: what ``posattn graph`` draws, prints and writes as JSON.

In a program or a compiled network every edge is a message. A trained network has edges of every weight. Those of at least
``least`` are drawn and listed; the report (how a layer resembles a scan or a tree, how many edges can be cut) counts all.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from posattn.compiled_run import CompiledRun
from posattn.compiler.library import PROGRAMS
from posattn.devices import require_room
from posattn.errors import UsageError, choice, meant, path_of, positive, whole
from posattn.graphs.communication import Cut, Likeness, cuts, effects, graph_weights, likeness
from posattn.graphs.pictures import (
    Graph,
    attention_graph,
    check_size,
    graph_of,
    least_strength,
    network_edges,
    network_graph,
    numbered,
)
from posattn.looped.looped_model import LoopedTransformer
from posattn.looped.offsets import edges as edges_of
from posattn.model import Transformer
from posattn.names import BY, MACHINES
from posattn.pretrained import pretrained
from posattn.runs import load
from posattn.tasks import TASKS, sample_lists


@dataclass(frozen=True)
class Report:
    """A graph and its numbers. ``edges`` have layer, from, to and weight, and in networks head; ``cuts`` are of trained ones.

    ``step`` is what tables call a layer; a loop has no scratchpad.
    """

    graph: Graph
    edges: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    layers: list[Likeness | None] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    step: str = "layer"

    def as_json(self) -> dict[str, Any]:
        by_layer: list[list[dict[str, Any]]] = [[] for _ in range(self.graph.rounds)]
        for edge in self.edges:
            by_layer[edge["layer"] - 1].append({key: value for key, value in edge.items() if key != "layer"})
        patterns = [None if own is None else _likeness(own) for own in self.layers] or [None] * self.graph.rounds
        return {
            "title": self.graph.title,
            "settings": self.settings,
            "nodes": list(self.graph.names),
            "layers": [
                {"layer": number, "edges": edges, "shares": shares}
                for number, (edges, shares) in enumerate(zip(by_layer, patterns, strict=True), start=1)
            ],
            "cuts": [asdict(cut) for cut in self.cuts],
        }

    def patterns(self) -> pd.DataFrame:
        """One row per layer: each pattern's share with the best offset, and in brackets the share in a uniform layer."""
        rows, places = [], ("earlier", "later") + (("scratchpad",) if self.step == "layer" else ())
        for number, own in enumerate(self.layers, start=1):
            shares = {self.step: number, **dict.fromkeys((*places, "scan", "tree", "butterfly"), "-")}
            if own is not None:
                shares |= {name: f"{getattr(own, name):.2f}" for name in places}
                for name, (share, offset) in own.patterns.items():
                    shares[name] = f"{share:.2f} by {offset} ({own.uniform[name]:.2f})"
            rows.append(shares)
        return pd.DataFrame(rows)

    def cutting(self) -> pd.DataFrame:
        """One row per way of cutting: how many edges can be cut until the error reaches each limit."""
        return pd.DataFrame(
            {"cut": cut.how, "edges": cut.edges, "error": cut.error}
            | {f"until {name}": count for name, count in cut.allowed.items()}
            for cut in self.cuts
        )


def _likeness(own: Likeness) -> dict[str, Any]:
    shares = {"earlier": own.earlier, "later": own.later, "scratchpad": own.scratchpad}
    return shares | {
        name: {"share": share, "offset": offset, "uniform": own.uniform[name]}
        for name, (share, offset) in own.patterns.items()
    }


def program_report(name: str, machines: int) -> Report:
    """The report of a program of the library, or of ``benes``."""
    check_size(machines)
    graph = graph_of(name, machines)
    edges = [(r, 0, j, i, 1.0) for r, j, i in sorted(graph.arrows)]
    return _message_report(graph, edges, {"program": name, "machines": machines})


def report_of(
    what: str,
    member: int = 0,
    least: float = 0.3,
    by: str = "attention",
    samples: int = 1000,
    machines: int | None = None,
) -> Report:
    """The report of a program of the library, of ``benes``, or of the trained run or compiled program in a folder.

    A looped network is drawn for lists of ``machines`` numbers.
    """
    if not path_of("FOLDER", what).exists():
        if ".py:" not in what and what not in (named := (*PROGRAMS, "benes")):
            missing = f"FOLDER is {meant(what, named)}, which does not exist"
            raise UsageError(f"{missing}; a PROGRAM must be one of {', '.join(named)}.")
        return program_report(what, MACHINES if machines is None else machines)
    run = load(what)
    if isinstance(run, CompiledRun):
        network = run.model(member)
        assert isinstance(network, Transformer)
        _check_own(machines, network)
        return compiled_report(network, run.program)
    model, name = run.model(member), run.members[member].task
    report = _network_report(model, name, f"{name} by {what}", least, by, samples, machines)
    return replace(report, settings={"folder": what, "member": member, **report.settings})


def pretrained_report(
    name: str,
    arch: str = "positional",
    least: float = 0.3,
    by: str = "attention",
    samples: int = 1000,
    machines: int | None = None,
) -> Report:
    """The report of a network that comes with the package."""
    title = f"{name}, {arch}, with the package"
    return _network_report(pretrained(name, arch), name, title, least, by, samples, machines)


def _network_report(
    model: torch.nn.Module, name: str, title: str, least: float, by: str, samples: int, machines: int | None
) -> Report:
    if isinstance(model, LoopedTransformer):
        if choice("by", by, BY) == "effect":
            raise UsageError("by is 'effect'; of a looped network only the attention is known.")
        return looped_report(model, title, least, whole("machines", MACHINES if machines is None else machines))
    _check_own(machines, model)
    return trained_report(model, name, title, least, by, samples)


def _check_own(machines: int | None, model: torch.nn.Module) -> None:
    if isinstance(model, Transformer) and machines is not None and whole("machines", machines) != model.config.n:
        raise UsageError(f"machines is {machines}; this network is for lists of {model.config.n}.")


def compiled_report(model: Transformer, program: str) -> Report:
    """The report of a compiled network, from its weights alone; its layers are rounds of the program."""
    settings = {"compiled": program, "machines": model.config.n, "hardmax": model.config.hardmax}
    return _message_report(network_graph(model, program), network_edges(model), settings, model.config.heads)


def trained_report(
    model: torch.nn.Module, name: str, title: str, least: float = 0.3, by: str = "attention", samples: int = 1000
) -> Report:
    """The report of a trained network. ``least`` is an attention weight, or a share of the largest effect.

    Networks that read tokens are reported by attention only.
    """
    _check_share(least)
    choice("by", by, BY)
    weights = graph_weights(model)
    assert isinstance(model, Transformer)
    settings = {"task": name, "arch": model.config.arch, "n": model.config.n, "by": by, "least": least}
    if model.config.reads != "none":
        if by == "effect":
            raise UsageError(f"by is 'effect'; {name} is a task on tokens, of which only the attention is known.")
        graph = attention_graph(weights, title, least)
        return Report(graph, _listed(graph, weights, weights, None, least), settings, _layers(weights, model.config.n))
    # What effects keep of every list: values and what was heard, of all layers.
    kept = 8 * model.config.layers * model.config.positions * model.config.embed
    require_room(
        f"samples is {whole('samples', samples, 2)}; the effects on so many lists", kept * samples, model.P.device
    )
    drawn: dict[str, Any] = {"n": model.config.n, "split": "test", "device": model.P.device}
    known = TASKS.get(name)  # None for somebody's own, whose right answers are not there to compare with
    x = sample_lists(samples, **drawn) if known is None else known.sample(samples, **drawn)[0]
    effect = effects(model, x)
    if not bool(effect.isfinite().all()):
        raise UsageError("the network's answers are not finite; what it communicates has no effect to measure.")
    strength = weights if by == "attention" else effect / effect.max().clamp(min=1e-30)  # a dead network has only 0
    graph = attention_graph(strength, title, least, by)
    return Report(
        graph,
        _listed(graph, strength, weights, effect, least),
        {**settings, "lists": samples},
        _layers(effect, model.config.n),
        [] if known is None else cuts(model, x, known.target(x), effect),
    )


def looped_report(model: LoopedTransformer, title: str, least: float, machines: int) -> Report:
    """The report of a looped network, with loops for layers; attention to the sink or beyond the list is no edge."""
    _check_share(least)
    check_size(machines)
    loops = edges_of(model.layer.attention, machines, least)
    found = [(r, 0, j, i, weight) for r, own in enumerate(loops) for j, i, weight in own]
    arrows = frozenset((r, j, i) for r, _, j, i, _ in found)
    graph = Graph(title, numbered(machines), len(loops), arrows, step="loop", least=least_strength(least))
    return _message_report(graph, found, {"arch": "looped", "n": machines, "least": least}, step="loop")


def _check_share(least: float) -> None:
    if positive("least", least) > 1:
        raise UsageError(f"least is {least:g}; it must be above 0 and at most 1.")


def _message_report(
    graph: Graph,
    edges: list[tuple[int, int, int, int, float]],
    settings: dict[str, Any],
    heads: int | None = None,
    step: str = "layer",
) -> Report:
    """The report of edges (round, head, sender, receiver, weight) among machines; a network's edges name their head."""
    machines = len(graph.names)
    heard = torch.zeros(graph.rounds, heads or 1, machines, machines, dtype=torch.float64)
    listed = []
    for r, h, j, i, weight in edges:
        heard[r, h, i, j] = weight
        listed.append(_edge(graph, r, j, i, weight, **({} if heads is None else {"head": h + 1})))
    return Report(graph, listed, settings, _layers(heard, machines), step=step)


def _layers(strength: Tensor, n: int) -> list[Likeness | None]:
    return [likeness(layer, n) for layer in strength]


def _listed(
    graph: Graph, strength: Tensor, weights: Tensor, effect: Tensor | None, least: float
) -> list[dict[str, Any]]:
    places: Iterable[list[int]] = (strength >= least).nonzero().tolist()
    edges = []
    for r, h, i, j in places:
        more = {} if effect is None else {"effect": float(effect[r, h, i, j])}
        edges.append(_edge(graph, r, j, i, float(weights[r, h, i, j]), head=h + 1, **more))
    return edges


def _edge(graph: Graph, r: int, j: int, i: int, weight: float, **more: float) -> dict[str, Any]:
    return {"layer": r + 1, **more, "from": graph.names[j], "to": graph.names[i], "weight": weight}
