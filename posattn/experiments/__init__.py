"""The paper's figures and tables: declared (``catalog``), run (``engine``), kept (``store``), drawn from rows (``figures``)."""

from posattn.experiments.catalog import EXPERIMENTS, experiments_named
from posattn.experiments.declaration import SIZES, Computation, Experiment, Grid, Series, series
from posattn.experiments.engine import Engine, NothingStored, Outcome, having, report_on, reproduce
from posattn.experiments.figures import Bars, Lines, View
from posattn.experiments.measures import EachShift, FineTuned, Lengths, Measure, Scales, Shifts
from posattn.experiments.ray_engine import RayEngine, engine_named
from posattn.experiments.store import AnyEngine, Store

__all__ = [
    "EXPERIMENTS", "SIZES", "AnyEngine", "Bars", "Computation", "EachShift", "Engine", "Experiment", "FineTuned", "Grid",
    "Lengths", "Lines", "Measure", "NothingStored", "Outcome", "RayEngine", "Scales", "Series", "Shifts", "Store", "View",
    "engine_named", "experiments_named", "having", "report_on", "reproduce", "series",
]  # fmt: skip
