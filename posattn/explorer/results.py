"""The figures of a result store as numbers for the page: medians and bands of ours, and the published ones beside them."""

from typing import Any

import pandas as pd

from posattn.experiments import EXPERIMENTS, Experiment, Store
from posattn.experiments.engine import reportable


def figures_of(store: Store | None) -> list[dict[str, Any]]:
    """Every experiment that the store has enough of for a figure, size by size; of others published medians, where known."""
    drawn = []
    if store is not None:
        for experiment, size, said, rows, ensembles in reportable(store):
            if ensembles:  # what is computed has level lines and the like, which the page does not draw
                drawn.append(_figure(experiment, size, said, rows))
    here = {figure["name"] for figure in drawn}
    for experiment in EXPERIMENTS.values():
        if experiment.name not in here and experiment.figure.published == experiment.name:
            drawn.append(_figure(experiment, "published", "no runs in the store", pd.DataFrame()))
    return [figure for figure in drawn if figure["panels"]]


def _figure(experiment: Experiment, size: str, said: str, rows: pd.DataFrame) -> dict[str, Any]:
    figure = experiment.figure
    about = {"name": experiment.name, "title": experiment.title, "reference": experiment.reference}
    return about | {"scale": size, "runs": said} | figure.page(rows, figure.medians(rows))
