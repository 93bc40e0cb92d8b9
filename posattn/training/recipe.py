"""Recipes: everything about training but the model, the task and the seed.

``paper`` is what the published runs used. ``tuned`` is a cosine schedule with warm-up and gradient clipping over half as many
epochs again, which lowers the error of bias-free models further. Its values were chosen on validation data with seeds that no
result uses (``results/tuned-search``). At twice its peak learning rate the first runs die.
"""

from dataclasses import dataclass, replace
from typing import Any

from posattn.errors import UsageError, choice, flag, instance, positive, share, whole
from posattn.network import stored_fields

_LARGEST_LR = 1e30
SCHEDULES = ("plateau", "cosine")
_LATER = ("sharpen_from", "sharpen_to", "polish", "starts", "only", "shuffle_lengths")  # fields that older runs lack


@dataclass(frozen=True)
class Recipe:
    """Adam without weight decay on the mean squared error, in batches reshuffled every epoch.

    Args:
        name: what the recipe is called in results.
        schedule: ``plateau`` multiplies the learning rate by ``factor`` when the epoch's summed loss has not fallen by
            the relative ``threshold`` for more than ``patience`` epochs, down to ``floor``; ``cosine`` rises linearly
            over the fraction ``warmup`` of all steps, then falls to zero along half a cosine.
        lr: the initial (plateau) or highest (cosine) learning rate.
        clip: the largest norm of a member's gradient; None for no clipping.
        sharpen_from: the fraction of all steps after which the factor on the attention logits of a looped network grows,
            geometrically from 1 to the network's sharpness. If both fractions are 0 it is the sharpness from the first step.
        sharpen_to: the fraction of all steps after which it no longer grows.
        polish: Levenberg-Marquardt steps after the last epoch, for looped networks (:mod:`posattn.training.polish`).
        starts: networks trained per member, from different seeds. The one with the least loss in the last epoch becomes the
            member.
        only: the parameters to train, by a part of their names, where training begins with another run; None for all.
        shuffle_lengths: with lists of several lengths, every epoch takes the batches of all lengths in a new random order, as
            the published runs did; else it takes the lengths in turn.
    """

    name: str = "paper"
    schedule: str = "plateau"
    lr: float = 5e-4
    epochs: int = 2001
    batch: int = 1000
    samples: int = 30_000
    factor: float = 0.9
    patience: int = 50
    threshold: float = 1e-4
    floor: float = 1e-6
    warmup: float = 0.0
    clip: float | None = None
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    sharpen_from: float = 0.0
    sharpen_to: float = 0.0
    polish: int = 0
    starts: int = 1
    only: str | None = None
    shuffle_lengths: bool = False

    def __post_init__(self) -> None:
        instance("name", self.name, str, "a text")
        choice("schedule", self.schedule, SCHEDULES)
        flag("shuffle_lengths", self.shuffle_lengths)
        for field in ("epochs", "batch", "samples", "starts"):
            object.__setattr__(self, field, whole(field, getattr(self, field)))
        for field in ("patience", "polish"):
            whole(field, getattr(self, field), least=0)
        for field in ("lr", "epsilon", "factor") + (("clip",) if self.clip is not None else ()):
            object.__setattr__(self, field, positive(field, getattr(self, field)))
        if self.lr > _LARGEST_LR:
            raise UsageError(f"lr is {self.lr}; it must be at most {_LARGEST_LR:g}, which float32 can hold.")
        for field in ("factor", "threshold", "floor", "warmup", "beta_1", "beta_2", "sharpen_from", "sharpen_to"):
            object.__setattr__(self, field, share(field, getattr(self, field)))
        if self.only is not None and not (isinstance(self.only, str) and self.only):
            raise UsageError(f"only is {self.only!r}; it must be a part of the names of parameters, or None.")
        if self.only is not None and self.polish:
            raise UsageError(
                f"polish is {self.polish}; it must be 0 where {self.only!r} alone is trained: it moves every weight."
            )
        if self.sharpen_from > self.sharpen_to:
            raise UsageError(f"sharpen_from is {self.sharpen_from}; it must be at most sharpen_to, {self.sharpen_to}.")

    @property
    def for_loops(self) -> dict[str, Any]:
        """The fields newer than ``paper`` and ``tuned``, which smaller sizes of an experiment keep."""
        return {field: getattr(self, field) for field in _LATER}

    def to_dict(self) -> dict[str, object]:
        return stored_fields(self, _LATER)


RECIPES: dict[str, Recipe] = {
    "paper": Recipe(),
    "tuned": Recipe(name="tuned", schedule="cosine", lr=1.5e-3, epochs=3001, warmup=0.05, clip=1.0),
    "looped": Recipe(
        name="looped", schedule="cosine", lr=3e-3, epochs=80, batch=200, samples=20_000, warmup=0.02, clip=1.0,
        sharpen_from=0.2, sharpen_to=0.6, polish=100,
    ),
    "table": Recipe(
        name="table", schedule="cosine", lr=1e-2, epochs=3, batch=16, samples=3200, warmup=0.02, clip=1.0,
        sharpen_from=0.3, sharpen_to=0.8, starts=4,
    ),
    "prompt-table": Recipe(
        name="prompt-table", schedule="cosine", lr=1e-2, epochs=12, batch=64, samples=10_000, warmup=0.02, clip=1.0,
        beta_2=0.99, sharpen_from=0.2, sharpen_to=0.6, starts=3,
    ),
    "sorter": Recipe(
        name="sorter", schedule="cosine", lr=3e-2, epochs=25, batch=50, samples=4000, warmup=0.02, clip=0.1,
        sharpen_to=0.8, starts=8,
    ),
    "selector": Recipe(
        name="selector", schedule="cosine", lr=3e-2, epochs=10, batch=50, samples=4000, warmup=0.02, clip=0.1,
        sharpen_to=0.8, starts=4, only="attention.logits",
    ),
}  # fmt: skip


def recipe(name: str | Recipe = "paper", **changes: object) -> Recipe:
    """The recipe called ``name`` with the fields in ``changes`` that are not None set differently."""
    base = name if isinstance(name, Recipe) else RECIPES[choice("recipe", name, RECIPES)]
    return replace(base, **{field: value for field, value in changes.items() if value is not None})  # type: ignore[arg-type]
