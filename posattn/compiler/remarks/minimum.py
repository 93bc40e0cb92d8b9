"""The minimum of n numbers in two ways (end of Section 6): one self-attention layer, or log2 n positional layers.

Self-attention with logits -T x_j returns Σ_j softmax(-T x)_j x_j, which exceeds the minimum by at most (n - 1) / (e T): a
number that exceeds the minimum by g has at most the weight e^(-T g) and adds at most g e^(-T g) ≤ 1 / (e T). The bound does
not depend on the numbers' size, so the relative error is largest for small numbers. A binary tree of positional layers is
exact at every size, up to rounding.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from posattn.compiler.compiling import compile
from posattn.compiler.pcoc_to_weights import blank_transformer
from posattn.errors import positive
from posattn.model import Layer, ModelConfig, Transformer


def attention_minimum(n: int, temperature: float) -> Transformer:
    """A standard Transformer of one layer and one head whose every output is nearly the minimum of its n inputs.

    The state is (x, 1, whether it is the scratchpad). The scratchpad's logit is so low that nothing attends to it.
    """
    config = ModelConfig(n, "standard", layers=1, heads=1, embed=3, width=2, d_k=1)
    model = blank_transformer(config)
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    model.encoder.weight[0, 0] = 1.0
    model.encoder.bias[1] = 1.0
    model.encoder.weight[2, -1] = 1.0
    layer.attention.W_Q.weight[0, 1] = 1.0
    layer.attention.W_K.weight[0, 0] = -positive("temperature", temperature)
    layer.attention.W_K.weight[0, 2] = -1e30
    layer.attention.W_V.weight[0, 0] = 1.0
    layer.attention.W_O.weight[0, 0] = 1.0
    # Φ passes the attended number on: relu(y) - relu(-y).
    layer.W_1.weight[:, 0] = torch.tensor([1.0, -1.0], dtype=torch.float64)
    layer.W_2.weight[0] = torch.tensor([1.0, -1.0], dtype=torch.float64)
    model.decoder.weight[0, 0] = 1.0
    return model


def compare_minima(
    lengths: Iterable[int] = (4, 16, 64),
    magnitudes: Iterable[float] = (0.01, 0.1, 1.0, 10.0, 100.0),
    temperature: float = 10.0,
    samples: int = 200,
) -> pd.DataFrame:
    """The mean relative error of both networks on uniform numbers of each magnitude, with the bound and the layers."""
    sizes = list(magnitudes)
    rows = []
    for n in lengths:
        one, tree = attention_minimum(n, temperature), compile("tree-min", n, bound=max(sizes))
        unit = torch.from_numpy(np.random.default_rng(n).uniform(-1, 1, (samples, n)))
        for magnitude in sizes:
            x = magnitude * unit
            truth = x.amin(dim=-1)
            errors = [(network(x)[:, -1] - truth).abs() for network in (one, tree)]
            row = [(error.mean() / magnitude).item() for error in errors]
            rows.append(
                (n, magnitude, row[0], (n - 1) / (math.e * temperature * magnitude), row[1], tree.config.layers - 1)
            )
    columns = ["n", "magnitude", "self-attention", "its bound", "positional", "positional layers"]
    return pd.DataFrame(rows, columns=columns)
