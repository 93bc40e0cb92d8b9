"""What training leaves alone: other people's files, random numbers and settings; and how it says that it cannot."""

import math
import subprocess
import sys

import pandas as pd
import pytest
import torch

import posattn
from posattn import files
from posattn.training import Member, Trainer
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

TINY = posattn.ModelConfig(3, embed=8, width=8)
SHORT = {"samples": 20, "epochs": 2, "batch": 10, "device": "cpu"}


def test_a_strangers_partial_files_survive_a_refusal(tmp_path):
    for name in (".movie.mkv.partial", "notes.txt"):
        (tmp_path / name).write_text("precious")
    with pytest.raises(posattn.UsageError, match="holds other files"):
        posattn.train("sum", TINY, out=tmp_path, **SHORT)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".movie.mkv.partial", "notes.txt"]


def test_a_second_process_in_the_same_folder_is_told_so(tmp_path):
    posattn.train("sum", TINY, out=tmp_path / "done", **SHORT)
    files.write_json(tmp_path / "busy" / "run.json", files.read_json(tmp_path / "done" / "run.json"))
    script = "import sys, time; from pathlib import Path; from posattn import files\n"
    script += "with files.sole_user(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "busy" / "run.json")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(posattn.UsageError, match="another process is using"):
            posattn.train("sum", TINY, out=tmp_path / "busy", **SHORT)
    finally:
        holder.kill()
        holder.wait()
    assert posattn.train("sum", TINY, out=tmp_path / "busy", **SHORT).status == ["ok"]  # a killed holder holds nothing


@pytest.mark.parametrize("huge", [{"samples": 10**14}, {"epochs": 10**14}])
def test_what_does_not_fit_in_memory_is_said_in_a_sentence_and_leaves_no_folder(tmp_path, huge):
    with pytest.raises(posattn.UsageError, match="does not fit in memory"):
        posattn.train("sum", TINY, out=tmp_path / "run", **(SHORT | huge))
    assert not (tmp_path / "run").exists()


def test_training_and_evaluating_draw_nothing_from_the_callers_random_numbers():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    run = posattn.train("sum", TINY, **SHORT)
    run.evaluate([1], samples=10)
    run.model(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_precision_settings_of_either_kind_are_no_obstacle():
    script = "import torch, posattn; torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
    script += (
        "run = posattn.train('sum', posattn.ModelConfig(3, embed=8, width=8), samples=20, epochs=1, device='cpu')\n"
    )
    script += "run.evaluate([1], samples=10); assert torch.backends.cuda.matmul.fp32_precision == 'tf32'"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_truncated_history_is_named(tmp_path):
    posattn.train("sum", TINY, out=tmp_path, **SHORT)
    history = tmp_path / "history.csv"
    history.write_bytes(history.read_bytes()[:-5])
    with pytest.raises(files.Damaged, match=r"history\.csv is damaged"):
        posattn.load(tmp_path)


def test_the_plateau_schedule_never_raises_a_rate_below_its_floor():
    rule = recipe("paper", samples=20, batch=20, epochs=4, patience=0, threshold=0.9, floor=1e-3)
    with Workers(1) as workers:
        trainer = Trainer(TINY, rule, [Member("sum", 0, 5e-4)], torch.device("cpu"), workers)
        for _ in trainer.steps():
            pass
    parameter = torch.nn.Parameter(torch.zeros(1))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.Adam([parameter], lr=5e-4), factor=0.9, patience=0, threshold=0.9, min_lr=1e-3
    )
    for loss in trainer.history[:, 0, 0]:
        scheduler.step(loss)
    assert scheduler.get_last_lr() == [5e-4] and trainer.lr.tolist() == pytest.approx([5e-4])


def test_rows_say_how_a_run_was_trained():
    run = posattn.train("sum", TINY, lr=3e-4, **SHORT)
    rows = run.rows(run.evaluate([1], samples=10))
    assert isinstance(rows, pd.DataFrame) and set(rows["epochs"]) == {2} and set(rows["batch"]) == {10}
    assert set(rows["lr"]) == {3e-4}


@pytest.mark.usefixtures("unchecked")
def test_a_mask_or_configuration_of_the_wrong_kind_is_named():
    layer = posattn.PositionalAttention(5, 4, 2)
    with pytest.raises(posattn.UsageError, match=r"key_padding_mask is torch\.float32"):
        layer.weights(3, torch.zeros(2, 3))
    with pytest.raises(posattn.UsageError, match=r"it must be torch.bool of shape \(\.\.\., 3\)"):
        layer.weights(3, torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(posattn.UsageError, match="config is 'standard'"):
        posattn.train("sum", "standard", **SHORT)


@pytest.mark.usefixtures("unchecked")
def test_a_run_answers_plain_lists_and_says_what_it_is():
    run = posattn.train(["sum", "min"], TINY, members=2, **SHORT)
    assert torch.equal(run.predict([[1.0, 2.0, 3.0]]), run.predict(torch.tensor([[1.0, 2.0, 3.0]])))
    assert repr(run) == "Run(sum, min; positional, n=3, 2 members)"
    for wrong, named in ((math.nan, "nan"), (-math.inf, "-inf"), (1e39, "inf")):  # the last is none of float32
        with pytest.raises(posattn.UsageError, match=f"^x has {named}; it must be numbers up to 3e38.$"):
            run.predict([[1.0, 2.0, 3.0], [1.0, wrong, 3.0]])
    assert run.model(0)(torch.tensor([1.0, math.nan, 3.0])).isnan().any()  # which is PyTorch's way
    for wrong in ("abc", None, [1.0, "a"], [[1.0, 2.0], [3.0]], [10**400]):
        with pytest.raises(
            posattn.UsageError, match=r"^x is .*; it must be a tensor, or numbers in lists of one length\.$"
        ):
            run.predict(wrong)
    with pytest.raises(
        posattn.UsageError, match=r"^model is a Run; it must be a Transformer, such as run\.model\(0\)\.$"
    ):
        posattn.Frozen(run)


@pytest.mark.usefixtures("unchecked")
def test_sequences_of_the_wrong_width_are_named():
    layer = posattn.PositionalAttention(5, 4, 2)
    for x in (torch.zeros(2, 3, 6), torch.zeros(4)):
        with pytest.raises(posattn.UsageError, match=r"it must be \(\.\.\., n, 4\)"):
            layer(x)


def test_tensorboard_that_is_missing_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(posattn.UsageError, match="tensorboard is on and not installed"):
        posattn.train("sum", TINY, out=tmp_path / "run", tensorboard=True, **SHORT)
    assert not (tmp_path / "run").exists()


def test_the_hardware_of_a_result_has_all_its_cores():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run = posattn.train("sum", TINY, **SHORT)
        assert "2 threads" in run.result["hardware"] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
