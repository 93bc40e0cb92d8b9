"""The loss of a folded ensemble and its gradients through the kernels of ``layers``: what autograd gives, many times faster.

The contract is that of ``posattn.folding``: the folded tensors in, a gradient for each of them out. Activations pass through
memory between layers. Within a layer all but a number per row and head stays on chip; where queries and keys stay apart, the
attention weights and the gradients of the logits pass through memory, too.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from posattn.folding import Tensors
from posattn.folding.queries_and_keys import keeps_queries_apart
from posattn.kernels import answers, layers, long, queries, words
from posattn.kernels.launches import divided
from posattn.kernels.shapes import ROWS, hidden_columns, input_columns, narrowed, padded, rows_of, short, turns, widened
from posattn.kernels.sums import Parts, Shared
from posattn.model import ModelConfig


class _Tuning(NamedTuple):
    """Programs that fit one multiprocessor, how deep loads are pipelined, a limit to the registers of a thread, and warps."""

    programs: int
    stages: int
    registers: int | None = None
    warps: int = 4


_SHORT = {  # in half precision, where several lists may share a tile
    "positional forward": _Tuning(3, 3, 168),
    "positional back": _Tuning(2, 3),
    "bilinear forward": _Tuning(4, 1, 128),
    "bilinear back": _Tuning(2, 1),
    "queries forward": _Tuning(2, 1),
    "queries state": _Tuning(2, 1),
    "queries back": _Tuning(1, 1),  # for each slot
}
_LONG = {  # the same where a prompt fills a tile
    "positional forward": _Tuning(2, 3, warps=8),
    "positional back": _Tuning(1, 3, warps=8),
    "bilinear forward": _Tuning(2, 2),
    "bilinear back": _Tuning(1, 3, warps=8),
}
_SINGLE = _Tuning(2, 1)
_SLOTS = 4  # programs that share a tile where queries and keys stay apart


def loss_and_gradients(
    folded: Tensors,
    x: Float[Tensor, "M b k"],
    y: Float[Tensor, "M b k"],
    encoding: Float[Tensor, "2 N d_in"],
    config: ModelConfig,
    precision: str,
) -> tuple[Float[Tensor, " M"], Tensors]:
    """The mean squared error of every member on lists of its own, and its gradient for every folded tensor.

    The encoder reads number * ``encoding[0]`` + ``encoding[1]``.
    """
    step = _Step(folded, _by_rows(x), config, precision)
    step.y, step.encoding = _by_rows(y), encoding.contiguous()
    states, pairs, errors = step.forward()
    return step.loss, narrowed(step.backward(states, pairs, errors, states[-1]), config)


def _by_rows(x: Tensor) -> Tensor:
    """x, or a copy if a member's lists do not follow one another in memory."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def _summed(parts: Parts, n: int) -> Tensors:
    """The gradient of every folded tensor from its parts, one per program. ``B`` has one row, or one per row of a tile."""
    gradients = parts.summed()
    ends = {"c": -2, "w": -1, "b": -1}
    gradients |= {name: gradients[name].unsqueeze(axis) for name, axis in ends.items() if name in gradients}
    if "B" in gradients and gradients["B"].shape[2] > 1:  # one row per row of a tile, which holds several lists
        lists = gradients["B"][:, :, : rows_of(n) // n * n]
        gradients["B"] = lists.unflatten(2, (-1, n)).sum(dim=2)
    return gradients


class _Step:
    """What one step of an ensemble gives the kernels.

    ``x`` are lists of numbers, or first states (M, b, N, D) of sequences, which the first layer reads as others do.
    """

    def __init__(self, folded: Tensors, x: Tensor, config: ModelConfig, precision: str):
        self.lists_of_numbers = x.ndim == 3  # in which no scratchpad stands yet
        self.n = x.shape[2] + 1 if self.lists_of_numbers else x.shape[2]
        self.narrow, self.config = config, replace(config, width=hidden_columns(self.n))
        self.folded, self.precision = widened(folded, self.config.width, precision), precision
        self.x, self.members, self.lists, self.rows = x, x.shape[0], x.shape[1], rows_of(self.n)
        self.d_in, self.kind = folded["U.first"].shape[1], torch.float16 if precision == "fp16" else torch.float32
        self.w = self.none = self.folded["w"].contiguous()  # ``none`` stands for what the architecture lacks
        self.y = self.encoding = self.none
        self._set_attention()

    def _set_attention(self) -> None:
        """Which kernels carry gradients back, and what logits are made of."""
        config, self.bias = self.config, self.config.bias
        self.positional, self.apart = config.design.attends == "position", keeps_queries_apart(config)
        # Of queries and keys.
        self.form: dict[str, Any] = {"K": 0, "TABLE": 0, "ROTARY": False, "turn_pointer": self.none}
        if self.positional:
            self.attention, self.names = "positional", ("", "")
        elif not self.apart:
            self.attention, self.names = "bilinear", ("M", "m")
        else:
            self.attention, self.names = "queries", ("QK", "B")
            half, rotary = self.folded["QK.first"].shape[-1], config.design.rotary
            rows = self.folded["B"].shape[2] if "B" in self.folded else 0
            rotations = turns(self.n, config, self.none.device, self.precision) if rotary else self.none
            self.form = {"K": half, "TABLE": rows, "ROTARY": rotary, "turn_pointer": rotations}

    # --- what the kernels are given ----------------------------------------------------------------------------------------

    def _launch(self, way: str) -> tuple[tuple[int, int], int, dict[str, Any]]:
        """The grid, the parts that a member's tiles are divided into, and the sizes that a kernel is compiled for."""
        table = _SHORT if self.rows == ROWS else _LONG
        tuning = table[f"{self.attention} {way}"] if self.precision == "fp16" else _SINGLE
        each, parts = divided(math.ceil(self.lists / (self.rows // self.n)), self.members, tuning.programs)
        sizes = {"TILES": each, "N": self.n, "W": self.config.width, "R": self.rows, "PRECISION": self.precision}
        options = {"num_warps": tuning.warps, "num_stages": tuning.stages}
        options |= {} if tuning.registers is None else {"maxnreg": tuning.registers}
        return (parts, self.members), parts, sizes | options

    def _width_in(self, index: int) -> dict[str, int]:
        """Features that a layer reads, and the same padded for the matrix units."""
        if index > 0:
            return {"D_IN": self.config.width, "D": self.config.width}
        return {"D_IN": self.d_in, "D": input_columns(self.d_in, self.n)}

    def _of_layer(self, name: str, index: int, tensors: Tensors | None = None) -> Tensor:
        """A folded tensor of one layer, or one of others like them, or a stand-in."""
        tensors = self.folded if tensors is None else tensors
        if f"{name}.first" in tensors:
            return tensors[f"{name}.first"] if index == 0 else tensors[name][index - 1]
        return tensors[name][index] if name in tensors else self.none

    def _matrices(self, index: int) -> dict[str, Any]:
        u = self._of_layer("U", index)
        assert u.stride()[1:] == (3 * self.config.width, self.config.width, 1)
        own = {"u_pointer": u, "u_stride": u.stride(0)}
        if self.positional:
            return own | {"a_pointer": self._of_layer("A", index)}
        return own | self._logits(index)

    def _logits(self, index: int) -> dict[str, Any]:
        """What a layer's logits need: M and m, or matrices and table of queries and keys."""
        m, r = (self._of_layer(name, index) for name in self.names)
        return {"m_pointer": m, "r_pointer": r, "m_stride": m.stride(0), "r_stride": r.stride(0)}

    # --- forward and back --------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The states before every layer and after the last, the attention weights, and the errors."""
        config, sides = self.config, (self.members, self.lists)
        grid, parts, sizes = self._launch("forward")
        new = self.w.new_empty
        error = new(*sides, self.n)
        loss, self.parts = new(self.members, parts), self._parts(parts)
        dw, db = (self.parts.tensors.get(name, self.none) for name in ("w", "b"))
        states, pairs = [self.x], []
        for index in range(config.layers):
            first, last = self._ends(index)
            h = new(*sides, self.n, config.width, dtype=self.kind)
            pairs.append(self._weights_or_norms(h))
            layers.layer_forward[grid](
                x_pointer=self.x, x_stride=self.x.stride(0), encoding_pointer=self.encoding, lists=self.lists,
                s_pointer=states[-1], c_pointer=self._of_layer("c", index), pairs_pointer=pairs[-1], h_pointer=h,
                w_pointer=self.w, b_pointer=self.folded.get("b", self.none), y_pointer=self.y,
                y_stride=self.y.stride(0), error_pointer=error, loss_pointer=loss, dw_pointer=dw, db_pointer=db,
                turned=index % 2, BIAS=self.bias, POSITIONAL=self.positional, CAUSAL=config.causal, FIRST=first, LAST=last,
                **{"a_pointer": self.none} | self._logits(index) | self._matrices(index),
                **self.form, **self._width_in(index), **sizes,
            )  # fmt: skip
            states.append(h)
        self.loss = loss.sum(dim=1) if self.lists_of_numbers else self.none
        return states, pairs, error

    def _weights_or_norms(self, h: Tensor) -> Tensor:
        """Room for what the backward pass finds attention weights by: the weights themselves, or numbers of their rows.

        Positional attention needs none: ``h`` stands in.
        """
        if self.positional:
            return h
        if self.apart:
            return h.new_empty(self.members, self.lists, 2, self.n, self.n)
        return self.w.new_empty(self.members, 2, self.lists, self.n)

    def _ends(self, index: int) -> tuple[bool, bool]:
        """Whether a layer reads lists of numbers, and whether it goes on to errors."""
        return self.lists_of_numbers and index == 0, self.lists_of_numbers and index == self.config.layers - 1

    def backward(self, states: list[Tensor], pairs: list[Tensor], error: Tensor, dz: Tensor) -> Tensors:
        """Gradients from ``dz`` of the last layer; for lists of numbers a placeholder, made from the errors instead."""
        grid, parts, sizes = self._launch("back")
        if self.apart:
            state_grid, _, state_sizes = self._launch("state")
            weights_grid = (*grid, _SLOTS)
        gradients = self.parts.tensors

        def part(name: str) -> Tensor:
            return self._of_layer(name, index, gradients)

        for index in reversed(range(self.config.layers)):
            first, s = index == 0, states[index]
            reads_lists, last = self._ends(index)
            given: dict[str, Any] = {"s_pointer": s, "dz_pointer": dz, "h_pointer": states[-1], "error_pointer": error}
            given |= {"loss_pointer": self.loss, "w_pointer": self.w, "lists": self.lists, "LAST": last}
            given |= {"x_pointer": self.x, "x_stride": self.x.stride(0), "encoding_pointer": self.encoding}
            given |= {"FIRST": reads_lists} | self._width_in(index)
            summed = {"du_pointer": part("U"), "dc_pointer": part("c")}
            before = dz if first else torch.empty_like(s)  # nothing asks for the gradient of what the first layer reads
            matrices = self._matrices(index)
            if self.positional:
                given |= {"out_pointer": before, "da_pointer": part("A"), "BIAS": self.bias} | summed | matrices
                given["turned"] = (index + 1) % 2
                for ways in self._ways(first):
                    roles = 2 if ways["VALUES"] and ways["PAIRS"] else 1
                    layers.positional_back[(parts * roles, self.members)](**given, **ways, **sizes)
            else:
                summed |= {"dm_pointer": part(self.names[0]), "dr_pointer": part(self.names[1])}
                given |= {"pairs_pointer": pairs[index], "BIAS": self.bias}
                if self.apart:
                    given |= {"slopes_pointer": torch.empty_like(pairs[index])} | self.form
                    queries.queries_state[state_grid](
                        out_pointer=before, STATE=not first, **given, **matrices, **state_sizes
                    )
                    queries.queries_weights[weights_grid](**summed, **given, **self._logits(index), **sizes)
                else:
                    given |= {"out_pointer": before, "CAUSAL": self.config.causal} | summed | matrices
                    for ways in self._ways(first):
                        layers.attention_backward[grid](**given, **ways, **sizes)
            dz = before
        return _summed(self.parts, self.n)

    def _ways(self, first: bool) -> list[dict[str, bool]]:
        """What each launch of a layer's backward kernel computes: together only what there is room for on chip."""
        if not self.positional:
            values = {"STATE": not first, "VALUES": True, "LOGITS": False}
            return [values, {"STATE": False, "VALUES": False, "LOGITS": True}]
        wanted = {"STATE": not first, "PAIRS": True, "VALUES": True}
        if self.precision == "fp16":
            return [wanted]
        return [{name: name == one for name in wanted} for one, there in wanted.items() if there]

    def _parts(self, readout: int) -> Parts:
        """Room for the parts of every gradient, one per program; of ``A`` there is one for each list of a tile."""
        _, parts, _ = self._launch("back")
        count, width, rows, d_in = self.config.layers, self.config.width, self.rows, self.d_in
        first, inner, every = (self.members, parts), (count - 1, self.members, parts), (count, self.members, parts)
        shapes = {"U.first": (*first, d_in, 3, width), "U": (*inner, width, 3, width), "c": (*every, width)}
        if self.positional:
            shapes["A"] = (count, self.members, parts * (rows // self.n), 2, self.n, self.n)
        elif self.apart:
            both, table = (4, 2, self.form["K"]), rows if self.form["TABLE"] > 1 else 1
            shapes |= {"QK.first": (*first, d_in, *both), "QK": (*inner, width, *both), "B": (*every, table, *both)}
        else:
            shapes |= {"M.first": (*first, d_in, 2, d_in), "M": (*inner, width, 2, width)}
            shapes |= {"m.first": (*first, 2, d_in), "m": (*inner, 2, width)}
        if self.lists_of_numbers:
            shapes |= {"w": (self.members, readout, width), "b": (self.members, readout, 1)}
        # The others have an axis of layers in front.
        by_member = ("U.first", "M.first", "m.first", "QK.first", "w", "b")
        axes = {name: 1 if name in by_member else 2 for name in shapes.keys() & self.folded.keys()}
        return Parts(self.w, {name: Shared(shape, axes[name]) for name, shape in shapes.items() if name in axes})


Finish = Callable[[Tensor], Tensor]  # from the answers (M, b, out) to every member's loss


class TokenStep(_Step):
    """A step from the first states of sequences. Answers are read off the last state, outside the layers' kernels.

    Networks answer a letter at every position but the last, with the mean cross-entropy as their loss; or once, at the
    last position, with any loss.
    """

    def differentiate(self, read: Callable[[Tensor], tuple[Tensor, Tensor, Tensors]]) -> tuple[Tensor, Tensors]:
        """``read`` goes from the last state to the loss, dz of the last layer, and the gradients of w and b."""
        states, pairs, errors = self.forward()
        loss, dz, found = read(states[-1])
        gradients = self.backward(states, pairs, errors, dz) | found
        return loss, narrowed(gradients, self.narrow)

    def differentiate_letters(self, y: Int64[Tensor, "M b k"]) -> tuple[Tensor, Tensors]:
        return self.differentiate(lambda h: self.letters(h, y))

    def differentiate_answers(self, finish: Finish) -> tuple[Tensor, Tensors]:
        def read(h: Float[Tensor, "M b N W"]) -> tuple[Tensor, Tensor, Tensors]:
            loss, dz, found = self.answers(h[:, :, -1].float(), finish)
            whole = torch.zeros_like(h)
            whole[:, :, -1] = short(dz / (8 * self.loss.clamp_min(1e-30).sqrt())[:, None, None], self.precision)
            return loss, whole, found

        return self.differentiate(read)

    def answers(self, h: Float[Tensor, "M b W"], finish: Finish) -> tuple[Tensor, Tensor, Tensors]:
        """From the states at the last position, by autograd: the loss, dz in true units, and the gradients of w and b."""
        leaves = {"h": h, "w": self.w} | ({"b": self.folded["b"]} if self.bias else {})
        leaves = {name: value.detach().requires_grad_() for name, value in leaves.items()}
        out = torch.bmm(leaves["h"], leaves["w"])
        loss = finish(out + leaves["b"] if self.bias else out)
        found = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
        dz = found.pop("h").where(h > 0, 0) * (self.lists * (self.n - 1) / 2)
        self._set_unit(dz.square().sum(dim=(1, 2)))
        return loss.detach(), dz, found

    def letters(self, h: Float[Tensor, "M b N W"], y: Int64[Tensor, "M b k"]) -> tuple[Tensor, Tensor, Tensors]:
        """From the states at all positions, by a kernel."""
        rows, (_, width, count) = self.lists * self.n, self.w.shape
        each, parts = divided(math.ceil(rows / ROWS), self.members, words.READERS)
        y = _by_rows(y)
        new, dz = self.w.new_empty, torch.empty_like(h)
        summed = new(2, self.members, parts)
        dw, db = new(self.members, parts, width, count), new(self.members, parts, 1, count)
        for measure in (True, False):
            words.read_letters[(parts, self.members)](
                h, self.w, self.folded["b"].contiguous() if self.bias else self.none, y, y.stride(0),
                summed[0], summed[1] if measure else self.loss, dw, db, dz,
                rows, TILES=each, N=self.n, W=width, V=count, C=padded(count), R=ROWS,
                BIAS=self.bias, MEASURE=measure, PRECISION=self.precision,
            )  # fmt: skip
            if measure:
                loss, squares = summed.sum(dim=2)
                self._set_unit(squares)
        entries = self.lists * (self.n - 1)
        found = {"w": dw.sum(dim=1) / entries} | ({"b": db.sum(dim=1) / entries} if self.bias else {})
        return loss / entries, dz, found

    def _set_unit(self, squares: Float[Tensor, " M"]) -> None:
        """Sets ``loss``, off which the layers' kernels read their unit: for tokens it is not the true loss."""
        self.loss = squares / (self.lists * (self.n - 1))


class LongStep(TokenStep):
    """Prompts that fill a tile each. One kernel has all gradients of a layer; the last layer computes the scratchpad alone."""

    def __init__(self, *given: Any, enters: bool = False):
        super().__init__(*given)
        self.enters = enters  # whether the first state has a gradient to send back

    def differentiate_answers(self, finish: Finish) -> tuple[Tensor, Tensors]:
        index = self.config.layers - 1
        states = self._forward_to(index)
        s, u, unit = states[-1], self._of_layer("U", index), 2 / (self.lists * (self.n - 1))
        names = ("a_pointer",) if self.positional else ("m_pointer", "r_pointer", "m_stride", "r_stride")
        attention = self._matrices(index)
        look = answers.Look(s, u.shape[1], {name: attention[name] for name in names}, self.bias)
        seen, u = look.forward(), u.transpose(1, 2)
        z = torch.bmm(seen.flatten(2), u.flatten(1, 2))
        loss, dz, found = self.answers((z + self.folded["c"][index] if self.bias else z).relu(), finish)
        slopes = torch.bmm(dz, u.flatten(1, 2).mT).unflatten(2, u.shape[1:3])
        before = torch.empty_like(s) if index > 0 or self.enters else None
        attended = look.backward(slopes, self.loss, before, index > 0, self.precision)
        gradients = self._back_from(index, states, s if before is None else before)
        own = {"U": torch.bmm(seen.flatten(2).mT, dz).unflatten(1, u.shape[1:3]).transpose(1, 2)}
        own |= {"c": dz.sum(dim=1, keepdim=True)} if self.bias else {}
        if self.positional:
            own["A"] = F.pad(attended[..., None, :], (0, 0, self.n - 1, 0))
        else:
            own["M"] = torch.bmm(seen[:, :, 0].mT, attended.flatten(2)).unflatten(2, attended.shape[2:])
            own |= {"m": attended.sum(dim=1)} if self.bias else {}
        for name, value in own.items():
            torch.mul(value, unit, out=self._of_layer(name, index, gradients))
        return loss, narrowed(gradients | found, self.narrow)

    def _forward_to(self, index: int) -> list[Tensor]:
        """The states before every layer up to one."""
        grid, _, sizes = self._launch("forward")
        kernel, states = long.positional_forward if self.positional else long.attention_forward, [self.x]
        for layer in range(index):
            h = torch.empty(*self.x.shape[:3], self.config.width, dtype=self.kind, device=self.x.device)
            kernel[grid](h_pointer=h, c_pointer=self._of_layer("c", layer), **self._given(layer, states[-1]), **sizes)
            states.append(h)
        return states

    def _back_from(self, index: int, states: list[Tensor], dz: Tensor) -> Tensors:
        """The gradients of the layers before one, whose own are still to come, from ``dz`` of the last of them."""
        grid, _, sizes = self._launch("back")
        parts = self._parts(0)
        sums = {"du": "U", "dc": "c"} | ({"da": "A"} if self.positional else {"dm": "M", "dr": "m"})
        kernel = long.positional_backward if self.positional else long.attention_backward
        for layer in reversed(range(index)):
            before = torch.empty_like(states[layer])
            given: dict[str, Any] = {"dz_pointer": dz, "out_pointer": before, "loss_pointer": self.loss}
            given |= {"STATE": layer > 0 or self.enters, "RELU": layer > 0}
            given |= {f"{name}_pointer": self._of_layer(own, layer, parts.tensors) for name, own in sums.items()}
            kernel[grid](**given, **self._given(layer, states[layer]), **sizes)
            dz = before
        self.first_gradient = dz
        return _summed(parts, self.n)

    def _given(self, layer: int, s: Tensor) -> dict[str, Any]:
        """What kernels need both ways."""
        given = self._matrices(layer) | self._width_in(layer) | {"s_pointer": s, "lists": self.lists, "BIAS": self.bias}
        return given if self.positional else given | {"CAUSAL": self.config.causal}
