"""Tasks of one's own: functions and data as tasks, and what a target must be before anything is trained on it."""

from functools import partial

import pytest
import torch

import posattn
from posattn import UsageError, files
from posattn.graphs.reports import report_of
from posattn.tasks import TASKS, Data, Task, register, task
from posattn.tasks.own import check_target, tasks_named

pytestmark = pytest.mark.usefixtures("tables")


def largest(x):
    return x.cummax(dim=1).values  # dim 1: of lists (batch, n)


def test_a_function_of_lists_answers_lists_of_any_leading_shape():
    with tasks_named(largest) as name:
        assert name == "largest"
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(task("largest").target(x), x.cummax(dim=-1).values)
    assert torch.equal(task("largest").target(x[0, 0, 0]), x[0, 0, 0].cummax(dim=-1).values)


def test_a_function_takes_the_place_of_another_but_not_of_a_task():
    for function in (largest, lambda x: -x):
        with tasks_named(function, name="largest"):
            pass
    assert task("largest").target(torch.ones(1, 2)).tolist() == [[-1, -1]]
    for given, name, sentence in (
        (largest, "sum", r"^name is 'sum', a task that there is already; give the function another"),
        (lambda x: x, None, r"^name is None; give the function a name"),
        ("sum", "total", r"^name is 'total'; only a function is given one\.$"),
    ):
        with pytest.raises(UsageError, match=sentence), tasks_named(given, name):
            pass


def in_place(x):
    x += 1
    return x.clone()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (
            lambda x: x.sum(dim=-1),
            r"gives answers of \(100,\) for lists of \(100, 5\); .* y\[:, None\]\.expand_as\(x\)",
        ),
        (lambda x: x[..., :2], r"gives answers of \(100, 2\) for lists of \(100, 5\); it must give one for each"),
        (
            lambda x: x.argsort(dim=-1),
            r"gives torch\.int64 for torch\.float32; it must give the same, by \.to\(x\.dtype\)\.$",
        ),
        (lambda x: x.log(), r"is not finite for \[.*\]; it must be for all lists\.$"),
        (lambda x: x.median(dim=-1), r"gives a median; it must give a tensor of answers\.$"),
        (lambda x: 1 / 0, r"fails for lists of 5 numbers: ZeroDivisionError: division by zero\.$"),
        (
            lambda x: x - x.mean(),
            r"answers a list differently alone and among others; it must depend on the list only\.$",
        ),
        (in_place, r"changes the lists that it is given; it must leave them, and may clone\(\) them\.$"),
    ],
)
def test_what_a_target_gets_wrong_is_said_before_training(target, sentence, tmp_path):
    with pytest.raises(UsageError, match=f"^the target of the task own {sentence}"):
        check_target(Task("own", "own", target), 5)
    config, out = posattn.ModelConfig(5, embed=4, width=4), tmp_path / "run"
    with pytest.raises(UsageError, match=r"^the target of the task own "):
        posattn.train(target, config, name="own", samples=10, epochs=1, batch=5, device="cpu", out=out)
    assert not out.exists()


def test_a_target_that_takes_another_axis_than_the_lists_is_refused():
    """Evaluation asks about lists (members, samples, n); a function given to train sees (batch, n) always."""
    with pytest.raises(UsageError, match=r"answers lists \(2, batch, n\) differently from \(batch, n\)"):
        check_target(Task("own", "own", lambda x: x.cumsum(dim=1)), 5)
    with pytest.raises(UsageError, match="answers a list differently alone"):
        check_target(Task("own", "own", lambda x: x if len(x) > 1 else x[:, :2]), 5)


def test_a_function_that_is_refused_is_not_entered_and_replaces_none():
    config = posattn.ModelConfig(5, embed=4, width=4)
    with tasks_named(largest):
        pass
    for name in ("largest", "new"):
        with pytest.raises(UsageError, match="it must give one for each number"):
            posattn.train(lambda x: x.sum(dim=1), config, name=name, samples=10, epochs=1, batch=5, device="cpu")
    assert "new" not in TASKS and task("largest").target(torch.ones(2, 2)).shape == (2, 2)


def test_the_last_steps_of_a_looped_network_take_a_function_of_float32_alone():
    weight = torch.eye(4)
    small = {"samples": 8, "epochs": 1, "batch": 4, "polish": 1, "device": "cpu"}
    run = posattn.train(lambda x: x @ weight, posattn.LoopedConfig(n=4, width=2), name="same", **small)
    assert len(run) == 1


def test_the_tasks_of_the_package_pass():
    for row in list(TASKS.values()):
        check_target(row, 6)


def test_data_is_named_by_its_numbers_and_found_while_it_is_learned():
    x, y = torch.randn(7, 3), torch.randn(7, 3)
    same, other = Data(x.tolist(), y.numpy()), Data(x, y + 1)
    with tasks_named((x, y)) as name:
        assert name == same.name != other.name and name != Data(y, x).name
        given, right = task(name).sample(5, n=3, seed=9)
        assert torch.equal(given, x[:5]) and torch.equal(right, y[:5])
    with pytest.raises(UsageError, match=r"data of one's own, which is not kept; evaluate_on\(x, y\)"):
        task(name)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (
            torch.zeros(4, 3),
            torch.zeros(4),
            r"^x is \(4, 3\) and y is \(4,\); both must be of one shape \(samples, n\)",
        ),
        (torch.zeros(0, 3), torch.zeros(0, 3), r"^x is \(0, 3\) and y is \(0, 3\)"),
        (torch.zeros(2, 2), torch.tensor([[0, 1], [torch.inf, 0]]), r"^y has a number that float32 does not hold"),
        (3, "no", r"^the data is \(3, 'no'\); it must be two tensors"),
    ],
)
def test_data_that_is_none_gets_a_sentence(x, y, sentence):
    with pytest.raises(UsageError, match=sentence):
        Data(x, y)


def test_data_refuses_what_it_does_not_hold():
    x = torch.randn(6, 3)
    for settings, sentence in (
        ({"samples": 7}, r"^samples is 7; the data has 6 lists\.$"),
        ({"config": posattn.ModelConfig(4)}, r"^n is 4; the lists of the data have 3 numbers\.$"),
        ({"variable_length": True}, r"^variable_length is given; all lists of the data have 3 numbers\.$"),
        (
            {"config": posattn.LoopedConfig(3, family="dilated"), "polish": 3},
            r"^polish is 3; data .* so it must be 0\.$",
        ),
    ):
        with pytest.raises(UsageError, match=sentence):
            posattn.train((x, x), epochs=1, device="cpu", **settings)


def test_a_task_with_lists_of_its_own_is_tried_on_these():
    class Positive(Task):
        def sample(self, count, n=8, *_, device=None, **__):
            x = torch.rand(count, n, device=device) + 1
            return x, self.target(x)

    check_target(Positive("log", "logarithm", torch.log), 5)


@pytest.mark.parametrize("killed", [False, True])
def test_a_function_that_changed_is_not_taken_for_the_one_that_was_learned(tmp_path, killed):
    small = {"config": posattn.ModelConfig(n=3, embed=8, width=8), "samples": 20, "epochs": 1, "out": tmp_path / "run"}
    first = posattn.train(lambda x: x.cummax(dim=-1).values, name="changed", **small)
    if killed:  # before the end: all but the weights is there
        (tmp_path / "run" / "weights.json").unlink()
    with pytest.raises(UsageError, match=r"whose networks learn another function of the name 'changed'; give another folder"):
        posattn.train(lambda x: x.cummin(dim=-1).values, name="changed", **small)
    again = posattn.train(lambda x: torch.cummax(x, -1)[0], name="changed", **small)  # other code, same answers
    assert torch.equal(first.parameters.flat, again.parameters.flat)
    with pytest.raises(UsageError, match="whose networks learn another function"):
        posattn.train(lambda x: 1e-6 * x, name="changed", **small)
    for odd in ("[]", '{"changed": [[1, 2], [3]]}', '{"changed": 5}', '{"changed": [null]}', '{"other": [[1, 2, 3]]}'):
        (tmp_path / "run" / "answers.json").write_text(odd)
        with pytest.raises(files.Damaged, match=r"answers\.json does not hold the answers of (changed|functions)\.$"):
            posattn.train(largest, name="changed", **small)


def test_a_task_that_draws_other_lists_each_time_is_not_known_by_its_answers(tmp_path):
    class Anew(Task):
        def sample(self, count, n=8, scale=1.0, seed=0, **drawn):
            x = torch.rand(*(() if isinstance(seed, int) else (len(seed),)), count, n)
            return x, self.target(x)

    register(Anew("anew", "lists that no seed decides", lambda x: 2 * x))
    small = {"config": posattn.ModelConfig(n=3, embed=8, width=8), "samples": 20, "epochs": 1, "out": tmp_path / "run"}
    first = posattn.train("anew", **small)
    assert torch.equal(posattn.train("anew", **small).parameters.flat, first.parameters.flat)
    assert not (tmp_path / "run" / "answers.json").exists()


def test_a_run_is_not_measured_against_a_function_that_changed(tmp_path):
    small = {"config": posattn.ModelConfig(n=3, embed=8, width=8), "samples": 20, "epochs": 1, "out": tmp_path / "run"}
    first = posattn.train(lambda x: x.cummax(dim=-1).values, name="changed", **small)
    x, right = torch.ones(2, 3), posattn.load(tmp_path / "run").evaluate([1], samples=5)
    posattn.train(lambda x: x.cummin(dim=-1).values, name="changed", **small | {"out": None})
    told = r"run is .*, whose networks learn another function of the name 'changed'; register the one that they learn\.$"
    for run in (first, posattn.load(tmp_path / "run")):
        for measured in (run.evaluate, run.evaluate_shifts, partial(run.truth, x)):
            with pytest.raises(UsageError, match=told):
                measured()
        assert run.predict(x).shape == (1, 2, 3) and len(run.evaluate_on(x, x)) == 1
    with pytest.raises(UsageError, match=told):
        report_of(str(tmp_path / "run"), samples=5)
    posattn.train(lambda x: torch.cummax(x, -1)[0], name="changed", **small)
    assert first.evaluate([1], samples=5).equals(right)
    del TASKS["changed"]
    assert not report_of(str(tmp_path / "run"), samples=5).cuts  # as before: nothing says what is right
