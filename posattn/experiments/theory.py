"""Figures of the theory: what :mod:`posattn.theory` computes, as result rows."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch

from posattn.errors import choice
from posattn.runs import AnyRun
from posattn.tasks import task
from posattn.theory.bound import ATTENTION
from posattn.theory.models import network_bound, network_of
from posattn.theory.network import Network
from posattn.theory.ood import ood_probability
from posattn.training.run import trained

# Appendix E: the lengths and scales of the experiments. c = 1 is in distribution, where the probability is one.
LENGTHS = (2, 4, 8, 16, 32)
FACTORS = tuple(range(2, 11))
_SIMULATED = {"smoke": 2000, "quick": 100_000, "paper": 1_000_000}  # lists


def ood_probability_rows(scale: str) -> pd.DataFrame:
    """Figure 35 and what it leaves out: the bound, its printed form, the exact value and a simulation, for every n and c."""
    samples = _SIMULATED[choice("scale", scale, _SIMULATED)]
    rows = []
    for n in LENGTHS:
        for c in FACTORS:
            found = ood_probability(n, c, samples)
            own = {"n": n, "series": f"n = {n}", "scale": c, "samples": samples, "seed": 0}
            for metric in ("bound", "printed", "exact", "simulated"):
                rows.append(own | {"metric": metric, "value": getattr(found, metric)})
    return computed_rows(rows)


def computed_rows(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Rows with the columns that all results have; those that only runs fill in are empty."""
    filled = {"run": None, "task": "", "arch": "", "split": "test", "domain": "ood", "status": "ok"}
    return pd.DataFrame([filled | row for row in rows])


@dataclass(frozen=True)
class Gaps:
    """The gap of trained networks between fresh and training lists, beside the bound on it.

    Rows: ``gap``, |risk - empirical risk| of the squared error cut off at ``cap``, and that ``capped risk``; ``positional
    bound`` and ``self-attention bound`` for the network's norms; and for each the power of t, ``... power``, by which it grows
    when W_Q and W_K grow by t.
    """

    fresh: int = 50_000  # lists that stand for the distribution
    cap: float = 1.0
    delta: float = 0.05
    t: float = 1000.0

    def at(self, scale: str) -> "Gaps":
        return replace(self, fresh=500) if scale == "smoke" else self

    def key(self) -> dict[str, Any]:
        return {"kind": "gaps"} | asdict(self)

    def rows(self, run: AnyRun) -> pd.DataFrame:
        found, m = [], trained(run).spec.recipe.samples
        for index, start in enumerate(trained(run).best_starts):
            model = run.model(index)
            there, here = self._risks(model, start.task, start.seed, m, run.config.n)
            own = {"gap": abs(there - here), "capped risk": there}
            for kind in ATTENTION:
                own |= {f"{kind} {name}": value for name, value in self._bound(network_of(model), kind, m).items()}
            found += [{"member": index, "scale": 1.0, "metric": name, "value": value} for name, value in own.items()]
        return run.described(pd.DataFrame(found), split="test")

    def _risks(self, model: torch.nn.Module, name: str, seed: int, m: int, n: int) -> list[float]:
        """Of fresh lists and of the training lists."""
        risks = []
        for count, split in ((self.fresh, "test"), (m, "train")):
            x, y = task(name).sample(count, n=n, seed=seed, split=split)
            place = next(model.parameters()).device
            with torch.no_grad():
                out = torch.cat([model(part.to(place)).cpu() for part in x.split(5000)])
            risks.append(float((out - y).double().square().clamp(max=self.cap).mean()))
        return risks

    def _bound(self, network: Network, kind: str, m: int) -> dict[str, float]:
        here, scaled = (
            network_bound(each, m, kind, self.delta, self.cap) for each in (network, scale_attention(network, self.t))
        )
        power = (scaled.log_cover - here.log_cover) / (2 * math.log(self.t))
        return {"bound": here.gap, "power": power}


def scale_attention(network: Network, t: float) -> Network:
    """The network with W_Q and W_K multiplied by t."""
    return replace(network, layers=tuple(replace(layer, M=t**2 * layer.M) for layer in network.layers))
