"""Looped positional networks for lists of every length, self-attention beside them, and table networks for tokens."""

from posattn.looped.any_length import AnyLengthConfig, AnyLengthTransformer
from posattn.looped.families import FAMILIES, Family, Loop
from posattn.looped.looped_model import LoopedConfig, LoopedTransformer
from posattn.looped.prompt_table import PromptTableConfig, PromptTableNetwork
from posattn.looped.table_model import TableConfig, TableNetwork

__all__ = [
    "FAMILIES", "AnyLengthConfig", "AnyLengthTransformer", "Family", "Loop", "LoopedConfig", "LoopedTransformer",
    "PromptTableConfig", "PromptTableNetwork", "TableConfig", "TableNetwork",
]  # fmt: skip
