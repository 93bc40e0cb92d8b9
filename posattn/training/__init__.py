"""Training: an ensemble of models as one batched program (``trainer``), from a recipe, into a folder (``run``)."""

from posattn.training import files
from posattn.training.recipe import RECIPES, Recipe
from posattn.training.run import ROW_COLUMNS, Run, RunSpec, load, train, train_spec
from posattn.training.trainer import Member, Trainer

__all__ = [
    "RECIPES",
    "files",
    "ROW_COLUMNS",
    "Member",
    "Recipe",
    "Run",
    "RunSpec",
    "Trainer",
    "load",
    "train",
    "train_spec",
]
