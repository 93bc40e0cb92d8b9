"""Latency of one trained network on one core: the eager module, folded, and in ONNX Runtime, as ratios from one run.

    python benchmarks/export.py         about a minute; needs pip install 'posattn[onnx]'

Medians of repeated calls on lists of 8 at batch 1 and 1,000; `required` is ONNX Runtime against the eager module at batch 1.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch

import posattn
from posattn.export import to_onnx

REQUIRED = 5


def latency(call: Callable[..., object], *given: object, seconds: float = 2.0) -> float:
    """The median time of a call."""
    for _ in range(10):
        call(*given)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call(*given)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, one core")
    print(f"{'':24}{'eager µs':>12}{'folded µs':>12}{'ratio':>8}{'ONNX µs':>12}{'ratio':>8}{'required':>10}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for arch in ("positional", "standard"):
            model = posattn.pretrained("sort", arch=arch)
            to_onnx(model, Path(folder) / f"{arch}.onnx")
            session = onnxruntime.InferenceSession(str(Path(folder) / f"{arch}.onnx"), options)
            folded = posattn.Frozen(model)
            for batch in (1, 1000):
                x = torch.randn(batch, 8)
                given = {"numbers": x.numpy()}
                eager = latency(model, x)
                ours = latency(folded, x)
                onnx = latency(session.run, None, given)
                numbers = (
                    f"{eager * 1e6:12.0f}{ours * 1e6:12.0f}{eager / ours:8.1f}{onnx * 1e6:12.0f}{eager / onnx:8.1f}"
                )
                print(f"{f'{arch}, batch {batch}':24}{numbers}{REQUIRED if batch == 1 else '-':>10}")


if __name__ == "__main__":
    main()
