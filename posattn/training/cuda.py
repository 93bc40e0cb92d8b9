"""Training on a GPU by replaying CUDA graphs; the host only asks for the next epoch's shuffle and schedule.

An epoch is one graph or, where the order of its batches changes, one per batch. The host asks for an epoch while the GPU
computes the one before it, so that the GPU does not wait.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posattn.errors import UsageError
from posattn.training.parameters import Parameters
from posattn.training.trainer import Trainer
from posattn.training.ways import Fused, Precision
from posattn.training.workers import Item, Result

_STRAYS = 0.1  # of a gradient's norm: rounding strays by less than a hundredth, and what lacks a part by more


class KernelsFail(Exception):
    """The kernels do not serve on this GPU; why, in words."""


def failure(error: Exception) -> str | None:
    """Why kernels do not serve on this GPU; None for what is no fault of theirs."""
    from triton.compiler.errors import CompilationError  # Triton is there if kernels are
    from triton.runtime.errors import OutOfResources, PTXASError

    if isinstance(error, OutOfResources):
        return "need more shared memory than this GPU has"
    if isinstance(error, (CompilationError, PTXASError)):
        first, *rest = str(error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, PTXASError):  # what the assembler printed, then the command
            told = next((line for line in rest if "fatal" in line or "error" in line), first)
        else:  # the code, then what is wrong
            told = [first, *rest][-1]
        return f"are not compiled for this GPU by this version of Triton ({told.strip()})"
    return str(error) if isinstance(error, KernelsFail) else None


class CudaTrainer(Trainer):
    """A :class:`Trainer` whose ``steps()`` yields after every epoch.

    All members step at once if the GPU's memory allows; if not, half of them at a time, or a quarter, and so on.
    """

    def steps(self) -> Iterator[None]:
        self._record_what_fits()
        self._ended = torch.cuda.Event()
        self._ended.record()
        if self.batch:  # a checkpoint written on a CPU may lie within an epoch
            for _ in self._rest_of_epoch():
                pass
            yield
        while self.epoch < self.recipe.epochs:
            self._shuffle()
            self.replay()
            self._end_epoch()
            self._wait_for_the_epoch_before()
            yield
        self._ended.synchronize()

    def _wait_for_the_epoch_before(self) -> None:
        before, self._ended = self._ended, torch.cuda.Event()
        self._ended.record()
        before.synchronize()

    def replay(self) -> None:
        """The steps of an epoch, on the data that is laid out."""
        for place in self.batch_order() if self.shuffles_batches else (0,):
            self.graphs[place].replay()

    def _step(self, x: Shaped[Tensor, "M b k"], y: Shaped[Tensor, "M b out"]) -> None:
        if not isinstance(self.way, Fused):
            with Precision(self.precision, self.device):
                super()._step(x, y)
            return
        self.step += 1
        with Precision("fp32", self.device):  # the kernels apply theirs; PyTorch's products around them are exact
            for group in self.groups:
                self._update(group, *self.way.step(self.parameters, group, x[group], y[group]))

    def _map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """One after another in this thread: a graph records its stream alone, and groups are for want of memory."""
        return [function(item) for item in items]

    def _adam(self, group: slice, gradient: Float[Tensor, "m P"], norm: Float[Tensor, " m"]) -> None:
        if not isinstance(self.way, Fused):
            super()._adam(group, gradient, norm)
            return
        from posattn.kernels.adam import adam  # needs Triton, which is there if the kernels are

        recipe = self.recipe
        adam(
            (self.parameters.flat[group], gradient, self.first_moment[group], self.second_moment[group]),
            (self.lr[group], self.alive[group], norm),
            (self.step, self.rates, self.spreads),
            (recipe.beta_1, recipe.beta_2),
            recipe.epsilon,
            recipe.clip,
        )

    def _shuffle(self) -> None:
        """Lays out the epoch's data in the order of its batches."""
        for block, (x, y) in zip(self.blocks, self.shuffled, strict=True):
            rows = block.order(self.epoch)[..., None]
            torch.take_along_dim(block.x, rows, dim=1, out=x)
            torch.take_along_dim(block.y, rows, dim=1, out=y)

    def _steps_on(self, batches: Sequence[tuple[int, int, int]]) -> None:
        for index, start, stop in batches:
            x, y = self.shuffled[index]
            self._step(x[:, start:stop], y[:, start:stop])

    def _kind(self, index: int, start: int, stop: int) -> tuple[int, ...]:
        """What batches share that take the same kernels: Triton compiles others for data that begin within 16 bytes."""
        return index, stop - start, *(each[:, start].data_ptr() % 16 for each in self.shuffled[index])

    def _graph_of(self, batches: Sequence[tuple[int, int, int]]) -> torch.cuda.CUDAGraph:
        """The steps on some batches, recorded. Nothing that a graph allocates outlasts it, so all share their memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.graphs[0].pool() if self.graphs else None):
            self._steps_on(batches)
        return graph

    def _record_what_fits(self) -> None:
        """Records the epoch with as many members at once as the memory holds, and by kernels that serve on this GPU."""
        while True:
            try:
                self._record()
                return
            except torch.cuda.OutOfMemoryError:
                self._take_fewer_at_once()
            except Exception as error:
                if not (isinstance(self.way, Fused) and (why := failure(error))):
                    raise
                self._take_fewer_kernels(self.way, why)

    def _take_fewer_at_once(self) -> None:
        members, at_once = len(self.members), max(group.stop - group.start for group in self.groups)
        if at_once == 1:
            raise UsageError("a single member does not fit in the GPU's memory; take a smaller batch, n or width.")
        at_once = math.ceil(at_once / 2)
        self.groups = [slice(k, min(k + at_once, members)) for k in range(0, members, at_once)]
        torch.cuda.empty_cache()
        crowded = f"The step of {members} members does not fit in the GPU's memory"
        print(f"{crowded}; taking {at_once} at a time.", file=sys.stderr)

    def _take_fewer_kernels(self, way: Fused, why: str) -> None:
        fewer = way.with_fewer_kernels()
        if fewer is None:
            kernels = f"precision is 'fp16', whose kernels for the {self.config.arch} network"
            raise UsageError(f"{kernels} {why}; it must be tf32 or fp32.")
        self.way = fewer
        rest = "folding is PyTorch's" if fewer is way else "PyTorch computes instead"
        print(f"The fused kernels {why}; {rest}.", file=sys.stderr)

    def _doubt_kernels(self, way: Fused, batches: Sequence[tuple[int, int, int]]) -> None:
        """Raises if the kernels' gradient is not PyTorch's. Some versions of Triton compile some kernels wrongly, in silence.

        It is that of new networks: of the small gradients of trained ones, rounding is a large part.
        """
        group = self.groups[0]
        row = Parameters.initial(self.config, [self.members[0].seed], self.device).flat
        new = Parameters(self.config, row.repeat(group.stop, 1))
        for index, start, stop in batches:
            x, y = (each[group, start:stop] for each in self.shuffled[index])
            with Precision("fp32", self.device):
                error = way.error(new, group, x, y)
            if not error <= _STRAYS:  # also if it is no number
                raise KernelsFail(f"are wrong on this GPU or on these numbers (a gradient is off by {error:.1g} of its norm)")

    def _record(self) -> None:
        """Records an epoch's work. A few steps run first, to compile kernels; the state is then put back."""
        batches, before = self.batches(), {name: value.clone() for name, value in self.tensors().items()}
        try:
            self.shuffled = [(block.x.clone(), block.y.clone()) for block in self.blocks]
            self.step.zero_()  # these steps may not exceed the recipe's
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    kinds = list({self._kind(*batch): batch for batch in batches}.values())
                    if isinstance(self.way, Fused):
                        self._doubt_kernels(self.way, kinds)
                    self._steps_on(kinds)
            finally:  # also of a step that fails the GPU may still be computing a part
                torch.cuda.current_stream().wait_stream(stream)
            self.graphs: list[torch.cuda.CUDAGraph] = []
            for piece in [[batch] for batch in batches] if self.shuffles_batches else [batches]:
                self.graphs.append(self._graph_of(piece))
        finally:
            for name, value in self.tensors().items():
                value.copy_(before[name])
