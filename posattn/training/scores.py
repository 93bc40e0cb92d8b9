"""How well an ensemble does on a task of any kind: a table by member and scale, and which of its columns are metrics.

Lists of numbers are in ``metrics``. Letters (k-hop) give cross-entropy and accuracy, with and without targets '~', over all
sequences and by hop count. Prompts (numbers among tokens) give the squared error and the percentage error of the one answer.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from posattn.errors import UsageError, positive, whole
from posattn.tasks import task
from posattn.tokens.vocabulary import HOPS, NONE, VOCABULARIES
from posattn.training import metrics
from posattn.training.losses import surprise

Members = Sequence[tuple[str, int]]
ALL_HOPS = "all"


class Scores(NamedTuple):
    """``evaluate`` gives the table, ``metrics`` are its columns of numbers, ``by`` tells its rows apart beside the scale."""

    evaluate: Callable[..., pd.DataFrame]
    metrics: tuple[str, ...]
    by: tuple[str, ...] = ()


Row = dict[str, str | float]


def evaluate_tokens(
    measure: Callable[[Tensor, Tensor, Tensor], list[Row]],
    predict: metrics.Predict,
    members: Members,
    lengths: Sequence[int],
    scales: Iterable[float],
    samples: int = 1000,
    split: str = "test",
    device: torch.device | None = None,
) -> pd.DataFrame:
    """What ``measure`` makes of every member's inputs, targets and outputs at every scale."""
    factors, rows = [positive("scale", scale) for scale in scales], []
    if not factors:
        raise UsageError("scales is empty; give at least one number above 0.")
    for scale in factors:
        x, y = metrics.draw(members, whole("samples", samples), lengths[-1], scale, split, device=device)
        out = predict(x)
        for index, (name, seed) in enumerate(members):
            about = {"member": index, "task": name, "seed": seed, "scale": scale}
            rows += [about | row for row in measure(x[index], y[index], out[index])]
    table = pd.DataFrame(rows).sort_values(["member", "scale"], kind="stable", ignore_index=True)
    return table.assign(**{"mse/c²": table["mse"] / table["scale"] ** 2}) if "mse" in table else table


def letters(x: Int64[Tensor, "b n"], y: Int64[Tensor, "b n"], out: Float[Tensor, "b n V"]) -> list[Row]:
    """A row a hop count, the first for ``all``: cross-entropy and accuracy, and without '~' (``found``).

    The hop count's own target, a blank, is left out: it is known without the letters.
    """
    hops, y, out = x[:, 0], y[:, 1:], out[:, 1:]
    entropy, right = surprise(out, y), (out.argmax(dim=-1) == y).to(out.dtype)
    found, rows = y != VOCABULARIES["letters"].index[NONE], []
    for k in (ALL_HOPS, *HOPS):
        chosen = (torch.full_like(hops, k == ALL_HOPS).bool() | (hops == HOPS.find(k)))[:, None].expand_as(found)
        row: Row = {"hops": k}
        for end, part in (("", chosen), ("_found", chosen & found)):
            row |= {f"cross_entropy{end}": _mean(entropy, part), f"accuracy{end}": _mean(right, part)}
        rows.append(row)
    return rows


def prompts(x: Float[Tensor, "b n"], y: Float[Tensor, "b 1"], out: Float[Tensor, "b 1"]) -> list[Row]:
    """Squared and percentage error, and the share within 5%."""
    found = {"mse": metrics.mean_squared_error, "mape": percentage_error, "closeness": metrics.closeness_accuracy}
    return [{name: measure(out, y).item() for name, measure in found.items()}]


def percentage_error(out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    """MAPE: the mean of |out - y| / |y| over the answers that are not 0, for which it is not defined."""
    counted = y != 0
    ratio = ((out - y).double() / y.double()).abs().where(counted, 0)
    return ratio.sum(dim=(-2, -1)) / counted.sum(dim=(-2, -1))


def _mean(values: Float[Tensor, "b L"], part: Bool[Tensor, "b L"]) -> float:
    """Over a part, which may be empty: then not a number."""
    return values[part].double().mean().item()


SCORES: dict[str, Scores] = {
    "none": Scores(metrics.evaluate, ("mse", "mse/c²", "rounding", "closeness")),
    "letters": Scores(
        partial(evaluate_tokens, letters),
        ("cross_entropy", "accuracy", "cross_entropy_found", "accuracy_found"),
        by=("hops",),
    ),
    "prompts": Scores(partial(evaluate_tokens, prompts), ("mse", "mse/c²", "mape", "closeness")),
}


LENGTH_SCORES = Scores(metrics.evaluate_lengths, tuple(metrics.OF_LENGTHS), by=("n",))  # of networks of any length

ROW_NAMES = {"mse/c²": "mse_over_c2"}  # of metrics in result rows, where they differ


def scores_of(name: str) -> Scores:
    """Those of the task of that name."""
    return SCORES[task(name).TOKENS]


def row_metrics(name: str) -> tuple[str, ...]:
    """The metrics of the task of that name, as result rows call them."""
    return tuple(ROW_NAMES.get(metric, metric) for metric in scores_of(name).metrics)
