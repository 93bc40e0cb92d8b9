"""Yardsticks of figures on mixed-type prompts: what answers score that read only a part of the prompt, or none of it."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations, product

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from posattn.experiments.measures import Scales
from posattn.metrics import ROW_NAMES, Evaluation, row_metrics, scores_of
from posattn.runs import result_rows
from posattn.tasks import task
from posattn.tasks.layouts import elements_of
from posattn.tasks.prompts import CATEGORIES, ELEMENTS, POSITIONS, QUERIED
from posattn.tokens.vocabulary import FIRST_TYPE, word_index

_CHOICES = list(combinations(range(CATEGORIES), QUERIED))


def ignoring_query(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
    """The best answers, by squared error, without reading which four categories are asked for: the mean over all choices."""
    x = elements_of(x)
    values = x[x >= 0].view(*x.shape[:-1], CATEGORIES)[..., _CHOICES]
    kind = word_index(x[..., ELEMENTS, None]) - FIRST_TYPE
    found = torch.stack([values.amin(dim=-1), values.amax(dim=-1), values.sum(dim=-1)], dim=-1).mean(dim=-2)
    return found.gather(-1, kind)


def constant(x: Float[Tensor, "members batch n"]) -> Float[Tensor, "members batch 1"]:
    """The best answer, by squared error, that is the same for all prompts: the mean of the right ones."""
    right = task("mixed-min").target(x)  # of whatever the query asks for
    return right.mean(dim=1, keepdim=True).expand_as(right)


YARDSTICKS = {"ignoring the query": ignoring_query, "a constant": constant}


def yardstick_rows(
    tasks: Sequence[str], lengths: Sequence[int], samples: Sequence[int], measure: Scales
) -> pd.DataFrame:
    """Result rows of every yardstick on the prompts of seed 0, a series each, for every number of training prompts.

    Prompts have the same answers in all layouts, so they are drawn in the shortest one.
    """
    tables = []
    for name, lists, series in product(tasks, samples, YARDSTICKS):
        for part in measure.parts(lists):
            values = _scores(series, name, part.samples, part.split, part.domain, tuple(part.scales)).assign(**part.columns)
            about = {"task": name, "arch": "none", "samples": lists, "seed": 0, "split": part.split, "status": "ok"}
            tables += [result_rows(values, about | {"n": n, "series": series}) for n in lengths]
    return pd.concat(tables, ignore_index=True)


@cache
def _scores(
    series: str, name: str, samples: int, split: str, domain: str | None, scales: tuple[float, ...]
) -> pd.DataFrame:
    """One row per scale and metric. Several experiments ask for the same."""
    test = Evaluation(YARDSTICKS[series], [(name, 0)], samples, split, domain=domain)
    table = scores_of(name).evaluate(test, (POSITIONS,), scales).rename(columns=ROW_NAMES)
    return table.melt(["member", "scale"], row_metrics(name), "metric", "value")
