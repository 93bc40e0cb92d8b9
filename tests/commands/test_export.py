"""posattn export: files of trained networks and compiled programs, and what it refuses."""

import subprocess
import sys

import pytest
import torch

import posattn
from posattn.network import own_network

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_run_is_exported(pair, tmp_path):
    """In a process of its own: the tests' checks of shapes at every call would fix the number of lists in a traced network."""
    command = [sys.executable, "-m", "posattn", "export", str(pair), "--torch", str(tmp_path / "min.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "its answers are the network's to" in done.stdout, done.stderr
    assert torch.export.load(tmp_path / "min.pt2").module()(torch.zeros(2, 3)).shape == (2, 3)


def test_what_it_refuses(pair, tmp_path, monkeypatch, posattn_command):
    assert posattn_command("export", pair)[0] == 2
    code, _, told = posattn_command("export", pair, "--torch", "other.pt2", "--length", 4)
    assert code == 2 and "length is 4; it must be at most 3." in told
    code, _, told = posattn_command("export", pair, "--torch", "other.pt2", "--member", 2)
    assert code == 2 and "member is 2" in told

    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # what importing it would do if it were not installed
    code, _, told = posattn_command("export", pair, "--onnx", "other.onnx")
    assert code == 2 and "pip install 'posattn[onnx]'" in told
    assert not list(tmp_path.iterdir())


def test_a_run_of_tokens_is_exported(posattn_command):
    small = ["--n", 3, "--samples", 20, "--epochs", 1, "--batch", 10]
    assert posattn_command("train", "khop", "--arch", "table", *small, "--out", "khop")[0] == 0
    code, shown, _ = posattn_command("export", "khop", "--torch", "khop.pt2")
    assert code == 0 and "relative, for letters in and out of distribution." in shown
    x = posattn.task("khop").encode("1ab")[None]
    torch.testing.assert_close(torch.export.load("khop.pt2").module()(x), posattn.load("khop").predict(x)[0])
    code, _, told = posattn_command("export", "khop", "--torch", "other.pt2", "--n", 1)
    assert code == 2 and "length is 1; it must be a whole number of at least 2." in told


def test_a_network_of_ones_own_is_refused(posattn_command):
    own = own_network("line", lambda n: torch.nn.Linear(n, n))
    posattn.train("sum", own(n=3), samples=20, epochs=1, batch=10, device="cpu", out="line")
    code, _, told = posattn_command("export", "line", "--torch", "line.pt2")
    assert code == 2 and "the network is a Linear; only Transformers and table networks of posattn can be exported." in told


def test_a_compiled_program_is_exported(posattn_command):
    posattn_command("compile", "prefix-min", "--machines", 3, "--bound", 5, "--save", "least")
    code, shown, _ = posattn_command("export", "least", "--torch", "least.pt2")
    assert code == 0 and "least.pt2" in shown and "within its bounds" in shown
    program = torch.export.load("least.pt2").module()
    torch.testing.assert_close(
        program(torch.tensor([[3.0, 5.0, -2.0]])), torch.tensor([[3.0, 3.0, -2.0]]), rtol=0, atol=1e-4
    )


def test_a_program_of_ones_own_is_checked_within_its_bounds_without_its_file(posattn_command, tmp_path):
    text = "import posattn\nfrom posattn.compiler import Whole\n\n\n@posattn.program(x=Whole(0, 9))\n"
    (tmp_path / "my.py").write_text(f"{text}def twice(me, n, x):\n    return 2 * x\n")
    assert posattn_command("compile", "my.py:twice", "--machines", 3, "--save", "own")[0] == 0
    code, shown, _ = posattn_command("export", "own", "--torch", "own.pt2")
    assert code == 0 and "within its bounds" in shown and "scale" not in shown
