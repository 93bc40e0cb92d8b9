"""Training that begins with compiled weights: what happens to the error?

    python benchmarks/compiled_start.py --out results/compiled-start

For the five numeric tasks at n = 8, the library's program in softmax form trains on by the paper's recipe, at two learning
rates and with three seeds, which differ in lists and shuffles. Errors before, after one epoch (20 steps) and at the end, at
scales 1 and 10; and of networks of the same shape that began with random weights. Without --out, two steps of each.
"""

import argparse
import time
from pathlib import Path

import pandas as pd
import torch

import posattn
from posattn.compiler.library import solving
from posattn.tasks import FIVE_TASKS
from posattn.training.begin import named_program, run_of_program

RATES = (1e-5, 1e-3)
SEEDS = 3
N, SAMPLES, BATCH = 8, 5000, 250


def rows_of(run, seconds: float, **about) -> list[dict]:
    """One row per member and scale."""
    found = run.evaluate([1, 10], samples=1000)
    shown = found[["member", "scale", "mse"]].to_dict("records")
    return [about | row | {"status": run.status[row["member"]], "seconds": round(seconds, 1)} for row in shown]


def measure(task: str, epochs: int, seeds: int = SEEDS, samples: int = SAMPLES) -> list[dict]:
    """All rows of a task: ``epochs`` counts those of the longest training."""
    before = run_of_program(named_program("compiled", task, N), task, seeds)
    about = {"task": task, "program": solving(task)[0].name, "parameters": before.parameters.flat.shape[1]}
    rows = rows_of(before, 0.0, **about, start="compiled", lr=0.0, steps=0)
    ways = [("compiled", lr, length) for lr in RATES for length in dict.fromkeys((1, epochs))] + [("random", RATES[-1], epochs)]
    for start, lr, length in ways:
        began = time.process_time()
        run = posattn.train(
            task, before.spec.model, begin=before if start == "compiled" else None, members=seeds, lr=lr,
            samples=samples, batch=BATCH, epochs=length, device="cpu", progress=False,
        )  # fmt: skip
        steps = length * -(-samples // BATCH)
        rows += rows_of(run, time.process_time() - began, **about, start=start, lr=lr, steps=steps)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for errors.csv")
    parser.add_argument("--epochs", type=int, default=25, help="of the longest training, 20 steps each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict] = []
    for task in FIVE_TASKS:
        if given.out is None:
            rows += measure(task, 1, seeds=1, samples=2 * BATCH)
            continue
        rows += measure(task, given.epochs)
        given.out.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(given.out / "errors.csv", index=False, float_format="%.6g")
        print(task, flush=True)
    table = pd.DataFrame(rows).groupby(["task", "start", "lr", "steps", "scale"], sort=False)["mse"]
    print(table.agg(["median", "min", "max"]).to_string(float_format="{:.2g}".format))


if __name__ == "__main__":
    main()
