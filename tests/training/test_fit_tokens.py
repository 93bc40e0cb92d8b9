"""Token tasks in training: the loss and its gradients, ensembles, folders, and what is measured."""

import math

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import posattn
from posattn.errors import UsageError
from posattn.runs import answer_tokens, load
from posattn.training import RunSpec
from posattn.training.parameters import Parameters
from posattn.training.trainer import Member
from posattn.training.ways import Folded, Plain, loss_of

SMALL = {"layers": 2, "embed": 8, "width": 8}
LETTERS = posattn.TokenConfig(9, tokens="letters", causal=True, **SMALL)
PROMPTS = posattn.TokenConfig(23, tokens="prompts", **SMALL)
QUICK = {"samples": 60, "epochs": 2, "batch": 25, "device": "cpu"}


@pytest.fixture(scope="module")
def hops():
    return posattn.train("khop", LETTERS, members=2, **QUICK)


@pytest.fixture(scope="module")
def prompts():
    return posattn.train(["mixed-min", "mixed-sum"], PROMPTS, members=2, **QUICK)


@pytest.mark.parametrize("arch", ["positional", "scale-exact", "standard"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("khop", {}), ("khop", {"tied": True}), ("mixed-sum", {}), ("mixed-multitask", {"relative": True})],
)
def test_members_together_have_the_gradients_of_plain_modules_alone(name, settings, arch):
    """Folded, and unfolded under vmap, which is the path of other architectures on a GPU."""
    task = posattn.task(name)
    network = task.NETWORK | {"layers": 3, "embed": 8, "width": 6, "n": 9 if name == "khop" else 23}
    config = posattn.TokenConfig(**network, arch=arch, **settings)
    x, y = task.sample(6, n=config.n, seed=[0, 1, 2])
    x, y = (value.double() if value.is_floating_point() else value for value in (x, y))
    parameters = Parameters.initial(config, [0, 1, 2], torch.device("cpu"))
    parameters = Parameters(config, 2 * parameters.flat.double() + 0.1)  # attention far from uniform, no bias at zero
    losses, expected = [], []
    for member in range(3):
        model = config.build().double()
        model.load_state_dict({key: value[member] for key, value in parameters.named().items()})
        out = model(x[member])
        loss = F.cross_entropy(out.flatten(0, 1), y[member].flatten()) if name == "khop" else F.mse_loss(out, y[member])
        loss.backward()
        losses.append(loss.detach())
        expected.append(torch.cat([value.grad.flatten() for value in model.parameters()]))
    for kind in (Folded, Plain):
        program = kind(config, torch.device("cpu"), loss_of([name]))
        program.skeleton.double()
        prepared = program.prepare(parameters, slice(0, 3), config.n)
        found, gradients = program.gradient(prepared.tensors, x, y, 6)
        torch.testing.assert_close(found, torch.stack(losses))
        rows = prepared.adjoint(gradients)
        right = torch.stack(expected)
        torch.testing.assert_close(rows, right, rtol=1e-8, atol=1e-11 * right.abs().max().item())


def test_a_member_is_the_same_alone_and_beside_others(hops):
    alone = posattn.train("khop", LETTERS, seed=1, **QUICK)
    assert torch.equal(alone.parameters.flat[0], hops.parameters.flat[1])


def test_training_learns_what_no_hop_asks_for():
    """With k = 0 the answer is the letter itself."""
    config = posattn.TokenConfig(9, tokens="letters", causal=True, layers=1, embed=16, width=32)
    run = posattn.train("khop", config, samples=1000, epochs=8, batch=50, lr=1e-2, device="cpu")
    table = run.evaluate([1], 200).set_index("hops")
    assert table.loc["0", "accuracy"] > 0.99 and table.loc["0", "cross_entropy"] < 0.1
    assert run.result["validation_loss"][0] < 1.5 < math.log(16)


def test_letters_are_measured_by_hop_count_with_and_without_none(hops):
    table = hops.evaluate(samples=100)
    assert (
        table["hops"].tolist() == ["all", "0", "1", "2", "3"] * 4 and table["scale"].tolist() == ([1] * 5 + [2] * 5) * 2
    )
    x, y = posattn.task("khop").sample(100, n=9, seed=1, split="test", scale=2)
    with torch.no_grad():
        logits = hops.model(1)(x)[:, 1:]
    right, none = logits.argmax(dim=-1) == y[:, 1:], y[:, 1:] == 14
    lost = F.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten(), reduction="none").view_as(right)
    for k in ("all", "0", "3"):
        own = torch.ones(100, dtype=torch.bool) if k == "all" else x[:, 0] == int(k)
        row = table.query("member == 1 and scale == 2 and hops == @k").iloc[0]
        found = own[:, None] & ~none
        assert row["accuracy"] == pytest.approx(right[own].double().mean().item())
        assert row["accuracy_found"] == pytest.approx(right[found].double().mean().item())
        assert row["cross_entropy"] == pytest.approx(lost[own].double().mean().item(), rel=1e-5)
        assert row["cross_entropy_found"] == pytest.approx(lost[found].double().mean().item(), rel=1e-5)


def test_rows_have_a_column_for_hops_and_one_for_tying(hops):
    rows = hops.rows(hops.evaluate(samples=50))
    assert len(rows) == 2 * 2 * 5 * 4 and set(rows["hops"]) == {"all", "0", "1", "2", "3"}
    assert set(rows["tied"]) == {False} and set(rows["task"]) == {"khop"} and set(rows["layers"]) == {2}
    assert dict(zip(rows["scale"], rows["domain"], strict=True)) == {1: "id", 2: "ood"}


def test_prompts_are_measured_by_squared_and_percentage_error(prompts):
    table = prompts.evaluate([1, 4], 80)
    assert {*table.columns} == {"member", "task", "seed", "scale", "mse", "mse/c²", "mape", "closeness", "status"}
    x, y = posattn.task("mixed-sum").sample(80, scale=4, seed=1, split="test")
    with torch.no_grad():
        out = prompts.model(1)(x)
    row = table.iloc[3]
    assert row["mse"] == pytest.approx((out - y).square().mean().item(), rel=1e-5)
    assert row["mse/c²"] == pytest.approx(row["mse"] / 16)
    assert row["mape"] == pytest.approx(((out - y) / y).abs().mean().item(), rel=1e-5)
    assert set(prompts.rows(table)["metric"]) == {"mse", "mse_over_c2", "mape", "closeness"}


def test_words_and_scale_are_tested_apart(prompts):
    table = prompts.evaluate([1, 4], 80, domain="ood")
    x, y = posattn.task("mixed-sum").sample(80, scale=1, domain="ood", seed=1, split="test")
    with torch.no_grad():
        out = prompts.model(1)(x)
    assert table.iloc[2]["mse"] == pytest.approx((out - y).square().mean().item(), rel=1e-5)
    assert table.iloc[3]["mse"] == prompts.evaluate([4], 80)["mse"].iloc[1]
    with pytest.raises(UsageError, match=r"^domain is 'far'; it must be one of id, ood\.$"):
        prompts.evaluate([1], 5, domain="far")


def test_a_folder_gives_back_the_run(tmp_path):
    config = posattn.TokenConfig(9, tokens="letters", causal=True, tied=True, **SMALL)
    first = posattn.train("khop", config, **QUICK, out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.spec == first.spec and again.spec.model.tied
    pd.testing.assert_frame_equal(first.evaluate(samples=20), again.evaluate(samples=20))
    assert torch.equal(
        again.predict(posattn.task("khop").sample(3, n=9)[0]), first.predict(posattn.task("khop").sample(3, n=9)[0])
    )


def test_the_network_of_a_task_is_the_default(monkeypatch):
    seen = []
    monkeypatch.setattr("posattn.training.fit.train_spec", lambda spec, *rest, **more: seen.append(spec.model))
    posattn.train("khop")
    posattn.train("mixed-max")
    posattn.train("khop", posattn.ModelConfig(30, "standard", layers=3, embed=60))
    assert seen[0] == posattn.TokenConfig(30, tokens="letters", causal=True, embed=60, layers=8)
    assert seen[1] == posattn.TokenConfig(23, tokens="prompts", layers=3, embed=32, width=32)
    assert seen[2] == posattn.TokenConfig(30, "standard", tokens="letters", causal=True, layers=3, embed=60)


def test_a_network_of_other_tokens_is_refused():
    member = (Member("khop", 0, 1e-3),)
    with pytest.raises(UsageError, match=r"^the positional network reads numbers; the task khop has seq"):
        RunSpec(posattn.ModelConfig(9), posattn.Recipe(), member)
    with pytest.raises(UsageError, match=r"^variable_length is True; the task khop has one length only\.$"):
        RunSpec(LETTERS, posattn.Recipe(), member, variable_length=True)


def test_a_network_whose_relus_are_off_is_called_dead(monkeypatch, hops):
    initial = Parameters.initial

    def switched_off(config, seeds, device):
        parameters = initial(config, seeds, device)
        parameters.named()["layers.1.W_1.weight"].zero_()
        parameters.named()["layers.1.W_1.bias"].fill_(-1)
        return parameters

    monkeypatch.setattr(Parameters, "initial", switched_off)
    assert posattn.train("khop", LETTERS, **QUICK).status == ["dead"] and hops.status == ["ok", "ok"]


def test_other_distributions_are_for_lists(hops):
    with pytest.raises(UsageError, match=r"^the task khop has no lists of numbers"):
        hops.evaluate_shifts()


def test_answers_stand_beside_the_truth(hops, prompts):
    said = answer_tokens(hops, 1, "1abcabdac").splitlines()
    assert said[0] == "input  1abcabdac" and said[2] == "true    ~~~bc~ba"
    right = sum(a == b for a, b in zip(said[1][8:], said[2][8:], strict=True))
    assert said[3] == f"right  {right} of 8 letters"
    task = posattn.task("mixed-sum")
    x, y = task.sample(1, seed=5)
    lines = answer_tokens(prompts, 1, task.decode(x[0])).splitlines()
    assert lines[0] == f"prompt {task.decode(x[0])}" and lines[2] == f"true   {y.item():.2f}"
    assert float(lines[1].split()[1]) == pytest.approx(prompts.predict(x)[1].item(), abs=1e-3)
