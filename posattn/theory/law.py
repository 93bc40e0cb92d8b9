"""The exact law of scale-exact models (docs/scale-law.md): MSE(c) = (c² + 1) MSE(1) for c > 1, and c² MSE(1) for c <= 1."""

from collections.abc import Callable, Iterable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from posattn.errors import function, instance, positive, several, whole
from posattn.tasks import Task


def law_factor(scale: float) -> float:
    """MSE(c)/MSE(1) of a homogeneous model on a homogeneous task under the paper's sampler."""
    c = positive("scale", scale)
    # Without rejection the error on [-2c, 2c] is c² MSE(1). Rejection drops the share 1/c² of lists, whose bounds are both
    # inside [-2, 2] and whose error is MSE(1): c² MSE(1) = (1/c²) MSE(1) + (1 - 1/c²) MSE(c).
    return c * c + 1 if c > 1 else c * c


def law_table(
    predict: Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]],
    task: Task,
    n: int,
    scales: Iterable[float] = (1, 2, 5, 10, 100),
    samples: int = 100_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Measured and predicted errors per scale: ``mse``, ``law`` (the factor times MSE(1)), their ``ratio`` and its ``noise``,
    the standard error of the ratio."""
    whole("samples", samples, least=2)
    instance("task", task, Task, "a Task, such as posattn.task('sum')")
    function("predict", predict)
    errors = {}
    for c in dict.fromkeys([1.0, *(positive("scale", scale) for scale in several("scales", scales))]):
        x, y = task.sample(samples, n=n, scale=c, seed=seed, split="test")
        with torch.no_grad():
            errors[c] = (predict(x) - y).double().square().mean(dim=-1)
    noise = {c: float(each.std() / each.mean()) / samples**0.5 for c, each in errors.items()}
    rows = []
    for c, each in errors.items():
        law = law_factor(c) * float(errors[1.0].mean())
        about = {"scale": c, "mse": float(each.mean()), "law": law, "ratio": float(each.mean()) / law}
        rows.append(about | {"noise": (noise[c] ** 2 + noise[1.0] ** 2) ** 0.5 if c != 1 else 0.0})
    return pd.DataFrame(rows)
