"""Training that begins with the networks of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.looped import AnyLengthConfig, LoopedConfig
from posattn.training import Member, Recipe, RunSpec, Trainer, train_spec
from posattn.training.begin import check_begin, fingerprint, initial_parameters, with_begin
from posattn.training.recipe import RECIPES
from posattn.training.workers import Workers

LOGITS = LoopedConfig.sharpened

STORED = Path(__file__).parents[2] / "results" / "length-generalization"
CPU = torch.device("cpu")
SORTER = ModelConfig(n=3, arch="looped", family="butterfly", width=5)
SELECTOR = ModelConfig(n=5, arch="looped", family="selector", width=5)
QUICK = Recipe(schedule="cosine", lr=1e-2, epochs=2, batch=10, samples=20, sharpen_to=0.5, starts=2)
SHORT = {"samples": 20, "epochs": 2, "batch": 10, "device": "cpu"}


@pytest.fixture(scope="module")
def sorters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "sorters"
    return posattn.train("sort", SORTER, members=2, recipe=QUICK, device="cpu", out=folder)


def first(config, run, members=2, plan=QUICK):
    """The parameters before the first step, with the factor on their logits in it."""
    team = [start for k in range(members) for start in Member("median-total", 7 + k, 1e-2).starts(plan.starts)]
    with Workers(1) as workers:
        trainer = Trainer(config, plan, team, CPU, workers)
    factor = 1.0 if trainer.sharpness is None else float(trainer.sharpness[1])
    return trainer.parameters, initial_parameters(trainer, run, plan.starts), factor


@pytest.mark.parametrize("sharpen_to", [0.0, 0.5])
def test_in_the_first_step_every_start_is_the_runs_network(sorters, sharpen_to):
    plan = posattn.training.recipe.recipe(QUICK, sharpen_to=sharpen_to)
    _, parameters, factor = first(SORTER, sorters, plan=plan)
    assert (factor == 1.0) == (sharpen_to == 0.0)
    parameters.named()[LOGITS].mul_(factor)
    x = torch.randn(4, 9)
    for k in range(4):
        torch.testing.assert_close(parameters.model(k)(x), sorters.model(k // 2)(x))


def test_a_larger_family_has_the_runs_rows_first_and_new_rows_after_them(sorters):
    fresh, parameters, factor = first(SELECTOR, sorters)
    table, old = parameters.named()[LOGITS], sorters.parameters.named()[LOGITS].repeat_interleave(2, dim=0)
    torch.testing.assert_close((factor * table[:, :, :4]).softmax(-1), old.softmax(-1))
    assert torch.equal(table[:, :, 4:], fresh.named()[LOGITS][:, :, 4:])
    assert not torch.equal(table[0, :, 4:], table[1, :, 4:])  # starts differ in what is new
    name = "layers.0.W_1.weight"
    assert torch.equal(parameters.named()[name][::2], sorters.parameters.named()[name])


def test_what_a_member_began_with_is_part_of_its_identity(sorters):
    plain = RunSpec(SELECTOR, QUICK, (Member("median-total", 0, 1e-2),))
    assert "begin" not in plain.to_dict()["members"][0]  # nor in runs from before
    spec = with_begin(plain, sorters)
    other = with_begin(plain, posattn.train("sort", SORTER, seed=5, recipe=QUICK, device="cpu"))
    assert len({each.identity(0) for each in (plain, spec, other)}) == 3
    assert len({each.digest for each in (plain, spec, other)}) == 3
    assert RunSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(UsageError, match=r"^begin of member 0 is [0-9a-f]{16}; the weights given for it are None\.$"):
        train_spec(spec, CPU)
    with pytest.raises(UsageError, match=r"^begin of member 0 is None; the weights given for it are [0-9a-f]{16}\.$"):
        train_spec(plain, CPU, begin=sorters)


def test_a_run_that_begins_with_another_goes_on_where_it_stopped(sorters, tmp_path):
    spec = with_begin(RunSpec(SELECTOR, QUICK, (Member("median-total", 0, 1e-2),)), sorters)
    whole = train_spec(spec, CPU, begin=sorters)

    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_spec(spec, CPU, tmp_path / "run", save_every=0, report=stop, begin=sorters)
    again = train_spec(spec, CPU, tmp_path / "run", begin=sorters)
    assert torch.equal(again.parameters.flat, whole.parameters.flat)
    read = posattn.load(tmp_path / "run")  # the run it began with need not be there
    assert read.spec == spec and torch.equal(read.parameters.flat, whole.parameters.flat)


def test_the_network_is_the_runs_by_default_and_training_goes_on_from_its_weights(tmp_path):
    settings = {"samples": 500, "batch": 50, "device": "cpu"}
    network = ModelConfig(n=3, layers=1, embed=8, width=16)
    before = posattn.train("sum", network, epochs=20, lr=1e-2, out=tmp_path / "before", **settings)
    after = posattn.train("sum", begin=tmp_path / "before", epochs=1, **settings)
    assert after.spec.model == network
    new = posattn.train("sum", network, epochs=1, **settings)
    assert after.result["train_loss"][0] < 2 * before.result["train_loss"][0] < 0.5 * new.result["train_loss"][0]


def test_of_a_run_of_several_tasks_it_is_said_which_networks_are_begun_with():
    settings = {"samples": 20, "epochs": 1, "batch": 20, "device": "cpu"}
    network = ModelConfig(n=3, layers=1, embed=4, width=4)
    several = posattn.train(["sum", "sum", "min"], network, members=3, **settings)
    for members, tasks in ((2, "sum"), (3, "sum, min")):
        lines = []
        posattn.train("min", begin=several, members=members, announce=lines.append, **settings)
        assert lines[1:] == [f"It begins with the first {members} of the run's 3 networks, trained on {tasks}."]
    alone = posattn.train("min", begin=several, **settings)  # the network that learned it
    assert alone.spec.members[0].begin == fingerprint(several.parameters.flat[2])
    lines = []
    posattn.train("min", begin=posattn.train("sum", network, **settings), announce=lines.append, **settings)
    assert len(lines) == 1


def test_only_what_the_recipe_names_is_trained(sorters):
    plan = posattn.training.recipe.recipe(QUICK, only="attention.logits")
    run = posattn.train("median-total", SELECTOR, begin=sorters, members=2, recipe=plan, device="cpu")
    assert run.spec.recipe.to_dict()["only"] == "attention.logits"
    old, new = sorters.parameters.named(), run.parameters.named()
    assert {name for name in new if not torch.equal(old[name], new[name])} == {LOGITS}
    _, before, _ = first(SELECTOR, sorters)
    assert not torch.equal(new[LOGITS][:, :, 4:], before.named()[LOGITS][::2, :, 4:])
    with pytest.raises(
        UsageError,
        match=r"^the recipe selector trains 'attention\.logits' alone; give a run to begin with \(begin, or --from\), ",
    ):
        posattn.train("median-total", SELECTOR, recipe="selector", device="cpu")
    with pytest.raises(UsageError, match=r"^only is 'W_Q'; no parameter of this network has it in its name\.$"):
        unknown = posattn.training.recipe.recipe(plan, only="W_Q")
        posattn.train("median-total", SELECTOR, begin=sorters, recipe=unknown, device="cpu")


def test_sorters_learn_medians_of_long_lists_from_short_ones_by_where_they_look():
    """With a third of the recipe's steps, from one start."""
    config = ModelConfig(n=4, arch="looped", family="selector")
    plan = posattn.training.recipe.recipe("selector", starts=1, epochs=3)
    settings = {"recipe": plan, "variable_length": True, "device": "cpu"}
    run = posattn.train("median-total", config, begin=STORED / "sort-run", **settings)
    table = run.evaluate_lengths([4, 99, 100], scales=[10], samples=20).set_index("n")["relative_square"]
    assert table.max() < 1e-3


def test_the_stored_medians_began_with_the_stored_sorters():
    stored, sorters = posattn.load(STORED / "median-run"), posattn.load(STORED / "sort-run")
    assert with_begin(stored.spec, sorters) == stored.spec
    assert stored.evaluate_lengths([255, 256], scales=[10], samples=10)["relative_square"].max() < 1e-3


def test_what_cannot_begin_with_a_run_is_refused_in_a_sentence(sorters, tmp_path):
    def refused(sentence, config, **more):
        with pytest.raises(UsageError, match=f"^{sentence}$"):
            posattn.train("sort", config, begin=sorters, **SHORT | more)

    refused(r"members is 3; the run to begin with has 2\.", SORTER, members=3)
    spec = posattn.train("sort", SORTER, begin=sorters, **SHORT | {"members": 1}).spec
    with pytest.raises(UsageError, match=r"^members is 3; the run to begin with has 2\.$"):
        check_begin(replace(spec, members=spec.members * 3), sorters)
    three = ModelConfig(n=3, arch="looped", family="butterfly", heads=3, width=5)
    refused(r"heads is 3; that of the run to begin with is 2\.", three)
    scan = ModelConfig(n=3, arch="looped", family="dilated", embed=1, width=5, mlp=((5,),))
    refused(r"family is 'dilated'; that of the run to begin with is 'butterfly'\.", scan)
    refused(r"arch is 'positional'; that of the run to begin with is 'looped'\.", ModelConfig(n=3))
    own = posattn.train("median-total", SELECTOR, **{"recipe": "paper"} | SHORT)
    with pytest.raises(UsageError, match=r"^family is 'butterfly'; that of the run to begin with is 'selector'\.$"):
        posattn.train("sort", SORTER, begin=own, **SHORT)
    positional = posattn.train("sum", ModelConfig(n=3, layers=1), **SHORT)
    with pytest.raises(UsageError, match=r"^n is 4; that of the run to begin with is 3\.$"):
        posattn.train("sum", ModelConfig(n=4, layers=1), begin=positional, **SHORT)
    with pytest.raises(UsageError, match=r"^begin is a Linear; it must be a trained run, or the folder of one\.$"):
        posattn.train("sort", begin=torch.nn.Linear(1, 1), **SHORT)
    every = [AnyLengthConfig(n=n, arch="randomized", causal=True, layers=1, encoding_dim=n + 2) for n in (3, 4)]
    with pytest.raises(UsageError, match=r"^encoding_dim is 6; that of the run to begin with is 5\.$"):
        posattn.train("sum", every[1], begin=posattn.train("sum", every[0], **SHORT), **SHORT)
    reads = "the run to begin with reads lists of numbers; the task mixed-min has prompts; give one that reads these"
    for config in (None, posattn.TokenConfig(n=23, tokens="prompts")):
        with pytest.raises(UsageError, match=rf"^{reads}\.$"):
            posattn.train("mixed-min", config, begin=positional, **SHORT)
    with pytest.raises(UsageError, match=r"holds no run: it has no run\.json\.$"):
        posattn.train("sort", begin=tmp_path, **SHORT)


def test_a_network_of_the_package_is_gone_on_with():
    plan = {"samples": 20, "epochs": 1, "batch": 10, "lr": 1e-9, "device": "cpu"}
    network, x = posattn.pretrained("sort"), torch.randn(4, 8)
    run = posattn.train(begin=network, **plan)
    assert [member.task for member in run.members] == ["sort"] and run.spec.model == network.config
    torch.testing.assert_close(run.predict(x)[0], network(x), rtol=0, atol=1e-4)
    assert posattn.train("min", begin=network, **plan).members[0].task == "min"
    assert posattn.train(begin=run, **plan).members[0].task == "sort"  # a run's own task
    with pytest.raises(UsageError, match=r"^task is missing; give a task's name, a function of lists, or data \(x, y\)\.$"):
        posattn.train(begin=posattn.Transformer(network.config), **plan)


# --- compiled weights as a beginning ----------------------------------------------------------------------------------------


def test_all_members_begin_with_a_compiled_network_and_part_by_their_lists(tmp_path):
    program = posattn.compile("prefix-min", machines=3, epsilon=1e-3, bound=20.0)
    still = posattn.train("min", begin=program, members=2, **SHORT | {"lr": 1e-12})
    x, y = posattn.task("min").sample(50, n=3, scale=10)
    for member in range(2):
        assert (still.model(member)(x) - y).square().mean() < 1e-6  # in float32, and softmax may move answers by 1e-3
    run = posattn.train("min", begin=program, members=2, lr=1e-3, out=tmp_path / "run", **SHORT)
    assert run.config.kind == "program" and not torch.equal(*run.parameters.flat)
    assert len({member.begin for member in run.spec.members}) == 1 and run.spec.members[0].begin is not None
    again = posattn.load(tmp_path / "run")
    assert torch.equal(again.parameters.flat, run.parameters.flat) and again.evaluate([1], samples=10)["mse"].notna().all()
    (tmp_path / "run" / "weights.safetensors").unlink()
    (tmp_path / "run" / "weights.json").unlink()
    read = posattn.train("min", begin=program, members=2, lr=1e-3, out=tmp_path / "run", **SHORT)
    assert torch.equal(read.parameters.flat, run.parameters.flat)


def test_the_program_for_a_task_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {
        begin: posattn.train("sort", begin=begin, **SHORT).spec.model.layers
        for begin in ("compiled", "compiled:bitonic-sort", "compiled:odd-even-sort")
    }
    assert found == {"compiled": 7, "compiled:bitonic-sort": 7, "compiled:odd-even-sort": 9}

    def refused(sentence, task, begin, **more):
        with pytest.raises(UsageError, match=f"^{sentence}"):
            posattn.train(task, begin=begin, **SHORT | more)

    refused(r"the program for sort is 'prefix-sum'; ", "sort", "compiled:prefix-sum")
    only = "no program of lists solves {}; there are some for sum, min, maxsub, sort, median\\."
    refused(rf"from is 'compiled'; {only.format('khop')}", "khop", "compiled")
    refused(rf"from is 'compiled'; {only.format('sum-total')}", "sum-total", "compiled")
    refused(r"hardmax is True; hardmax has no gradient, ", "sum", posattn.compile("prefix-sum", machines=8))
    refused(r"inputs is 2; tasks of lists have 1 number per position\.", "sum", posattn.compile("word-count", 2, epsilon=1.0))
    refused(r"heads is 2; that of the run to begin with is 1|\w+ is ", "sum", "compiled", config=ModelConfig(n=3))
    (tmp_path / "compiled").mkdir()  # a folder of that name comes first
    refused(r"compiled holds no run: ", "sort", "compiled")


def test_members_of_several_tasks_do_not_begin_with_one_program():
    with pytest.raises(UsageError, match="the tasks sum, min; a program to begin with solves only one"):
        posattn.train(["sum", "min"], ModelConfig(n=4), members=2, begin="compiled", samples=50, epochs=1)


def test_a_table_network_goes_on_with_the_attention_that_it_has():
    """Its logits are divided by the factor that sharpening begins with, like those of looped networks."""
    run = posattn.load(STORED.parent / "mixed-scan" / "networks")
    plan = replace(RECIPES["prompt-table"], starts=1, lr=1e-12, samples=256, epochs=1)
    again = posattn.train("mixed-min", run.config, begin=run, members=1, recipe=plan, device="cpu")
    assert again.history["loss"].item() < 1e-3
