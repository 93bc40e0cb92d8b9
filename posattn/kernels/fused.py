"""The loss of a folded ensemble and its gradients through the kernels of ``layers``: what autograd gives, many times faster.

The contract is that of ``posattn.folding``: the folded tensors in, a gradient for each of them out. Between layers the
activations pass through memory; everything within a layer stays on chip.
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
from posattn.kernels.shapes import ROWS, narrowed, padded, rows_of, short, turns, widened
from posattn.model import ModelConfig

_WARPS = 4
_MULTIPROCESSORS = 132  # of an H100 or H200; on other cards the work is merely divided less evenly


class _Tuning(NamedTuple):
    """Programs that fit one multiprocessor, how deep loads are pipelined, and warps of a program."""

    programs: int
    stages: int
    warps: int = _WARPS


_HALF = {
    "positional forward": _Tuning(3, 1),
    "positional state": _Tuning(3, 1),
    "positional weights": _Tuning(2, 2),
    "bilinear forward": _Tuning(2, 1),
    "bilinear state": _Tuning(2, 2),
    "bilinear weights": _Tuning(2, 1),
    "queries forward": _Tuning(2, 1),
    "queries state": _Tuning(2, 1),
    "queries weights": _Tuning(1, 1),  # for each slot
}
_LONG = {  # for tiles of long lists, in half precision
    "positional forward": _Tuning(2, 2, 8),
    "positional back": _Tuning(1, 2, 8),
    "bilinear forward": _Tuning(1, 2, 8),
    "bilinear back": _Tuning(1, 2, 8),
}
_SINGLE = _Tuning(2, 1)
_READERS = 4  # programs per multiprocessor that read letters, or the encoder's input


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
    step = _Step(folded, _by_rows(x), config, precision, programs)
    step.y, step.encoding = _by_rows(y), encoding.contiguous()
    states, pairs, errors, parts = step.forward()
    parts |= step.backward(states, pairs, errors, states[-1])
    return step.loss, narrowed(_summed(parts, step.n), config)


def _by_rows(x: Tensor) -> Tensor:
    """x, or a copy if a member's lists do not follow one another in memory."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def _summed(parts: Tensors, n: int) -> Tensors:
    """The gradient of every folded tensor from its parts, one per program, after the member axis.

    Sums of few members have many parts, so the whole card adds them up. For ``A`` there is ``K`` (L, M, parts, H, R, R), whose
    diagonal blocks are summed as well: the kernels apply a block-diagonal matrix with A in every block. ``B`` has one row, or
    one per row of a tile.
    """
    rows = rows_of(n)
    by_member = ("U.first", "M.first", "m.first", "QK.first", "w", "b")  # the others have an axis of layers in front
    gradients = {name: value.sum(dim=1 if name in by_member else 2) for name, value in parts.items()}
    ends = {"c": -2, "w": -1, "b": -1}
    gradients |= {name: gradients[name].unsqueeze(axis) for name, axis in ends.items() if name in gradients}
    if "K" in gradients:
        k, count = gradients.pop("K"), rows // n
        blocks = k.as_strided((*k.shape[:3], count, n, n), (*k.stride()[:3], n * (rows + 1), rows, 1))
        gradients["A"] = blocks.sum(dim=3)
    if "B" in gradients and gradients["B"].shape[2] > 1:  # one row per row of a tile, which holds several lists
        lists = gradients["B"][:, :, : rows // n * n]
        gradients["B"] = lists.unflatten(2, (-1, n)).sum(dim=2)
    return gradients


class _Step:
    """What one step of an ensemble gives the kernels.

    ``x`` are lists of numbers, or first states (M, b, N, D) of sequences, which the first layer reads as others do.
    """

    def __init__(self, folded: Tensors, x: Tensor, config: ModelConfig, precision: str, programs: int | None = None):
        self.narrow, self.config = config, replace(config, width=padded(config.width))
        self.folded, self.precision, self.programs = widened(folded, self.config.width, precision), precision, programs
        self.lists_of_numbers = x.ndim == 3  # in which no scratchpad stands yet
        self.n = x.shape[2] + 1 if self.lists_of_numbers else x.shape[2]
        self.x, self.members, self.lists = x, x.shape[0], x.shape[1]
        self.rows, self.long = rows_of(self.n), self.n > ROWS
        self.depth = config.layers  # layers that are computed at all positions
        self.d_in, self.kind = folded["U.first"].shape[1], torch.float16 if precision == "fp16" else torch.float32
        self.enters = "T" in folded  # the first layer reads the encoder's output, and has a gradient to send back
        self.w = self.none = self.folded["w"].contiguous()  # ``none`` stands for what the architecture lacks
        self.y = self.encoding = self.none
        self._set_attention()

    @property
    def sums(self) -> dict[str, str]:
        """The gradients that a layer on long lists sums, by their names in kernels."""
        return {"u": "U", "c": "c"} | ({"a": "A"} if self.positional else {"m": "M", "r": "m"})

    def _set_attention(self) -> None:
        """Which kernels carry gradients back, how many programs share a tile of weights, and what logits are made of."""
        config, self.bias = self.config, self.config.bias
        self.positional, self.apart = config.design.attends == "position", keeps_queries_apart(config)
        self.form, self.turns = {"K": 0, "TABLE": 0, "ROTARY": False}, self.none  # of queries and keys
        if self.positional:
            self.attention, self.slots, self.names = "positional", 1, ("", "")
            self.state, self.weights = layers.positional_state, layers.positional_weights
        elif not self.apart:
            self.attention, self.slots, self.names = "bilinear", 2, ("M", "m")
            self.state, self.weights = layers.attention_state, layers.attention_weights
        else:
            self.attention, self.slots, self.names = "queries", 4, ("QK", "B")
            self.state, self.weights = layers.attention_state, queries.queries_weights
            half, rotary = self.folded["QK.first"].shape[-1], config.design.rotary
            rows = self.folded["B"].shape[2] if "B" in self.folded else 0
            self.form = {"K": half, "TABLE": rows, "ROTARY": rotary}
            self.turns = turns(self.n, config, self.none.device, self.precision) if rotary else self.none

    # --- what the kernels are given ----------------------------------------------------------------------------------------

    def _launch(self, way: str, slots: int = 1) -> tuple[tuple[int, int, int], int, dict[str, Any]]:
        """The grid, the parts that a member's tiles are divided into, and the sizes that a kernel is compiled for."""
        half = _LONG if self.long else _HALF
        tuning = half[f"{self.attention} {way}"] if self.precision == "fp16" else _SINGLE
        programs = _MULTIPROCESSORS * tuning.programs if self.programs is None else self.programs
        tiles = math.ceil(self.lists / (self.rows // self.n))
        each = math.ceil(tiles / max(1, programs // self.members))
        parts = math.ceil(tiles / each)
        sizes = {"TILES": each, "N": self.n, "W": self.config.width, "R": self.rows, "PRECISION": self.precision}
        return (parts, self.members, slots), parts, sizes | {"num_warps": tuning.warps, "num_stages": tuning.stages}

    def _width_in(self, index: int) -> dict[str, int]:
        """Features that a layer reads, and the same padded for the matrix units."""
        wide = self.d_in if index == 0 else self.config.width
        return {"D_IN": wide, "D": padded(wide)}

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
        """What a layer's logits need: M and m, or matrices, table and turns of queries and keys."""
        m, r = (self._of_layer(name, index) for name in self.names)
        strides = {"m_stride": m.stride(0), "r_stride": r.stride(0)}
        return {"m_pointer": m, "r_pointer": r, "turn_pointer": self.turns} | strides | self.form

    # --- forward and back --------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[list[Tensor], list[Tensor], Tensor, Tensors]:
        """The states before every layer and after the last, the attention weights, the errors, and the readout's parts."""
        config, sides = self.config, (self.members, self.lists)
        grid, parts, sizes = self._launch("forward")
        new = self.w.new_empty
        error = new(*sides, self.n)
        loss, dw, db = new(self.members, parts), new(self.members, parts, config.width), new(self.members, parts, 1)
        states, pairs = [self.x], []
        for index in range(self.depth):
            first, last = self._ends(index)
            h = new(*sides, self.n, config.width, dtype=self.kind)
            if self.long and not self.lists_of_numbers:
                kernel = long.positional_forward if self.positional else long.attention_forward
                c = {"c_pointer": self._of_layer("c", index), "BIAS": self.bias}
                kernel[grid](s_pointer=states[-1], h_pointer=h, **c, **self._of_sequences(index), **sizes)
                states.append(h)
                continue
            pairs.append(h if self.positional else new(*sides, 2, self.n, self.n, dtype=self.kind))
            layers.layer_forward[grid](
                x_pointer=self.x, x_stride=self.x.stride(0), encoding_pointer=self.encoding, lists=self.lists,
                s_pointer=states[-1], c_pointer=self._of_layer("c", index), pairs_pointer=pairs[-1], h_pointer=h,
                w_pointer=self.w, b_pointer=self.folded.get("b", self.none), y_pointer=self.y,
                y_stride=self.y.stride(0), error_pointer=error, loss_pointer=loss, dw_pointer=dw, db_pointer=db,
                BIAS=self.bias, POSITIONAL=self.positional, CAUSAL=config.causal, FIRST=first, LAST=last,
                **{"a_pointer": self.none} | self._logits(index) | self._matrices(index),
                **self._width_in(index), **sizes,
            )  # fmt: skip
            states.append(h)
        self.loss = loss.sum(dim=1) if self.lists_of_numbers else self.none
        return states, pairs, error, {"w": dw, "b": db} if self.bias else {"w": dw}

    def _ends(self, index: int) -> tuple[bool, bool]:
        """Whether a layer reads lists of numbers, and whether it goes on to errors."""
        return self.lists_of_numbers and index == 0, self.lists_of_numbers and index == self.config.layers - 1

    def backward(self, states: list[Tensor], pairs: list[Tensor], error: Tensor, dz: Tensor) -> Tensors:
        """Gradients from ``dz`` of the last layer; for lists of numbers a placeholder, made from the errors instead."""
        if self.long:
            return self._back_in_one(states, error, dz)
        state_grid, _, state_sizes = self._launch("state")
        weights_grid, parts, weights_sizes = self._launch("weights", self.slots)
        gradients = self._parts(parts)

        def part(name: str) -> Tensor:
            return self._of_layer(name, index, gradients)

        for index in reversed(range(self.config.layers)):
            first, s = index == 0, states[index]
            reads_lists, last = self._ends(index)
            given: dict[str, Any] = {"s_pointer": s, "dz_pointer": dz, "h_pointer": states[-1], "error_pointer": error}
            given |= {"loss_pointer": self.loss, "w_pointer": self.w, "lists": self.lists, "LAST": last}
            inputs: dict[str, Any] = {"x_pointer": self.x, "encoding_pointer": self.encoding}
            inputs |= {"x_stride": self.x.stride(0), "FIRST": reads_lists, "BIAS": self.bias} | self._width_in(index)
            summed = {"du_pointer": part("U"), "dc_pointer": part("c")}
            before = dz if reads_lists else torch.empty_like(s)
            matrices = self._matrices(index)
            if self.positional:
                summed |= {"dk_pointer": part("K")}
                self.weights[weights_grid](**summed, **given, **inputs, **matrices, **weights_sizes)
                if not first:
                    self.state[state_grid](out_pointer=before, **given, **matrices, **state_sizes)
            else:
                slopes = torch.empty_like(pairs[index])
                tables = {"pairs_pointer": pairs[index], "slopes_pointer": slopes}
                self.state[state_grid](out_pointer=before, **tables, **given, **inputs, **matrices, **state_sizes)
                summed |= {"dm_pointer": part(self.names[0]), "dr_pointer": part(self.names[1])}
                inputs |= self._logits(index) if self.apart else {}
                self.weights[weights_grid](**tables, **summed, **given, **inputs, **weights_sizes)
            dz = before
        return gradients

    def _back_in_one(self, states: list[Tensor], error: Tensor, dz: Tensor) -> Tensors:
        """The same for long lists, where one kernel has all gradients of a layer."""
        grid, parts, sizes = self._launch("back")
        gradients = self._parts(parts)
        for index in reversed(range(self.depth)):
            (reads_lists, last), s = self._ends(index), states[index]
            before = dz if reads_lists else torch.empty_like(s)
            given = {"s_pointer": s, "dz_pointer": dz, "out_pointer": before, "loss_pointer": self.loss, "BIAS": self.bias}
            given |= {"STATE": index > 0 or self.enters, "RELU": index > 0}
            given |= {f"d{name}_pointer": self._of_layer(tensor, index, gradients) for name, tensor in self.sums.items()}
            if self.positional:
                given |= {"x_pointer": self.x, "encoding_pointer": self.encoding, "x_stride": self.x.stride(0)}
                given |= {"h_pointer": states[-1], "error_pointer": error, "w_pointer": self.w}
                given |= {"FIRST": reads_lists, "LAST": last}
            kernel = long.positional_backward if self.positional else long.attention_backward
            kernel[grid](**given, **self._of_sequences(index), **sizes)
            dz = before
        self.first_gradient = dz
        return gradients

    def _of_sequences(self, index: int) -> dict[str, Any]:
        """What kernels of long lists need besides states."""
        given = {name: value for name, value in self._matrices(index).items() if name not in ("turn_pointer", *self.form)}
        given |= {} if self.positional else {"CAUSAL": self.config.causal}
        return given | self._width_in(index) | {"lists": self.lists}

    def _parts(self, parts: int) -> Tensors:
        """Room for the parts of every gradient but the readout's."""
        count, width, rows, d_in = self.config.layers, self.config.width, self.rows, self.d_in
        first, inner, every = (self.members, parts), (count - 1, self.members, parts), (count, self.members, parts)
        shapes = {"U.first": (*first, d_in, 3, width), "U": (*inner, width, 3, width), "c": (*every, width)}
        if self.positional and self.long:
            shapes["A"] = (*every, 2, self.n, self.n)
        elif self.positional:
            shapes["K"] = (*every, 2, rows, rows)
        elif self.apart:
            both, table = (4, 2, self.form["K"]), rows if self.form["TABLE"] > 1 else 1
            shapes |= {"QK.first": (*first, d_in, *both), "QK": (*inner, width, *both), "B": (*every, table, *both)}
        else:
            shapes |= {"M.first": (*first, d_in, 2, d_in), "M": (*inner, width, 2, width)}
            shapes |= {"m.first": (*first, 2, d_in), "m": (*inner, 2, width)}
        return {name: self.w.new_empty(*shape) for name, shape in shapes.items() if name in self.folded or name == "K"}


Finish = Callable[[Tensor], Tensor]  # from the answers (M, b, out) to every member's loss


def loss_and_gradients_of_answers(
    folded: Tensors, states: Float[Tensor, "M b N D"], finish: Finish, config: ModelConfig, precision: str
) -> tuple[Float[Tensor, " M"], Tensors]:
    """The loss and gradients of token networks that answer at the last position, from ``words.first_states``, with any loss."""
    return _TokenStep(folded, states, config, precision).differentiate_answers(finish)


def loss_and_gradients_of_entered(
    folded: Tensors, x: Float[Tensor, "M b k"], characters: Float[Tensor, "V_1 F"], finish: Finish, config: ModelConfig,
    precision: str,
) -> tuple[Float[Tensor, " M"], Tensors]:  # fmt: skip
    """The same where the encoder is not folded into the first layer, from the sequences and the characters of words."""
    entrance = words.Entrance(x, characters, folded, precision, _MULTIPROCESSORS * _READERS)
    step = _TokenStep(folded, entrance.states(), config, precision)
    loss, gradients = step.differentiate_answers(finish)
    return loss, gradients | entrance.gradients(step.first_gradient, step.loss)


def loss_and_gradients_of_letters(
    folded: Tensors, states: Float[Tensor, "M b N D"], y: Int64[Tensor, "M b k"], config: ModelConfig, precision: str
) -> tuple[Float[Tensor, " M"], Tensors]:
    """The same for networks that answer a letter at every position but the last; the loss is the mean cross-entropy."""
    step = _TokenStep(folded, states, config, precision)
    return step.differentiate(lambda h: step.letters(h, y))


class _TokenStep(_Step):
    """A step from the first states of sequences. Answers are read off the last state, outside the layers' kernels."""

    def differentiate(self, read: Callable[[Tensor], tuple[Tensor, Tensor, Tensors]]) -> tuple[Tensor, Tensors]:
        """``read`` goes from the last state to the loss, dz of the last layer, and the gradients of w and b."""
        states, pairs, errors, _ = self.forward()
        loss, dz, found = read(states[-1])
        gradients = _summed(self.backward(states, pairs, errors, dz), self.n) | found
        return loss, narrowed(gradients, self.narrow)

    def differentiate_answers(self, finish: Finish) -> tuple[Tensor, Tensors]:
        """The loss and gradients of answers at the last position. Of long lists the last layer computes no other."""
        if not self.long:
            return self.differentiate(lambda h: self._whole(*self.answers(h[:, :, -1].float(), finish)))
        self.depth = index = self.config.layers - 1
        states, pairs, errors, _ = self.forward()
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
        gradients = _summed(self.backward(states, pairs, errors, s if before is None else before), self.n)
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

    def answers(self, h: Float[Tensor, "M b W"], finish: Finish) -> tuple[Tensor, Tensor, Tensors]:
        """From the states at the last position, by autograd: the loss, dz, and the gradients of w and b."""
        leaves = {"h": h, "w": self.w} | ({"b": self.folded["b"]} if self.bias else {})
        leaves = {name: value.detach().requires_grad_() for name, value in leaves.items()}
        out = torch.bmm(leaves["h"], leaves["w"])
        loss = finish(out + leaves["b"] if self.bias else out)
        found = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
        dz = found.pop("h").where(h > 0, 0) * (self.lists * (self.n - 1) / 2)
        self._set_unit(dz.square().sum(dim=(1, 2)))
        return loss.detach(), dz, found

    def _whole(self, loss: Tensor, dz: Float[Tensor, "M b W"], found: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """The same with dz at all positions, as kernels read it."""
        whole = dz.new_zeros(self.members, self.lists, self.n, dz.shape[-1], dtype=self.kind)
        whole[:, :, -1] = short(dz / (8 * self.loss.clamp_min(1e-30).sqrt())[:, None, None], self.precision)
        return loss, whole, found

    def letters(self, h: Float[Tensor, "M b N W"], y: Int64[Tensor, "M b k"]) -> tuple[Tensor, Tensor, Tensors]:
        """From the states at all positions, by a kernel."""
        rows, (_, width, count) = self.lists * self.n, self.w.shape
        tiles = math.ceil(rows / ROWS)
        each = math.ceil(tiles / max(1, _MULTIPROCESSORS * _READERS // self.members))
        parts, y = math.ceil(tiles / each), _by_rows(y)
        new, dz = self.w.new_empty, torch.empty_like(h)
        summed = new(2, self.members, parts)
        dw, db = new(self.members, parts, width, count), new(self.members, parts, 1, count)
        for measure in (True, False):
            words.read_letters[(parts, self.members)](
                h, self.w, self.folded["b"].contiguous() if self.bias else self.none, y, y.stride(0),
                summed[0], summed[1] if measure else self.loss, dw, db, dz,
                rows, TILES=each, N=self.n, W=width, V=count, C=padded(count), R=ROWS,
                BIAS=self.bias, MEASURE=measure, PRECISION=self.precision, num_warps=_WARPS,
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
