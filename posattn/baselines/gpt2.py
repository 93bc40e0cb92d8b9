"""GPT-2 on the prompts of mixed type (Appendix D.3): fine-tuned to continue a prompt's text with its answer.

A prompt is written with numbers of 2 + 2 digits and ends in ``Output = 01.23``, whose answer has 2 + 2 digits, or 3 + 2 for
sums. The loss is that of the answer's tokens and of the end after them: a prompt's own tokens are random, and nothing can be
learned from them. An answer is the first number that the network writes. A prompt without one is counted, and left out of the
errors.

Needs the extra ``gpt2`` (transformers, tokenizers). Weights are read as safetensors only.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posattn.devices import require_room
from posattn.errors import UsageError, choice, extra, instance, positive, whole
from posattn.metrics import mean_squared_error, percentage_error
from posattn.streams import fold_in, permutation, stream
from posattn.tasks import TASKS, MixedTask, task
from posattn.tasks.prompts import number_in, write

TINY = "tiny"  # not a checkpoint: an untrained GPT-2 of 4 layers and width 128, its tokenizer trained on the prompts
DIGITS = 2  # before the point, of numbers in a prompt
_IGNORED = -100  # the label of tokens that the loss leaves out
_END = "<|endoftext|>"
_PROMPT = 300  # bytes of its text and tensors, at least
_NEW_TOKENS = 12  # an answer has six characters


class NotHere(UsageError):
    """A checkpoint or a library that this machine does not have."""


@dataclass(frozen=True)
class FineTuning:
    """What determines a fine-tuned GPT-2. The paper gives samples and epochs; the rest is transformers' usual."""

    task: str
    checkpoint: str = "gpt2-large"  # a name on the Hugging Face hub, a folder, or ``tiny``
    samples: int = 50_000
    epochs: int = 3
    batch: int = 16
    lr: float = 5e-5  # of AdamW, falling linearly to zero

    def __post_init__(self) -> None:
        choice("task", self.task, [name for name, row in TASKS.items() if isinstance(row, MixedTask)])
        if not instance("checkpoint", self.checkpoint, str, "a name or a folder").strip():
            raise UsageError(f"checkpoint is {self.checkpoint!r}; it must be a folder or a name on the Hugging Face hub.")
        for field in ("samples", "epochs", "batch"):
            whole(field, getattr(self, field))
        positive("lr", self.lr)

    @property
    def own(self) -> MixedTask:
        found = task(self.task)
        assert isinstance(found, MixedTask)
        return found


def texts(asked: MixedTask, x: Float[Tensor, "b n"], y: Float[Tensor, "b 1"]) -> tuple[list[str], list[str]]:
    """Prompts as text, and the answers that should follow."""
    digits = DIGITS + ("sum" in asked.kinds)
    return [f"{write(row, DIGITS)} Output =" for row in x], [f" {value:0{digits + 3}.2f}" for value in y[:, 0].tolist()]


def require_room_for_prompts(field: str, count: int) -> None:
    """Raises if the texts and tokens of so many prompts do not fit into memory."""
    require_room(f"{field} is {whole(field, count)}; the texts of so many prompts", _PROMPT * count)


def checkpoint(settings: FineTuning, seed: int = 0) -> tuple[Any, Any]:
    """The network and its tokenizer; the error says how to get them."""
    library, name = _library("transformers"), settings.checkpoint
    if name == TINY:
        return _tiny(settings, seed)
    offline = Path(name).exists()
    with _quiet():
        for local in (True,) if offline else (True, False):
            with contextlib.suppress(OSError, ValueError):
                tokenizer = library.AutoTokenizer.from_pretrained(name, local_files_only=local)
                network = library.GPT2LMHeadModel.from_pretrained(name, local_files_only=local, use_safetensors=True)
                return network, _with_padding(tokenizer)
    if offline:
        raise UsageError(
            f"checkpoint is {name!r}; the folder must hold a GPT-2 as save_pretrained leaves it, in safetensors."
        )
    raise NotHere(
        f"checkpoint is {name!r}, which is no folder, not in the cache and cannot be downloaded here; on a machine with a "
        f"connection run hf download {name} --local-dir FOLDER, copy the folder here and give --checkpoint FOLDER."
    )


def _tiny(settings: FineTuning, seed: int) -> tuple[Any, Any]:
    """An untrained network with a byte-pair tokenizer trained on a thousand prompts."""
    library, tokenizers = _library("transformers"), _library("tokenizers")
    prompts, answers = texts(settings.own, *settings.own.sample(1000, seed=seed))
    pairs = tokenizers.ByteLevelBPETokenizer()
    whole_texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    pairs.train_from_iterator(whole_texts, vocab_size=400, special_tokens=[_END], show_progress=False)
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token=_END)
    end = tokenizer.eos_token_id
    config = library.GPT2Config(
        vocab_size=len(tokenizer), n_positions=320, n_embd=128, n_layer=4, n_head=4, bos_token_id=end, eos_token_id=end
    )
    with torch.random.fork_rng():
        torch.manual_seed(stream(seed, "gpt2"))
        return library.GPT2LMHeadModel(config), _with_padding(tokenizer)


def _with_padding(tokenizer: Any) -> Any:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def fine_tune(settings: FineTuning, network: Any, tokenizer: Any, seed: int, device: torch.device) -> list[float]:
    """Trains ``network`` in place on the training prompts of ``seed``; returns the mean loss of every epoch."""
    require_room_for_prompts("samples", settings.samples)
    prompts, answers = texts(settings.own, *settings.own.sample(settings.samples, seed=seed))
    encoded = [_tokens(tokenizer, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    network.to(device).train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.lr)
    steps = settings.epochs * -(-settings.samples // settings.batch)
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / steps))
    key = torch.tensor(stream(seed, "gpt2", "shuffle"))
    losses = []
    with torch.random.fork_rng():  # dropout
        torch.manual_seed(stream(seed, "gpt2", "dropout"))
        for epoch in range(settings.epochs):
            order = permutation(fold_in(key, epoch), settings.samples).tolist()
            total = 0.0
            for start in range(0, settings.samples, settings.batch):
                chosen = [encoded[index] for index in order[start : start + settings.batch]]
                total += _step(network, optimiser, _batch(chosen, tokenizer.pad_token_id, device)) * len(chosen)
                falling.step()
            losses.append(total / settings.samples)
    return losses


def _tokens(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], int]:
    """The tokens of a prompt, its answer and the end, and how many are the prompt's."""
    asked = tokenizer(prompt)["input_ids"]
    return [*asked, *tokenizer(answer)["input_ids"], tokenizer.eos_token_id], len(asked)


def _batch(
    chosen: Sequence[tuple[list[int], int]], padding: int, device: torch.device
) -> dict[str, Int64[Tensor, "b t"]]:
    """Tokens, which of them are real, and what the loss compares with: the answers alone. Padding is on the right."""
    tokens = [torch.tensor(own) for own, _ in chosen]
    real = [torch.ones_like(own) for own in tokens]
    labels = [torch.tensor([_IGNORED] * asked + own[asked:]) for own, asked in chosen]
    parts = {"input_ids": (tokens, padding), "attention_mask": (real, 0), "labels": (labels, _IGNORED)}
    return {name: pad_sequence(own, True, value).to(device) for name, (own, value) in parts.items()}


def _step(network: Any, optimiser: torch.optim.Optimizer, batch: dict[str, Tensor]) -> float:
    device = batch["input_ids"].device
    labels = batch["labels"][:, 1:]
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        logits = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=_IGNORED)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach())


def answer(network: Any, tokenizer: Any, prompts: Sequence[str], batch: int = 64) -> list[str]:
    """What the network writes after each prompt, taking the likeliest token each time."""
    network.eval()
    tokenizer.padding_side = "left"
    said: list[str] = []
    for start in range(0, len(prompts), batch):
        given = tokenizer(list(prompts[start : start + batch]), return_tensors="pt", padding=True).to(network.device)
        with torch.no_grad():
            out = network.generate(
                input_ids=given["input_ids"],
                attention_mask=given["attention_mask"],
                max_new_tokens=_NEW_TOKENS,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        new = out[:, given["input_ids"].shape[1] :]
        said += tokenizer.batch_decode(new, skip_special_tokens=True)
    return said


def evaluate(
    settings: FineTuning, network: Any, tokenizer: Any, seed: int, scales: Iterable[float], samples: int = 1000
) -> pd.DataFrame:
    """One row per scale: ``mse`` and ``mape`` over the answers that are numbers, and how many were not (``unparsed``).

    The prompts are those on which :meth:`posattn.Run.evaluate` tests the member with the same seed.
    """
    require_room_for_prompts("samples", samples)
    rows = []
    for scale in scales:
        x, y = settings.own.sample(samples, scale=scale, seed=seed, split="test")
        prompts, _ = texts(settings.own, x, y)
        said = torch.tensor([number_in(text) for text in answer(network, tokenizer, prompts)])[:, None]
        read = said.isfinite()[:, 0]
        errors = [measure(said[read], y[read]).item() for measure in (mean_squared_error, percentage_error)]
        rows.append({"scale": float(scale), "mse": errors[0], "mape": errors[1], "unparsed": int((~read).sum())})
    return pd.DataFrame(rows)


def _library(name: str) -> Any:
    return extra("gpt2", name, kind=NotHere)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the libraries' own messages off standard error while a checkpoint is looked for."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    _library("transformers").utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.disable(before)
