"""What ``make bench`` calls without arguments must not need them."""

import runpy
import sys
from pathlib import Path

import pytest

TUNE = Path(__file__).resolve().parents[2] / "benchmarks" / "tune.py"


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
