"""The progress bar of a run in training, its TensorBoard events, and how signals stop it."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from posattn.errors import extra
from posattn.training.estimate import in_words

if TYPE_CHECKING:
    from posattn.training.trainer import Trainer

_EVERY = 30.0  # seconds between plain lines
_GLANCE = 0.1  # seconds between looks at the loss, for which a GPU may have to finish its epoch


class Stop:
    """While open, Ctrl-C and SIGTERM only set ``asked``; ``leave`` then stops, between two steps, after a checkpoint."""

    def __init__(self, active: bool = True):
        self.active, self.asked = active, 0

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        if self.active:
            for number in (signal.SIGINT, signal.SIGTERM):
                try:
                    self._before[number] = signal.signal(number, self._ask)
                except ValueError:  # not the main thread, which alone may handle signals
                    break
        return self

    def close(self, *_: object) -> None:
        """Restores what signals did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    __exit__ = close

    def _ask(self, number: int, _: object) -> None:
        self.asked = number

    def leave(self, message: str) -> None:
        """Ends the program as the signal would have, if one came."""
        if self.asked:
            print(message, file=sys.stderr)
            raise SystemExit(128 + self.asked)


class Progress:
    """A bar with the loss, learning rate, speed and time left on standard error, and TensorBoard events on request.

    By default the bar is shown if standard error is a terminal, and else a plain line every half minute. After each epoch
    ``report`` gets the number of epochs done.
    """

    def __init__(
        self,
        trainer: "Trainer",
        shown: bool | None = None,
        events: Path | None = None,
        report: Callable[[int], None] | None = None,
    ):
        self.trainer, self.report, self.epoch = trainer, report, trainer.epoch
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.in_lines = shown is None and not self.shown
        self.began, self.said, self.done_before = time.monotonic(), time.monotonic(), trainer.steps_done
        self.writer = None if events is None else event_writer()(str(events / "tensorboard"), purge_step=trainer.epoch)

    def __enter__(self) -> Self:
        if self.shown:
            from rich import console, progress  # here, since without a bar rich is not needed

            self.bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[state]}"),
                progress.TextColumn("time left"),
                progress.TimeRemainingColumn(),
                console=console.Console(stderr=True),
            )
            trainer = self.trainer
            named = f"epoch {trainer.epoch}/{trainer.recipe.epochs}"
            self.job = self.bar.add_task(named, total=trainer.total, completed=trainer.steps_done, state=_state())
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.bar.stop()
        if self.writer is not None:
            self.writer.close()

    def update(self) -> None:
        """Shows the state; to be called after each step, and once more after the last."""
        if self.shown:
            self.bar.update(self.job, completed=self.trainer.steps_done)
        if self.in_lines and (now := time.monotonic()) - self.said >= _EVERY:
            self.said = now
            print(self._line(now - self.began), file=sys.stderr, flush=True)
        if self.trainer.epoch != self.epoch:
            self._end_epoch()

    def _line(self, spent: float) -> str:
        """Where training is, in words, after so many seconds of it."""
        trainer = self.trainer
        left = spent / max(1, trainer.steps_done - self.done_before) * (trainer.total - trainer.steps_done)
        loss = trainer.history[trainer.epoch - 1, 0].nanmedian().item() if trainer.epoch else math.nan
        known = f", loss {loss:.2e}" if math.isfinite(loss) else ""
        return f"epoch {trainer.epoch}/{trainer.recipe.epochs}{known}, time left: {in_words(left)}"

    def last_steps(self, total: int) -> Callable[[int, float], None]:
        """Adds a line for ``total`` steps after the last epoch. Any thread may advance it by steps done, and their loss."""
        if not self.shown:
            return lambda steps, loss: None
        job = self.bar.add_task("last step", total=total, visible=False, state=_state())

        def advance(steps: int, loss: float) -> None:
            self.bar.advance(job, steps)
            task = self.bar.tasks[job]
            done = f"last step {task.completed:.0f}/{total}"
            self.bar.update(job, visible=True, description=done, state=_state(f"{loss:.2e}", speed=task.speed))

        return advance

    def _end_epoch(self) -> None:
        ended, trainer = range(self.epoch, self.trainer.epoch), self.trainer
        self.epoch = trainer.epoch
        if self.report is not None:
            self.report(self.epoch)
        if self.shown and ((now := time.monotonic()) - self.said >= _GLANCE or self.epoch == trainer.recipe.epochs):
            self.said = now
            loss, rate = trainer.history[trainer.epoch - 1].nanmedian(dim=-1).values.tolist()
            state = _state(f"{loss:.2e}", f"{rate:.1e}", self.bar.tasks[0].speed)
            self.bar.update(self.job, description=f"epoch {trainer.epoch}/{trainer.recipe.epochs}", state=state)
        if self.writer is None:
            return
        for epoch, values in zip(ended, trainer.history[ended.start : ended.stop].tolist(), strict=True):
            for (column, own), (index, member) in product(zip(("loss", "lr"), values, strict=True), enumerate(trainer.members)):
                self.writer.add_scalar(f"{column}/{member.task}/seed {member.seed}", own[index], epoch)


def _state(loss: str = "-", lr: str = "-", speed: float | None = None) -> str:
    """What the bar says beside itself; - stands for what is not known."""
    return f"loss {loss}  lr {lr}  {'-' if speed is None else f'{speed:.1f}'} steps/s"


def event_writer() -> Any:
    """TensorBoard's writer class."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return extra("tensorboard", "torch.utils.tensorboard").SummaryWriter
