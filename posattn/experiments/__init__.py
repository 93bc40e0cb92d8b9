"""The paper's figures and tables, declared (``catalog``), run (``engine``), drawn from rows (``figures``, ``report``)."""

from posattn.experiments.catalog import EXPERIMENTS
from posattn.experiments.declaration import SCALES, Experiment, Plan
from posattn.experiments.engine import Outcome, reproduce

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Outcome", "Plan", "reproduce"]
