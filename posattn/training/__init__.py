"""Training: an ensemble of models as one batched program (``trainer``), by a recipe, into a folder (``fit``, ``run``)."""

from posattn.training import files
from posattn.training.fit import train, train_spec
from posattn.training.network import network_for
from posattn.training.recipe import RECIPES, Recipe
from posattn.training.run import ROW_COLUMNS, Run, load, pick_device
from posattn.training.spec import RunSpec
from posattn.training.trainer import Member, Trainer

__all__ = [
    "RECIPES", "ROW_COLUMNS", "Member", "Recipe", "Run", "RunSpec", "Trainer", "files", "load", "network_for",
    "pick_device", "train", "train_spec",
]  # fmt: skip
