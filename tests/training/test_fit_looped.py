"""Training of looped networks: sharpening, lengths, ensembles, and tests at lengths beyond those trained on."""

import json
import math
from dataclasses import replace

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.training import Member, Recipe, RunSpec, Trainer, fit, train_spec
from posattn.training.parameters import Parameters
from posattn.training.recipe import recipe
from posattn.training.ways import way_for
from posattn.training.workers import Workers

CPU = torch.device("cpu")
SMALL = ModelConfig(n=8, arch="looped", embed=8, width=8, sharpness=10.0)
SHORT = Recipe(
    schedule="cosine", lr=3e-3, epochs=4, batch=20, samples=60, warmup=0.1, clip=1.0, sharpen_from=0.25, sharpen_to=0.75
)
TEAM = (Member("sum", 0, 3e-3), Member("min", 1, 1e-3), Member("maxsub", 2, 2e-3))
DIGEST = "0ac4aa20fe09"  # of a run before there was sharpening


def test_the_factor_on_the_logits_grows_from_1_to_the_sharpness_and_stays():
    with Workers() as workers:
        trainer = Trainer(SMALL, SHORT, TEAM, CPU, workers)
    factors = 10 * trainer.sharpness
    assert len(factors) == 4 * 3 + 1
    torch.testing.assert_close(factors[:4], torch.ones(4))
    torch.testing.assert_close(factors[9:], torch.full((4,), 10.0))
    torch.testing.assert_close(factors[6], torch.tensor(math.sqrt(10)))  # geometric: half-way is the root
    assert (factors.diff() >= 0).all()


def test_a_step_sees_the_gradient_of_the_network_with_that_factor():
    """Prepared logits and their adjoint against a network whose sharpness is the factor's share of its own."""
    parameters = Parameters.initial(SMALL, [0, 1], CPU)
    x, y = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    softer = replace(SMALL, sharpness=2.5)
    found = []
    for config, factor in ((SMALL, torch.tensor(0.25)), (softer, None)):
        program = way_for(config, CPU)
        prepared = program.prepare(parameters, slice(0, 2), 8, factor)
        loss, gradients = program.gradient(prepared.tensors, x, y, 5)
        found.append((loss, prepared.adjoint(gradients)))
    torch.testing.assert_close(found[0], found[1])
    assert parameters.by_name(found[0][1])["layers.0.attention.logits"].abs().max() > 0


def test_members_do_not_notice_each_other():
    together = train_spec(RunSpec(SMALL, SHORT, TEAM, (2, 8)), CPU)
    for index, member in enumerate(TEAM):
        alone = train_spec(RunSpec(SMALL, SHORT, (member,), (2, 8)), CPU)
        assert torch.equal(alone.parameters.flat[0], together.parameters.flat[index])


def test_a_looped_network_learns_and_keeps_its_answers_in_a_folder(tmp_path):
    """Cumulative sums, and the relative error at four times the length trained on is still far below that of no answer."""
    config = ModelConfig(n=8, arch="looped", embed=16, width=16)
    plan = {
        "samples": 2000,
        "epochs": 15,
        "batch": 100,
        "lr": 5e-3,
        "recipe": recipe("looped", polish=0),
        "device": "cpu",
    }
    run = posattn.train("sum", config, out=tmp_path / "run", **plan)
    assert run.status == ["ok"]
    found = run.evaluate_lengths([8, 32], scales=[1, 10], samples=50).set_index(["n", "scale"])
    table, plain = found["relative_square"], run.evaluate([1, 10], samples=50).set_index("scale")
    for column in ("mse", "closeness"):
        assert [found[column][8, c] for c in (1, 10)] == pytest.approx(plain[column].tolist(), rel=1e-4)
    assert table[8, 1] < 0.01 and table[32, 10] < 0.2
    again = posattn.load(tmp_path / "run")
    assert again.evaluate_lengths([32], [10], 50)["relative_square"].item() == table[32, 10]
    assert torch.equal(again.predict([1.0, 2.0, 3.0]), run.predict([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"arch": "looped"}, "looped"), ({"arch": "looped", "family": "butterfly"}, "sorter"), ({}, "paper")],
)
def test_a_network_learns_by_the_recipe_of_its_kind_unless_told_otherwise(settings, name):
    learned = "sort" if name == "sorter" else "sum"
    config, small = ModelConfig(n=2, **settings), {"samples": 2, "epochs": 1, "batch": 2, "polish": 0, "device": "cpu"}
    assert posattn.train(learned, config, **small).spec.recipe == recipe(name, samples=2, epochs=1, batch=2, polish=0)
    assert posattn.train(learned, config, recipe="tuned", **small).spec.recipe.name == "tuned"


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ("min-total", "^no looped network is known to solve min-total; .* It is learned roughly at best.$"),
        (["sum", "sort"], "^family is 'dilated'; the looped networks that solve sort are of family 'butterfly'. It is"),
    ],
)
def test_python_doubts_what_no_network_of_the_family_solves_as_the_command_does(tasks, sentence):
    small = {"samples": 2, "epochs": 1, "batch": 2, "polish": 0, "device": "cpu"}
    with pytest.warns(UserWarning, match=sentence) as caught:
        posattn.train(tasks, ModelConfig(n=2, arch="looped"), members=1 if isinstance(tasks, str) else 2, **small)
    assert [each.filename for each in caught] == [__file__]  # the user's line


def test_shorter_lists_count_in_the_last_steps_of_a_training_without_stay():
    """They are given the longest lists, and told of the shorter lengths; what they make of these is tested beside them."""
    config = ModelConfig(n=4, arch="looped", embed=1, heads=1, width=2, mlp=((2,),), stay=False)
    plan = {"samples": 400, "epochs": 20, "batch": 20, "polish": 10, "device": "cpu", "variable_length": (2, 4)}
    seen, really = [], fit.polish

    def watched(*given):
        seen.append((given[1].shape[-1], given[-1]))
        return really(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "polish", watched)
        posattn.train("sum", config, **plan)
    assert seen == [(4, [2])]


def test_lengths_of_ones_own_come_equally_often_and_are_kept():
    spec = RunSpec(SMALL, SHORT, TEAM, [8, 2, 4])
    assert spec.variable_length == (2, 4, 8) and list(spec.lengths) == [2, 4, 8]
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    with Workers() as workers:
        trainer = Trainer(SMALL, SHORT, TEAM, CPU, workers, spec.lengths)
    assert [tuple(block.x.shape) for block in trainer.blocks] == [(3, 20, 2), (3, 20, 4), (3, 20, 8)]


def test_recipes_without_sharpening_are_described_as_before():
    """The name of a stored run is a hash of its description."""
    assert not {"sharpen_from", "sharpen_to"} & set(posattn.Recipe().to_dict())
    assert {"sharpen_from", "sharpen_to"} <= set(SHORT.to_dict())
    spec = RunSpec(ModelConfig(n=8), posattn.Recipe(), (Member("sort", 0, 5e-4),))
    assert spec.digest == DIGEST


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ((2, 4), "variable_length goes up to 4; the longest length must be the model's n, 8."),
        ((8, 8), "variable_length is (8, 8); it must be True, False or a sequence of different lengths."),
        ((0, 8), "variable_length is 0; it must be a whole number of at least 1."),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, sentence):
    with pytest.raises(UsageError) as error:
        posattn.train("sum", SMALL, variable_length=lengths, device="cpu")
    assert str(error.value) == sentence


def test_bad_settings_and_lengths_are_one_sentence():
    with pytest.raises(UsageError, match=r"^sharpen_from is 0\.5; it must be at most sharpen_to, 0\.25\.$"):
        Recipe(sharpen_from=0.5, sharpen_to=0.25)
    run = train_spec(RunSpec(SMALL, SHORT, TEAM[:1]), CPU)
    with pytest.raises(UsageError, match=r"^n is 0; it must be a whole number of at least 1\.$"):
        run.evaluate_lengths([0])
    for ask in (lambda: run.evaluate_lengths(16), lambda: run.evaluate_lengths("16")):
        with pytest.raises(UsageError, match=r"^lengths is '?16'?; it must be a list, such as \[16\]\.$"):
            ask()
    for ask in (lambda: run.evaluate(3), lambda: run.evaluate_lengths([16], 3)):
        with pytest.raises(UsageError, match=r"^scales is 3; it must be a list, such as \[3\]\.$"):
            ask()
    with pytest.raises(UsageError, match=r"^lengths is empty; it must have at least one value\.$"):
        run.evaluate_lengths([])
    positional = posattn.train("sum", samples=10, epochs=1, batch=10, device="cpu")
    with pytest.raises(
        UsageError, match=r"^the positional network is for lists of up to 8 numbers only; tests by length "
    ):
        positional.evaluate_lengths([16])
