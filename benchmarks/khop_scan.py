"""Table networks for k-hop (results/khop-scan): what they need to learn it, and how far the stored ones reach.

    python benchmarks/khop_scan.py --out results/khop-scan/without.csv
    python benchmarks/khop_scan.py --reach results/khop-scan/reach.csv

The first trains with one thing taken away at a time: every network sees the same sequences in the same order, 600 steps of 16,
from three seeds. About ten minutes of one CPU core. The second tests the stored runs on more letters, hops and positions.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

import posattn
from posattn.experiments.hop_study import reach
from posattn.looped import table_model
from posattn.looped.families import FAMILIES, Loop
from posattn.looped.table_model import TableConfig, TableNetwork
from posattn.training import network_for
from posattn.training.recipe import recipe

PLAN = replace(recipe("table"), starts=1)
STORED = sorted(Path(__file__).parents[1].glob("results/khop-scan/seed-*"))
LOOPS = FAMILIES["dilated"].loops(29)


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


if __name__ == "__main__":
    main()
