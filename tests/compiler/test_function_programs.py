"""Programs as plain functions: one answer at every level, and errors that name the program's own lines and rounds."""

from pathlib import Path

import numpy as np
import pytest

import posattn
from posattn import UsageError, files
from posattn.compiler import PROGRAMS as LIBRARY_PROGRAMS
from posattn.compiler import FunctionProgram, compile_program, pcoc
from posattn.compiler.interpreter import run, trace

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "programs.py"
PROGRAMS = {
    name: found for name, found in files.execute(EXAMPLES, "examples").items() if isinstance(found, FunctionProgram)
}
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


@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_of_the_network_are_those_of_the_program(name):
    row, machines = PROGRAMS[name], SIZES.get(name, (4,))[-1]
    compiled = compile_program(row, machines, bound=50.0, values="lean")
    x = row.sample(np.random.default_rng(2), 20, machines, 50.0)
    found, right = compiled.trace(x), trace(compiled.written, x)
    assert found.names == right.names and found.places == right.places
    for ours, theirs in zip(found.rounds, right.rounds, strict=True):
        for variable, values in theirs.items():
            np.testing.assert_allclose(ours[variable], values, rtol=0, atol=1e-12, err_msg=variable)
    np.testing.assert_allclose(found["answer" if "answer" in found.names else "answer[0]"][len(found.rounds) - 1],
                               row.answers(x)[..., 0], atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_networks_are_small_without_being_asked(name):
    compiled = compile_program(PROGRAMS[name], 9 if name == "life" else 8)
    assert sum(each.numel() for each in compiled.model.parameters()) < 600_000
    assert compiled.model.config.layers == len(compiled.written.tracing.parts)


LIBRARY = files.execute(EXAMPLES.with_name("library_programs.py"), "examples")
IN_FUNCTIONS = {row.name: row for row in LIBRARY.values() if isinstance(row, FunctionProgram)}


@pytest.mark.parametrize("name", [name for name in LIBRARY_PROGRAMS if name not in ("self-attention", "mixed")])
@pytest.mark.parametrize("machines", [1, 5])
def test_the_library_can_be_written_in_functions(name, machines):
    own, row = IN_FUNCTIONS[name], LIBRARY_PROGRAMS[name]
    x = row.sample(np.random.default_rng(3), 50, machines, 50.0)
    compiled = compile_program(own, machines, bound=50.0, values="lean")
    for found in (run(compiled.written.tracing, x), pcoc.run(compiled.program, x), compiled.run(x)):
        np.testing.assert_allclose(found, row.answers(x), rtol=0, atol=1e-11)


def doubled():
    @posattn.program
    def tried(me, n, x):
        return 2 * x

    return tried


@pytest.mark.parametrize(
    ("truth", "told"),
    [
        (lambda x: x[1:], "the truth of tried has shape (2, 1); it must be (3, 1): one row for each machine."),
        (lambda x: None, "the truth of tried is None; it must be a row of numbers for each machine."),
        (lambda x: [1, [2, 3], 4], "the truth of tried is [1, [2, 3], 4]; it must be a row of numbers for each machine."),
        (lambda x: ["a", "b", "c"], "the truth of tried is ['a', 'b', 'c']; it must be a row of numbers"),
        (lambda x: [[2 * each] * 2 for each in x], "the truth of tried has shape (3, 2); it must be (3, 1)"),
    ],
)
def test_a_truth_of_another_shape_is_refused(truth, told):
    tried = doubled()
    tried.truth(truth)
    with pytest.raises(UsageError) as error:
        compile_program(tried, 3).check(samples=2)
    assert str(error.value).startswith(told), error.value


@pytest.mark.parametrize("rows", [2, 4, None])
def test_samples_of_another_shape_are_refused(rows):
    tried = doubled()
    tried.samples(lambda random, n: None if rows is None else np.zeros((rows, 1)))
    with pytest.raises(UsageError, match=r"^the sample of tried (is None|has shape)"):
        compile_program(tried, 3).check(samples=2)
