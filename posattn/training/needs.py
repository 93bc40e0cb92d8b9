"""The memory that training takes at least: networks with their moments, training lists, and what is noted of every epoch."""

import math
from collections.abc import Sequence

import torch

from posattn.devices import CPU, require_room
from posattn.network import NetworkConfig
from posattn.training.recipe import Recipe

_NUMBER = 4  # bytes: weights, lists and losses are float32
_RECORD = 200  # bytes at least of the Python objects that describe a member
_STEP = 24  # bytes of a step's rates, which are computed in float64


def require_room_for_members(members: int, model: NetworkConfig) -> None:
    """Raises if a run of so many members does not fit into memory, trained or not."""
    each = _RECORD + _NUMBER * model.least_numbers
    require_room(f"members is {members}; so many networks", members * each)


def require_room_to_train(
    model: NetworkConfig, recipe: Recipe, members: int, lengths: Sequence[int], device: torch.device
) -> None:
    """Raises if training does not fit into memory; the sentence names the part that takes most of it."""
    networks = members * recipe.starts
    length = (lengths[0] + lengths[-1]) / 2 if isinstance(lengths, range) else sum(lengths) / len(lengths)
    parts = {
        # Weights and two moments.
        f"members is {members}; so many networks": 3 * _NUMBER * networks * model.least_numbers,
        # x and, in tasks of lists, y.
        f"samples is {recipe.samples}; so many training lists of n = {model.n}, for each of {networks} networks,": (
            (2 if model.reads == "none" else 1) * _NUMBER * networks * recipe.samples * length
        ),
    }
    noted = {
        f"epochs is {recipe.epochs}; the losses and learning rates of so many, for each of {networks} networks,": (
            2 * _NUMBER * networks * recipe.epochs + _STEP * recipe.epochs * math.ceil(recipe.samples / recipe.batch)
        )
    }
    for place, needs in ((CPU, parts | noted),) if device.type == "cpu" else ((device, parts), (CPU, noted)):
        require_room(max(needs, key=lambda what: needs[what]), sum(needs.values()), place)
