"""What trained runs and compiled programs share: answers, tables, result rows, and folders that ``load`` reads."""

import math
from unittest.mock import patch

import pandas as pd
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiled_run import CompiledRun, save
from posattn.compiler import compile_program
from posattn.experiments.attention_study import AttentionStudy
from posattn.experiments.gap_study import Gaps
from posattn.experiments.measures import FineTuned, Lengths, Scales, Shifts
from posattn.runs import ROW_COLUMNS, AnyRun, answer_tokens, result_rows
from posattn.training import Run
from posattn.training.finetune import fine_tune
from posattn.training.run import trained

CONTRACT = {  # DESIGN.md: other programs read these columns
    *("experiment", "task", "arch", "n", "samples", "layers", "width", "encoding", "recipe", "precision"),
    *("seed", "split", "domain", "scale", "metric", "value", "status"),
}
TINY = posattn.ModelConfig(3, embed=8, width=8)
SHORT = {"samples": 60, "epochs": 2, "batch": 25, "device": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A trained run and a compiled program."""
    root = tmp_path_factory.mktemp("runs")
    posattn.train(["sum", "min"], TINY, members=2, seed=3, out=root / "trained", **SHORT)
    save(compile_program("prefix-sum", 3), root / "compiled")
    return root


@pytest.fixture
def run(folders):
    return posattn.load(folders / "trained")


@pytest.fixture
def compiled(folders):
    return posattn.load(folders / "compiled")


def test_one_load_reads_both_kinds_which_are_independent(run, compiled):
    assert type(run) is Run and type(compiled) is CompiledRun
    assert not issubclass(CompiledRun, Run) and not issubclass(Run, CompiledRun)
    for each, kind, count in ((run, "positional", 2), (compiled, "compiled prefix-sum", 1)):
        assert isinstance(each, AnyRun) and each.kind == kind and len(each) == len(each.status) == count
        assert each.config.n == 3 and list(each.lengths) == [3] and each.members[0].task == "sum"
        assert each.device == torch.device("cpu") and each.task.name == "sum" and not each.reads_tokens
    assert repr(run) == "Run(sum, min; positional, n=3, 2 members)"
    assert repr(compiled) == "CompiledRun(prefix-sum, n=3)"


def test_lists_have_no_domain_but_that_of_their_scale(run, compiled):
    for each in (run, compiled):
        with pytest.raises(UsageError, match=r"^domain is 'ood'; it is for tasks of tokens, and sum has none\.$"):
            each.evaluate([1], 5, domain="ood")


def test_both_answer_and_know_the_truth(run, compiled):
    x = [[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]]
    for each in (run, compiled):
        given = torch.stack([each.as_input(row) for row in x])
        answers = each.predict(x)
        assert answers.shape == (len(each), 2, 3) and torch.equal(answers, each.predict(given))
        assert torch.equal(each.truth(given), given.cumsum(dim=-1))
        for member in range(len(each)):
            assert torch.equal(each.answer(given, member), answers[member])
            with torch.no_grad():
                assert torch.equal(each.model(member)(given), answers[member])
    assert torch.equal(compiled.predict(x)[0], compiled.truth(torch.tensor(x)))


def test_a_member_that_is_not_there_is_refused(run, compiled):
    for each, member, known in (
        (run, 2, "members 0 to 1"),
        (run, -1, "members 0 to 1"),
        (compiled, 1, "member 0 only"),
    ):
        for ask in (each.model, each.check_member, lambda k, each=each: each.answer([1.0, 2.0, 3.0], k)):
            with pytest.raises(UsageError, match=rf"^member is {member}; this run has {known}\.$"):
                ask(member)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["trained", "compiled"])
def test_what_is_no_list_of_finite_numbers_is_refused(folders, kind):
    run = posattn.load(folders / kind)
    wrong = {math.nan: "nan", -math.inf: "-inf"} | ({1e39: "inf"} if kind == "trained" else {})  # none of float32
    most = "3e38" if kind == "trained" else "1e308"
    for value, named in wrong.items():
        with pytest.raises(UsageError, match=f"^x has {named}; it must be numbers up to {most}.$"):
            run.predict([[1.0, 2.0, 3.0], [1.0, value, 3.0]])
        with pytest.raises(UsageError, match=f"^x has {named}; it must be"):
            run.answer([1.0, value, 3.0])
    for value in ("abc", None, [1.0, "a"], [[1.0, 2.0], [3.0]], [10**400]):
        with pytest.raises(UsageError, match=r"^x is .*; it must be a tensor, or numbers in lists of one length\.$"):
            run.predict(value)
    with pytest.raises(UsageError, match=r"^model is a (Compiled)?Run; it must be a Transformer, such as run\.model"):
        posattn.Frozen(run)


def test_a_network_itself_makes_nan_of_nan(run):
    assert run.model(0)(torch.tensor([1.0, math.nan, 3.0])).isnan().any()  # which is PyTorch's way


def test_both_have_tables_of_the_same_columns(run, compiled):
    for table in (lambda each: each.evaluate([1, 3], samples=20), lambda each: each.evaluate_shifts(samples=20)):
        ours, theirs = table(run), table(compiled)
        assert list(ours) == list(theirs) and len(ours) == 2 * len(theirs)
        assert set(theirs["status"]) == {"ok"} and (theirs["mse"] < 1e-20).all()
    for scales in (5, "1"):
        for each in (run, compiled):
            with pytest.raises(UsageError, match=r"^scales is .*; it must be a list, such as \["):
                each.evaluate(scales)


# Result rows.


def test_rows_carry_the_settings_beside_every_number(run):
    table = run.evaluate([0.5, 1, 3], samples=50)
    rows = run.rows(table, "trial")
    assert set(rows) >= CONTRACT and list(rows) == list(ROW_COLUMNS)
    metrics = {"mse", "mse_over_c2", "rounding", "closeness", "strict_closeness"}
    assert len(rows) == len(table) * 5 and set(rows["metric"]) == metrics
    same = {"experiment": "trial", "arch": "positional", "n": 3, "samples": 60, "layers": 2, "width": 8}
    same |= {"encoding": "one-hot", "recipe": "paper", "precision": "fp32", "split": "test", "status": "ok"}
    same |= {"epochs": 2, "batch": 25, "lr": 5e-4}
    assert all(set(rows[column]) == {value} for column, value in same.items())
    assert {(scale, domain) for scale, domain in rows[["scale", "domain"]].values} == {
        (0.5, "id"),
        (1, "id"),
        (3, "ood"),
    }
    mse = rows[rows["metric"] == "mse"].set_index(["task", "seed", "scale"])["value"]
    assert mse["min", 4, 3] == table.query("task == 'min' and scale == 3")["mse"].item()
    assert rows.groupby("task")["run"].nunique().tolist() == [1, 1] and rows["run"].nunique() == 2


def test_rows_of_a_compiled_program_leave_empty_what_only_training_has(compiled):
    rows = compiled.rows(compiled.evaluate([1, 3], samples=20), "trial")
    assert list(rows) == list(ROW_COLUMNS)
    same = {"experiment": "trial", "run": "compiled-prefix-sum-3", "task": "sum", "arch": "compiled", "n": 3}
    same |= {"precision": "fp64", "seed": 0, "split": "test", "status": "ok", "layers": compiled.config.layers}
    assert all(set(rows[column]) == {value} for column, value in same.items())
    assert rows[["samples", "recipe", "epochs", "batch", "lr"]].isna().all(axis=None)


def test_columns_of_ones_own_come_after_the_contract_and_stay_as_they_are():
    values = pd.DataFrame({"member": [0, 0], "scale": [1, 2], "metric": "mse", "value": [0.1, 0.2], "hops": ["a", "b"]})
    rows = result_rows(values.assign(domain="id"), {"arch": "own", "graph": "star", "hops": "c"})
    assert list(rows) == [*ROW_COLUMNS, "graph", "hops"]
    assert rows["hops"].tolist() == ["a", "b"] and rows["domain"].tolist() == ["id", "id"] and rows["task"].isna().all()
    assert result_rows(values, {})["domain"].tolist() == ["id", "ood"]


# What a compiled program cannot do.

NOT_TRAINED = r"is the compiled prefix-sum, which was not trained; it must be a trained run, or the folder of one\.$"


@pytest.mark.parametrize("given", ["run", "folder"])
def test_training_does_not_begin_with_a_compiled_program(folders, compiled, given):
    begin = compiled if given == "run" else folders / "compiled"
    for config in (None, TINY):
        with pytest.raises(UsageError, match=rf"^begin {NOT_TRAINED}"):
            posattn.train("sum", config, begin=begin, **SHORT)


def test_the_command_does_not_begin_with_a_compiled_program(folders, posattn_command):
    code, _, said = posattn_command("train", "sum", "--from", folders / "compiled", "--epochs", 1, "--out", "run")
    assert code == 2 and said.startswith("posattn: from is the compiled prefix-sum, which was not trained; ")


@pytest.mark.parametrize("measure", [FineTuned(), Gaps(fresh=10), Scales((1,), 10, train=True)], ids=str)
def test_what_needs_training_refuses_a_compiled_program(compiled, measure):
    with pytest.raises(UsageError, match=rf"^run {NOT_TRAINED}"):
        measure.rows(compiled)
    with pytest.raises(UsageError, match=rf"^run {NOT_TRAINED}"):
        fine_tune(compiled)


def test_measures_that_need_no_training_take_a_compiled_program(compiled):
    assert list(Shifts(samples=10).rows(compiled)) == [*ROW_COLUMNS, "distribution"]
    assert len(Scales((1, 2), 10).rows(compiled)) == 2 * 5
    assert set(AttentionStudy(factors=(1,), samples=10).rows(compiled)["arch"]) == {"compiled"}


def test_a_compiled_program_has_one_length(compiled):
    for ask in (lambda: compiled.evaluate_lengths([4]), lambda: Lengths((4,)).rows(compiled)):
        with pytest.raises(UsageError, match=r"^lengths has 4; this compiled program takes lists of 3\.$"):
            ask()


@pytest.mark.parametrize("command", ["bound", "certify"])
def test_the_theory_refuses_a_compiled_program_in_a_sentence(folders, posattn_command, command):
    code, _, said = posattn_command(command, folders / "compiled")
    assert code == 2 and said.count("\n") == 1 and "compiled" in said


def test_a_trained_run_is_itself_or_its_folder(folders, run):
    assert (
        trained(run) is run and trained(folders / "trained").spec == trained(str(folders / "trained")).spec == run.spec
    )
    with pytest.raises(UsageError, match=r"^begin is a Transformer; it must be a trained run, or the folder of one\.$"):
        trained(run.model(0), "begin")


def test_a_task_of_numbers_has_no_text(run):
    with pytest.raises(UsageError, match=r"^the task sum has no tokens\.$"):
        answer_tokens(run, 0, "abc")


def test_what_holds_no_run_is_refused(tmp_path):
    for path, said in (
        (tmp_path / "nothing", "there is no folder .*nothing; give that of a run"),
        ("sort", "there is no folder sort; give that of a run, or --pretrained sort for the network of the package"),
        (tmp_path, "holds no run"),
        (tmp_path / "file", "is a file; give the run's folder"),
    ):
        (tmp_path / "file").write_text("words")
        with pytest.raises(UsageError, match=said):
            posattn.load(path)
    with pytest.raises(UsageError, match="device is 'abacus'"):
        posattn.load(tmp_path, "abacus")


def test_large_batches_are_answered_in_tiles_and_alike(run, compiled, monkeypatch):
    x = [[[1.0, 2.0, 3.0], [0.5, -1.0, 4.0], [2.0, 2.0, 2.0]], [[0.0, 1.0, 0.0], [3.0, 2.0, 1.0], [-4.0, 0.5, 0.0]]]
    whole = [each.predict(x) for each in (run, compiled)]
    monkeypatch.setattr(posattn.runs, "_TILE", 4)
    for each, answers in zip((run, compiled), whole, strict=True):
        with patch.object(each, "_outputs", wraps=each._outputs) as outputs:
            torch.testing.assert_close(each.predict(x), answers)
        assert [len(call.args[0]) for call in outputs.call_args_list] == [4, 2] * len(each)
        assert each.answer(x).shape == (2, 3, 3)
    counts = CompiledRun("word-count", posattn.compile("word-count", 3))
    inputs = torch.randint(0, 2, (9, 3, counts.config.inputs)).double()
    with patch.object(counts, "_outputs", wraps=counts._outputs) as outputs:
        answers = counts.predict(inputs)
    assert [len(call.args[0]) for call in outputs.call_args_list] == [4, 4, 1]
    monkeypatch.undo()
    assert torch.equal(answers, counts.predict(inputs))
