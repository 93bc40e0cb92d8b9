"""The same network multiplied out: what training, evaluation, export and inference compute with.

fold.py               the products of weights that no input comes between, and their adjoint
queries_and_keys.py   the same for queries and keys that do not multiply out
forward.py            answers from the folded tensors
loops.py              the looped network, folded
frozen.py             one network for inference on lists of one length
"""

from posattn.folding.fold import Fold, FoldFromEncoder, SharedFold, Tensors, fold, input_encoding, stack_layers
from posattn.folding.forward import folded_forward
from posattn.folding.frozen import Frozen
from posattn.folding.loops import looped_forward

__all__ = [
    "Fold", "FoldFromEncoder", "Frozen", "SharedFold", "Tensors", "fold", "folded_forward", "input_encoding",
    "looped_forward", "stack_layers",
]  # fmt: skip
