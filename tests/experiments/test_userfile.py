"""Experiments from files: the two examples of the docs run, and bad declarations get one sentence each."""

from pathlib import Path

import pytest
import torch

from posattn.errors import UsageError
from posattn.experiments import Engine, Store, reproduce
from posattn.experiments.userfile import load_experiment
from posattn.runs import load

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


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


def test_a_toml_file(tmp_path):
    experiment = load_experiment(EXAMPLES / "narrow.toml")
    cells = experiment.cells("paper")
    assert len(cells) == 2 * 2 * 2 * 5 and cells[0].recipe.epochs == 1000 and cells[0].recipe.schedule == "cosine"
    assert {cell.label: cell.model.width for cell in cells} == {"standard": 64, "positional, width 16": 16}
    outcome = reproduce(experiment, "smoke", tmp_path / "out", Store(tmp_path / "store"), Engine(torch.device("cpu")))
    assert set(outcome.table["view"]) == {"training lists", "scale 3"} and set(outcome.rows["samples"]) == {66, 200}


@pytest.mark.parametrize(
    ("measure", "rows"),
    [
        ('kind = "fine-tuned"\nscale = 5', {"stage": {"in distribution", "out of it", "after fine-tuning"}}),
        ('kind = "shifts"\nnames = ["training", "sparse"]', {"distribution": {"training", "sparse"}}),
    ],
)
def test_a_toml_file_with_another_measure_and_a_graph_network(tmp_path, measure, rows):
    text = f'{GOOD}seeds = 1\n[[series]]\nlabel = "graph"\narch = "gcn"\ngraph = "star"\n[measure]\n{measure}\n'
    if "fine" in measure:  # a graph network has no V matrices
        text = text.replace('arch = "gcn"\ngraph = "star"', 'arch = "standard"')
    (tmp_path / "own.toml").write_text(text)
    experiment = load_experiment(tmp_path / "own.toml")
    outcome = reproduce(experiment, "smoke", tmp_path / "out", Store(tmp_path / "store"), Engine(torch.device("cpu")))
    assert set(outcome.rows["series"]) == {"positional", "graph"} and outcome.figure.exists()
    for column, values in rows.items():
        assert set(outcome.rows[column]) == values


GOOD = 'name = "x"\n[grid]\ntasks = ["sum"]\narchs = ["positional"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", r"is not valid TOML: .*\.$"),
        ('[grid]\ntasks = ["sum"]\narchs = ["positional"]', r"has no name\.$"),
        ('name = "x"', r"has no grid\.$"),
        ("name = 3\n[grid]", r"^name in .* is 3; it must be text\.$"),
        (GOOD.replace("sum", "product"), r"^grid\.tasks is 'product'; it must be one of sum, "),
        (GOOD.replace("positional", "mamba"), r"^grid\.archs is 'mamba'; it must be one of positional, "),
        (GOOD + "seeds = 1.5", r"^grid\.seeds in .* is 1\.5; it must be a whole number\.$"),
        (
            GOOD + "lengths = [8]",
            r"has 'grid\.lengths'; grid has tasks, archs, n, layers, samples, seeds, variable_length\.$",
        ),
        (GOOD + "[plot]", r"has 'plot'; the file has name, title, "),
        (
            GOOD + '[recipe]\nname = "secret"',
            r"^recipe\.name is 'secret'; it must be one of paper, tuned, looped, sorter, selector\.$",
        ),
        (GOOD + "[recipe]\nspeed = 3", r"^recipe in .* has a field that recipes do not have"),
        (GOOD + "[recipe]\nlr = -1", r"^lr is -1"),
        (
            GOOD + '[recipe]\nname = "selector"',
            r"^recipe in .* trains 'attention\.logits' alone, which takes a run to begin with\.$",
        ),
        (GOOD + '[figure]\nx = "moon"', r"^figure\.x is 'moon'; it must be one of scale, samples, n, layers\.$"),
        (GOOD + "[[series]]\nwidth = 3", r"has no series\.label\.$"),
        (GOOD + '[[series]]\nlabel = "a"\ncolour = 3', r"^the series 'a' has settings that its network does not take"),
        (GOOD.replace('["positional"]', "[]"), r"names no architecture; grid needs at least one\.$"),
        (GOOD + "n = [0]", r"^grid\.n is 0"),
        (GOOD + "n = []", r"^grid\.n in .* is empty"),
        (GOOD + "seeds = 0", r"^grid\.seeds is 0"),
        (GOOD.replace('"x"', '"../x"'), r"^name in .* is '\.\./x'; it must be letters"),
        (
            GOOD.replace('"x"', '"fix-scale"'),
            r"^name in .* is 'fix-scale', an experiment of the package; it must be ano",
        ),
        (GOOD + "[measure]\nfactors = [0]", r"^measure\.factors is 0"),
        (GOOD + "[measure]\nfactors = []", r"^measure\.factors in .* is empty"),
        (GOOD + '[measure]\nfactors = ["a"]', r"^measure\.factors is 'a'"),
        (
            GOOD + '[measure]\nkind = "weights"',
            r"^measure\.kind is 'weights'; it must be one of scales, fine-tuned, shifts\.$",
        ),
        (GOOD + '[measure]\nkind = "shifts"\nnames = ["moon"]', r"^distribution is 'moon'"),
        (
            GOOD + '[measure]\nkind = "shifts"\nfactors = [1]',
            r"has 'measure\.factors'; measure has kind, names, samples\.$",
        ),
        (
            GOOD + '[measure]\nkind = "fine-tuned"\nscale = "big"',
            r"^measure\.scale in .* is 'big'; it must be a number\.$",
        ),
        (
            GOOD + '[measure]\nkind = "fine-tuned"\nscale = true',
            r"^measure\.scale in .* is True; it must be a number\.$",
        ),
        (GOOD + '[measure]\nkind = "shifts"\nnames = []', r"^measure\.names in .* is empty"),
        (
            GOOD + '[[series]]\nlabel = "g"\narch = "gcn"\n[measure]\nkind = "fine-tuned"',
            r"fine-tunes 'g', a graph network, which has no V matrices\.$",
        ),
        (GOOD + '[measure]\nkind = "fine-tuned"\nepochs = 0', r"^measure\.epochs is 0"),
        (
            GOOD + '[measure]\nkind = "shifts"\n[figure]\nx = "n"',
            r"has a figure, which goes with measure\.kind scales alone",
        ),
        (GOOD + '[figure]\ncolumns = ["foo"]', r"^figure\.columns is 'foo'"),
        (GOOD + "[figure]\nviews = [1]", r"^figure\.views in .* has 1"),
        (GOOD + '[figure]\nviews = [{ metric = "beauty" }]', r"^figure\.views\.metric is 'beauty'"),
        (GOOD + "[figure]\nviews = [{ where = { colour = 1 } }]", r"^figure\.views\.where is 'colour'"),
        (GOOD + '[[series]]\nlabel = "positional"\narch = "standard"', r"has two series of one label"),
    ],
)
def test_bad_declarations_get_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        load_experiment(path)
    assert "\n" not in str(caught.value)


def test_bad_files_get_one_sentence(tmp_path):
    (tmp_path / "empty.py").write_text("EXPERIMENT = 3")
    (tmp_path / "broken.py").write_text("import nowhere_at_all")
    for name, sentence in [
        ("empty.py", "does not define EXPERIMENT"),
        ("broken.py", "could not be run: ModuleNotFoundError"),
        ("none.toml", "which does not exist"),
        ("own.yaml", "it must end in .py or .toml"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            load_experiment(tmp_path / name)
