"""The benchmark of docs/interpretability.md: its ground truth is true, and its scores tell good methods from bad ones."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

BENCHMARK = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "interpretability.py"))
Case = BENCHMARK["Case"]


@pytest.fixture(scope="module", params=[None, 3], ids=["columns", "rotated"])
def case(request):
    return Case("max-subarray", 40, 4, rotate=request.param)


def test_labels_say_where_variables_are(case):
    values, states = torch.from_numpy(case.values), torch.stack(case.states)[:, :, :4]
    for t, variable in enumerate(case.variables):
        for layer, column in variable.columns.items():
            torch.testing.assert_close(states[layer] @ case.turn[column], values[..., t])
    truth = np.maximum.accumulate([[max(sum(x[k : i + 1]) for k in range(i + 1)) for i in range(4)] for x in case.x], axis=1)
    np.testing.assert_allclose(case.network.answers(case.states[-1]).numpy(), truth, atol=1e-9)


def test_a_rotated_network_has_no_variable_in_a_column():
    plain, turned = Case("max-subarray", 40, 4), Case("max-subarray", 40, 4, rotate=3)
    states = turned.states[1][:, :4]
    torch.testing.assert_close(states @ turned.turn.T, plain.states[1][:, :4])
    for variable in np.moveaxis(plain.values, -1, 0):
        assert not any(np.allclose(states[..., column], variable, atol=1e-3) for column in range(states.shape[-1]))


def test_an_exported_network_runs_without_the_package(case, tmp_path):
    case.export(tmp_path)
    runner = tmp_path / "plain_network.py"
    assert "import posattn" not in runner.read_text() and "from posattn" not in runner.read_text()
    network = runpy.run_path(str(runner))["PlainNetwork"].read(tmp_path)
    data = load_file(tmp_path / "data.safetensors")
    states = network.states(data["inputs"])
    torch.testing.assert_close(network.answers(states[-1]), data["answers"])
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert len(labels["variables"]) > 4
    for variable in labels["variables"]:
        for layer, column in variable["columns"].items():
            found = states[int(layer)][:, :4] @ data["directions"][column]
            torch.testing.assert_close(found, data[f"variables.{variable['name']}"])
    for layer, heads in enumerate(labels["communication"]):  # null: it listens to the blank position
        heard = network.attention(layer).argmax(dim=-1)[:, :4].tolist()
        assert [[4 if i is None else i for i in head] for head in heads] == heard


def test_the_probe_finds_what_is_there_and_no_more(case):
    found = BENCHMARK["probe"](case)
    there = BENCHMARK["present"](case)
    assert found.r2[there].min() > 0.999999 and found.r2[~there].max() < 0.95
    scores = BENCHMARK["probe_scores"](case, found)
    assert (scores["AUROC"], scores["precision"], scores["recall"]) == (1, 1, 1)


def test_patches_along_true_directions_are_those_of_the_program_and_others_are_not(case):
    scores = BENCHMARK["patch_variables"](case, 10)
    assert (scores["precision"], scores["recall"]) == (1, 1) and scores["error"] < 1e-9
    random = np.random.default_rng(0).normal(size=(len(case.variables), 3, len(case.turn)))
    assert BENCHMARK["patch_variables"](case, 10, random)["precision"] < 0.9


def test_a_patched_program_gives_what_the_changed_numbers_mean():
    """After a round of prefix sums machine 1 has x_0 + x_1. Replaced by 7, machines 1 and 3 end with 7 and 7 + x_2 + x_3."""
    case = Case("prefix-sum", 4, 4)
    memory = case.memory[1][:1].copy()
    memory[0, 1, :] = 7.0  # what it keeps, and what it sends
    x = case.x[0, :, 0]
    np.testing.assert_allclose(case.memories(memory, 2)[-1][0, :, 0], [x[0], 7, x[:3].sum(), 7 + x[2] + x[3]])


def test_patched_machines_are_heard_by_those_who_listen(case):
    assert BENCHMARK["patch_machines"](case, 10) == {"precision": 1, "recall": 1}


def test_the_area_under_the_curve():
    scores, truth = np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False])
    assert BENCHMARK["auroc"](scores, truth) == (1 + 1 + 0.5 + 1) / 4
    said = BENCHMARK["precision_recall"](scores > 0.4, truth)
    assert said == {"precision": 2 / 3, "recall": 1}
