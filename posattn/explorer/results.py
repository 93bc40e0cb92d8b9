"""The figures of a result store as numbers for the page: medians and bands of our runs, beside the published ones."""

from typing import Any

import pandas as pd

from posattn.experiments import EXPERIMENTS, Experiment, Store
from posattn.experiments.engine import held_in


def figures_of(store: Store | None) -> list[dict[str, Any]]:
    """A figure per experiment and size with enough results in the store; for others the published medians, if known."""
    drawn = []
    if store is not None:
        for experiment, size, held in held_in(store):
            rows, ensembles = held.read() if held.enough else (pd.DataFrame(), [])
            if ensembles:  # figures of computed results have level lines and the like, which the page does not draw
                drawn.append(_figure(experiment, size, held.said, rows))
    here = {figure["name"] for figure in drawn}
    for experiment in EXPERIMENTS.values():
        if experiment.name not in here and experiment.figure.published == experiment.name:
            drawn.append(_figure(experiment, "published", "no runs in the store", pd.DataFrame()))
    return [figure for figure in drawn if figure["panels"]]


def _figure(experiment: Experiment, size: str, said: str, rows: pd.DataFrame) -> dict[str, Any]:
    figure = experiment.figure
    about = {"name": experiment.name, "title": experiment.title, "reference": experiment.reference}
    return about | {"scale": size, "runs": said, "opens": None} | figure.page(rows, figure.medians(rows))
