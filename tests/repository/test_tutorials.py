"""The tutorials run as they are: they are percent scripts, and end in an assertion where they claim something."""

import runpy
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.py"))


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_a_tutorial_runs(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    assert capsys.readouterr().out.count("\n") > 3


def test_there_are_two_and_their_cells_are_marked():
    assert [script.stem for script in TUTORIALS] == ["digits", "program"]
    for script in TUTORIALS:
        text = script.read_text(encoding="utf-8")
        assert text.startswith("# %% [markdown]\n# # ") and text.count("# %%\n") >= 4
