"""The paper's figures and tables: declared (``catalog``), run (``engine``), kept (``store``), drawn from rows (``figures``)."""

from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import SCALES, Bars, Experiment, Grid, Lines, Series, View, series
from posattn.experiments.engine import AnyEngine, Engine, NothingStored, Outcome, report_on, reproduce, with_series
from posattn.experiments.measures import Lengths, Scales, Shifts
from posattn.experiments.ray_engine import RayEngine, engine_named
from posattn.experiments.store import Store
from posattn.experiments.userfile import experiments_named

__all__ = [
    "EXPERIMENTS", "SCALES", "AnyEngine", "Bars", "Engine", "Experiment", "Grid", "Lengths", "Lines", "NothingStored",
    "Outcome", "RayEngine", "Scales", "Series", "Shifts", "Store", "View", "engine_named", "experiments_named",
    "report_on", "reproduce", "series", "with_series",
]  # fmt: skip
