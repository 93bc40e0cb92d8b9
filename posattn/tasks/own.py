"""Tasks of one's own: a plain function of a tensor, or lists with their answers; and the check of a target before training.

Letters: x the lists, y their answers, n values per list.
"""

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import UsageError, counted, several, shown, whole
from posattn.names import TASKS as OURS
from posattn.tasks.numeric import DATA, TASKS, Pairs, Target, Task, task
from posattn.tasks.sampling import Device, Drawn, Seeds, drawn_by, sample_lists

Learned = str | Sequence[str] | Target | tuple[Any, Any]  # what ``train`` can be asked to learn
_TRIED = 100  # lists that a target is tried on


class FunctionTask(Task):
    """A task made from a function of lists (batch, n). A later function of the same name takes its place."""


class Data(Task):
    """Lists and answers of one's own as a task, which answers no other lists; a digest of the numbers is its name."""

    def __init__(self, x: object, y: object):
        lists, answers = pairs(x, y)
        content = b"".join(part.float().cpu().contiguous().numpy().tobytes() for part in (lists, answers))
        digest = hashlib.sha256(repr(tuple(lists.shape)).encode() + content).hexdigest()[:12]
        super().__init__(DATA + digest, "data of one's own", _unanswered)
        for field, value in (("x", lists.float()), ("y", answers.float()), ("NETWORK", {"n": lists.shape[1]})):
            object.__setattr__(self, field, value)

    x: Tensor
    y: Tensor

    def sample(
        self, count: int, n: int | None = None, scale: float = 1.0, seed: Seeds = 0, **drawn: Unpack[Drawn]
    ) -> Pairs:
        """The first ``count`` training lists, whatever the seed."""
        if n not in (None, self.x.shape[1]):
            raise UsageError(f"n is {n}; the lists of the data have {counted(self.x.shape[1], 'number')}.")
        if whole("samples", count) > len(self.x):
            raise UsageError(f"samples is {count}; the data has {counted(len(self.x), 'list')}.")
        split, integers, device = drawn_by(**drawn)
        if scale != 1.0 or split != "train" or integers:
            _unanswered(self.x)
        return self.x[:count].to(device), self.y[:count].to(device)

    def sample_lengths(self, count: int, lengths: Sequence[int] = (), *given: Any, **drawn: Any) -> dict[int, Any]:
        if len(lengths) != 1:
            raise UsageError(f"variable_length is given; all lists of the data have {counted(self.x.shape[1], 'number')}.")
        return super().sample_lengths(count, lengths, *given, **drawn)


def is_data(name: str) -> bool:
    """Whether a task of that name is data of one's own."""
    return name.startswith(DATA)


def _unanswered(x: Tensor) -> Tensor:
    raise UsageError("the task is data of one's own, which answers no other lists; evaluate_on(x, y) tests on yours.")


def pairs(x: object, y: object) -> tuple[Float[Tensor, "count n"], Float[Tensor, "count n"]]:
    """Lists and answers as tensors of one shape; raises with what is wrong."""
    try:
        lists, answers = torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError(f"the data is {shown((x, y))}; it must be two tensors, lists and their answers.") from error
    if lists.ndim != 2 or lists.shape != answers.shape or not lists.numel():
        sizes = f"x is {tuple(lists.shape)} and y is {tuple(answers.shape)}"
        raise UsageError(f"{sizes}; both must be of one shape (samples, n), an answer for each number of a list.")
    for field, value in (("x", lists), ("y", answers)):
        if value.is_complex() or not bool(value.float().isfinite().all()):
            raise UsageError(f"{field} has a number that float32 does not hold; all must be finite reals.")
    return lists.detach(), answers.detach()


@contextmanager
def tasks_named(learned: Learned, name: str | None = None) -> Iterator[str | list[str]]:
    """The name of the task to learn, or the names of one per member. Within the context ``task`` finds them.

    A function stays in the table, so that its runs can be tested. Data leaves it, as it does when a run is loaded elsewhere.
    """
    before = dict(TASKS)
    if callable(learned):
        names: str | list[str] = _of_function(learned, name)
    elif name is not None:
        raise UsageError(f"name is {shown(name)}; only a function is given one.")
    elif isinstance(learned, (tuple, list)) and len(learned) == 2 and not isinstance(learned[0], str):
        row = Data(*learned)
        TASKS[row.name], names = row, row.name
    else:
        names = learned if isinstance(learned, str) else several("task", learned)
    try:
        yield names
    except UsageError:  # what is refused is not offered again
        TASKS.clear()
        TASKS.update(before)
        raise
    finally:
        if isinstance(names, str) and is_data(names):
            TASKS.pop(names, None)


def _of_function(function: Callable[..., Any], name: str | None) -> str:
    """The name under which a function is a task from now on."""
    known = getattr(function, "__name__", "<") if name is None else name
    if not isinstance(known, str) or not known or known.startswith("<") or is_data(known):
        raise UsageError(f"name is {shown(name)}; give the function a name, such as name='largest'.")
    if not isinstance(TASKS.get(known), (FunctionTask, type(None))):
        raise UsageError(f"name is {known!r}, a task that there is already; give the function another by name=.")
    TASKS[known] = FunctionTask(known, known, partial(_by_list, function))
    return known


def functions_defined(names: Mapping[str, Any], before: Mapping[str, Task]) -> None:
    """Makes tasks of the functions of one argument that a file of the user's defines, unless tasks have their names.

    Warns of a function that has the name of a task that was there ``before`` the file ran.
    """
    for name, function in names.items():
        own = isinstance(function, FunctionType) and function.__module__ == names["__name__"] and name[0] != "_"
        if not own or not _takes_one(function):
            continue
        if isinstance(TASKS.get(name), (FunctionTask, type(None))):
            _of_function(function, name)
        elif TASKS[name] is before.get(name):
            both = f"{names['__file__']} defines a function {name!r}, and the package has a task of that name"
            warnings.warn(f"{both}, which is used; give the function another name to learn it.", stacklevel=2)


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def _by_list(function: Callable[[Tensor], Any], x: Float[Tensor, "*batch n"]) -> Any:
    """What a function of lists (batch, n) answers to lists of any leading shape."""
    flat = x.reshape(-1, x.shape[-1])
    y = function(flat)
    return y.reshape(x.shape) if isinstance(y, Tensor) and y.shape == flat.shape else y


def check_target(row: Task, n: int, device: Device = None) -> None:
    """Raises unless a task of lists answers lists of n numbers as training needs it; tries it on a few."""
    if row.TOKENS != "none" or isinstance(row, Data):
        return
    wrong = f"the target of the task {row.name}"
    try:
        x = _lists(row, n, _TRIED, device)
        given = x.clone()
        y, alone, apart = (row.target(lists) for lists in (given, x[-1:].clone(), x.unflatten(0, (2, -1)).clone()))
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{wrong} fails for lists of {counted(n, 'number')}: {type(error).__name__}: {reason}.") from error
    if not isinstance(y, Tensor):
        raise UsageError(f"{wrong} gives a {type(y).__name__}; it must give a tensor of answers.")
    if y.shape != x.shape:
        once = " y[:, None].expand_as(x) gives one number per list at every position." if y.numel() == len(x) else ""
        sizes = f"{tuple(y.shape)} for lists of {tuple(x.shape)}"
        raise UsageError(f"{wrong} gives answers of {sizes}; it must give one for each number of a list.{once}")
    if y.dtype != x.dtype:
        raise UsageError(f"{wrong} gives {y.dtype} for {x.dtype}; it must give the same, by .to(x.dtype).")
    if not torch.equal(given, x):
        raise UsageError(f"{wrong} changes the lists that it is given; it must leave them, and may clone() them.")
    if not bool(y.isfinite().all()):
        worst = x[(~y.isfinite()).any(dim=-1)][0].tolist()
        raise UsageError(f"{wrong} is not finite for {[round(value, 4) for value in worst]}; it must be for all lists.")
    if not _close(alone, y[-1:]):
        raise UsageError(f"{wrong} answers a list differently alone and among others; it must depend on the list only.")
    if not _close(apart, y.unflatten(0, (2, -1))):
        raise UsageError(f"{wrong} answers lists (2, batch, n) differently from (batch, n); it must take dim=-1 of a list.")


def answers_of_own(names: Iterable[str], n: int, device: Device = None) -> dict[str, list[list[float]]]:
    """What each function of one's own among the tasks answers to three lists, by which it is known again.

    A task that draws other lists each time has none.
    """
    found = {}
    for row in (task(name) for name in dict.fromkeys(names) if name not in OURS and not is_data(name)):
        check_target(row, n, device)
        x, again = (_lists(row, n, _TRIED, device) for _ in range(2)) if row.TOKENS == "none" else (None, None)
        if x is not None and again is not None and torch.equal(x, again):
            found[row.name] = row.target(x)[:3].tolist()
    return found


def _lists(row: Task, n: int, count: int, device: Device = None) -> Float[Tensor, "count n"]:
    """Lists of a task, also where it has a distribution of its own."""
    own = type(row).sample is not Task.sample
    return row.sample(count, n, device=device)[0] if own else sample_lists(count, n, device=device)


def _close(found: object, right: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == right.shape and torch.allclose(found, right, rtol=1e-4, atol=1e-4)
