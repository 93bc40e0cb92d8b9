"""The graph networks of Table 2: graph convolution (GCN) and graph attention (GAT), on complete and star graphs.

The nodes are the numbers of a list and the scratchpad, which holds 0. Each node's number and one-hot position are encoded
linearly, pass through L convolutions, each followed by a ReLU, and are decoded linearly; the scratchpad's output is dropped.
Graphs this small are matrices, so a convolution is a product with one and serves any batch of lists at once.

Letters: n list length, N = n + 1 nodes, d width of the state, H heads, L layers, X (..., N, d) the state,
A + I (N, N) the graph with self loops: entry (i, j) says whether node i reads node j. D is its diagonal of row sums.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posattn.attention import merge_heads, split_heads
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError, choice, flag
from posattn.model import ModelConfig, input_features, positions_of
from posattn.network import OBJECTS, NetworkConfig, check_input

_SLOPE = 0.2  # of LeakyReLU below 0, as in the GAT paper


def star(nodes: int) -> Bool[Tensor, "{nodes} {nodes}"]:
    """The last node, which is the scratchpad, reads all nodes and is read by all; each also reads itself."""
    node = torch.arange(nodes)
    hub = node == nodes - 1
    return (node == node[:, None]) | hub | hub[:, None]


GRAPHS: dict[str, Callable[[int], Tensor]] = {
    "complete": lambda nodes: torch.ones(nodes, nodes, dtype=torch.bool),
    "star": star,
}


class GraphConvolution(nn.Module):
    """GCN: D^-1/2 (A + I) D^-1/2 X W + b. ``weight`` is W transposed, (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d_out, d_in)))
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Float[Tensor, "*batch N d_in"], graph: Bool[Tensor, "N N"]) -> Float[Tensor, "*batch N d_out"]:
        a = graph.to(x.dtype)
        scale = a.sum(dim=-1).rsqrt()  # D^-1/2
        return (scale[:, None] * a * scale) @ F.linear(x, self.weight) + self.bias


class GraphAttention(nn.Module):
    """GAT: ⊕_h α_h X W_h + b with α = softmax(LeakyReLU(a_dst · W x_i + a_src · W x_j)) over the nodes j that i reads."""

    def __init__(self, d_in: int, d_out: int, heads: int):
        super().__init__()
        if d_out % heads:
            raise UsageError(f"d_out is {d_out}; it must be a multiple of heads, which is {heads}.")
        self.heads, shape = heads, (1, heads, d_out // heads)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d_out, d_in)))
        bound = math.sqrt(6 / sum(shape[1:]))  # Glorot's, of an H × d/H matrix
        self.att_src = nn.Parameter(nn.init.uniform_(torch.empty(shape), -bound, bound))
        self.att_dst = nn.Parameter(nn.init.uniform_(torch.empty(shape), -bound, bound))
        self.bias = nn.Parameter(torch.zeros(d_out))

    def weights(self, z: Float[Tensor, "*batch H N d_h"], graph: Bool[Tensor, "N N"]) -> Float[Tensor, "*batch H N N"]:
        """α of every head, whose row i is what node i reads, from z = X W_h."""
        reader, read = (z @ a.permute(1, 2, 0) for a in (self.att_dst, self.att_src))  # (..., H, N, 1) each
        logits = F.leaky_relu(reader + read.mT, _SLOPE)
        return logits.where(graph, -math.inf).softmax(dim=-1)  # no row is empty: each node reads itself

    def forward(self, x: Float[Tensor, "*batch N d_in"], graph: Bool[Tensor, "N N"]) -> Float[Tensor, "*batch N d_out"]:
        z = split_heads(F.linear(x, self.weight), self.heads)
        return merge_heads(self.weights(z, graph) @ z) + self.bias


ARCHITECTURES = ("gcn", "gat")


@dataclass(frozen=True)
class GraphConfig(NetworkConfig):
    """What determines a graph network up to its weights. A field left out is filled in.

    Args:
        n: the longest list.
        arch: ``gcn`` or ``gat``.
        graph: ``complete``, or ``star`` with the scratchpad as its hub.
        layers: floor(log2 n) + 1 by default, as a Transformer has.
        width: width d of the state.
        heads: attention heads per layer of ``gat``, 2 by default; ``gcn`` has 1.
        encoded_input: whether a node's input holds its one-hot position beside its number.
    """

    n: int
    arch: str = "gcn"
    graph: str = "complete"
    layers: int = None  # type: ignore[assignment]  # None until filled in
    width: int = 64
    heads: int = None  # type: ignore[assignment]
    encoded_input: bool = True

    encoding: ClassVar[str] = "one-hot"  # what result rows say
    kind: ClassVar[str] = "graph"
    columns: ClassVar[tuple[str, ...]] = ("graph", "encoded_input")

    def __post_init__(self) -> None:
        self._count("n")
        choice("arch", self.arch, ARCHITECTURES)
        choice("graph", self.graph, GRAPHS)
        self._fill("layers", self.n.bit_length())
        self._fill("heads", 2 if self.arch == "gat" else 1)
        self._count("layers", "width", "heads")
        if self.arch == "gcn" and self.heads != 1:
            raise UsageError(f"heads is {self.heads}; it must be 1 for gcn, which has no attention.")
        if self.width % self.heads:
            raise UsageError(f"width is {self.width}; it must be a multiple of heads, which is {self.heads}.")
        flag("encoded_input", self.encoded_input)

    @property
    def input(self) -> ModelConfig:
        """The Transformer whose encoder reads the same: number and position, or the number alone."""
        return ModelConfig(self.n, "standard" if self.encoded_input else "no-encoding")

    @property
    def least_numbers(self) -> int:
        return self.layers * self.width**2

    @property
    def least_beside(self) -> int:
        """Also the graph, which has a byte for each pair of nodes."""
        return 5 * (self.n + 1) ** 2 + OBJECTS * self.layers

    def build(self) -> "GraphNetwork":
        return GraphNetwork(self)


class GraphNetwork(nn.Module):
    """Lists of numbers in, lists of numbers out: (..., k) to (..., k) for any k up to ``config.n``.

    A shorter list has the first k nodes and the scratchpad, with the edges between them.
    """

    P: Tensor
    graph: Tensor

    def __init__(self, config: GraphConfig):
        super().__init__()
        config.require_room()
        self.config, self.input = config, config.input
        d = config.width
        self.encoder = nn.Linear(self.input.input_dim, d)
        self.layers = nn.ModuleList(
            GraphConvolution(d, d) if config.arch == "gcn" else GraphAttention(d, d, config.heads)
            for _ in range(config.layers)
        )
        self.decoder = nn.Linear(d, 1)
        p = ENCODINGS[config.encoding].matrix(self.input.positions, self.input.encoding_dim)
        self.register_buffer("P", p, persistent=False)
        self.register_buffer("graph", GRAPHS[config.graph](self.input.positions), persistent=False)

    def forward(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        check_input(x, self.P.dtype)
        positions = positions_of(x.shape[-1], self.input, x.device)
        graph = self.graph[positions][:, positions]
        z = self.encoder(input_features(x[..., None], self.P[positions], positions, self.input))
        for layer in self.layers:
            z = torch.relu(layer(z, graph))
        return self.decoder(z)[..., :-1, 0]
