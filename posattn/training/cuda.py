"""Training on a GPU: an epoch is one CUDA graph, replayed; the host only shuffles between epochs and reads the losses."""

from collections.abc import Iterator

import torch

from posattn.training.trainer import Trainer


class CudaTrainer(Trainer):
    """A :class:`Trainer` whose ``steps()`` yields after every epoch."""

    def steps(self) -> Iterator[None]:
        if self.batch:  # a checkpoint written on a CPU may lie within an epoch
            for _ in self._rest_of_epoch():
                pass
            yield
        self._record()
        while self.epoch < self.recipe.epochs:
            self._shuffle()
            self.graph.replay()
            self._end_epoch()
            yield

    def _shuffle(self) -> None:
        """Lays out the epoch's data in the order of its batches."""
        for block, (x, y) in zip(self.blocks, self.shuffled, strict=True):
            rows = block.order(self.epoch)[..., None]
            torch.take_along_dim(block.x, rows, dim=1, out=x)
            torch.take_along_dim(block.y, rows, dim=1, out=y)

    def _epoch(self) -> None:
        for index, start, stop in self.batches():
            x, y = self.shuffled[index]
            self._step(x[:, start:stop], y[:, start:stop])

    def _record(self) -> None:
        """Records an epoch's work as a graph. A few steps run first, to compile kernels; the state is then put back."""
        self.shuffled = [(block.x.clone(), block.y.clone()) for block in self.blocks]
        before = {name: value.clone() for name, value in self._state().items()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            batches = self.batches()
            for index, start, stop in {
                (index, stop - start): (index, start, stop) for index, start, stop in batches
            }.values():
                x, y = self.shuffled[index]
                self._step(x[:, start:stop], y[:, start:stop])
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._epoch()
        for name, value in self._state().items():
            value.copy_(before[name])

    def _state(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in self._TENSORS} | {"parameters": self.parameters.flat}
