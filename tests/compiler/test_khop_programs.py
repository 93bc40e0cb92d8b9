"""k-hop, compiled in two ways: the task's answers for every hop count, on letters of either alphabet."""

import numpy as np
import pytest
import torch

import posattn
from posattn import UsageError
from posattn.compiled_run import CompiledRun
from posattn.compiler import PROGRAMS, Program, compile_program
from posattn.compiler.khop_programs import as_logits, machine_inputs

KHOP = posattn.task("khop")


def test_tokens_are_letters_and_hops_and_answers_are_tokens_again():
    x = KHOP.encode("2abj")
    assert machine_inputs(x).tolist() == [[0, 2], [1, 2], [9, 2]]
    assert KHOP.decode(as_logits(torch.tensor([-1.0, 9.0, 0.0])).argmax(dim=-1)) == " ~ja"


def test_it_answers_letters_in_and_out_of_distribution():
    run = CompiledRun("khop", posattn.compile("khop", 4, sparse=True))
    for domain in ("id", "ood"):
        x, y = KHOP.sample(40, n=5, domain=domain, seed=3)
        assert (run.predict(x)[0].argmax(dim=-1) == y).all()
    rows = run.rows(run.evaluate(samples=30))
    assert set(rows["hops"]) == {"all", "0", "1", "2", "3"} and set(rows["domain"]) == {"id", "ood"}
    assert (rows["n"] == 5).all() and (rows.loc[rows["metric"] == "accuracy", "value"] == 1).all()
    assert run.model() is run.network


def test_a_sequence_of_another_length_is_counted_with_its_hop_count(unchecked):
    run = CompiledRun("khop", posattn.compile("khop", 4, sparse=True))
    for tokens, said in (([2, 5, 6], "3"), (2, "no")):
        with pytest.raises(UsageError, match=f"^the sequence has {said} tokens; this compiled program takes 5\\.$"):
            run.predict(tokens)
    with pytest.raises(UsageError, match=r"^x is '2abab'; it must be whole numbers, in a tensor or in lists of one length\.$"):
        run.predict("2abab")


def test_a_program_for_every_length_reads_shorter_sequences():
    run = CompiledRun("khop", posattn.compile("khop", 4, sparse=True, lengths=True))
    for n in (2, 4, 5):
        x, y = KHOP.sample(20, n=n, seed=1)
        assert (run.predict(x)[0].argmax(dim=-1) == y).all()
    with pytest.raises(UsageError, match=r"^the sequence has 6 tokens; this compiled program takes 2 to 5\.$"):
        run.predict([2, 5, 6, 5, 6, 5])


def test_what_is_no_sequence_is_refused():
    for tokens in ([5, 5, 6], [0, 1, 5], [0, 5, 14]):
        with pytest.raises(UsageError, match="a hop count, 0 to 3, and then letters, a to j"):
            machine_inputs(torch.tensor(tokens))


def test_every_program_that_solves_the_task_reads_tokens(unchecked, monkeypatch):
    again = Program(PROGRAMS["khop"].function, PROGRAMS["khop"].ranges)
    again.name, again.task = "khop-again", "khop"
    monkeypatch.setitem(PROGRAMS, "khop-again", again)
    run = CompiledRun("khop-again", posattn.compile("khop-again", machines=3))
    x, y = KHOP.sample(20, n=4, seed=1)
    assert run.reads_tokens and (run.predict(x)[0].argmax(dim=-1) == y).all()


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
def test_scans_are_exact_at_every_level_on_all_letters(machines):
    compiled = compile_program("khop-scan", machines)
    assert compiled.check(samples=20)["agrees"].all()
    x = PROGRAMS["khop-scan"].sample(np.random.default_rng(1), 30, machines, 1.0)
    found = compiled.model(torch.from_numpy(x)).tolist()
    assert found == [brute_force(rows[:, 0].tolist(), int(rows[0, 1])) for rows in x]


def test_at_the_papers_length_scans_make_a_small_network_that_answers_the_task():
    compiled = compile_program("khop-scan", 29)
    assert sum(weight.numel() for weight in compiled.model.parameters()) < 1_000_000
    assert compiled.model.config.layers == 1 + 1 + 3 * 5  # the start, the shift, and three scans of 29 letters
    run = CompiledRun("khop-scan", compiled.model)
    for domain in ("id", "ood"):
        x, y = KHOP.sample(100, domain=domain, seed=5)
        assert torch.equal(run.predict(x)[0].argmax(dim=-1), y)
