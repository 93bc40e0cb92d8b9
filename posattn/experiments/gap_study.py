"""Theorem 6.1: the generalization gap of trained networks, measured, beside the bounds on it."""

import math
from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posattn.errors import counted
from posattn.experiments.figures import Lines, add_legend
from posattn.experiments.measures import Measure
from posattn.experiments.styles import looks
from posattn.guarantees import network_bound, network_of
from posattn.model import ARCHITECTURES
from posattn.runs import AnyRun
from posattn.tasks import task
from posattn.theory.bound import ATTENTION
from posattn.theory.matrices import Network
from posattn.training.run import trained


@dataclass(frozen=True)
class Gaps(Measure):
    """The gap of trained networks between fresh and training lists, beside the bound on it.

    Rows: ``gap``, |risk - empirical risk| of the squared error cut off at ``cap``, and that ``capped risk``; ``positional
    bound`` and ``self-attention bound`` for the network's norms; and for each the power of t, ``... power``, by which it grows
    when W_Q and W_K grow by t.
    """

    fresh: int = 50_000  # lists that stand for the distribution
    cap: float = 1.0
    delta: float = 0.05
    t: float = 1000.0

    KIND, SMOKE = "gaps", {"fresh": 500}

    def rows(self, run: AnyRun) -> pd.DataFrame:
        found, m = [], trained(run).spec.recipe.samples
        for index, member in enumerate(trained(run).best_starts):
            risks = []  # on fresh lists, and on the training lists
            for count, split in ((self.fresh, "test"), (m, "train")):
                x, y = task(member.task).sample(count, n=run.config.n, seed=member.seed, split=split)
                out = torch.cat([run.answer(part, index).cpu() for part in x.split(5000)])
                risks.append(float((out - y).double().square().clamp(max=self.cap).mean()))
            own = {"gap": abs(risks[0] - risks[1]), "capped risk": risks[0]}
            network = network_of(run.model(index))
            for kind in ATTENTION:
                own |= {f"{kind} {name}": value for name, value in self._bound(network, kind, m).items()}
            found += [{"member": index, "scale": 1.0, "metric": name, "value": value} for name, value in own.items()]
        return run.described(pd.DataFrame(found), split="test")

    def _bound(self, network: Network, kind: str, m: int) -> dict[str, float]:
        """The bound, and the power of t by which it grows: M = W_Q W_Kᵀ grows by t²."""
        larger = replace(network, layers=tuple(replace(layer, M=self.t**2 * layer.M) for layer in network.layers))
        here, scaled = (network_bound(each, m, kind, self.delta, self.cap) for each in (network, larger))
        return {"bound": here.gap, "power": (scaled.log_cover - here.log_cover) / (2 * math.log(self.t))}


@dataclass(frozen=True)
class GapPanels(Lines):
    """Three panels per task: gap and bounds against lists, against layers, and the bounds' powers of t.

    Its medians are by task, layers and number of lists; views and columns are those of the tables.
    """

    def draw(self, rows: pd.DataFrame, medians: pd.DataFrame) -> dict[str, Figure]:
        tasks, archs = list(dict.fromkeys(rows["task"])), dict(zip(rows["series"], rows["arch"], strict=True))
        size = (15.0, 0.6 + 4.0 * len(tasks))
        figure, panels = plt.subplots(len(tasks), 3, figsize=size, squeeze=False, layout="constrained")
        for (by_lists, by_layers, powers), name in zip(panels, tasks, strict=True):
            own, title = medians[medians["task"] == name], task(name).title
            most, depths = _most_lists(own), sorted(set(own["layers"]))
            deepest, largest = own[own["layers"] == depths[-1]], own[own["samples"] == most]
            _lines(by_lists, deepest, "samples", archs, measured="gap", bound="bound")
            by_lists.set(xscale="log", yscale="log", xlabel="training lists m")
            by_lists.set_ylabel("|risk - empirical risk|, and bounds on it")
            by_lists.set_title(f"{title}: {counted(depths[-1], 'layer', 'g')}", fontsize="medium")
            _lines(by_layers, largest, "layers", archs, measured="gap", bound="bound")
            by_layers.set(yscale="log", xlabel="layers L")
            by_layers.set_title(f"{title}: {counted(most, 'list', 'g')}", fontsize="medium")
            _lines(powers, largest, "layers", archs, measured="", bound="power")
            rising, level = [2 * depth for depth in depths], [2 for _ in depths]
            _most(powers, depths, rising, "p = 2L", "self-attention bound of L layers", "#444444")
            _most(powers, depths, level, "p = 2", "positional bound of any depth", "#999999")
            powers.set(xlabel="layers L", ylabel="power p of t", ylim=(0, 2.2 * depths[-1]))
            powers.set_title("bounds grow by t^p when W_Q and W_K grow by t", fontsize="medium")
            for axes in (by_layers, powers):
                axes.set_xticks(depths)
        add_legend(figure, [panels[0][0], panels[0][2]])
        return {"": figure}


def _most(axes: Axes, depths: list[int], powers: list[int], name: str, of: str, colour: str) -> None:
    """The largest power that theory allows, by depth, with its name at the deepest, within the panel."""
    axes.plot(depths, powers, color=colour, linewidth=0.8, label=f"{name}: the most for the {of}")
    end = (depths[-1], powers[-1])
    axes.annotate(name, end, xytext=(-12, 1), textcoords="offset points", ha="right", va="bottom", color=colour)


def _most_lists(medians: pd.DataFrame) -> int:
    """The largest number of lists at which every series has every depth; where there is none, the largest."""
    points = medians[["samples", "series", "layers"]].drop_duplicates()
    held, lines = points.groupby("samples").size(), len(points[["series", "layers"]].drop_duplicates())
    return int(max(held.index[held == lines], default=held.index.max()))


def _lines(axes: Axes, medians: pd.DataFrame, x: str, archs: dict[str, str], measured: str, bound: str) -> None:
    """Draws per series the metric ``measured``, if there is one, the bound of its own attention, and that of the other kind."""
    for label, arch in archs.items():
        kind, other = ATTENTION if ARCHITECTURES[arch].attends == "position" else ATTENTION[::-1]
        shown = {
            f"{label}: measured": (measured, "-"),
            f"{label}: {kind} bound, its own": (f"{kind} {bound}", "--"),
            f"{label}: {other} bound for the same norms": (f"{other} {bound}", ":"),
        }
        colour, marker, _ = looks(list(archs))[label]
        for name, (metric, line) in shown.items():
            own = medians[(medians["series"] == label) & (medians["metric"] == metric)].sort_values(x)
            if len(own):
                axes.fill_between(own[x], own["p10"], own["p90"], color=colour, alpha=0.15, linewidth=0)
                axes.plot(own[x], own["median"], line, color=colour, marker=marker, markersize=4, label=name)
    axes.grid(alpha=0.25)
