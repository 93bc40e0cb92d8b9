"""Layers for anyone's network: attention whose weights depend on positions alone."""

from posattn.layers.every_length import LoopedAttention
from posattn.layers.positional import FrozenAttention, PositionalAttention

__all__ = ["FrozenAttention", "LoopedAttention", "PositionalAttention"]
