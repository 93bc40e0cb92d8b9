"""A network for other programs: an ONNX file, or a program of torch.export, with any number of lists at once.

What is written is the frozen network (posattn.folding.frozen) for lists of one length. A positional one is then a constant
linear map and a ReLU per layer: no query, key or softmax is left in the file. Self-attention keeps its softmax, with one matrix
in place of queries and keys where those multiply out. Networks that cannot be frozen are written as they are; a sparse compiled
program keeps the indices of its attention, and its MLPs are written as matrices.

What a file takes and gives is a row of ``INTERFACES``, by what the network reads. A file for tokens also holds their
vocabulary, how they are read, and an example.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posattn import files
from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.selection import SelectionNetwork
from posattn.devices import CPU, check_fits
from posattn.errors import UsageError, extra, instance, path_of, shown, some, whole
from posattn.folding import Frozen
from posattn.network import NetworkConfig, can, require
from posattn.tasks.khop import KHOP
from posattn.tasks.layouts import layout_for
from posattn.tasks.mixed import ANY_QUERY
from posattn.tasks.token_task import TokenTask
from posattn.tokens.vocabulary import VOCABULARIES

TOLERANCE = 1e-5  # of a file's answers, relative to the largest of them; or, where that is more,
_ROUNDING = 20  # times what the network itself loses in float32
WORST_COMPILED = 1e-3  # what an output of a compiled program may lose in float32 of its largest before it is refused
_BESIDE = 1e-3  # of the largest answer of all outputs: a compiled program's output counts as at least so large
_MOST = 100  # lists that a file is checked with at once
_SCALES = (1.0, 10.0)  # of the numbers that a file is checked with, in units of the training range


@dataclass(frozen=True)
class Interface:
    """What a file takes and gives. The input is (batch, length)."""

    takes: str
    gives: str
    checked: str  # what it is checked with
    dtype: torch.dtype = torch.float32
    task: TokenTask | None = None  # whose samples it is checked with, in place of random numbers
    shortest: int = 1
    reading: str = ""  # how tokens are read and answers told


INTERFACES = {  # by NetworkConfig.reads
    "none": Interface("numbers", "answers", "up to scale 10"),
    "letters": Interface(
        "tokens", "logits", "for letters in and out of distribution", torch.int64, KHOP, shortest=2,
        reading="A sequence is a hop count and letters; word t of the vocabulary is t. "
        "Per position there is a logit for each word; the largest is the answer.",
    ),
    "prompts": Interface(
        "prompts", "answers", "on prompts up to scale 10", task=ANY_QUERY,
        reading="In a prompt, word t of the vocabulary is -1 - t, and a number v >= 0 is v. The answer is one number.",
    ),
}  # fmt: skip


def simplest(model: nn.Module, length: int | None = None) -> tuple[Any, int]:
    """The module that is exported for a network, a Frozen where it can be frozen, and the length of its lists."""
    config: Any = getattr(model, "config", None)
    if not isinstance(config, NetworkConfig):
        only = "only Transformers and table networks of posattn can be exported"
        raise UsageError(f"the network is a {type(model).__name__}; {only}.")
    require(config, "export")
    length = _length(config, config.n if length is None else length)
    model = copy.deepcopy(model).float().cpu().eval()  # the caller's stays as it is
    if isinstance(model, SelectionNetwork):
        return model.with_matrices(), length
    return Frozen(model, length) if can(config, "freeze") else model, length  # type: ignore[arg-type]


def _length(config: Any, length: object) -> int:
    """``length`` if the network takes such lists, and they fit into memory."""
    form = INTERFACES[config.reads]
    if config.reads == "prompts" and length != (own := layout_for(config.tokens)[1].positions):
        raise UsageError(f"length is {shown(length)}; prompts whose tokens are {config.tokens!r} have {own} positions.")
    if not config.any_length:
        return whole("length", length, form.shortest, config.n)
    length = whole("length", length, form.shortest)
    size = config.numbers_per_position(length, gradients=False)
    check_fits(_MOST, length, size, torch.float64.itemsize, CPU)  # of what it is checked with
    return length


def to_onnx(
    model: nn.Module, path: Path | str, length: int | None = None, lists: Tensor | None = None, task: TokenTask | None = None
) -> float:
    """Writes an ONNX file, once ONNX Runtime gives the network's answers with it; returns how far it is from float64 at most.

    The input ``numbers`` and the output ``answers`` are (batch, length), with one axis more for a compiled program of vectors.
    For letters, ``tokens`` (batch, length) of int64 give ``logits`` (batch, length, words). For prompts, ``prompts`` (batch,
    length) give ``answers`` (batch, 1). What describes tokens is in the file's metadata.

    ``lists`` are those that it is checked with, by default random ones, of tokens samples of the task. ``task`` is the one
    whose example a file for tokens holds, by default k-hop, or that of all prompts.
    """
    path, runtime = path_of("path", path), extra("onnx", "onnxruntime", "onnx", "onnxscript")
    program, length = simplest(model, length)
    form = INTERFACES[program.config.reads]
    for name in ("torch.onnx", "onnxscript"):  # they tell of what they do not optimise
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program,
            _example(program.config, length),
            dynamo=True,
            verbose=False,
            dynamic_shapes=({0: "batch"},),
            input_names=[form.takes],
            output_names=[form.gives],
        )
    assert made is not None
    made.model.metadata_props.update(_described(program, length, task))
    content = made.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    answers = lambda x: torch.from_numpy(session.run(None, {form.takes: x.numpy()})[0])  # noqa: E731
    difference = _checked(model, program.config, length, answers, lists)
    files.output(path, content)
    return difference


def to_torch(
    model: nn.Module, path: Path | str, length: int | None = None, lists: Tensor | None = None, task: TokenTask | None = None
) -> float:
    """Writes a program that ``torch.export.load`` reads, checked in the same way; what describes tokens is in extra files."""
    path = path_of("path", path)
    program, length = simplest(model, length)
    with torch.no_grad():
        example = _example(program.config, length)
        # Not a named Dim: of it torch 2.11 wants a proof that a guard holds for every size, which it does not find.
        made = torch.export.export(program, example, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    buffer = io.BytesIO()
    torch.export.save(made, buffer, extra_files=_described(program, length, task))
    buffer.seek(0)
    with warnings.catch_warnings():  # torch 2.11 warns of its own buffers
        warnings.simplefilter("ignore")
        loaded = torch.export.load(buffer).module()
    difference = _checked(model, program.config, length, loaded, lists)
    files.output(path, buffer.getvalue())
    return difference


def _shape(config: NetworkConfig, length: int) -> tuple[int, ...]:
    return (length, config.inputs) if isinstance(config, CompiledConfig) and config.inputs > 1 else (length,)


def _example(config: NetworkConfig, length: int) -> tuple[Tensor]:
    """An input to trace a network with."""
    return (torch.zeros(3, *_shape(config, length), dtype=INTERFACES[config.reads].dtype),)


def _described(program: Any, length: int, task: TokenTask | None) -> dict[str, str]:
    """What a file for tokens holds beside the network: the vocabulary, a sentence, and an input with its output."""
    config = program.config
    form = INTERFACES[config.reads]
    if form.task is None:
        return {}
    own = form.task if task is None else task
    if not isinstance(own, TokenTask):
        raise UsageError(f"task is {shown(own)}; it must be a task of tokens, or None.")
    words = [word.replace(" ", "") or word for word in VOCABULARIES[config.tokens].words]  # a space may be a word
    x = own.sample(1, n=length)[0]
    with torch.no_grad():
        said = program(x)[0]
    answer = said.item() if form.dtype.is_floating_point else own.decode(said.argmax(dim=-1))
    example = {"text": own.decode(x[0]), form.takes: x[0].tolist(), "answer": answer}
    return {"vocabulary": json.dumps(words), "reading": form.reading, "example": json.dumps(example)}


def _checked(
    model: nn.Module,
    config: NetworkConfig,
    length: int,
    answers: Callable[[Tensor], Tensor],
    lists: Tensor | None = None,
) -> float:
    """The largest difference of a file's answers from the network's in float64; an error if it is not small.

    Small is what float32 allows: self-attention far from the training range magnifies the last digits, in any program.
    Each output of a compiled program is judged by its own largest answer, and whole ones must also round to the right number.
    """
    if lists is not None:
        instance("lists", lists, Tensor, "a tensor of lists, or None")
        if tuple(lists.shape[1:]) != _shape(config, length):
            raise UsageError(f"lists has shape {tuple(lists.shape)}; it must be (batch, {length}).")
        some("lists", lists)
    exact, plain, worst = copy.deepcopy(model).cpu().double(), copy.deepcopy(model).cpu().float(), 0.0
    wrong = False  # a whole number
    words = not INTERFACES[config.reads].dtype.is_floating_point
    given = () if lists is None else (("for the lists given", x if words else x.float()) for x in (lists[:1], lists))
    for where, x in given or _lists(config, length):
        with torch.no_grad():
            truth = _answers(exact, x if words else x.double())
            found, plainly = answers(x), plain(x)
        for right, said, own in zip(*(_columns(config, y) for y in (truth, found, plainly)), strict=True):
            told = right.amax(dim=-1) if words else right  # words that are no answer may have logits far below
            integers = _are_whole(config, right)
            # An output may be 0 throughout, which float32 does not give exactly beside others.
            least = 1.0 if integers else max(_BESIDE * float(truth.abs().max()), torch.finfo(torch.float32).tiny)
            largest = max(float(told.abs().max()), least)
            off, off_plainly = (float((y - right).abs().max()) for y in (said, own))
            theirs, ours = off / largest, off_plainly / largest
            if not theirs <= max(TOLERANCE, _ROUNDING * ours):
                raise RuntimeError(
                    f"{where} the exported network is off by {theirs:.1e}, and the network by {ours:.1e}."
                )
            worst, wrong = max(worst, theirs), wrong or (integers and off >= 0.5)
    if isinstance(config, CompiledConfig) and (wrong or not worst <= WORST_COMPILED):
        raise UsageError(
            f"in float32 the compiled program errs by {worst:.1e} of its largest answer; compile it with a smaller bound."
        )
    return worst


def _columns(config: NetworkConfig, y: Tensor) -> tuple[Tensor, ...]:
    """The answers, each output of a compiled program by itself."""
    return y.unbind(-1) if isinstance(config, CompiledConfig) and config.outputs > 1 else (y,)


def _are_whole(config: NetworkConfig, y: Tensor) -> bool:
    """Whether answers to whole numbers are whole ones that float32 can tell apart."""
    of_whole = isinstance(config, CompiledConfig) and len(config.integers) == config.inputs
    return of_whole and bool((y == y.round()).all()) and float(y.abs().max()) < 1 << 24


def _lists(config: NetworkConfig, length: int) -> Iterator[tuple[str, Tensor]]:
    """Random lists, and what they are: of the training range and beyond it, or within the bounds of a compiled program."""
    own = INTERFACES[config.reads].task
    for scale, batch in product(_SCALES, (1, _MOST)):
        if own is not None:
            yield f"at scale {scale:g}", own.sample(batch, n=length, scale=scale, seed=batch)[0]
            continue
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
