"""posattn predict: the answer beside the truth, of trained networks, compiled programs and those of the package."""

import pytest
import torch

import posattn
from posattn.tasks import task

# The command leaves fields of ModelConfig at None, which their types do not say.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("text", ["3,1,2", "-1,2.5,-3", " 1 , 2,3", "-0.5,1e-1,2"])
def test_predict_puts_the_answer_beside_the_truth(pair, posattn_command, text):
    code, shown, said = posattn_command("predict", pair, text, "--member", 1)
    assert (code, said) == (0, "")
    values = torch.tensor([float(part) for part in text.split(",")])
    answers = posattn.load(pair).model(1)(values).tolist()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["1", "2", "3"] and f"minbynetwork1of{pair}" in "".join(shown.split())
    for row, given, answer, truth in zip(rows, values, answers, task("min").target(values).tolist(), strict=True):
        assert row[1:] == [f"{given:g}", f"{answer:.4f}", f"{truth:.4f}", f"{answer - truth:+.4f}"]


def test_a_list_may_be_several_arguments_and_have_brackets(pair, posattn_command):
    expected = posattn_command("predict", pair, "-3,1.5,-0.5")
    assert expected[0] == 0
    for text in (["-3", "1.5", "-0.5"], ["[-3, 1.5, -0.5]"], ["[-3,", "1.5,", "-0.5]"], ["-3,", "1.5 -0.5"]):
        assert posattn_command("predict", pair, *text) == expected
        assert posattn_command("predict", pair, "--member=0", *text) == expected
    for wrong in (["[1,2,3"], ["1,,2"], ["1", "2", "x"], ["[]"], ["1,2,3,"]):
        code, _, said = posattn_command("predict", pair, *wrong)
        assert code == 2 and said.startswith(
            f"posattn: the list is {' '.join(wrong)!r}; it must be numbers up to 3e38, "
        )


def test_a_misspelt_option_is_no_part_of_the_list(pair, posattn_command):
    code, _, said = posattn_command("predict", pair, "1,2,3", "--membr", "1")
    assert (code, said) == (
        2,
        "posattn: there is no option '--membr' (did you mean --member?); see posattn predict --help.\n",
    )


def test_a_shorter_list_is_refused_unless_asked_for(pair, posattn_command):
    code, shown, said = posattn_command("predict", pair, "2,1")
    sentence = "the list has 2 numbers; this network was trained on 3 only"
    assert (code, shown, said) == (2, "", f"posattn: {sentence}; --shorter asks it all the same.\n")
    code, shown, said = posattn_command("predict", pair, "2,1", "--shorter")
    assert code == 0 and said.count("\n") == 1 and "trained on 3 only" in said
    assert "1.0000" in shown


def test_an_empty_list_is_refused(pair, posattn_command):
    code, _, said = posattn_command("predict", pair, "")
    assert code == 2 and said.startswith("posattn: the list is ''") and said.count("\n") == 1


def test_a_network_of_the_package_is_asked_about_a_list(posattn_command):
    code, shown, said = posattn_command(
        "predict", "--pretrained", "median-total", "--arch=looped", "-4,3,0,1,100", "--device=cpu"
    )
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    assert (code, said) == (0, "") and [float(row[4]) for row in rows] == [
        1.0
    ] * 5  # the true median, at every position
    assert max(abs(float(row[3]) - 1) for row in rows) < 0.1
    code, shown, said = posattn_command("predict", "3", "1", "2", "--shorter", "--pretrained", "sort", "--device=cpu")
    assert code == 0 and said == "posattn: the list has 3 numbers; this network was trained on 8 only.\n"
    for wrong in (["run"], ["--pretrained=sort"], []):
        code, _, said = posattn_command("predict", *wrong)
        assert code == 2 and said.startswith("posattn: a network is asked about a list; give RUN and LIST, or ")
    code, _, said = posattn_command("predict", "3,1,2", "--pretrained", "median-total")
    sentence = "task is 'median-total'; it must be one of sum, min, median, sort, maxsub, median-total (with arch looped)."
    assert (code, said) == (2, f"posattn: {sentence}\n")
    for wrong, what in (
        (["3,1,2", "--pretrained=sort", "--member=1"], "member is 1"),
        (["run", "3,1", "--arch=looped"], "arch is"),
        (["run", "3,1", "--pretrained=sort"], "the list is 'run 3,1'; it must be numbers"),
    ):
        code, _, said = posattn_command("predict", *wrong)
        assert code == 2 and said.startswith(f"posattn: {what}")
    code, _, said = posattn_command("predict", "3,1,2", "--pretrained", "khop")
    assert code == 2 and said.startswith("posattn: task is 'khop'; it must be one of ") and said.count("\n") == 1


def test_evaluate_and_predict_take_a_compiled_program(posattn_command, sorter):
    code, shown, _ = posattn_command("evaluate", sorter, "--scales", "1,1000", "--samples", 50)
    assert code == 0 and "compiled bitonic-sort" in " ".join(shown.split())
    table = posattn.load(sorter).evaluate([1, 1000], samples=50)
    assert table["mse"].tolist() == [0, 0] and (table["rounding"] == 1).all()
    code, shown, _ = posattn_command("predict", sorter, "5,-1,4,2,3")
    assert code == 0 and shown.count("+0.0000") == 5 and "-1.0000" in shown


def test_wrong_lists_for_a_compiled_program(posattn_command, sorter):
    assert "takes 5" in posattn_command("predict", sorter, "1,2")[2]
    assert "compiled for -1e+06 to 1e+06" in posattn_command("predict", sorter, "1,2,3,4,1e9")[2]
    assert "member 0 only" in posattn_command("predict", sorter, "1,2,3,4,5", "--member", 1)[2]


def test_of_several_tasks_the_network_that_has_the_query_is_asked(posattn_command, tmp_path):
    small = posattn.TokenConfig(n=23, tokens="prompts", layers=1, embed=4, width=4)
    posattn.train(["mixed-min", "mixed-sum"], small, members=2, samples=20, epochs=1, batch=20, out=tmp_path / "run")
    for name, asked in (("mixed-min", 0), ("mixed-sum", 1)):
        prompt = task(name).decode(task(name).sample(1)[0][0])
        code, shown, _ = posattn_command("predict", tmp_path / "run", prompt)
        assert code == 0 and f"{name} by network {asked} of " in shown
        code, _, said = posattn_command("predict", tmp_path / "run", prompt, "--member", 1 - asked)
        assert code == 2 and "the prompt's query asks for" in said
    prompt = task("mixed-max").decode(task("mixed-max").sample(1)[0][0])
    assert "the task mixed-min answers min" in posattn_command("predict", tmp_path / "run", prompt)[2]


def test_a_trained_run_has_no_trace_and_says_so_before_it_answers(pair, posattn_command, tmp_path):
    code, shown, said = posattn_command("predict", pair, "3,1,2", "--trace", tmp_path / "trace.json")
    assert (code, shown) == (2, "") and "only compiled programs have variables to trace" in " ".join(said.split())
