"""Programs as the weights of the looped network (docs/any-length.md): exact for lists of every length.

A scan has one head, which looks s = 2^l back. Its state is the words of a stretch, and Φ joins the partner's stretch with its
own. A position whose partner is not in the list keeps its state, so Φ never sees a blank. A bitonic sorter has two heads. Head
1 brings the partner's number p. Head 2 brings p where the position keeps min(x, p), and its own x where it keeps max(x, p):

    Φ  =  x + max(h_1, h_2) - max(x, h_2)  =  x + p - max(x, p) = min(x, p),  or  x + max(p, x) - x = max(x, p).

A selector, which gives the median of the whole list, has the same Φ. In its last step the two middle numbers of the sorted list
take their mean: head 1 attends to both equally, so h_1 = (x + p) / 2. Head 2 brings x at the lower number and h_1 at the upper
one, so Φ = h_1 at both.

The Φ are those of the compiler's programs, lowered by ``expressions_to_relu``; none needs a bias.

Letters: w words of a state, H heads, K classes of positions, C candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posattn.compiler.analysis import Analysis, Known
from posattn.compiler.expressions import Expression, MemoryCell, maximum, minimum
from posattn.compiler.expressions_to_relu import relu_layers
from posattn.compiler.programs import joined_stretch
from posattn.errors import choice
from posattn.looped.families import FAMILIES
from posattn.looped.looped_model import LoopedConfig, LoopedTransformer

_CERTAIN = 1000.0  # with logits this far apart softmax is hardmax, in float64 too
_ANY = 1e200  # the analysis wants a range; no weight depends on it


@dataclass(frozen=True)
class LoopedProgram:
    """One row of the table.

    heads: where each head looks, per class of positions: at one of the family's candidates r, at several equally, or at
        the sink (None).
    reads: the words of the state that each head brings.
    phi: the new words, from those that the heads bring and the position's own.
    """

    family: str
    words: int
    heads: tuple[tuple[int | tuple[int, ...] | None, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    phi: Callable[[Sequence[Expression], Sequence[Expression]], Sequence[Expression]]


def _scan(
    combine: Callable[[Sequence[Expression], Sequence[Expression]], Sequence[Expression]], words: int = 1
) -> LoopedProgram:
    return LoopedProgram("dilated", words, ((-1,),), (tuple(range(words)),), combine)


def _exchange(brought: Sequence[Expression], own: Sequence[Expression]) -> Sequence[Expression]:
    return [own[0] + maximum(brought[0], brought[1]) - maximum(own[0], brought[1])]


# Classes of the butterfly: lower of an ascending and of a descending pair, then upper of each. A lower one's partner is ahead.
_PARTNER = (1, 1, -1, -1)
_PARTNER_IF_LESS = (1, 0, 0, -1)
# The selector adds three: the lower and the upper of the middle two, and positions that keep their number.
_PARTNER_OR_MEAN = (*_PARTNER, (0, 1), (0, -1), 0)
_THE_SAME_IF_LESS = (*_PARTNER_IF_LESS, 0, (0, -1), 0)

LOOPED_PROGRAMS: dict[str, LoopedProgram] = {
    "sum": _scan(lambda a, b: [a[0] + b[0]]),
    "min": _scan(lambda a, b: [minimum(a[0], b[0])]),
    "maxsub": _scan(joined_stretch, words=4),
    "sort": LoopedProgram("butterfly", 1, (_PARTNER, _PARTNER_IF_LESS), ((0,),) * 2, _exchange),
    "median-total": LoopedProgram("selector", 1, (_PARTNER_OR_MEAN, _THE_SAME_IF_LESS), ((0,),) * 2, _exchange),
}


def looped_program(task: str) -> LoopedTransformer:
    """The looped network that solves a task (sum, min, maxsub, sort, median-total) exactly, for lists of every length."""
    row = LOOPED_PROGRAMS[choice("task", task, LOOPED_PROGRAMS)]
    brought = sum(len(words) for words in row.reads)
    cells = [MemoryCell(index) for index in range(brought + row.words)]
    anything = Analysis([Known(-_ANY, _ANY)] * len(cells), 0)
    # The analysis also wants a column for the machine's number, which no expression reads.
    maps = relu_layers(row.phi(cells[:brought], cells[brought:]), anything, [*range(len(cells)), 0], len(cells))
    config = LoopedConfig(
        n=16,
        family=row.family,
        sharpness=1.0,
        heads=len(row.heads),
        embed=row.words,
        d_v=len(row.reads[0]),
        mlp=(tuple(len(each.bias) for each in maps[:-1]),),
    )
    model = LoopedTransformer(config).double().requires_grad_(False)
    layer = model.layer
    for linear, each in zip((layer.W_1, *layer.between, layer.W_2), maps, strict=True):
        assert not each.bias.any()
        linear.weight.copy_(torch.from_numpy(each.dense()))
    layer.attention.logits.copy_(_logits(row))
    layer.attention.W_V.weight.copy_(torch.eye(row.words)[[word for words in row.reads for word in words]])
    layer.attention.W_O.weight.copy_(torch.eye(brought))
    model.encoder.weight.copy_(torch.ones(row.words, 1))
    model.decoder.weight.copy_(torch.eye(row.words)[-1:])
    return model


def _logits(row: LoopedProgram) -> Tensor:
    candidates = (*FAMILIES[row.family].candidates, None)
    looks = [[places if isinstance(places, tuple) else (places,) for places in head] for head in row.heads]
    return _CERTAIN * torch.tensor([[[r in places for r in candidates] for places in head] for head in looks])
