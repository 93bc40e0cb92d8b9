"""Figures of the theory: what :mod:`posattn.theory` computes, as result rows."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from posattn import streams
from posattn.errors import choice
from posattn.model import ModelConfig, Transformer
from posattn.tasks import task
from posattn.theory.bound import ATTENTION, evaluate
from posattn.theory.discrepancy import empirical_discrepancy, sample_integers
from posattn.theory.models import network_of
from posattn.theory.network import ClassNorms, Network
from posattn.theory.ood import ood_probability
from posattn.training import Run

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
class DiscrepancySetting:
    """Appendix G: lists of n integers on 0..``largest`` in training, on 0..``largest`` + z in testing."""

    n: int
    lists: tuple[int, ...]  # m
    seeds: int
    steps: int
    largest: int = 3
    z: tuple[int, ...] = (1, 2)
    fresh: int = 10_000  # lists that errors are measured on


# Short lists, whose minimum is not nearly always 0. (The appendix's claim that min and max make it z needs n >= 29.)
_DISCREPANCY = {
    "smoke": DiscrepancySetting(4, (20, 60), 1, 20, fresh=500),
    "quick": DiscrepancySetting(4, (30, 100, 300, 1000, 3000), 2, 4000),
    "paper": DiscrepancySetting(8, (30, 100, 300, 1000, 3000, 10_000, 30_000), 5, 20_000),
}


def discrepancy_rows(scale: str) -> pd.DataFrame:
    """Errors of networks that learn the minimum from m lists, beside the parts of the bound on their test error."""
    setting = _DISCREPANCY[choice("scale", scale, _DISCREPANCY)]
    rows = []
    for seed in range(setting.seeds):
        for m in setting.lists:
            train = sample_integers(m, setting.n, setting.largest, seed)
            model = learn_minimum(train, setting.steps, seed)
            training_error = _absolute_error(model, train)
            for z in setting.z:
                wider = setting.largest + z
                found = empirical_discrepancy(train, sample_integers(m, setting.n, wider, seed, "test"), seed)
                values = {
                    "test error of the trained network": _absolute_error(
                        model, sample_integers(setting.fresh, setting.n, wider, seed, "fresh")
                    ),
                    "training error": training_error,
                    "empirical discrepancy": found.largest,
                    "the same of min and max alone": found.min_and_max,
                    "4 (Rademacher terms)": found.terms - found.largest,
                    "bound without its O(1/√m)": training_error + found.terms,
                }
                own = {
                    "task": "min",
                    "arch": "scale-exact",
                    "n": setting.n,
                    "samples": m,
                    "seed": seed,
                    "z": z,
                    "scale": 1.0,
                }
                rows += [own | {"series": name, "metric": "risk", "value": value} for name, value in values.items()]
    return computed_rows(rows)


def learn_minimum(
    x: Float[Tensor, "m n"], steps: int, seed: int = 0, batch: int = 200, peak: float = 1.5e-3, width: int = 32
) -> Transformer:
    """A scale-exact network trained on the minimum of the lists ``x`` by Adam with a cosine schedule, on the squared error.

    (On |f(x) - min x| most networks stop at the constant 0, which is the median of the answers.) The lists are integers of
    Appendix G, which the package's tasks do not sample; hence a loop of its own.
    """
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(x.shape[1], "scale-exact", embed=width, width=width))
    weights = list(model.parameters())
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    answers = x.amin(dim=1, keepdim=True)
    picks = (streams.uniform(torch.tensor(streams.stream(seed, "batches")), steps * batch) * len(x)).long()
    for step, pick in enumerate(picks.view(steps, batch), start=1):
        loss = (model(x[pick]) - answers[pick]).square().mean()
        lr = peak * min(1.0, step / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, g, m, v in zip(weights, gradients, first, second, strict=True):
                m.lerp_(g, 0.1)
                v.lerp_(g * g, 0.001)
                w.sub_(lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8))
    return model.eval()


def _absolute_error(model: Transformer, x: Float[Tensor, "b n"]) -> float:
    """The mean of |h(x) - min x|, h being the last position's output."""
    with torch.no_grad():
        return float((model(x)[:, -1] - x.amin(dim=1)).abs().mean())


@dataclass(frozen=True)
class Gaps:
    """The gap of trained networks between fresh and training lists, beside the bound on it.

    Rows: ``gap``, |risk - empirical risk| of the squared error cut off at ``cap``; ``positional bound`` and ``self-attention
    bound`` for the network's norms; and for each the power of t, ``... power``, by which it grows when W_Q and W_K grow by t.
    """

    fresh: int = 50_000  # lists that stand for the distribution
    cap: float = 1.0
    delta: float = 0.05
    t: float = 1000.0

    def at(self, scale: str) -> "Gaps":
        return replace(self, fresh=500) if scale == "smoke" else self

    def key(self) -> dict[str, Any]:
        return {"kind": "gaps"} | asdict(self)

    def rows(self, run: Run) -> pd.DataFrame:
        found = []
        for index, member in enumerate(run.spec.members):
            model, m = run.model(index), run.spec.recipe.samples
            own = {"gap": self._gap(model, member.task, member.seed, m, run.spec.model.n)}
            for kind in ATTENTION:
                own |= {f"{kind} {name}": value for name, value in self._bound(network_of(model), kind, m).items()}
            found += [{"member": index, "scale": 1.0, "metric": name, "value": value} for name, value in own.items()]
        return run.described(pd.DataFrame(found), split="test")

    def _gap(self, model: torch.nn.Module, name: str, seed: int, m: int, n: int) -> float:
        risks = []
        for count, split in ((m, "train"), (self.fresh, "test")):
            x, y = task(name).sample(count, n=n, seed=seed, split=split)
            place = next(model.parameters()).device
            with torch.no_grad():
                out = torch.cat([model(part.to(place)).cpu() for part in x.split(5000)])
            risks.append(float((out - y).double().square().clamp(max=self.cap).mean()))
        return abs(risks[1] - risks[0])

    def _bound(self, network: Network, kind: str, m: int) -> dict[str, float]:
        outputs = len(network.P) - 1
        here, scaled = (
            evaluate(ClassNorms.of(each), m, kind, self.delta, self.cap, outputs)
            for each in (network, scale_attention(network, self.t))
        )
        power = (scaled.log_cover - here.log_cover) / (2 * math.log(self.t))
        return {"bound": here.gap, "power": power}


def scale_attention(network: Network, t: float) -> Network:
    """The network with W_Q and W_K multiplied by t."""
    return replace(network, layers=tuple(replace(layer, M=t**2 * layer.M) for layer in network.layers))
