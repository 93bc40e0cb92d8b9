"""Size and speed of all compiled programs, and growth with machines N beside the theorem's: ``python benchmarks/compiler.py``.

Growth is that of prefix sum and bitonic sort, whose communication is fixed, and of list ranking on the theorem's route. Each
is compiled as a Transformer with dense weights, and as the same network without its large matrices (``SelectionNetwork``),
which is also run on random input and compared with the direct answer. ``--all`` goes to the sizes where memory or patience
end (20 minutes). ``--sparse`` only compares the two forms of six programs at N = 8 and 32.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from posattn import files
from posattn.compiler import PCOC, PROGRAMS, Program, compile_program
from posattn.compiler.library import program
from posattn.compiler.mpc import MPC
from posattn.compiler.mpc_to_pcoc import layout
from posattn.compiler.selection import SelectionNetwork
from posattn.names import ROUTES

BOUND = 1e6
GIB = 2**30
ROUTE = {"list-ranking": "theorem"}


def measure(written: PCOC | MPC, build: bool) -> dict[str, float]:
    """Seconds and sizes of one program; the dense network is built only if asked for."""
    start = time.perf_counter()
    small = compile_program(written, sparse=True).model
    assert isinstance(small, SelectionNetwork)
    row = {"layers": small.config.layers, "heads": small.config.heads, "small": time.perf_counter() - start}
    row |= {"parameters": small.config.dense.least_numbers, "stored": small.stored, "seconds": math.nan}
    if build:
        start = time.perf_counter()
        model = compile_program(written).model
        row["seconds"] = time.perf_counter() - start
        assert sum(p.numel() for p in model.parameters()) == row["parameters"]
    return row


def error(name: str, machines: int) -> float:
    """The largest difference from the direct answer, relative to the largest answer."""
    row = PROGRAMS[name]
    network = compile_program(name, machines, bound=BOUND, route=ROUTE.get(name, ROUTES[0]), sparse=True).model
    x = row.sample(np.random.default_rng(0), 2, machines, BOUND)
    truth = row.answers(x)[..., 0]
    found = network(torch.from_numpy(x if x.shape[-1] > 1 else x[..., 0])).numpy()
    return float(np.abs(found - truth).max() / max(1.0, np.abs(truth).max()))


def against_machines(name: str, sizes: list[int], dense_up_to: int, law: str, growth: Callable[[int], float]) -> None:
    print(f"\n{name}: parameters grow as {law}")
    head = (
        "N",
        "layers",
        "heads",
        "parameters",
        "growth",
        "theorem",
        "GiB",
        "compile s",
        "stored",
        "compile s",
        "error",
    )
    print("".join(f"{title:>13}" for title in head))
    before: tuple[int, float] | None = None
    for n in sizes:
        row = measure(PROGRAMS[name].build(n, BOUND, ROUTE.get(name, ROUTES[0])), n <= dense_up_to)
        ratio = "" if before is None else f"{row['parameters'] / before[1]:.2f}"
        predicted = "" if before is None else f"{growth(n) / growth(before[0]):.2f}"
        cells = [
            str(n), f"{row['layers']}", f"{row['heads']}", f"{row['parameters']:.3g}", ratio, predicted,
            f"{row['parameters'] * 8 / GIB:.3g}", f"{row['seconds']:.2f}", f"{row['stored']:.3g}", f"{row['small']:.2f}",
            f"{error(name, n):.1e}",
        ]  # fmt: skip
        print("".join(f"{cell:>13}" for cell in cells), flush=True)
        before = (n, row["parameters"])


def every_program() -> None:
    """The programs of the library and of docs/examples on 8 machines, as they are compiled by default.

    Times are of one core's processor, so that other work on the machine does not count.
    """
    torch.set_num_threads(1)
    print("\nby default, 8 machines (life: 9, self-attention: 4 tokens, mixed: 23)")
    head = ("layers", "heads", "parameters", "not 0", "compile s", "ms an input")
    print(f"{'program':>24}" + "".join(f"{title:>13}" for title in head))
    examples = files.execute(Path(__file__).parents[1] / "docs" / "examples" / "programs.py", "examples")
    for row in (*PROGRAMS.values(), *(each for each in examples.values() if isinstance(each, Program))):
        n = {"life": 9, "self-attention": 4, "mixed": 23}.get(row.name, 8)
        start = time.process_time()
        compiled = compile_program(row, n)
        seconds = time.process_time() - start
        x = row.sample(np.random.default_rng(0), 21, n, BOUND)
        compiled.run(x[0])
        start = time.process_time()
        for one in x[1:]:
            compiled.run(one)
        each = (time.process_time() - start) / 20
        held = [(p.numel(), int(p.count_nonzero())) for p in compiled.model.parameters()]
        config = compiled.model.config
        cells = [f"{config.layers}", f"{config.heads}", f"{sum(a for a, _ in held):,}", f"{sum(b for _, b in held):,}"]
        cells += [f"{seconds:.2f}", f"{1000 * each:.1f}"]
        print(f"{row.name:>24}" + "".join(f"{cell:>13}" for cell in cells), flush=True)


def thousand() -> None:
    """Prefix sums of 1024 integers, compiled and run dense."""
    start = time.perf_counter()
    model = compile_program("prefix-sum", 1024).model
    compiled = time.perf_counter() - start
    x = torch.from_numpy(np.random.default_rng(0).integers(-1000, 1000, (4, 1024)).astype(float))
    start = time.perf_counter()
    exact = bool((model(x) == x.cumsum(dim=-1)).all())
    print(f"prefix sum of 1024 integers: compiled in {compiled:.1f} s, run in {time.perf_counter() - start:.1f} s, "
          f"{'exact' if exact else 'NOT exact'}")  # fmt: skip


EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
SIX = (
    "prefix-sum", "bitonic-sort", "list-ranking", "word-count",
    f"{EXAMPLES}/programs.py:rank_sort", f"{EXAMPLES}/programs.py:bfs",
)  # fmt: skip


def both_forms(machines: int, lists: int = 100, repeats: int = 5) -> None:
    """Numbers, bytes in a folder, and seconds of the dense and the sparse network: to compile, for a list, and for many.

    Of ``repeats`` times the fastest is taken; the two forms take turns.
    """
    print(f"\ndense and sparse, {machines} machines; times in ms, those of {lists} lists per list")
    forms, columns = ("dense", "sparse"), ("numbers", "MB", "compile", "one list", "many")
    heads = [f"{form} {column}" for column in columns for form in forms]
    print(f"{'program':>14}" + "".join(f"{head:>16}" for head in heads) + f"{'difference':>12}")
    for name in SIX:
        row, models = program(name), {}
        found: dict[tuple[str, str], float] = {}
        drawn = row.sample(np.random.default_rng(0), lists, machines, BOUND)
        x = torch.from_numpy(drawn if drawn.shape[-1] > 1 else drawn[..., 0])
        for form in forms:
            start = time.perf_counter()
            model = compile_program(row, machines, bound=BOUND, sparse=form == "sparse").model
            found["compile", form] = 1e3 * (time.perf_counter() - start)
            tensors = {key: value for key, value in model.tensors().items() if value.count_nonzero()}
            found["numbers", form] = sum(value.numel() for value in tensors.values())
            found["MB", form] = len(files.packed(tensors)) / 1e6
            models[form] = model
        for column, given, count in (("one list", x[0], 1), ("many", x, lists)):
            for _ in range(repeats):
                for form, model in models.items():
                    start = time.perf_counter()
                    model(given)
                    took = 1e3 * (time.perf_counter() - start) / count
                    found[column, form] = min(took, found.get((column, form), math.inf))
        difference = (models["dense"](x) - models["sparse"](x)).abs().max().item()
        cells = [f"{found[column, form]:,.4g}" for column in columns for form in forms]
        print(f"{row.name:>14}" + "".join(f"{cell:>16}" for cell in cells) + f"{difference:>12.1e}", flush=True)


def log(n: int) -> float:
    return max(1.0, math.ceil(math.log2(n)))


def routed(n: int) -> float:
    """(2k - 1) R + 1 layers, each with a sorting network of log² levels on 2S tuples."""
    plan = layout(PROGRAMS["list-ranking"].build(n, BOUND, "theorem"))  # type: ignore[arg-type]
    layers = (2 * plan.network.k - 1) * len(plan.program.rounds) + 1
    return layers * plan.tuples**2 * log(2 * plan.tuples) * (log(2 * plan.tuples) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="go on to the largest sizes")
    parser.add_argument("--sparse", action="store_true", help="compare dense and sparse networks only")
    given = parser.parse_args()
    if given.sparse:
        for machines in (8, 32):
            both_forms(machines)
        return
    everything = given.all
    every_program()
    thousand()
    static = [16, 64, 256, 1024]
    against_machines(
        "prefix-sum", [*static, 4096, 16384] if everything else static, 1024, "N² log N", lambda n: n**2 * (log(n) + 1)
    )
    against_machines(
        "bitonic-sort", [*static, 4096] if everything else static, 1024 if everything else 256,
        "N² log² N", lambda n: n**2 * (log(n) * (log(n) + 1) / 2 + 1),
    )  # fmt: skip
    against_machines(
        "list-ranking", [4, 8, 16, 32, 64] if everything else [4, 8, 16], 16,
        "R log N MLPs, each of log² S levels of S² weights; S = s N/2, R = 2 log N",
        routed,
    )  # fmt: skip


if __name__ == "__main__":
    main()
