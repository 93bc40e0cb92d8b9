"""Table networks for k-hop (results/khop-scan): what they need to learn it, and how far the stored ones reach.

    python benchmarks/khop_scan.py --out results/khop-scan/without.csv
    python benchmarks/khop_scan.py --reach results/khop-scan/reach.csv

The first trains with one thing taken away at a time: every network sees the same sequences in the same order, 600 steps of 16,
from three seeds. About ten minutes of one CPU core. The second tests the stored runs on more letters, hops and positions: the
sequences of training have 29 letters, five of them different, and up to three hops.

Letters: n letters per sequence, B sequences, A letters of the alphabet.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor, nn

import posattn
from posattn.looped import table_model
from posattn.looped.families import FAMILIES, Loop
from posattn.looped.table_model import TableConfig, TableNetwork
from posattn.streams import stream
from posattn.training import network_for
from posattn.training.recipe import recipe

PLAN = replace(recipe("table"), starts=1)
STORED = sorted(Path(__file__).parents[1].glob("results/khop-scan/seed-*"))
LOOPS = FAMILIES["dilated"].loops(29)
MOST = 6  # hops
_AT_ONCE = 10_000  # letters of all sequences that a network answers together


class OwnPosition(TableNetwork):
    """Position i reads its own table, not that of the position before it."""

    def _heard(self, before: table_model.Attend, t: Tensor) -> Tensor:
        return t


class Untied(TableNetwork):
    """Entries are not alike: every letter has weights of its own, as key and as value, when written and when read."""

    def __init__(self, config: TableConfig):
        super().__init__(config)
        self.as_key, self.as_value, self.read_as = (nn.Parameter(torch.randn(10, config.width) / 2) for _ in range(3))

    def _slots(self, hops: Tensor, letters: Tensor) -> tuple[Tensor, int]:
        return torch.arange(10), 10

    def _written(self, keys: Tensor, h: Tensor) -> Tensor:
        pairs = torch.stack(torch.broadcast_tensors(keys[..., :, None], h[..., None, :]), dim=-1)
        own = self.as_value[:, None] if h.shape[-1] == 10 else self.as_value.new_zeros(1, 1, self.config.width)
        hidden = self.write[0](pairs) + self.as_key[:, None] + own.transpose(0, 1)
        return self.write[2](hidden.relu()).flatten(-2)

    def _read(self, entries: Tensor, mark: Tensor) -> Tensor:
        hidden = self.read[0](torch.cat([entries, mark.expand_as(entries)], dim=-1)) + self.read_as
        found = self.read[2](hidden.relu())[..., 0]
        factor, none = self.decoder
        return factor * torch.cat([found, none.expand(*found.shape[:-1], 1)], dim=-1)


class Unlooped(TableNetwork):
    """Every loop has its own attention and its own MLP for joins, as layers do; so there are only as many as training has."""

    def __init__(self, config: TableConfig):
        super().__init__(config)
        self.logits = nn.Parameter(torch.zeros(1 + len(LOOPS), 5))
        self.joins = nn.ModuleList(table_model._gate(config.words, config.width) for _ in LOOPS)
        self.join = nn.Identity()

    def _attention(self, n: int):  # type: ignore[no-untyped-def]
        keys, *joins = self.weights().unbind()
        both = zip(joins, FAMILIES["dilated"].loops(n), strict=False)
        return table_model.attend(keys, n, Loop(1))[0], [table_model.attend(own, n, loop) for own, loop in both]

    def _marked(self, keys: Tensor, joins: table_model.Joins) -> tuple[Tensor, list[Tensor]]:
        marks, gates = self._written(keys, torch.ones_like(keys[..., :1])), []
        for (attend, m), own in zip(joins, self.joins, strict=False):
            earlier = attend(marks)
            gates.append(m[:, None, None, None] * own(torch.cat([marks, earlier], dim=-1)).clamp(0, 1))
            marks = torch.lerp(marks, earlier, gates[-1])
        return marks, gates


class SelfAttention(TableNetwork):
    """Attention over all earlier positions and itself by queries and keys that read letters and positions, a head per use.

    Keys and reads, and each of the five loops, have a head of their own. Nothing stops it from ignoring the letters.
    """

    D = 16

    def __init__(self, config: TableConfig):
        super().__init__(config)
        heads = 1 + len(LOOPS)
        self.q, self.k = (nn.Parameter(torch.randn(heads, 10 + config.n, self.D) / 4) for _ in range(2))

    def _slots(self, hops: Tensor, letters: Tensor) -> tuple[Tensor, int]:
        return torch.arange(10), 10

    def hops(self, letters: Tensor, count: int, others: bool = False) -> Iterator[Tensor]:
        n, batch, _ = letters.shape
        place = torch.eye(self.config.n)[:n, None].expand(n, batch, -1)
        x = torch.cat([letters, place], dim=-1).transpose(0, 1)  # B, n, 10 + n
        scores = torch.einsum("bif,hfd,hgd,bjg->hbij", x, self.q, self.k, x) / self.D**0.5
        a = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -1e9).softmax(dim=-1)

        def through(head: int):  # type: ignore[no-untyped-def]
            return lambda t: (a[head] @ t.flatten(2).transpose(0, 1)).transpose(0, 1).reshape(t.shape)

        whole = torch.ones(n)
        self._found = through(0), [(through(1 + head), whole) for head in range(len(FAMILIES["dilated"].loops(n)))]
        yield from super().hops(letters, count, others)

    def _attention(self, n: int):  # type: ignore[no-untyped-def]
        return self._found


VARIANTS: dict[str, type[TableNetwork]] = {
    "nothing": TableNetwork,
    "reading before oneself": OwnPosition,
    "tying over entries": Untied,
    "loops": Unlooped,
    "positional attention": SelfAttention,
}
# Without tables at all: the paper's networks, at the learning rate of the recipe ``tuned``.
PAPERS = {
    "tables: positional, 8 layers": {"arch": "positional", "layers": 8},
    "tables: standard, 3 layers": {"arch": "standard", "layers": 3},
}


@dataclass(frozen=True)
class Without(TableConfig):
    without: str = "nothing"

    kind: ClassVar[str] = "table-without"

    def build(self) -> TableNetwork:
        return VARIANTS[self.without](self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="table of the networks with something taken away")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=PLAN.epochs, help="of 200 steps")
    parser.add_argument("--only", nargs="*", default=[*VARIANTS, *PAPERS])
    parser.add_argument("--reach", type=Path, help="table of how far the stored runs reach")
    parser.add_argument("--runs", nargs="*", type=Path, default=STORED, help="the folders of these")
    given = parser.parse_args()
    if given.out is None and given.reach is None:
        return print("A study, not a benchmark: give --out FILE, --reach FILE or both.")
    torch.set_num_threads(1)
    if given.reach is not None:
        found = [reach(run.model(), run.members[0].seed) for run in map(posattn.load, given.runs)]
        pd.concat(found).to_csv(given.reach, index=False)
    if given.out is not None:
        without(given.out, given.seeds, given.epochs, given.only)


def without(out: Path, seeds: int, epochs: int, names: list[str]) -> None:
    """Trains and tests the networks; the table is written after each."""
    plan, rows = replace(PLAN, epochs=epochs), []
    for seed in range(seeds):
        for name in names:
            if name in VARIANTS:
                config, own = Without(30, without=name), plan
            else:
                config, own = network_for("khop", **PAPERS[name]), replace(plan, lr=recipe("tuned").lr)
            run = posattn.train("khop", config, recipe=own, seed=seed, device="cpu", progress=False)
            table = run.evaluate([1, 2], samples=200)
            loss, seconds = run.result["train_loss"][0], run.result["seconds"]
            rows.append(table.assign(without=name, epochs=epochs, seed=seed, loss=loss, seconds=seconds))
            print(name, seed, loss, seconds, flush=True)
            print(table.pivot(index="scale", columns="hops", values="accuracy").round(4).to_string(), flush=True)
            columns = ["without", "epochs", "seed", "loss", "seconds", "scale", "hops", "accuracy", "accuracy_found"]
            pd.concat(rows)[columns].to_csv(out, index=False)


class Sequences(NamedTuple):
    """What is tested on: ``length`` letters each, of ``letters`` different ones from letter ``first`` of the alphabet on."""

    letters: int = 5
    first: int = 0
    alphabet: int = 10
    length: int = 29
    sequences: int = 1000


TESTS = {
    "a-e": Sequences(),
    "f-j": Sequences(first=5),
    "all ten letters": Sequences(letters=10),
    "26 letters": Sequences(letters=26, alphabet=26, length=200, sequences=200),
    "1,000 letters long": Sequences(letters=10, length=1000, sequences=10),
}


def reach(network: TableNetwork, seed: int) -> pd.DataFrame:
    """A row per test and hop count: cross-entropy and the share of letters right.

    ``found`` is the number of targets that are letters, not '~', and ``accuracy_found`` the share of these that are right.
    Where hardly any are, ``accuracy`` says little.
    """
    rows: list[dict[str, Any]] = []
    for name, test in TESTS.items():
        s = draw(test, seed)
        sums = torch.zeros(4, MOST + 1, dtype=torch.float64)
        with torch.no_grad():
            for part in s.split(max(1, _AT_ONCE // test.length)):
                said = network.hops(torch.nn.functional.one_hot(part.mT, test.alphabet).to(network.decoder.dtype), MOST)
                for k, (answer, wanted) in enumerate(zip(said, truth(part, MOST, test.alphabet), strict=True)):
                    hit, there = answer.argmax(dim=-1).mT == wanted, wanted != test.alphabet
                    loss = torch.nn.functional.cross_entropy(answer.permute(1, 2, 0).double(), wanted, reduction="sum")
                    sums[:, k] += torch.stack([loss, hit.sum(), (hit & there).sum(), there.sum()])
        for k, (loss, right, right_found, found) in enumerate(sums.T.tolist()):
            means = {"cross_entropy": loss / s.numel(), "accuracy": right / s.numel()}
            own = {"found": int(found), "accuracy_found": right_found / found if found else float("nan")}
            rows.append({"seed": seed, "test": name, "hops": k} | means | own)
    return pd.DataFrame(rows)


def draw(test: Sequences, seed: int) -> Int64[Tensor, "B n"]:
    """Letters as the task draws them: each uniform over those other than its predecessor."""
    generator = torch.Generator().manual_seed(stream(seed, "reach", *test) % 2**63)
    steps = torch.randint(1, test.letters, (test.sequences, test.length), generator=generator)
    steps[:, 0] = torch.randint(test.letters, (test.sequences,), generator=generator)
    return test.first + steps.cumsum(dim=1) % test.letters


def truth(s: Int64[Tensor, "B n"], count: int, none: int) -> Iterable[Int64[Tensor, "B n"]]:
    """The letters after 0 to ``count`` hops, or ``none``, by following the hops one by one."""
    n, last = s.shape[1], torch.full((len(s), int(s.max()) + 1), s.shape[1])
    follower = torch.full((len(s), n + 1), n)
    for j in range(n):
        follower[:, j] = last.gather(1, s[:, j, None])[:, 0]
        last.scatter_(1, s[:, j, None], j + 1)
    place, letters = torch.arange(n).expand_as(s), torch.nn.functional.pad(s, (0, 1), value=none)
    for _ in range(count + 1):
        yield letters.gather(1, place)
        place = follower.gather(1, place)


if __name__ == "__main__":
    main()
