"""The losses that training minimises, by the names that tasks give them: sums over the lists and outputs of a part of a batch.

Letters: M members, b lists, k outputs per list, V words.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Float, Int64
from torch import Tensor

from posattn.errors import UsageError
from posattn.metrics import cross_entropies
from posattn.tasks import task

Loss = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets, each with a leading member axis


def squared_error(out: Float[Tensor, "M b k"], y: Float[Tensor, "M b k"]) -> Float[Tensor, " M"]:
    return (out - y).square().sum(dim=(1, 2))


def cross_entropy(out: Float[Tensor, "M b k V"], y: Int64[Tensor, "M b k"]) -> Float[Tensor, " M"]:
    """-log softmax(out) at the target, from one logit per word."""
    return cross_entropies(out, y).sum(dim=(1, 2))


LOSSES: dict[str, Loss] = {"squared-error": squared_error, "cross-entropy": cross_entropy}


def loss_of(tasks: Sequence[str]) -> Loss:
    """The loss that tasks share."""
    names = {task(name).LOSS for name in tasks}
    if len(names) > 1:
        raise UsageError(f"the tasks are {', '.join(tasks)}; those of one ensemble must have one loss.")
    return LOSSES[names.pop()]
