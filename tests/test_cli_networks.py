"""The posattn command with networks of words and prompts, with looped ones, and with those of the package."""

import re

import pandas as pd
import pytest

import posattn
from posattn.pretrained import pretrained_errors
from posattn.tasks import task

SMALL = ["--samples", "40", "--epochs", "3", "--batch", "15", "--device=cpu"]

# The command leaves fields of ModelConfig at None, which their types do not say.


def test_the_commands_take_sequences_of_letters(posattn_command, tmp_path):
    small = ["--n", 6, "--layers", 1, "--embed", 8, "--width", 8, *SMALL]
    code, shown, said = posattn_command("train", "khop", *small, "--tied", "--arch", "standard", "--out", "run")
    assert (code, said) == (0, "") and "Next: posattn evaluate run --scales 1,2" in shown
    model = posattn.load(tmp_path / "run").spec.model
    assert (model.tokens, model.causal, model.tied, model.n, model.embed) == ("letters", True, True, 6, 8)
    code, shown, _ = posattn_command("evaluate", "run", "--samples", 20)
    assert code == 0 and "accuracy_found" in shown
    for scale in (1, 2):
        assert [row for row in ("all", "0", "1", "2", "3") if not re.search(rf"│ +{scale} │ +{row} │", shown)] == []
    code, shown, _ = posattn_command("predict", "run", "1abcab")
    assert code == 0 and "input  1abcab" in shown and "true    ~~~bc" in shown
    code, _, said = posattn_command("predict", "run", "1abzab")
    assert (code, said[:47]) == (2, "posattn: character 4 of the sequence is 'z'; it")
    code, _, said = posattn_command("predict", "run", "1abcabcabc")
    assert code == 2 and "this model takes 1 to 6" in said


def test_the_commands_take_prompts(posattn_command, tmp_path):
    code, _, said = posattn_command("train", "mixed-max", "--layers", 1, "--relative", *SMALL, "--out", "run")
    model = posattn.load(tmp_path / "run").spec.model
    assert (code, said) == (0, "") and (model.embed, model.relative) == (32, True)
    code, shown, _ = posattn_command("evaluate", "run", "--scales", "1,10", "--samples", 20)
    assert code == 0 and "mape" in shown and "closeness" in shown
    x, y = task("mixed-max").sample(1, seed=3)
    prompt = task("mixed-max").decode(x[0])
    code, shown, _ = posattn_command("predict", "run", prompt)
    assert code == 0 and f"true   {y.item():.2f}" in shown
    code, _, said = posattn_command("predict", "run", prompt.replace("Find max", "Find min"))
    assert (code, said) == (2, "posattn: the prompt's query asks for 'min'; the task mixed-max answers max.\n")


def test_a_looped_network_is_tested_at_lengths_it_was_not_trained_on(posattn_command):
    small = ["--samples", 40, "--epochs", 1, "--batch", 20, "--embed", 8, "--width", 8, "--device=cpu", "--out=run"]
    sort = ["train", "sort", "--arch", "looped", "--family", "butterfly", "--n", 4, "--polish", 1, *small]
    code, shown, error = posattn_command(*sort, "--variable-length")
    assert (code, error) == (0, "")
    assert "Next: posattn evaluate run --lengths 4,256 --scales 1,10 --samples 100\n" in shown
    better = sum(posattn.load("run").result["polished"])
    assert f"Last steps: {better} of 1 networks are the better for them.\n" in shown
    assert posattn.load("run").spec.recipe.polish == 1 and posattn.load("run").spec.recipe.name == "sorter"
    code, _, error = posattn_command(*sort[:-1], "--lengths=2,4", "--polish=0", "--out=two")
    assert (code, error) == (0, "") and posattn.load("two").spec.lengths == (2, 4)
    code, _, refused = posattn_command(*sort[:-1], "--lengths=2,4", "--variable-length", "--out=three")
    assert code == 2 and refused.startswith("posattn: lengths is '2,4'; --variable-length is given too")
    code, shown, _ = posattn_command("evaluate", "run", "--lengths=4,19", "--scales=1", "--samples=5", "--device=cpu")
    assert code == 0 and "relative_square" in shown and "closeness" in shown and " 19 " in shown
    code, _, warned = posattn_command("predict", "run", "3,1,2", "--device=cpu")
    assert code == 0 and warned == ""  # shorter and longer lists are nothing to warn of
    code, _, refused = posattn_command("evaluate", "run", "--lengths=4,x", "--device=cpu")
    assert code == 2 and refused == "posattn: lengths has 'x'; it must be whole numbers above 0, such as 16,1024.\n"
    select = ["train", "median-total", "--arch", "looped", "--family", "selector", "--from", "run", *small[:-1]]
    code, shown, error = posattn_command(*select, "--out=medians")
    assert code == 0 and "1 trained" in shown, error
    assert posattn.load("medians").spec.recipe.name == "selector"
    began = posattn.load("medians").spec.to_dict()["members"][0]
    assert list(began) == ["task", "seed", "lr", "begin"]
    options = ["--samples", 40, "--epochs", 1, "--batch", 20, "--device=cpu"]
    code, _, error = posattn_command("train", "sort", "--from", "run", *options, "--out=more")
    assert code == 0 and posattn.load("more").spec.model == posattn.load("run").spec.model, error
    code, _, refused = posattn_command(*select, "--width", 9, "--out=other")
    assert code == 2 and refused.startswith("posattn: width is 9; that of the run to begin with is 8.")
    code, _, error = posattn_command("train", "sort", "--from", "run", "--n", 8, *options, "--out=longer")
    assert code == 0, error
    longer, run = (posattn.load(name).spec.model for name in ("longer", "run"))
    assert longer.n == 8 and (longer.family, longer.embed, longer.width) == (run.family, run.embed, run.width)
    code, _, refused = posattn_command("train", "sort", "--from", "run", "--arch", "standard", *options, "--out=other")
    assert code == 2 and refused == "posattn: arch is 'standard'; that of the run to begin with is 'looped'.\n"


def test_a_network_of_the_package_is_asked_about_a_list(posattn_command):
    code, shown, said = posattn_command(
        "predict", "--pretrained", "median-total", "--arch=looped", "-4,3,0,1,100", "--device=cpu"
    )
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    assert (code, said) == (0, "") and [float(row[4]) for row in rows] == [
        1.0
    ] * 5  # the true median, at every position
    assert max(abs(float(row[3]) - 1) for row in rows) < 0.1
    code, shown, said = posattn_command("predict", "3,1,2", "--pretrained", "sort", "--device=cpu")
    assert code == 0 and said == "posattn: the list has 3 numbers; this network was trained on 8 only.\n"
    for wrong in (["run"], ["--pretrained=sort"], ["run", "3,1", "--pretrained=sort"], []):
        code, _, said = posattn_command("predict", *wrong)
        assert code == 2 and said.startswith("posattn: a network is asked about a list; give RUN and LIST, or ")
    code, _, said = posattn_command("predict", "3,1,2", "--pretrained", "median-total")
    sentence = "task is 'median-total'; of the package's networks for it there is arch looped, not positional."
    assert (code, said) == (2, f"posattn: {sentence}\n")
    for wrong, what in (
        (["3,1,2", "--pretrained=sort", "--member=1"], "member is 1"),
        (["run", "3,1", "--arch=looped"], "arch is"),
    ):
        code, _, said = posattn_command("predict", *wrong)
        assert code == 2 and said.startswith(f"posattn: {what}")
    code, _, said = posattn_command("predict", "3,1,2", "--pretrained", "khop")
    assert code == 2 and said.startswith("posattn: task is 'khop'; it must be one of ") and said.count("\n") == 1


def test_looped_networks_are_of_the_family_that_solves_the_task_and_others_are_doubted(posattn_command):
    small = ["--arch", "looped", "--n", 3, "--samples", 4, "--epochs", 1, "--batch", 2, "--polish", 0, "--device=cpu"]
    code, _, said = posattn_command("train", "median", *small)
    sentence = "no looped network is known to solve median; there are some for sum, min, maxsub, sort, median-total"
    assert (code, said) == (0, f"posattn: {sentence}. It is learned roughly at best.\n")
    code, _, said = posattn_command("train", "sort", *small, "--variable-length")
    assert (code, said) == (0, "") and posattn.load("runs/sort-looped").spec.model.family == "butterfly"
    code, _, said = posattn_command("train", "sort", *small, "--family", "dilated", "--out=dilated")
    sentence = "family is 'dilated'; the looped networks that solve sort are of family 'butterfly'"
    assert (code, said) == (0, f"posattn: {sentence}. It is learned roughly at best.\n")
    assert posattn.load("dilated").spec.model.family == "dilated"
    assert posattn_command("train", "sum", *small)[2] == ""
    code, _, said = posattn_command("train", "sort", *small, "--out=one-length")
    sentence = "all training lists have 3 numbers, from which sort is hardly learned for other lengths"
    assert (code, said) == (0, f"posattn: {sentence}; lists of 1 to n serve (variable length), and n = 4 is enough.\n")
    code, _, said = posattn_command("train", "min-total", "--from", "runs/sum-looped", *small[4:], "--out=min")
    assert code == 0 and said.startswith("posattn: no looped network is known to solve min-total")


def test_a_network_of_the_package_is_tested_like_a_run(posattn_command):
    code, shown, error = posattn_command("evaluate", "--pretrained=sum", "--scales=1", "--csv=own.csv", "--device=cpu")
    assert (code, error) == (0, "") and "positional, with the package" in shown
    stated = pretrained_errors().query("arch == 'positional' and task == 'sum' and scale == 1")
    for metric in ("mse", "rounding", "closeness"):
        assert pd.read_csv("own.csv")[metric].item() == pytest.approx(stated[metric].item(), rel=0.01)
    code, shown, _ = posattn_command("evaluate", "--pretrained=min", "--arch=looped", "--lengths=50", "--samples=5")
    assert code == 0 and "looped, with the package" in shown and "50" in shown
    for wrong, sentence in (
        ([], "networks are tested; give RUN, or --pretrained TASK."),
        (["run", "--pretrained=sum"], "networks are tested; give RUN, or --pretrained TASK."),
        (["run", "--arch=looped"], "arch is 'looped'; a run has its own."),
    ):
        assert posattn_command("evaluate", *wrong) == (2, "", f"posattn: {sentence}\n")
