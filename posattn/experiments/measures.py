"""What is measured of a trained ensemble: a function from the run to result rows, with a name for its settings."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import pandas as pd

from posattn.errors import choice
from posattn.tasks import SHIFTS
from posattn.training import Run


class Measure(Protocol):
    def at(self, scale: str) -> "Measure":
        """The measure at one of the scales of experiments."""
        ...

    def key(self) -> dict[str, Any]:
        """What determines the rows beside the run."""
        ...

    def rows(self, run: Run) -> pd.DataFrame:
        """One row a member, condition and metric, with the columns of ``Run.rows``."""
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

    def rows(self, run: Run) -> pd.DataFrame:
        tables = [run.rows(run.evaluate(self.factors, self.samples))]
        if self.train:
            seen = min(self.samples, run.spec.recipe.samples)
            tables.append(run.rows(run.evaluate([1], seen, "train"), split="train"))
        return pd.concat(tables, ignore_index=True)


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

    def rows(self, run: Run) -> pd.DataFrame:
        return run.rows(run.evaluate_shifts(self.names, self.samples))
