"""How well an ensemble does, at every scale or on other distributions: squared error, and the two accuracies of the paper.

The truth about lists is in float64, whatever the networks compute in, so that an error is the network's alone.
"""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from posattn.errors import UsageError, positive, whole
from posattn.free_memory import free_bytes
from posattn.tasks import Task, sample_shift, task

Predict = Callable[[Tensor], Tensor]  # every member's outputs (M, b, ...) from its own lists (M, b, k)


def mean_squared_error(out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    return (out - y).double().square().mean(dim=(-2, -1))


def relative_error(out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    """Squared error over the variance of the answers: 1 is what the best constant has."""
    return mean_squared_error(out, y) / y.double().var(dim=(-2, -1), correction=0)


def relative_square(out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    """Squared error over the mean square of the answers: 1 is what the answer 0 has, at every length and scale."""
    return mean_squared_error(out, y) / y.double().square().mean(dim=(-2, -1))


def rounding_accuracy(
    out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"], step: float = 1.0
) -> Float[Tensor, "*lead"]:
    """Share of integer lists whose every output rounds to the truth: to the nearest multiple of ``step``."""
    return _share((out / step).round() == (y / step).round())


def closeness_accuracy(out: Float[Tensor, "*lead b k"], y: Float[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    """Share of lists whose every output is within 0.05 + 5% of the truth, as ``isclose`` reads two tolerances."""
    return _share(torch.isclose(out.to(y.dtype), y, rtol=0.05, atol=0.05))


def _share(right: Bool[Tensor, "*lead b k"]) -> Float[Tensor, "*lead"]:
    return right.all(dim=-1).double().mean(dim=-1)


def evaluate(
    predict: Predict,
    members: Sequence[tuple[str, int]],
    lengths: Sequence[int],
    scales: Iterable[float],
    samples: int = 1000,
    split: str = "test",
    device: torch.device | None = None,
) -> pd.DataFrame:
    """A table with one row for each member (its task and seed) and scale, means over the lengths of lists.

    Every member is tested on ``samples`` fresh lists a scale, equally many of each length: real ones for ``mse``, ``mse/c²``
    and ``closeness``, and integer ones for ``rounding``.
    """
    each = whole("samples", samples, least=len(lengths)) // len(lengths)
    factors = [positive("scale", scale) for scale in scales]
    if not factors:
        raise UsageError("scales is empty; give at least one number above 0.")
    rows = []
    for scale in factors:
        parts = torch.stack([_measure(predict, members, each, n, scale, split, device) for n in lengths])
        for index, (name, seed) in enumerate(members):
            error, rounding, closeness = parts.mean(dim=0)[:, index].tolist()
            own = {
                "member": index,
                "task": name,
                "seed": seed,
                "scale": scale,
                "mse": error,
                "mse/c²": error / scale**2,
            }
            rows.append(own | {"rounding": rounding, "closeness": closeness})
    return pd.DataFrame(rows).sort_values(["member", "scale"], ignore_index=True)


def evaluate_shifts(
    predict: Predict,
    members: Sequence[tuple[str, int]],
    lengths: Sequence[int],
    names: Iterable[str],
    samples: int = 1000,
    device: torch.device | None = None,
) -> pd.DataFrame:
    """As ``evaluate``, with distributions of ``posattn.tasks.shifts`` in place of scales: mse, relative error, closeness."""
    each = whole("samples", samples, least=len(lengths)) // len(lengths)
    rows = []
    for name in names:
        parts = []
        for n in lengths:
            x = torch.stack([sample_shift(name, each, n, seed, device) for _, seed in members])
            y, out = _truth(x, members), predict(x)
            parts.append(torch.stack([mean_squared_error(out, y), relative_error(out, y), closeness_accuracy(out, y)]))
        for index, (own, seed) in enumerate(members):
            error, relative, closeness = torch.stack(parts).mean(dim=0)[:, index].tolist()
            about = {"member": index, "task": own, "seed": seed, "scale": 1.0, "distribution": name}
            rows.append(about | {"mse": error, "relative": relative, "closeness": closeness})
    return pd.DataFrame(rows).sort_values("member", kind="stable", ignore_index=True)


OF_LENGTHS = {"mse": mean_squared_error, "relative_square": relative_square, "closeness": closeness_accuracy}


def evaluate_lengths(
    predict: Predict,
    members: Sequence[tuple[str, int]],
    lengths: Iterable[int],
    scales: Iterable[float],
    samples: int = 1000,
    split: str = "test",
    device: torch.device | None = None,
) -> pd.DataFrame:
    """One row a member, length and scale: ``mse``, ``relative_square``, which compares lengths and scales, ``closeness``.

    In float32 the truth would be further off than a network: a sum of a million numbers, added one after the other.
    """
    rows, factors = [], [positive("scale", scale) for scale in scales]
    for n in lengths:
        for scale in factors:
            _check_room(len(members), whole("samples", samples), whole("n", n), device)
            x, y = _draw_by_task(members, samples, n, scale, split, device)
            out = predict(x)
            for index, (name, seed) in enumerate(members):
                own = {"member": index, "task": name, "seed": seed, "n": n, "scale": scale}
                rows.append(own | {key: measure(out[index], y[index]).item() for key, measure in OF_LENGTHS.items()})
    if not rows:
        raise UsageError("lengths or scales is empty; give at least one of each.")
    return pd.DataFrame(rows).sort_values("member", kind="stable", ignore_index=True)


def _check_room(members: int, samples: int, n: int, device: torch.device | None) -> None:
    """Raises where lists, truth and answers do not fit, with what their errors take and the truth's n columns.

    Both where the truth is computed and where the networks are, if these are two places.
    """
    own, columns = torch.device("cpu") if device is None else device, _place_of_truth(n, device)
    for place in dict.fromkeys((columns, own)):
        need, free = n * (56 * members * samples + (_COLUMN if place == columns else 0)), free_bytes(place)
        if need > free:
            raise UsageError(
                f"samples is {samples}; so many lists of {n} numbers, for each of {members} networks, take {need / 1e9:.1f} GB "
                f"of memory, and {free / 1e9:.1f} GB are free on the {'CPU' if place.type == 'cpu' else 'GPU'}."
            )


def _measure(
    predict: Predict,
    members: Sequence[tuple[str, int]],
    samples: int,
    n: int,
    scale: float,
    split: str,
    device: torch.device | None,
) -> Float[Tensor, "3 M"]:
    """Squared error, rounding and closeness accuracy of every member on lists of one length."""
    x, _ = draw(members, samples, n, scale, split, device=device)
    out, y = predict(x), _truth(x, members)
    integers, _ = draw(members, samples, n, scale, split, True, device)
    answers = zip(predict(integers), _truth(integers, members), members, strict=True)
    rounding = [rounding_accuracy(answer, right, task(name).rounding_step) for answer, right, (name, _) in answers]
    return torch.stack([mean_squared_error(out, y), torch.stack(rounding), closeness_accuracy(out, y)])


def draw(
    members: Sequence[tuple[str, int]],
    samples: int,
    n: int,
    scale: float,
    split: str,
    integers: bool = False,
    device: torch.device | None = None,
) -> tuple[Shaped[Tensor, "M b k"], Shaped[Tensor, "M b out"]]:
    """Every member's own lists and their answers."""
    tasks: list[Task] = [task(name) for name, _ in members]
    pairs = [
        own.sample(samples, n=n, scale=scale, seed=seed, split=split, integers=integers, device=device)
        for own, (_, seed) in zip(tasks, members, strict=True)
    ]
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def _truth(x: Float[Tensor, "M b k"], members: Sequence[tuple[str, int]]) -> Float64[Tensor, "M b k"]:
    """The answers to every member's own lists."""
    return torch.stack([_answers(name, lists) for (name, _), lists in zip(members, x, strict=True)])


def _answers(name: str, x: Float[Tensor, "*lead k"]) -> Float64[Tensor, "*lead k"]:
    """What the task's ``target`` says, in float64 unless it takes no other numbers than training's."""
    try:
        return task(name).target(x.double()).double()
    except RuntimeError:  # as of products with constants in float32
        return task(name).target(x).double()


_COLUMN = 1500  # bytes, about: two tensors, and their places in lists
_LONG = 1 << 13  # numbers: answers take a step for each, which a CPU does faster


def _place_of_truth(n: int, device: torch.device | None) -> torch.device:
    return torch.device("cpu") if device is None or n > _LONG else device


def _draw_by_task(
    members: Sequence[tuple[str, int]], samples: int, n: int, scale: float, split: str, device: torch.device | None
) -> tuple[Float[Tensor, "M b k"], Float[Tensor, "M b k"]]:
    """The lists of ``draw``, all of a task at once, and their answers in float64."""
    place = _place_of_truth(n, device)
    pairs: dict[int, tuple[Tensor, Tensor]] = {}
    for name in dict.fromkeys(name for name, _ in members):
        own = [index for index, (other, _) in enumerate(members) if other == name]
        seeds = [members[index][1] for index in own]
        x, _ = task(name).sample(samples, n=n, scale=scale, seed=seeds, split=split, device=place)
        y = _answers(name, x)
        pairs |= dict(zip(own, zip(x.to(device), y.to(device), strict=True), strict=True))
    return torch.stack([pairs[k][0] for k in range(len(members))]), torch.stack(
        [pairs[k][1] for k in range(len(members))]
    )
