"""What positional attention is worth in a language model: loss and speed of models that differ in attention alone.

    python benchmarks/hybrid.py --text FOLDER --out FILE.csv     trains what the file does not hold yet, on a GPU
    python benchmarks/hybrid.py --show FILE.csv                  prints its table and draws FILE.png

The text is all ``*.rst.txt`` below the folder, by default Python's manual from Debian's package python3.11-doc (11 MB); every
tenth file is for validation. Models have six blocks, width 384, eight heads and 512 bytes of context, about 11 M parameters:

    self           self-attention in all blocks
    positional     positional attention in all blocks
    alternating    self-attention in the first, third and fifth block, positional in the others
    halves         in every block half of the heads are of either kind

First the kinds take turns of a few steps, alone on the device, which gives their speed (``by`` speed). Then each is trained for
the same number of steps (``by`` steps), and for as many as take the time of the slowest kind (``by`` time).
"""

import argparse
import csv
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from _parts import leave, reported
from torch import Tensor, nn

import posattn

KINDS = ("self", "positional", "alternating", "halves")
TEXT = Path("/usr/share/doc/python3.11/html/_sources")
FIELDS = ("kind", "by", "seed", "steps", "parameters", "tokens_per_second", "loss")
ROUNDS, WARM = 3, 10  # turns of every kind, and steps that do not count


@dataclass(frozen=True)
class Size:
    """Of models and of training."""

    blocks: int = 6
    d: int = 384
    heads: int = 8
    n: int = 512
    batch: int = 64
    steps: int = 2000
    peak: float = 1e-3
    warmup: int = 100
    tested: int = 64  # batches of validation


SIZES = {
    "full": Size(),
    "small": Size(4, 128, 4, 256, 16, 1500),  # 0.9 M parameters, for a CPU
    "tiny": Size(2, 32, 4, 32, 8, 30, warmup=5, tested=4),
}


class SelfAttention(nn.Module):
    """Causal self-attention of ``heads`` heads of width ``e`` on inputs of width d, without its last projection."""

    def __init__(self, d: int, heads: int, e: int):
        super().__init__()
        self.heads, self.inward = heads, nn.Linear(d, 3 * heads * e)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inward(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """The heads of one block, ``positional`` of them by position and the others by content."""

    def __init__(self, size: Size, positional: int):
        super().__init__()
        e, of_content = size.d // size.heads, size.heads - positional
        self.content = SelfAttention(size.d, of_content, e) if of_content else None
        self.inward = nn.Linear(size.d, positional * e) if 0 < positional < size.heads else nn.Identity()
        self.positional = (
            posattn.PositionalAttention(size.n, positional * e, positional, causal=True) if positional else None
        )
        # The positional layer has a last projection of its own.
        self.outward = nn.Linear(size.d, size.d) if of_content else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        parts = [] if self.content is None else [self.content(x)]
        parts += [] if self.positional is None else [self.positional(self.inward(x))]
        return self.outward(torch.cat(parts, dim=-1))


class Block(nn.Module):
    def __init__(self, size: Size, positional: int):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(size.d), nn.LayerNorm(size.d)
        self.attention = Attention(size, positional)
        self.mlp = nn.Sequential(nn.Linear(size.d, 4 * size.d), nn.GELU(), nn.Linear(4 * size.d, size.d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class LanguageModel(nn.Module):
    """Bytes (batch, n) to logits of the next byte (batch, n, 256)."""

    def __init__(self, kind: str, size: Size):
        super().__init__()
        share = {"self": (0, 0), "positional": (1, 1), "alternating": (0, 1), "halves": (0.5, 0.5)}[kind]
        self.bytes, self.places = nn.Embedding(256, size.d), nn.Embedding(size.n, size.d)
        self.blocks = nn.Sequential(*(Block(size, int(size.heads * share[k % 2])) for k in range(size.blocks)))
        self.norm, self.head = nn.LayerNorm(size.d), nn.Linear(size.d, 256)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.bytes(x) + self.places.weight[: x.shape[-1]])))
        return out


def read_text(folder: Path) -> tuple[Tensor, Tensor]:
    """The bytes for training and for validation."""
    found = sorted(folder.rglob("*.rst.txt"))
    if len(found) < 10:
        raise SystemExit(
            f"{folder} holds {len(found)} files *.rst.txt; install Debian's python3.11-doc, or give --text."
        )
    parts = [
        b"".join(path.read_bytes() for path in files)
        for files in ([path for k, path in enumerate(found) if k % 10 != 9], found[9::10])
    ]
    train, valid = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
    return train, valid


def batches(text: Tensor, size: Size, seed: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Random stretches of the text, and the same one byte on."""
    generator = torch.Generator().manual_seed(seed)
    text = text.to(device)
    reach = torch.arange(size.n + 1, device=device)
    while True:
        starts = torch.randint(len(text) - size.n, (size.batch, 1), generator=generator).to(device)
        stretch = text[starts + reach].long()
        yield stretch[:, :-1], stretch[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=x.is_cuda):
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())


def rate(done: float, size: Size, steps: int) -> float:
    """The learning rate: a linear warm-up, then a cosine to a tenth."""
    share = (done - size.warmup) / max(1, steps - size.warmup)
    return size.peak * min(done / size.warmup, 0.55 + 0.45 * math.cos(math.pi * min(1.0, max(0.0, share))))


class Stepper:
    """A model of a kind and its training step, made once and begun again from every seed.

    On a GPU the model is compiled and the step a CUDA graph, so that launches do not decide.
    """

    def __init__(self, kind: str, size: Size, device: torch.device):
        self.model, self.gpu = LanguageModel(kind, size).to(device), device.type == "cuda"
        self.forward = torch.compile(self.model) if self.gpu else self.model
        self.x, self.y = torch.zeros(2, size.batch, size.n, dtype=torch.long, device=device)
        self.rate = torch.zeros((), device=device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), self.rate, (0.9, 0.95), weight_decay=0.1, capturable=self.gpu, fused=self.gpu
        )
        self.graph = self._recorded() if self.gpu else None

    def begin(self, drawn: nn.Module) -> None:
        self.model.load_state_dict(drawn.state_dict())
        self.model.train()
        for state in self.optimiser.state.values():
            for value in state.values():
                value.zero_()

    def step(self, x: Tensor, y: Tensor, rate: float) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        self.rate.fill_(rate)
        if self.graph is None:
            self._compute()
        else:
            self.graph.replay()

    def _compute(self) -> None:
        self.optimiser.zero_grad()
        loss_of(self.forward, self.x, self.y).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()

    def _recorded(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        return graph


stepper = cache(Stepper)


def train(kind: str, size: Size, steps: int, seed: int, text: Tensor, device: torch.device) -> tuple[nn.Module, float]:
    """The model of a kind, trained, and the seconds of its steps after the first ones. The next training writes over it."""
    torch.manual_seed(seed)
    own = stepper(kind, size, device)
    own.begin(LanguageModel(kind, size))
    start = time.perf_counter()
    for step, (x, y) in zip(range(1, steps + 1), batches(text, size, seed, device), strict=False):
        own.step(x, y, rate(step, size, steps))
        if step == WARM:
            wait(device)
            start = time.perf_counter()
    wait(device)
    return own.model, time.perf_counter() - start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def tested(model: nn.Module, size: Size, text: Tensor, device: torch.device) -> float:
    """Cross-entropy per byte on the same stretches of validation text for all models, in nats."""
    drawn = zip(range(size.tested), batches(text, size, 10_000, device), strict=False)
    return sum(float(loss_of(model.eval(), x, y)) for _, (x, y) in drawn) / size.tested


def measured(size: Size, seeds: int, text: tuple[Tensor, Tensor], out: Path, device: torch.device) -> None:
    """Appends a row for each model that ``out`` does not hold. One that fails is reported, and the others go on."""
    out.parent.mkdir(parents=True, exist_ok=True)

    def known(by: str) -> pd.DataFrame:
        rows = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=FIELDS)
        return rows[rows["by"] == by]

    def run(kind: str, by: str, seed: int, steps: int) -> None:
        rows, equal = known(by), known("steps")
        if ((rows["kind"] == kind) & (rows["seed"] == seed)).any():
            return
        same = equal[(equal["kind"] == kind) & (equal["seed"] == seed) & (equal["steps"] == steps)]
        if by == "time" and len(same):  # the slowest kind
            keep(kind, by, seed, steps, same["parameters"].item(), "", same["loss"].item())
            return
        model, seconds = train(kind, size, steps, seed, text[0], device)
        if by == "speed":
            found = (round((steps - WARM) * size.batch * size.n / seconds), "")
        else:
            found = ("", round(tested(model, size, text[1], device), 5))
        keep(kind, by, seed, steps, sum(p.numel() for p in model.parameters()), *found)

    def keep(*row: object) -> None:
        new = not out.exists()
        with out.open("a", newline="") as file:
            csv.writer(file).writerows([FIELDS] * new + [row])
        print(*row, flush=True)

    for turn in range(ROUNDS):
        for kind in KINDS:
            with reported(f"the speed of {kind}"):
                run(kind, "speed", turn, WARM + min(30, size.steps))
    speed = known("speed").groupby("kind")["tokens_per_second"].median()
    for by in ("steps", "time"):
        for seed in range(seeds):
            for kind in filter(speed.__contains__, KINDS):
                steps = round(size.steps * (speed[kind] / speed.min() if by == "time" else 1))
                with reported(f"{kind} by {by}, seed {seed}"):
                    run(kind, by, seed, steps)


def table(path: Path) -> str:
    """Medians over turns and seeds, and the range of losses."""
    rows = pd.read_csv(path)
    found = rows.groupby(["by", "kind"], sort=False).agg(
        steps=("steps", "median"), parameters=("parameters", "first"), speed=("tokens_per_second", "median"),
        loss=("loss", "median"), least=("loss", "min"), most=("loss", "max"),
    )  # fmt: skip
    return found.to_string(na_rep="")


def draw(path: Path) -> Path:
    """The loss of every model, by kind; next to the rows."""
    import matplotlib.pyplot as plt

    rows, drawn = pd.read_csv(path), path.with_suffix(".png")
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for shift, (by, label) in zip((-0.12, 0.12), (("steps", "equal steps"), ("time", "equal time")), strict=True):
        own = rows[rows["by"] == by]
        axes.plot([KINDS.index(kind) + shift for kind in own["kind"]], own["loss"], "o", alpha=0.6, label=label)
    axes.set_xticks(range(len(KINDS)), KINDS)
    axes.set(xlabel="attention", ylabel="nats a byte, validation")
    axes.legend()
    figure.savefig(drawn, dpi=150)
    plt.close(figure)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.show is not None:
        print(f"{table(given.show)}\nFigure: {draw(given.show)}")
    elif given.out is None:
        print(
            "benchmarks/hybrid.py trains language models for minutes of a GPU: give a file for its rows, --out FILE.csv."
        )
    else:
        size = SIZES[given.size]
        size = size if given.steps is None else Size(**{**vars(size), "steps": given.steps})
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        measured(size, given.seeds, read_text(given.text), given.out, device)
        if given.out.exists():
            print(table(given.out))
        leave()


if __name__ == "__main__":
    main()
