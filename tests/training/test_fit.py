"""``train``: what it refuses, how members end, the best of several starts, what a person sees and what it leaves alone."""

import math
import subprocess
import sys

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.run_folder import RunFolder
from posattn.tasks import task
from posattn.training import Member, Recipe, RunSpec, Trainer, train_spec
from posattn.training.finetune import fine_tune
from posattn.training.fit import _choose
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

CPU = torch.device("cpu")
SMALL = ModelConfig(n=3, arch="looped", family="butterfly", width=5)
THREE = Recipe(schedule="cosine", lr=1e-2, epochs=3, batch=10, samples=40, sharpen_to=0.5, starts=3)
TEAM = (Member("sort", 0, 1e-2), Member("min", 7, 2e-2))
TINY = ModelConfig(3, embed=8, width=8)
SHORT = {"samples": 40, "epochs": 3, "batch": 15, "device": "cpu"}


@pytest.fixture(scope="module")
def run():
    return train_spec(RunSpec(SMALL, THREE, TEAM), CPU)


def test_a_member_is_the_best_of_its_starts_as_each_would_be_alone(run):
    for index, member in enumerate(TEAM):
        starts = member.starts(3)
        assert starts[0] == member and len({start.seed for start in starts}) == 3
        alone = [train_spec(RunSpec(SMALL, recipe(THREE, starts=1), (start,)), CPU) for start in starts]
        losses = [each.result["train_loss"][0] for each in alone]
        assert run.result["start_losses"][index] == losses and len(set(losses)) == 3
        best = losses.index(min(losses))
        assert run.result["start"][index] == best and run.result["train_loss"][index] == losses[best]
        assert torch.equal(run.parameters.flat[index], alone[best].parameters.flat[0])
        assert run.history[run.history["member"] == index]["loss"].tolist() == alone[best].history["loss"].tolist()
    assert run.status == ["ok", "ok"] and "start" not in alone[0].result


def test_the_training_lists_are_those_of_the_start_that_was_kept(run):
    """The same figures as the kept start has alone; on test lists they are the member's, as for all its starts."""
    assert any(run.result["start"])  # or nothing is tested
    for index, member in enumerate(TEAM):
        start = member.starts(3)[run.result["start"][index]]
        assert run.best_starts[index] == start
        alone = train_spec(RunSpec(SMALL, recipe(THREE, starts=1), (start,)), CPU)
        own = run.evaluate([1], samples=40, split="train").iloc[index]
        assert own["mse"] == alone.evaluate([1], samples=40, split="train").iloc[0]["mse"]
        assert own["seed"] == member.seed
        x, y = posattn.task(member.task).sample(40, n=3, seed=member.seed, split="test")
        tested = (run.model(index)(x) - y).square().mean().item()
        assert run.evaluate([1], samples=40).iloc[index]["mse"] == pytest.approx(tested)
    tuned, other = fine_tune(run, epochs=1, lr=0.1), fine_tune(alone, epochs=1, lr=0.1)
    torch.testing.assert_close(tuned.parameters.flat[1:], other.parameters.flat)


def test_members_with_several_starts_do_not_notice_each_other(run):
    second = train_spec(RunSpec(SMALL, THREE, TEAM[1:]), CPU)
    assert torch.equal(second.parameters.flat[0], run.parameters.flat[1])


def test_a_run_with_several_starts_goes_on_where_it_stopped(run, tmp_path):
    def stop(epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_spec(RunSpec(SMALL, THREE, TEAM), CPU, tmp_path / "run", save_every=0, report=stop)
    again = train_spec(RunSpec(SMALL, THREE, TEAM), CPU, tmp_path / "run")
    assert torch.equal(again.parameters.flat, run.parameters.flat) and again.result["start"] == run.result["start"]
    assert posattn.load(tmp_path / "run").result["start_losses"] == run.result["start_losses"]


def test_a_start_without_a_loss_is_not_chosen():
    with Workers(1) as workers:
        trainer = Trainer(SMALL, THREE, TEAM[0].starts(3), CPU, workers)
    trainer.history[-1, 0] = torch.tensor([math.nan, 2.0, 1.0])
    trainer.alive[2] = False  # its gradient was not finite
    wanted = trainer.parameters.flat[1:2].clone()
    assert _choose(trainer, 3) == {"start": [1], "start_losses": [[None, 2.0, None]]}
    assert torch.equal(trainer.parameters.flat, wanted) and trainer.members == TEAM[0].starts(3)[1:2]
    assert next(trainer.steps()) is None  # and training can go on with what is left


@pytest.mark.parametrize("kept", [2, 0])
def test_members_that_are_kept_go_on_as_if_alone(kept):
    """In the middle of an epoch: with their own lists, shuffles, moments and rates, and without a trace in the others'."""
    team = [Member("sort", 3, 1e-2), Member("min", 4, 1e-2), Member("sort", 5, 2e-2)]
    plan = recipe(THREE, starts=1)
    with Workers(1) as workers:
        trainer, alone = (Trainer(SMALL, plan, members, CPU, workers) for members in (team, team[kept : kept + 1]))
        for _, _ in zip(range(6), trainer.steps(), strict=False):
            pass
        before = trainer.state_dict()  # shares memory with the trainer
        copied = {name: value.clone() for name, value in before.items()}
        lists = trainer.blocks[0].x
        trainer.keep([kept])
        for each in (trainer, alone):
            for _ in each.steps():
                pass
    assert [len(block.x) for block in trainer.blocks] == [len(block.y) for block in trainer.blocks] == [1]
    assert torch.equal(trainer.blocks[0].x[0], lists[kept]) and trainer.members == team[kept : kept + 1]
    state, wanted = trainer.state_dict(), alone.state_dict()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    rows = ("parameters", "first_moment", "second_moment")
    assert all(torch.equal(before[name], copied[name]) for name in rows)


def test_the_number_of_starts_is_part_of_the_recipe():
    assert "starts" not in Recipe().to_dict() and Recipe(**THREE.to_dict()) == THREE
    for bad in (0, 1.5, True):
        with pytest.raises(UsageError, match=rf"^starts is {bad}; it must be a whole number of at least 1\.$"):
            Recipe(starts=bad)


def test_a_network_trained_on_up_to_four_numbers_sorts_many():
    """With half of the recipe's steps, from one start."""
    run = posattn.train(
        "sort",
        ModelConfig(n=4, arch="looped", family="butterfly"),
        recipe=recipe("sorter", starts=1, epochs=12),
        seed=2,
        variable_length=True,
        device="cpu",
    )
    table = run.evaluate_lengths([4, 100], scales=[10], samples=20).set_index("n")["relative_square"]
    assert table[100] < 1e-3 and table[4] < 1e-4
    # What is learned are the exchanges: h_1 the partner everywhere, h_2 the partner or oneself.
    heads = run.model(0).layer.attention.table().argmax(dim=-1).tolist()
    partner, less, more = [2, 2, 1, 1], [2, 0, 0, 1], [0, 2, 1, 0]
    assert sorted(heads) in (sorted(pair) for pair in ([partner, less], [partner, more], [less, more]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "sumo"}, "task is 'sumo'"),
        ({"config": "standard"}, "config is 'standard'"),
        ({"task": ["sum", "min", "sort"], "members": 2}, "task lists 3 values"),
        ({"lr": [1e-3], "members": 2}, "lr lists 1 value;"),
        ({"lr": [1e-3, 0], "members": 2}, "lr is 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"members": 0}, "members is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"recipe": "secret"}, "recipe is 'secret'"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"precision": "tf32"}, "precision is 'tf32'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "cuda"}, "device is 'cuda'"),
        ({"tensorboard": True, "out": None}, "tensorboard is on and out is not given"),
        ({"save_every": math.nan}, "save_every is nan"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, settings, sentence):
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError) as refused:
        posattn.train(**{"task": "sum", "config": TINY, "out": tmp_path / "run"} | SHORT | settings)
    assert str(refused.value).startswith(sentence) and str(refused.value).endswith(".")
    assert not (tmp_path / "run").exists()


# How members end.


def spec_of(members, config=TINY):
    return RunSpec(config, Recipe(samples=40, epochs=3, batch=15), tuple(members))


def test_a_member_that_diverges_is_marked_and_the_others_are_as_without_it():
    team = [Member("sum", 0, 1e-3), Member("sum", 1, 1e18), Member("min", 2, 1e-3)]
    run, healthy = train_spec(spec_of(team), CPU), train_spec(spec_of([team[0], team[2]]), CPU)
    assert run.status == ["ok", "diverged", "ok"]
    assert run.parameters.flat.isfinite().all()
    assert torch.equal(run.parameters.flat[[0, 2]], healthy.parameters.flat)
    table = run.evaluate([1, 2], 20)
    assert table["status"].tolist() == ["ok", "ok", "diverged", "diverged", "ok", "ok"]
    assert table[table["member"] != 1]["mse"].tolist() == healthy.evaluate([1, 2], 20)["mse"].tolist()
    assert run.history[run.history["member"] != 1]["loss"].tolist() == healthy.history["loss"].tolist()
    assert set(run.rows(table).query("seed == 1")["status"]) == {"diverged"}


def test_a_member_that_diverges_in_its_last_step_is_marked_too():
    run = posattn.train("sum", TINY, samples=20, epochs=1, batch=20, lr=1e18, device="cpu")
    assert run.result["validation_loss"] == [None]
    assert run.status == ["diverged"]


def test_weights_stay_finite_at_any_accepted_learning_rate():
    run = posattn.train("sum", TINY, lr=1e30, **SHORT)
    assert run.status == ["diverged"] and run.parameters.flat.isfinite().all()
    with pytest.raises(UsageError, match="lr is 1e\\+39"):  # more than float32 can hold
        posattn.train("sum", TINY, lr=1e39, **SHORT)


@pytest.mark.parametrize("arch", ["positional", "scale-exact", "standard"])
def test_a_member_whose_relus_are_all_off_is_marked_dead_and_the_others_are_as_without_it(tmp_path, arch):
    config = posattn.ModelConfig(3, arch, embed=8, width=8)
    team = [Member("sum", k, 1e-3) for k in range(3)]
    spec = spec_of(team, config)
    with Workers(1) as workers:
        trainer = Trainer(config, spec.recipe, team, CPU, workers)
        next(trainer.steps())
        named = trainer.parameters.named()
        if config.bias:
            named["layers.1.W_1.bias"][1] = -1e3
        else:
            named["layers.1.W_1.weight"][1] = 0
            trainer.first_moment[1] = 0  # or Adam's momentum would carry it out of there
    folder = RunFolder(tmp_path)
    folder.describe(spec)
    folder.save_checkpoint(spec, trainer.steps_done, trainer.state_dict() | {"seconds": torch.tensor(0.0)})
    run = train_spec(spec, CPU, tmp_path)
    assert run.status == posattn.load(tmp_path).status == ["ok", "dead", "ok"]
    healthy = train_spec(spec, CPU)
    assert torch.equal(run.parameters.flat[[0, 2]], healthy.parameters.flat[[0, 2]])
    assert healthy.status == ["ok"] * 3


def test_too_high_a_learning_rate_kills_and_the_dead_are_found():
    config = posattn.ModelConfig(3, "scale-exact", embed=8, width=8)
    run = posattn.train("sum", config, members=6, samples=60, epochs=20, batch=10, lr=0.5, device="cpu")
    dead = [k for k, status in enumerate(run.status) if status == "dead"]
    assert dead
    for k in dead:
        _, y = task("sum").sample(60, n=3, seed=k)
        assert run.result["train_loss"][k] == pytest.approx(y.square().mean().item(), rel=0.01)  # it answers 0
        assert len(run.predict(torch.randn(10, 3))[k].unique(dim=0)) == 1


# What a person sees.


def test_tensorboard_events_hold_the_losses_of_the_history(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as accumulator  # the test extra has it

    shown = {"out": tmp_path / "run", "tensorboard": True, "progress": True}
    run, plain = (posattn.train(["sum", "min"], TINY, members=2, **more, **SHORT) for more in (shown, {}))
    assert torch.equal(run.parameters.flat, plain.parameters.flat)  # what is shown does not change the numbers
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert len(events.Tags()["scalars"]) == 4
    for k, name in enumerate(("sum", "min")):
        own = run.history[run.history["member"] == k]
        for column in ("loss", "lr"):
            scalars = events.Scalars(f"{column}/{name}/seed {k}")
            assert [event.step for event in scalars] == own["epoch"].tolist() == [0, 1, 2]
            assert [event.value for event in scalars] == pytest.approx(own[column].tolist(), rel=1e-6)


def test_training_and_evaluating_draw_nothing_from_the_callers_random_numbers():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    run = posattn.train("sum", TINY, **SHORT)
    run.evaluate([1], samples=10)
    run.model(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_precision_settings_of_either_kind_are_no_obstacle():
    script = "import torch, posattn; torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
    script += "run = posattn.train('sum', posattn.ModelConfig(3), samples=20, epochs=1, device='cpu')\n"
    script += "run.evaluate([1], samples=10); assert torch.backends.cuda.matmul.fp32_precision == 'tf32'"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_tensorboard_that_is_missing_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(posattn.UsageError, match=r"tensorboard is not installed; install it with pip"):
        posattn.train("sum", TINY, out=tmp_path / "run", tensorboard=True, **SHORT)
    assert not (tmp_path / "run").exists()


def test_the_hardware_of_a_result_has_all_its_cores():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run = posattn.train("sum", TINY, **SHORT)
        assert "2 threads" in run.result["hardware"] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
