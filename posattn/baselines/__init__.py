"""What the paper compares with, beside the standard Transformer: graph networks (``gnn``)."""

from posattn.baselines.gnn import GraphConfig, GraphNetwork

__all__ = ["GraphConfig", "GraphNetwork"]
