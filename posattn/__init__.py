"""Positional Transformers: attention that depends on positions alone, and everything around it.

config = posattn.ModelConfig(n=8)                # the paper's positional Transformer for lists of 8
model = posattn.Transformer(config)              # (batch, n) numbers in, (batch, n) numbers out
run = posattn.train("sort", config, members=10, out="runs/sort")
run.evaluate(scales=range(1, 11))                # error in and out of distribution
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posattn.baselines import GraphConfig
    from posattn.compiled_run import CompiledRun
    from posattn.compiler import compile, program
    from posattn.errors import UsageError
    from posattn.folding import Frozen
    from posattn.guarantees import generalization_bound
    from posattn.layers import LoopedAttention, PositionalAttention
    from posattn.looped import LoopedConfig
    from posattn.model import ARCHITECTURES, ModelConfig, Transformer
    from posattn.pretrained import pretrained
    from posattn.runs import load
    from posattn.tasks import task
    from posattn.theory import ood_probability
    from posattn.tokens import TokenConfig
    from posattn.training import Recipe, Run, train

__version__ = "0.1.0"

__all__ = [
    "ARCHITECTURES", "CompiledRun", "Frozen", "GraphConfig", "LoopedAttention", "LoopedConfig", "ModelConfig",
    "PositionalAttention", "Recipe", "Run", "TokenConfig", "Transformer", "UsageError", "compile", "generalization_bound",
    "load", "ood_probability", "pretrained", "program", "task", "train",
]  # fmt: skip

# Where they are defined. They are imported when the first is asked for: help needs neither them nor torch.
_HOMES = (
    *("baselines", "compiled_run", "compiler", "errors", "folding", "guarantees", "layers", "looped", "model", "pretrained"),
    *("runs", "tasks", "theory", "tokens", "training"),
)


def import_all() -> None:
    """Imports all public names, and with them every kind of network and of run, each of which registers itself."""
    for home in _HOMES:
        defined = vars(importlib.import_module(f"posattn.{home}"))
        names = (name for name in __all__ if name in defined and name != home)  # pretrained is a module to call
        globals().update({name: defined[name] for name in names})


def __getattr__(name: str) -> Any:
    if name in __all__:
        import_all()
        return globals()[name]
    try:
        return importlib.import_module(f"posattn.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"posattn.{name}":  # what the module itself needs
            raise
    raise AttributeError(f"module 'posattn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
