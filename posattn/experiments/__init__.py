"""The paper's figures and tables: declared (``catalog``), run (``engine``), kept (``store``), drawn from rows (``figures``)."""

from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import SCALES, Experiment, Grid, Lines, Series, View, series
from posattn.experiments.engine import AnyEngine, Engine, Outcome, reproduce
from posattn.experiments.measures import Scales
from posattn.experiments.ray_engine import RayEngine
from posattn.experiments.store import Store

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "AnyEngine",
    "Engine",
    "Experiment",
    "Grid",
    "Lines",
    "Outcome",
    "RayEngine",
    "Scales",
    "Series",
    "Store",
    "View",
    "reproduce",
    "series",
]
