"""k-hop by scans, compiled: the task's answers for every hop count, small and with communication fixed beforehand."""

import numpy as np
import pytest
import torch

import posattn
from posattn.compiled_run import CompiledRun
from posattn.compiler import PROGRAMS, compile_program

KHOP = posattn.task("khop")


def brute_force(letters, k):
    """The letter k hops away from every place, or -1."""

    def answer(i):
        for _ in range(k):
            places = [q for q in range(i) if letters[q] == letters[i]]
            if not places:
                return -1
            i = places[-1] + 1
        return letters[i]

    return [answer(i) for i in range(len(letters))]


@pytest.mark.parametrize("machines", [1, 2, 9])
def test_it_is_exact_at_every_level_on_all_letters(machines):
    compiled = compile_program("khop-scan", machines)
    assert compiled.check(samples=20)["agrees"].all()
    x = PROGRAMS["khop-scan"].sample(np.random.default_rng(1), 30, machines, 1.0)
    found = compiled.model(torch.from_numpy(x)).tolist()
    assert found == [brute_force(rows[:, 0].tolist(), int(rows[0, 1])) for rows in x]


def test_at_the_papers_length_it_is_small_and_answers_the_task():
    compiled = compile_program("khop-scan", 29)
    assert sum(weight.numel() for weight in compiled.model.parameters()) < 1_000_000
    assert compiled.model.config.layers == 1 + 1 + 3 * 5  # the start, the shift, and three scans of 29 letters
    run = CompiledRun("khop-scan", compiled.model)
    for domain in ("id", "ood"):
        x, y = KHOP.sample(100, domain=domain, seed=5)
        assert torch.equal(run.predict(x)[0].argmax(dim=-1), y)
