"""Programs as plain functions: one answer at every level, and errors that name the program's own lines and rounds."""

from pathlib import Path

import numpy as np
import pytest

from posattn import files
from posattn.compiler import FunctionProgram, compile_program, pcoc
from posattn.compiler.function_programs import run

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "programs.py"
PROGRAMS = {name: found for name, found in files.execute(EXAMPLES, "examples").items() if isinstance(found, FunctionProgram)}
SIZES = {"life": (9,), "rule_110": (3, 6), "bfs": (2, 5), "components": (2, 5)}


def test_the_ten_examples_are_there():
    assert len(PROGRAMS) == 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_agree_at_every_level(name):
    row = PROGRAMS[name]
    for machines in SIZES.get(name, (1, 2, 5)):
        compiled = compile_program(row, machines, bound=50.0, values="lean")
        x = row.sample(np.random.default_rng(1), 100, machines, 50.0)
        truth = row.answers(x)
        np.testing.assert_allclose(run(compiled.written.tracing, x), truth, rtol=0, atol=1e-12)
        np.testing.assert_allclose(pcoc.run(compiled.program, x), truth, rtol=0, atol=1e-12)
        table = compiled.check(samples=20)
        assert table["agrees"].all(), (machines, table)
