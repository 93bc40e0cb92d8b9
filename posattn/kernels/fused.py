"""The loss of a folded ensemble and its gradients through the kernels of ``layers``: what autograd gives, many times faster.

The contract is that of ``posattn.folding``: the folded tensors in, a gradient for each of them out. Between layers the
activations pass through memory; everything within a layer stays on chip.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posattn.folding import Tensors, folds
from posattn.kernels import layers
from posattn.model import ModelConfig

_NARROWEST = 16  # rows and columns that tl.dot needs
_WARPS = 4
_MULTIPROCESSORS = 132  # of an H100 or H200; on other cards the work is merely divided less evenly


class _Tuning(NamedTuple):
    """Programs that fit one multiprocessor, and how deep loads are pipelined."""

    programs: int
    stages: int


_HALF = {
    "layer_forward": _Tuning(3, 1),
    "attention_forward": _Tuning(2, 1),
    "positional_state": _Tuning(3, 1),
    "positional_weights": _Tuning(2, 2),
    "attention_state": _Tuning(2, 2),
    "attention_weights": _Tuning(2, 1),
}
_SINGLE = _Tuning(2, 1)


def supported(config: ModelConfig, precision: str) -> bool:
    """Two heads, lists that fit a tile, at most 64 input features and a width of at most 64.

    In full float32 the matrices of self-attention do not fit on chip; the plain path serves there.
    """
    return (
        (precision in ("fp16", "tf32") or (precision == "fp32" and config.design.attends == "position"))
        and folds(config)
        and config.heads == 2
        and config.positions <= layers.ROWS
        and config.width <= 64
        and config.input_dim <= 64
    )


def loss_and_gradients(
    folded: Tensors,
    x: Float[Tensor, "M b k"],
    y: Float[Tensor, "M b k"],
    encoding: Float[Tensor, "2 N d_in"],
    config: ModelConfig,
    precision: str,
    programs: int | None = None,
) -> tuple[Float[Tensor, " M"], Tensors]:
    """The mean squared error of every member on lists of its own, and its gradient for every folded tensor.

    The encoder reads number * ``encoding[0]`` + ``encoding[1]``. ``programs`` is how many a kernel starts, about; by default
    as many as an H200 runs at once.
    """
    wide = replace(config, width=max(_NARROWEST, 2 ** (config.width - 1).bit_length()))
    loss, parts = loss_and_parts(_widened(folded, wide.width), x, y, encoding, wide, precision, programs)
    return loss, _narrowed(_summed(parts, x.shape[-1] + 1), config.width)


def loss_and_parts(
    folded: Tensors,
    x: Float[Tensor, "M b k"],
    y: Float[Tensor, "M b k"],
    encoding: Float[Tensor, "2 N d_in"],
    config: ModelConfig,
    precision: str,
    programs: int | None = None,
) -> tuple[Float[Tensor, " M"], Tensors]:
    """The same for a width of 16, 32 or 64, with the parts that the gradients are sums of, along an axis after the members'.

    For ``A`` there is ``K`` (L, M, parts, H, R, R), whose diagonal blocks also add up: A stands in every one of the matrix
    that the kernels apply.
    """
    return _Step(folded, x, y, encoding, config, precision, programs).run()


_HIDDEN = {"U.first": (-1,), "U": (-3, -1), "c": (-1,), "M": (-3, -1), "m": (-1,), "w": (-2,)}  # axes of hidden units


def _widened(folded: Tensors, width: int) -> Tensors:
    """The same network with more hidden units, whose weights are zero."""
    wide = dict(folded)
    for name in _HIDDEN.keys() & folded.keys():
        for axis in _HIDDEN[name]:
            value = wide[name]
            missing = list(value.shape)
            missing[axis] = width - value.shape[axis]
            wide[name] = torch.cat([value, value.new_zeros(missing)], dim=axis) if missing[axis] else value
    return wide


def _narrowed(gradients: Tensors, width: int) -> Tensors:
    """The gradients of the first ``width`` hidden units."""
    narrow = dict(gradients)
    for name in _HIDDEN.keys() & gradients.keys():
        for axis in _HIDDEN[name]:
            narrow[name] = narrow[name].narrow(axis, 0, width)
    return narrow


def _summed(parts: Tensors, n: int) -> Tensors:
    """The gradient of every folded tensor from its parts."""
    by_member = ("U.first", "M.first", "m.first", "w", "b")  # the others have an axis of layers in front
    gradients = {name: value.sum(dim=1 if name in by_member else 2) for name, value in parts.items() if name != "K"}
    ends = {"c": -2, "w": -1, "b": -1}
    gradients |= {name: gradients[name].unsqueeze(axis) for name, axis in ends.items() if name in gradients}
    if "K" in parts:
        k, step, count = parts["K"], layers.ROWS, layers.ROWS // n
        blocks = k.as_strided(
            (*k.shape[:4], count, n, n), (*k.stride()[:4], n * (step + 1), step, 1), k.storage_offset()
        )
        gradients["A"] = blocks.sum(dim=(2, 4))
    return gradients


class _Step:
    def __init__(
        self,
        folded: Tensors,
        x: Tensor,
        y: Tensor,
        encoding: Tensor,
        config: ModelConfig,
        precision: str,
        programs: int | None,
    ):
        self.folded, self.config, self.precision, self.programs = folded, config, precision, programs
        self.x, self.y = (
            value if value.stride()[1:] == (value.shape[2], 1) else value.contiguous() for value in (x, y)
        )
        self.encoding = encoding.contiguous()
        self.members, self.lists, k = x.shape
        self.n, self.d_in = k + 1, config.input_dim
        self.positional, self.bias = config.design.attends == "position", config.bias
        self.none = folded["w"]  # stands for what the architecture lacks
        self.kind = torch.float16 if precision == "fp16" else torch.float32
        self.w = folded["w"].contiguous()

    def run(self) -> tuple[Tensor, Tensors]:
        states, pairs, errors, read = self._forward()
        return self.loss, read | self._backward(states, pairs, errors)

    # --- what the kernels are given ----------------------------------------------------------------------------------------

    def _launch(self, name: str, heads: int = 1) -> tuple[tuple[int, int, int], int, dict[str, Any]]:
        """The grid, the parts that a member's tiles are divided into, and the sizes that a kernel is compiled for."""
        tuning = _HALF[name] if self.precision == "fp16" else _SINGLE
        programs = _MULTIPROCESSORS * tuning.programs if self.programs is None else self.programs
        tiles = math.ceil(self.lists / (layers.ROWS // self.n))
        each = math.ceil(tiles / max(1, programs // self.members))
        parts = math.ceil(tiles / each)
        sizes = {"TILES": each, "N": self.n, "W": self.config.width, "R": layers.ROWS, "PRECISION": self.precision}
        return (parts, self.members, heads), parts, sizes | {"num_warps": _WARPS, "num_stages": tuning.stages}

    def _width_in(self, index: int) -> dict[str, int]:
        """Features that a layer reads, and the same padded for the matrix units."""
        wide = self.d_in if index == 0 else self.config.width
        return {"D_IN": wide, "D": max(_NARROWEST, 2 ** (wide - 1).bit_length())}

    def _of_layer(self, name: str, index: int) -> Tensor:
        """A folded tensor of one layer, or a stand-in."""
        if f"{name}.first" in self.folded:
            return self.folded[f"{name}.first"] if index == 0 else self.folded[name][index - 1]
        return self.folded[name][index] if name in self.folded else self.none

    def _matrices(self, index: int) -> dict[str, Any]:
        u, a, m, r = (self._of_layer(name, index) for name in ("U", "A", "M", "m"))
        assert u.stride()[1:] == (3 * self.config.width, self.config.width, 1)
        own = {"u_pointer": u, "u_stride": u.stride(0)}
        if self.positional:
            return own | {"a_pointer": a}
        return own | {"m_pointer": m, "m_stride": m.stride(0), "r_pointer": r, "r_stride": r.stride(0)}

    # --- forward and back --------------------------------------------------------------------------------------------------

    def _forward(self) -> tuple[list[Tensor], list[Tensor], Tensor, Tensors]:
        """The states before every layer and after the last, the attention weights, the errors, and the readout's parts."""
        config, sides = self.config, (self.members, self.lists)
        grid, parts, sizes = self._launch("layer_forward" if self.positional else "attention_forward")
        new = self.w.new_empty
        error = new(*sides, self.n)
        loss, dw, db = new(self.members, parts), new(self.members, parts, config.width), new(self.members, parts, 1)
        states, pairs = [self.x], []
        for index in range(config.layers):
            h = new(*sides, self.n, config.width, dtype=self.kind)
            pairs.append(h if self.positional else new(*sides, 2, self.n, self.n, dtype=self.kind))
            layers.layer_forward[grid](
                x_pointer=self.x,
                encoding_pointer=self.encoding,
                s_pointer=states[-1],
                c_pointer=self._of_layer("c", index),
                pairs_pointer=pairs[-1],
                h_pointer=h,
                w_pointer=self.w,
                b_pointer=self.folded.get("b", self.none),
                y_pointer=self.y,
                error_pointer=error,
                loss_pointer=loss,
                dw_pointer=dw,
                db_pointer=db,
                x_stride=self.x.stride(0),
                y_stride=self.y.stride(0),
                lists=self.lists,
                BIAS=self.bias,
                POSITIONAL=self.positional,
                FIRST=index == 0,
                LAST=index == config.layers - 1,
                **dict.fromkeys(("a_pointer", "m_pointer", "r_pointer"), self.none)
                | dict.fromkeys(("m_stride", "r_stride"), 0)
                | self._matrices(index),
                **self._width_in(index),
                **sizes,
            )
            states.append(h)
        self.loss = loss.sum(dim=1)
        return states, pairs, error, {"w": dw, "b": db} if self.bias else {"w": dw}

    def _backward(self, states: list[Tensor], pairs: list[Tensor], error: Tensor) -> Tensors:
        count, width = self.config.layers, self.config.width
        heads = 1 if self.positional else 2
        backward = "positional" if self.positional else "attention"
        state, weights = getattr(layers, f"{backward}_state"), getattr(layers, f"{backward}_weights")
        state_grid, _, state_sizes = self._launch(f"{backward}_state")
        weights_grid, parts, weights_sizes = self._launch(f"{backward}_weights", heads)

        def sums(*shape: int) -> Tensor:
            return self.w.new_empty(*shape)

        of_first, of_inner = (self.members, parts), (count - 1, self.members, parts)
        du_first, du = sums(*of_first, self.d_in, 3, width), sums(*of_inner, width, 3, width)
        dc = sums(count, *of_first, width)
        if self.positional:
            dk = sums(count, *of_first, 2, layers.ROWS, layers.ROWS)
        else:
            dm_first, dm = sums(*of_first, self.d_in, 2, self.d_in), sums(*of_inner, width, 2, width)
            dr_first, dr = sums(*of_first, 2, self.d_in), sums(*of_inner, 2, width)

        dz = states[-1]  # a placeholder: the last layer makes its dz from the errors
        for index in reversed(range(count)):
            first, s = index == 0, states[index]
            given = {
                "s_pointer": s,
                "dz_pointer": dz,
                "h_pointer": states[-1],
                "error_pointer": error,
                "loss_pointer": self.loss,
                "w_pointer": self.w,
                "lists": self.lists,
                "LAST": index == count - 1,
            }
            inputs: dict[str, Any] = {
                "x_pointer": self.x,
                "encoding_pointer": self.encoding,
                "x_stride": self.x.stride(0),
                "FIRST": first,
            }
            inputs |= {"BIAS": self.bias} | self._width_in(index)
            summed = {"du_pointer": du_first if first else du[index - 1], "dc_pointer": dc[index]}
            before = dz if first else torch.empty_like(s)
            matrices = self._matrices(index)
            if self.positional:
                weights[weights_grid](dk_pointer=dk[index], **summed, **given, **inputs, **matrices, **weights_sizes)
                if not first:
                    state[state_grid](out_pointer=before, **given, **matrices, **state_sizes)
            else:
                slopes = torch.empty_like(pairs[index])
                tables = {"pairs_pointer": pairs[index], "slopes_pointer": slopes}
                state[state_grid](out_pointer=before, **tables, **given, **inputs, **matrices, **state_sizes)
                summed |= {"dm_pointer": dm_first if first else dm[index - 1]}
                summed |= {"dr_pointer": dr_first if first else dr[index - 1]}
                weights[weights_grid](**tables, **summed, **given, **inputs, **weights_sizes)
            dz = before

        gradients = {"U.first": du_first, "U": du} | ({"c": dc} if self.bias else {})
        if self.positional:
            return gradients | {"K": dk}
        return gradients | {"M.first": dm_first, "M": dm} | ({"m.first": dr_first, "m": dr} if self.bias else {})
