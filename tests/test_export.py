"""Exported networks: ONNX Runtime and torch.export give the network's answers, at any scale and for any number of lists."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch

import posattn
from posattn.compiler import PCOC, Known, Real, Round, Whole, compile_program, relu, send
from posattn.export import TOLERANCE, simplest, to_onnx, to_torch
from posattn.looped import PromptTableConfig

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


def other_file(model, other, monkeypatch):
    """What ``to_torch`` writes for ``model`` answers as ``other`` does."""
    monkeypatch.setattr("posattn.export.simplest", lambda *_: (model, model.config.n))
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: None)
    monkeypatch.setattr(torch.export, "save", lambda *_, **__: None)
    monkeypatch.setattr(torch.export, "load", lambda _: SimpleNamespace(module=lambda: other))


def test_a_file_with_other_answers_is_not_written(tmp_path, monkeypatch):
    other_file(posattn.pretrained("sum"), posattn.pretrained("min"), monkeypatch)
    with pytest.raises(RuntimeError, match=r"^at scale 1 the exported network is off by"):
        to_torch(posattn.pretrained("sum"), tmp_path / "sum.pt2")
    assert not list(tmp_path.iterdir())


def test_other_networks_are_refused():
    only = r"only Transformers and table networks of posattn can be exported\.$"
    with pytest.raises(posattn.UsageError, match=rf"^the network is a Linear; {only}"):
        simplest(torch.nn.Linear(3, 3))
    with pytest.raises(posattn.UsageError, match=r"^the gat network is no Transformer of posattn; only Transformers and "):
        simplest(posattn.GraphConfig(3, "gat").build())


# Networks of tokens.

SMALL = {"layers": 1, "embed": 8, "width": 8}
OF_TOKENS = {
    "letters": posattn.TokenConfig(6, "standard", causal=True, tied=True, **SMALL),
    "table": posattn.ModelConfig(4, "table", width=4),
    "elements": posattn.TokenConfig(23, tokens="prompts", relative=True, **SMALL),
    "elements-shared": posattn.TokenConfig(23, "rope-only", tokens="elements-shared", **SMALL),
    "characters": posattn.TokenConfig(101, "input-regularized", tokens="characters", **SMALL),
    "prompt table": PromptTableConfig(23, width=4),
}


def samples(model, count, scale=1.0, n=None):
    name = "khop" if model.config.reads == "letters" else "mixed-multitask"
    return posattn.task(name).sample(count, n=n or model.config.n, scale=scale, seed=3)[0]


def assert_same(answers, model, x):
    with torch.no_grad():
        ours = model(x)
    assert answers.shape == ours.shape and answers.dtype == ours.dtype == torch.float32
    torch.testing.assert_close(answers, ours, rtol=1e-5, atol=1e-5)
    assert len(x) == 1 or not torch.allclose(ours[0], ours[1])  # else any file would do


@pytest.mark.parametrize("kind", ["letters", "elements"])
def test_onnx_runtime_reads_tokens(tmp_path, unchecked, kind):
    model = OF_TOKENS[kind].build()
    assert to_onnx(model, tmp_path / "own.onnx") <= TOLERANCE
    session = onnxruntime.InferenceSession(str(tmp_path / "own.onnx"))
    found = [(port.name, port.type, *port.shape[1:]) for port in (*session.get_inputs(), *session.get_outputs())]
    assert found == {
        "letters": [("tokens", "tensor(int64)", 6), ("logits", "tensor(float)", 6, 16)],
        "elements": [("prompts", "tensor(float)", 23), ("answers", "tensor(float)", 1)],
    }[kind]
    for batch, scale in ((1, 1.0), (13, 2.0)):
        x = samples(model, batch, scale)
        (answers,) = session.run(None, {found[0][0]: x.numpy()})
        assert_same(torch.from_numpy(answers), model, x)
    check_described(session.get_modelmeta().custom_metadata_map, model.config)


@pytest.mark.parametrize("kind", ["elements-shared", "characters"])
def test_torch_export_reads_tokens(tmp_path, unchecked, kind):
    model = OF_TOKENS[kind].build()
    assert to_torch(model, tmp_path / "own.pt2") <= TOLERANCE
    described = {"vocabulary": "", "reading": "", "example": ""}
    program = torch.export.load(tmp_path / "own.pt2", extra_files=described).module()
    for batch, scale in ((1, 1.0), (13, 2.0)):
        x = samples(model, batch, scale)
        assert_same(program(x), model, x)
    check_described(described, model.config)


def check_described(found, config):
    """Who has the vocabulary, and the sentence on how it is read, finds the example's tokens to be its text."""
    words, example = json.loads(found["vocabulary"]), json.loads(found["example"])
    assert sorted(found) == ["example", "reading", "vocabulary"] and len(set(words)) == len(words)
    if config.reads == "letters":
        assert len(example["answer"]) == len(example["text"])
        assert "word t of the vocabulary is t." in found["reading"]
        assert "".join(words[token] for token in example["tokens"]) == example["text"]
        return
    assert isinstance(example["answer"], float)
    assert "word t of the vocabulary is -1 - t, and a number v >= 0 is v." in found["reading"]
    read = [f"{value:.2f}" if value >= 0 else words[-1 - int(value)] for value in example["prompts"]]
    if config.tokens == "characters":
        listed, query = example["text"].split("'Find")
        assert "".join(read).rstrip("#") == re.sub(r"[\[', ]", "", listed) + f"Find{query[:-2]}"
    else:
        assert read == re.findall(r"Cat\D?\d+|min|max|sum|\d+\.\d+", example["text"])


def test_shorter_sequences(tmp_path, unchecked):
    model = OF_TOKENS["letters"].build()
    to_torch(model, tmp_path / "own.pt2", length=3)
    x = samples(model, 5, n=3)
    assert_same(torch.export.load(tmp_path / "own.pt2").module()(x), model, x)


def test_lengths_that_tokens_do_not_have():
    for kind, length, wrong in (
        ("letters", 1, "length is 1; it must be a whole number of at least 2."),
        ("table", 1, "length is 1; it must be a whole number of at least 2."),
        ("elements", 9, "length is 9; prompts whose tokens are 'prompts' have 23 positions."),
        ("characters", 23, "length is 23; prompts whose tokens are 'characters' have 101 positions."),
        ("prompt table", 24, "length is 24; prompts whose tokens are 'prompts' have 23 positions."),
    ):
        with pytest.raises(posattn.UsageError, match=f"^{re.escape(wrong)}$"):
            simplest(OF_TOKENS[kind].build(), length)


def test_tokens_that_a_file_is_checked_with(tmp_path, monkeypatch):
    """Samples of the task at scales 1 and 10, one and a hundred at a time; or those given."""
    model, seen = OF_TOKENS["letters"].build(), []
    other_file(model, lambda x: seen.append(x) or model(x), monkeypatch)
    to_torch(model, tmp_path / "own.pt2")
    assert [len(x) for x in seen] == [1, 100, 1, 100] and all(x.dtype == torch.int64 for x in seen)
    assert ["".join(sorted(set(posattn.task("khop").spell(x[:, 1:].flatten())))) for x in seen[1::2]] == ["abcde", "fghij"]
    seen.clear()
    to_torch(model, tmp_path / "own.pt2", lists=samples(model, 7))
    assert [len(x) for x in seen] == [1, 7]
    with pytest.raises(posattn.UsageError, match=r"the input is of torch\.float32; this network reads torch\.int64"):
        to_torch(model, tmp_path / "other.pt2", lists=samples(model, 7).float())
    assert not (tmp_path / "other.pt2").exists()


def test_a_table_file_with_other_logits_is_not_written(tmp_path, monkeypatch):
    """Words that are never an answer have logits of -10,000; an error of 0.01 in the others is seen beside them."""
    model = OF_TOKENS["table"].build()
    other_file(model, lambda x: torch.where(model(x) > -100, model(x) + 0.01, model(x)), monkeypatch)
    with pytest.raises(RuntimeError, match=r"^at scale 1 the exported network is off by"):
        to_torch(model, tmp_path / "own.pt2")
    assert not list(tmp_path.iterdir())


# Compiled programs. Unchecked: checks of shapes would fix the number of lists in a traced network.


def test_vectors_integers_and_small_bounds_are_exported(tmp_path, unchecked):
    """Machine i ends with the sum of its two inputs and its left neighbour's integer."""
    rounds = (Round(lambda i: [(i, (0, 1)), *([(i - 1, (2,))] if i else [])], lambda m: [m[0] + m[1], m[2], 0]),)
    inputs = (Known(0, 3, True), Known(-0.5, 0.5))
    program = PCOC(3, 3, inputs, rounds, (0, 1), start=lambda m: [m[0], m[1], m[0]])
    assert to_torch(compile_program(program).model, tmp_path / "own.pt2") < 1e-6
    found = torch.export.load(tmp_path / "own.pt2").module()(torch.tensor([[[1.0, 0.5], [3.0, -0.5], [2.0, 0.25]]]))
    assert found.tolist() == [[[1.5, 0], [2.5, 1], [2.25, 3]]]


def test_a_compiled_program_of_letters_takes_numbers(tmp_path, unchecked):
    """Per machine the letter, from a = 0, and the hop count; the answer is a letter, or -1 where none is found."""
    model, text = posattn.compile("khop", 5), "1abcab"
    to_torch(model, tmp_path / "khop.pt2")
    x = torch.tensor([[[ord(letter) - ord("a"), float(text[0])] for letter in text[1:]]])
    found = torch.export.load(tmp_path / "khop.pt2").module()(x)
    assert found.round().tolist() == [[-1, -1, -1, 1, 2]]


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


def test_every_output_of_a_compiled_program_is_judged_by_itself(tmp_path, unchecked):
    @posattn.program(x=Whole(0, 10**7))
    def ranked(me, n, x):
        heard = yield send(range(n), x)
        return x, sum(message[0] < x for message in heard)

    with pytest.raises(posattn.UsageError, match="smaller bound"):
        to_torch(posattn.compile(ranked, 4), tmp_path / "ranked.pt2")


def test_an_output_that_is_always_zero_is_no_reason_to_refuse(tmp_path, unchecked):
    """In float32 a number less the largest of all is not exactly 0 everywhere."""

    @posattn.program(x=Real(0, 1))
    def behind(me, n, x):
        heard = yield send(range(n), x)
        return x, relu(x - heard.max(empty=0))

    assert to_torch(posattn.compile(behind, 3), tmp_path / "behind.pt2") < 1e-3
