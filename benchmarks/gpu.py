"""GPU speed of ensemble training, as ratios to the plain eager loop of one model in the same run, and a check of the kernels.

    python benchmarks/gpu.py            a few minutes on one GPU
    python benchmarks/gpu.py --check    only compare the kernels with autograd in float64

Setting: n = 8, batch 1000, four layers, width 64, two heads, the paper's recipe. A member's step is an epoch's time divided by
its steps and members, data, shuffle, optimiser and schedule included. Without a GPU it says so and stops.
"""

import argparse
import itertools
import statistics
import time

import torch
from cpu import Plain  # the same plain loop
from torch.profiler import ProfilerActivity, profile

import posattn
from posattn.folding import fold, folded_forward, stack_layers
from posattn.model import ModelConfig, Transformer, input_features, positions_of
from posattn.training import Member
from posattn.training.cuda import CudaTrainer
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

MEMBERS, BATCH, STEPS = 50, 1000, 30
REQUIRED = {"positional": (45, 20), "standard": (130, 60)}  # microseconds: required and goal


def check() -> None:
    """Errors of the kernels' loss and gradients against autograd in float64, relative, the worst of all tensors."""
    from posattn.kernels import fused  # needs Triton, which comes with PyTorch for GPUs

    print(f"{'kernels against float64 autograd':40}{'loss':>12}{'gradients':>12}")
    for arch in ("positional", "scale-exact", "misaligned", "standard", "no-encoding", "positional-input"):
        torch.manual_seed(0)
        config, named = ModelConfig(8, arch), {}
        models = [Transformer(config) for _ in range(3)]
        for name, first in models[0].named_parameters():
            values = torch.stack([model.get_parameter(name).detach() for model in models])
            values = torch.randn_like(values) * 0.3 if first.ndim == 1 else values
            named[name] = (values * (3 if "W_Q" in name or "W_K" in name else 1)).cuda().double()
        p, positions = models[0].P.cuda().double(), positions_of(8, config, torch.device("cuda"))
        x = torch.randn(3, 100, 8, device="cuda", dtype=torch.float64)
        features, y = input_features(x, p, positions, config), x.cumsum(-1)
        leaves = {k: v.detach().requires_grad_() for k, v in fold(stack_layers(named), config, p).items()}
        loss = (folded_forward(leaves, features, config) - y).square().mean(dim=(1, 2))
        truth = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
        single = {name: value.detach().float() for name, value in leaves.items()}
        ours, gradients = fused.loss_and_gradients(single, features.float(), y.float(), config, "tf32")
        worst = max(
            float((gradients[name].double() - value).norm() / value.norm().clamp_min(1e-12))
            for name, value in zip(leaves, truth, strict=True)
        )
        print(f"{arch + ', tf32':40}{float(((ours - loss) / loss).abs().max()):12.1e}{worst:12.1e}")


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


def trainer(arch: str, precision: str, workers: Workers, epochs: int) -> CudaTrainer:
    members = [Member("sum", seed, 5e-4) for seed in range(MEMBERS)]
    return CudaTrainer(
        ModelConfig(8, arch),
        recipe("paper", epochs=epochs),
        members,
        torch.device("cuda"),
        workers,
        precision=precision,
    )


def our_step(arch: str, precision: str) -> float:
    """Seconds of one step of one member: the median epoch."""
    with Workers(1) as workers:
        times = []
        for _ in trainer(arch, precision, workers, 10).steps():
            torch.cuda.synchronize()
            times.append(time.perf_counter())
    epochs = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(epochs) / STEPS / MEMBERS


def split(arch: str) -> None:
    """How the time of a step divides among kernels."""
    with Workers(1) as workers:
        own = trainer(arch, "tf32", workers, 2)
        x, y = own.blocks[0].x[:, :BATCH], own.blocks[0].y[:, :BATCH]
        own._step(x, y)
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(3):
                own._step(x, y)
            torch.cuda.synchronize()
    times = {row.key: row.self_device_time_total / 3 / MEMBERS for row in recorded.key_averages()}
    parts = {
        "forward": ("layer_forward", "readout"),
        "backward": ("values_backward", "positional_backward", "self_attention_backward"),
    }
    known = {part: sum(times.pop(name, 0.0) for name in names) for part, names in parts.items()}
    known["folding, optimiser, data"] = sum(times.values())
    print(f"{arch}, tf32: " + ", ".join(f"{part} {value:.1f} µs" for part, value in known.items()))


def rates() -> tuple[float, float]:
    """The card's TF32 matrix rate in FLOP/s and copy rate in bytes/s (read and written)."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    a, b = (torch.randn(8192, 8192, device="cuda") for _ in range(2))
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    out = []
    for work in (lambda: a @ b, lambda: target.copy_(source)):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()
        begin.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        out.append(begin.elapsed_time(end) / 10 / 1e3)
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * 8192**3 / out[0], 2 * source.numel() * 4 / out[1]


def main() -> None:
    matrix, copy = rates()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {MEMBERS} members, n = 8, batch {BATCH}")
    print(f"measured: TF32 matrix rate {matrix / 1e12:.0f} TFLOP/s, copy rate {copy / 1e12:.1f} TB/s\n")
    header = f"{'step of one member':28}{'plain µs':>10}{'ours µs':>10}{'ratio':>8}{'required µs':>12}{'goal µs':>9}"
    print(header + f"{'of matrix rate':>16}")
    for arch, (required, goal) in REQUIRED.items():
        plain = plain_step(arch)
        for precision in ("tf32", "fp32"):
            ours = our_step(arch, precision)
            flops = 3 * 2 * BATCH * 3 * 9 * 64 * 64 * (3 if arch == "positional" else 5)
            shares = f"{flops / ours / matrix:16.0%}" if precision == "tf32" else f"{'-':>16}"
            name = f"{arch}, {precision}"
            print(f"{name:28}{plain * 1e6:10.0f}{ours * 1e6:10.1f}{plain / ours:8.0f}{required:12}{goal:9}{shares}")
    print()
    for arch in REQUIRED:
        split(arch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    only_check = parser.parse_args().check
    if not torch.cuda.is_available():
        print("There is no GPU that PyTorch can use; this benchmark needs one.")
    else:
        check()
        if not only_check:
            print()
            main()
