"""posattn bound: what the function finds, as tables and as JSON."""

import json

import pytest

import posattn
from posattn.guarantees import network_of
from posattn.theory.matrices import norm_table


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pair"
    config = posattn.ModelConfig(3, "scale-exact", embed=8, width=8)
    posattn.train("sum", config, members=2, samples=60, epochs=2, batch=30, device="cpu", out=folder)
    return folder


def test_the_command_says_what_the_function_finds(run, posattn_command):
    found = posattn.generalization_bound(posattn.load(run).model(1), samples=60, delta=0.1)
    code, shown, said = posattn_command("bound", run, "--member", 1, "--delta", 0.1, "--gap", 0.5)
    assert (code, said) == (0, "")
    assert (
        f"{found.gap:.4g}" in shown and f"{found.samples_for(0.5):.4g}" in shown and f"{found.norms.B_21:.3g}" in shown
    )
    code, shown, _ = posattn_command("bound", run, "--samples", 1000, "--layer-norm", "--json")
    content = json.loads(shown)
    other = posattn.generalization_bound(
        posattn.load(run).model(0), samples=1000, attention="self-attention", layer_norm=True
    )
    assert content["self-attention"]["log10_gap"] == pytest.approx(other.log10_gap)
    assert {row["matrix"] for row in content["positional"]["terms"]} == {"w", "V", "QK", "W_1", "W_2"}
    norms = norm_table(network_of(posattn.load(run).model(0)))
    assert content["norms"] == norms.to_dict("records") and {row["matrix"] for row in content["norms"]} >= {
        "M,1",
        "M,2",
    }
    assert [set(row) for row in content["positional"]["layers"]] == [set(found.constants())] * 2
    for options, sentence in (
        ("--cap 1e-320", "cap is 9.99989e-321;"),
        (f"--samples {10**320}", "samples is a number of 321 digits;"),
        ("--delta 0", "delta is 0.0;"),
        ("--member 5", "member is 5;"),
        ("--gap 0", "gap is 0.0;"),
    ):
        code, _, said = posattn_command("bound", run, *options.split())
        assert code == 2 and said.startswith(f"posattn: {sentence}") and said.count("\n") == 1


def test_json_is_json_at_the_ends_of_the_domain(run, posattn_command):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for options in ("--delta 5e-324", "--cap 1e100 --gap 1e-300", f"--samples {10**300}"):
        code, shown, _ = posattn_command("bound", run, "--json", *options.split())
        content = json.loads(shown, parse_constant=refuse)
        assert code == 0 and content["self-attention"]["samples"] >= 60
    assert content["positional"]["log10_gap"] < -100  # of 1e300 samples


def test_a_compiled_folder_is_named_as_what_it_is(tmp_path, posattn_command):
    assert posattn_command("compile", "prefix-sum", "--machines", 2, "--save", "program")[0] == 0
    for verb in ("bound", "certify"):
        code, _, said = posattn_command(verb, "program")
        assert (code, said.count("\n")) == (2, 1)
        assert said.startswith("posattn: the positional network is a compiled program; the")
