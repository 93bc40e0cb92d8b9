"""A communication graph with its numbers: what ``posattn graph`` draws, prints and writes as JSON.

In a program or a compiled network every edge is a message. A trained network has edges of every weight. Those of at least
``least`` are drawn and listed; the report (how a layer resembles a scan or a tree, how many edges can be cut) counts all.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from posattn.compiled_run import CompiledRun
from posattn.compiler.library import PROGRAMS
from posattn.devices import require_room
from posattn.errors import UsageError, choice, counted, meant, path_of, positive, whole
from posattn.graphs import pictures
from posattn.graphs.communication import PATTERNS, Cut, Likeness, cuts, effects, graph_weights, likeness
from posattn.graphs.pictures import Edge, Graph
from posattn.looped.looped_model import LoopedTransformer
from posattn.looped.offsets import edges as edges_of
from posattn.model import Transformer
from posattn.names import BY, MACHINES
from posattn.runs import load
from posattn.tasks import TASKS, sample_lists


@dataclass(frozen=True)
class Report:
    """A graph and its numbers: what each layer resembles and, of trained networks, which edges can be cut."""

    graph: Graph
    settings: dict[str, Any]
    layers: list[Likeness | None]
    cuts: list[Cut] = field(default_factory=list)

    @property
    def edges(self) -> list[dict[str, Any]]:
        """The edges with layers from 1 on and the names of sender and receiver; what is not known of an edge is left out."""
        found = []
        for edge in self.graph.edges:
            sender, receiver = self.graph.names[edge.sender], self.graph.names[edge.receiver]
            own: dict[str, Any] = {"layer": edge.round + 1, "head": edge.head, "effect": edge.effect}
            own |= {"from": sender, "to": receiver, "weight": edge.weight}
            found.append({name: value for name, value in own.items() if value is not None})
        return found

    def as_json(self) -> dict[str, Any]:
        layers: list[dict[str, Any]] = [
            {"layer": number, "edges": [], "shares": None if own is None else own.as_json()}
            for number, own in enumerate(self.layers, start=1)
        ]
        for edge in self.edges:
            layers[edge.pop("layer") - 1]["edges"].append(edge)
        about = {"title": self.graph.title, "settings": self.settings, "nodes": list(self.graph.names)}
        return about | {"layers": layers, "cuts": [asdict(cut) for cut in self.cuts]}

    def patterns(self) -> pd.DataFrame:
        """One row per layer: each pattern's share with the best offset, and in brackets the share in a uniform layer."""
        looped = self.graph.step == "loop"
        rows, places = [], ("earlier", "later") if looped else ("earlier", "later", "scratchpad")
        for number, own in enumerate(self.layers, start=1):
            shares = {"loop" if looped else "layer": number, **dict.fromkeys((*places, *PATTERNS), "-")}
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
        machines = MACHINES if machines is None else machines
        pictures.check_size(machines)
        return _message_report(pictures.graph_of(what, machines), {"program": what, "machines": machines})
    run = load(what)
    if isinstance(run, CompiledRun):
        run.check_member(member)
        _check_own(machines, run.network)
        return compiled_report(run.network, run.program)
    model = run.model(member)
    name = run.members[member].task
    if name in TASKS:
        run.check_functions([name])
    report = trained_report(model, name, f"{name} by {what}", least, by, samples, machines)
    return replace(report, settings={"folder": what, "member": member, **report.settings})


def compiled_report(model: Transformer, program: str) -> Report:
    """The report of a compiled network, from its weights alone; its layers are rounds of the program."""
    settings = {"compiled": program, "machines": model.config.n, "hardmax": model.config.hardmax}
    return _message_report(pictures.network_graph(model, program), settings)


def trained_report(
    model: torch.nn.Module,
    name: str,
    title: str,
    least: float = 0.3,
    by: str = "attention",
    samples: int = 1000,
    machines: int | None = None,
) -> Report:
    """The report of a trained network. ``least`` is an attention weight, or a share of the largest effect.

    Looped networks, and those that read tokens, are reported by attention only.
    """
    choice("by", by, BY)
    if isinstance(model, LoopedTransformer):
        if by == "effect":
            raise UsageError("by is 'effect'; of a looped network only the attention is known.")
        return looped_report(model, title, least, whole("machines", MACHINES if machines is None else machines))
    _check_own(machines, model)
    _check_share(least)
    weights = graph_weights(model)
    assert isinstance(model, Transformer)
    settings = {"task": name, "arch": model.config.arch, "n": model.config.n, "by": by, "least": least}
    effect, cut = None, list[Cut]()
    if model.config.reads == "none":
        effect, cut = _measured(model, name, samples)
        settings["lists"] = samples
    elif by == "effect":
        raise UsageError(f"by is 'effect'; {name} is a task on tokens, of which only the attention is known.")
    graph = pictures.attention_graph(weights, title, least, by, effect)
    strength = weights if effect is None else effect
    return Report(graph, settings, [likeness(layer, model.config.n) for layer in strength], cut)


def _measured(model: Transformer, name: str, samples: int) -> tuple[Tensor, list[Cut]]:
    """The effects of the edges on fresh lists, and which can be cut."""
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
    return effect, [] if known is None else cuts(model, x, known.target(x), effect)


def looped_report(model: LoopedTransformer, title: str, least: float, machines: int) -> Report:
    """The report of a looped network, with loops for layers; attention to the sink or beyond the list is no edge."""
    _check_share(least)
    pictures.check_size(machines)
    loops = edges_of(model.layer.attention, machines, least)
    edges = tuple(Edge(r, *edge) for r, own in enumerate(loops) for edge in own)
    said = pictures.least_strength(least)
    graph = Graph(title, pictures.numbered(machines), len(loops), edges, step="loop", least=said)
    return _message_report(graph, {"arch": "looped", "n": machines, "least": least})


def _check_own(machines: int | None, model: torch.nn.Module) -> None:
    if isinstance(model, Transformer) and machines is not None and whole("machines", machines) != model.config.n:
        own = f"lists of {model.config.n}" if model.config.reads == "none" else counted(model.config.n, "token")
        raise UsageError(f"machines is {machines}; this network is for {own}.")


def _check_share(least: float) -> None:
    if positive("least", least) > 1:
        raise UsageError(f"least is {least:g}; it must be above 0 and at most 1.")


def _message_report(graph: Graph, settings: dict[str, Any]) -> Report:
    """The report of a graph of messages, from its edges alone."""
    machines = len(graph.names)
    heard = torch.zeros(graph.rounds, 1, machines, machines, dtype=torch.float64)
    for edge in graph.edges:
        heard[edge.round, 0, edge.receiver, edge.sender] += edge.weight
    return Report(graph, settings, [likeness(layer, machines) for layer in heard])
