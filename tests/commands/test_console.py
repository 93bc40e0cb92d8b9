"""What verbs share: scales, lengths and lists in; tables and JSON out."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from posattn.commands.console import parse_lengths, parse_list, parse_scales, print_frame, print_json, print_table
from posattn.errors import UsageError
from posattn.tasks import TASKS, task


def test_scales_lengths_and_lists_are_read():
    assert parse_scales("1:4") == [1, 2, 3, 4] and parse_scales("1:10:3,0.5") == [1, 4, 7, 10, 0.5]
    assert parse_scales("2:2.3:0.1") == pytest.approx([2, 2.1, 2.2, 2.3])  # its end, in spite of rounding
    assert parse_lengths("16, 1024") == [16, 1024] and parse_list(" 1 ,-2.5,1e-1") == [1, -2.5, 0.1]
    for parse, wrong in (
        (parse_scales, "1:5000:1"),
        (parse_lengths, "4,0"),
        (parse_lengths, "²"),
        (parse_list, "1e39"),
    ):
        with pytest.raises(UsageError):
            parse(wrong)


def cells(capsys):
    lines = (line for line in capsys.readouterr().out.splitlines() if line[:1] in "┃│")
    return [line[2:-2].split(" ┃ " if line[0] == "┃" else " │ ") for line in lines]


def test_numbers_stand_right_and_text_left(capsys):
    frame = pd.DataFrame(
        {"task": ["min", "maxsub"], "mse": [0.12345, 1200.0], "ratio": [1.5, "-"], "fits": [True, False]}
    )
    print_frame("a title", frame)
    assert cells(capsys) == [
        ["task  ", "    mse", "ratio", "fits"],
        ["min   ", "  0.123", "  1.5", "yes "],
        ["maxsub", "1.2e+03", "    -", "NO  "],
    ]


def test_a_table_that_is_too_wide_is_turned(capsys):
    columns = ("scale", *(f"a-series-of-a-long-name-{k}" for k in range(8)))
    print_table("wide", columns, [(scale, *range(8)) for scale in (1, 10)])
    shown = cells(capsys)
    assert [cell.strip() for cell in shown[0]] == ["scale", "1", "10"]
    assert [row[0].strip() for row in shown[1:]] == list(columns[1:]) and len(shown[0]) == 3


def test_no_number_is_cut_where_neither_way_fits(capsys):
    print_table("wide", ("n", *range(20)), [(f"s{k}", *(1.23e-10 for _ in range(20))) for k in range(20)])
    shown = cells(capsys)
    assert len(shown) == len(shown[0]) == 21
    assert {cell for row in shown[1:] for cell in row[1:]} == {"1.23e-10"}


def test_json_has_null_for_what_is_no_number(capsys):
    print_json({"gap": math.inf, "layers": ({"mse": math.nan}, {"mse": 0.1}), "name": "NaN"})
    assert json.loads(capsys.readouterr().out) == {"gap": None, "layers": [{"mse": None}, {"mse": 0.1}], "name": "NaN"}


@pytest.mark.parametrize("name", ["[/x]", "[red]hidden", ":cat:", "[bold", "a\\[b]"])
def test_names_are_printed_as_they_are(name, capsys):
    print_table(f"in {name}", [f"column {name}"], [[f"cell {name}"]])
    shown = capsys.readouterr().out
    assert all(f"{part} {name}" in shown for part in ("in", "column", "cell"))


def test_a_file_of_ones_own_brings_its_task_to_every_command(posattn_command, tables):
    file = Path(__file__).parents[2] / "docs/examples/own_tasks.py"
    small = ("--n", 3, "--embed", 8, "--width", 8, "--samples", 40, "--epochs", 1, "--batch", 20, "--device", "cpu")
    assert posattn_command("train", "max", *small)[0] == 2
    given = ("--arch", "scale-exact", "--encoding", "ramp", "--out", "run", "--task-file", file)
    code, shown, error = posattn_command("train", "max", *small, *given)
    assert (code, error) == (0, "") and shown.endswith(f"Next: posattn evaluate run --scales 1:10 --task-file {file}\n")
    tables()
    code, shown, error = posattn_command("predict", "run", "1,3,2")
    assert (
        code == 2
        and error.startswith("posattn: run/run.json cannot be read: encoding is 'ramp'; ")
        and "--task-f" in error
    )
    for verb, found in (
        (["predict", "run", "1,3,2"], "3.0000"),
        (["evaluate", "run", "--scales=1", "--samples=10"], "max"),
        (["graph", "run", "--samples=10"], "edges that can be cut"),
        (["bound", "run"], "its class"),
    ):
        code, shown, error = posattn_command(*verb, "--task-file", file)
        assert (code, error) == (0, "") and found in shown, verb
        tables()


def test_a_plain_function_of_a_file_is_a_task(posattn_command, tables):
    small = ("--n", 3, "--embed", 8, "--width", 8, "--samples", 40, "--epochs", 1, "--batch", 20, "--device", "cpu")
    Path("own.py").write_text(
        "from torch import zeros_like as apart\n\n\ndef doubled(x):\n    return 2 * x + apart(x)\n\n\n"
        "def _part(x):\n    return x\n\n\ndef two(x, y):\n    return x\n\n\ndef sort(x):\n    return x\n"
    )
    code, _, told = posattn_command("train", "doubled", *small, "--out", "run", "--task-file", "own.py")
    assert code == 0 and told == (
        "posattn: own.py defines a function 'sort', and the package has a task of that name, which is used; give the "
        "function another name to learn it.\n"
    )
    assert not {"_part", "two", "apart"} & set(TASKS)
    assert task("sort").target(torch.tensor([2.0, 1.0])).tolist() == [1, 2]
    tables()
    code, shown, _ = posattn_command("predict", "run", "1,3,2", "--task-file", "own.py")
    assert code == 0 and "6.0000" in shown
    assert posattn_command("evaluate", "run", "--samples", 10, "--task-file", "own.py")[0] == 0


def test_a_file_that_registers_its_own_function_gets_no_warning(posattn_command, tables):
    text = "from posattn.tasks import Task, register\n\n\ndef twice(x):\n    return 2 * x\n\n\n"
    Path("own.py").write_text(f"{text}register(Task('twice', 'twice as much', twice))\n")
    for _ in range(2):  # also where the task is there from before
        code, _, told = posattn_command("predict", "--pretrained", "sort", "8,7,6,5,4,3,2,1", "--task-file", "own.py")
        assert (code, told) == (0, "") and task("twice").title == "twice as much"


def test_a_run_of_a_task_that_is_not_there_serves_where_it_can(posattn_command, tables):
    file = Path("own.py")
    small = ("--n", 3, "--embed", 8, "--width", 8, "--samples", 40, "--epochs", 1, "--batch", 20, "--device", "cpu")
    file.write_text("from posattn.tasks import Task, register\nregister(Task('twice', 'twice', lambda x: 2 * x))\n")
    assert posattn_command("train", "twice", *small, "--out", "run", "--task-file", file)[0] == 0
    tables()
    reason = "the run is of the task 'twice', which is not there; register it (posattn.tasks.register), "
    code, shown, _ = posattn_command("predict", "run", "1,3,2")
    assert code == 0 and "model" in shown and "error" not in shown and f"Without the true answers: {reason}" in shown
    assert posattn_command("evaluate", "run")[2].startswith(f"posattn: {reason}")
    code, shown, _ = posattn_command("graph", "run", "--samples", 10, "--by", "effect")
    assert code == 0 and "edges that can be cut" not in shown
    assert posattn_command("bound", "run")[0] == 0
    file.write_text(file.read_text().replace("2 * x", "3 * x"))
    changed = "run is 'run', whose networks learn another function of the name 'twice'; register the one that they learn."
    code, shown, _ = posattn_command("predict", "run", "1,3,2", "--task-file", file)
    assert code == 0 and "model" in shown and f"Without the true answers: {changed}" in shown
    tables()
    assert posattn_command("evaluate", "run", "--task-file", file)[2].startswith(f"posattn: {changed}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 / 0", "own.py could not be run (line 1): ZeroDivisionError: division by zero."),
        ("import posattn; posattn.task('sumo')", "own.py: task is 'sumo' (did you mean sum?); it must be one of sum, "),
        (None, "--task-file is 'own.py', which does not exist."),
    ],
)
def test_a_bad_file_gets_a_sentence(posattn_command, text, sentence):
    if text is not None:
        Path("own.py").write_text(text)
    code, _, error = posattn_command("evaluate", "run", "--task-file", "own.py")
    assert code == 2 and error.startswith(f"posattn: {sentence}") and error.count("\n") == 1


def test_networks_of_the_package_stand_in_a_runs_place(posattn_command):
    for verb, found in (
        (["bound"], "norms of network 0 of positional, with the package"),
        (["graph", "--samples=10"], "sort, positional, with the package"),
        (["train", "min", "--samples=20", "--epochs=1", "--batch=20", "--device=cpu", "--out=run"], "trained in run"),
    ):
        code, shown, error = posattn_command(*verb, "--pretrained", "sort")
        assert (code, error) == (0, "") and found in shown, verb
    for verb in ("bound", "certify", "export", "evaluate", "graph"):
        more = ["--torch=x.pt2"] if verb == "export" else []
        code, _, error = posattn_command(verb, *more)
        assert code == 2 and error.startswith("posattn: no network is named; give "), verb
    code, _, error = posattn_command("train", "min", "--pretrained", "sort", "--from", "run")
    assert code == 2 and "training begins with one of them" in error
    code, _, error = posattn_command("certify", "--pretrained", "sort", "--arch", "scale-exact")
    assert code == 2 and "n is 8" in error
