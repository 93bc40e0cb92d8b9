"""GPU speed of ensemble training, as ratios to the plain eager loop of one model in the same run, and a check of the kernels.

    python benchmarks/gpu.py                        a few minutes on one GPU
    python benchmarks/gpu.py --check                only compare the kernels with autograd in float64
    python benchmarks/gpu.py --check --device cpu   the same of few lists in Triton's interpreter, without a GPU
    python benchmarks/gpu.py --check --only khop    only of networks with this in their name
    python benchmarks/gpu.py --tokens               only time networks of k-hop and mixed-type prompts, and their kernels

Setting: n = 8, batch 1000, four layers, width 64, two heads, the paper's recipe. A member's step is an epoch's time divided by
its steps and members, data, shuffle, optimiser and schedule included. A row that fails, or whose gradients are off by more
than they may, is reported; the others go on, and the exit code is 1. Without a GPU it says so and stops.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
import time
from typing import Any
from unittest.mock import patch

if any(each in ("cpu", "--device=cpu") for each in sys.argv):
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which parts of PyTorch do
import torch
from _parts import leave, reported
from cpu import Plain  # the same plain loop
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import posattn
from posattn.folding import Fold, Tensors, fold, folded_forward, input_encoding, stack_layers
from posattn.model import ModelConfig, Transformer, input_features, positions_of
from posattn.training import Member, network_for, ways
from posattn.training.cuda import CudaTrainer
from posattn.training.parameters import Parameters
from posattn.training.recipe import recipe
from posattn.training.trainer import Trainer
from posattn.training.ways import Precision
from posattn.training.workers import Workers

BATCH, STEPS, N, W, LAYERS = 1000, 30, 9, 64, 4
REQUIRED = {  # microseconds of a member's step: required and goal, by architecture and members
    ("positional", 50): (20.0, 12.0),
    ("standard", 50): (50.0, 35.0),
    ("positional", 15): (500 / 15, 300 / 15),
    ("positional", 5): (300 / 5, 160 / 5),
    ("positional", 1): (250.0, 120.0),
}
CASES = (("fp16", 50), ("fp16", 100), ("tf32", 50), ("fp32", 50), ("fp16", 15), ("fp16", 5), ("fp16", 1))


# How far the loss, a gradient as a whole and its worst tensor may be off, as parts of their norms: a few times what they are.
# In tf32 and fp16 a gradient on an H200 is off by 1e-4 to 3e-4, and by up to 8e-3 where queries and keys stay apart. On the
# few lists of the interpreter it is off by up to 6e-3, for a unit that turns on or off counts for more; its worst tensors,
# whose sums cancel, by up to 7e-2. In fp32 all is off by 1e-6. A gradient that lacks a tile is off by more than a tenth.
_SHORT = (1e-3, 2.5e-2, 2e-1)
BOUNDS = {"fp32": (1e-5, 1e-4, 1e-3), "tf32": _SHORT, "fp16": _SHORT}
MEMBERS, PROGRAMS = 3, 6  # two programs of a member take several tiles each, as in training
LISTS = {  # networks of lists of eight numbers
    **{arch: {"arch": arch} for arch in posattn.ARCHITECTURES},
    **{
        f"{arch}, width {width}": {"arch": arch, "width": width}
        for arch in ("positional", "standard")
        for width in (32, 16)
    },
    **{f"{arch}, no bias": {"arch": arch, "bias": False} for arch in ("positional", "standard", "rope-only")},
    **{f"{arch}, causal": {"arch": arch, "causal": True} for arch in ("standard", "standard-rope")},
}
SEQUENCES = (  # networks of tokens: letters, which are causal; prompts that share tiles, and those that fill a tile each
    *(("khop", {"arch": arch}) for arch in ("positional", "standard", "rope-only")),
    *(("khop", {"arch": arch, "tied": True}) for arch in ("positional", "standard")),
    *(("mixed-min", {"arch": arch, "layout": "elements"}) for arch in ("positional", "standard")),
    *(("mixed-min", {"arch": arch, "layout": "characters"}) for arch in ("positional", "standard", "misaligned")),
    *(("mixed-min", {"arch": arch, "layout": "characters", "bias": False}) for arch in ("positional", "standard")),
    ("mixed-min", {"arch": "standard", "layout": "characters", "causal": True}),
)


def named_after(name: str, settings: dict[str, Any]) -> str:
    return ", ".join(str(value) for value in (name, *settings.values()))


def names() -> list[str]:
    """What ``--only`` chooses from."""
    return ["optimiser", *LISTS, *(named_after(*sequence) for sequence in SEQUENCES)]


def check(device: torch.device, count: int = 100, only: str = "") -> None:
    """Relative errors of the kernels' loss and gradients against autograd in float64. A part that exceeds its bounds fails."""
    from posattn.kernels.shapes import folds_rows, serves

    print(f"{'kernels against float64 autograd':56}{'loss':>12}{'gradient':>12}{'worst tensor':>14}")
    if only in "optimiser":
        with reported("optimiser"):
            check_optimiser(device)
    with patch("posattn.kernels.launches.programs", lambda at_once: PROGRAMS):
        for what, settings in LISTS.items():
            if only not in what:
                continue
            config = ModelConfig(8, **{"layers": 3} | settings)
            named = {name: value.to(device).double() for name, value in lively(config).items()}
            p = Transformer(config).P.to(device).double()
            if folds_rows(config) and serves(config, "fp16"):
                with reported(f"{what}, fold"):
                    check_fold(what, config, Parameters.of(config, named), p)
            for precision in (each for each in BOUNDS if serves(config, each)):
                with reported(f"{what}, {precision}"):
                    check_layers(what, config, named, p, precision, count)
        for name, settings in SEQUENCES:
            what = named_after(name, settings)
            if only not in what:
                continue
            config = network_for(name, **{"layers": 3} | settings)
            if folds_rows(config) and serves(config, "fp16"):
                with reported(f"{what}, fold"):
                    p = config.build().P[positions_of(config.n, config)].to(device)
                    check_fold(what, config, scattered(config, device), p.double())
            for precision in (each for each in BOUNDS if serves(config, each)):
                with reported(f"{what}, {precision}"):
                    check_step(what, name, config, precision, device, count)


def line(what: str, *errors: float, bounds: tuple[float, ...]) -> None:
    print(f"{what:56}" + "".join(f"{error:12.1e}" for error in errors), flush=True)
    if not all(error <= bound for error, bound in zip(errors, bounds, strict=True)):  # also if one is no number
        allowed = ", ".join(f"{bound:.0e}" for bound in bounds)
        raise ArithmeticError(f"off by {', '.join(f'{error:.1e}' for error in errors)}; at most {allowed} is right")


def compare(what: str, precision: str, losses: tuple[Tensor, Tensor], found: Tensors, exact: Tensors) -> None:
    """Prints how far the kernels' loss, gradient and the worst tensor of the gradient are off, and raises if too far."""
    loss, wanted = losses[0].double(), losses[1].detach()
    differences = [found[name].double() - value for name, value in exact.items()]
    whole = (
        torch.stack([value.norm() for value in differences]).norm()
        / torch.stack([v.norm() for v in exact.values()]).norm()
    )
    worst = max(error_of(found[name], value) for name, value in exact.items())
    line(
        f"{what}, {precision}",
        float(((loss - wanted) / wanted).abs().max()),
        float(whole),
        worst,
        bounds=BOUNDS[precision],
    )


def error_of(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-12))


def counted(config: ModelConfig, rows: Tensor) -> Tensors:
    """The gradients of parameters by name. Unless keys are turned, that of their bias is zero but for rounding."""
    named = Parameters(config, rows).named()
    return {name: value for name, value in named.items() if config.design.rotary or not name.endswith("W_K.bias")}


def lively(config: ModelConfig) -> Tensors:
    """Random networks whose biases are not zero, and whose attention is far from even."""
    torch.manual_seed(0)
    models, named = [Transformer(config) for _ in range(MEMBERS)], {}
    for name, first in models[0].named_parameters():
        values = torch.stack([model.get_parameter(name).detach() for model in models])
        values = torch.randn_like(values) * 0.3 if first.ndim == 1 else values
        named[name] = values * (3 if "W_Q" in name or "W_K" in name else 1)
    return named


def scattered(config: ModelConfig, device: torch.device) -> Parameters:
    """Random networks whose biases are not zero."""
    parameters = Parameters.initial(config, range(MEMBERS), device)
    generator = torch.Generator().manual_seed(0)
    parameters.flat += 0.1 * torch.randn(parameters.flat.shape, generator=generator).to(device)
    return parameters


def check_optimiser(device: torch.device) -> None:
    """Two steps of Adam, one of whose members has died and one is clipped: what changes, and both moments."""
    from posattn.kernels.adam import adam

    plan, generator = recipe("tuned", samples=4, batch=2, epochs=3, clip=0.1), torch.Generator().manual_seed(0)
    team, config = [Member("sum", seed, 1e-3 * (seed + 1)) for seed in range(MEMBERS)], ModelConfig(8)
    with Workers(1) as workers:
        exact, ours = (Trainer(config, plan, team, device, workers) for _ in range(2))
    before = exact.parameters.flat.clone()
    exact.alive[1] = ours.alive[1] = False
    for _ in range(2):
        gradient = torch.randn(before.shape, generator=generator).to(device)
        gradient[2] *= 1e-5  # short of the clip
        norm = torch.linalg.vector_norm(gradient, dim=1)
        for each in (exact, ours):
            each.step += 1
        state = (ours.parameters.flat, gradient, ours.first_moment, ours.second_moment)
        schedule = (ours.step, ours.rates, ours.spreads)
        adam(state, (ours.lr, ours.alive, norm), schedule, (plan.beta_1, plan.beta_2), plan.epsilon, plan.clip)
        exact._adam(slice(0, MEMBERS), gradient.clone(), norm)
    line(
        "optimiser: change, moments",
        error_of(ours.parameters.flat - before, exact.parameters.flat - before),
        error_of(ours.first_moment, exact.first_moment),
        error_of(ours.second_moment, exact.second_moment),
        bounds=(1e-4, 1e-5, 1e-5),
    )


def check_fold(what: str, config: ModelConfig, parameters: Parameters, p: Tensor) -> None:
    """The kernels that fold, in place of the loss their folded tensors, and those that carry gradients back."""
    from posattn.kernels.folds import RowsFold

    exact = Parameters(config, parameters.flat.double())
    truth = Fold(exact.by_layer(exact.flat), config, p)
    ours = RowsFold(exact.flat.float(), exact.starts, config, p.float())
    folded = max(error_of(ours.folded[name], value) for name, value in truth.folded.items())
    given = {name: torch.randn_like(value) for name, value in truth.folded.items()}
    back = truth.adjoint(given)
    slopes = Parameters(config, exact.flatten(back, exact.by_layer))
    found, norm = ours.adjoint({name: value.float() for name, value in given.items()})
    ours_back, wanted = counted(config, found), counted(config, slopes.flat)
    back_off = max(error_of(ours_back[name], value) for name, value in wanted.items())
    line(f"{what}, fold", folded, error_of(norm, slopes.flat.norm(dim=1)), back_off, bounds=BOUNDS["fp32"])


def check_layers(what: str, config: ModelConfig, named: Tensors, p: Tensor, precision: str, count: int) -> None:
    from posattn.kernels import fused  # needs Triton, which comes with PyTorch for GPUs

    positions = positions_of(8, config, p.device)
    x = torch.randn(MEMBERS, count, 8, device=p.device, dtype=torch.float64)
    y = x.cumsum(-1)
    leaves = {k: v.detach().requires_grad_() for k, v in fold(stack_layers(named), config, p).items()}
    out = folded_forward(leaves, input_features(x[..., None], p, positions, config), config)
    loss = (out - y).square().mean(dim=(1, 2))
    truth = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
    single = fold(stack_layers({name: value.float() for name, value in named.items()}), config, p.float())
    encoding = input_encoding(p.float(), positions, config)
    ours, gradients = fused.loss_and_gradients(single, x.float(), y.float(), encoding, config, precision)
    compare(what, precision, (ours, loss), gradients, dict(zip(leaves, truth, strict=True)))


def check_step(what: str, name: str, config: ModelConfig, precision: str, device: torch.device, count: int) -> None:
    """The whole step of networks of tokens: what they read, their first and last layers, and what is between."""
    parameters, loss = scattered(config, device), ways.loss_of([name])
    x, y = posattn.task(name).sample(count, n=config.n, seed=list(range(MEMBERS)), device=device)
    members = slice(0, MEMBERS)
    with Precision("fp32", device):  # as in training: the kernels apply theirs
        ours, found, _ = ways.Fused(config, device, loss, precision).step(parameters, members, x, y)
    plain = ways.Plain(config, device, loss)
    plain.skeleton.double()
    prepared = plain.prepare(Parameters(config, parameters.flat.double()), members, config.n)
    if x.is_floating_point():
        x, y = x.double(), y.double()
    exact, gradients = plain.gradient(prepared.tensors, x, y, count)
    compare(what, precision, (ours, exact), counted(config, found), counted(config, prepared.adjoint(gradients)))


# Task, architecture, layers, members, batch, precision and, for prompts, layout.
TOKENS = (
    ("khop", "standard", 4, 3, 1000, "fp16", None),
    ("khop", "positional", 8, 3, 1000, "fp16", None),
    ("mixed-min", "standard", 3, 12, 1000, "fp16", "elements"),
    ("mixed-min", "positional", 3, 12, 1000, "fp16", "elements"),
    *(
        ("mixed-min", arch, 3, 10, 1000, precision, "characters")
        for arch in ("positional", "standard")
        for precision in ("fp16", "tf32")
    ),
)


def tokens() -> None:
    """The step of all members of networks of tokens, and the kernels that take most of it."""
    for name, arch, layers, members, batch, precision, layout in TOKENS:
        what = f"{name}{f' ({layout})' if layout else ''}, {arch}, {layers} layers, {members} members, {precision}"
        with reported(what), Workers(1) as workers:
            config = network_for(name, arch=arch, layers=layers, layout=layout)
            team = [Member(name, seed, 5e-4) for seed in range(members)]
            plan = recipe("paper", samples=10_000, epochs=14, batch=batch)
            own = CudaTrainer(config, plan, team, torch.device("cuda"), workers, precision=precision)
            steps = len(own.batches())
            step = epoch_of(own, plan.epochs - 1) / steps  # one epoch is left for the profiler
            print(f"{what}: {step * 1e3:.2f} ms a step ({step * 1e3 / members:.3f} ms per member)", flush=True)
            rows = sorted(profiled(own), key=lambda row: -row.self_device_time_total)
            print(f"    {sum(row.count for row in rows) / steps:.0f} kernels a step", flush=True)
            for row in rows[:6]:
                print(f"    {row.self_device_time_total / steps:7.1f} µs  {row.key[:80]}", flush=True)


def epoch_of(own: CudaTrainer, count: int) -> float:
    """Seconds of an epoch, the median. The trainer asks for one while the one before is computed, and waits for that."""
    times = [time.perf_counter() for _ in itertools.islice(own.steps(), count)]
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def profiled(own: CudaTrainer) -> list[Any]:
    """The kernels of one epoch."""
    torch.cuda.synchronize()  # what was asked for before does not count
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        own.replay()
        torch.cuda.synchronize()
    return list(recorded.key_averages())


def plain_step(arch: str) -> float:
    """Seconds of one step of one model, eager."""
    model = Plain(arch == "positional").cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)
    x, y = posattn.task("sum").sample(BATCH, device="cuda")
    times = []
    for _ in range(60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[10:])


def vmapped_step(members: int) -> float:
    """Seconds of a step of one of many plain positional models under vmap and torch.compile in bfloat16."""
    models = [Plain(True).cuda() for _ in range(members)]
    named, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    template = models[0]
    x, y = posattn.task("sum").sample(BATCH * members, device="cuda")

    def loss(own: Tensors, kept: Tensors, x: Tensor, y: Tensor) -> Tensor:
        short = {name: value.bfloat16() for name, value in (own | kept).items()}
        return (torch.func.functional_call(template, short, (x.bfloat16(),)).float() - y).square().mean()

    gradients = torch.compile(torch.vmap(torch.func.grad(loss)))
    optimiser = torch.optim.Adam(named.values(), lr=5e-4, fused=True)
    times = []
    for _ in range(25):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with sdpa_kernel(SDPBackend.MATH):
            found = gradients(named, buffers, x.view(members, BATCH, -1), y.view(members, BATCH, -1))
        for name, value in named.items():
            value.grad = found[name]
        optimiser.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:]) / members


def trainer(arch: str, precision: str, members: int, workers: Workers, epochs: int) -> CudaTrainer:
    team = [Member("sum", seed, 5e-4) for seed in range(members)]
    plan = recipe("paper", epochs=epochs)
    return CudaTrainer(ModelConfig(8, arch), plan, team, torch.device("cuda"), workers, precision=precision)


def our_step(arch: str, precision: str, members: int) -> float:
    """Seconds of one step of one member: the median epoch."""
    with Workers(1) as workers:
        return epoch_of(trainer(arch, precision, members, workers, 10), 10) / STEPS / members


def arithmetic(arch: str) -> float:
    """Floating-point operations of one member's folded step, padding and recomputation not counted: three times forward."""
    d_first = 1 if arch == "positional" else 1 + N
    mix = 2 * N * W  # A_h s U_h over a list, two heads
    rows = [3 * d * W + mix + (0 if arch == "positional" else 2 * d * d + 2 * N * d) for d in (d_first, W, W, W)]
    return 3 * 2 * BATCH * N * sum(rows)


def traffic(arch: str, precision: str) -> float:
    """Bytes of states that one member's step reads and writes between kernels, and of numbers for rows of attention.

    The first layer reads lists. A layer back is two passes that each read s and dz, and numbers for rows; one of them writes.
    Positional attention takes the state apart in a third, where products are not of half precision.
    """
    state, norms = BATCH * N * W * (2 if precision == "fp16" else 4), BATCH * N * 2 * 4
    forward = every = 2 * LAYERS - 1
    apart = 2 * (LAYERS - 1) if arch == "positional" and precision != "fp16" else 0
    rows = 0 if arch == "positional" else 3 * LAYERS * norms
    return (forward + 2 * every + LAYERS - 1 + apart) * state + rows


GROUPS = {
    "forward": ("layer_forward",),
    "backward": ("positional_back", "attention_backward"),
    "folding": ("fold_layers", "unfold_layers"),
    "optimiser": ("_adam",),
}


def split(arch: str, members: int) -> None:
    """How the time of a step divides among kernels, and the shuffle's share."""
    with Workers(1) as workers:
        own = trainer(arch, "fp16", members, workers, 3)
        next(own.steps())
        rows = profiled(own)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        own._shuffle()
        end.record()
        torch.cuda.synchronize()
    times = {row.key: row.self_device_time_total / STEPS / members for row in rows}
    known = {part: sum(times.pop(name, 0.0) for name in names) for part, names in GROUPS.items()}
    known["sums and the rest"] = sum(times.values())
    known["data"] = begin.elapsed_time(end) * 1e3 / STEPS / members
    launches = sum(row.count for row in rows) / STEPS
    print(f"{arch}, fp16, {members} members: " + ", ".join(f"{part} {value:.1f} µs" for part, value in known.items()))
    print(f"    {launches:.0f} kernels a step")


def rates() -> dict[str, float]:
    """The card's matrix rates in FLOP/s, and its copy rate in bytes/s (read and written)."""
    before = torch.backends.cuda.matmul.fp32_precision

    def seconds(work) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()
        begin.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 10 / 1e3

    found = {}
    a, b = (torch.randn(8192, 8192, device="cuda") for _ in range(2))
    for name, precision in (("tf32", "tf32"), ("fp32", "ieee")):
        torch.backends.cuda.matmul.fp32_precision = precision
        found[name] = 2 * 8192**3 / seconds(lambda: a @ b)
    torch.backends.cuda.matmul.fp32_precision = before
    half = a.half(), b.half()
    found["fp16"] = 2 * 8192**3 / seconds(lambda: half[0] @ half[1])
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    found["copy"] = 2 * source.numel() * 4 / seconds(lambda: target.copy_(source))
    return found


def main() -> None:
    card = rates()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, n = 8, batch {BATCH}")
    shown = ", ".join(f"{name} {card[name] / 1e12:.0f} TFLOP/s" for name in ("fp16", "tf32", "fp32"))
    print(f"measured matrix rates {shown}; copy rate {card['copy'] / 1e12:.1f} TB/s\n")
    header = f"{'step of one member':32}{'plain µs':>10}{'ours µs':>10}{'ratio':>8}{'required µs':>12}{'goal µs':>9}"
    print(header + f"{'of matrix rate':>16}{'of copy rate':>14}")
    for arch in ("positional", "standard"):
        plain = math.nan
        with reported(f"{arch}, plain loop"):
            plain = plain_step(arch)
        for precision, members in CASES:
            required, goal = REQUIRED.get((arch, members), (math.nan,) * 2) if precision == "fp16" else (math.nan,) * 2
            name = f"{arch}, {precision}, {members} members"
            with reported(name):
                ours = our_step(arch, precision, members)
                of_copy = (
                    f"{traffic(arch, precision) / ours / card['copy']:14.0%}" if precision != "fp32" else f"{'-':>14}"
                )
                shares = f"{arithmetic(arch) / ours / card[precision]:16.0%}{of_copy}"
                numbers = f"{plain * 1e6:10.0f}{ours * 1e6:10.1f}{plain / ours:8.0f}{required:12.0f}{goal:9.0f}"
                print(f"{name:32}{numbers}{shares}", flush=True)
    print()
    for arch, members in itertools.product(("positional", "standard"), (1, 5, 15, 50)):
        with reported(f"{arch}, {members} members, by kernels"):
            split(arch, members)
    with reported("vmap and torch.compile"):  # self-attention does not trace under vmap
        theirs = vmapped_step(50) * 1e6
        print(f"positional, bf16, 50 plain models under vmap and torch.compile: {theirs:.0f} µs per member", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--only", default="", help="what --check checks: networks with this in their name")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where --check runs")
    asked = parser.parse_args()
    if not any(asked.only in name for name in names()):
        parser.error(f"--only is {asked.only!r}; no network that --check checks has this in its name")
    if asked.device == "cpu" and not asked.check:
        parser.error("--device cpu is for --check")
    if asked.device == "cpu":
        check(torch.device("cpu"), 16, asked.only)
    elif not torch.cuda.is_available():
        print("There is no GPU that PyTorch can use; this benchmark needs one.")
    elif asked.tokens:
        tokens()
    else:
        check(torch.device("cuda"), only=asked.only)
        if not asked.check:
            print()
            main()
    leave()
