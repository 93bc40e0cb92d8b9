"""A trained network for other programs: an ONNX file, or a program of torch.export, with any number of lists at once.

What is written is the frozen network (posattn.folding.frozen) for lists of one length. A positional one is then a constant
linear map and a ReLU per layer: no query, key or softmax is left in the file. Self-attention keeps its softmax, with one matrix
in place of queries and keys where those multiply out. Networks that cannot be frozen are written as they are; a sparse compiled
program keeps the indices of its attention, and its MLPs are written as matrices.
"""

import copy
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from posattn import files
from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.selection import SelectionNetwork
from posattn.devices import CPU, check_fits
from posattn.errors import UsageError, instance, path_of, shown, whole
from posattn.folding import Frozen
from posattn.model import Transformer
from posattn.network import NetworkConfig, can, require

TOLERANCE = 1e-5  # of a file's answers, relative to the largest of them; or, where that is more,
_ROUNDING = 20  # times what the network itself loses in float32
WORST_COMPILED = 1e-3  # what a compiled program may lose in float32 of its largest answer before it is refused
_MOST = 100  # lists that a file is checked with at once
_SCALES = (1.0, 10.0)  # of the numbers that a file is checked with, in units of the training range
_INPUT, _OUTPUT = "numbers", "answers"


def simplest(model: nn.Module, length: int | None = None) -> tuple[Frozen | Transformer, int]:
    """The module that is exported for a network, a Frozen where it can be frozen, and the length of its lists."""
    if not isinstance(model, Transformer):
        raise UsageError(f"the network is a {type(model).__name__}; a posattn.Transformer can be exported.")
    require(model.config, "export")
    length = model.config.n if length is None else length
    if model.config.any_length:
        length = whole("length", length)
        size = model.config.numbers_per_position(length, gradients=False)
        check_fits(_MOST, length, size, torch.float64.itemsize, CPU)  # of what it is checked with
    elif isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= model.config.n:
        raise UsageError(
            f"length is {shown(length)}; it must be from 1 to {model.config.n}, the network's longest list."
        )
    model = copy.deepcopy(model).float().cpu().eval()  # the caller's stays as it is
    if isinstance(model, SelectionNetwork):
        return model.with_matrices(), length
    return Frozen(model, length) if can(model.config, "freeze") else model, length


def to_onnx(model: nn.Module, path: Path | str, length: int | None = None, lists: Tensor | None = None) -> float:
    """Writes an ONNX file, once ONNX Runtime gives the network's answers with it; returns how far it is from float64 at most.

    The input ``numbers`` and the output ``answers`` are (batch, length), with one axis more for a compiled program of vectors.
    ``lists`` are those that it is checked with, by default random ones.
    """
    path, runtime = path_of("path", path), _needed("onnxruntime")
    _needed("onnx"), _needed("onnxscript")
    program, length = simplest(model, length)
    for name in ("torch.onnx", "onnxscript"):  # they tell of what they do not optimise
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program,
            (torch.zeros(3, *_shape(program.config, length)),),
            dynamo=True,
            verbose=False,
            dynamic_shapes=({0: "batch"},),
            input_names=[_INPUT],
            output_names=[_OUTPUT],
        )
    assert made is not None
    content = made.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    answers = lambda x: torch.from_numpy(session.run(None, {_INPUT: x.numpy()})[0])  # noqa: E731
    difference = _checked(model, program.config, length, answers, lists)
    files.output(path, content)
    return difference


def to_torch(model: nn.Module, path: Path | str, length: int | None = None, lists: Tensor | None = None) -> float:
    """Writes a program that ``torch.export.load`` reads, checked in the same way."""
    path = path_of("path", path)
    program, length = simplest(model, length)
    lists_of_zeros = torch.zeros(3, *_shape(program.config, length))
    with torch.no_grad():
        # Not a named Dim: of it torch 2.11 wants a proof that a guard holds for every size, which it does not find.
        made = torch.export.export(program, (lists_of_zeros,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    buffer = io.BytesIO()
    torch.export.save(made, buffer)
    buffer.seek(0)
    with warnings.catch_warnings():  # torch 2.11 warns of its own buffers
        warnings.simplefilter("ignore")
        loaded = torch.export.load(buffer).module()
    difference = _checked(model, program.config, length, loaded, lists)
    files.output(path, buffer.getvalue())
    return difference


def _shape(config: NetworkConfig, length: int) -> tuple[int, ...]:
    return (length, config.inputs) if isinstance(config, CompiledConfig) and config.inputs > 1 else (length,)


def _checked(
    model: nn.Module,
    config: NetworkConfig,
    length: int,
    answers: Callable[[Tensor], Tensor],
    lists: Tensor | None = None,
) -> float:
    """The largest difference of a file's answers from the network's in float64; an error if it is not small.

    Small is what float32 allows: self-attention far from the training range magnifies the last digits, in any program.
    """
    if lists is not None:
        instance("lists", lists, Tensor, "a tensor of lists, or None")
        if tuple(lists.shape[1:]) != _shape(config, length):
            raise UsageError(f"lists has shape {tuple(lists.shape)}; it must be (batch, {length}).")
    exact, plain, worst = copy.deepcopy(model).cpu().double(), copy.deepcopy(model).cpu().float(), 0.0
    given = () if lists is None else (("for the lists given", x.float()) for x in (lists[:1], lists))
    for where, x in given or _lists(config, length):
        with torch.no_grad():
            truth = _answers(exact, x.double())
            largest = max(float(truth.abs().max()), torch.finfo(torch.float32).tiny)
            theirs, ours = (float((y - truth).abs().max()) / largest for y in (answers(x), plain(x)))
        if not theirs <= max(TOLERANCE, _ROUNDING * ours):
            raise RuntimeError(f"{where} the exported network is off by {theirs:.1e}, and the network by {ours:.1e}.")
        worst = max(worst, theirs)
    if isinstance(config, CompiledConfig) and not worst <= WORST_COMPILED:
        raise UsageError(
            f"in float32 the compiled program errs by {worst:.1e} of its largest answer; compile it with a smaller bound."
        )
    return worst


def _lists(config: NetworkConfig, length: int) -> Iterator[tuple[str, Tensor]]:
    """Random lists, and what they are: of the training range and beyond it, or within the bounds of a compiled program."""
    for scale, batch in product(_SCALES, (1, _MOST)):
        unit = torch.rand(batch, *_shape(config, length), generator=torch.Generator().manual_seed(batch))
        if not isinstance(config, CompiledConfig):
            yield f"at scale {scale:g}", scale * (4 * unit - 2)
            continue
        low, high = torch.tensor(config.bounds).unbind(-1)
        x = low + unit.view(batch, length, -1) * (high - low) * scale / _SCALES[-1]
        x[..., list(config.integers)] = x[..., list(config.integers)].round()
        yield "within its bounds", x.view_as(unit)


def _answers(model: nn.Module, x: Tensor) -> Tensor:
    try:
        return model(x)
    except UsageError as error:
        raise UsageError(f"the network is to be checked with lists that it refuses, so give others: {error}") from error


def _needed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"ONNX files need {name}, which is not installed: pip install 'posattn[onnx]'.") from error
