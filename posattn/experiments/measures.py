"""What is measured of a trained ensemble: a function from the run to result rows, with a name for its settings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import pandas as pd

from posattn.errors import UsageError, choice, positive, some, whole
from posattn.experiments.figures import Lines
from posattn.metrics import row_metrics, scores_of
from posattn.network import NetworkConfig
from posattn.runs import AnyRun
from posattn.tasks import SHIFTS, TASKS, MixedTask
from posattn.training.finetune import fine_tune
from posattn.training.run import trained


@dataclass(frozen=True)
class Measure(ABC):
    """The base of measures. Run, ``KIND`` and fields determine the rows; nothing else does."""

    KIND: ClassVar[str]
    SMOKE: ClassVar[dict[str, Any]] = {}  # what is less at that size

    @abstractmethod
    def rows(self, run: AnyRun) -> pd.DataFrame:
        """One row per member, condition and metric, with the columns of ``Run.rows``."""

    def at(self, size: str) -> "Measure":
        """The measure at one of the sizes of experiments."""
        return replace(self, **self.SMOKE) if size == "smoke" else self

    def key(self) -> dict[str, Any]:
        """The settings, as stores keep them."""
        return {"kind": self.KIND} | {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    def held_by(self, key: dict[str, Any]) -> bool:
        """Whether rows measured with the settings ``key`` have all that this measure asks for."""
        return key == self.key()

    def needed(self) -> "Measure":
        """What must be measured of a run for it to be drawn; the rest is drawn where it is."""
        return self

    def own(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that this measure asks for, out of those that ``held_by`` accepted."""
        return rows

    def _set_factors(self) -> None:
        """Converts the scale factors to floats, as stores keep them; raises unless there are some and all are above 0."""
        given = some("measure.factors", vars(self)["factors"])
        object.__setattr__(self, "factors", tuple(positive("measure.factors", factor) for factor in given))

    def check_figure(self, figure: Lines, task: str, columns: Sequence[str]) -> None:
        """Raises if a figure shows what is not measured. Its networks learn ``task``, and their rows have these columns."""

    def check_network(self, label: str, config: NetworkConfig) -> None:
        """Raises if a series of such networks cannot be measured."""


@dataclass(frozen=True)
class Part:
    """What one table of a measure is made from: the arguments of ``AnyRun.evaluate``, and columns that its rows have beside."""

    scales: Sequence[float]
    samples: int
    split: str = "test"
    domain: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scales(Measure):
    """Errors and accuracies on fresh test lists at every scale of the numbers, and on training lists if ``train``."""

    factors: tuple[float, ...] = tuple(range(1, 11))
    samples: int = 1000
    train: bool = False

    KIND = "scales"

    def __post_init__(self) -> None:
        self._set_factors()
        whole("measure.samples", self.samples)

    def at(self, size: str) -> "Scales":
        if size != "smoke":
            return self
        ends = (self.factors[0], self.factors[min(2, len(self.factors) - 1)])
        return replace(self, factors=tuple(dict.fromkeys(ends)), samples=50)

    def rows(self, run: AnyRun) -> pd.DataFrame:
        tables = []
        for part in self.parts(trained(run).spec.recipe.samples if self.train else 0):
            table = run.evaluate(part.scales, part.samples, part.split, part.domain)
            tables.append(run.rows(table, split=part.split).assign(**part.columns))
        return pd.concat(tables, ignore_index=True)

    def parts(self, lists: int) -> list[Part]:
        """What is measured of networks that were trained on so many lists."""
        training = [Part([1], min(self.samples, lists), "train")] if self.train else []
        return [Part(self.factors, self.samples), *training]

    def held_by(self, key: dict[str, Any]) -> bool:
        """Rows at more scales contain those at fewer."""
        own = self.key()
        if key.keys() != own.keys() or key["kind"] != self.KIND:
            return False
        same = key["samples"] == own["samples"] and key["train"] >= own["train"]
        return bool(same and set(own["factors"]) <= set(key["factors"]))

    def needed(self) -> "Scales":
        return replace(self, train=False)

    def own(self, rows: pd.DataFrame) -> pd.DataFrame:
        training = rows["split"] == "train"
        return rows[training & self.train | ~training & rows["scale"].isin(self.factors)]

    def check_figure(self, figure: Lines, task: str, columns: Sequence[str]) -> None:
        known = (*columns, *scores_of(task).by)
        for view in figure.views:
            if view.where.get("split") == "train" and not self.train:
                raise UsageError("the figure has a panel of training lists; it must measure them, with train = True.")
            if (scale := view.where.get("scale", self.factors[0])) not in self.factors:
                measured = ", ".join(f"{factor:g}" for factor in self.factors)
                raise UsageError(f"the figure has a panel of scale {scale}; the experiment measures {measured}.")
            choice("figure.views.metric", view.metric, row_metrics(task))
            for column in view.where:
                choice("figure.views.where", column, known)
        for place, column in (("x", figure.x), *(("columns", column) for column in figure.columns)):
            choice(f"figure.{place}", column, known)


@dataclass(frozen=True)
class EachShift(Scales):
    """Errors on mixed-type prompts at every scale with words of training, and again with unseen ones.

    Words are identifiers and signs. The column ``words`` says which, so each of the two shifts shows without the other:
    training words at scales above 1, and unseen words at scale 1.
    """

    KIND = "each-shift"
    WORDS = ("training", "unseen")

    def parts(self, lists: int) -> list[Part]:
        _, *training = super().parts(lists)
        seen, unseen = ({"words": words} for words in self.WORDS)
        return [
            Part(self.factors, self.samples, domain="id", columns=seen),
            Part(self.factors, self.samples, domain="ood", columns=unseen | {"domain": "ood"}),
            *(replace(part, columns=seen) for part in training),
        ]

    def check_figure(self, figure: Lines, task: str, columns: Sequence[str]) -> None:
        if not isinstance(TASKS[task], MixedTask):
            raise UsageError(f"measure is EachShift; it is for mixed-type prompts, and {task} has none.")
        super().check_figure(figure, task, (*columns, "words"))


@dataclass(frozen=True)
class Shifts(Measure):
    """Errors and closeness on fresh lists from each distribution, the training one for reference."""

    names: tuple[str, ...] = tuple(SHIFTS)
    samples: int = 1000

    KIND, SMOKE = "shifts", {"samples": 50}

    def __post_init__(self) -> None:
        for name in some("measure.names", self.names):
            choice("distribution", name, SHIFTS)
        whole("measure.samples", self.samples)

    def rows(self, run: AnyRun) -> pd.DataFrame:
        table = run.evaluate_shifts(self.names, self.samples)
        domain = ["id" if name == "training" else "ood" for name in table["distribution"]]
        about, metrics = ["member", "scale", "distribution", "domain"], ["mse", "relative", "closeness"]
        return run.described(table.assign(domain=domain).melt(about, metrics, "metric", "value"))


@dataclass(frozen=True)
class Lengths(Measure):
    """Squared errors relative to the mean square of the answers, on fresh lists of every length and scale.

    Each length up to 64 is tested on ``samples`` lists. Longer lists are fewer, so that together they have as many numbers as
    ``samples`` lists of 64, but at least ``least``. Column n is the tested length, ``trained_n`` the longest trained on.
    """

    lengths: tuple[int, ...] = tuple(2**k for k in range(1, 11))
    scales: tuple[float, ...] = (1.0, 10.0)
    samples: int = 1000
    least: int = 100

    KIND = "lengths"
    _SHORT = 64

    def at(self, size: str) -> "Lengths":
        if size == "smoke":
            return replace(self, lengths=self.lengths[:3], samples=20, least=5)
        return replace(self, lengths=self.lengths[:8]) if size == "quick" else self

    def count(self, n: int) -> int:
        return max(min(self.least, self.samples), self.samples * self._SHORT // max(n, self._SHORT))

    def rows(self, run: AnyRun) -> pd.DataFrame:
        parts = [run.evaluate_lengths([n], self.scales, self.count(n)) for n in self.lengths]
        table, longest = pd.concat(parts, ignore_index=True), run.config.n
        domain = ["id" if c <= 1 and n <= longest else "ood" for c, n in zip(table["scale"], table["n"], strict=True)]
        values = table.assign(domain=domain, trained_n=longest)
        about = ["member", "n", "scale", "domain", "trained_n"]
        return run.described(values.melt(about, ["mse", "relative_square"], "metric", "value"))


@dataclass(frozen=True)
class FineTuned(Measure):
    """Table 1: errors in distribution, at another scale, and at that scale after fine-tuning the V matrices on it.

    The column ``stage`` says which of the three; values are squared errors over scale squared.
    """

    scale: float = 10.0
    epochs: int = 20
    samples: int = 1000

    KIND, SMOKE = "fine-tuned", {"epochs": 2, "samples": 50}
    STAGES = ("in distribution", "out of it", "after fine-tuning")

    def __post_init__(self) -> None:
        positive("measure.scale", self.scale)
        whole("measure.epochs", self.epochs)
        whole("measure.samples", self.samples)

    def check_network(self, label: str, config: NetworkConfig) -> None:
        if config.kind == "graph":
            raise UsageError(f"the series {label!r} is a graph network, which has no V matrices to fine-tune.")

    def rows(self, run: AnyRun) -> pd.DataFrame:
        tuned = fine_tune(trained(run), self.scale, self.epochs)
        tables = []
        for stage, tested, scale in zip(self.STAGES, (run, run, tuned), (1.0, self.scale, self.scale), strict=True):
            table = tested.rows(tested.evaluate([scale], self.samples))
            tables.append(table[table["metric"] == "mse_over_c2"].assign(stage=stage))
        return pd.concat(tables, ignore_index=True)
