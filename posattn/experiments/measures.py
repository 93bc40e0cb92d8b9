"""What is measured of a trained ensemble: a function from the run to result rows, with a name for its settings."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import pandas as pd

from posattn.errors import choice
from posattn.runs import AnyRun
from posattn.tasks import SHIFTS
from posattn.training.finetune import fine_tune
from posattn.training.run import trained


class Measure(Protocol):
    def at(self, scale: str) -> "Measure":
        """The measure at one of the scales of experiments."""
        ...

    def key(self) -> dict[str, Any]:
        """What determines the rows beside the run."""
        ...

    def rows(self, run: AnyRun) -> pd.DataFrame:
        """One row a member, condition and metric, with the columns of ``AnyRun.rows``."""
        ...


@dataclass(frozen=True)
class Scales:
    """Errors and accuracies on fresh test lists at every scale of the numbers, and on training lists if ``train``."""

    factors: tuple[float, ...] = tuple(range(1, 11))
    samples: int = 1000
    train: bool = False

    def at(self, scale: str) -> "Scales":
        if scale == "smoke":
            ends = (self.factors[0], self.factors[min(2, len(self.factors) - 1)])
            return replace(self, factors=tuple(dict.fromkeys(ends)), samples=50)
        return self

    def key(self) -> dict[str, Any]:
        return {"kind": "scales"} | asdict(self) | {"factors": [float(factor) for factor in self.factors]}

    def rows(self, run: AnyRun) -> pd.DataFrame:
        tables = [run.rows(run.evaluate(self.factors, self.samples))]
        if self.train:
            seen = min(self.samples, trained(run).spec.recipe.samples)
            tables.append(run.rows(run.evaluate([1], seen, "train"), split="train"))
        return pd.concat(tables, ignore_index=True)


def holds(key: dict[str, Any], measure: Measure) -> bool:
    """Whether rows measured with the settings ``key`` have all that ``measure`` asks for: scales have those of fewer scales."""
    own = measure.key()
    if key == own or not key.get("kind") == own.get("kind") == "scales":
        return key == own
    if key.keys() != own.keys():
        return False
    same = key["samples"] == own["samples"] and key["train"] >= own["train"]
    return bool(same and set(own["factors"]) <= set(key["factors"]))


def asked_for(rows: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Of rows that hold a measure, its own."""
    if not isinstance(measure, Scales):
        return rows
    training = rows["split"] == "train"
    return rows[training & measure.train | ~training & rows["scale"].isin(measure.factors)]


@dataclass(frozen=True)
class Shifts:
    """Errors and closeness on fresh lists from each distribution, the training one for reference."""

    names: tuple[str, ...] = tuple(SHIFTS)
    samples: int = 1000

    def __post_init__(self) -> None:
        for name in self.names:
            choice("distribution", name, SHIFTS)

    def at(self, scale: str) -> "Shifts":
        return replace(self, samples=50) if scale == "smoke" else self

    def key(self) -> dict[str, Any]:
        return {"kind": "shifts"} | asdict(self) | {"names": list(self.names)}

    def rows(self, run: AnyRun) -> pd.DataFrame:
        table = run.evaluate_shifts(self.names, self.samples)
        domain = ["id" if name == "training" else "ood" for name in table["distribution"]]
        about, metrics = ["member", "scale", "distribution", "domain"], ["mse", "relative", "closeness"]
        return run.described(table.assign(domain=domain).melt(about, metrics, "metric", "value"))


@dataclass(frozen=True)
class Lengths:
    """Squared errors relative to the mean square of the answers, on fresh lists of every length and scale.

    ``samples`` lists of up to 64 numbers; of longer ones as many numbers, and ``least`` lists at least. Column n is the length
    tested, ``trained_n`` the longest trained on.
    """

    lengths: tuple[int, ...] = tuple(2**k for k in range(1, 11))
    scales: tuple[float, ...] = (1.0, 10.0)
    samples: int = 1000
    least: int = 100

    _SHORT = 64

    def at(self, scale: str) -> "Lengths":
        if scale == "smoke":
            return replace(self, lengths=self.lengths[:3], samples=20, least=5)
        return replace(self, lengths=self.lengths[:8]) if scale == "quick" else self

    def key(self) -> dict[str, Any]:
        return {"kind": "lengths"} | {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    def count(self, n: int) -> int:
        """Lists of n."""
        return max(min(self.least, self.samples), self.samples * self._SHORT // max(n, self._SHORT))

    def rows(self, run: AnyRun) -> pd.DataFrame:
        parts = [run.evaluate_lengths([n], self.scales, self.count(n)) for n in self.lengths]
        table, longest = pd.concat(parts, ignore_index=True), run.config.n
        domain = ["id" if c <= 1 and n <= longest else "ood" for c, n in zip(table["scale"], table["n"], strict=True)]
        values = table.assign(domain=domain, trained_n=longest)
        about = ["member", "n", "scale", "domain", "trained_n"]
        return run.described(values.melt(about, ["mse", "relative_square"], "metric", "value"))


@dataclass(frozen=True)
class FineTuned:
    """Table 1: relative errors in distribution, at another scale, and there after fine-tuning the V matrices on it.

    The column ``stage`` says which; values are squared errors over scale squared.
    """

    scale: float = 10.0
    epochs: int = 20
    samples: int = 1000

    STAGES = ("in distribution", "out of it", "after fine-tuning")

    def at(self, scale: str) -> "FineTuned":
        return replace(self, epochs=2, samples=50) if scale == "smoke" else self

    def key(self) -> dict[str, Any]:
        return {"kind": "fine-tuned"} | asdict(self)

    def rows(self, run: AnyRun) -> pd.DataFrame:
        tuned = fine_tune(trained(run), self.scale, self.epochs)
        tables = []
        for stage, tested, scale in zip(self.STAGES, (run, run, tuned), (1.0, self.scale, self.scale), strict=True):
            table = tested.rows(tested.evaluate([scale], self.samples))
            tables.append(table[table["metric"] == "mse_over_c2"].assign(stage=stage))
        return pd.concat(tables, ignore_index=True)
