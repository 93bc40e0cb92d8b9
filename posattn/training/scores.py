"""How well an ensemble does on a task of any kind: a table by member and scale, and which of its columns are metrics.

Lists of numbers are in ``metrics``. Letters (k-hop) give cross-entropy and accuracy, with and without targets '~', over all
sequences and by hop count. Prompts (numbers among tokens) give the squared error and the percentage error of the one answer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from posattn.errors import UsageError, positive, whole
from posattn.tasks import task
from posattn.tokens import HOPS, NONE, VOCABULARIES
from posattn.training import metrics
from posattn.training.losses import surprise

Members = Sequence[tuple[str, int]]
ALL_HOPS = "all"


class Scores(NamedTuple):
    """``evaluate`` gives the table, ``metrics`` are its columns of numbers, ``by`` tells its rows apart beside the scale."""

    evaluate: Callable[..., pd.DataFrame]
    metrics: tuple[str, ...]
    by: tuple[str, ...] = ()


def evaluate_letters(
    predict: metrics.Predict,
    members: Members,
    lengths: Sequence[int],
    scales: Iterable[float],
    samples: int = 1000,
    split: str = "test",
    device: torch.device | None = None,
) -> pd.DataFrame:
    """One row a member, scale and hop count, the first for ``all``: cross-entropy and accuracy, and without '~' (``found``).

    The hop count's own target, a blank, is left out: it is known without the letters.
    """
    rows = []
    for scale, (x, y, out) in _drawn(predict, members, lengths, scales, samples, split, device):
        hops, letters, logits = x[..., 0], y[..., 1:], out[..., 1:, :]
        values = torch.stack([surprise(logits, letters), (logits.argmax(dim=-1) == letters).to(out.dtype)])
        found = letters != VOCABULARIES["letters"].index[NONE]
        for index, (name, seed) in enumerate(members):
            for k in (ALL_HOPS, *HOPS):
                chosen = _of_hops(hops[index], k)[:, None].expand_as(found[index])
                own = {"member": index, "task": name, "seed": seed, "scale": scale, "hops": k}
                for end, part in (("", chosen), ("_found", chosen & found[index])):
                    entropy, accuracy = (_mean(value[index], part) for value in values)
                    own |= {f"cross_entropy{end}": entropy, f"accuracy{end}": accuracy}
                rows.append(own)
    return pd.DataFrame(rows).sort_values(["member", "scale"], kind="stable", ignore_index=True)


def evaluate_prompts(
    predict: metrics.Predict,
    members: Members,
    lengths: Sequence[int],
    scales: Iterable[float],
    samples: int = 1000,
    split: str = "test",
    device: torch.device | None = None,
) -> pd.DataFrame:
    """One row a member and scale: ``mse``, ``mse/c²``, ``mape`` and ``closeness``."""
    rows = []
    for scale, (_, y, out) in _drawn(predict, members, lengths, scales, samples, split, device):
        found = torch.stack(
            [metrics.mean_squared_error(out, y), percentage_error(out, y), metrics.closeness_accuracy(out, y)]
        )
        for index, (name, seed) in enumerate(members):
            error, percentage, closeness = found[:, index].tolist()
            own = {
                "member": index,
                "task": name,
                "seed": seed,
                "scale": scale,
                "mse": error,
                "mse/c²": error / scale**2,
            }
            rows.append(own | {"mape": percentage, "closeness": closeness})
    return pd.DataFrame(rows).sort_values(["member", "scale"], kind="stable", ignore_index=True)


def percentage_error(out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    """MAPE: the mean of |out - y| / |y| over the answers that are not 0, for which it is not defined."""
    counted = y != 0
    ratio = ((out - y).double() / y.double()).abs().where(counted, 0)
    return ratio.sum(dim=(-2, -1)) / counted.sum(dim=(-2, -1))


def _drawn(
    predict: metrics.Predict,
    members: Members,
    lengths: Sequence[int],
    scales: Iterable[float],
    samples: int,
    split: str,
    device: torch.device | None,
) -> Iterable[tuple[float, tuple[Tensor, Tensor, Tensor]]]:
    """For every scale each member's own inputs, targets and outputs."""
    factors = [positive("scale", scale) for scale in scales]
    if not factors:
        raise UsageError("scales is empty; give at least one number above 0.")
    for scale in factors:
        x, y = metrics.draw(members, whole("samples", samples), lengths[-1], scale, split, device=device)
        yield scale, (x, y, predict(x))


def _of_hops(hops: Int64[Tensor, " b"], k: str) -> Bool[Tensor, " b"]:
    return torch.ones_like(hops, dtype=torch.bool) if k == ALL_HOPS else hops == HOPS.index(k)


def _mean(values: Float[Tensor, "b L"], part: Bool[Tensor, "b L"]) -> float:
    """Over a part, which may be empty: then not a number."""
    return values[part].double().mean().item()


SCORES: dict[str, Scores] = {
    "none": Scores(metrics.evaluate, ("mse", "mse/c²", "rounding", "closeness")),
    "letters": Scores(
        evaluate_letters, ("cross_entropy", "accuracy", "cross_entropy_found", "accuracy_found"), by=("hops",)
    ),
    "prompts": Scores(evaluate_prompts, ("mse", "mse/c²", "mape", "closeness")),
}


ROW_NAMES = {"mse/c²": "mse_over_c2"}  # of metrics in result rows, where they differ


def scores_of(name: str) -> Scores:
    """Those of the task of that name."""
    return SCORES[task(name).TOKENS]


def row_metrics(name: str) -> tuple[str, ...]:
    """The metrics of the task of that name, as result rows call them."""
    return tuple(ROW_NAMES.get(metric, metric) for metric in scores_of(name).metrics)
