"""The command's verbs and their help; bad input ends in one sentence and exit code 2, and all files stay as they were."""

import os
import re
import shutil
import stat
import subprocess
import sys

import pytest
import torch
import typer

from posattn.cli import app

SMALL = [
    *("--n", "3", "--embed", "8", "--width", "8"),
    *("--samples", "40", "--epochs", "3", "--batch", "15"),
    "--device=cpu",
]


# The command leaves fields of ModelConfig at None, which their types do not say.


def contents(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_help_lists_what_most_people_want_first_and_the_theory_last(posattn_command):
    _, shown, _ = posattn_command("--help")
    listed = [line.split()[1] for line in shown.splitlines() if re.match(r"│ [a-z]", line)]
    assert listed[:3] == ["train", "evaluate", "predict"] and listed.index("reproduce") < listed.index("report")
    assert listed[-3:] == ["bound", "certify", "ood-probability"]


def test_options_that_count_the_numbers_of_a_list_say_so_in_one_phrase_of_their_own():
    said = {
        (name, option.opts[0]): option.help
        for name, command in typer.main.get_command(app).commands.items()
        for option in command.params
        if set(option.opts) & {"--n", "--length", "--lengths", "--machines"} and not option.is_flag
    }
    commands = {"train": 2, "evaluate": 1, "export": 1, "explore": 1, "compile": 1, "graph": 1, "ood-probability": 1}
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
        ("reproduce", "--scale --out --list smoke quick paper executed"),
    ],
)
def test_help_names_every_option(posattn_command, monkeypatch, command, named):
    monkeypatch.setenv("COLUMNS", "200")
    code, shown, said = posattn_command(*command.split(), "--help")
    assert (code, said) == (0, "")
    assert [name for name in named.split() if name not in shown] == []


# What it refuses.

BAD = {
    "unknown task": ("train sumo", "task is 'sumo'"),
    "unknown architecture": ("train sum --arch transformer", "arch is 'transformer'"),
    "no numbers a list": ("train sum --n 0", "n is 0"),
    "fewer": ("train sum --n -1", "n is -1"),
    "words in a looped network": ("train khop --arch looped", "arch is 'looped'; khop reads words, "),
    "words in a scale-exact one": (
        "train mixed-min --arch scale-exact",
        "arch is 'scale-exact'; mixed-min reads words, ",
    ),
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
    "an output under a file": ("train sum --out file/run", "cannot write file/run: "),
    "an output nowhere": ("train sum --out /proc/nowhere/run", "cannot write /proc/nowhere/run: "),
    "an output in a device": ("train sum --out /dev/full/run", "cannot write /dev/full/run: "),
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
    "experiment in a file": ("reproduce fix-scale --scale smoke --out file", "out is 'file', which is not a folder"),
    "experiment on an unknown device": ("reproduce fix-scale --scale smoke --device abacus", "device is 'abacus'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_in_one_sentence_and_leaves_files_alone(pair, posattn_command, tmp_path, name):
    shutil.copytree(pair, tmp_path / "RUN")
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


@pytest.mark.parametrize("arguments", ["trian sum", "train", "train sum --epochs many", "train sum --bogus", "predict"])
def test_misspelt_commands_exit_with_2_and_no_traceback(posattn_command, arguments):
    code, shown, said = posattn_command(*arguments.split())
    assert code == 2 and shown == "" and said and "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        ("trian sum", "'train'"),
        ("train sum --epcohs 3", "--epochs"),
        ("train srot", "(did you mean sort?); it must be one of sum, "),
        ("train sum --arch positonal", "(did you mean positional?)"),
        ("train sum --recipe tunde", "(did you mean tuned?)"),
        ("reproduce fix-scal", "(did you mean fix-scale?)"),
        ("compile prefx-sum", "(did you mean prefix-sum?)"),
        ("graph prefx-sum", "(did you mean prefix-sum?)"),
        ("evaluate --pretrained srot", "(did you mean sort?)"),
    ],
)
def test_what_is_misspelt_is_answered_with_the_nearest_name(posattn_command, arguments, near):
    code, shown, said = posattn_command(*arguments.split())
    assert (code, shown) == (2, "") and near in said and said.count("\n") == 1


@pytest.mark.parametrize("arguments", ["compile prefix-sum --machines abc", "train sum --samples abc", "train sum --lr abc"])
def test_what_is_no_number_is_named(posattn_command, arguments):
    code, _, said = posattn_command(*arguments.split())
    assert code == 2 and "'abc'" in said and arguments.split()[-2].strip("-") in said and said.count("\n") == 1



def test_the_exit_code_and_sentence_are_those_of_the_real_process(pair):
    before = contents(pair)
    command = [sys.executable, "-m", "posattn", "train", "sum", "--out", str(pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("posattn: out is ") and done.stderr.count("\n") == 1
    assert contents(pair) == before


def test_weights_of_another_run_are_refused_in_a_sentence(pair, posattn_command, tmp_path):
    shutil.copytree(pair, tmp_path / "RUN")
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


def test_a_read_only_disk_ends_in_one_sentence(pair, posattn_command, tmp_path):
    place = tmp_path / "fixed"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        code, _, said = posattn_command("train", "sum", *SMALL, "--out", "fixed/run")
        assert (code, said) == (2, "posattn: cannot write fixed/run: Read-only file system.\n")
        code, _, said = posattn_command("evaluate", pair, "--scales", "1", "--csv", "fixed/t.csv")
        assert (code, said) == (2, "posattn: cannot write fixed/t.csv: Read-only file system.\n")
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "PAIR", "--scales=1", "--samples=5", "--csv", "null"),
        ("graph", "prefix-sum", "--machines=2", "--json", "null", "--out", "null.svg"),
        ("export", "PAIR", "--torch", "null.pt2"),
        ("explore", "PAIR", "--out", "null.html"),
    ],
)
def test_a_device_that_an_output_names_stays_a_device(posattn_command, pair, null, arguments):
    for suffix in (".svg", ".pt2", ".html"):  # endings that the commands ask for
        null.with_suffix(suffix).symlink_to(null)
    before = sorted(os.listdir(null.parent))
    code, _, said = posattn_command(*(pair if value == "PAIR" else value for value in arguments))
    assert (code, said) == (0, "")
    assert stat.S_ISCHR(null.stat().st_mode) and sorted(os.listdir(null.parent)) == before
    assert all(null.with_suffix(suffix).is_symlink() for suffix in (".svg", ".pt2", ".html"))


COMMAND = [sys.executable, "-m", "posattn", "ood-probability", "--samples", "10"]  # prints ‖, ε and the like


@pytest.mark.parametrize("shell", ['"$@" | head -0', '"$@" >&- 2>&-', '"$@" >/dev/full', '"$@" --samples x 2>&-'])
def test_an_output_that_takes_nothing_ends_no_command_in_a_traceback(shell):
    done = subprocess.run(["bash", "-c", shell, "-", *COMMAND], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr and done.returncode in (0, 1, 2)
    assert done.stderr.count("\n") <= 1


def test_characters_that_an_output_lacks_are_written_as_codes():
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.isascii()
