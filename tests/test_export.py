"""Exported networks: ONNX Runtime and torch.export give the network's answers, at any scale and for any number of lists."""

import subprocess
import sys
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch

import posattn
from posattn.compiler import PCOC, Known, Round, compile_program
from posattn.export import TOLERANCE, simplest, to_torch

# In a process of its own: the tests' checks of shapes at every call would fix the number of lists in a traced network.
SCRIPT = """
import sys, torch, posattn
from pathlib import Path
from posattn.export import to_onnx, to_torch
folder = Path(sys.argv[1])
for arch in ("positional", "standard"):
    print(arch, to_onnx(posattn.pretrained("sort", arch=arch), folder / f"{arch}.onnx"))
torch.manual_seed(0)
model = posattn.Transformer(posattn.ModelConfig(8, "rope-only", layers=2))
torch.save(model.state_dict(), folder / "rope-only.pt")
print("rope-only", to_onnx(model, folder / "rope-only.onnx"))
sorter = posattn.compile("bitonic-sort", 6, bound=10.0, sparse=True)
print("sparse", to_onnx(sorter, folder / "sparse.onnx"))
print("short", to_torch(posattn.pretrained("min", arch="scale-exact"), folder / "short.pt2", length=5))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the files, and how far each is from float64."""
    folder = tmp_path_factory.mktemp("onnx")
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder, {name: float(off) for name, off in map(str.split, done.stdout.splitlines())}


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


@pytest.mark.parametrize("batch", [1, 13])
def test_onnx_runtime_runs_a_sparse_compiled_program(written, batch):
    folder, off = written
    session = onnxruntime.InferenceSession(str(folder / "sparse.onnx"))
    x = 20 * torch.rand(batch, 6) - 10
    (answers,) = session.run(None, {"numbers": x.numpy()})
    assert off["sparse"] <= TOLERANCE and (torch.from_numpy(answers) - x.sort(dim=-1).values).abs().max() < 1e-5
    assert "GatherElements" in operations(folder / "sparse.onnx")  # attention is indices in the file too


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


# Compiled programs. Unchecked: checks of shapes would fix the number of lists in a traced network.


def test_vectors_integers_and_small_bounds_are_exported(tmp_path, unchecked):
    """Machine i ends with the sum of its two inputs and its left neighbour's integer."""
    rounds = (Round(lambda i: [(i, (0, 1)), *([(i - 1, (2,))] if i else [])], lambda m: [m[0] + m[1], m[2], 0]),)
    inputs = (Known(0, 3, True), Known(-0.5, 0.5))
    program = PCOC(3, 3, inputs, rounds, (0, 1), start=lambda m: [m[0], m[1], m[0]])
    assert to_torch(compile_program(program).model, tmp_path / "own.pt2") < 1e-6
    found = torch.export.load(tmp_path / "own.pt2").module()(torch.tensor([[[1.0, 0.5], [3.0, -0.5], [2.0, 0.25]]]))
    assert found.tolist() == [[[1.5, 0], [2.5, 1], [2.25, 3]]]


def test_exporting_leaves_a_network_in_float64(tmp_path, unchecked):
    model = posattn.compile("prefix-sum", 3, bound=10.0)
    assert to_torch(model, tmp_path / "sum.pt2") < 1e-5
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_what_float32_cannot_hold_is_not_exported(tmp_path, unchecked):
    """(x + 1) - x, where x is so large that float32 does not see the 1."""
    rounds = (Round(lambda i: [(i, (0, 1))], lambda m: [m[0] - m[1], 0]),)
    program = PCOC(2, 2, (Known(1e11, 1e12),), rounds, start=lambda m: [m[0] + 1, m[0]])
    with pytest.raises(posattn.UsageError, match=r"in float32 the compiled program errs by .* smaller bound"):
        to_torch(compile_program(program).model, tmp_path / "one.pt2")


def test_lists_that_a_network_refuses_are_no_check(tmp_path, unchecked):
    with pytest.raises(
        posattn.UsageError, match="lists that it refuses, so give others: input 0 has numbers from 2 to 2"
    ):
        to_torch(posattn.compile("prefix-sum", 3, bound=1.0), tmp_path / "sum.pt2", lists=torch.full((4, 3), 2.0))
