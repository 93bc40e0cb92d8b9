"""k-hop by scans: how far what table networks (posattn.looped.table_model) learned reaches.

The sequences of training have 29 letters, five of them different, and up to three hops. ``reach`` tests more of each.

Letters: n letters per sequence, B sequences, A letters of the alphabet.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor

from posattn.looped.table_model import TableNetwork
from posattn.streams import stream

MOST = 6  # hops
_AT_ONCE = 10_000  # letters of all sequences that a network answers together


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


def reach(network: TableNetwork, seed: int, tests: Iterable[str] = TESTS) -> pd.DataFrame:
    """A row per test and hop count: cross-entropy and the share of letters right.

    ``found`` is the number of targets that are letters, not '~', and ``accuracy_found`` the share of these that are right.
    Where hardly any are, ``accuracy`` says little.
    """
    rows: list[dict[str, Any]] = []
    for name in tests:
        test = TESTS[name]
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
