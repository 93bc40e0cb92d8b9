"""The posattn command: what it answers, and that bad input ends in one sentence and exit code 2 with all files as they were."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch
import typer

import posattn
from posattn.cli import app
from posattn.tasks import task

SMALL = [
    *("--n", "3", "--embed", "8", "--width", "8"),
    *("--samples", "40", "--epochs", "3", "--batch", "15"),
    "--device=cpu",
]


# The command leaves fields of ModelConfig at None, which their types do not say.


def process(*arguments, **options):
    command = [sys.executable, "-m", "posattn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two networks, trained by the command in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "pair"
    done = process("train", "min", *SMALL, "--members", 2, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def contents(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


# What it does.


def test_train_shows_every_network_and_what_to_do_next(run):
    folder, done = run
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


def test_evaluate_shows_medians_and_writes_every_network(run, posattn_command, tmp_path):
    code, shown, said = posattn_command(
        "evaluate", run[0], "--scales", "1,2:4:2", "--samples", 50, "--csv", "new/t.csv"
    )
    assert (code, said) == (0, "")
    table = posattn.load(run[0]).evaluate([1, 2, 4], 50)
    written = pd.read_csv(tmp_path / "new" / "t.csv")
    pd.testing.assert_frame_equal(written, table, check_dtype=False)
    for scale, own in table.groupby("scale"):
        line = next(line for line in shown.splitlines() if re.search(rf"│ +min │ +{scale:g} │", line))
        assert f"{own['mse'].median():.3g}" in line and f"{own['mse/c²'].median():.3g}" in line
    assert "median of 2" in shown
    code, shown, _ = posattn_command("evaluate", run[0], "--scales", "1", "--samples", 50, "--each")
    assert code == 0 and all(f"{mse:.3g}" in shown for mse in table[table["scale"] == 1]["mse"])


@pytest.mark.parametrize("text", ["3,1,2", "-1,2.5,-3", " 1 , 2,3", "-0.5,1e-1,2"])
def test_predict_puts_the_answer_beside_the_truth(run, posattn_command, text):
    code, shown, said = posattn_command("predict", run[0], text, "--member", 1)
    assert (code, said) == (0, "")
    values = torch.tensor([float(part) for part in text.split(",")])
    answers = posattn.load(run[0]).model(1)(values).tolist()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    for row, given, answer, truth in zip(rows, values, answers, task("min").target(values).tolist(), strict=True):
        assert row[1:] == [f"{given:g}", f"{answer:.4f}", f"{truth:.4f}", f"{answer - truth:+.4f}"]


def test_predict_takes_a_shorter_list_and_says_what_the_run_was_trained_on(run, posattn_command):
    code, shown, said = posattn_command("predict", run[0], "2,1")
    assert code == 0 and said.count("\n") == 1 and "trained on 3 only" in said
    assert "1.0000" in shown


def test_help_lists_what_most_people_want_first_and_the_theory_last(posattn_command):
    _, shown, _ = posattn_command("--help")
    listed = [line.split()[1] for line in shown.splitlines() if re.match(r"│ [a-z]", line)]
    assert listed[:3] == ["train", "evaluate", "predict"] and listed.index("reproduce") < listed.index("report")
    assert listed[-3:] == ["bound", "certify", "ood-probability"]


@pytest.mark.parametrize("arch", ["scale-exact", "looped"])
@pytest.mark.parametrize("name", ["mixed-min", "khop"])
def test_networks_of_words_are_not_scale_exact_or_looped_and_are_not_trained_as_such(
    posattn_command, tmp_path, name, arch
):
    code, _, said = posattn_command("train", name, "--arch", arch)
    assert code == 2 and said.startswith(f"posattn: arch is '{arch}'; {name} reads words,") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_options_that_count_the_numbers_of_a_list_say_so_in_one_phrase_of_their_own():
    said = {
        (name, option.opts[0]): option.help
        for name, command in typer.main.get_command(app).commands.items()
        for option in command.params
        if set(option.opts) & {"--n", "--length", "--lengths", "--machines"}
    }
    commands = {"train": 2, "evaluate": 1, "export": 1, "compile": 1, "graph": 1, "ood-probability": 1}
    assert {name: [each for each, _ in said].count(name) for name, _ in said} == commands
    assert [place for place, text in said.items() if not re.search("[Nn]umbers? (in|of) (a|the) .*list", text)] == []
    assert len(set(said.values())) == len(said)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("", "train evaluate predict reproduce"),
        (
            "train",
            "--arch --n --members --samples --epochs --batch --lr --recipe --seed --device --precision --out "
            "--layers --heads --width --encoding --no-bias --variable-length --save-every --tensorboard --polish "
            "maxsub scale-exact rope-only tuned sinusoidal",
        ),
        ("evaluate", "RUN --scales --samples --csv --each --device"),
        ("predict", "RUN LIST --member --device"),
        ("reproduce", "--scale --out --list smoke quick paper"),
    ],
)
def test_help_names_every_option(posattn_command, monkeypatch, command, named):
    monkeypatch.setenv("COLUMNS", "200")
    code, shown, said = posattn_command(*command.split(), "--help")
    assert (code, said) == (0, "")
    assert [name for name in named.split() if name not in shown] == []


def test_the_list_of_experiments(posattn_command):
    code, shown, _ = posattn_command("reproduce", "--list")
    assert code == 0 and "fix-scale" in shown and "Figure 4" in shown
    assert posattn_command("reproduce")[1] == shown


def test_drawing_all_of_a_store_passes_over_what_it_has_no_rows_of(posattn_command):
    code, shown, _ = posattn_command("reproduce", "all", "--scale", "smoke", "--runs", "0")
    assert code == 0 and "fix-scale: runs is 0, and the store at 'out/store' has no rows of fix-scale at scale" in shown
    assert "discrepancy: runs is 0" in shown and "gnn: runs is 0" in shown


# What it refuses.

BAD = {
    "unknown task": ("train sumo", "task is 'sumo'"),
    "unknown architecture": ("train sum --arch transformer", "arch is 'transformer'"),
    "no numbers a list": ("train sum --n 0", "n is 0"),
    "fewer": ("train sum --n -1", "n is -1"),
    "unknown recipe": ("train sum --recipe grandmas", "recipe is 'grandmas'"),
    "unknown encoding": ("train sum --encoding morse", "encoding is 'morse'"),
    "no epochs": ("train sum --epochs 0", "epochs is 0"),
    "no batch": ("train sum --batch 0", "batch is 0"),
    "no samples": ("train sum --samples 0", "samples is 0"),
    "no members": ("train sum --members 0", "members is 0"),
    "no layers": ("train sum --layers 0", "layers is 0"),
    "no heads": ("train sum --heads 0", "heads is 0"),
    "heads that do not divide": ("train sum --heads 3", "embed is 64"),
    "negative seed": ("train sum --seed -1", "seed is -1"),
    "rate of zero": ("train sum --lr 0", "lr is 0"),
    "rate that is no number": ("train sum --lr nan", "lr is nan"),
    "rate without end": ("train sum --lr inf", "lr is inf"),
    "unknown device": ("train sum --device abacus", "device is 'abacus'"),
    "a device that cannot train": ("train sum --device meta", "device is 'meta'"),
    "tf32 on a CPU": ("train sum --precision tf32 --device cpu", "precision is 'tf32'"),
    "unknown precision": ("train sum --precision fp8", "precision is 'fp8'"),
    "an output that is a file": ("train sum --out file", "out is 'file'"),
    "an output under a file": ("train sum --out file/run", "cannot write file/run/run.json"),
    "an output nowhere": ("train sum --out /proc/nowhere/run", "cannot write /proc/nowhere/run/run.json"),
    "an output in a device": ("train sum --out /dev/full/run", "cannot write /dev/full/run/run.json"),
    "an output among other files": ("train sum --out .", "out is '.'"),
    "an output of another configuration": ("train sum --out RUN", "out is 'RUN', which holds another run"),
    "a scale of zero": ("evaluate RUN --scales 0", "scales has '0'"),
    "a negative scale": ("evaluate RUN --scales -1", "scales has '-1'"),
    "a scale of letters": ("evaluate RUN --scales a", "scales has 'a'"),
    "no scale": ("evaluate RUN --scales ,", "scales has ''"),
    "scales that fall": ("evaluate RUN --scales 5:1", "scales has '5:1'"),
    "scales without end": ("evaluate RUN --scales 1:inf", "scales has '1:inf'"),
    "scales that stand still": ("evaluate RUN --scales 1:5:0", "scales has '1:5:0'"),
    "scales in four parts": ("evaluate RUN --scales 1:2:3:4", "scales has '1:2:3:4'"),
    "no test lists": ("evaluate RUN --samples 0", "samples is 0"),
    "a folder that is not there": ("evaluate nothing", "there is no folder nothing"),
    "a folder without a run": ("evaluate .", ". holds no run"),
    "a file for a run": ("evaluate file", "file is a file"),
    "a pickle for a run": ("evaluate model.pt", "model.pt is a pickle file"),
    "a run that is garbage": ("evaluate garbage", "garbage/run.json is damaged"),
    "a table that cannot be written": ("evaluate RUN --csv file/t.csv", "cannot write file/t.csv"),
    "evaluation on an unknown device": ("evaluate RUN --device abacus", "device is 'abacus'"),
    "letters in a list": ("predict RUN 1,two,3", "the list is '1,two,3'"),
    "a hole in a list": ("predict RUN 1,,3", "the list is '1,,3'"),
    "nan in a list": ("predict RUN 1,nan,3", "the list is '1,nan,3'"),
    "infinity in a list": ("predict RUN -inf,1,3", "the list is '-inf,1,3'"),
    "more than float32 holds": ("predict RUN 1e39,1,3", "the list is '1e39,1,3'"),
    "too long a list": ("predict RUN 1,2,3,4", "the list has 4 numbers; this model takes 1 to 3"),
    "a network that is not there": ("predict RUN 1,2,3 --member 2", "member is 2"),
    "a network before the first": ("predict RUN 1,2,3 --member -1", "member is -1"),
    "prediction by no run": ("predict nothing 1,2,3", "there is no folder nothing"),
    "unknown experiment": ("reproduce fix-everything", "experiment is 'fix-everything'"),
    "all experiments of no series": ("reproduce all --scale smoke --only rope", "only is 'rope'"),
    "unknown scale": ("reproduce fix-scale --scale huge", "scale is 'huge'"),
    "experiment in a file": ("reproduce fix-scale --scale smoke --out file", "cannot write file/experiment.json"),
    "experiment on an unknown device": ("reproduce fix-scale --scale smoke --device abacus", "device is 'abacus'"),
}


def test_all_experiments_that_have_a_series(posattn_command, tmp_path):
    code, shown, told = posattn_command(
        *("reproduce", "all", "--scale", "smoke", "--only", "standard-rope", "--device", "cpu", "--out", "out")
    )
    assert code == 0, told
    assert "2 of 16 runs are there; " in shown
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name != "store"] == ["encodings"]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_in_one_sentence_and_leaves_files_alone(run, posattn_command, tmp_path, name):
    shutil.copytree(run[0], tmp_path / "RUN")
    (tmp_path / "file").write_text("precious")
    torch.save({"a": torch.ones(1)}, tmp_path / "model.pt")
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "run.json").write_text("{]")
    before = contents(tmp_path)
    arguments, sentence = BAD[name]
    code, shown, said = posattn_command(*arguments.split(" "))
    assert code == 2
    assert said.startswith(f"posattn: {sentence}") and said.endswith(".\n") and said.count("\n") == 1
    assert shown == "" or arguments.startswith("reproduce")  # which announces what it is about to train
    assert contents(tmp_path) == before and not (tmp_path / "runs").exists()


def test_an_empty_list_is_refused(run, posattn_command):
    code, _, said = posattn_command("predict", run[0], "")
    assert code == 2 and said.startswith("posattn: the list is ''") and said.count("\n") == 1


@pytest.mark.parametrize("arguments", ["trian sum", "train", "train sum --epochs many", "train sum --bogus", "predict"])
def test_misspelt_commands_exit_with_2_and_no_traceback(posattn_command, arguments):
    code, shown, said = posattn_command(*arguments.split())
    assert code == 2 and shown == "" and said and "Traceback" not in said


def test_the_exit_code_and_sentence_are_those_of_the_real_process(run):
    before = contents(run[0])
    done = process("train", "sum", "--out", run[0])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("posattn: out is ") and done.stderr.count("\n") == 1
    assert contents(run[0]) == before


def test_weights_of_another_run_are_refused_in_a_sentence(run, posattn_command, tmp_path):
    shutil.copytree(run[0], tmp_path / "RUN")
    options = "--n 5 --embed 8 --width 8 --samples 20 --epochs 1 --device cpu --members 2 --out other"
    assert posattn_command("train", "min", *options.split())[0] == 0
    for name in ("weights.safetensors", "weights.json"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "RUN" / name)
    code, _, said = posattn_command("evaluate", "RUN", "--scales", "1")
    assert code == 2 and said.count("\n") == 1


def test_a_full_disk_ends_in_one_sentence(posattn_command, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        code, _, said = posattn_command("train", "sum", *SMALL, "--out", "small/run")
        assert code == 2 and re.fullmatch(r"posattn: cannot write small/run/\S+: the disk is full\.\n", said)
        assert not [name for name in os.listdir(small / "run") if name.startswith(".")]
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_read_only_disk_ends_in_one_sentence(run, posattn_command, tmp_path):
    place = tmp_path / "fixed"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        code, _, said = posattn_command("train", "sum", *SMALL, "--out", "fixed/run")
        assert (code, said) == (2, "posattn: cannot write fixed/run/run.json: Read-only file system.\n")
        code, _, said = posattn_command("evaluate", run[0], "--scales", "1", "--csv", "fixed/t.csv")
        assert (code, said) == (2, "posattn: cannot write fixed/t.csv: Read-only file system.\n")
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_networks_that_failed_are_named(posattn_command):
    assert posattn_command("train", "sum", *SMALL, "--lr", "1e18", "--out", "run")[0] == 0
    code, shown, said = posattn_command("evaluate", "run", "--scales", "1")
    assert (code, said) == (0, "") and "member 0 diverged" in shown


# What a person sees.


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
    assert re.search(r"\d+\.\d steps/s +\d+:\d\d:\d\d", shown)


def test_the_description_of_a_run_is_json_for_other_programs(run):
    assert json.loads((run[0] / "run.json").read_text())["format"] == 1


# Tasks of tokens.


def test_medians_of_an_experiment_as_json(posattn_command, tmp_path):
    places = ("--store", tmp_path / "store", "--out", tmp_path / "out")
    code, output, _ = posattn_command("reproduce", "ood-probability", "--scale", "smoke", "--json", *places)
    found = json.loads(output)
    assert code == 0 and found["experiment"] == "ood-probability" and found["figure"].endswith(".png")
    assert all(0 <= row["median"] <= 4 for row in found["medians"]) and len(found["medians"]) > 4
