"""Runs: trained ensembles and compiled programs behind one base class, their result rows, and ``load``.

:class:`AnyRun` is what both kinds share; ``training.run.Run`` and ``compiled_run.CompiledRun`` derive from it. This module
imports neither, but ``load`` finds them by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

import posattn
from posattn import files
from posattn.devices import pick_device
from posattn.errors import UsageError, counted, instance, several, shown, some, whole
from posattn.metrics import OF_SHIFTS, ROW_NAMES, Evaluation, Predict, Tested, row_metrics, scores_of
from posattn.network import NetworkConfig, can, require
from posattn.run_folder import RunFolder
from posattn.tasks import SHIFTS, TASKS, MixedTask, Task, TokenTask, task
from posattn.tasks.layouts import elements_of, laid_out
from posattn.tasks.own import is_data, pairs
from posattn.tasks.sampling import named_split
from posattn.tokens.vocabulary import VOCABULARIES, words_given

ROW_COLUMNS = (
    *("experiment", "run", "task", "arch", "n", "samples", "layers", "width", "encoding", "recipe", "precision"),
    *("epochs", "batch", "lr", "seed", "split", "domain", "scale", "metric", "value", "status"),
)

_TILE = 5000  # lists of up to _SHORT numbers, answered at once, which bounds the memory that answers take
_SHORT = 64


def tile(config: NetworkConfig, length: int) -> int:
    """How many lists of a length are answered at once: attention matrices grow with n², everything else with n."""
    longer = max(1.0, length / _SHORT)
    return max(1, int(_TILE / (longer if can(config, "last steps") else longer**2)))


class AnyRun(ABC):
    """Networks that answer a task, its *members*: those of a trained run, or the one of a compiled program.

    Attributes:
        kind: what tables call the networks.
        config: their configuration.
        members: the task of each, and the seed of its test lists.
        lengths: those of the lists that they are tested on.
        status: per member ``ok``, ``diverged``, ``dead`` or ``unfinished``.
    """

    def __init__(
        self, kind: str, config: NetworkConfig, members: Iterable[tuple[str, int]], lengths: Sequence[int],
        status: Iterable[str], device: torch.device,
    ):  # fmt: skip
        self.kind, self.config, self.lengths, self.device = kind, config, lengths, device
        self.members, self.status = [Tested(*member) for member in members], list(status)

    @abstractmethod
    def model(self, member: int = 0) -> nn.Module:
        """One member as a plain ``nn.Module``."""

    @abstractmethod
    def _settings(self, members: list[int]) -> dict[str, Any]:
        """The columns of result rows on how these members were made: one value for all, or one per member."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def task(self) -> Task:
        """The first member's task; all are of one kind."""
        return self.task_of(0)

    def task_of(self, member: int) -> Task:
        """The task of a member, which says what is right; raises where it is somebody's own and not registered here."""
        self.check_member(member)
        name = self.members[member].task
        if name not in TASKS and not is_data(name):
            raise UsageError(
                f"the run is of the task {name!r}, which is not there; register it (posattn.tasks.register), "
                "or name the Python file that does by --task-file."
            )
        return task(name)

    def reader(self, member: int = 0) -> Task:
        """What reads texts for a member, and says what is right for them."""
        return self.task_of(member)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns of numbers that ``evaluate`` gives."""
        return scores_of(self.task.name).metrics

    @property
    def reads_tokens(self) -> bool:
        return self.config.reads != "none"

    @property
    def _reads(self) -> torch.dtype:
        """The type of what the networks read."""
        return torch.int64 if self.reads_tokens and not VOCABULARIES[self.config.reads].numbers else torch.float32

    @property
    def _axes(self) -> int:
        """How many axes one input has, after those of the batch."""
        return 1

    def as_input(self, values: list[float]) -> Float[Tensor, "..."]:
        """A list of numbers as the networks take it."""
        return torch.tensor(values, dtype=self._reads, device=self.device)

    def truth(self, x: Float[Tensor, "..."], member: int = 0) -> Float[Tensor, "..."]:
        """The right answers to the task of a member."""
        asked = self.task_of(member)
        self.check_functions([asked.name])
        return asked.target(x)

    def check_functions(self, names: Iterable[str]) -> None:  # only trained runs learn
        """Raises if a task of these names is somebody's own function, and another than the one that was learned."""

    def examples(self, length: int | None = None) -> Tensor | None:
        """Lists to check an exported network with, where random ones will not do; of the networks' own length by default."""
        return None

    def too_short(self, length: int) -> str | None:
        """Why answers to lists of a length mean little, where the networks were trained on longer ones only; else None."""
        return None

    def check_member(self, member: int) -> None:
        if isinstance(member, bool) or not isinstance(member, Integral) or not 0 <= member < len(self):
            known = "member 0 only" if len(self) == 1 else f"members 0 to {len(self) - 1}"
            raise UsageError(f"member is {shown(member)}; this run has {known}.")

    def predict(self, x: Shaped[Tensor, "*batch k"] | Sequence[Any]) -> Float[Tensor, "M *answers"]:
        """Every member's answer to the same lists, which may be plain Python lists; tokens as their task gives them.

        Numbers must be finite, also for ``answer``. ``model(x)`` does not check this: like PyTorch it turns inf and nan into
        nan.
        """
        given = self._given(x)
        with torch.no_grad():
            return torch.stack([self._answers(given, member) for member in range(len(self))])

    def answer(self, x: Shaped[Tensor, "*batch k"] | Sequence[Any], member: int = 0) -> Float[Tensor, "*answers"]:
        """One member's answer to inputs of its task."""
        self.check_member(member)
        with torch.no_grad():
            return self._answers(self._given(x), member)

    def _answers(self, x: Tensor, member: int) -> Tensor:
        """One member's outputs, for large batches a tile at a time."""
        batch = x.shape[: -self._axes]
        if not batch or batch.numel() <= (most := tile(self.config, x.shape[-self._axes])):
            return self._outputs(x, member)
        parts = [self._outputs(part, member) for part in x.flatten(0, len(batch) - 1).split(most)]
        return torch.cat(parts).unflatten(0, batch)

    def _given(self, x: object) -> Tensor:
        """A tensor, or plain lists, as the networks read it; raises unless it is words, prompts or finite numbers."""
        if self._reads == torch.int64:
            return words_given(x, VOCABULARIES["letters"]).to(self.device)
        try:
            if isinstance(x, Tensor) and x.is_complex():
                raise TypeError
            given = torch.as_tensor(x, dtype=self._reads, device=self.device)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise UsageError(f"x is {shown(x)}; it must be a tensor, or numbers in lists of one length.") from error
        if not bool(given.isfinite().all()):
            most = "1e308" if given.dtype == torch.float64 else "3e38"
            raise UsageError(f"x has {given[~given.isfinite()][0].item():g}; it must be numbers up to {most}.")
        return laid_out(elements_of(given), self.config.n) if self.config.reads == "prompts" else given

    def _outputs(self, x: Tensor, member: int) -> Tensor:
        """One member's outputs for inputs of the dtype that it reads."""
        return self.model(member)(x)

    def _predict(self) -> Predict:
        """A function that gives every member its own lists and returns the answers."""
        return lambda x: torch.stack([self.answer(own, member) for member, own in enumerate(x)])

    def evaluate(
        self, scales: Iterable[float] | None = None, samples: int = 1000, split: str = "test", domain: str | None = None
    ) -> pd.DataFrame:
        """One row per member and scale: squared errors ``mse`` and ``mse/c²``, accuracies, and ``status``.

        The accuracies are ``rounding``, ``closeness`` and ``strict_closeness``; tasks of tokens have metrics of their own
        (``posattn.metrics``). Scales are 1 to 10 by default, or the task's. ``domain`` is for tasks of tokens, as in their
        ``sample``: id for words of training and ood for others, whatever the scale.
        """
        test = self._test(samples, split, domain=domain)
        return self._named(scores_of(self.task.name).evaluate(test, self.lengths, self._factors(scales, domain)))

    def _factors(self, scales: Iterable[float] | None, domain: str | None) -> Sequence[float]:
        """``scales``, or by default those of the task: of letters, whose scale is their domain, one where that is told."""
        told = domain is not None and self._reads == torch.int64
        usual = self.task.SCALES[:1] if told else self.task.SCALES
        return usual if scales is None else several("scales", scales)

    def evaluate_lengths(
        self, lengths: Iterable[int], scales: Iterable[float] | None = None, samples: int = 1000, split: str = "test",
        domain: str | None = None,
    ) -> pd.DataFrame:  # fmt: skip
        """One row per member, length and scale: ``mse``, ``relative_square`` (mse over mean square answer), ``closeness``.

        Scales are 1 and 10 by default. For tasks of tokens the metrics, the scales and ``domain`` are those of ``evaluate``,
        and a length is that of a sequence, the hop count of khop included.
        """
        require(self.config, "every length")
        test, asked = self._test(samples, split, domain=domain), some("lengths", lengths)
        if not self.reads_tokens:
            return self._named(test.by_length(asked, scales))
        scores, factors = scores_of(self.task.name), self._factors(scales, domain)
        tables = [scores.evaluate(test, [whole("n", n, least=2)], factors).assign(n=n) for n in asked]
        return self._named(pd.concat(tables, ignore_index=True).sort_values("member", kind="stable", ignore_index=True))

    def evaluate_shifts(self, names: Iterable[str] = tuple(SHIFTS), samples: int = 1000) -> pd.DataFrame:
        """One row per member and distribution: ``mse``, ``relative`` error, ``closeness`` accuracy, and ``status``."""
        test = self._test(samples, "test", numbers="shifts")
        return self._named(test.by_shift(self.lengths, names))

    def evaluate_on(self, x: Tensor | Sequence[Any], y: Tensor | Sequence[Any]) -> pd.DataFrame:
        """One row per member on lists (samples, n) and right answers of your own: ``mse``, ``relative``, ``closeness``."""
        if self.reads_tokens:
            raise UsageError(f"the {self.kind} network reads tokens; lists and answers are for networks of numbers.")
        lists, right = pairs(x, y)
        given = self._given(lists)
        with torch.no_grad():
            out = self._predict()(given.expand(len(self), *given.shape))
        truth = right.to(out.device, torch.float64).expand(out.shape)
        found = {name: measure(out, truth) for name, measure in OF_SHIFTS.items()}
        members = {"member": range(len(self)), "task": [member.task for member in self.members]}
        return self._named(pd.DataFrame(members | {name: values.tolist() for name, values in found.items()}))

    def _test(self, samples: int, split: str, domain: str | None = None, numbers: str = "") -> Evaluation:
        """A test of all members; ``domain`` is for tasks of tokens alone, and ``numbers`` names what these do not have."""
        tested = self._tested(named_split(split))
        for member in range(len(self)):
            self.task_of(member)
        self.check_functions(member.task for member in self.members)
        if numbers and self.reads_tokens:
            raise UsageError(f"the task {self.task.name} has no lists of numbers; {numbers} are only for those.")
        if domain is not None and not isinstance(self.task, TokenTask):
            raise UsageError(f"domain is {shown(domain)}; it is for tasks of tokens, and {self.task.name} has none.")
        return Evaluation(self._predict(), tested, samples, split, self.device, domain)

    def _tested(self, split: str) -> Sequence[tuple[str, int]]:
        """The task and the seed of every member's lists of a split."""
        return self.members

    def _named(self, table: pd.DataFrame) -> pd.DataFrame:
        """``table`` with the seed and status of every member."""
        rows = list(table["member"])
        return table.assign(seed=[self.members[row].seed for row in rows], status=[self.status[row] for row in rows])

    def rows(self, table: pd.DataFrame, experiment: str = "", split: str = "test") -> pd.DataFrame:
        """A table of ``evaluate`` as result rows: one per member, scale and metric, with the settings beside each."""
        instance("table", table, pd.DataFrame, "a table, as evaluate returns it")
        name = self.task.name
        about = ["member", "scale", *scores_of(name).by]
        values = table.rename(columns=ROW_NAMES).melt(about, row_metrics(name), "metric", "value")
        return self.described(values, experiment, split)

    def described(self, values: pd.DataFrame, experiment: str = "", split: str = "test") -> pd.DataFrame:
        """Result rows from ``values``, whose columns are member, scale, metric, value and any others."""
        missing = {"member", "scale", "metric", "value"} - set(instance("values", values, pd.DataFrame, "a table"))
        if missing:
            raise UsageError(f"values lacks {', '.join(sorted(missing))}; it must be a table with these columns.")
        instance("experiment", experiment, str, "a text")
        chosen = list(values["member"])
        own = self.config.columns  # what only this kind of network has
        settings = {
            "experiment": experiment,
            "task": [self.members[member].task for member in chosen],
            "n": self.lengths[-1],
            **{field: getattr(self.config, field, None) for field in ("layers", "width", "encoding", *own)},
            "seed": [self.members[member].seed for member in chosen],
            "split": named_split(split),
            "status": [self.status[member] for member in chosen],
        }
        return result_rows(values, settings | self._settings(chosen))


def result_rows(values: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """``values`` with the settings beside each: the columns ``ROW_COLUMNS``, then all others that either has.

    Where both have a column, that of ``values`` stays. A column that neither has is empty.
    """
    if "domain" not in settings:
        settings = {"domain": ["ood" if scale > 1 else "id" for scale in values["scale"]]} | settings
    extra = dict.fromkeys(name for name in (*settings, *values) if name not in (*ROW_COLUMNS, "member"))
    rows = values.assign(**{name: value for name, value in settings.items() if name not in values})
    return rows.reindex(columns=[*ROW_COLUMNS, *extra])


def tokens_of(run: AnyRun, member: int, text: str) -> tuple[TokenTask, Tensor]:
    """What reads texts for one network, and a sequence (khop) or a prompt (mixed) as the network reads it."""
    asked = run.reader(member)
    if not isinstance(asked, TokenTask):
        raise UsageError(f"the task {asked.name} has no tokens.")
    return asked, asked.laid_out(asked.encode(text), run.config.n)


def answer_tokens(run: AnyRun, member: int, text: str) -> str:
    """One network's answer to a sequence (khop) or a prompt (mixed), the true answer, and how far they differ, as text."""
    asked, x = tokens_of(run, member, text)
    truth, out = asked.target(x), run.answer(x, member).cpu()
    if isinstance(asked, MixedTask):
        said, right = out.item(), truth.item()
        return f"prompt {asked.decode(x)}\nmodel  {said:.4f}\ntrue   {right:.2f}\nerror  {said - right:+.4f}"
    said_tokens = out.argmax(dim=-1)
    right_ones = int((said_tokens == truth)[1:].sum())
    lines = zip(("input", "model", "true"), (x, said_tokens, truth), strict=True)
    shown = "\n".join(f"{name:<6} {asked.decode(tokens)}" for name, tokens in lines)
    return f"{shown}\nright  {right_ones} of {counted(len(x) - 1, 'letter')}"


def load(path: str | Path, device: str | torch.device | None = "cpu") -> AnyRun:
    """The trained run, or the compiled program, in a folder. A run that is not finished answers from its last checkpoint."""
    folder, place = RunFolder(path), pick_device(device)
    if folder.path.is_file():
        files.refuse_pickle(folder.path)
        raise UsageError(f"{folder} is a file; give the run's folder.")
    if not folder.path.exists():
        hint = f", or --pretrained {path} for the network of the package" if str(folder) in TASKS else ""
        raise UsageError(f"there is no folder {folder}; give that of a run{hint}.")
    if folder.kind is None:
        raise UsageError(f"{folder} holds no run: it has no run.json.")
    if folder.kind == "compiled":
        return posattn.compiled_run.read_program(folder, place)
    return posattn.training.run.read_run(folder, place)
