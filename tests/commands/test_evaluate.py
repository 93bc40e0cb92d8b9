"""posattn evaluate: medians, every network, and those of the package."""

import re

import pandas as pd
import pytest

import posattn
from posattn import UsageError
from posattn.pretrained import pretrained_errors

# The command leaves fields of ModelConfig at None, which their types do not say.
pytestmark = pytest.mark.usefixtures("unchecked")


def test_evaluate_shows_medians_and_writes_every_network(pair, posattn_command, tmp_path):
    code, shown, said = posattn_command("evaluate", pair, "--scales", "1,2:4:2", "--samples", 50, "--csv", "new/t.csv")
    assert (code, said) == (0, "")
    table = posattn.load(pair).evaluate([1, 2, 4], 50)
    written = pd.read_csv(tmp_path / "new" / "t.csv")
    pd.testing.assert_frame_equal(written, table, check_dtype=False)
    for scale, own in table.groupby("scale"):
        line = next(line for line in shown.splitlines() if re.search(rf"│ min +│ +{scale:g} │", line))
        assert f"{own['mse'].median():.3g}" in line and f"{own['mse/c²'].median():.3g}" in line
    assert "median of 2" in " ".join(shown.split())
    code, shown, _ = posattn_command("evaluate", pair, "--scales", "1", "--samples", 50, "--each")
    assert code == 0 and all(f"{mse:.3g}" in shown for mse in table[table["scale"] == 1]["mse"])


def test_networks_that_failed_are_named(posattn_command):
    config = posattn.ModelConfig(3, embed=8, width=8)
    posattn.train("sum", config, samples=40, epochs=3, batch=15, lr=1e18, device="cpu", out="run")
    code, shown, said = posattn_command("evaluate", "run", "--scales", "1")
    assert (code, said) == (0, "") and "member 0 diverged" in shown


def test_a_network_of_the_package_is_tested_like_a_run(posattn_command):
    code, shown, error = posattn_command("evaluate", "--pretrained=sum", "--scales=1", "--csv=own.csv", "--device=cpu")
    assert (code, error) == (0, "") and "positional, with the package" in shown
    stated = pretrained_errors().query("arch == 'positional' and task == 'sum' and scale == 1")
    for metric in ("mse", "rounding", "closeness"):
        assert pd.read_csv("own.csv")[metric].item() == pytest.approx(stated[metric].item(), rel=0.01)
    code, shown, _ = posattn_command("evaluate", "--pretrained=min", "--arch=looped", "--lengths=50", "--samples=5")
    assert code == 0 and "looped, with the package" in shown and "50" in shown
    for wrong, sentence in (
        ([], "no network is named; give RUN, or --pretrained TASK."),
        (["run", "--pretrained=sum"], "two networks are named; give RUN, or --pretrained TASK."),
        (["run", "--arch=looped"], "arch is 'looped'; a run has its own."),
    ):
        assert posattn_command("evaluate", *wrong) == (2, "", f"posattn: {sentence}\n")


def test_a_compiled_khop_is_evaluated_and_asked_like_a_trained_one(posattn_command):
    posattn_command("compile", "khop", "--machines", 2, "--save", "hops")
    code, shown, error = posattn_command("evaluate", "hops", "--samples", 50)
    assert (code, error) == (0, "") and "compiled khop" in shown and "accuracy_found" in shown
    assert "Up to scale 1 the letters are abcde, and at every scale above it fghij." in shown
    table = posattn.load("hops").evaluate(samples=50)
    assert set(table["scale"]) == {1, 2} and (table["accuracy"] == 1).all() and (table["cross_entropy"] == 0).all()
    code, shown, _ = posattn_command("predict", "hops", "0fg")  # letters out of distribution
    assert code == 0 and "model   fg" in shown and "right  2 of 2" in shown
    assert "the sequence has 4 tokens; this compiled program takes 3." in posattn_command("predict", "hops", "0fgf")[2]
    assert "member 0 only" in posattn_command("predict", "hops", "0fg", "--member", 1)[2]
    with pytest.raises(UsageError, match="no lists of numbers"):
        posattn.load("hops").evaluate_shifts()


def test_the_words_of_a_token_task_are_chosen_apart_from_its_scale(posattn_command):
    posattn_command("compile", "khop", "--machines", 2, "--save", "hops")
    for domain, letters in (("id", "abcde"), ("ood", "fghij")):
        code, shown, error = posattn_command("evaluate", "hops", "--samples", 20, "--domain", domain, "--csv", f"{domain}.csv")
        assert (code, error) == (0, "") and f"The letters are {letters}.\n" in shown and f"domain {domain})" in shown
        table = pd.read_csv(f"{domain}.csv")  # at one scale, which says nothing but the domain
        assert set(table["scale"]) == {1} and set(table["domain"]) == {domain}
    small = posattn.TokenConfig(n=23, tokens="prompts", layers=1, embed=4, width=4)
    run = posattn.train("mixed-min", small, samples=20, epochs=1, batch=20, device="cpu", out="prompts")
    for domain in ("id", "ood"):
        told = ("evaluate", "prompts", "--scales", "1,5", "--samples", 20, "--domain", domain, "--csv", f"{domain}.csv")
        assert posattn_command(*told)[0] == 0
        expected = run.evaluate([1, 5], 20, domain=domain)["mse"].tolist()
        assert pd.read_csv(f"{domain}.csv")["mse"].tolist() == pytest.approx(expected, rel=1e-12)
    for wrong, sentence in (
        (["prompts", "--domain=odd"], "domain is 'odd'; it must be one of id, ood."),
        (["--pretrained=sum", "--domain=id"], "domain is 'id'; it is for tasks of tokens, and sum has none."),
        (["--pretrained=sum", "--arch=looped", "--domain=id", "--lengths=2"],
         "domain is 'id'; it is for tasks of tokens, and sum has none."),
    ):
        assert posattn_command("evaluate", *wrong) == (2, "", f"posattn: {sentence}\n")


def test_every_scale_that_float32_holds_is_measured(posattn_command, pair):
    code, shown, _ = posattn_command("evaluate", pair, "--scales", "1e20,1e-30,1e37", "--samples", 5)
    assert code == 0 and all(scale in shown for scale in ("1e+20", "1e-30", "1e+37"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--scales", "1e-300"), "scale is 1e-300; it must be from 1e-37 to 1e+37."),
        (("--scales", "3e38"), "scale is 3e+38; it must be from 1e-37 to 1e+37."),
        (("--scales", "1:2:1e-300"), "scales has '1:2:1e-300'; it must be at most 1000 numbers."),
        (("--samples", 10**20), "samples is 100000000000000000000; it must be at most 9.22337e+18."),
        (("--lengths", 10**30), f"lengths has '{10**30}'; it must be whole numbers above 0, such as 16,1024."),
        (("--lengths", "9" * 5000), "lengths has '999"),
    ],
    ids=lambda value: "",
)
def test_numbers_that_nothing_holds_are_refused(options, told, posattn_command, pair):
    code, _, error = posattn_command("evaluate", pair, *options)
    assert code == 2 and error.startswith(f"posattn: {told}") and error.count("\n") == 1
