"""What determines an ensemble's numbers: the identity of a run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posattn.errors import UsageError, choice, instance, shown, whole
from posattn.names import PRECISIONS
from posattn.network import NetworkConfig, from_dict
from posattn.tasks import TASKS
from posattn.training.recipe import Recipe
from posattn.training.suitability import check_reads
from posattn.training.trainer import Member

_FORMAT = 1


@dataclass(frozen=True)
class RunSpec:
    """What determines an ensemble's numbers, and nothing else."""

    model: NetworkConfig
    recipe: Recipe
    members: tuple[Member, ...]
    variable_length: bool | tuple[int, ...] = False  # lists of 1 to n numbers, or of these lengths
    precision: str = "fp32"

    def __post_init__(self) -> None:
        instance("model", self.model, NetworkConfig, "a ModelConfig")
        instance("recipe", self.recipe, Recipe, "a Recipe")
        choice("precision", self.precision, PRECISIONS)
        if not isinstance(self.members, tuple) or not self.members:
            raise UsageError(f"members is {shown(self.members)}; it must be a tuple of at least one Member.")
        if not isinstance(self.variable_length, bool):
            object.__setattr__(self, "variable_length", _lengths(self.variable_length, self.model.n))
        for member in self.members:
            instance("member", member, Member, "a Member")
            if instance("task", member.task, str, "the name of one") in TASKS:  # of a run, it may be somebody else's
                check_reads(self.model, member.task)
            if self.variable_length and self.model.reads != "none":
                raise UsageError(f"variable_length is True; the task {member.task} has one length only.")
        if self.recipe.samples < len(self.lengths):
            kinds = f"of 1 to {self.model.n} numbers" if self.variable_length is True else "of these lengths"
            raise UsageError(f"samples is {self.recipe.samples}; lists {kinds} need at least {len(self.lengths)}.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "model": self.model.to_dict(),
            "variable_length": self.variable_length,
            "recipe": self.recipe.to_dict(),
            "members": [member.to_dict() for member in self.members],
            "precision": self.precision,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "RunSpec":
        if not isinstance(content, dict):
            raise UsageError("it is not an object.")
        fields = dict(content)
        if fields.pop("format", None) != _FORMAT:
            raise UsageError(f"the run's format is {content.get('format')!r}; this version reads format {_FORMAT}.")
        fields["model"] = from_dict(fields["model"])
        fields["recipe"] = Recipe(**fields["recipe"])
        fields["members"] = tuple(Member(**member) for member in fields["members"])
        return cls(**fields)

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of the lists that the networks train on."""
        given, n = self.variable_length, self.model.n
        return range(1 if given else n, n + 1) if isinstance(given, bool) else given

    @property
    def digest(self) -> str:
        """A name for the ensemble's numbers."""
        return _digest(self.to_dict())[:12]

    def identity(self, member: int, precision: bool = True) -> str:
        """A name for one member's numbers, whatever the others are; without ``precision`` one for all precisions."""
        alone = self.to_dict() | {"members": [self.members[member].to_dict()]}
        # The member has its own learning rate, and the name of the recipe does not matter.
        alone["recipe"] = {key: value for key, value in alone["recipe"].items() if key not in ("name", "lr")}
        if not precision:
            del alone["precision"]
        return _digest(alone)[:16]


def _lengths(given: object, n: int) -> tuple[int, ...]:
    """Different lengths up to n, in order."""
    several = given if isinstance(given, (list, tuple)) else ()
    lengths = tuple(sorted(whole("variable_length", length) for length in several))
    if not lengths or len(set(lengths)) < len(lengths):
        kind = "it must be True, False or a sequence of different lengths"
        raise UsageError(f"variable_length is {shown(given)}; {kind}.")
    if lengths[-1] != n:
        raise UsageError(f"variable_length goes up to {lengths[-1]}; the longest length must be the model's n, {n}.")
    return lengths


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
