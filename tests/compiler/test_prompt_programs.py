"""The compiled program of mixed-type prompts: right on every prompt of the grammar, in every layout, and saved as a run."""

import json
from functools import cache

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiled_run import CompiledRun, save
from posattn.compiler import compile_program
from posattn.compiler.prompt_programs import machine_inputs
from posattn.runs import answer_tokens
from posattn.tasks.layouts import LAYOUTS, layout_of
from posattn.tasks.mixed import ANY_QUERY, MIXED
from posattn.tasks.prompts import parse

POSITIONS = sorted({layout.positions for layout in LAYOUTS.values()})
compiled = cache(lambda n: compile_program("mixed", n))


def random_prompt(random):
    """Any prompt of the grammar as text, and its answer: identifiers in any order, signs of both kinds, values of all sizes."""
    identifiers = random.permutation(np.arange(1, 41))[:8].tolist()
    values = np.round(10.0 ** random.uniform(-2, 5, 8), 2).tolist()
    listed = [text for pair in zip(identifiers, values, strict=True) for text in (f"'Cat{pair[0]}'", f"{pair[1]:.2f}")]
    for _ in range(2):
        place = int(random.integers(len(listed) + 1))
        listed.insert(place, f"'Cat{random.choice(list('+-_*'))}{random.choice(identifiers)}'")
    asked = random.permutation(8)[:4].tolist()
    kind = str(random.choice(["min", "max", "sum"]))
    a, b, c, d = (f"Cat{identifiers[k]}" for k in asked)
    answer = {"min": min, "max": max, "sum": sum}[kind](values[k] for k in asked)
    return f"[{', '.join(listed)}, 'Find {kind} of {a}, {b}, {c} and {d}']", answer


@pytest.mark.parametrize("n", POSITIONS)
def test_every_prompt_of_the_grammar_is_answered(n):
    run, random = CompiledRun("mixed", compiled(n).model), np.random.default_rng(1)
    made = [random_prompt(random) for _ in range(60)]
    x = torch.stack([layout_of(n).lay_out(parse(text)) for text, _ in made])
    found = run.answer(x)[:, 0].numpy()
    np.testing.assert_allclose(found, [answer for _, answer in made], rtol=1e-6)  # texts are read in float32
    assert np.abs(found - ANY_QUERY.target(x.double())[:, 0].numpy()).max() < 1e-9


@pytest.mark.parametrize("n", POSITIONS)
@pytest.mark.parametrize("domain", ["id", "ood"])
def test_prompts_of_all_tasks_have_no_error(n, domain):
    run = CompiledRun("mixed", compiled(n).model)
    for number, task in enumerate(MIXED):
        for scale in (1.0, 10.0):
            x, _ = task.sample(12, n=n, scale=scale, domain=domain, seed=number)
            assert (run.answer(x) - task.target(x.double())).abs().max() < 1e-12
            assert torch.equal(run.truth(x, number), task.target(x))


def test_all_levels_agree_and_the_network_is_small():
    assert compiled(23).check(samples=10)["agrees"].all()
    assert sum(p.numel() for p in compiled(23).model.parameters()) < 250_000
    assert (compiled(23).model.config.layers, compiled(101).model.config.layers) == (7, 15)


def test_a_saved_program_is_a_run_of_four_tasks(tmp_path):
    save(compiled(23), tmp_path / "mixed")
    run = posattn.load(tmp_path / "mixed")
    assert [member.task for member in run.members] == [task.name for task in MIXED] and run.reads_tokens
    table = run.evaluate([1, 10], samples=20)
    assert set(table["task"]) == {task.name for task in MIXED} and table["mse"].max() < 1e-24
    assert (table["closeness"] == 1).all()
    text = random_prompt(np.random.default_rng(2))[0].replace("Find max", "Find sum").replace("Find min", "Find sum")
    assert answer_tokens(run, 0, text).endswith("error  +0.0000")
    with pytest.raises(
        UsageError, match=r"^element 19 of the prompt \(character \d+\) is 'Find all.*the last must be a query"
    ):
        answer_tokens(run, 0, text.replace("Find sum", "Find all"))
    with pytest.raises(UsageError, match=r"^the sequence has 22 tokens; this compiled program takes 23\.$"):
        run.predict(torch.zeros(22))
    x = ANY_QUERY.encode(text)
    with pytest.raises(UsageError, match="the program was compiled for 0 to 1e"):
        run.predict(torch.where(x >= 0, 1e7, x))
    with pytest.raises(
        UsageError, match=r"^position 19 of the prompt is in the query; it must ask for min, max or sum\.$"
    ):
        run.predict(x.roll(1))


def test_its_trace_names_the_owner_of_every_value(tmp_path, posattn_command):
    save(compiled(23), tmp_path / "mixed")
    text = random_prompt(np.random.default_rng(4))[0]
    code, said, _ = posattn_command("predict", tmp_path / "mixed", text, "--trace", "trace.json")
    assert code == 0 and said.startswith("prompt [") and json.loads((tmp_path / "trace.json").read_text())
    x = ANY_QUERY.encode(text)
    owners = posattn.load(tmp_path / "mixed").trace(x)["owner"][1]
    current = 0.0
    for place, element in enumerate(x[:18].tolist()):
        if element >= 0:
            assert owners[place] == current
        elif element >= -40:
            current = -element


def test_a_machine_reads_a_word_or_a_number():
    x = ANY_QUERY.sample(1)[0][0]
    word, number = machine_inputs(x).unbind(dim=-1)
    assert torch.equal(number - word, x) and bool(((word == 0) | (number == 0)).all())


def test_other_numbers_of_machines_are_refused():
    with pytest.raises(UsageError, match=r"^machines is 8; mixed takes 23 or 101, one for each position of a layout"):
        compile_program("mixed", 8)
