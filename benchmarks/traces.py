"""Training on a program's variables: does a network reach from traces what it does not reach from answers?

    python benchmarks/traces.py --out results/traces

A positional Transformer has one layer for every round of communication of a program. A linear map reads every variable of round
r from the state after layer r, at the machine whose variable it is. The loss is that of the answers plus ``weight`` times
the mean loss of the variables: squared error of standardised reals, cross-entropy of whole numbers. With weight 0 the same
network, from the same weights and lists, learns from answers alone. The read-outs are thrown away after training.

Letters: B lists, n machines, V variables, R rounds of communication.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import posattn
from posattn.compiler import Program, Whole, lookup, maximum, minimum, select, send
from posattn.compiler.front_end_to_pcoc import WrittenPCOC
from posattn.compiler.interpreter import values_of
from posattn.network import NetworkConfig

BOUND = 1000.0  # of the programs' real numbers
NONE = 6  # what khop-scan calls "no letter"; letters are 1 to 5
MOST_VALUES = 16  # whole numbers with more values than this are read as reals


# --- programs whose rounds a network of two heads can follow: everyone hears itself and one other -----------------------


def doublings(n):
    """1, 2, 4, ... below n."""
    return [1 << r for r in range((n - 1).bit_length())]


@posattn.program
def max_subarray(me, n, x):
    whole = prefix = suffix = best = x
    for reach in doublings(n):
        before = (yield send(me + reach, whole, prefix, suffix, best, when=me < n - reach))[0]
        joined = [
            before[0] + whole,
            maximum(before[1], before[0] + prefix),
            maximum(suffix, whole + before[2]),
            maximum(maximum(before[3], best), before[2] + prefix),
        ]
        own = whole, prefix, suffix, best
        whole, prefix, suffix, best = (select(before.present, *pair) for pair in zip(joined, own, strict=True))
    return best


def exchanges(n):
    """Every machine's partner in each step of a bitonic sort in which the lower machine always keeps the smaller number."""
    for stage in range((n - 1).bit_length()):
        for flip in (2 * (1 << stage) - 1, *(1 << step for step in reversed(range(stage)))):
            yield [i ^ flip for i in range(n + 1)]


@posattn.program
def bitonic_sort(me, n, x):
    for partners in exchanges(n):
        partner = lookup(partners, me)
        other = (yield send(partner, x, when=partner < n)).get(empty=x)
        x = select(me < partner, minimum(x, other), maximum(x, other))
    return x


@posattn.program(letter=Whole(0, 5), hops=Whole(0, 3))
def khop_scan(me, n, letter, hops):
    """k-hop induction heads by scans: every machine learns what follows the latest occurrence of each letter, k times.

    Machine 0 has the hop count and no letter (0).
    """
    heard, told = yield send(me + 1, letter, when=me < n - 1), send(range(n), hops, when=me == 0)
    key, hops, found = heard.get(), told.get(), letter
    answer = letter
    for hop in (1, 2, 3):
        after = [select(key == each, found, 0) for each in range(1, 6)]  # 0: this letter has not occurred
        reach = 1
        while reach < n - 1:
            earlier = (yield send(me + reach, *after, when=me < n - reach))[0]
            after = [select(own == 0, earlier[a], own) for a, own in enumerate(after)]
            reach *= 2
        yield send(me, 0)  # a layer of its own for what follows
        found = lookup([0, *after], letter)
        found = select(found == 0, NONE, found)
        answer = select(hops >= hop, found, answer)
    return answer


# --- the tasks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A task with its program: ``given`` turns its inputs into those of the machines, (B, n, c)."""

    task: str
    program: Program
    n: int
    given: Callable[[Tensor], np.ndarray]

    def built(self) -> WrittenPCOC:
        made = self.program.build(self.n, BOUND)
        assert isinstance(made, WrittenPCOC)
        return made

    def config(self, heads: int = 2) -> NetworkConfig:
        """The paper's sizes, with a layer for each round of communication."""
        kind = posattn.TokenConfig if self.task == "khop" else posattn.ModelConfig
        more = {"tokens": "letters", "causal": True, "embed": 60} if self.task == "khop" else {}
        return kind(n=self.n, layers=len(self.built().rounds), heads=heads, **more)


def _numbers(x: Tensor) -> np.ndarray:
    return x.double().numpy()[..., None]


def _letters(x: Tensor) -> np.ndarray:
    """Letters as 1 to 5 in order of the alphabet, and the hop count at machine 0."""
    words = posattn.task("khop").encode("0abcde")
    letter = x - words[1] + 1
    letter[:, 0] = 0
    hops = torch.zeros_like(x)
    hops[:, 0] = x[:, 0] - words[0]
    return torch.stack([letter, hops], dim=-1).double().numpy()


SETTINGS = {
    "sort": Setting("sort", bitonic_sort, 8, _numbers),
    "maxsub": Setting("maxsub", max_subarray, 8, _numbers),
    "khop": Setting("khop", khop_scan, 9, _letters),
}


# --- variables as targets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A variable at the end of a round. ``classes`` is how many values a whole number has, 0 for reals."""

    name: str
    round: int
    classes: int
    values: Tensor  # (B, n): from 0 if whole, else standardised


def targets(setting: Setting, x: Tensor) -> list[Target]:
    """The program's variables for inputs, by its interpreter: those that depend on the data, in all rounds but the last."""
    built = setting.built()
    wanted = [
        (name, r, value)
        for r, names in enumerate(built.variables[:-1])
        for name, (value, _) in names.items()
        if r and value.pure is None
    ]
    columns = [value.index for *_, value in wanted]
    pieces = np.array_split(setting.given(x), max(1, len(x) // 500))  # a program has many values beside its variables
    values, found = np.concatenate([values_of(built.tracing, piece)[..., columns] for piece in pieces]), []
    for place, (name, r, value) in enumerate(wanted):
        known, own = built.tracing.known[value.index], torch.from_numpy(values[..., place])
        if known.integer and known.hi - known.lo < MOST_VALUES:
            found.append(Target(name, r, int(known.hi - known.lo) + 1, (own - known.lo).long()))
        else:
            found.append(Target(name, r, 0, ((own - own.mean()) / own.std().clamp_min(1e-9)).float()))
    return found


class Readouts(nn.Module):
    """A linear map for every target, from the state after the layer of its round; those of a kind and round are one matrix."""

    def __init__(self, width: int, wanted: list[Target]):
        super().__init__()
        kinds = dict.fromkeys((each.round, each.classes) for each in wanted)
        groups = {kind: [each.values for each in wanted if (each.round, each.classes) == kind] for kind in kinds}
        self.truth = {kind: torch.stack(values, dim=-1) for kind, values in groups.items()}  # (B, n, targets)
        self.maps = nn.ModuleList(nn.Linear(width, len(groups[kind]) * max(1, kind[1])) for kind in kinds)

    def loss(self, states: list[Tensor], rows: Tensor) -> Tensor:
        """The mean over the targets; ``rows`` says which lists the states (b, N, d) are of."""
        losses, count = [], 0
        for read, ((r, classes), values) in zip(self.maps, self.truth.items(), strict=True):
            truth = values[rows]
            said = read(states[r][:, : truth.shape[1]])
            if classes:
                each = cross_entropy(said.reshape(-1, classes), truth.flatten())
            else:
                each = (said - truth).square().mean()
            losses.append(each * truth.shape[-1])
            count += truth.shape[-1]
        return torch.stack(losses).sum() / count


# --- training -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    steps: int = 2000
    batch: int = 200
    samples: int = 20_000
    lr: float = 1e-3
    weight: float = 1.0  # of the traces; 0: answers alone
    heads: int = 2


def train(setting: Setting, seed: int, plan: Plan) -> tuple[nn.Module, dict[str, float]]:
    """The trained network, and its losses at the end: of the answers and, if it was trained on them, of the variables."""
    task = posattn.task(setting.task)
    x, y = task.sample(plan.samples, n=setting.n, seed=seed)
    torch.manual_seed(seed)
    network = setting.config(plan.heads).build()
    heads = Readouts(network.config.embed, targets(setting, x) if plan.weight else [])
    own = [*network.parameters(), *heads.parameters()]
    adam = torch.optim.Adam(own, lr=plan.lr)
    warm = max(1, plan.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda step: min((step + 1) / warm, 0.5 * (1 + np.cos(np.pi * step / max(1, plan.steps))))
    )
    losses = {"answers": float("nan"), "variables": float("nan")}
    for rows in itertools.islice(_batches(plan, seed), plan.steps):
        states = network.states(x[rows])
        loss = answer_loss(network.decode(states[-1]), y[rows])
        losses["answers"] = loss.item()
        if plan.weight:
            traced = heads.loss(states, rows)
            losses["variables"] = traced.item()
            loss = loss + plan.weight * traced
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(own, 1.0)
        adam.step()
        schedule.step()
    return network.eval(), losses


def _batches(plan: Plan, seed: int) -> Iterator[Tensor]:
    shuffle = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(plan.samples, generator=shuffle).split(plan.batch)


def answer_loss(out: Tensor, y: Tensor) -> Tensor:
    """Squared error, or for letters cross-entropy without the hop count, whose target is a blank."""
    if out.ndim == y.ndim:
        return (out - y).square().mean()
    return cross_entropy(out[:, 1:].flatten(0, 1), y[:, 1:].flatten())


def tested(setting: Setting, network: nn.Module, seed: int, count: int = 2000) -> dict[str, float]:
    """On test lists: squared errors at scales 1 and 10; for khop the share of letters right, of all and by hop count."""
    task = posattn.task(setting.task)
    with torch.no_grad():
        if setting.task != "khop":
            lists = {scale: task.sample(count, n=setting.n, scale=scale, seed=seed, split="test") for scale in (1, 10)}
            return {f"mse, scale {scale}": answer_loss(network(x), y).item() for scale, (x, y) in lists.items()}
        x, y = task.sample(count, n=setting.n, seed=seed, split="test")
        out = network(x)
        asked = torch.isin(y, task.encode("0abcde")[1:])  # the other answers are ~
        right = (out.argmax(dim=-1) == y) & asked
        found = {"cross-entropy": answer_loss(out, y).item(), "right": (right.sum() / asked.sum()).item()}
        for k in range(4):
            hops = x[:, 0] == task.encode(f"{k}a")[0]
            found[f"right, k = {k}"] = (right[hops].sum() / asked[hops].sum()).item()
        return found


WAYS: dict[str, dict] = {
    "answers": {"weight": 0.0},
    "traces": {},
    "answers, 4 heads": {"weight": 0.0, "heads": 4},
    "traces, 4 heads": {"heads": 4},
}
ROW = ("task", "way", "seed", "steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for errors.csv, which is gone on with; without it, two steps of each")
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=Plan.steps)
    given = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan(steps=given.steps) if given.out is not None else Plan(steps=2, samples=400)
    path = None if given.out is None else given.out / "errors.csv"
    rows = [] if path is None or not path.exists() else pd.read_csv(path).to_dict("records")
    for name, seed, way in itertools.product(given.tasks, given.seeds, given.ways):
        setting, key = SETTINGS[name], dict(zip(ROW, (name, way, seed, plan.steps), strict=True))
        if any(key == {field: row[field] for field in ROW} for row in rows):
            continue
        start = time.process_time()
        network, losses = train(setting, seed, replace(plan, **WAYS[way]))
        row = key | tested(setting, network, seed) | {f"last loss, {part}": loss for part, loss in losses.items()}
        rows.append(row | {"seconds": round(time.process_time() - start, 1)})
        print(pd.Series(rows[-1]).to_frame().T.to_string(index=False, header=True), flush=True)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
