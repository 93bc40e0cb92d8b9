"""posattn certify: what the function finds, as a table and as JSON."""

import json
from dataclasses import asdict

import posattn
from posattn.guarantees import certify_model


def test_the_command_says_what_the_function_finds(tmp_path, posattn_command):
    config = posattn.ModelConfig(2, "scale-exact", embed=4, width=4)
    posattn.train("sum", config, samples=60, epochs=2, batch=30, device="cpu", out=tmp_path / "run")
    found = certify_model(posattn.load(tmp_path / "run").model(), "sum", ratio=1.5)
    code, shown, said = posattn_command("certify", "run", "--ratio", 1.5, "--limit", 20)
    assert (code, said) == (0, "") and f"{found.bound:.4g}" in shown and f"{found.at(20):.4g}" in shown
    code, shown, _ = posattn_command("certify", "run", "--ratio", 1.5, "--json")
    content = json.loads(shown)
    assert content["bound"] == found.bound and content["ratio"] == found.ratio
    assert set(asdict(found)) <= set(content)
    for options, sentence in (
        ("--ratio 1", "ratio is 1.0;"),
        ("--seconds 0", "seconds is 0.0;"),
        ("--limit 0", "limit is"),
    ):
        code, _, said = posattn_command("certify", "run", *options.split())
        assert code == 2 and said.startswith(f"posattn: {sentence}") and said.count("\n") == 1
