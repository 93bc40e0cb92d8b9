"""What ``make bench`` calls without arguments must not need them; and the language models of ``hybrid.py``."""

import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from posattn.compiler import PROGRAMS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TUNE, HYBRID = BENCHMARKS / "tune.py", BENCHMARKS / "hybrid.py"


@pytest.fixture(autouse=True)
def beside_the_script(monkeypatch):
    """Modules beside a script are found, as where it is called."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.parametrize(
    ("arguments", "code"), [((), None), (("peaks",), "takes a stage"), (("depth", "out.csv"), "takes a stage")]
)
def test_the_search_says_what_it_needs(arguments, code, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(TUNE), run_name="__main__")
    if code is None:
        assert left.value.code is None and "give a stage and a file" in capsys.readouterr().out
    else:
        assert code in str(left.value.code)


@pytest.mark.parametrize("name", ["khop_scan", "mixed_query"])
def test_a_study_says_what_it_needs_and_fails_no_make(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert "A study, not a benchmark: give --out FILE" in capsys.readouterr().out


def test_the_study_of_cards_says_what_it_needs_and_fails_no_make():
    """In a process of its own: it takes Triton without its interpreter."""
    done = subprocess.run([sys.executable, BENCHMARKS / "cards.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "A study, not a benchmark: give compute capabilities" in done.stdout


def test_every_program_of_the_library_is_measured(capsys):
    runpy.run_path(str(BENCHMARKS / "compiler.py"))["every_program"]()
    measured = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert set(PROGRAMS) <= measured


def test_the_layer_takes_smaller_tiles_on_a_smaller_gpu():
    """Compiled for the RTX 30 series, whose shared memory the largest tiles of wide heads exceed."""
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    script = "import cards; card = cards.Card('8.6'); cards.layer(2048, 2, 512, 4, (True,)); print(card.refused, card.most)"
    done = subprocess.run([sys.executable, "-c", script], cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused, most = map(int, done.stdout.split())
    assert refused > 0 and 64 * 1024 < most <= 99 * 1024


@pytest.mark.parametrize("kind", ["self", "positional", "alternating", "halves"])
def test_language_models_of_every_kind_are_causal_and_of_one_size(kind):
    hybrid = runpy.run_path(str(HYBRID))
    tiny = hybrid["SIZES"]["tiny"]
    model = hybrid["LanguageModel"](kind, tiny)
    x = torch.randint(256, (3, tiny.n))
    changed = x.clone()
    changed[:, 20:] = torch.randint(256, (3, tiny.n - 20))
    before, after = model(x), model(changed)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-6)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-3)
    with torch.device("meta"):
        count = sum(p.numel() for p in hybrid["LanguageModel"](kind, hybrid["SIZES"]["full"]).parameters())
    assert 11.0e6 < count < 11.8e6


def test_language_models_train_and_stored_rows_are_not_measured_again(tmp_path, monkeypatch, capsys):
    for k in range(20):
        (tmp_path / f"{k}.rst.txt").write_text("abab" * 100)
    out = tmp_path / "rows.csv"
    call = ["hybrid.py", "--text", str(tmp_path), "--size", "tiny", "--seeds", "1", "--steps", "20", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", call)
    runpy.run_path(str(HYBRID), run_name="__main__")
    rows, text = pd.read_csv(out).set_index("kind"), out.read_text()
    speed, equal, timed = (rows[rows["by"] == by] for by in ("speed", "steps", "time"))
    assert (len(speed), len(equal), len(timed)) == (12, 4, 4)
    assert (equal["steps"] == 20).all()
    assert (equal["loss"] < 5).all() and (timed["loss"] < 5).all()  # log 256 = 5.5 is what a uniform guess gets
    rates = speed["tokens_per_second"].groupby("kind").median()
    assert (timed["steps"] == (20 * rates / rates.min()).round().reindex(timed.index)).all()
    slowest = rates.idxmin()  # at equal time it takes the same steps, from the same seed: the same model
    assert timed.loc[slowest, "loss"] == equal.loc[slowest, "loss"]
    runpy.run_path(str(HYBRID), run_name="__main__")
    assert out.read_text() == text


def test_a_language_model_begins_again_from_a_seed_whatever_was_trained_before():
    hybrid, device = runpy.run_path(str(HYBRID)), torch.device("cpu")
    tiny, text = hybrid["Size"](2, 32, 4, 32, 8, 12, warmup=5), torch.randint(256, (2000,), dtype=torch.uint8)
    trained = [hybrid["train"]("halves", tiny, 12, seed, text, device)[0] for seed in (0, 1, 0)]
    assert trained[0] is trained[2]
    first = {name: value.clone() for name, value in trained[2].state_dict().items()}
    hybrid["train"]("halves", tiny, 12, 1, text, device)
    assert not torch.equal(first["head.weight"], trained[0].head.weight)
    hybrid["train"]("halves", tiny, 12, 0, text, device)
    assert all(torch.equal(first[name], value) for name, value in trained[0].state_dict().items())


def test_a_model_that_fails_is_reported_and_the_others_are_measured(tmp_path, monkeypatch, capsys):
    hybrid = runpy.run_path(str(HYBRID))
    train, out = hybrid["train"], tmp_path / "new" / "rows.csv"

    def failing(kind, *given):
        if kind == "positional":
            raise RuntimeError("no kernel\nat all")
        return train(kind, *given)

    parts = hybrid["leave"].__globals__
    monkeypatch.setitem(parts, "_failed", [])
    monkeypatch.setitem(hybrid["measured"].__globals__, "train", failing)
    text = torch.randint(256, (2000,), dtype=torch.uint8)
    tiny = hybrid["Size"](2, 32, 4, 32, 8, 2, warmup=1, tested=1)
    hybrid["measured"](tiny, 1, (text, text), out, torch.device("cpu"))
    assert pd.read_csv(out)["kind"].tolist() == ["self", "alternating", "halves"] * 5
    assert "the speed of positional failed: RuntimeError: no kernel\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^failed: the speed of positional; "):
        hybrid["leave"]()


def test_a_folder_without_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hybrid.py", "--text", str(tmp_path), "--out", str(tmp_path / "rows.csv")])
    with pytest.raises(SystemExit, match="holds 0 files"):
        runpy.run_path(str(HYBRID), run_name="__main__")
