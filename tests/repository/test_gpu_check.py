"""The check of benchmarks/gpu.py, run by Triton's interpreter on the CPU: it passes, and fails where a gradient is wrong."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

from posattn.kernels import adam, fused

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = {"arch": "positional", "layers": 1, "embed": 16, "width": 16}


@pytest.fixture
def benchmark(monkeypatch):
    """The script with one network of lists, and one of tokens."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = runpy.run_path(str(BENCHMARKS / "gpu.py"))
    inside = script["check"].__globals__
    monkeypatch.setitem(inside, "LISTS", {"small": SMALL | {"embed": 32}})
    monkeypatch.setitem(inside, "SEQUENCES", (("khop", SMALL | {"n": 10}),))
    monkeypatch.setitem(script["leave"].__globals__, "_failed", [])
    return script


def test_the_check_passes_where_the_kernels_are_right(benchmark, capsys):
    benchmark["check"](torch.device("cpu"), count=8)
    benchmark["leave"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "optimiser: change, moments", "small, fold", "small, fp32", "small, tf32", "small, fp16",
        "khop, positional, 1, 16, 16, 10, fold", "khop, positional, 1, 16, 16, 10, tf32",
        "khop, positional, 1, 16, 16, 10, fp16",
    ]  # fmt: skip


def test_the_check_ends_with_an_error_where_a_gradient_is_wrong(benchmark, monkeypatch, capsys):
    summed = fused._summed
    monkeypatch.setattr(fused, "_summed", lambda *given: {name: 1.1 * value for name, value in summed(*given).items()})
    benchmark["check"](torch.device("cpu"), count=2)
    with pytest.raises(
        SystemExit, match=r"^failed: small, fp32; small, tf32; small, fp16; khop, .* tf32; khop, .* fp16$"
    ):
        benchmark["leave"]()
    assert "small, fp32 failed: ArithmeticError: off by " in capsys.readouterr().out


def test_the_check_ends_with_an_error_where_the_optimiser_is_wrong(benchmark, monkeypatch):
    right = adam.adam
    monkeypatch.setattr(adam, "adam", lambda *given: right(*given[:-1], None))  # does not clip
    benchmark["check"](torch.device("cpu"), only="optimiser")
    with pytest.raises(SystemExit, match=r"^failed: optimiser$"):
        benchmark["leave"]()


def test_a_name_of_no_network_is_an_error(monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--check", "--device=cpu", "--only", "hop2"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(BENCHMARKS / "gpu.py"), run_name="__main__")
    assert left.value.code == 2 and "no network that --check checks has this in its name" in capsys.readouterr().err


def test_without_a_gpu_the_script_itself_checks_in_the_interpreter():
    command = [sys.executable, BENCHMARKS / "gpu.py", "--check", "--device", "cpu", "--only", "optimiser"]
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[1:]] == ["optimiser: change, moments"]
