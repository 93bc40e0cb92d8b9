"""The numeric tasks of Section 7 as a table, one row per task; a row's target answers any number of lists at once.

A cumulative task gives at position i the answer for x_1..x_i. Its ``-total`` form gives the answer for the whole list at every
position, so that the same model and loss serve both.

To add a task, add a row:

    register(Task("max", "cumulative max", lambda x: x.cummax(dim=-1).values))

Letters: x the lists, y their answers, n values per list. Targets work on columns: the i-th column holds x_i of all lists.
They operate from left to right, so that every device gives the same bits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Unpack

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from posattn.errors import UsageError, flag, instance, meant, shown, whole
from posattn.names import TASKS as OURS
from posattn.tasks.sampling import Drawn, Seeds, sample_lists

Target = Callable[[Tensor], Tensor]
Pairs = tuple[Float32[Tensor, "*members count n"], Float32[Tensor, "*members count n"]]


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    name: str  # what :func:`task` finds it by
    title: str  # its name in figures
    target: Target  # a pure function from lists (..., n) to answers (..., n), for every float dtype and device
    rounding_step: float = 1.0  # answers to integers are multiples of it; the rounding accuracy rounds to it

    # What training needs to know of this kind of task: its loss, the vocabulary of its tokens, the scales of its tests and
    # the settings of its networks in the experiments; and what pages call its inputs.
    LOSS: ClassVar[str] = "squared-error"
    TOKENS: ClassVar[str] = "none"
    SCALES: ClassVar[tuple[float, ...]] = tuple(range(1, 11))
    NETWORK: ClassVar[dict[str, Any]] = {"n": 8}
    INPUTS: ClassVar[str] = "lists"

    def sample(self, count: int, n: int = 8, scale: float = 1.0, seed: Seeds = 0, **drawn: Unpack[Drawn]) -> Pairs:
        """(x, y), each (count, n), or (M, count, n) for M seeds; x does not depend on the task (see ``sample_lists``).

        scale: 1 is the training range [-2, 2]; above 1 the lists are out of distribution, with the rejection step.
        split: ``train`` by default; lists of different splits are independent draws.
        integers: lists of integers, for the rounding accuracy.
        """
        x = sample_lists(count, n, scale, seed, **drawn)
        return x, self.target(x)

    def sample_lengths(
        self, count: int, lengths: Sequence[int] = range(1, 9), scale: float = 1.0, seed: Seeds = 0,
        **drawn: Unpack[Drawn],
    ) -> dict[int, tuple[Tensor, Tensor]]:  # fmt: skip
        """``count`` lists in all, by length, equally many per length; the first lengths get the remainder."""
        if not isinstance(lengths, Sequence) or not lengths or any(lengths.count(n) > 1 for n in lengths):
            raise UsageError(f"lengths is {lengths!r}; it must be a sequence of at least one length, and none twice.")
        share, rest = divmod(whole("count", count, least=len(lengths)), len(lengths))
        return {n: self.sample(share + (k < rest), n, scale, seed, **drawn) for k, n in enumerate(lengths)}


def _columns(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "n *batch"]:
    _check_lists(x)
    return x.movedim(-1, 0).contiguous()


def _check_lists(x: object) -> None:
    """Raises unless ``x`` is a tensor of lists of real numbers."""
    if not isinstance(x, Tensor) or x.dtype == torch.bool or x.is_complex() or not x.ndim or not x.shape[-1]:
        found = f"a tensor of {x.dtype}, {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)
        raise UsageError(f"the lists are {found}; they must be a tensor of numbers, (..., n), with at least one number each.")


def _lists(columns: Iterable[Tensor]) -> Float[Tensor, "*batch n"]:
    return torch.stack(list(columns), dim=-1)


def cumulative_sum(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """y_i = x_1 + ... + x_i."""
    return _lists(accumulate(_columns(x), torch.add))


def cumulative_min(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """y_i = min(x_1, ..., x_i)."""
    return _lists(accumulate(_columns(x), torch.minimum))


def cumulative_median(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """y_i = median(x_1, ..., x_i), for an even count the midpoint of the two middle values."""
    columns = _columns(x)
    columns = columns if columns.is_floating_point() else columns.double()
    n = len(columns)
    s = columns.new_full((n + 2, *columns.shape[1:]), torch.inf)  # s[1:i+1] is x_1..x_i sorted, infinities around it
    s[0] = -torch.inf
    y = torch.empty_like(columns)
    for i, x_i in enumerate(columns, start=1):
        # x_i enters the sorted prefix: smaller values stay, larger ones move up by one place.
        s[1 : i + 1] = torch.maximum(s[:i], torch.minimum(s[1 : i + 1], x_i))
        y[i - 1] = (s[(i + 1) // 2] + s[i // 2 + 1]) / 2
    return y.movedim(0, -1).contiguous()


def ascending(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """y = sort(x)."""
    _check_lists(x)
    return x.sort(dim=-1).values


def cumulative_maxsub(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """y_i = max over 1 <= j <= k <= i of x_j + ... + x_k (Kadane: the best sum that ends at k, then the best k)."""
    ending_here = accumulate(_columns(x), lambda best, x_k: best.clamp(min=0) + x_k)
    return _lists(accumulate(ending_here, torch.maximum))


def _total(cumulative: Target, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    return cumulative(x)[..., -1:].expand_as(x).contiguous()


TASKS: dict[str, Task] = {
    row.name: row
    for row in (
        Task("sum", "cumulative sum", cumulative_sum),
        Task("min", "cumulative min", cumulative_min),
        Task("median", "cumulative median", cumulative_median, rounding_step=0.5),
        Task("sort", "sorting", ascending),
        Task("maxsub", "cumulative maximum sum subarray", cumulative_maxsub),
        Task("sum-total", "sum of the whole list", partial(_total, cumulative_sum)),
        Task("min-total", "min of the whole list", partial(_total, cumulative_min)),
        Task("median-total", "median of the whole list", partial(_total, cumulative_median), rounding_step=0.5),
        Task("maxsub-total", "maximum sum subarray of the whole list", partial(_total, cumulative_maxsub)),
    )
}
FIVE_TASKS = ("sum", "min", "median", "sort", "maxsub")  # those of the paper's figures
DATA = "data:"  # how the name of a task that is data of one's own begins; its digest follows


def register(row: Task) -> Task:
    """Adds ``row`` to the table; from then on ``task(row.name)`` finds it. It replaces a task of one's own of that name."""
    instance("row", row, Task, "a Task")
    if instance("name", row.name, str, "a text") in TASKS and row.name in OURS:
        raise UsageError(f"name is {row.name!r}; it must differ from the package's tasks: {', '.join(OURS)}.")
    TASKS[row.name] = row
    return row


def task(name: str, cumulative: bool = True) -> Task:
    """The task of that name; ``cumulative=False`` gives its ``-total`` form, if it has one."""
    if isinstance(name, str) and name not in TASKS and name.startswith(DATA):
        raise UsageError(
            "the task is data of one's own, which is not kept; evaluate_on(x, y) tests on lists and answers that you give."
        )
    if not isinstance(name, str) or name not in TASKS:
        raise UsageError(
            f"task is {meant(name, TASKS)}; it must be one of {', '.join(TASKS)}, a function of a file that --task-file "
            "names, or one registered by posattn.tasks.register(Task(...))."
        )
    row = TASKS[name]
    return row if flag("cumulative", cumulative) else TASKS.get(f"{name}-total", row)
