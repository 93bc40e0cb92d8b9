"""The search behind the ``tuned`` recipe, on validation data with seeds that no result uses (1000 and on).

    python benchmarks/tune.py peaks OUT.csv      peak learning rates at 1000 epochs, three architectures
    python benchmarks/tune.py length OUT.csv     peaks and epochs for the bias-free architecture

Each takes two to three minutes on one GPU. Prints the median validation error at scale 1 of every task and the geometric mean
over tasks, and how many runs died; writes one row a run and scale.
"""

import sys
import time

import numpy as np
import pandas as pd
import torch

from posattn.model import ModelConfig
from posattn.training import Member, RunSpec, train_spec
from posattn.training.recipe import recipe

HARD = ("min", "median", "sort", "maxsub")
STAGES = {  # architecture, tasks, epochs, peaks, seeds
    "peaks": [
        ("scale-exact", ("sum", *HARD), 1000, (5e-4, 1e-3, 1.5e-3), 2),
        ("positional", ("sum", *HARD), 1000, (5e-4, 1e-3, 1.5e-3), 1),
        ("standard", ("sum", *HARD), 1000, (5e-4, 1e-3), 1),
    ],
    "length": [
        ("scale-exact", HARD, 2001, (1.5e-3, 2e-3, 3e-3), 2),
        ("scale-exact", HARD, 3001, (1.5e-3, 2e-3), 2),
    ],
}


def main(stage: str, out: str) -> None:
    tables = []
    for arch, tasks, epochs, peaks, seeds in STAGES[stage]:
        start = time.monotonic()
        team = tuple(Member(task, 1000 + seed, peak) for peak in peaks for task in tasks for seed in range(seeds))
        spec = RunSpec(ModelConfig(8, arch), recipe("tuned", epochs=epochs), team, precision="fp16")
        run = train_spec(spec, torch.device("cuda"))
        table = run.evaluate([1.0, 10.0], 10_000, "validation")
        table["lr"] = [team[member].lr for member in table["member"]]
        tables.append(table.assign(arch=arch, epochs=epochs).drop(columns="member"))
        pd.concat(tables).to_csv(out, index=False)
        at_one = tables[-1][tables[-1].scale == 1]
        medians = at_one.groupby(["lr", "task"])["mse"].median().unstack()
        medians["geometric mean"] = np.exp(np.log(medians).mean(axis=1))
        medians["not ok"] = at_one[at_one.status != "ok"].groupby("lr").size().reindex(medians.index, fill_value=0)
        print(f"{arch}, {epochs} epochs, {time.monotonic() - start:.0f} s")
        print(medians.to_string(float_format="{:.2e}".format), end="\n\n", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:  # as `make bench` calls it
        print(f"A search, not a benchmark: give a stage and a file, {' or '.join(STAGES)} OUT.csv.")
        sys.exit()
    if len(sys.argv) != 3 or sys.argv[1] not in STAGES:
        raise SystemExit(
            f"tune.py takes a stage, {' or '.join(STAGES)}, and a file to write; it was given {sys.argv[1:]}."
        )
    main(*sys.argv[1:])
