"""Speed and memory of ``PositionalAttention`` beside self-attention, forward and backward of the whole layer.

    python benchmarks/layer.py             on one GPU about two minutes, and the CPU; without a GPU the CPU alone, a minute
    python benchmarks/layer.py check       compares the kernels with float64 on a GPU
    python benchmarks/layer.py tune        times tilings of the kernels
    python benchmarks/layer.py profile     times the kernels of a step
    python benchmarks/layer.py speed --out FOLDER    writes what was measured to FOLDER/layer.json, too

Each layer has the projections of its kind: self-attention one for queries, keys and values and one for the output. On a GPU
weights and input are bfloat16 and a replay of a CUDA graph is timed, so that launches do not decide.
``scaled_dot_product_attention`` runs with each of its backends, of which the fastest counts. FlexAttention comes last, since
its compiler can fail in many ways. A part that fails is reported, and the others go on; the file is written after every row.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _parts import leave, reported
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import posattn

HEADS = 8
GPU = ((128, 64, 256), (512, 64, 512), (2048, 32, 512), (8192, 8, 512))  # n, batch, width
CPU = (512, 8, 256)
LOOPED = ((64, 64, 128), (512, 8, 256))  # for ``LoopedAttention``, on one CPU core
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


class SelfAttention(nn.Module):
    """Causal self-attention by a function of queries, keys and values (batch, heads, n, e)."""

    def __init__(self, d: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.inward, self.outward, self.attend = nn.Linear(d, 3 * d), nn.Linear(d, d), attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inward(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.outward(self.attend(q, k, v).transpose(1, 2).flatten(2))


def by_backend(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def by_flex(n: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def positional(n: int, d: int) -> nn.Module:
    return posattn.PositionalAttention(n, d, HEADS, causal=True)


def step_of(layer: nn.Module, x: Tensor, dy: Tensor) -> Callable[[], object]:
    """Forward and backward: the gradients of the input and of all parameters."""
    wanted = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), wanted, dy)


# --- on a GPU ----------------------------------------------------------------------------------------------------------------


def replayed(step: Callable[[], object], seconds: float = 0.3) -> float:
    """Seconds of a step in a CUDA graph, the median of replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times, spent = [], 0.0
    while spent < seconds or len(times) < 10:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(5):
            graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 5e3)
        spent += 5 * times[-1]
    return statistics.median(times)


def peak(step: Callable[[], object]) -> float:
    """GiB that a step has in use at most, the layer and its input included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def measured(layer: nn.Module, n: int, batch: int, d: int) -> dict[str, float]:
    torch.manual_seed(0)
    layer = layer.cuda().bfloat16()
    x = torch.randn(batch, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    step = step_of(layer, x, torch.randn_like(x))
    step()
    return {"GiB": peak(step), "ms": 1e3 * replayed(step)}


def gpu_rows(flexible: bool, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """``keep`` gets all rows so far."""
    rows: list[dict[str, Any]] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, causal, {HEADS} heads")
    header, nothing = ("ours ms", "SDPA ms", "ratio", "GiB", "SDPA"), {"ms": math.nan, "GiB": math.nan}
    print(f"{'n, batch, width':20}" + "".join(f"{name:>9}" for name in header))
    for n, batch, d in GPU:
        torch.cuda.empty_cache()
        found: dict[str, dict[str, float]] = {}
        with reported("ours"):
            found["ours"] = measured(positional(n, d), n, batch, d)
        for backend in BACKENDS:
            with reported(backend.name, needed=False):  # a card may lack it
                found[backend.name] = measured(SelfAttention(d, by_backend(backend)), n, batch, d)
        best = min(found.keys() - {"ours"}, key=lambda name: found[name]["ms"], default="none")
        ours, theirs = found.get("ours", nothing), found.get(best, nothing)
        ratio = theirs["ms"] / ours["ms"]
        rows.append({"n": n, "batch": batch, "d": d, "ratio": ratio, "best": best, **found})
        keep(rows)
        shown = (ours["ms"], theirs["ms"], ratio, ours["GiB"], theirs["GiB"])
        print(f"{f'{n}, {batch}, {d}':20}" + "".join(f"{each:9.3f}" for each in shown) + f"  {best}", flush=True)
    for row, (n, batch, d) in zip(rows, GPU, strict=True) if flexible else ():
        with reported(f"FlexAttention, {n}, {batch}, {d}"):
            row["flex"] = flex = measured(SelfAttention(d, by_flex(n)), n, batch, d)
            keep(rows)
            ratio = flex["ms"] / row.get("ours", nothing)["ms"]
            shown = f"{flex['ms']:.3f} ms, {ratio:.3f} times ours, {flex['GiB']:.3f} GiB"
            print(f"{f'{n}, {batch}, {d}':20} FlexAttention {shown}", flush=True)


def error_of(found: Tensor, exact: Tensor) -> float:
    error = (found.detach().double() - exact.detach()).norm() / exact.detach().norm().clamp_min(1e-30)
    return float(error.nan_to_num(math.inf, math.inf))  # no comparison sees a nan


BF, HALF = torch.bfloat16, torch.float16
CHECKED = (  # n, batch, width, heads, causal, padded, dtype
    (512, 64, 512, 8, True, False, BF),
    (128, 16, 256, 8, True, True, BF),
    (640, 1, 128, 2, False, True, BF),
    (640, 1, 128, 2, True, False, HALF),
    (1000, 3, 96, 4, True, True, BF),
    (333, 2, 64, 2, False, False, HALF),
    (77, 5, 48, 2, False, True, BF),
    (1, 3, 32, 2, True, False, BF),
)  # fmt: skip


def check(index: int) -> None:
    """Relative errors of the kernels against float64, beside those of the plain path in the same precision.

    Fails where they are above 5% and above twice those of the plain path.
    """
    from posattn.layers import products

    n, batch, d, heads, causal, padded, dtype = CHECKED[index]
    torch.manual_seed(n)
    layer = posattn.PositionalAttention(n, d, heads, causal=causal).cuda()
    with torch.no_grad():
        for linear in (layer.attention.W_Q, layer.attention.W_K):
            linear.weight.normal_(std=1.5)
    layer = layer.to(dtype)
    x = torch.randn(batch, n, d, device="cuda", dtype=dtype)
    dy, mask = torch.randn_like(x), None
    if padded:
        mask = torch.arange(n, device="cuda") >= torch.randint(1, n + 1, (batch, 1), device="cuda")
    served, results = products.served, {}
    for kind in ("exact", "plain", "ours"):
        one = posattn.PositionalAttention(n, d, heads, causal=causal).cuda()
        one.load_state_dict(layer.state_dict())
        wide = torch.float64 if kind == "exact" else dtype
        one, given = one.to(wide), x.to(wide).requires_grad_()
        products.served = served if kind == "ours" else lambda q, v: False
        y = one(given, mask)
        results[kind] = [y, *torch.autograd.grad(y, [given, *one.parameters()], dy.to(wide))]
    exact = results["exact"]
    names = ["y", "x", *(name for name, _ in layer.named_parameters())]
    # The gradient of a key's bias is zero but for rounding: softmax does not change if all logits of a row do.
    counted = [i for i, name in enumerate(names) if i and not name.endswith("W_K.bias") and exact[i].norm() > 1e-9]
    sides = (results["ours"], results["plain"])
    errors = [error_of(side[0], exact[0]) for side in sides]
    slopes = [max((error_of(side[i], exact[i]), names[i]) for i in counted) for side in sides]
    what = f"{n}, {batch}, {d}, {heads}, {'causal' if causal else ''} {'padded' if padded else ''} {str(dtype)[6:]}"
    shown = f"{errors[0]:10.1e}{errors[1]:10.1e}{slopes[0][0]:11.1e}{slopes[1][0]:10.1e}  {slopes[0][1]}"
    print(f"{what:46}{shown}", flush=True)
    for ours, theirs in (errors, [slope[0] for slope in slopes]):
        if not ours <= max(0.05, 2 * theirs):
            sys.exit(f"{what}: the kernels are wrong")


TRIED = {
    "weigh": ((64, 64, 0, 4, 2), (64, 128, 0, 4, 2), (128, 64, 0, 8, 2), (32, 128, 0, 4, 2)),
    "mix": (
        (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 4, 4),
        (64, 256, 64, 4, 3), (64, 128, 64, 4, 4), (128, 256, 32, 8, 4), (64, 64, 64, 4, 4), (128, 128, 128, 8, 2),
        (64, 512, 64, 8, 2), (64, 512, 64, 8, 3), (128, 256, 128, 8, 2), (64, 256, 64, 4, 4), (64, 256, 128, 4, 2),
    ),
    "slope": (
        (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 128, 64, 4, 4), (128, 256, 64, 8, 3),
        (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (128, 128, 128, 8, 2), (32, 64, 128, 4, 3), (64, 64, 128, 4, 3),
        (32, 64, 64, 4, 4), (32, 128, 128, 4, 3), (64, 128, 128, 4, 3),
    ),
    "narrow": (
        (64, 64, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 128, 4, 3), (32, 64, 128, 4, 3), (128, 64, 128, 8, 3),
        (16, 64, 128, 4, 4), (32, 64, 128, 4, 4),
    ),
}  # fmt: skip


def tune(index: int, warm: tuple[int, int] | None = None) -> dict[str, list[tuple[float, str]]]:
    """Milliseconds of the kernels by tiling, in a row of the benchmark; ``warm`` only compiles a part of them."""
    from posattn.kernels import mixing

    n, batch, d = GPU[index]
    e = d // HEADS
    q, k = (torch.randn(HEADS, e, n, device="cuda", dtype=torch.bfloat16).mT for _ in range(2))
    v, dy = torch.randn(2, batch, n, HEADS, e, device="cuda", dtype=torch.bfloat16)
    sums = torch.randn(HEADS, n, device="cuda")
    one, d_sum = mixing._Batch(q, k, sums, True), torch.randn_like(sums)
    stores, out = mixing._stores(v), torch.empty_like(v)
    a = one.rows(n if stores else mixing._rows(v)).normal_()
    first = n - a.shape[1]
    keys, narrow = k.transpose(0, 1)[None], torch.empty_like(k).transpose(0, 1)[None]

    def narrowed(transposed: bool) -> None:
        one.mix(a, keys, narrow, transposed, first, tiling=mixing.TILINGS["narrow"])

    jobs: dict[str, tuple[str, Callable[[], None]]] = {
        "weigh both": ("weigh", lambda: one.weigh(a if stores else None, True)),
        "narrow": ("narrow", lambda: narrowed(False)),
        "narrow transposed": ("narrow", lambda: narrowed(True)),
    }
    if stores:
        jobs["weigh store"] = ("weigh", lambda: one.weigh(a, False))
        jobs["mix stored"] = ("mix", lambda: one.mix(a, v, out))
        jobs["mix stored transposed"] = ("mix", lambda: one.mix(a, v, out, True))
        jobs["slope stored"] = (
            "slope" if n > mixing.SMALL else "slope small",
            lambda: one.slope(a, 0, True, dy, v, d_sum),
        )
    if n >= 2048:
        jobs["mix made"] = ("mix", lambda: one.mix(None, v, out))
        jobs["mix made transposed"] = ("mix", lambda: one.mix(None, v, out, True))
        jobs["slope made"] = ("slope made", lambda: one.slope(a, first, False, dy, v, d_sum))
    found: dict[str, list[tuple[float, str]]] = {job: [] for job in jobs}
    tries = [(job, kernel, call, tried) for job, (kernel, call) in jobs.items() for tried in TRIED[kernel.split()[0]]]
    for job, kernel, call, tried in tries if warm is None else tries[warm[0] :: warm[1]]:
        chosen, mixing.TILINGS[kernel] = mixing.TILINGS[kernel], mixing.Tiling(*tried)
        try:
            call()
            found[job].append((1e3 * replayed(call, 0.02) if warm is None else 0.0, str(tried)))
        except Exception as error:  # too much shared memory, say
            found[job].append((math.inf, f"{tried} {type(error).__name__} {str(error)[:60]}"))
        mixing.TILINGS[kernel] = chosen
    if warm is None:
        for job, times in found.items():
            times.sort()
            print(f"{n:5} {job:22}" + "  ".join(f"{t:.4f} {name}" for t, name in times[:5]), flush=True)
            failed = [name for t, name in times if t == math.inf]
            if failed:
                print("      failed:", "; ".join(failed))
    return found


def profiled(index: int) -> None:
    """The kernels of a step of ours that take most time."""
    from torch.profiler import ProfilerActivity, profile

    n, batch, d = GPU[index]
    layer = positional(n, d).cuda().bfloat16()
    x = torch.randn(batch, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    step = step_of(layer, x, torch.randn_like(x))
    step(), step()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    rows = sorted(recorded.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / 5
    print(f"{n}, {batch}, {d}: {total:.0f} µs in {sum(row.count for row in rows) / 5:.0f} kernels")
    for row in rows[:16]:
        print(f"    {row.self_device_time_total / 5:8.1f} µs {row.count / 5:4.0f} x {row.key[:90]}", flush=True)


def in_parallel(jobs: list[list[str]]) -> None:
    """Each job in a process of its own, so that they compile at the same time."""
    started = [subprocess.Popen([sys.executable, __file__, *map(str, job)]) for job in jobs]
    for process in started:
        with reported("a process"):
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)


# --- on a CPU ----------------------------------------------------------------------------------------------------------------


def cpu_row(layer: nn.Module, n: int, batch: int, d: int, threads: int) -> dict[str, object]:
    """Both in turns, so that what else the machine does hits both; the medians count."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x = torch.randn(batch, n, d, requires_grad=True)
    theirs = SelfAttention(d, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    steps = [step_of(each, x, torch.randn_like(x)) for each in (layer, theirs)]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(33):
        for step, own in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            own.append(1e3 * (time.perf_counter() - start))
    ours_ms, sdpa_ms = (statistics.median(own[3:]) for own in times)
    name, ratio = type(layer).__name__, sdpa_ms / ours_ms
    print(f"CPU, threads {threads}, float32, causal, {HEADS} heads: n = {n}, batch {batch}, width {d}")
    print(f"{name} {ours_ms:.1f} ms, SDPA {sdpa_ms:.1f} ms, ratio {ratio:.2f}", flush=True)
    return {
        "layer": name, "threads": threads, "n": n, "batch": batch, "d": d, "ours ms": ours_ms, "SDPA ms": sdpa_ms,
        "ratio": ratio,
    }  # fmt: skip


def cpu_rows() -> list[dict[str, object]]:
    rows = [cpu_row(positional(CPU[0], CPU[2]), *CPU, threads=2)]
    for n, batch, d in LOOPED:
        rows.append(cpu_row(posattn.LoopedAttention(d, HEADS, causal=True), n, batch, d, threads=1))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["speed"], help="speed, check, tune, profile")
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention out, which compiles for a minute")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=int, help="a row of the benchmark or of the checks")
    parser.add_argument("--warm", type=int, nargs=2, help="which part to compile, of how many")
    asked = parser.parse_args()
    gpu = torch.cuda.is_available()
    result: dict[str, object] = {"torch": torch.__version__, "gpu name": torch.cuda.get_device_name() if gpu else None}
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)

    def keep(name: str, value: object) -> None:
        result[name] = value
        if asked.out:
            (asked.out / "layer.json").write_text(json.dumps(result, indent=1) + "\n")

    if asked.only is not None:
        if "check" in asked.what:
            check(asked.only)
        if "tune" in asked.what:
            tune(asked.only, asked.warm)
        sys.exit()
    if not gpu:
        print("There is no GPU that PyTorch can use: only the CPU is measured.")
    if "check" in asked.what and gpu:
        print(f"{'n, batch, width, heads':46}{'output':>10}{'plain':>10}{'gradients':>11}{'plain':>10}")
        in_parallel([["check", "--only", index] for index in range(len(CHECKED))])
    if "speed" in asked.what:
        if gpu:
            gpu_rows(not asked.no_flex, lambda rows: keep("gpu", rows))
        keep("cpu", cpu_rows())
    if "profile" in asked.what and gpu:
        for index in range(len(GPU)):
            with reported(f"the profile of {GPU[index]}"):
                profiled(index)
    if "tune" in asked.what and gpu:
        in_parallel([["tune", "--only", index, "--warm", part, 6] for index in (0, 2) for part in range(6)])
        tuned = []
        for index in range(len(GPU)):
            with reported(f"tilings for {GPU[index]}"):
                tuned.append(tune(index))
                keep("tune", tuned)
    leave()
