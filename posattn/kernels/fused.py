"""The loss of a folded ensemble and its gradients through the kernels of ``layers``: what autograd gives, many times faster.

The contract is that of ``posattn.folding``: the folded tensors in, a gradient for each of them out. Between layers the
activations pass through memory; everything within a layer stays on chip.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from posattn.folding import Tensors, folds
from posattn.kernels import layers
from posattn.model import ModelConfig

_NARROWEST = 16  # columns that tl.dot needs
_STAGES = 1  # loads are not pipelined: the matrices of a layer fill the shared memory


def supported(config: ModelConfig, precision: str) -> bool:
    """TensorFloat-32, two heads, lists that fit a tile, at most 64 input features, and a hidden width of 16, 32 or 64.

    In full float32 a layer's matrices do not fit on chip beside its gradients; the plain path serves there.
    """
    return (
        precision == "tf32"
        and folds(config)
        and config.heads == 2
        and config.positions <= layers.ROWS
        and config.width in (16, 32, 64)
        and config.input_dim <= 64
    )


def loss_and_gradients(
    folded: Tensors,
    features: Float[Tensor, "M b N d_in"],
    y: Float[Tensor, "M b k"],
    config: ModelConfig,
    precision: str = "tf32",
    programs: int = 264,
    warps: int = 4,
) -> tuple[Float[Tensor, " M"], Tensors]:
    """The mean squared error of every member on lists of its own, and its gradient for every folded tensor.

    ``programs`` is how many programs to aim for: a small multiple of the GPU's multiprocessors.
    """
    return _Step(folded, features, y, config, precision, programs, warps).run()


class _Step:
    def __init__(
        self,
        folded: Tensors,
        features: Tensor,
        y: Tensor,
        config: ModelConfig,
        precision: str,
        programs: int,
        warps: int,
    ):
        self.warps = warps
        self.folded, self.y, self.config = folded, y.contiguous(), config
        self.members, self.lists, self.n, d_in = features.shape
        # Padded to a power of two; the padding meets rows of zeros in U and M.
        self.pad = max(_NARROWEST, 2 ** (d_in - 1).bit_length()) - d_in
        self.s = F.pad(features, (0, self.pad)).contiguous()
        self.positional, self.bias = config.design.attends == "position", config.bias
        self.precision = precision
        # Tiles hold whole lists in a layer and any rows in the readout; every program takes its share of them.
        tiles, blocks = math.ceil(self.lists / (layers.ROWS // self.n)), math.ceil(self.lists * self.n / layers.ROWS)
        self.tiles_each = math.ceil(tiles / max(1, programs // self.members))
        self.parts = math.ceil(tiles / self.tiles_each)
        self.rows_each = math.ceil(blocks / self.parts)

    def layer(self, index: int) -> tuple[Tensor, ...]:
        """U, c, A, M and m of a layer, padded where it is the first; what the architecture lacks is an empty tensor."""
        none = self.folded["w"]
        first = index == 0
        u = F.pad(self.folded["U.first"], (0, 0, 0, self.pad)) if first else self.folded["U"][:, index - 1]
        c = self.folded["c"][:, index] if self.bias else none
        if self.positional:
            return u.contiguous(), c.contiguous(), self.folded["A"][:, index].contiguous(), none, none
        m = F.pad(self.folded["M.first"], (0, self.pad, 0, self.pad)) if first else self.folded["M"][:, index - 1]
        row = none
        if self.bias:
            row = F.pad(self.folded["m.first"], (0, self.pad)) if first else self.folded["m"][:, index - 1]
        return u.contiguous(), c.contiguous(), none, m.contiguous(), row.contiguous()

    def run(self) -> tuple[Tensor, Tensors]:
        config, grid = self.config, (self.parts, self.members)
        sizes: dict[str, Any] = {
            "N": self.n,
            "W": config.width,
            "R": layers.ROWS,
            "num_warps": self.warps,
            "num_stages": _STAGES,
        }
        flags = sizes | {"TILES": self.tiles_each, "PRECISION": self.precision}
        kind = {"BIAS": self.bias, "POSITIONAL": self.positional}
        states, matrices = [self.s], [self.layer(index) for index in range(config.layers)]
        for u, c, a, m, r in matrices:
            s = states[-1]
            h = s.new_empty(self.members, self.lists, self.n, config.width)
            layers.layer_forward[grid](s, u, c, a, m, r, h, self.lists, D=s.shape[-1], **kind, **flags)
            states.append(h)

        loss, g, gradients = self._readout(states[-1], sizes | {"BIAS": self.bias}, grid)
        w = self.folded["w"].contiguous()
        dh = g  # a placeholder: the last layer makes its dh from g and w
        found: list[tuple[Tensor, ...]] = []
        for index in reversed(range(config.layers)):
            u, _, a, m, r = matrices[index]
            s, h, d = states[index], states[index + 1], states[index].shape[-1]
            given = (s, h, dh, g, w)
            last = {"D": d, "LAST": index == config.layers - 1}
            du, dc = self._part(3, d, config.width), self._part(config.width)
            layers.values_backward[grid](*given, a, m, r, du, dc, self.lists, **last, **kind, **flags)
            ds = torch.empty_like(s) if index else s
            place = last | {"FIRST": index == 0}
            if self.positional:
                dk = self._part(2, layers.ROWS, layers.ROWS)
                layers.positional_backward[grid](*given, u, a, ds, dk, self.lists, **place, **flags)
                found.append((du, dc, dk))
            else:
                dm, dr = self._part(2, d, d), self._part(2, d)
                layers.self_attention_backward[grid](
                    *given, u, m, r, ds, dm, dr, self.lists, BIAS=self.bias, **place, **flags
                )
                found.append((du, dc, dm, dr))
            dh = ds
        return loss, gradients | self._collect(found[::-1])

    def _part(self, *shape: int) -> Tensor:
        """Room for what every program sums up on its own."""
        return self.s.new_empty(self.members, self.parts, *shape)

    def _readout(self, h: Tensor, shared: dict[str, Any], grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensors]:
        g = h.new_empty(h.shape[:-1])
        loss, dw, db = self._part(), self._part(self.config.width), self._part()
        constant = self.folded.get("b", self.folded["w"])
        layers.readout[grid](
            h,
            self.folded["w"].contiguous(),
            constant,
            self.y,
            g,
            loss,
            dw,
            db,
            self.lists,
            TILES=self.rows_each,
            **shared,
        )
        gradients = {"w": dw.sum(dim=1)[..., None]}
        if self.bias:
            gradients["b"] = db.sum(dim=1)[:, None, None]
        return loss.sum(dim=1), g, gradients

    def _collect(self, found: Sequence[Sequence[Tensor]]) -> Tensors:
        """The gradients in the shape of the folded tensors: for every layer dU, dc and then dA, or dM and dm."""
        d_in = self.s.shape[-1] - self.pad
        du, dc, *rest = ([part.sum(dim=1) for part in parts] for parts in zip(*found, strict=True))
        gradients = {"U.first": du[0][:, :, :d_in], "U": self._stack(du[1:], self.folded["U"])}
        if self.bias:
            gradients["c"] = torch.stack(dc, dim=1)[:, :, None]
        if self.positional:
            return gradients | {"A": self._diagonal_blocks(torch.stack(rest[0], dim=1))}
        dm, dr = rest
        gradients |= {"M.first": dm[0][..., :d_in, :d_in], "M": self._stack(dm[1:], self.folded["M"])}
        if self.bias:
            gradients["m.first"] = dr[0][:, :, None, :d_in]
            gradients["m"] = self._stack([part[:, :, None] for part in dr[1:]], self.folded["m"])
        return gradients

    @staticmethod
    def _stack(parts: list[Tensor], like: Tensor) -> Tensor:
        return torch.stack(parts, dim=1) if parts else torch.zeros_like(like)

    def _diagonal_blocks(self, k: Float[Tensor, "M L H R R"]) -> Float[Tensor, "M L H N N"]:
        """Sums a tile's lists: A stands in every diagonal block of the matrix that the kernels apply."""
        count = layers.ROWS // self.n
        blocks = (
            k[..., : count * self.n, : count * self.n].unflatten(-1, (count, self.n)).unflatten(-3, (count, self.n))
        )
        return blocks.diagonal(dim1=-4, dim2=-2).sum(dim=-1)
