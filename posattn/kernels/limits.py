"""Which networks the kernels serve. It imports no Triton, so that others can ask where there is none."""

from posattn.folding.queries_and_keys import keeps_queries_apart
from posattn.model import ModelConfig

ROWS = 64  # per tile, which holds as many whole lists as fit


def serves(config: ModelConfig, precision: str) -> bool:
    """Two heads, lists that fit a tile, at most 64 input features and a width of at most 64.

    In full float32 the matrices of self-attention do not fit on chip, so there and for tokens PyTorch computes. Queries and
    keys that do not multiply out may have up to 64 entries.
    """
    positional = config.attends == "position" and config.reads == "none"
    return (
        (precision in ("fp16", "tf32") or (precision == "fp32" and positional))
        and config.heads == 2
        and config.positions <= ROWS
        and config.width <= 64
        and config.input_dim <= 64
        and (config.d_k <= 64 or not keeps_queries_apart(config))
    )


def folds_rows(config: ModelConfig) -> bool:
    """Whether the kernels of ``folds`` make the products, too."""
    sizes = config.embed in (32, 64) and config.width in (16, 32, 64) and config.d_k <= 64 and config.encoding_dim <= 64
    return sizes and not config.causal and not keeps_queries_apart(config)
