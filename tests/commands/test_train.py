"""posattn train: what it trains is what the library trains, with networks of every kind; and what a person sees of it."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import posattn
from posattn.names import TASKS
from posattn.tasks import task
from posattn.training import network_for

SHORT = ["--samples", "40", "--epochs", "3", "--batch", "15", "--device=cpu"]
SMALL = ["--n", "3", "--embed", "8", "--width", "8", *SHORT]

# The command leaves fields of ModelConfig at None, which their types do not say.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two networks, trained by the command in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "pair"
    command = [sys.executable, "-m", "posattn", "train", "min", *SMALL, "--members", "2", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_train_shows_every_network_and_what_to_do_next(run):
    folder, done = run
    assert json.loads((folder / "run.json").read_text())["format"] == 1
    assert done.stderr == ""  # no bar, no escape codes: it is not a terminal
    assert "\x1b" not in done.stdout
    assert f"2 trained in {folder}" in " ".join(done.stdout.split()) and done.stdout.count("ok") == 2
    assert f"posattn evaluate {folder}" in done.stdout
    trained = posattn.load(folder)
    assert [member.seed for member in trained.spec.members] == [0, 1] and trained.spec.model.n == 3
    for loss in trained.result["train_loss"] + trained.result["validation_loss"]:
        assert f"{loss:.3e}" in done.stdout


def test_the_command_trains_what_the_library_does(run):
    config = posattn.ModelConfig(3, embed=8, width=8)
    ours = posattn.train("min", config, members=2, samples=40, epochs=3, batch=15, device="cpu")
    assert torch.equal(ours.parameters.flat, posattn.load(run[0]).parameters.flat)


def test_every_option_of_train_reaches_the_run(posattn_command, tmp_path):
    options = "--arch standard --n 2 --members 2 --samples 21 --epochs 2 --batch 20 --lr 0.002 --recipe tuned --seed 9"
    options += " --layers 1 --heads 1 --embed 6 --width 5 --encoding binary --no-bias --variable-length --device cpu"
    assert posattn_command("train", "sort", *options.split(), "--out", "run", "--save-every", 1)[0] == 0
    spec = posattn.load(tmp_path / "run").spec
    model = posattn.ModelConfig(2, "standard", layers=1, heads=1, embed=6, width=5, encoding="binary", bias=False)
    assert spec.model == model and spec.variable_length
    recipe = spec.recipe
    assert (recipe.name, recipe.lr, recipe.samples, recipe.epochs, recipe.batch) == ("tuned", 0.002, 21, 2, 20)
    assert [(member.task, member.seed, member.lr) for member in spec.members] == [
        ("sort", 9, 0.002),
        ("sort", 10, 0.002),
    ]


def test_train_has_a_folder_of_its_own_by_default(posattn_command, tmp_path):
    assert posattn_command("train", "sum", *SMALL, "--no-bias")[0] == 0
    assert posattn.load(tmp_path / "runs" / "sum-scale-exact").spec.model.arch == "scale-exact"


def test_the_commands_take_sequences_of_letters(posattn_command, tmp_path):
    small = ["--n", 6, "--layers", 1, "--embed", 8, "--width", 8, *SHORT]
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
    code, _, said = posattn_command("train", "mixed-max", "--layers", 1, "--relative", *SHORT, "--out", "run")
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
    assert f"Last steps: {better} of 1 network {'is' if better else 'are'} the better for them.\n" in shown
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


def test_looped_networks_are_of_the_family_that_solves_the_task_and_others_are_doubted(posattn_command):
    small = ["--arch", "looped", "--n", 3, "--samples", 4, "--epochs", 1, "--batch", 2, "--polish", 0, "--device=cpu"]
    code, _, said = posattn_command("train", "median", *small)
    sentence = "no looped network is known to solve median; there are some for sum, min, maxsub, sort, median-total"
    assert (code, said) == (0, f"posattn: {sentence}. It is learned roughly at best.\n")
    code, _, said = posattn_command("train", "sort", *small, "--variable-length")
    assert (code, said) == (0, "") and posattn.load("runs/sort-looped").spec.model.family == "butterfly"
    assert posattn.load("runs/sort-looped").spec.model == network_for("sort", arch="looped", n=3)
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


def test_on_a_terminal_there_is_a_bar_with_loss_and_rate(tmp_path):
    primary, secondary = pty.openpty()
    arguments = [sys.executable, "-m", "posattn", "train", "sum", *SMALL]
    child = subprocess.Popen(
        [*arguments, "--epochs", "200", "--out", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=secondary,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(secondary)
    seen, end = b"", time.monotonic() + 90
    while time.monotonic() < end and select.select([primary], [], [], 90)[0]:
        try:
            piece = os.read(primary, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(primary)
    assert child.wait(timeout=30) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert b"\x1b[" in seen
    history = posattn.load(tmp_path / "run").history
    assert "epoch 200/200" in shown and f"loss {history['loss'].iloc[-1]:.2e}" in shown
    assert f"lr {history['lr'].iloc[-1]:.1e}" in shown
    assert re.search(r"\d+\.\d steps/s +time left +\d+:\d\d:\d\d", shown)


@pytest.mark.parametrize("option", ["n", "members", "samples", "epochs", "batch", "polish", "layers", "heads", "width"])
def test_a_number_of_twenty_digits_is_refused(option, posattn_command):
    code, _, error = posattn_command("train", "sort", f"--{option}", 10**20)
    assert (code, error) == (2, f"posattn: {option} is {10**20}; it must be at most 9.22337e+18.\n")


def test_a_batch_may_be_larger_than_what_there_is(posattn_command):
    small = ("--n", 2, "--layers", 1, "--samples", 4, "--epochs", 1, "--device", "cpu")
    assert posattn_command("train", "sort", *small, "--batch", 2**62, "--out", "run")[0] == 0


def test_train_begins_with_the_program_for_the_task(posattn_command, tmp_path):
    options = ["--n", "3", "--members", "2", "--lr", "1e-9", *SHORT]
    code, said, _ = posattn_command("train", "sum", "--from", "compiled", *options, "--out", "run")
    assert code == 0 and "2 trained in run" in " ".join(said.split())
    run = posattn.load(tmp_path / "run")
    assert run.config.kind == "program" and run.config.n == 3 and run.evaluate([10], samples=20)["mse"].max() < 1e-6
    code, _, said = posattn_command("train", "sum", "--from", "compiled:bfs", *options, "--out", "other")
    assert code == 2 and said.startswith("posattn: the program for sum is 'bfs'; ")


def test_what_begins_with_a_run_learns_its_task_by_default(posattn_command, tmp_path):
    network = posattn.ModelConfig(3, layers=1, embed=4, width=4)
    plan = {"samples": 40, "epochs": 3, "batch": 15, "device": "cpu"}
    posattn.train(["sum", "min"], network, members=2, out=tmp_path / "pair", **plan)
    code, shown, _ = posattn_command("train", "--from", "pair", *SHORT)
    assert code == 0 and "1 trained in runs/sum-positional" in " ".join(shown.split())
    ours = posattn.train(begin=tmp_path / "pair", **plan)
    assert torch.equal(ours.parameters.flat, posattn.load("runs/sum-positional").parameters.flat)
    assert posattn_command("train", "--from", "pair", "--members", "2", *SHORT)[0] == 0
    assert [member.task for member in posattn.load("runs/sum-min-positional").members] == ["sum", "min"]
    assert posattn_command("train", "--pretrained", "sort", *SHORT, "--out", "on")[0] == 0
    assert posattn.load("on").members[0].task == "sort"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), f"TASK is missing; it must be one of {', '.join(TASKS)}, or that of --from RUN or --pretrained TASK."),
        (
            ("mine", "--task-file", "own.py"),
            f"task is 'mine' (did you mean min?); it must be one of {', '.join(TASKS)}, a function of a file that "
            "--task-file names, or one registered by posattn.tasks.register(Task(...)).",
        ),
        (("--from", "compiled"), "TASK is missing; --from compiled begins with a program for it."),
        (
            ("mixed-min", "--n", 101),
            "n is 101; a prompt has 23 positions in the layout elements, 23 in elements-shared and 101 in characters; this "
            "network is for elements, and --layout (layout=) gives another.",
        ),
        (
            ("mixed-min", "--pretrained", "sum"),
            "the run to begin with reads lists of numbers; the task mixed-min has prompts; give one that reads these.",
        ),
    ],
)
def test_what_is_missing_or_does_not_fit_is_told_in_a_sentence(posattn_command, given, told):
    Path("own.py").write_text("def _mine(x):\n    return x\n")
    assert posattn_command("train", *given, *SHORT) == (2, "", f"posattn: {told}\n")
