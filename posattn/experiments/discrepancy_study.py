"""Appendix G as result rows: networks of the appendix's own class learn the minimum, beside the bound on their test error."""

import math
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from posattn import streams
from posattn.errors import counted
from posattn.guarantees import class_model
from posattn.model import Transformer
from posattn.theory.discrepancy import Members, empirical_discrepancy, sample_integers, tree_depth

_BATCH, _PEAK = 200, 0.02  # lists of a step, and the largest learning rate


@dataclass(frozen=True)
class DiscrepancySetting:
    """Lists of n integers on 0..``largest`` in training, on 0..``largest`` + z in testing."""

    n: int
    lists: tuple[int, ...]  # m
    seeds: int
    steps: int
    restarts: int = 32
    largest: int = 3
    z: tuple[int, ...] = (1, 2)
    fresh: int = 10_000  # lists that errors are measured on


# Short lists, whose minimum is not nearly always 0. (The appendix's claim that min and max make it z needs n >= 29.)
_SETTINGS = {
    "smoke": DiscrepancySetting(4, (20, 60), 1, 20, restarts=3, fresh=500),
    "quick": DiscrepancySetting(4, (30, 100, 300, 1000, 3000, 10_000, 100_000), 3, 2000),
    "paper": DiscrepancySetting(8, (30, 100, 300, 1000, 3000, 10_000, 30_000), 5, 10_000, restarts=64),
}


def discrepancy_networks(size: str) -> str:
    """How many networks of the class are trained, in words."""
    setting = _SETTINGS[size]
    count = setting.seeds * len(setting.lists) * setting.restarts
    return f"{counted(count, 'training', ',')} of Appendix G's class of networks"


def discrepancy_rows(size: str) -> pd.DataFrame:
    """Errors of networks of the class that learn the minimum from m lists, beside the parts of the bound on them."""
    setting = _SETTINGS[size]
    rows = []
    for seed in range(setting.seeds):
        for m in setting.lists:
            train = sample_integers(m, setting.n, setting.largest, seed)
            model = class_model(learn_minimum(train, setting.steps, seed, setting.restarts))
            training_error = _absolute_error(model, train)
            for z in setting.z:
                wider = setting.largest + z
                found = empirical_discrepancy(train, sample_integers(m, setting.n, wider, seed, "test"), seed)
                fresh = sample_integers(setting.fresh, setting.n, wider, seed, "fresh")
                values = {
                    "test error of the trained network": _absolute_error(model, fresh),
                    "training error": training_error,
                    "empirical discrepancy": found.largest,
                    "the same of min and max alone": found.min_and_max,
                    "4 (Rademacher terms)": found.terms - found.largest,
                    "bound without its O(1/√m)": training_error + found.terms,
                }
                own = {"samples": m, "seed": seed, "z": z}
                rows += [own | {"series": name, "value": value} for name, value in values.items()]
    network = {"task": "min", "arch": "scale-exact", "n": setting.n, "layers": tree_depth(setting.n), "width": 4}
    return pd.DataFrame(rows).assign(**network, scale=1.0, metric="risk")


def learn_minimum(x: Float[Tensor, "m n"], steps: int, seed: int = 0, restarts: int = 32) -> Members:
    """The network of Appendix G's class that fits the minimum of the lists ``x`` best, of ``restarts`` trained together.

    Networks with four hidden units often get stuck, hence the restarts; the one with the least training error is kept. Adam
    with a cosine schedule lowers the squared error: on |h(x) - min x| most networks stop at the constant 0, the median answer.
    """
    n, generator = x.shape[1], torch.Generator().manual_seed(seed)
    sizes = {(2, n, n): 1.0, (3, 4): 0.8, (4,): 0.6}  # with which answers begin at about the size of the numbers
    drawn = (torch.randn(restarts, tree_depth(n), *shape, generator=generator) for shape in sizes)
    weights = [size * each for size, each in zip(sizes.values(), drawn, strict=True)]
    members = Members(*weights)
    optimiser = torch.optim.Adam([w.requires_grad_() for w in weights], lr=_PEAK)
    answers, batch = x.amin(dim=1), min(_BATCH, len(x))
    picks = (streams.uniform(torch.tensor(streams.stream(seed, "batches")), steps * batch) * len(x)).long()
    for step, pick in enumerate(picks.view(steps, batch), start=1):
        for group in optimiser.param_groups:
            group["lr"] = _PEAK * min(1.0, step / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        (members(x[pick]) - answers[pick]).square().mean(dim=1).sum().backward()
        optimiser.step()
    with torch.no_grad():
        trained = Members(*(w.detach() for w in weights))
        return trained.member(int((trained(x) - answers).abs().mean(dim=1).argmin()))


def _absolute_error(model: Transformer, x: Float[Tensor, "b n"]) -> float:
    """The mean of |h(x) - min x|, h being the last position's output."""
    with torch.no_grad():
        return float((model(x)[:, -1] - x.amin(dim=1)).abs().mean())
