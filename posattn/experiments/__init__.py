"""The paper's figures and tables: declared (``catalog``), run (``engine``), kept (``store``), drawn from rows (``figures``)."""

from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import SCALES, Experiment, Grid, Lines, Series, View, series
from posattn.experiments.engine import Engine, Outcome, report_on, reproduce
from posattn.experiments.measures import Scales
from posattn.experiments.store import Store

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Engine",
    "Experiment",
    "Grid",
    "Lines",
    "Outcome",
    "Scales",
    "Series",
    "Store",
    "View",
    "report_on",
    "reproduce",
    "series",
]
