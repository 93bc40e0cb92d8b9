"""Positional Transformers: attention that depends on positions alone, and everything around it.

config = posattn.ModelConfig(n=8)                # the paper's positional Transformer for lists of 8
model = posattn.Transformer(config)              # (batch, n) numbers in, (batch, n) numbers out
run = posattn.train("sort", config, members=10, out="runs/sort")
run.evaluate(scales=range(1, 11))                # error in and out of distribution
"""

from posattn.attention import PositionalAttention
from posattn.baselines import GraphConfig
from posattn.compiled_run import CompiledRun
from posattn.compiler import compile
from posattn.errors import UsageError
from posattn.folding import Frozen
from posattn.guarantees import generalization_bound
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
    "ARCHITECTURES", "CompiledRun", "Frozen", "GraphConfig", "LoopedConfig", "ModelConfig", "PositionalAttention", "Recipe",
    "Run", "TokenConfig", "Transformer", "UsageError", "compile", "generalization_bound", "load", "ood_probability",
    "pretrained", "task", "train",
]  # fmt: skip
