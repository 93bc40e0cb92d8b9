"""A compiled program without its large matrices: hardmax attention as indices, and MLPs as the weights that are not 0.

A row of a hardmax pattern is a unit vector, so A X selects rows of X, and n indices replace the n² logits of a head. W_V and
W_O then only put each word back in its place. The MLPs are mostly zeros, and rounds with the same computation share one. The
result computes the same as the Transformer (a test compares them), at sizes whose dense weights fit into no memory.

Letters: N positions (machines and the sink), s heads, one for each word of a machine's memory, d = s + 1 the state's width.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from posattn.compiler.compiled_model import CompiledConfig, CompiledTransformer, require_room_for
from posattn.compiler.expressions import Array
from posattn.errors import UsageError, instance, whole
from posattn.model import Layer

_TILE = 1 << 18  # numbers of a hidden layer computed at once, so that they stay in the processor's cache

with warnings.catch_warnings():  # PyTorch warns once that CSR is in beta, and 2.11 that it does not check invariants
    warnings.simplefilter("ignore")
    _one = torch.eye(1, device="cpu").to_sparse_csr()
    torch.sparse_csr_tensor(_one.crow_indices(), _one.col_indices(), _one.values(), (1, 1), device="cpu")


@dataclass(frozen=True)
class SelectionConfig(CompiledConfig):
    """What determines a compiled network without its large matrices up to its numbers.

    Args:
        entries: of every different MLP, how many weights of each linear map are not 0.
        uses: of every layer, which of these MLPs it has.
    """

    entries: tuple[tuple[int, ...], ...] = field(kw_only=True)
    uses: tuple[int, ...] = field(kw_only=True)

    kind: ClassVar[str] = "selection"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hardmax:
            raise UsageError("hardmax is False; attention by indices is hardmax.")
        if self.d_v != 1:
            raise UsageError(f"d_v is {self.d_v}; attention by indices brings every head one number.")
        if not isinstance(self.entries, tuple) or not all(isinstance(own, tuple) for own in self.entries):
            raise UsageError(f"entries is {self.entries!r}; it must be a tuple with a tuple of counts for each MLP.")
        for own in self.entries:
            for count in own:
                whole("entries", count, least=0)
        known = range(len(self.entries))
        if not isinstance(self.uses, tuple) or len(self.uses) != self.layers or not all(u in known for u in self.uses):
            raise UsageError(
                f"uses is {self.uses!r}; it must be the number of an MLP for each of {self.layers} layers."
            )
        for hidden, use in zip(self.mlp, self.uses, strict=True):
            if len(self.entries[use]) != len(hidden) + 1 or hidden != self.mlp[self.uses.index(use)]:
                raise UsageError(
                    f"entries has {self.entries[use]} for MLP {use}, which does not suit the widths {hidden}."
                )

    @property
    def mlps(self) -> list[list[tuple[int, int, int]]]:
        """Of every different MLP that a layer has, its linear maps: numbers read, numbers given, weights that are not 0."""
        used = [self.mlp[self.uses.index(use)] if use in self.uses else () for use in range(len(self.entries))]
        sizes = [pairwise((2 * self.embed, *hidden, self.embed)) for hidden in used]
        return [
            [(read, given, count) for (read, given), count in zip(own, counts, strict=True)]
            for own, counts in zip(sizes, self.entries, strict=True)
        ]

    @property
    def least_numbers(self) -> int:
        """The indices of attention, the weights that are not 0, and biases; where the weights stand comes on top."""
        ends = self.input_dim + self.embed + 2 * self.outputs
        kept = sum(count + given for own in self.mlps for _, given, count in own)
        return ends + kept + self.layers * self.positions * self.heads

    @property
    def dense(self) -> CompiledConfig:
        """The configuration of the Transformer that computes the same."""
        return CompiledConfig(**{each.name: getattr(self, each.name) for each in fields(CompiledConfig)})


class SparseLinear(nn.Module):
    """x to W x + b. Row r of W has ``values[starts[r] : starts[r + 1]]`` in the ``columns`` of these places, and else 0."""

    starts: Tensor
    columns: Tensor
    values: Tensor
    bias: Tensor

    def __init__(self, read: int, given: int, entries: int):
        super().__init__()
        self.shape = given, read
        starts = torch.zeros(given + 1, dtype=torch.int32)
        starts[-1] = entries
        self.register_buffer("starts", starts)
        self.register_buffer("columns", torch.zeros(entries, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(entries))
        self.register_buffer("bias", torch.zeros(given))

    def write(self, places: NDArray[np.int64], values: Array, bias: Array | float = 0.0) -> None:
        """Sets W to ``values`` at ``places`` (row, column) and to 0 elsewhere, and b."""
        order = np.lexsort((places[:, 1], places[:, 0]))
        rows, columns = places[order].T
        self.starts[1:] = torch.from_numpy(np.bincount(rows, minlength=self.shape[0]).cumsum())
        self.columns.copy_(torch.from_numpy(columns.copy()))
        self.values.copy_(torch.from_numpy(values[order]))
        self.bias.copy_(torch.as_tensor(bias))

    @property
    def sound(self) -> bool:
        """Whether the places of the weights are such as ``write`` gives, so that nothing beyond memory is read."""
        starts, columns, (_, read) = self.starts, self.columns, self.shape
        ordered = bool((starts.diff() >= 0).all()) and starts[0] == 0 and starts[-1] == len(columns)
        return bool(ordered) and bool(((columns >= 0) & (columns < read)).all())

    def _matrix(self) -> Tensor:
        return torch.sparse_csr_tensor(self.starts, self.columns, self.values, self.shape, check_invariants=False)

    def dense(self) -> nn.Linear:
        """The same map with all of W."""
        given, read = self.shape
        made = nn.Linear(read, given)
        made.weight = nn.Parameter(self._matrix().to_dense(), requires_grad=False)
        made.bias = nn.Parameter(self.bias.clone(), requires_grad=False)
        return made

    def forward(self, x: Float[Tensor, "*batch read"]) -> Float[Tensor, "*batch given"]:
        # Positions are columns, as sparse products want them; the transposes are views.
        given = (self._matrix() @ x.flatten(0, -2).mT.contiguous()).add_(self.bias[:, None])
        return given.mT.unflatten(0, x.shape[:-1])


class Selection(nn.Module):
    """Hardmax attention as indices: head h of position i attends to position ``sources[i, h]``, and hears its word h."""

    sources: Tensor

    def __init__(self, positions: int, heads: int):
        super().__init__()
        self.register_buffer("sources", torch.zeros(positions, heads, dtype=torch.int64))

    def weights(
        self, features: Float[Tensor, "N d_P"], positions: Int64[Tensor, " N"] | None = None, mask: None = None
    ) -> Float[Tensor, "s N N"]:
        """A: a unit vector in every row."""
        return one_hot(self.sources.mT, len(self.sources)).to(features.dtype)

    def heard(self, x: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*batch N d"]:
        """(⊕_h A_h X W_V,h) W_O: word h from where head h attends, and 0 in place of the machine's number."""
        words = x[..., :-1]
        return pad(words.gather(-2, self.sources.expand(words.shape)), (0, 1))


class SelectionLayer(Layer):
    """Eq. 1 with attention by indices and a sparse Φ, which layers may share."""

    def __init__(self, attention: Selection, mlp: Sequence[SparseLinear]):
        nn.Module.__init__(self)
        self.attention, self.attends, self.causal = attention, "position", False
        self.W_1, *between, self.W_2 = mlp  # type: ignore[assignment]  # for Layer they are nn.Linear
        self.between = nn.ModuleList(between)

    def forward(
        self, x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d_P"], positions: Int64[Tensor, " n"]
    ) -> Float[Tensor, "*batch n d"]:
        return self.update(self.attention.heard(x), x)


class SelectionNetwork(CompiledTransformer):
    """A compiled program whose attention is indices and whose MLPs are sparse: the same states and answers.

    It has no parameters, and so cannot be trained.
    """

    config: SelectionConfig
    encoder: Any
    decoder: Any

    def __init__(self, config: SelectionConfig):
        nn.Module.__init__(self)
        instance("config", config, SelectionConfig, "a SelectionConfig").require_room()
        self.config = config
        mlps = [[SparseLinear(*sizes) for sizes in own] for own in config.mlps]
        self.encoder = SparseLinear(config.input_dim, config.embed, config.input_dim)
        self.layers = nn.ModuleList(
            SelectionLayer(Selection(config.positions, config.heads), mlps[use]) for use in config.uses
        )
        self.decoder = SparseLinear(config.embed, config.outputs, config.outputs)
        self.register_buffer("P", torch.zeros(config.positions, 0), persistent=False)  # indices need no encodings

    @property
    def input_dtype(self) -> torch.dtype:
        return self.P.dtype

    def last_state(self, x: Shaped[Tensor, "*input"]) -> Float[Tensor, "*any N d"]:
        z, p, positions = self.encode(x)
        if torch.compiler.is_exporting():
            return self._passed(z, p, positions)
        lists = z.reshape(math.prod(z.shape[:-2]), *z.shape[-2:])
        tiles = lists.split(max(1, _TILE // (self.config.width * z.shape[-2])))
        return torch.cat([self._passed(tile, p, positions) for tile in tiles]).reshape(z.shape)

    def _passed(self, z: Tensor, p: Tensor, positions: Tensor) -> Tensor:
        for layer in self.layers:
            z = layer(z, p, positions)
        return z

    def with_matrices(self) -> "SelectionNetwork":
        """Itself, after its sparse maps were made whole matrices, for programs that have no sparse products."""
        require_room_for("the exported program", sum(a * b for own in self.config.mlps for a, b, _ in own), sparse=True)
        made: dict[nn.Module, nn.Linear] = {}
        for part in list(self.modules()):
            for name, child in list(part.named_children()):
                if isinstance(child, SparseLinear):
                    made[child] = made.get(child) or child.dense()
                    setattr(part, name, made[child])
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.named_buffers() if name != "P"}

    @property
    def sound(self) -> bool:
        parts = list(self.modules())
        sources = [part.sources for part in parts if isinstance(part, Selection)]
        inside = all(bool(((own >= 0) & (own < len(own))).all()) for own in sources)
        return inside and all(part.sound for part in parts if isinstance(part, SparseLinear))

    @property
    def stored(self) -> int:
        """How many numbers it has: indices of attention, weights that are not 0, and biases."""
        return self.config.least_numbers

    def sizes(self) -> list[tuple[str, int]]:
        indices = self.config.layers * self.config.positions * self.config.heads
        return [
            ("weights not 0, and biases", self.stored - indices),
            ("indices of attention", indices),
            ("numbers stored, places of weights included", sum(value.numel() for value in self.tensors().values())),
        ]


SelectionConfig.network = SelectionNetwork
