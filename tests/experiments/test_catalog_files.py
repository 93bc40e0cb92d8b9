"""Experiments from files: the examples of the docs run, and bad files get one sentence each."""

from pathlib import Path

import pytest
import torch

from posattn.errors import UsageError
from posattn.experiments import EXPERIMENTS, Engine, Store, reproduce
from posattn.experiments.catalog import experiments_named, load_experiment
from posattn.runs import load

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
GOOD = """
from posattn.experiments import Experiment, Grid, series
EXPERIMENT = Experiment('x', 'nowhere', 'a trial', Grid(('sum',), series('positional')))
"""


def test_a_python_file_with_a_task_an_encoding_and_a_network_of_its_own(tmp_path, tables):
    experiment, store = load_experiment(EXAMPLES / "range_experiment.py"), Store(tmp_path / "store")
    outcome = reproduce(experiment, "smoke", tmp_path / "out", store, Engine(torch.device("cpu")))
    assert list(dict.fromkeys(outcome.rows["series"])) == [
        "scale-exact",
        "scale-exact, polynomial",
        "recurrent, width 64",
    ]
    assert set(outcome.rows["task"]) == {"range"} and set(outcome.rows["arch"]) == {"scale-exact", "recurrent"}
    assert outcome.rows["value"].notna().all() and outcome.figure.exists()
    run = load(next((tmp_path / "store" / "runs").glob("recurrent-*")))
    assert run.model(0)(torch.zeros(4, 8)).shape == (4, 8)
    assert run.spec.model.build().inner.weight.shape == (64, 64)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("EXPERIMENT = 3", r"own\.py does not define EXPERIMENT; it must be a posattn\.experiments\.Experiment\.$"),
        ("import nowhere_x", r"own\.py could not be run \(line 1\): ModuleNotFoundError: No module named 'nowhere_x'\.$"),
        (GOOD.replace("'x'", "'fix-scale'"), r"^name in .* is 'fix-scale', an experiment of the package; it must be ano"),
        (GOOD.replace("'x'", "'../x'"), r"own\.py: name is '\.\./x'; it must be letters"),
        (GOOD.replace("'sum'", "'product'"), r"own\.py: grid\.tasks is 'product'; it must be one of sum, "),
        (GOOD.replace("positional", "mamba"), r"own\.py: .*arch is 'mamba'; it must be one of positional, "),
        (GOOD.replace("('sum',), ", "('sum',), n=(0,), series="), r"own\.py: grid\.n is 0"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        load_experiment(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["narrow.toml", "own.yaml"])
def test_other_files_than_python_are_refused_by_a_sentence_that_says_so(tmp_path, name):
    (tmp_path / name).write_text("")
    sentence = f"the experiment's file is '{tmp_path / name}'; it must be a Python file, which ends in .py."
    for read in (load_experiment, lambda path: experiments_named(str(path))):
        with pytest.raises(UsageError) as caught:
            read(tmp_path / name)
        assert str(caught.value) == sentence
    with pytest.raises(UsageError, match="which does not exist"):
        load_experiment(tmp_path / "none.py")


def test_experiments_are_named_one_or_all():
    assert experiments_named("gnn") == [EXPERIMENTS["gnn"]] and experiments_named("all") == list(EXPERIMENTS.values())
    with pytest.raises(UsageError, match=r"^experiment is 'gnm'.*; it must be one of fix-scale, .*, all\.$"):
        experiments_named("gnm")
