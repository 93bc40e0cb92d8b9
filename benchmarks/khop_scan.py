"""What table networks need to learn k-hop (results/khop-scan): the same training with one thing taken away at a time.

    python benchmarks/khop_scan.py --out results/khop-scan/without.csv

Every network sees the same sequences in the same order, 600 steps of 16, from three seeds. About 25 minutes of one CPU core.
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
from posattn.looped import table_model
from posattn.looped.families import FAMILIES, Loop
from posattn.looped.table_model import TableConfig, TableNetwork
from posattn.training import network_for
from posattn.training.recipe import recipe

PLAN = replace(recipe("table"), starts=1)
LOOPS = FAMILIES["dilated"].loops(29)


class OwnPosition(TableNetwork):
    """Position i reads its own table, not that of the position before it."""

    def hops(self, letters: Tensor, count: int, others: bool = False) -> Iterator[Tensor]:
        before, joins = self._attention(len(letters))
        keys, h = before(letters), nn.functional.pad(letters, (0, int(others)))
        yield table_model._GIVEN * nn.functional.pad(h, (0, 1), value=0.5)
        marks, gates = self._marked(keys, joins)
        for _ in range(count):
            t = self._written(keys, h)
            for (attend, _), gate in zip(joins, gates, strict=True):
                t = torch.lerp(t, attend(t), gate)
            said = self._read(self._row(t, letters), self._row(marks, letters))
            h = torch.sigmoid(said[..., :-1] - said[..., -1:])
            yield said


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
        return table_model._attend(keys, n, Loop(1))[0], [table_model._attend(own, n, loop) for own, loop in both]

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


@dataclass(frozen=True)
class Without(TableConfig):
    without: str = "nothing"

    kind: ClassVar[str] = "table-without"

    def build(self) -> TableNetwork:
        return VARIANTS[self.without](self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[*VARIANTS, "tables: positional, 8 layers", "tables: standard, 3 layers"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(given.seeds):
        for name in given.only:
            if name in VARIANTS:
                config = Without(30, without=name)
            else:
                arch, layers = ("positional", 8) if "positional" in name else ("standard", 3)
                config = network_for("khop", arch=arch, layers=layers)
            run = posattn.train("khop", config, recipe=PLAN, seed=seed, device="cpu", progress=False)
            table = run.evaluate([1, 2], samples=200)
            about = {"without": name, "loss": run.result["train_loss"][0], "seconds": run.result["seconds"]}
            rows.append(table.assign(seed=seed, **about))
            print(name, seed, run.result["train_loss"], run.result["seconds"], flush=True)
            print(table.pivot(index="scale", columns="hops", values="accuracy").round(4).to_string(), flush=True)
            columns = ["without", "seed", "loss", "seconds", "scale", "hops", "accuracy", "accuracy_found"]
            pd.concat(rows)[columns].to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
