"""Trained networks that come with the package: for each task and architecture the median of ten full-recipe runs.

The median is the fifth of ten by its error at scale 1; of arch ``looped``, which is for lists of every length, the third of
five. ``posattn/data/pretrained/ARCH.safetensors`` holds the weights, and ``ARCH.json`` beside it the configuration, each
network's seed, and its measured errors on test lists of 8 of that seed.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files as resources
from types import ModuleType
from typing import Any

import pandas as pd
import safetensors.torch
import torch

from posattn.devices import pick_device
from posattn.errors import UsageError, choice, instance, meant
from posattn.model import Transformer
from posattn.network import from_dict
from posattn.training import Run

_FOLDER = resources("posattn").joinpath("data/pretrained")
COMPARED = ("positional", "scale-exact", "standard")  # architectures for lists of 8, in the order of figures and pages


def pretrained(task: str, arch: str = "positional") -> Transformer:
    """A trained network, ready for use: ``pretrained("sort", arch="looped")(torch.tensor([[3.0, 1.0, ...]]))``.

    It was trained on lists of 8 numbers, and answers shorter ones badly; with arch ``looped`` it takes any length.
    """
    described = _describe(arch)
    instance("task", task, str, "a task's name")
    if task not in described["models"]:
        archs = {each: _describe(each)["models"] for each in _architectures()}
        others = dict.fromkeys(name for own in archs.values() for name in own if name not in described["models"])
        more = [f"{name} (with arch {' or '.join(each for each in archs if name in archs[each])})" for name in others]
        known = meant(task, {*described["models"], *others} - {task})
        raise UsageError(f"task is {known}; it must be one of {', '.join([*described['models'], *more])}.")
    config = described["models"][task].get("model") or described["model"]
    weights = safetensors.torch.load(_FOLDER.joinpath(f"{arch}.safetensors").read_bytes())
    model = from_dict(config).build()
    assert isinstance(model, Transformer)
    model.trained_on = task
    model.load_state_dict(
        {name.removeprefix(f"{task}/"): w for name, w in weights.items() if name.startswith(f"{task}/")}
    )
    return model.eval()


def pretrained_run(task: str, arch: str = "positional", device: str | torch.device | None = "cpu") -> Run:
    """The same network as a run of one member. Its seed is that of the test lists behind its stored errors."""
    model = pretrained(task, arch).to(pick_device(device))
    return Run.of(model, task, int(_describe(arch)["models"][task]["seed"]))


def pretrained_errors() -> pd.DataFrame:
    """The stored errors: one row per architecture, task and scale, with ``mse`` and the two accuracies."""
    rows = []
    for arch in _architectures():
        for name, model in _describe(arch)["models"].items():
            own = {"arch": arch, "task": name, "seed": model["seed"]}
            metrics = ("mse", "rounding", "closeness")
            rows += [own | {"scale": float(c)} | {key: model[key][c] for key in metrics} for c in model["mse"]]
    return pd.DataFrame(rows)


def _architectures() -> list[str]:
    return sorted(path.name.removesuffix(".json") for path in _FOLDER.iterdir() if path.name.endswith(".json"))


def _describe(arch: str) -> dict[str, Any]:
    choice("arch", arch, _architectures())
    described: dict[str, Any] = json.loads(_FOLDER.joinpath(f"{arch}.json").read_text(encoding="utf-8"))
    return described


class _Callable(ModuleType):
    """Lets ``posattn.pretrained``, which is this module, be called as the function, and pickled as one is: by its name."""

    def __call__(self, task: str, arch: str = "positional") -> Transformer:
        return pretrained(task, arch)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Callable
