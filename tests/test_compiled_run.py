"""Compiled programs in folders: the network comes back as it was, and a damaged folder is refused."""

import json

import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiled_run import CompiledRun, save
from posattn.compiler import compile_program
from posattn.files import Damaged

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_saved_network_is_the_network(tmp_path):
    save(compile_program("bitonic-sort", 5), tmp_path / "sorter")
    x = torch.randn(20, 5, dtype=torch.float64)
    run = posattn.load(tmp_path / "sorter")
    assert (run.predict(x)[0] == compile_program("bitonic-sort", 5).model(x)).all()
    assert (run.truth(x) == x.sort(dim=-1).values).all()


def test_damaged_folders_are_refused(tmp_path):
    save(compile_program("prefix-sum", 2), tmp_path / "own")
    (tmp_path / "own" / "program.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(Damaged, match="does not describe a compiled program"):
        posattn.load(tmp_path / "own")
    save(compile_program("prefix-sum", 2), tmp_path / "other")
    weights = tmp_path / "other" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(Damaged, match="checksum"):
        posattn.load(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a trained run"):
        save(compile_program("prefix-sum", 2), tmp_path / "run")


@pytest.mark.parametrize("name", ["word-count", "list-ranking", "prefix-sum"])
def test_an_export_is_checked_with_inputs_that_the_program_answers(name):
    run = CompiledRun(name, compile_program(name, 3, bound=0.25, values="lean").model)
    x = run.examples()
    torch.testing.assert_close(run.predict(x)[0], run.truth(x))
    assert x.shape == (100, 3, 2)[: 2 + (name == "word-count")]
