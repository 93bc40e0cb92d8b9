"""The paper's figures and tables: declared (``catalog``), run (``engine``), kept (``store``), drawn from rows (``figures``)."""

from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import SCALES, Bars, Experiment, Grid, Lines, Series, View, series
from posattn.experiments.engine import AnyEngine, Engine, NothingStored, Outcome, report_on, reproduce
from posattn.experiments.measures import Lengths, Scales, Shifts
from posattn.experiments.ray_engine import RayEngine
from posattn.experiments.store import Store

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "AnyEngine",
    "Bars",
    "Engine",
    "Experiment",
    "Grid",
    "Lengths",
    "Lines",
    "NothingStored",
    "Outcome",
    "RayEngine",
    "Scales",
    "Series",
    "Shifts",
    "Store",
    "View",
    "report_on",
    "reproduce",
    "series",
]
