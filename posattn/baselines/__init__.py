"""What the paper compares with, beside the standard Transformer: graph networks (``gnn``), and GPT-2 (``gpt2``)."""

from posattn.baselines.gnn import GraphConfig, GraphNetwork

__all__ = ["GraphConfig", "GraphNetwork"]
