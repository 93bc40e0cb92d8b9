"""A run and its folder: what it holds, what it refuses, how members end, and what a person sees of it."""

import json
import math
import os
import shutil

import pytest
import torch

import posattn
from posattn import files
from posattn.errors import UsageError
from posattn.tasks import task
from posattn.training import Member, Recipe, RunSpec, Trainer, train_spec
from posattn.training.workers import Workers

CPU = torch.device("cpu")
TINY = posattn.ModelConfig(3, embed=8, width=8)
SHORT = {"samples": 40, "epochs": 3, "batch": 15, "device": "cpu"}


def snapshot(folder):
    """Every file with its content and time."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pair"
    posattn.train(["sum", "min"], TINY, members=2, lr=[1e-3, 2e-3], seed=5, out=folder, **SHORT)
    return folder


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "run")


def test_a_run_without_a_folder_is_the_run_with_one(folder):
    loose = posattn.train(["sum", "min"], TINY, members=2, lr=[1e-3, 2e-3], seed=5, **SHORT)
    kept = posattn.load(folder)
    assert torch.equal(loose.parameters.flat, kept.parameters.flat)
    assert loose.spec == kept.spec and loose.status == kept.status == ["ok", "ok"]
    assert loose.result["train_loss"] == kept.result["train_loss"]
    assert loose.history.equals(kept.history.astype(loose.history.dtypes.to_dict()))
    assert loose.evaluate([1, 2], 50).equals(kept.evaluate([1, 2], 50))


def test_a_finished_folder_holds_safetensors_json_and_csv_and_no_checkpoint(folder):
    assert sorted(os.listdir(folder)) == ["history.csv", "run.json", "weights.json", "weights.safetensors"]
    spec = json.loads((folder / "run.json").read_text())
    assert spec["model"]["n"] == 3 and spec["recipe"]["samples"] == 40
    assert [(member["task"], member["seed"], member["lr"]) for member in spec["members"]] == [
        ("sum", 5, 1e-3),
        ("min", 6, 2e-3),
    ]
    history = posattn.load(folder).history
    assert history[["epoch", "member"]].values.tolist() == [[epoch, k] for epoch in range(3) for k in range(2)]
    assert history["lr"].tolist() == pytest.approx([1e-3, 2e-3] * 3) and (history["loss"] > 0).all()


def test_a_model_of_a_run_is_a_plain_module_that_answers_as_the_run_does(folder):
    run = posattn.load(folder)
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    answers = run.predict(x)
    assert answers.shape == (2, 2, 3) and not torch.allclose(answers[0], answers[1])
    for k in range(2):
        model = run.model(k)
        assert isinstance(model, torch.nn.Module) and not model.training
        assert torch.equal(model(x), answers[k])
    for member in (2, -1):
        with pytest.raises(UsageError, match=rf"^member is {member}; this run has members 0 to 1\.$"):
            run.model(member)


def test_validation_loss_is_that_of_the_validation_lists(folder):
    run = posattn.load(folder)
    for k, name in enumerate(("sum", "min")):
        x, y = task(name).sample(1000, n=3, seed=5 + k, split="validation")
        with torch.no_grad():
            expected = (run.model(k)(x) - y).double().square().mean().item()
        assert run.result["validation_loss"][k] == pytest.approx(expected, rel=1e-5)


def test_the_same_call_again_reads_the_run_and_changes_no_file(copied):
    before = snapshot(copied)
    again = posattn.train(["sum", "min"], TINY, members=2, lr=[1e-3, 2e-3], seed=5, out=copied, **SHORT)
    assert torch.equal(again.parameters.flat, posattn.load(copied).parameters.flat)
    assert snapshot(copied) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 6}, "seed"),
        ({"lr": 1e-3}, "lr"),
        ({"epochs": 4}, "epochs"),
        ({"members": 3, "task": ["sum", "min", "min"], "lr": [1e-3, 2e-3, 2e-3]}, "it has 2 members, not 3"),
        ({"config": posattn.ModelConfig(4, embed=8, width=8)}, "n is 3, not 4"),
        ({"config": posattn.ModelConfig(3, "scale-exact", embed=8, width=8)}, "arch is positional, not scale-exact"),
        ({"variable_length": True}, "variable_length"),
        ({"recipe": "tuned"}, "recipe"),
    ],
    ids=str,
)
def test_another_configuration_is_refused_and_the_folder_left_alone(copied, changes, named):
    before = snapshot(copied)
    call = {"task": ["sum", "min"], "config": TINY, "members": 2, "lr": [1e-3, 2e-3], "seed": 5, "out": copied} | SHORT
    with pytest.raises(UsageError, match=r"^out is .*, which holds another run") as refused:
        posattn.train(**call | changes)
    assert named in str(refused.value)
    assert snapshot(copied) == before


def test_a_folder_of_somebody_elses_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds other files"):
        posattn.train("sum", TINY, out=tmp_path, **SHORT)
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    "content",
    [
        *("", "nope", "\x00\xff", "5", "null", "[]", '"hello"', '["abc"]', "{}", '{"format": 1}', '{"format": 2}'),
        *('{"format": 1, "model": 5, "recipe": {}, "members": []}', '{"format": 1, "model": {"n": 0}}'),
    ],
)
def test_a_description_that_is_garbage_is_refused_in_a_sentence(copied, content):
    (copied / "run.json").write_bytes(content.encode("latin-1"))
    before = snapshot(copied)
    with pytest.raises(UsageError) as refused:
        posattn.load(copied)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="run") as refused:
        posattn.train("sum", TINY, out=copied, **SHORT)
    assert len(str(refused.value)) < 300 + len(str(copied))
    assert snapshot(copied) == before


@pytest.mark.parametrize(
    "other",
    [
        {"config": posattn.ModelConfig(5, embed=8, width=8), "members": 2},  # wider encodings
        {"config": posattn.ModelConfig(3, embed=8, width=8, layers=1), "members": 2},  # fewer tensors
        {"config": TINY, "members": 1},
        {"config": TINY, "members": 3},
    ],
    ids=["longer lists", "fewer layers", "fewer members", "more members"],
)
def test_weights_of_another_shape_are_refused(copied, tmp_path, other):
    posattn.train("sum", out=tmp_path / "other", **SHORT, **other)
    for name in ("weights.safetensors", "weights.json"):
        shutil.copy(tmp_path / "other" / name, copied / name)
    with pytest.raises(UsageError, match=r"weights\.safetensors"):
        posattn.load(copied).evaluate([1], 10)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.json"])
def test_altered_results_are_refused(copied, name):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"{name} is damaged"):
        posattn.load(copied)


@pytest.mark.parametrize("content", [None, ""])
def test_a_lost_history_ends_in_a_sentence(copied, content):
    (copied / "history.csv").unlink() if content is None else (copied / "history.csv").write_text(content)
    with pytest.raises((UsageError, OSError), match=r"history\.csv"):
        posattn.load(copied)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "sumo"}, "task is 'sumo'"),
        ({"task": ["sum", "min", "sort"], "members": 2}, "task lists 3 values"),
        ({"lr": [1e-3], "members": 2}, "lr lists 1 values"),
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


def test_an_unfinished_run_is_not_loaded(tmp_path):
    files.write_json(tmp_path / "run.json", spec_of([Member("sum", 0, 1e-3)]).to_dict())
    with pytest.raises(UsageError, match="is not finished"):
        posattn.load(tmp_path)


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
    mine, theirs = table[table["member"] != 1]["mse"].tolist(), healthy.evaluate([1, 2], 20)["mse"].tolist()
    assert mine == theirs
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
    files.write_json(tmp_path / "run.json", spec.to_dict())
    checkpoints.save(tmp_path, spec.digest, trainer.steps_done, trainer.state_dict() | {"seconds": torch.tensor(0.0)})
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

    run = posattn.train(["sum", "min"], TINY, members=2, out=tmp_path / "run", tensorboard=True, **SHORT)
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert len(events.Tags()["scalars"]) == 4
    for k, name in enumerate(("sum", "min")):
        own = run.history[run.history["member"] == k]
        for column in ("loss", "lr"):
            scalars = events.Scalars(f"{column}/{name}/seed {k}")
            assert [event.step for event in scalars] == own["epoch"].tolist() == [0, 1, 2]
            assert [event.value for event in scalars] == pytest.approx(own[column].tolist(), rel=1e-6)


def test_events_do_not_change_the_numbers(folder, tmp_path):
    pytest.importorskip("tensorboard")
    call = {"members": 2, "lr": [1e-3, 2e-3], "seed": 5, "out": tmp_path / "run", "tensorboard": True, "progress": True}
    run = posattn.train(["sum", "min"], TINY, **call, **SHORT)
    assert torch.equal(run.parameters.flat, posattn.load(folder).parameters.flat)


def test_training_is_quiet_unless_a_bar_is_asked_for(capfd):
    posattn.train("sum", TINY, **SHORT)
    assert capfd.readouterr() == ("", "")
    posattn.train("sum", TINY, progress=True, **SHORT)
    assert "3/3" in capfd.readouterr().err
