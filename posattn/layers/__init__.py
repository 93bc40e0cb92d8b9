"""Layers for anyone's network: attention whose weights depend on positions alone."""

from posattn.layers.positional import FrozenAttention, PositionalAttention

__all__ = ["FrozenAttention", "PositionalAttention"]
