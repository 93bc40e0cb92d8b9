"""posattn ood-probability: what the function finds, as a table and as JSON."""

import json

import posattn
from posattn.theory.ood import exact_probability


def test_the_command_says_what_the_function_finds(posattn_command):
    found = posattn.ood_probability(n=2, scale=10, samples=500)
    code, shown, said = posattn_command("ood-probability", "--n", 2, "--c", 10, "--samples", 500)
    assert (code, said) == (0, "")
    for value in (found.exact, found.bound, found.printed, found.simulated, *found.interval):
        assert f"{value:.4g}" in shown
    code, shown, said = posattn_command("ood-probability", "--n", 1, "--c", 10, "--samples", 500)
    assert (code, said) == (0, "") and f"{exact_probability(1, 10):.4g}" in shown and "none for n = 1" in shown
    code, shown, _ = posattn_command("ood-probability", "--n", 8, "--c", 10, "--samples", 500, "--json")
    content = json.loads(shown)
    assert content["exact"] == exact_probability(8, 10) and content["chernoff"]["lists"] == 1000
    for options, sentence in (
        ("--n 0", "n is 0;"),
        ("--c 1", "c is 1.0; it must be above 1"),
        ("--c 1e31", "c is 1e+31; it must be at most 1e+30"),
        ("--epsilon 0", "epsilon is 0.0;"),
        ("--epsilon 1", "epsilon is 1.0;"),
        ("--epsilon 2", "epsilon is 2.0; it is a share of the lists, so it must be above 0 and below 1."),
    ):
        code, shown, said = posattn_command("ood-probability", "--samples", 100, *options.split())
        assert code == 2 and said.startswith(f"posattn: {sentence}") and said.count("\n") == 1
