"""Why self-attention fails away from its training range (Appendix F): attention maps, and a test of two hypotheses.

The paper supposes that self-attention does not learn to ignore the numbers, and that layers do not keep the positions that
later layers need. Measured here, for every layer: how far the attention weights move when a list is multiplied by c, and how
often a linear probe still reads the position off the state.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from posattn.errors import UsageError
from posattn.experiments.figures import Lines
from posattn.experiments.measures import Measure
from posattn.model import ModelConfig, Transformer
from posattn.network import NetworkConfig
from posattn.runs import AnyRun
from posattn.tasks import task

# The lists of Figures 36 and 37.
LISTS = {
    "Figure 36": (1.75, 1.25, 0.75, 0.25, -0.25, -0.75, -1.25, -1.75),
    "Figure 37": (2.0, 2.0, -2.0, -2.0, -2.0, -2.0, 2.0, 2.0),
}
_RIDGE = 1e-6  # of the probe, relative to the states' variance


@dataclass(frozen=True)
class AttentionStudy(Measure):
    """What the study measures of a network, layer by layer.

    Rows have the columns ``layer``, ``head``, ``query``, ``key`` and ``list`` where they apply, and these metrics:

    ``attention``: the weights on the figures' lists, for the first seed alone, head 1;
    ``movement``: the total variation distance between the weights on c X and on X, a mean over lists, heads and queries;
    ``spread``: at scale 1, the same distance between the weights on X and their mean over lists: how much A depends on X;
    ``probe``: the share of positions that a linear probe, fitted at scale 1, reads off the state at scale c.
    """

    factors: tuple[float, ...] = tuple(map(float, range(1, 9)))
    samples: int = 500

    KIND, SMOKE = "attention", {"factors": (1.0, 4.0), "samples": 40}

    def __post_init__(self) -> None:
        self._set_factors()

    def check_network(self, label: str, config: NetworkConfig) -> None:
        if not (isinstance(config, ModelConfig) and config.reads == "none"):
            own = "no Transformer of lists of up to n numbers, whose attention this measures"
            raise UsageError(f"the series {label!r} is {own}.")

    def rows(self, run: AnyRun) -> pd.DataFrame:
        found = []
        for index, member in enumerate(run.members):
            model = run.model(index)
            assert isinstance(model, Transformer)
            drawn: dict[str, Any] = {"n": run.config.n, "seed": member.seed, "split": "test", "device": model.P.device}
            x, _ = task(member.task).sample(self.samples, **drawn)
            with torch.no_grad():
                own = [*self._moves(model, x), *self._probes(model, x)]
                if member.seed == 0 and run.config.n == 8:
                    own += self._maps(model)
            found.append(run.described(pd.DataFrame(own).assign(member=index), split="test"))
        return pd.concat(found, ignore_index=True)

    def _maps(self, model: Transformer) -> Iterator[dict[str, Any]]:
        for name, numbers in LISTS.items():
            for factor in self.factors:
                weights = model.attention(factor * torch.tensor(numbers, device=model.P.device))
                for layer, own in enumerate(weights[:, 0], start=1):
                    yield from entries(own, scale=factor, layer=layer, head=1, list=name)

    def _moves(self, model: Transformer, x: Float[Tensor, "lists n"]) -> Iterator[dict[str, Any]]:
        plain = _on(model, x)
        yield from _by_layer("spread", 1.0, _distance(plain, plain.mean(dim=1, keepdim=True)).tolist())
        for factor in self.factors:
            yield from _by_layer("movement", factor, _distance(_on(model, factor * x), plain).tolist())

    def _probes(self, model: Transformer, x: Float[Tensor, "lists n"]) -> Iterator[dict[str, Any]]:
        fitted, fresh = x.chunk(2)
        probes = [_probe(state) for state in model.states(fitted)]
        for factor in self.factors:
            yield from _by_layer("probe", factor, map(_share_read, probes, model.states(factor * fresh)), first=0)


def _by_layer(metric: str, factor: float, values: Iterable[float], first: int = 1) -> Iterator[dict[str, Any]]:
    """A row per layer; of states, which begin before the first layer, the layer is how many a state has passed."""
    for layer, value in enumerate(values, start=first):
        yield {"scale": factor, "metric": metric, "value": value, "layer": layer}


def _on(model: Transformer, x: Float[Tensor, "lists n"]) -> Float[Tensor, "L lists H N N"]:
    """The attention weights on every list; positional ones are repeated for each list."""
    weights = model.attention(x)
    return weights[:, None].expand(-1, len(x), -1, -1, -1) if weights.ndim == 4 else weights


def _distance(a: Float[Tensor, "L lists H N N"], b: Float[Tensor, "L any H N N"]) -> Float[Tensor, " L"]:
    """Total variation: half the sum of absolute differences of two distributions over keys."""
    return 0.5 * (a - b).abs().sum(dim=-1).mean(dim=(1, 2, 3))


def _features(state: Float[Tensor, "lists N d"]) -> tuple[Float[Tensor, "rows d1"], Int64[Tensor, " rows"]]:
    """One row per entry, with a constant, and the entry's position."""
    lists, n, _ = state.shape
    rows = state.double().flatten(0, 1)
    return torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1), torch.arange(n, device=state.device).repeat(lists)


def _probe(state: Float[Tensor, "lists N d"]) -> Float[Tensor, "d1 N"]:
    """Least squares from the state to the one-hot position, with a ridge that only breaks ties."""
    rows, position = _features(state)
    targets = torch.nn.functional.one_hot(position).double()
    gram = rows.mT @ rows
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + ridge, rows.mT @ targets)


def _share_read(probe: Float[Tensor, "d1 N"], state: Float[Tensor, "lists N d"]) -> float:
    rows, position = _features(state)
    return (rows @ probe).argmax(dim=1).eq(position).double().mean().item()


@dataclass(frozen=True)
class AttentionMaps(Lines):
    """Lines, and one more picture per list of the study: its attention weights, as in Figures 36 and 37."""

    def draw(self, rows: pd.DataFrame, medians: pd.DataFrame) -> dict[str, Figure]:
        weights = rows[rows["metric"] == "attention"]
        maps = weights.groupby("list", sort=False) if len(weights) else ()
        return super().draw(rows, medians) | {
            f"-{index}": _draw_maps(own, str(name)) for index, (name, own) in enumerate(maps, start=1)
        }


def _draw_maps(rows: pd.DataFrame, name: str) -> Figure:
    """Series and layers down, scales across."""
    down = list(rows[["series", "layer"]].drop_duplicates().itertuples(index=False, name=None))
    across = sorted(set(rows["scale"]))
    size = (1.0 + 1.3 * len(across), 0.6 + 1.3 * len(down))
    figure, panels = plt.subplots(len(down), len(across), figsize=size, squeeze=False, layout="constrained")
    for panel_row, (label, layer) in zip(panels, down, strict=True):
        for axes, scale in zip(panel_row, across, strict=True):
            own = rows[(rows["series"] == label) & (rows["layer"] == layer) & (rows["scale"] == scale)]
            show_weights(axes, own, vmin=0, vmax=1, cmap="viridis")
        panel_row[0].set_ylabel(f"{label}\nlayer {layer:g}", fontsize="small")
    for axes, scale in zip(panels[0], across, strict=True):
        axes.set_title(f"c = {scale:g}", fontsize="small")
    figure.suptitle(f"{name}: attention weights on c X, queries down, keys across, 0 (dark) to 1", fontsize="medium")
    return figure


def show_weights(axes: Axes, rows: pd.DataFrame, **look: Any) -> None:
    """A as an image, from the rows of its entries: queries down, keys across."""
    axes.imshow(rows.pivot(index="query", columns="key", values="value"), **look)
    axes.set(xticks=[], yticks=[])


def entries(weights: Float[Tensor, "N N"], **place: Any) -> Iterator[dict[str, Any]]:
    """A row per query and key, which count from 1, with the columns ``place`` beside each."""
    for query, row in enumerate(weights.tolist(), start=1):
        for key, value in enumerate(row, start=1):
            yield {**place, "query": query, "key": key, "metric": "attention", "value": value}
