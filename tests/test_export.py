"""Exported networks: ONNX Runtime and torch.export give the network's answers, at any scale and for any number of lists."""

import subprocess
import sys
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch

import posattn
from posattn import cli
from posattn.export import TOLERANCE, simplest, to_torch

# In a process of its own: the tests' checks of shapes at every call would fix the number of lists in a traced network.
SCRIPT = """
import sys, torch, posattn, posattn.cli
from pathlib import Path
from posattn.export import to_onnx, to_torch
folder = Path(sys.argv[1])
for arch in ("positional", "standard"):
    print(arch, to_onnx(posattn.pretrained("sort", arch=arch), folder / f"{arch}.onnx"))
torch.manual_seed(0)
model = posattn.Transformer(posattn.ModelConfig(8, "rope-only", layers=2))
torch.save(model.state_dict(), folder / "rope-only.pt")
print("rope-only", to_onnx(model, folder / "rope-only.onnx"))
posattn.train("sum", posattn.ModelConfig(3, embed=8, width=8), samples=40, epochs=1, batch=20, device="cpu", out=folder / "run")
print("short", to_torch(posattn.pretrained("min", arch="scale-exact"), folder / "short.pt2", length=5), flush=True)
sys.argv = ["posattn", "export", str(folder / "run"), "--torch", str(folder / "sum.pt2")]
posattn.cli.main()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the files, and how far each is from float64."""
    folder = tmp_path_factory.mktemp("onnx")
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    *lines, told = done.stdout.splitlines()
    assert "its answers are the network's to" in told
    return folder, {name: float(off) for name, off in map(str.split, lines)}


def network(arch, folder):
    if arch != "rope-only":
        return posattn.pretrained("sort", arch=arch)
    model = posattn.Transformer(posattn.ModelConfig(8, arch, layers=2))
    model.load_state_dict(torch.load(folder / "rope-only.pt", weights_only=True))
    return model.eval()


@pytest.mark.parametrize("arch", ["positional", "standard", "rope-only"])
@pytest.mark.parametrize("batch", [1, 13])
def test_onnx_runtime_gives_the_network_s_answers(written, arch, batch):
    folder, off = written
    model, session = network(arch, folder), onnxruntime.InferenceSession(str(folder / f"{arch}.onnx"))
    assert off[arch] <= TOLERANCE or arch == "standard"
    # Far from its training range a standard network magnifies the last digits of float32 in any program.
    for scale, allowed in ((1, 1e-4), (10, 0.1)) if arch == "standard" else ((1, TOLERANCE), (10, TOLERANCE)):
        x = scale * (4 * torch.rand(batch, 8, generator=torch.Generator().manual_seed(batch + scale)) - 2)
        (answers,) = session.run(None, {"numbers": x.numpy()})
        with torch.no_grad():
            ours = model(x)
        assert answers.shape == (batch, 8)
        assert (torch.from_numpy(answers) - ours).abs().max() <= allowed * ours.abs().max()


def operations(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def test_nothing_of_softmax_queries_or_keys_is_left_of_a_positional_network(written):
    folder, _ = written
    model, path = network("positional", folder), folder / "positional.onnx"
    assert "Softmax" not in operations(path) and "Softmax" in operations(folder / "standard.onnx")
    sizes = [list(tensor.dims) for tensor in onnx.load(path).graph.initializer]
    numbers = sum(torch.Size(size).numel() for size in sizes)
    folded, _ = simplest(model)
    assert numbers <= sum(value.numel() for value in folded.state_dict().values()) + 64  # shapes of reshapes
    assert [18, 9] not in sizes  # W_Q and W_K are (heads · d_k, d_P)


def test_a_program_of_torch_export_and_shorter_lists(written):
    folder, off = written
    loaded, model = torch.export.load(folder / "short.pt2").module(), posattn.pretrained("min", arch="scale-exact")
    x = torch.randn(7, 5)
    assert off["short"] <= TOLERANCE
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-5)


def test_the_command_and_what_it_refuses(written, tmp_path, monkeypatch, capsys):
    folder, _ = written
    assert torch.export.load(folder / "sum.pt2").module()(torch.zeros(2, 3)).shape == (2, 3)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["posattn", "export", str(folder / "run"), *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code or 0, *capsys.readouterr()

    assert call()[0] == 2
    code, _, told = call("--torch", tmp_path / "other.pt2", "--length", 4)
    assert code == 2 and "length is 4; it must be from 1 to 3" in told
    code, _, told = call("--torch", tmp_path / "other.pt2", "--member", 1)
    assert code == 2 and "member is 1" in told

    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # what importing it would do if it were not installed
    code, _, told = call("--onnx", tmp_path / "other.onnx")
    assert code == 2 and "pip install 'posattn[onnx]'" in told
    assert not (tmp_path / "other.onnx").exists() and not (tmp_path / "other.pt2").exists()


def test_a_file_with_other_answers_is_not_written(tmp_path, monkeypatch):
    model = posattn.pretrained("sum", arch="positional")
    other, _ = simplest(posattn.pretrained("min", arch="positional"))
    monkeypatch.setattr("posattn.export.simplest", lambda *_: (other, 8))
    monkeypatch.setattr(torch.export, "export", lambda module, *_, **__: module)
    monkeypatch.setattr(torch.export, "save", lambda module, buffer: torch.save(module, buffer))
    monkeypatch.setattr(torch.export, "load", lambda buffer: SimpleNamespace(module=lambda: other))
    with pytest.raises(RuntimeError, match=r"^at scale 1 the exported network is off by"):
        to_torch(model, tmp_path / "sum.pt2")
    assert not list(tmp_path.iterdir())


def test_other_networks_are_refused():
    with pytest.raises(
        posattn.UsageError, match=r"^the network is a Linear; a posattn\.Transformer can be exported\.$"
    ):
        simplest(torch.nn.Linear(3, 3))
    tokens = posattn.Transformer(posattn.TokenConfig(30, embed=8, width=8, tokens="letters", causal=True))
    with pytest.raises(
        posattn.UsageError,
        match=r"^the positional network reads letters; only Transformers of lists ",
    ):
        simplest(tokens)
