"""CPU speed and memory of training and inference, as ratios to the plain loop in the same run.

    python benchmarks/cpu.py            about three minutes on two cores

Setting: n = 8 (nine positions with the scratchpad), batch 1000, four layers, width 64, two heads, float32. The plain loop
is what a user would write: one nn.Module, eager autograd, scaled_dot_product_attention, torch.optim.Adam. Each
measurement runs in a process of its own, with all cores; plain and ours take turns, and the median of the turns counts.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import posattn
from posattn.folding import Frozen
from posattn.training import Member, Trainer
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

N, B, D, H, L = 9, 1000, 64, 2, 4
TURNS = 3


class PlainLayer(nn.Module):
    def __init__(self, positional: bool):
        super().__init__()
        features, d_k = (N, N) if positional else (D, D)
        self.positional = positional
        self.q, self.k = nn.Linear(features, H * d_k), nn.Linear(features, H * d_k)
        self.v, self.o = nn.Linear(D, D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(2 * D, D), nn.ReLU(), nn.Linear(D, D))

    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        features = p[None] if self.positional else x
        read = ((self.q, features), (self.k, features), (self.v, x))
        q, k, v = (w(f).unflatten(-1, (H, -1)).transpose(1, 2) for w, f in read)
        heads = F.scaled_dot_product_attention(q.expand(len(x), -1, -1, -1), k.expand(len(x), -1, -1, -1), v)
        return self.mlp(torch.cat([self.o(heads.transpose(1, 2).flatten(2)), x], dim=-1))


class Plain(nn.Module):
    def __init__(self, positional: bool):
        super().__init__()
        self.positional = positional
        self.encoder, self.decoder = nn.Linear(1 if positional else 1 + N, D), nn.Linear(D, 1)
        self.layers = nn.ModuleList(PlainLayer(positional) for _ in range(L))
        self.register_buffer("p", torch.eye(N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = F.pad(x, (0, 1))[..., None]
        if not self.positional:
            z = torch.cat([z, self.p.expand(len(x), -1, -1)], dim=-1)
        z = self.encoder(z)
        for layer in self.layers:
            z = layer(z, self.p)
        return self.decoder(z)[:, :-1, 0]


def seconds(function, repeats: int) -> float:
    """Median time of a call, after two for warming up."""
    function(), function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def plain_step(arch: str) -> dict[str, float]:
    torch.manual_seed(0)
    model = Plain(arch == "positional")
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)
    x, y = posattn.task("sum").sample(B)

    def step() -> None:
        optimiser.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimiser.step()

    return {"seconds": seconds(step, 20)}


def our_step(arch: str) -> dict[str, float]:
    members = [Member("sum", seed, 5e-4) for seed in range(10)]
    with Workers() as workers:
        config = posattn.ModelConfig(8, arch)
        trainer = Trainer(config, recipe("paper", epochs=13), members, torch.device("cpu"), workers)
        steps = trainer.steps()
        time_of_all = seconds(lambda: next(steps), 6)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": time_of_all / len(members), "peak GiB": peak}


def blas(_: str) -> dict[str, float]:
    a, b = torch.randn(N * B, D), torch.randn(D, D)
    return {"flops": 2 * N * B * D * D / min(seconds(lambda: a @ b, 200) for _ in range(3))}


def inference(_: str) -> dict[str, float]:
    model = posattn.Transformer(posattn.ModelConfig(8)).eval()
    frozen, out = Frozen(model), {}
    with torch.inference_mode():
        for batch, repeats in ((1, 500), (1000, 30)):
            x = torch.randn(batch, 8)
            out[f"module {batch}"] = seconds(lambda x=x: model(x), repeats)
            out[f"frozen {batch}"] = seconds(lambda x=x: frozen(x), repeats)
    return out


JOBS = {"plain": plain_step, "ours": our_step, "blas": blas, "inference": inference}


def measure(job: str, arch: str = "positional") -> dict[str, float]:
    command = [sys.executable, __file__, "--job", job, "--arch", arch]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def folded_flops(arch: str) -> float:
    """Multiplications and additions of one folded step, forward and backward (three times forward)."""
    products = (1 + H) if arch == "positional" else (1 + 2 * H)  # U_0, U_h, and M_h where attention reads the state
    mixing = H * (1 if arch == "positional" else 2)  # A_h s; and the logits
    return 3 * 2 * B * (L - 1) * (products * N * D * D + mixing * N * N * D)


def main() -> None:
    rate = measure("blas")["flops"]
    print(f"{torch.get_num_threads()} cores, torch {torch.__version__}, n = 8, batch {B}, {L} layers, float32")
    print(f"BLAS on a 9000 x 64 x 64 product: {rate / 1e9:.0f} GFLOP/s\n")
    print(
        f"{'training step of one member':32}{'plain ms':>10}{'ours ms':>10}{'ratio':>8}{'required':>10}{'of BLAS':>9}"
    )
    peak = 0.0
    for arch, required in (("positional", 2.0), ("standard", 1.5)):
        turns = [(measure("plain", arch), measure("ours", arch)) for _ in range(TURNS)]
        plain = statistics.median(turn["seconds"] for turn, _ in turns)
        ours = statistics.median(turn["seconds"] for _, turn in turns)
        peak = max(peak, *(turn["peak GiB"] for _, turn in turns))
        share = folded_flops(arch) / rate / ours
        print(f"{arch:32}{plain * 1e3:10.1f}{ours * 1e3:10.1f}{plain / ours:8.2f}{required:10.1f}{share:9.0%}")
    print(f"\npeak memory of training 10 members: {peak:.2f} GiB (required: under 2)\n")
    timed = measure("inference")
    print(f"{'inference, positional':32}{'module µs':>10}{'frozen µs':>10}{'ratio':>8}{'required':>10}")
    for batch, required in ((1, "3.0"), (1000, "-")):
        module, frozen = timed[f"module {batch}"], timed[f"frozen {batch}"]
        print(f"{f'batch {batch}':32}{module * 1e6:10.0f}{frozen * 1e6:10.0f}{module / frozen:8.2f}{required:>10}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=JOBS)
    parser.add_argument("--arch", default="positional")
    arguments = parser.parse_args()
    if arguments.job is None:
        main()
    else:
        print(json.dumps(JOBS[arguments.job](arguments.arch)))
