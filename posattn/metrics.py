"""How well networks do on a task of any kind: a table with a row per member and condition, and which columns are metrics.

Lists of numbers give the squared error and the paper's two accuracies, by scale, length or distribution. Letters (k-hop) give
cross-entropy and accuracy, with and without targets '~', over all sequences and by hop count. Prompts (numbers among tokens)
give the squared and the percentage error of the one answer. The truth about lists is in float64, whatever the networks
compute in, so that an error is the network's alone.

Letters: M members, b lists, k numbers per list, V words.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from posattn.devices import CPU, require_room
from posattn.errors import apiece, counted, some, whole
from posattn.tasks import Task, sample_shift, task
from posattn.tasks.sampling import factor
from posattn.tokens.vocabulary import HOPS, NONE, VOCABULARIES

Predict = Callable[[Tensor], Tensor]  # every member's outputs (M, b, ...) from its own lists (M, b, k)
Row = dict[str, Any]
Measure = Callable[[Tensor, Tensor], Tensor]  # of outputs and right answers
Answers = Float[Tensor, "*lead b k"]
Mean = Float[Tensor, "*lead"]
ALL_HOPS = "all"


class Tested(NamedTuple):
    """What a member is tested on: its task, and the seed of its lists."""

    task: str
    seed: int


def mean_squared_error(out: Answers, y: Answers) -> Mean:
    return (out - y).double().square().mean(dim=(-2, -1))


def relative_error(out: Answers, y: Answers) -> Mean:
    """Squared error over the variance of the answers: the best constant answer has 1."""
    return mean_squared_error(out, y) / y.double().var(dim=(-2, -1), correction=0)


def relative_square(out: Answers, y: Answers) -> Mean:
    """Squared error over the mean square of the answers: the answer 0 has 1, at every length and scale."""
    return mean_squared_error(out, y) / y.double().square().mean(dim=(-2, -1))


def percentage_error(out: Answers, y: Answers) -> Mean:
    """MAPE: the mean of |out - y| / |y| over the answers that are not 0, for which it is not defined."""
    defined = y != 0
    ratio = ((out - y).double() / y.double()).abs().where(defined, 0)
    return ratio.sum(dim=(-2, -1)) / defined.sum(dim=(-2, -1))


def rounding_accuracy(out: Answers, y: Answers, step: float = 1.0) -> Mean:
    """Share of integer lists whose every output rounds to the truth: to the nearest multiple of ``step``.

    It is nan where the truth is not always such a multiple, as in a task of one's own with fractional answers.
    """
    steps = y / step
    fits = ((steps - steps.round()).abs() <= 1e-6).all(dim=-1).all(dim=-1)
    return _share((out / step).round() == steps.round()).where(fits, torch.nan)


def closeness_accuracy(out: Answers, y: Answers) -> Mean:
    """Share of lists whose every output is within 0.05 + 5% of the truth, as ``isclose`` reads two tolerances."""
    return _share(torch.isclose(out.to(y.dtype), y, rtol=0.05, atol=0.05))


def strict_closeness_accuracy(out: Answers, y: Answers) -> Mean:
    """Share of lists whose every output is within 0.05 of the truth and also within 5%."""
    return _share((out.to(y.dtype) - y).abs() <= 0.05 * y.abs().clamp_max(1))


def _share(right: Bool[Tensor, "*lead b k"]) -> Mean:
    return right.all(dim=-1).double().mean(dim=-1)


def cross_entropies(out: Float[Tensor, "*lead V"], y: Int64[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """-log softmax(out) at the target, by operations that neither wait for the host nor depend on an order of sums."""
    return out.logsumexp(dim=-1) - out.gather(-1, y[..., None])[..., 0]


OF_SCALES = ("mse", "mse/c²", "rounding", "closeness", "strict_closeness")
OF_SHIFTS = {"mse": mean_squared_error, "relative": relative_error, "closeness": closeness_accuracy}
OF_LENGTHS = {"mse": mean_squared_error, "relative_square": relative_square, "closeness": closeness_accuracy}


@dataclass(frozen=True)
class Evaluation:
    """A test of networks on fresh lists, ``samples`` per member and condition; each method gives a table of results."""

    predict: Predict
    members: Sequence[tuple[str, int]]  # such as Tested
    samples: int = 1000
    split: str = "test"
    device: torch.device | None = None
    domain: str | None = None  # of tasks of tokens, id or ood; by default what the scale says

    def by_scale(self, lengths: Sequence[int], scales: Iterable[float]) -> pd.DataFrame:
        """One row per member and scale, means over the lengths: ``rounding`` of lists of integers, all else of reals."""
        each, rows = self._samples(lengths, 32), []
        for scale in _factors(scales):
            mse, *accuracies = torch.stack([each._errors(n, scale) for n in lengths]).mean(dim=0)
            found = dict(zip(OF_SCALES, (mse, mse / scale**2, *accuracies), strict=True))
            rows += self._rows({"scale": scale}, found)
        return _table(rows, "member", "scale")

    def by_shift(self, lengths: Sequence[int], names: Iterable[str]) -> pd.DataFrame:
        """One row per member and distribution of ``posattn.tasks.shifts``: ``mse``, ``relative`` error, ``closeness``."""
        each, rows = self._samples(lengths, 16), []
        for name in some("names", names):
            parts = []
            for n in lengths:
                x = torch.stack([sample_shift(name, each.samples, n, seed, self.device) for _, seed in self.members])
                out, y = self.predict(x), self._truth(x)
                parts.append(torch.stack([measure(out, y) for measure in OF_SHIFTS.values()]))
            found = dict(zip(OF_SHIFTS, torch.stack(parts).mean(dim=0), strict=True))
            rows += self._rows({"scale": 1.0, "distribution": name}, found)
        return _table(rows, "member")

    def by_length(self, lengths: Iterable[int], scales: Iterable[float] | None = None) -> pd.DataFrame:
        """One row per member, length and scale: ``mse``, ``closeness`` and, to compare lengths by, ``relative_square``."""
        rows, factors = [], _factors([1.0, 10.0] if scales is None else scales)
        for n in lengths:
            for scale in factors:
                check_room(len(self.members), whole("samples", self.samples), whole("n", n), self.device)
                x = self.draw(n, scale)
                y, out = self._truth(x), self.predict(x)
                found = {name: torch.stack(list(map(measure, out, y))) for name, measure in OF_LENGTHS.items()}
                rows += self._rows({"n": n, "scale": scale}, found)
        return _table(rows, "member")

    def of_tokens(
        self, lengths: Sequence[int], scales: Iterable[float], measure: Callable[[Tensor, Tensor, Tensor], list[Row]]
    ) -> pd.DataFrame:
        """What ``measure`` makes of every member's inputs, targets and outputs at every scale."""
        rows = []
        for scale in _factors(scales):
            x = self._samples(lengths[-1:], 8).draw(lengths[-1], scale)
            y, out = self._truth(x) if x.is_floating_point() else self.targets(x), self.predict(x)
            for about in self._rows({"scale": scale}, {}):
                own = about["member"]
                rows += [about | row for row in measure(x[own], y[own], out[own])]
        table = _table(rows, "member", "scale")
        return table.assign(**{"mse/c²": table["mse"] / table["scale"] ** 2}) if "mse" in table else table

    def draw(self, n: int, scale: float = 1.0, integers: bool = False) -> Shaped[Tensor, "M b k"]:
        """Every member's own lists."""
        given: dict[str, Any] = {"n": n, "scale": scale, "integers": integers, "split": self.split}
        given |= {} if self.domain is None else {"domain": self.domain}

        def lists(name: str, own: list[int]) -> Tensor:
            seeds = [self.members[k][1] for k in own]
            return task(name).sample(self.samples, seed=seeds, device=_place_of_truth(n, self.device), **given)[0]

        return self._by_task(lists)

    def targets(self, x: Shaped[Tensor, "M b k"]) -> Shaped[Tensor, "M b out"]:
        """The targets for ``x`` as training has them."""
        return self._by_task(lambda name, own: task(name).target(x[own]))

    def _truth(self, x: Float[Tensor, "M b k"]) -> Float64[Tensor, "M b out"]:
        """The targets in float64: a float32 sum of a million numbers may be further off than a network's answer."""
        place = _place_of_truth(x.shape[-1], self.device)
        return self._by_task(lambda name, own: exact_answers(task(name), x[own].to(place)))

    def _by_task(self, make: Callable[[str, list[int]], Tensor]) -> Shaped[Tensor, "M ..."]:
        """What ``make`` gives for every task and the members that have it, in the order of the members."""
        rows: dict[int, Tensor] = {}
        for name in dict.fromkeys(name for name, _ in self.members):
            own = [k for k, (other, _) in enumerate(self.members) if other == name]
            rows |= dict(zip(own, make(name, own).to(self.device), strict=True))
        return torch.stack([rows[k] for k in range(len(rows))])

    def _samples(self, lengths: Sequence[int], held: int) -> "Evaluation":
        """This test with its samples divided among the lengths; raises if they do not fit, at ``held`` bytes per number."""
        share = whole("samples", self.samples, least=len(lengths)) // len(lengths)
        check_room(len(self.members), share, lengths[-1], self.device, held)
        return replace(self, samples=share)

    def _errors(self, n: int, scale: float) -> Float[Tensor, "4 M"]:
        """Squared error and the accuracies of every member on lists of one length, in the order of ``OF_SCALES``."""
        x, integers = self.draw(n, scale), self.draw(n, scale, integers=True)
        out, y = self.predict(x), self._truth(x)
        answers = zip(self.predict(integers), self._truth(integers), self.members, strict=True)
        rounding = [rounding_accuracy(said, right, task(name).rounding_step) for said, right, (name, _) in answers]
        closeness = [closeness_accuracy(out, y), strict_closeness_accuracy(out, y)]
        return torch.stack([mean_squared_error(out, y), torch.stack(rounding), *closeness])

    def _rows(self, condition: Row, found: dict[str, Float[Tensor, " M"]]) -> list[Row]:
        """A row per member: who it is, the condition, and its value of every metric."""
        columns = {metric: values.tolist() for metric, values in found.items()}
        return [
            {"member": k, "task": name, "seed": seed} | condition | {metric: own[k] for metric, own in columns.items()}
            for k, (name, seed) in enumerate(self.members)
        ]


def _factors(scales: Iterable[float]) -> list[float]:
    return [factor(scale) for scale in some("scales", scales)]


def _table(rows: list[Row], *by: str) -> pd.DataFrame:
    return pd.DataFrame(rows).sort_values(list(by), kind="stable", ignore_index=True)


def letters(x: Int64[Tensor, "b n"], y: Int64[Tensor, "b n"], out: Float[Tensor, "b n V"]) -> list[Row]:
    """A row per hop count, the first for ``all``: cross-entropy and accuracy, and without '~' (``found``).

    The hop count's own target, a blank, is left out: it is known without the letters.
    """
    hops, y, out = x[:, 0], y[:, 1:], out[:, 1:]
    entropy, right = cross_entropies(out, y), (out.argmax(dim=-1) == y).to(out.dtype)
    found, rows = y != VOCABULARIES["letters"].index[NONE], []
    for k in (ALL_HOPS, *HOPS):
        chosen = (torch.full_like(hops, k == ALL_HOPS).bool() | (hops == HOPS.find(k)))[:, None].expand_as(found)
        row: Row = {"hops": k}
        for end, part in (("", chosen), ("_found", chosen & found)):
            for name, values in (("cross_entropy", entropy), ("accuracy", right)):
                row[name + end] = values[part].double().mean().item()  # nan if the part is empty
        rows.append(row)
    return rows


def prompts(x: Float[Tensor, "b n"], y: Float[Tensor, "b 1"], out: Float[Tensor, "b 1"]) -> list[Row]:
    """Squared and percentage error, and the share within 5%."""
    found = {"mse": mean_squared_error, "mape": percentage_error, "closeness": closeness_accuracy}
    return [{name: measure(out, y).item() for name, measure in found.items()}]


class Scores(NamedTuple):
    """How a task is tested: ``evaluate`` gives the table of an :class:`Evaluation` from lengths and scales.

    ``metrics`` are its columns of numbers. ``by`` names the columns that, beside the scale, distinguish its rows.
    """

    evaluate: Callable[[Evaluation, Sequence[int], Iterable[float]], pd.DataFrame]
    metrics: tuple[str, ...]
    by: tuple[str, ...] = ()


SCORES: dict[str, Scores] = {
    "none": Scores(Evaluation.by_scale, OF_SCALES),
    "letters": Scores(
        partial(Evaluation.of_tokens, measure=letters),
        ("cross_entropy", "accuracy", "cross_entropy_found", "accuracy_found"),
        by=("hops",),
    ),
    "prompts": Scores(partial(Evaluation.of_tokens, measure=prompts), ("mse", "mse/c²", "mape", "closeness")),
}

ROW_NAMES = {"mse/c²": "mse_over_c2"}  # of metrics in result rows, where they differ


def scores_of(name: str) -> Scores:
    """How the task of that name is tested."""
    return SCORES[task(name).TOKENS]


def row_metrics(name: str) -> tuple[str, ...]:
    """The metrics of the task of that name, as result rows call them."""
    return tuple(ROW_NAMES.get(metric, metric) for metric in scores_of(name).metrics)


def exact_answers(row: Task, x: Float[Tensor, "*lead k"]) -> Float64[Tensor, "*lead out"]:
    """The task's targets in float64, computed in float64 if the task can."""
    try:
        return row.target(x.double()).double()
    except RuntimeError:  # such as a product with constants in float32
        return row.target(x.float()).double()


_COLUMN = 1500  # bytes that the truth takes per number of a list, about: two tensors, and their entries in Python lists
_LONG = 1 << 13  # numbers: the truth of longer lists is computed on the CPU, which is faster at one step per number


def _place_of_truth(n: int, device: torch.device | None) -> torch.device:
    return CPU if device is None or n > _LONG else device


def check_room(members: int, samples: int, n: int, device: torch.device | None, each: int = 56) -> None:
    """Raises if a test does not fit in memory: its lists, truth and answers, and what computing them and the errors takes.

    Checks the device that computes the truth and, if it is another, that of the networks. ``each`` is the bytes per number.
    """
    own, columns = CPU if device is None else device, _place_of_truth(n, device)
    what = f"samples is {samples}; so many lists of {counted(n, 'number')}{apiece(members, 'network')}"
    for place in dict.fromkeys((columns, own)):
        require_room(what, n * (each * members * samples + (_COLUMN if place == columns else 0)), place)
