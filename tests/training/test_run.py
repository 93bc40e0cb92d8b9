"""A trained run and its folder: what it holds, what it refuses, and what is read from it."""

import json
import os
import shutil

import pytest
import torch

import posattn
from posattn import files
from posattn.compiler.looped_programs import looped_program
from posattn.errors import UsageError
from posattn.files import Damaged
from posattn.metrics import relative_square
from posattn.run_folder import RunFolder
from posattn.tasks import TASKS, Task, register, task
from posattn.training import Member, Run, RunSpec, train_spec
from posattn.training.recipe import recipe
from posattn.training.trainer import Trainer
from posattn.training.workers import Workers

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


def test_shorter_lists_than_those_trained_on_are_answered_with_a_warning(folder):
    run = posattn.load(folder)
    for ask in (run.predict, run.answer):
        with pytest.warns(UserWarning, match=r"^the list has 2 numbers; this network was trained on 3 only\.$"):
            ask(torch.tensor([1.0, -2.0]))


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


@pytest.mark.parametrize("left", [None, 0, -5])
def test_a_lost_or_truncated_history_ends_in_a_sentence(copied, left):
    history = copied / "history.csv"
    history.unlink() if left is None else history.write_bytes(history.read_bytes()[:left])
    with pytest.raises(Damaged, match=r"history\.csv"):
        posattn.load(copied)


def test_an_unfinished_run_without_a_checkpoint_is_not_loaded(folder, tmp_path):
    RunFolder(tmp_path).describe(posattn.load(folder).spec)
    with pytest.raises(
        UsageError, match="is not finished, and has no checkpoint to answer from; the train command that began it ends it"
    ):
        posattn.load(tmp_path)


@pytest.fixture
def half(tmp_path):
    """A run of two members with two starts each, after one epoch of three and after two, and the trainer then."""
    plan = recipe("paper", samples=40, epochs=3, batch=15, starts=2)
    spec = RunSpec(TINY, plan, (Member("sum", 0, 1e-3), Member("min", 1, 1e-3)))
    held = RunFolder(tmp_path / "half")
    held.describe(spec)
    with Workers() as workers:
        team = [start for member in spec.members for start in member.starts(2)]
        trainer = Trainer(TINY, plan, team, torch.device("cpu"), workers)
        for _ in trainer.steps():
            if trainer.steps_done in (4, 7):
                held.save_checkpoint(spec, trainer.steps_done, trainer.state_dict() | {"seconds": torch.tensor(1.0)})
            if trainer.steps_done == 7:
                break
    return held, spec, trainer


def test_an_unfinished_run_has_the_weights_of_its_last_checkpoint_and_the_best_starts(half):
    held, _, trainer = half
    before = snapshot(held.path)
    with pytest.warns(UserWarning, match="is unfinished: its last checkpoint, at epoch 2 of 3, answers"):
        run = posattn.load(held.path)
    losses = trainer.history[1, 0].view(2, 2)
    best = losses.argmin(dim=1)
    assert torch.equal(run.parameters.flat, trainer.parameters.flat.view(2, 2, -1)[range(2), best])
    assert run.status == ["unfinished"] * 2 and run.result["train_loss"] == losses.amin(dim=1).tolist()
    assert len(run.history) == 4 and len(run.evaluate([1], 10)) == 2
    assert snapshot(held.path) == before


def test_a_damaged_checkpoint_of_an_unfinished_run_is_passed_over_and_stays(half):
    held, _, _ = half
    newest = held.checkpoints()[0]
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    before = snapshot(held.path)
    with pytest.warns(UserWarning, match="The checkpoint before it is used|epoch 1 of 3"):
        assert posattn.load(held.path).result["unfinished"] == "epoch 1 of 3"
    assert snapshot(held.path) == before


def test_a_checkpoint_that_is_being_written_is_passed_over_in_silence(half):
    held, _, _ = half
    held.checkpoints()[0].with_suffix(".json").unlink()
    with pytest.warns(UserWarning) as said:
        assert posattn.load(held.path).result["unfinished"] == "epoch 1 of 3"
    assert ["is unfinished" in str(each.message) for each in said] == [True]


def test_a_run_that_ends_while_it_is_looked_at_is_read(copied, monkeypatch):
    looks = iter([False])
    monkeypatch.setattr(RunFolder, "finished", property(lambda own: next(looks, True)))
    assert posattn.load(copied).status == posattn.load(copied).status != ["unfinished"]


@pytest.mark.filterwarnings("ignore:.*unfinished")
def test_training_does_not_begin_with_an_unfinished_run_and_goes_on_with_it(half):
    held, spec, _ = half
    with pytest.raises(UsageError, match="the run to begin with is not finished"):
        posattn.train("sum", begin=held.path, samples=20, epochs=1, device="cpu")
    finished = train_spec(spec, torch.device("cpu"), held.path)
    alone = train_spec(spec, torch.device("cpu"))
    assert torch.equal(finished.parameters.flat, alone.parameters.flat) and "unfinished" not in finished.result


def test_errors_are_those_of_the_network_and_not_of_the_truth():
    """Fifty thousand float32 numbers added one after the other are off by more than the scan, which adds in 16 rounds."""
    found = (
        Run.of(looped_program("sum").float(), "sum")
        .evaluate_lengths([50_000], scales=[10], samples=2)["relative_square"]
        .item()
    )
    x, y = posattn.task("sum").sample(2, n=50_000, scale=10.0, split="test")
    assert found < 1e-14 < relative_square(y.double(), x.double().cumsum(dim=-1))


def test_too_many_lists_are_refused_in_a_sentence(monkeypatch):
    run = Run.of(looped_program("sum").float(), "sum")
    monkeypatch.setattr("posattn.devices._SMALL", 0)
    monkeypatch.setattr("posattn.devices.free_bytes", lambda _: 1e6)
    with pytest.raises(
        UsageError,
        match=r"^samples is 100; so many lists of 1000 numbers need at least 0\.0071 GB of ",
    ):
        run.evaluate_lengths([1000], samples=100)
    assert len(run.evaluate_lengths([100], scales=[1], samples=100)) == 1  # 56 bytes a number and 1,500 a place: 0.7 MB
    with pytest.raises(UsageError, match="samples is 200"):
        run.evaluate_lengths([100], samples=200)


def test_lists_of_a_task_with_lists_of_its_own_are_its_own():
    class Positive(Task):
        def sample(self, *given, **named):
            x, _ = super().sample(*given, **named)
            return x.abs(), self.target(x.abs())

    register(Positive("of positives", "sums of positives", posattn.task("sum").target))
    try:
        run = Run.of(posattn.Transformer(posattn.ModelConfig(n=4, arch="looped")), "of positives")
        found = run.evaluate_lengths([4], [1], 50)["mse"].item()
        assert found == pytest.approx(run.evaluate([1], 50)["mse"].item(), rel=1e-4)
    finally:
        del TASKS["of positives"]


def test_an_exact_network_has_no_error_at_any_length():
    """The whole way from parameters to table."""
    table = Run.of(looped_program("maxsub").float(), "maxsub").evaluate_lengths([1, 5, 200], scales=[1, 10], samples=20)
    assert len(table) == 6 and (table["relative_square"] < 1e-12).all() and (table["closeness"] == 1).all()


# Whoever forges content can forge its checksum; what does not fit is refused all the same.


def forge(folder, change, **about):
    """Weights that ``change`` made, with what is said of them changed too, under checksums that fit."""
    weights, described = files.load_tensors(folder / "weights.safetensors")
    files.save_tensors(folder / "weights.safetensors", change(weights), described | about)


def every(function):
    return lambda weights: {name: function(value) for name, value in weights.items()}


@pytest.mark.parametrize(
    "change",
    [
        every(lambda w: w.half()),
        every(lambda w: w.long()),
        every(lambda w: w.mT if w.ndim == 3 else w),
        every(lambda w: w[:1]),
        every(lambda w: w.flatten()),
        lambda weights: {f"{name}.x": value for name, value in weights.items()},
        lambda weights: weights | {"more": torch.zeros(2)},
        lambda weights: {},
    ],
    ids=["half", "whole", "transposed", "one member", "flat", "renamed", "more", "none"],
)
def test_forged_weights_that_do_not_fit_are_refused(copied, change):
    forge(copied, change)
    with pytest.raises(Damaged, match=r"weights\.safetensors does not fit the network that .*run\.json describes\.$"):
        posattn.load(copied)


@pytest.mark.parametrize("about", [{"status": None}, {"status": ["ok"]}, {"train_loss": 1.0}, {"validation_loss": []}])
def test_forged_results_that_do_not_fit_are_refused(copied, about):
    forge(copied, lambda weights: weights, **about)
    with pytest.raises(Damaged, match=r"weights\.json does not describe a run: it lacks the .* of every member\.$"):
        posattn.load(copied)


def test_a_forged_history_that_is_no_table_is_refused(copied):
    (copied / "history.csv").write_bytes(b"")
    forge(copied, lambda weights: weights, history_sha256=files.sha256(b""))
    with pytest.raises(Damaged, match=r"history\.csv is damaged: it is not a table\.$"):
        posattn.load(copied)


@pytest.mark.parametrize("name", ["run.json", "weights.json", "weights.safetensors", "history.csv"])
def test_a_pipe_in_the_place_of_a_file_is_refused(copied, name):
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(Damaged, match=rf"^cannot read .*{name}: it is not a regular file\.$"):
        posattn.load(copied)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state | {"parameters": state["parameters"].half()},
        lambda state: state | {"parameters": state["parameters"].mT.contiguous()},
        lambda state: state | {"progress": torch.tensor([7, 0])},
        lambda state: state | {"progress": torch.tensor(1)},
        lambda state: state | {"history": torch.zeros(9, 2, 1)},
        lambda state: state | {"history": torch.tensor(0.0)},
        lambda state: state | {"seconds": torch.zeros(2)},
        lambda state: {name: value for name, value in state.items() if name != "first_moment"},
        lambda state: {name: value for name, value in state.items() if name != "seconds"},
    ],
)
def test_a_forged_checkpoint_that_does_not_fit_is_named_and_removed(tmp_path, monkeypatch, change):
    settings = SHORT | {"save_every": 0}
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(Trainer, "_end_epoch", interrupt)
        posattn.train("sum", TINY, out=tmp_path, **settings)
    for path in RunFolder(tmp_path).checkpoints():
        state, described = files.load_tensors(path)
        files.save_tensors(path, change(state), described)
    with pytest.warns(UserWarning, match=r"does not fit the run\. Training starts over\.$"):
        run = posattn.train("sum", TINY, out=tmp_path, **settings)
    assert torch.equal(run.parameters.flat, posattn.train("sum", TINY, **SHORT).parameters.flat)


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_checkpoint_at_the_end_of_an_epoch_is_gone_on_with(tmp_path, monkeypatch, recwarn):
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(Trainer, "_end_epoch", interrupt)
        posattn.train("sum", TINY, out=tmp_path, **SHORT, save_every=0)
    assert int(files.load_tensors(RunFolder(tmp_path).checkpoints()[0])[0]["progress"][1]) == 3
    run = posattn.train("sum", TINY, out=tmp_path, **SHORT)
    assert torch.equal(run.parameters.flat, posattn.train("sum", TINY, **SHORT).parameters.flat)
    assert not recwarn.list


OWN = {"config": posattn.ModelConfig(3, embed=8, width=8), "samples": 40, "epochs": 3, "batch": 15, "device": "cpu"}


def test_a_run_of_an_unknown_task_loads_and_says_what_its_truth_needs(tmp_path, tables):
    register(Task("product", "product so far", lambda x: x.cumprod(dim=-1)))
    before, x = posattn.train("product", **OWN, members=2, out=tmp_path / "run"), torch.randn(5, 3)
    known = before.evaluate([1, 2], samples=20)
    tables()
    run = posattn.load(tmp_path / "run")
    assert torch.equal(run.predict(x), before.predict(x)) and len(run.history) == len(before.history) == 6
    sentence = r"^the run is of the task 'product', which is not there; register it .* by --task-file\.$"
    for asked in (lambda: run.evaluate([1]), lambda: run.evaluate_shifts(), lambda: run.truth(x), lambda: run.task):
        with pytest.raises(UsageError, match=sentence) as caught:
            asked()
        assert not isinstance(caught.value, Damaged)
    assert len(run.evaluate_on(x, x.cumprod(dim=-1))) == 2  # one's own truth will do
    register(Task("product", "product so far", lambda x: x.cumprod(dim=-1)))
    assert run.evaluate([1, 2], samples=20).equals(known)


def test_a_function_is_trained_on_like_the_task_that_it_computes(tmp_path, tables):
    def so_far(x):
        return x.cummin(dim=1).values

    run, same = posattn.train(so_far, **OWN, members=2, out=tmp_path), posattn.train("min", **OWN, members=2)
    assert torch.equal(run.parameters.flat, same.parameters.flat) and run.members[0].task == "so_far"
    mine, theirs = run.evaluate([1, 3], samples=30), same.evaluate([1, 3], samples=30)
    assert mine.drop(columns="task").equals(theirs.drop(columns="task"))
    assert torch.equal(posattn.train(so_far, **OWN, members=2, out=tmp_path).parameters.flat, run.parameters.flat)


def test_data_is_trained_on_like_the_lists_of_a_task(tmp_path):
    """Seed 0 of a task draws the lists that are given here, so the first network is that of the task, bit for bit."""
    x, y = task("sum").sample(40, n=3, seed=0)
    settings = {name: value for name, value in OWN.items() if name != "samples"}
    run, same = posattn.train((x, y), **settings, members=2, out=tmp_path), posattn.train("sum", **OWN)
    assert torch.equal(run.parameters.flat[0], same.parameters.flat[0]) and run.status == ["ok", "ok"]
    assert run.spec.recipe.samples == 40 and run.result["validation_loss"] == [None, None]
    loaded = posattn.load(tmp_path)
    table = loaded.evaluate_on(x, y)
    assert table["mse"].tolist() == pytest.approx((loaded.predict(x) - y).square().mean(dim=(1, 2)).tolist(), rel=1e-5)
    with pytest.raises(UsageError, match=r"data of one's own, which is not kept; evaluate_on\(x, y\) tests"):
        loaded.evaluate([1])
    assert torch.equal(posattn.train((x, y), **settings, members=2, out=tmp_path).parameters.flat, run.parameters.flat)
    with pytest.raises(UsageError, match=r"holds another run \(its members\[0\]\.task is data:\w+, not data:\w+\)"):
        posattn.train((x, y + 1), **settings, members=2, out=tmp_path)


def test_data_is_gone_on_with_from_a_checkpoint(tmp_path, monkeypatch):
    x, settings = torch.randn(40, 3), {name: value for name, value in OWN.items() if name != "samples"}
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(Trainer, "_end_epoch", interrupt)
        posattn.train((x, -x), **settings, out=tmp_path, save_every=0)
    with pytest.raises(UsageError, match="holds another run"):
        posattn.train((x, x), **settings, out=tmp_path)
    assert RunFolder(tmp_path).checkpoints()
    gone_on, at_once = posattn.train((x, -x), **settings, out=tmp_path), posattn.train((x, -x), **settings)
    assert torch.equal(gone_on.parameters.flat, at_once.parameters.flat)
