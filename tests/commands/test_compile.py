"""posattn compile: sizes, agreement of all levels, and folders that other verbs take."""

import json

import pytest
import torch

import posattn
from posattn.compiled_run import CompiledRun
from posattn.compiler import PROGRAMS
from posattn.compiler.function_programs import OWN_PROGRAMS

pytestmark = pytest.mark.usefixtures("unchecked")


def test_compile_shows_sizes_and_that_all_levels_agree(posattn_command):
    code, shown, error = posattn_command("compile", "prefix-min", "--machines", 4, "--check", "--save", "here")
    assert (code, error) == (0, "")
    assert "R + 1 = 3" in shown and shown.count("yes") == 7 and "NO" not in shown
    loaded = posattn.load("here")
    assert isinstance(loaded, CompiledRun) and len(loaded) == 1
    assert loaded.model()(torch.tensor([3.0, 1.0, 2.0, 0.0])).tolist() == [3, 1, 1, 0]


def test_compile_with_softmax_says_how_far_answers_move(posattn_command):
    code, shown, _ = posattn_command("compile", "prefix-sum", "--machines", 4, "--epsilon", 0.01, "--bound", 10)
    assert code == 0 and "no answer moves by more than 0.01" in shown


def test_the_list_of_programs(posattn_command):
    code, shown, _ = posattn_command("compile", "--list")
    assert code == 0 and all(name in shown for name in PROGRAMS)


def test_programs_of_several_inputs_are_saved_too(posattn_command):
    posattn_command("compile", "word-count", "--machines", 2, "--save", "counter")
    code, shown, _ = posattn_command("predict", "counter", "1,2.5,1,4")
    assert code == 0 and "6.5000" in shown and "1 2.5" in shown
    code, _, error = posattn_command("evaluate", "counter")
    assert code == 2 and "solves none of the tasks" in error


def test_a_bound_that_a_program_does_not_read_is_named(posattn_command):
    taken = {
        "list-ranking": "0 to 2",
        "khop": "0 to 25, and from 0 to 3",
        "self-attention": "-1 to 1, and from -1 to 1",
    }
    for name in (*taken, "prefix-sum", "word-count"):
        code, shown, _ = posattn_command("compile", name, "--machines", 2, "--bound", 37)
        said = [line for line in shown.splitlines() if line.startswith("The bound")]
        own = [f"The bound of 37 does not matter: {name} takes numbers from {taken[name]}."] if name in taken else []
        assert code == 0 and said == own
    assert "does not matter" not in posattn_command("compile", "list-ranking", "--machines", 2)[1]


def test_a_folder_of_another_program_is_refused(posattn_command, tmp_path):
    assert posattn_command("compile", "prefix-sum", "--machines", 2, "--save", "own")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    code, _, told = posattn_command("compile", "prefix-min", "--machines", 2, "--save", "own")
    assert code == 2 and "own holds prefix-sum, compiled otherwise; give another folder." in told
    assert before == {path: path.read_bytes() for path in (tmp_path / "own").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("heap-sort",), "program is 'heap-sort'; it must be one of prefix-sum"),
        (("prefix-sum", "--machines", 0), "machines is 0"),
        (("prefix-sum", "--epsilon", -1), "epsilon is -1"),
        (("prefix-sum", "--check", "--samples", 0), "samples is 0"),
    ],
)
def test_bad_input_is_one_sentence(posattn_command, arguments, message):
    code, _, error = posattn_command("compile", *arguments)
    assert code == 2 and message in error and error.count("\n") == 1


OWN = '''
import posattn
from posattn.compiler import Whole, send

@posattn.program(k=Whole(0, 9))
def prefix_sum(me, n, k):
    """The left neighbour's number and twice the own one."""
    double = 2 * k
    heard = yield send((me + 1) % n, k)
    return heard.get(), double

@prefix_sum.truth
def _(k):
    return [(k[i - 1], 2 * k[i]) for i in range(len(k))]

@posattn.program(to=Whole(0, 1))
def sent(me, n, to):
    """How many name this machine."""
    return (yield send(to, me)).count()

@sent.truth
def _(to):
    return [to.count(i) for i in range(len(to))]

@posattn.program(k=Whole(0, 9))
def wrong(me, n, k):
    return k

@wrong.truth
def _(k):
    return [each + 1 for each in k]
'''


def test_programs_of_ones_own_go_through_every_verb(posattn_command, tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    code, shown, error = posattn_command("compile", "my.py:prefix_sum", "--machines", 3, "--check", "--save", "own")
    assert (code, error) == (0, "") and "as written" in shown and "NO" not in shown
    code, shown, _ = posattn_command("predict", "own", "1,2,3", "--task-file", "my.py", "--trace", "trace.json")
    assert code == 0 and "3.0000 2.0000" in shown and shown.count("+0.0000 +0.0000") == 3
    assert "Trace: trace.json" in shown
    rounds = json.loads((tmp_path / "trace.json").read_text())["rounds"]
    assert rounds[0]["variables"]["double"] == [2, 4, 6] and rounds[1]["variables"]["answer[0]"] == [3, 1, 2]
    assert rounds[0]["at"] == "prefix-sum (my.py:9), round 0"
    code, shown, _ = posattn_command("evaluate", "own", "--task-file", "my.py", "--samples", 20)
    assert code == 0 and "closeness" in shown and "prefix-sum" in shown
    code, shown, _ = posattn_command("graph", "my.py:prefix_sum", "--machines", 3, "--out", "own.svg")
    assert code == 0 and "<svg" in (tmp_path / "own.svg").read_text()
    code, shown, _ = posattn_command("export", "own", "--torch", "own.pt2", "--task-file", "my.py")
    assert code == 0 and "within its bounds" in shown


def test_the_theorems_route_goes_through_every_verb_too(posattn_command, tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    sent = ("compile", "my.py:sent", "--machines", 2, "--route", "theorem", "--check", "--save", "own")
    code, shown, error = posattn_command(*sent)
    assert (code, error) == (0, "") and "MPC" in shown and "NO" not in shown and "2R⌈log N⌉ = 2" in shown
    code, shown, _ = posattn_command("predict", "own", "1,1", "--task-file", "my.py", "--trace", "trace.json")
    assert code == 0 and shown.count("+0.0000") == 2
    assert json.loads((tmp_path / "trace.json").read_text())["rounds"][1]["variables"] == {"answer": [0, 2]}
    assert posattn_command("evaluate", "own", "--task-file", "my.py", "--samples", 5)[0] == 0
    assert posattn_command("graph", "own", "--out", "own.svg")[0] == 0
    code, _, error = posattn_command("compile", "prefix-sum", "--route", "short")
    assert code == 2 and "route is 'short'; it must be one of lean, theorem." in error


def test_the_trace_of_a_program_that_reads_letters(posattn_command, tmp_path):
    posattn_command("compile", "khop", "--machines", 3, "--save", "hops")
    code, shown, _ = posattn_command("predict", "hops", "1aba", "--trace", "trace.json")
    assert code == 0 and "Trace: trace.json" in shown
    assert json.loads((tmp_path / "trace.json").read_text())["rounds"][1]["variables"]["hop"] == [3, 3, 1]


def test_a_program_that_is_wrong_by_its_own_truth_is_told(posattn_command, tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    code, shown, error = posattn_command("compile", "my.py:wrong", "--machines", 3, "--check")
    assert "against the direct answer, 20 random inputs" in shown
    assert code == 2 and "does not give the answers that its truth states" in error
    code, _, error = posattn_command("compile", "my.py:wrnog", "--machines", 3)
    assert code == 2 and "did you mean wrong?" in error


def test_a_program_without_a_truth_is_held_against_itself(posattn_command, tmp_path):
    (tmp_path / "my.py").write_text("import posattn\n\n\n@posattn.program\ndef same(me, n, x):\n    return x\n")
    code, shown, _ = posattn_command("compile", "my.py:same", "--machines", 3, "--check")
    assert code == 0 and "against the program as it is written, 20 random inputs" in shown and "direct" not in shown


def test_a_truth_that_only_small_numbers_contradict_is_told_of_the_program(posattn_command, tmp_path):
    text = "import posattn\n\n\n@posattn.program\ndef same(me, n, x):\n    return x\n\n\n@same.truth\n"
    (tmp_path / "my.py").write_text(f"{text}def _(x):\n    return [each if abs(each) > 1e-9 else 0 for each in x]\n")
    code, _, error = posattn_command("compile", "my.py:same", "--machines", 3, "--check")
    assert code == 2 and "does not give the answers that its truth states" in error


def test_a_saved_program_of_ones_own_is_not_graded_by_the_library(posattn_command, tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(OWN)
    posattn_command("compile", "my.py:prefix_sum", "--machines", 3, "--save", "own")
    monkeypatch.delitem(OWN_PROGRAMS, "prefix-sum")  # as in another process
    code, shown, _ = posattn_command("predict", "own", "1,2,3")
    assert code == 0 and "Without the true answers" in shown and "--task-file" in shown
    code, _, error = posattn_command("evaluate", "own")
    assert code == 2 and "--task-file" in error
    (tmp_path / "other.py").write_text(OWN.replace("double", "twice"))  # another program of that name
    assert "Without the true answers" in posattn_command("predict", "own", "1,2,3", "--task-file", "other.py")[1]


SOLVING = """
import posattn
from posattn.compiler import PROGRAMS, send
from posattn.tasks import Task, register

register(Task("shifted", "shifted", lambda x: x.roll(1, dims=-1)))

@posattn.program
def left(me, n, x):
    return (yield send((me + 1) % n, x)).get()

left.task = "shifted"
PROGRAMS["left"] = left
"""


@pytest.mark.parametrize("given", [("left", "--task-file", "my.py"), ("my.py:left",)])
def test_the_next_command_names_the_file_of_task_and_program(posattn_command, tmp_path, monkeypatch, tables, given):
    (tmp_path / "my.py").write_text(SOLVING)
    monkeypatch.setitem(PROGRAMS, "left", None)  # so that the file's entry is taken back
    code, shown, error = posattn_command("compile", *given, "--machines", 3, "--save", "own")
    assert (code, error) == (0, "")
    (_, following) = shown.rstrip("\n").split("Next: posattn ")
    assert following == "predict own LIST --task-file my.py"
    monkeypatch.delitem(OWN_PROGRAMS, "left")  # as in another process
    tables()
    code, shown, error = posattn_command(*following.replace("LIST", "1,2,3").split())
    assert (code, error) == (0, "") and shown.count("+0.0000") == 3
    assert posattn_command("compile", "khop", "--machines", 3, "--save", "hops")[1].endswith("predict hops SEQUENCE\n")
    assert posattn_command("compile", "prefix-sum", "--machines", 2, "--save", "sums")[1].endswith(
        "predict sums LIST\n"
    )


def test_a_sparse_network_for_every_length_is_saved_asked_and_drawn(posattn_command, tmp_path):
    program = tmp_path / "mine.py"
    program.write_text(
        "import posattn\nfrom posattn.compiler import send\n\n@posattn.program\ndef before(me, n, x):\n"
        '    """x_{i-1} + x_i."""\n'
        "    return x + (yield send(me + 1, x, when=me < n - 1)).get()\n"
    )
    given = ("compile", f"{program}:before", "--machines", 4, "--sparse", "--lengths", "--check", "--save", "sums")
    code, shown, error = posattn_command(*given, "--bound", 9)
    assert (code, error) == (0, "") and "indices of attention" in shown and "NO" not in shown
    code, shown, _ = posattn_command("predict", "sums", "1,2,4", "--task-file", program, "--trace", "trace.json")
    assert code == 0 and all(number in shown for number in ("1.0000", "3.0000", "6.0000", "+0.0000"))
    trace = json.loads((tmp_path / "trace.json").read_text())["rounds"]
    assert trace[-1]["variables"]["answer"] == [1, 3, 6] and trace[0]["variables"]["length"] == [3, 3, 3]
    assert posattn_command("graph", "sums", "--out", "sums.svg")[0] == 0
    code, _, error = posattn_command("export", "sums", "--task-file", program, "--length", 3, "--torch", "sums.pt2")
    assert (code, error) == (0, "")
    assert torch.export.load("sums.pt2").module()(torch.tensor([[1.0, 2.0, 4.0]])).tolist() == [[1, 3, 6]]
    code, _, told = posattn_command("predict", "sums", "1,2,3,4,5")
    assert code == 2 and "the list has 5 numbers; this compiled program takes up to 4." in told
    code, _, told = posattn_command("explore", "sums")
    assert code == 2 and "has indices in place of queries and keys" in told
