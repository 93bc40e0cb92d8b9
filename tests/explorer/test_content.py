"""What goes on the page: the user's runs, the store's figures, and what is refused, in one sentence."""

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiled_run import save
from posattn.compiler import compile_program
from posattn.compiler.pcoc import PCOC
from posattn.explorer import of_runs
from posattn.explorer.content import Content

SHORT = {"samples": 20, "epochs": 1, "batch": 10, "progress": False}


def test_members_stand_by_their_task_with_the_program_that_solves_it(trained):
    content = of_runs([trained])
    by_task = {subject["task"]: subject for subject in content.subjects}
    assert list(by_task) == ["sum", "min"]
    for task, numbers, program in (("sum", (0, 2), "prefix-sum"), ("min", (1, 3), "prefix-min")):
        own, compiled = by_task[task]["models"]
        assert [choice["name"] for choice in own["choices"]] == [f"member {k}, seed {k}" for k in numbers]
        assert own["label"] == str(trained)
        assert "sees positions" in own["about"] and "A program" in compiled["about"]  # what a card says
        assert compiled["choices"][0]["name"] == program
        assert content.networks[compiled["choices"][0]["network"]].described["n"] == 3
    assert [len(subject["models"][0]["choices"]) for subject in of_runs([trained], members=1).subjects] == [1, 1]
    with pytest.raises(UsageError, match="members is 0"):
        of_runs([trained], members=0)


def test_networks_of_every_length_stand_alone_or_beside_those_of_one_length(trained, tmp_path):
    looped = posattn.ModelConfig(n=100, arch="looped", width=4)
    short = SHORT | {"polish": 0, "variable_length": (2, 100), "out": tmp_path / "looped"}
    with pytest.warns(UserWarning, match="no looped network is known to solve median"):
        posattn.train(["sum", "median"], looped, members=2, **short)
    alone = {subject["task"]: subject for subject in of_runs([tmp_path / "looped"]).subjects}
    labels = {task: [model["label"] for model in subject["models"]] for task, subject in alone.items()}
    own = str(tmp_path / "looped")
    assert labels == {"sum": [own, "looped, compiled"], "median": [own]}  # nobody wrote a looped median
    assert alone["sum"]["longest"] == 64 and alone["sum"]["lengths"] == [64]  # as long as the page has room
    content = of_runs([tmp_path / "looped", trained])
    both = {subject["task"]: subject for subject in content.subjects}
    takes = [model["lengths"] for model in both["sum"]["models"]]
    assert takes == [[3], [3], None, None] and both["sum"]["longest"] == 64
    assert both["min"]["longest"] is None and len(both["min"]["models"]) == 2


def test_saved_programs_are_shown_and_stepped_through(tmp_path):
    """One of the library, and one of one's own, whose answer the page cannot know."""
    save(compile_program("odd-even-sort", 5), tmp_path / "sorter")
    own = PCOC(2, 1, (posattn.compiler.Known(-3, 3),), (), name="nothing")
    save(compile_program(own), tmp_path / "own")
    content = of_runs([tmp_path / "sorter", tmp_path / "own"])
    sorter, nothing, *_ = content.programs
    assert (sorter["name"], sorter["machines"], sorter["label"]) == ("odd-even-sort", 5, str(tmp_path / "sorter"))
    assert [subject["task"] for subject in content.subjects] == ["sort"]
    assert (nothing["name"], nothing["ranges"]) == ("nothing", [[-3.0, 3.0, False]])
    assert np.abs(nothing["examples"]).max() <= 3
    assert content.networks[nothing["network"]].described["compiled"]


@pytest.mark.parametrize(("arch", "said"), [("no-encoding", "compares the numbers"), ("misaligned", "sees positions")])
def test_a_card_says_what_attention_sees(lively, arch, said):
    content = Content()
    choices = [(content.add(lively(torch.float32, n=3, arch=arch)), "")]
    content.compare("sum", [3], "mine", arch, "", choices)
    assert said in content.subjects[0]["models"][0]["about"]


def test_an_own_program_of_a_known_name_is_not_compared_with_the_librarys_answers(tmp_path):
    for name in ("prefix-sum", "sum"):
        own = PCOC(2, 1, (posattn.compiler.Known(-3, 3),), (), name=name)
        save(compile_program(own), tmp_path / name)
        content = of_runs([tmp_path / name])
        assert (content.programs[0]["name"], content.programs[0]["answers"]) == (name, [])
        assert content.subjects == []


def test_token_runs_and_graph_networks_are_refused(tmp_path):
    small = posattn.ModelConfig(n=9, layers=1, embed=4, width=4, heads=1)
    posattn.train("khop", small, out=tmp_path / "letters", **SHORT)
    with pytest.raises(UsageError, match=r"reads tokens \(khop\); the explorer shows networks of lists of numbers"):
        of_runs([tmp_path / "letters"])
    posattn.train("sum", posattn.GraphConfig(n=3), out=tmp_path / "graph", **SHORT)
    with pytest.raises(UsageError, match="the explorer shows"):
        of_runs([tmp_path / "graph"])
    with pytest.raises(UsageError, match="there is no folder"):
        of_runs([tmp_path / "nowhere"])


def test_a_program_from_a_file_is_shown_with_its_variables(tmp_path):
    (tmp_path / "my.py").write_text(
        "import posattn\nfrom posattn.compiler import send\n\n\n@posattn.program\ndef shifted(me, n, x):\n"
        '    """The number before."""\n    heard = yield send((me + 1) % n, x)\n    return heard.get()\n'
    )
    (program,) = of_runs([f"{tmp_path}/my.py:shifted"]).programs
    assert (program["name"], program["title"], program["machines"]) == ("shifted", "The number before", 8)
    assert program["columns"] == [{"x": 0}, {"answer": 0}]
    assert program["answers"][0] == [program["examples"][0][-1], *program["examples"][0][:-1]]
    save(compile_program(f"{tmp_path}/my.py:shifted", 3), tmp_path / "saved")
    (program,) = of_runs([tmp_path / "saved"]).programs
    assert program["columns"] == [{"x": 0}, {"answer": 0}]


def test_a_saved_program_has_whole_numbers_where_it_reads_them(tmp_path):
    (tmp_path / "my.py").write_text(
        "import posattn\nfrom posattn.compiler import Whole\n\n\n@posattn.program(x=Whole(-50, 50))\n"
        "def summed(me, n, x, y):\n    return x + y\n    yield\n"
    )
    save(compile_program(f"{tmp_path}/my.py:summed", 3), tmp_path / "saved")
    (program,) = of_runs([tmp_path / "saved"]).programs
    assert program["ranges"][0] == [-50, 50, True] and program["ranges"][1][2] is False
    whole, real = np.moveaxis(np.array(program["examples"]), -1, 0)
    assert (whole == whole.round()).all() and (real != real.round()).any()


def test_a_program_from_a_file_is_not_taken_for_the_librarys(tmp_path):
    (tmp_path / "my.py").write_text(
        "import posattn\n\n\n@posattn.program\ndef prefix_sum(me, n, x):\n    return 2 * x\n    yield\n"
    )
    content = Content()
    own = content.program(f"{tmp_path}/my.py:prefix_sum", 2)
    assert content.program("prefix-sum", 2) != own
    assert content.program(f"{tmp_path}/my.py:prefix_sum", 2) == own
