"""Training: an ensemble of models as one batched program (``trainer``), by a recipe, into a folder (``fit``, ``run``)."""

from posattn.training.fit import train, train_spec
from posattn.training.recipe import RECIPES, Recipe
from posattn.training.run import Run
from posattn.training.spec import RunSpec
from posattn.training.suitability import network_for
from posattn.training.trainer import Member, Trainer

__all__ = ["RECIPES", "Member", "Recipe", "Run", "RunSpec", "Trainer", "network_for", "train", "train_spec"]
