"""PCOC to the weights of a positional Transformer (Lemma B.2): one layer per round, one head per memory position.

Row i of X is machine i: its s memory positions, and its number in the last column (d_X = s + 1). Row N is the sink.
With P = I and W_K = I the logits are W_Q, so W_Q = T (2Ā - 1) makes head h attend by the pattern Ā: each machine attends to the
machine from which it receives position h (Lemma B.3). There are two corrections to the printed construction. A machine that
receives nothing attends to the sink, which is blank; if unused sources were routed there instead, the machine's row would stay
uniform. And head h reads its value in row h + (h-1)(s+1) of W_O. Because logits are divided by √d_k, W_Q is multiplied by it.

Letters: N machines, n = N + 1 positions, s memory, R rounds, T temperature, ε the weight that softmax leaves elsewhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posattn.compiler.analysis import BLANK, STEP_MARGIN, Analysis, Known, Margins
from posattn.compiler.compiled_model import CompiledConfig, CompiledTransformer, attention_parameters, require_room_for
from posattn.compiler.expressions import Array, Expression, Me, both, kept_in_range, minimum, select, shape_of
from posattn.compiler.expressions_to_relu import Maps, relu_layers
from posattn.compiler.machine_memory import BREACHES, MOST_COUNTED, breach_code
from posattn.compiler.pcoc import IDLE, PCOC
from posattn.compiler.selection import Selection, SelectionConfig, SparseLinear
from posattn.errors import UsageError, positive, whole
from posattn.model import Layer, ModelConfig, Transformer

_MOST = 600  # the largest temperature: beyond it float64 cannot hold the exponentials


@dataclass(frozen=True)
class Lowered:
    """A network with its temperature and the largest errors that the analysis of its program finds."""

    model: CompiledTransformer
    leak: float | None  # ε: the weight that softmax gives to other positions; None for hardmax
    temperature: float | None
    error: float  # of any output, due to softmax; 0 for hardmax, infinite if T is too low for the comparisons
    misfit: float  # of any output, due to fitted functions: sampled, since between the points tried they may err more


def lower(
    program: PCOC,
    epsilon: float | None = None,
    lean: bool = False,
    temperature: float | None = None,
    sparse: bool = False,
) -> Lowered:
    """The network that runs ``program``: with hardmax, or with softmax that moves no output by more than ``epsilon``.

    W_V is the identity in every head (d_V = s + 1), or if ``lean`` the head's own column (d_V = 1), which computes the same.
    ``temperature`` overrides the one that ``epsilon`` needs. ``sparse`` makes a SelectionNetwork, which is lean and hardmax.
    """
    for name, given in (("epsilon", epsilon), ("temperature", temperature)):
        if sparse and given is not None:
            raise UsageError(f"{name} is {given}; a sparse network has indices for attention, which are hardmax.")
    n, s, d_v = program.machines + 1, program.memory, 1 if lean or sparse else program.memory + 1
    require_room_for(program.name, attention_parameters(n, s, s + 1, d_v, sparse) * (len(program.rounds) + 1), sparse)
    maps, outputs, margins = analyse(program)
    error = max(known.error for known in outputs)
    leak = None
    if epsilon is not None or temperature is not None:
        if temperature is None:
            margins.need(error, positive("epsilon", epsilon))
            temperature = hardmax_temperature(n, margins.epsilon)
            if temperature > _MOST:
                raise UsageError(f"epsilon is {epsilon}; {program.name} would need the temperature {temperature:.0f}.")
        elif positive("temperature", temperature) > _MOST:
            raise UsageError(f"temperature is {temperature:g}; it must be at most {_MOST}, or none for hardmax.")
        leak = min(1.0, n * math.exp(-2 * temperature))
    config = _configured(program, maps, temperature is None, d_v, sparse)
    require_room_for(program.name, config.least_numbers, sparse)
    model = _network(program, maps, 1.0 if temperature is None else temperature, config)
    moved = 0.0 if leak is None else error * leak if leak <= 1.000001 * margins.epsilon else math.inf
    return Lowered(model, leak, temperature, moved, max(known.misfit for known in outputs))


def analyse(program: PCOC, held: bool = False) -> tuple[list[Maps], list[Known], Margins]:
    """The MLP of every round, what is known of the outputs, and the conditions on ε.

    The sink runs the program on blank memory, on which numbers may leave the ranges that hold on the machines, and gates
    are built for these. Where the sink would be heard, such numbers are ``held`` in their ranges there: then it is silent.
    """
    s, strayed, margins = program.memory, False, Margins()
    sink = np.zeros(s)
    cells = [known.join(BLANK) for known in program.inputs] + [BLANK] * (s - len(program.inputs))
    made: dict[object, Maps] = {}
    computed: dict[int, list[Expression]] = {}  # by the function of a round, which several rounds may share
    shapes: tuple[dict[Any, int], dict[Any, Any]] = {}, {}
    maps: list[Maps] = []
    layers = len(program.rounds) + 1
    for r in range(layers):
        # Attention is the identity in the first layer and follows the oracle in the others; softmax leaks in all of them.
        cells = [known.join(BLANK) for known in cells]
        cells = [Known(k.lo, k.hi, k.integer, k.error + k.hi - k.lo, k.misfit) for k in cells]
        compute = program.rounds[r - 1].compute if r else program.start
        if id(compute) not in computed:
            computed[id(compute)] = program.local(r)
        written = [*computed[id(compute)], _number(program, r)]
        before = sink
        kept, found = kept_in_range(written, before, program.machines)
        strayed |= kept is not written and not held
        heard = _listened(program, r)
        erased = heard & (found[:-1] != 0)
        row = [
            select(Me() < program.machines, f, 0) if wanted else f
            for f, wanted in zip(kept if held else written, [*erased, False], strict=True)
        ]
        first = breach_code(len(BREACHES), MOST_COUNTED, layers) - layers if program.guarded else 0
        analysis = Analysis(cells, program.machines, margins, f"{program.place(r)}: ", first)
        # Rounds with the same computation on cells of the same ranges share an MLP: it does not depend on softmax's errors.
        key = (shape_of(row, *shapes), tuple((k.lo, k.hi, k.integer) for k in cells))
        if key not in made:
            # The MLP reads [attended, x]: the s received words, and the machine's number, the last column of x.
            made[key] = relu_layers(row, analysis, [*range(s), 2 * s + 1], 2 * (s + 1))
        maps.append(made[key])
        *cells, number = [analysis.known(expression) for expression in row]
        margins.need(number.error, STEP_MARGIN)  # so that the code of a breach can be read
        sink = np.where(erased, 0.0, found[:-1])
        if strayed:
            *own, last = _given(maps[-1], np.concatenate([before, np.zeros(s + 1), [program.machines]])).tolist()
            sink = np.array(own)
            if last != program.machines or sink[heard].any():
                return analyse(program, held=True)
    return maps, [cells[position] for position in program.outputs], margins


def _given(mlp: Maps, row: Array) -> Array:
    """What an MLP makes of a row, with numbers next to an integer rounded to it."""
    for own in mlp:
        given = own.bias.copy()
        np.add.at(given, own.indices[:, 0], own.values * row[own.indices[:, 1]])
        row = given if own is mlp[-1] else np.maximum(given, 0.0)
    return np.where(np.abs(row - row.round()) < 1e-6, row.round(), row)


def _number(program: PCOC, r: int) -> Expression:
    """The machine's number, or a code below 0 if the machine has broken the model's rules (:data:`BREACHES`).

    The code falls by 1 per round. So the network, which then refuses to answer, can say which machine it was, when, and by
    how much.
    """
    if not program.guarded:
        return Me()
    number: Expression = Me(lost=True)
    lawful, found = both(number >= 0, number < program.machines), number - (number < 0)
    for guard in reversed(program.guard(r)):
        count = minimum(guard.count, MOST_COUNTED)
        code = breach_code(guard.kind, count, len(program.rounds) + 1)
        found = select(both(count > 0, lawful), code, found)
    return found


def _listened(program: PCOC, r: int) -> NDArray[np.bool_]:
    """The positions at which idle machines receive from the sink what it computes in a round."""
    if r == len(program.rounds):
        return np.zeros(program.memory, dtype=bool)
    listened: NDArray[np.bool_] = (program.sources[r] == IDLE).any(axis=0)
    return listened


def hardmax_temperature(n: int, epsilon: float) -> float:
    """Lemma B.3: with T ≥ ½ ln(n/ε), softmax is within ε of any unique hardmax pattern on n positions."""
    return 0.5 * (math.log(whole("n", n)) - math.log(min(positive("epsilon", epsilon), 1.0)))


def _configured(program: PCOC, maps: list[Maps], hardmax: bool, d_v: int, sparse: bool) -> CompiledConfig:
    """The configuration of the network that runs ``program`` with these MLPs; sparse layers with the same MLP share it."""
    made: Callable[..., CompiledConfig] = CompiledConfig
    if sparse:
        distinct = {id(mlp): mlp for mlp in maps}
        entries = tuple(tuple(len(own.values) for own in mlp) for mlp in distinct.values())
        made = partial(SelectionConfig, entries=entries, uses=tuple(list(distinct).index(id(mlp)) for mlp in maps))
    return made(
        n=program.length,
        layers=len(maps),
        heads=program.memory,
        embed=program.memory + 1,
        inputs=len(program.bounds),
        outputs=len(program.outputs),
        spare=program.spare,
        d_v=d_v,
        mlp=tuple(tuple(hidden.shape[0] for hidden in layer[:-1]) for layer in maps),
        hardmax=hardmax,
        bounds=program.bounds,
        integers=program.integers,
        lengths=program.lengths,
    )


def _network(program: PCOC, maps: list[Maps], temperature: float, config: CompiledConfig) -> CompiledTransformer:
    model, inputs = blank_transformer(config), config.input_dim
    assert isinstance(model, CompiledTransformer)
    # The machine's number, the last input, has the last column of X.
    _write(model.encoder, np.array([*enumerate(range(inputs - 1)), (program.memory, inputs - 1)]), np.ones(inputs))
    _write(model.decoder, np.array([*enumerate(program.outputs)]), np.ones(config.outputs))
    for index, (layer, mlp) in enumerate(zip(model.layers, maps, strict=True)):
        assert isinstance(layer, Layer)
        _write_attention(layer.attention, listens_to(program, index), temperature)
        for linear, own in zip((layer.W_1, *layer.between, layer.W_2), mlp, strict=True):
            _write(linear, own.indices, own.values, own.bias)
    model.labels = program.labels
    return model.eval()


def _write(linear: Any, places: NDArray[np.int64], values: Array, bias: Array | float = 0.0) -> None:
    """Sets a map of a blank network to ``values`` at ``places`` (row, column), and its bias."""
    if isinstance(linear, SparseLinear):
        return linear.write(places, values, bias)
    linear.weight[tuple(torch.from_numpy(places.T))] = torch.from_numpy(values)
    linear.bias.copy_(torch.as_tensor(bias))


def blank_transformer(config: CompiledConfig | ModelConfig) -> Transformer:
    """A network in float64 whose parameters are all 0."""
    with torch.random.fork_rng(devices=[]):  # its initial draws must not change the caller's random state
        model = Transformer(config).double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    return model


def listens_to(program: PCOC, layer: int) -> NDArray[np.int64]:
    """(s, n): the position that each position attends to, per head. In layer 0 all attend to themselves, the sink always."""
    sink = program.machines
    table: Any = np.broadcast_to(np.arange(sink)[:, None], (sink, program.memory))
    if layer:
        table = program.sources[layer - 1]
        table = np.where(table == IDLE, sink, table)
    return np.concatenate([table, np.full((1, program.memory), sink)]).T


def _write_attention(attention: Any, listens_to: NDArray[np.int64], temperature: float) -> None:
    if isinstance(attention, Selection):
        attention.sources.copy_(torch.from_numpy(listens_to.T.copy()))
        return
    s, n = listens_to.shape
    w_q, w_k = (linear.weight.view(s, n, n) for linear in (attention.W_Q, attention.W_K))
    scale = temperature * math.sqrt(n)
    # A linear map holds the transpose of the lemma's matrix, W_Q = T (2Ā - 1): row j, column i is [i attends to j].
    w_q.fill_(-scale)
    w_q.scatter_(1, torch.from_numpy(listens_to)[:, None, :], scale)
    w_k.copy_(torch.eye(n).expand(s, n, n))
    identity, heads = torch.eye(s + 1), torch.arange(s)
    if attention.W_V.out_features == s:  # lean
        attention.W_V.weight.copy_(identity[:s])
        attention.W_O.weight[heads, heads] = 1.0
        return
    # W_V of every head is the identity of d_X = s + 1, and W_O keeps column h of head h.
    attention.W_V.weight.view(s, s + 1, s + 1).copy_(identity.expand(s, -1, -1))
    attention.W_O.weight[heads, heads * (s + 1) + heads] = 1.0
