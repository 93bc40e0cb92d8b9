"""How many lists of 8 one core samples and answers in a second, for every task: ``python benchmarks/sampling.py``."""

import time

import torch

from posattn.tasks import TASKS

COUNT = 200_000  # lists a call
REPEATS = 7  # the best is reported: other programs can only slow a call down
TARGETS = {"sum": 1_000_000, "min": 1_000_000, "median": 300_000, "sort": 1_000_000, "maxsub": 300_000}


def samples_a_second(name: str) -> float:
    seconds = []
    for seed in range(REPEATS):
        start = time.perf_counter()
        TASKS[name].sample(COUNT, n=8, scale=3.0, seed=seed)
        seconds.append(time.perf_counter() - start)
    return COUNT / min(seconds)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'task':<14}{'samples a second':>18}{'target':>12}{'ratio':>8}")
    for name in (name for name, row in TASKS.items() if row.TOKENS == "none"):
        speed, target = samples_a_second(name), TARGETS[name.removesuffix("-total")]
        print(f"{name:<14}{speed:>18,.0f}{target:>12,}{speed / target:>8.1f}")


if __name__ == "__main__":
    main()
