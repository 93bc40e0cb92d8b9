"""How far an MPC program goes, in machines N and memory s: ``python benchmarks/compiler_sizes.py --out FOLDER``.

List ranking against N, and a round of messages of s words against s. Every size is a process of its own with a limit on its
memory (``--limit`` GiB). It lays the network out without its large matrices (``SelectionNetwork``), which tells exactly how
many numbers the dense Transformer holds; builds that Transformer if it fits; and compares both with the direct answer. A row
says ``built`` or ``counted``. Seconds are those of the processor, so that other work on the machine does not count.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from posattn import UsageError
from posattn.compiler import PROGRAMS, Known, compile_program
from posattn.compiler.expressions import Array
from posattn.compiler.mpc import MPC, Message
from posattn.compiler.mpc import run as run_mpc
from posattn.compiler.mpc_to_pcoc import layout
from posattn.compiler.selection import SelectionNetwork

GIB = 2**30
SIZES = {"exchange": (1, 2, 4, 8, 16, 32, 64), "list-ranking": (4, 8, 16, 32, 64)}
_MACHINES = 8  # of exchange


def exchange(words: int) -> MPC:
    """One round in which every machine sends ``words`` words where its input says."""

    def send(machine):  # type: ignore[no-untyped-def]
        return [Message(machine.inbox[0].words[0], (machine.me,) * words)]

    inputs = (Known(0, _MACHINES - 1, True),)
    return MPC(_MACHINES, words, words, inputs, (send,), lambda machine: list(machine.inbox[0].words), "exchange")


def program(name: str, size: int) -> tuple[MPC, Array, Array]:
    """The program, two inputs, and their answers."""
    random = np.random.default_rng(0)
    if name == "exchange":
        x = np.stack([random.permutation(_MACHINES) for _ in range(2)])[..., None].astype(float)
        return exchange(size), x, run_mpc(exchange(size), x)
    row = PROGRAMS[name]
    x = row.sample(random, 2, size, 1e6)
    written = row.build(size, 1e6, "theorem")
    assert isinstance(written, MPC)
    return written, x, row.answers(x)


def measure(name: str, size: int) -> dict[str, object]:
    written, x, truth = program(name, size)
    plan, start = layout(written), time.process_time()
    small = compile_program(written, sparse=True).model
    assert isinstance(small, SelectionNetwork)
    laid_out, count = time.process_time() - start, small.config.dense.least_numbers
    found = small(torch.from_numpy(x[..., 0])).numpy().reshape(truth.shape)
    row = {
        "program": name, "N": written.machines, "s": written.memory, "rounds of MPC": len(written.rounds),
        "layers": small.config.layers, "heads": small.config.heads, "padding of words": plan.factor,
        "parameters": count, "GiB": count * 8 / GIB, "not 0, distinct": small.stored, "laid out, s": laid_out,
        "error without matrices": float(np.abs(found - truth).max()), "dense": "counted",
    }  # fmt: skip
    try:
        start = time.process_time()
        dense = compile_program(written)
        row |= {"dense": "built", "compiled, s": time.process_time() - start}
        start = time.process_time()
        row |= {"error": float(np.abs(dense.run(x) - truth).max()), "run, s": time.process_time() - start}
    except UsageError:
        pass  # it would not fit
    return row | {"peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}


def in_a_process(name: str, size: int, limit: float, patience: float) -> dict[str, object] | None:
    command = [sys.executable, __file__, "--one", f"{name}:{size}", "--limit", str(limit)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None  # type: ignore[no-any-return]


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for sizes.csv")
    parser.add_argument("--limit", type=float, default=10.0, help="GiB of memory that a size may take")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds that a size may take")
    parser.add_argument("--most", type=int, default=16, help="largest N or s")
    parser.add_argument("--one", help="NAME:SIZE, in this process")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        resource.setrlimit(resource.RLIMIT_AS, (int(given.limit * GIB),) * 2)
        name, size = given.one.split(":")
        print(json.dumps(measure(name, int(size))))
        return
    rows = []
    for name, sizes in SIZES.items():
        for size in (own for own in sizes if own <= given.most):
            row = in_a_process(name, size, given.limit, given.patience)
            if row is None:
                print(f"{name} of {size}: ended by time or memory", flush=True)
                break
            rows.append(row)
            print(", ".join(f"{key} {_text(value)}" for key, value in row.items()), flush=True)
            if given.out is not None:
                given.out.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(rows).to_csv(given.out / "sizes.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
