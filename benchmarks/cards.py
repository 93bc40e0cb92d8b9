"""Compiles the GPU kernels for cards that are not there: which of them fit, and in how much shared memory.

It needs Triton and no GPU; nothing runs. `python benchmarks/cards.py 8.6 layer` asks for one card and one part; a card takes
minutes.
"""

import os
import sys
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when the kernels are defined
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as it was before it became a setting

import torch
from torch import Tensor

import posattn
from posattn import ModelConfig
from posattn.kernels.shapes import folds_rows, serves
from posattn.training.parameters import Parameters
from posattn.training.suitability import network_for
from posattn.training.ways import Fused, loss_of

CARDS = {  # by compute capability: an example, and the shared memory that a program may take, in KiB
    "8.0": ("A100", 163),
    "8.6": ("RTX 30, A10", 99),
    "8.9": ("RTX 40, L4", 99),
    "9.0": ("H100, H200", 227),
    "10.0": ("B200", 227),
    "12.0": ("RTX 50", 99),
}
LAYERS = ((512, 8, 512, 8), (2048, 2, 512, 4), (300, 3, 120, 3))  # n, batch, width, heads
NETWORKS = (
    *(("sum", {"arch": arch, "n": n}) for arch in ("positional", "standard", "standard-rope") for n in (8, 32)),
    *(("khop", {"arch": arch, "layers": 3}) for arch in ("positional", "standard")),
    *(("mixed-min", {"arch": arch, "layout": "characters"}) for arch in ("positional", "standard")),
)


class Card:
    """What Triton asks about a GPU before it compiles for it; in place of a launch, whether there is room for one."""

    def __init__(self, capability: str):
        from triton.runtime import driver, jit

        self.capability, self.room = int(capability.replace(".", "")), CARDS[capability][1] * 1024
        self.most, self.refused = 0, 0  # bytes that a kernel which fits needs, and how many do not
        driver.set_active(self)
        compile_one = jit.JITFunction.run if not hasattr(jit.JITFunction.run, "plain") else jit.JITFunction.run.plain

        def run(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
            self.launch(compile_one(kernel, *given, grid=grid, warmup=True, **named).metadata.shared)

        run.plain = compile_one  # type: ignore[attr-defined]
        jit.JITFunction.run = run

    def launch(self, needed: int) -> None:
        from triton.runtime.errors import OutOfResources

        if needed > self.room:
            self.refused += 1
            raise OutOfResources(needed, self.room, "shared memory")
        self.most = max(self.most, needed)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it has compiled by device

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def layer(n: int, batch: int, width: int, heads: int, masks: tuple[bool, ...] = (True, False)) -> None:
    """All kernels of a step of ``PositionalAttention`` in bfloat16, causal or not."""
    from posattn.kernels.mixing import mixed, mixed_backward

    e = width // heads
    q, k = torch.empty(2, heads, n, min(n, e), dtype=torch.bfloat16)
    v = torch.empty(batch, n, heads, e, dtype=torch.bfloat16)
    for causal in masks:
        y, sums = mixed(q, k, v, causal)
        mixed_backward(y, q, k, v, y, sums, causal)


def training(task: str, settings: dict[str, Any], precision: str) -> str:
    """A step of two members: the way that it takes where kernels that do not fit are given up."""
    named, members, lists = dict(settings), 2, 100
    config = ModelConfig(**named) if task == "sum" else network_for(task, **named)
    if not serves(config, precision):
        return "PyTorch"
    way: Any = Fused(config, torch.device("cpu"), loss_of([task]), precision)
    x, y = posattn.task(task).sample(members * lists, n=config.n)
    x, y = (each.view(members, lists, -1) for each in (x, y))
    parameters: Tensor = Parameters.initial(config, range(members), torch.device("cpu"))
    from triton.runtime.errors import OutOfResources

    while isinstance(way, Fused):
        try:
            way.step(parameters, slice(0, members), x, y)
            return "kernels" if way.folds_in_kernels == folds_rows(config) else "kernels but for folding"
        except OutOfResources:
            way = way.with_fewer_kernels()
    return "refused" if way is None else "PyTorch"


def main(capabilities: list[str], parts: list[str]) -> None:
    for capability in capabilities:
        name, room = CARDS[capability]
        print(f"{capability} ({name}), {room} KiB", flush=True)
        if "layer" in parts:
            for sizes in LAYERS:
                card = Card(capability)
                layer(*sizes)
                print(f"    layer, n, batch, width, heads = {sizes}: fits in {card.most / 1024:.0f} KiB", flush=True)
        if "training" in parts:
            for (task, settings), precision in ((each, p) for each in NETWORKS for p in ("fp32", "tf32", "fp16")):
                card = Card(capability)
                way = training(task, settings, precision)
                what = ", ".join([task, *map(str, settings.values()), precision])
                print(f"    {what}: {way}, at most {card.most / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    cards = [word for word in sys.argv[1:] if word in CARDS]
    if cards:
        main(cards, [word for word in sys.argv[1:] if word not in CARDS] or ["layer", "training"])
    else:
        print(f"A study, not a benchmark: give compute capabilities, {', '.join(CARDS)}; and layer or training for one part.")
