"""A compiled program without its large matrices: hardmax attention as indexing, and sparse MLPs.

A row of a hardmax pattern is a unit vector, so A X selects rows of X, and n indices replace the n² logits of a head. W_V and
W_O then only put each word back in its place. The MLPs are mostly zeros, and rounds with the same computation share one. The
result computes the same as the Transformer (a test compares them), at sizes whose dense weights fit into no memory.
"""

import math
import warnings

import torch
from torch import Tensor

from posattn.compiler.analysis import Margins
from posattn.compiler.expressions_to_relu import Map
from posattn.compiler.machine_memory import check_real, memory_cells, refuse_breaches, within_bounds
from posattn.compiler.mpc import MPC
from posattn.compiler.mpc_to_pcoc import fixed_communication
from posattn.compiler.pcoc import PCOC
from posattn.compiler.pcoc_to_weights import analyse, compiled_config, listens_to
from posattn.errors import UsageError, shown

_SPARSE = 0.1  # a matrix with a smaller share of nonzero entries is stored sparse
_TILE = 1 << 18  # numbers of a hidden layer computed at once, so that they stay in the processor's cache


class SelectionNetwork:
    """``network(x)`` maps (..., N, c), or (..., N) if c = 1, to (..., N, outputs), or (..., N), in float64.

    Of an MPC program it is the network of Lemma B.1, every round routed.
    """

    def __init__(self, program: PCOC | MPC):
        if not isinstance(program, (PCOC, MPC)):
            raise UsageError(f"program is {shown(program)}; it must be a PCOC or an MPC program.")
        self.program = program = fixed_communication(program)
        maps, _ = analyse(program, Margins())
        self.config = compiled_config(program, maps, None, "lean")  # of the Transformer that computes the same
        kept = {id(mlp): [(_compact(own), torch.from_numpy(own.bias)[:, None]) for own in mlp] for mlp in maps}
        self.layers = [kept[id(layer)] for layer in maps]
        self.distinct = list(kept.values())
        self.sources = [torch.from_numpy(listens_to(program, index).T.copy()) for index in range(len(maps))]

    @property
    def stored(self) -> int:
        """How many numbers are stored: indices and nonzero weights."""
        weights = [tensor for layer in self.distinct for pair in layer for tensor in pair]
        return sum(w._nnz() if w.layout == torch.sparse_csr else w.numel() for w in weights) + sum(
            source.numel() for source in self.sources
        )

    def __call__(self, x: Tensor) -> Tensor:
        program, c = self.program, len(self.program.inputs)
        check_real(x, torch.float64)
        given = within_bounds(x, program.length, program.bounds, program.integers).double()
        words = memory_cells(given, torch.arange(program.machines + 1), c)
        lists = words.reshape(math.prod(words.shape[:-2]), *words.shape[-2:])
        tiles = lists.split(max(1, _TILE // (self.config.width * words.shape[-2])))
        answers = torch.cat([self._answers(tile) for tile in tiles])
        answers = answers.reshape(*words.shape[:-2], program.length, len(program.outputs))
        return answers[..., 0] if len(program.outputs) == 1 else answers

    def _answers(self, words: Tensor) -> Tensor:
        program, c = self.program, words.shape[-1] - 1
        state = torch.zeros(*words.shape[:-1], program.memory + 1, dtype=torch.float64)
        state[..., :c], state[..., -1] = words[..., :c], words[..., -1]
        for sources, maps in zip(self.sources, self.layers, strict=True):
            received = state[..., :-1].gather(-2, sources.expand(*state.shape[:-1], -1))
            state = _mlp(maps, torch.cat([received, torch.zeros_like(state[..., :1]), state], dim=-1))
        refuse_breaches(state, len(self.layers))
        return state[..., : program.length, list(program.outputs)]


def _compact(own: Map) -> Tensor:
    if len(own.values) >= _SPARSE * math.prod(own.shape):
        return torch.from_numpy(own.dense())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that CSR is in beta
        entries = torch.sparse_coo_tensor(
            torch.from_numpy(own.indices.T.copy()), torch.from_numpy(own.values), own.shape
        )
        return entries.to_sparse_csr()


def _mlp(maps: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Φ, with positions as columns, as sparse products want them."""
    hidden = x.flatten(0, -2).T.contiguous()
    for depth, (weight, bias) in enumerate(maps, start=1):
        hidden = (weight @ hidden).add_(bias)
        if depth < len(maps):
            hidden.relu_()
    return hidden.T.reshape(*x.shape[:-1], len(hidden))
