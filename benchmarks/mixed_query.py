"""What it takes to learn the query of mixed-type prompts (results/mixed-scan): the paper's networks, made larger.

    python benchmarks/mixed_query.py --out results/mixed-scan/ways.csv

Every network sees fresh prompts, the same for all networks of a task and seed, and learns by Adam with a cosine schedule. The
error is given beside that of ignoring the query, the lowest possible without reading which four categories are asked for. About
three hours of one CPU core; ``--only``, ``--tasks`` and ``--archs`` take a part.
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import posattn
from posattn.experiments.yardsticks import ignoring_query
from posattn.tasks.mixed import MIXED
from posattn.tasks.prompts import CATEGORIES
from posattn.tokens.vocabulary import IDENTIFIERS, word_code, word_index
from posattn.training import network_for

_STEPS, _BATCH, _LR = 2000, 250, 1e-3
_TESTED = 2000  # prompts
_WIDE = {"embed": 64, "width": 64, "heads": 4}
WAYS: dict[str, dict[str, object]] = {
    "as in the paper": {},
    "four times the prompts": {"times": 4},
    "16 times the prompts": {"times": 16},
    "wide": _WIDE,
    "wide, eight times the prompts": _WIDE | {"times": 8},
    "wide, six layers": _WIDE | {"layers": 6},
    "wide, eight heads": _WIDE | {"heads": 8},
    "wide, relative": _WIDE | {"relative": True},
    "wide, four times the prompts, more identifiers step by step": _WIDE | {"times": 4, "curriculum": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--tasks", nargs="*", default=["mixed-sum"], choices=[row.name for row in MIXED])
    parser.add_argument("--archs", nargs="*", default=["positional", "standard"], choices=list(posattn.ARCHITECTURES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--steps", type=int, default=_STEPS)
    args = parser.parse_args()
    if args.out is None:
        return print("A study, not a benchmark: give --out FILE.")
    torch.set_num_threads(1)
    rows = pd.read_csv(args.out).to_dict("records") if args.out.exists() else []
    for way in args.only:
        for task in args.tasks:
            for arch in args.archs:
                for seed in args.seeds:
                    settings: dict[str, Any] = {"times": 1} | WAYS[way]
                    steps = settings.pop("times") * args.steps
                    named = {"way": way, "task": task, "arch": arch, "seed": seed, "steps": steps}
                    if any(all(row[key] == value for key, value in named.items()) for row in rows):
                        continue
                    rows.append(named | learn(task, arch, seed, steps, **settings))
                    pd.DataFrame(rows).to_csv(args.out, index=False)
                    print(rows[-1], flush=True)


def learn(task: str, arch: str, seed: int, steps: int, curriculum: bool = False, **settings: int) -> dict[str, float]:
    """Trains one network; its errors and those of ignoring the query on the same prompts."""
    torch.manual_seed(seed)
    network = network_for(task, arch=arch, **settings).build()
    optimizer = torch.optim.Adam(network.parameters(), lr=_LR)
    start, last = time.process_time(), 0.0
    for step, (x, y) in enumerate(prompts(task, seed, steps, curriculum)):
        done = step / steps
        optimizer.param_groups[0]["lr"] = _LR * min(1, 50 * done + 1e-3) * 0.5 * (1 + math.cos(math.pi * done))
        loss = (network(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        last = loss.item() if not last else 0.99 * last + 0.01 * loss.item()
    found: dict[str, float] = {"weights": sum(weight.numel() for weight in network.parameters()), "training": last}
    tests = {"in distribution": (1, "id"), "other words": (1, "ood"), "scale 10": (10, "id"), "both": (10, "ood")}
    with torch.no_grad():
        for name, (scale, domain) in tests.items():
            x, y = posattn.task(task).sample(_TESTED, scale=scale, seed=seed, split="test", domain=domain)
            found[name] = (network(x) - y).square().mean().item()
            found[f"{name}, ignoring the query"] = (ignoring_query(x) - y).square().mean().item()
    return found | {"seconds": time.process_time() - start}


def prompts(task: str, seed: int, steps: int, curriculum: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of fresh prompts. A curriculum begins with 8 identifiers, adds one every twentieth, and has all 20 after 60%."""
    own, at_once = posattn.task(task), 100
    for first in range(0, steps, at_once):
        x, y = own.sample(at_once * _BATCH, seed=1000 + seed + 10_000 * first)
        if curriculum and (known := CATEGORIES + int(20 * first / steps)) < len(IDENTIFIERS) // 2:
            x = renamed(x, known, seed + first)
        yield from list(zip(x.split(_BATCH), y.split(_BATCH), strict=True))[: steps - first]


def renamed(x: Tensor, known: int, seed: int) -> Tensor:
    """Prompts whose eight identifiers are drawn from the first ``known``, in the same order."""
    word, category = word_index(x), (x < 0) & (word_index(x) < 5 * len(IDENTIFIERS))
    identifier = word % len(IDENTIFIERS)
    there = torch.zeros(len(x), len(IDENTIFIERS), dtype=torch.int64)
    there.scatter_(1, identifier.where(category, identifier[:, -1:]), 1)
    rank = (there.cumsum(dim=1) - 1).gather(1, identifier)
    u = torch.rand(len(x), known, generator=torch.Generator().manual_seed(seed))
    drawn = u.argsort(dim=1)[:, :CATEGORIES].sort(dim=1).values
    new = drawn.gather(1, rank.clamp(0, CATEGORIES - 1))
    return torch.where(category, word_code(word - identifier + new).to(x.dtype), x)


if __name__ == "__main__":
    main()
