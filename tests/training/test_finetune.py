"""Fine-tuning: what is named trains, everything else stays, bit for bit."""

import pytest
import torch

import posattn
from posattn.training.finetune import VALUES, fine_tune

CONFIG = {"embed": 16, "width": 16}


@pytest.fixture(scope="module", params=["positional", "scale-exact", "standard", "rope-only"])
def run(request):
    config = posattn.ModelConfig(3, request.param, **CONFIG)
    return posattn.train(["sum", "min"], config, members=2, samples=400, epochs=8, batch=100, device="cpu", lr=3e-3)


def test_only_the_named_matrices_change(run):
    before = run.parameters.flat.clone()
    tuned = fine_tune(run, 10.0, epochs=1)
    assert torch.equal(run.parameters.flat, before)  # the run itself is as it was
    for name, value in tuned.parameters.named().items():
        same = torch.equal(value, run.parameters.named()[name])
        assert same != name.endswith(VALUES), name


def test_it_lowers_the_error_at_the_new_scale(run):
    first = run.evaluate([10.0], 500, "train")["mse"]
    tuned = fine_tune(run, 10.0, epochs=8, lr=1e-3).evaluate([10.0], 500, "train")["mse"]
    assert (tuned < first).all()


def test_it_is_adam_on_those_matrices_alone(run):
    """One full batch, two steps, against torch.optim on the plain module."""
    member = run.spec.members[0]
    spec = posattn.training.RunSpec(
        run.spec.model, posattn.training.recipe.recipe(run.spec.recipe, batch=400), (member,)
    )
    alone = posattn.training.Run(
        spec,
        type(run.parameters)(spec.model, run.parameters.flat[:1].clone()),
        run.result | {"status": ["ok"]},
        run.history,
    )
    tuned = fine_tune(alone, 10.0, epochs=2, lr=1e-3)
    model = run.model(0).train()
    chosen = [value for name, value in model.named_parameters() if name.endswith(VALUES)]
    optimiser = torch.optim.Adam(chosen, lr=1e-3)
    x, y = posattn.task(member.task).sample(400, n=3, scale=10.0, seed=member.seed)
    for _ in range(2):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    ours = tuned.model(0)
    for name, value in model.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_member_that_diverges_says_so(run):
    assert run.status == ["ok"] * 2
    assert fine_tune(run, 1e25, epochs=1).status == ["diverged"] * 2  # squares beyond float32


def test_a_name_that_no_parameter_has_is_refused(run):
    with pytest.raises(posattn.UsageError, match=r"^only is 'W_X'; no parameter of this network has it in its name\.$"):
        fine_tune(run, only="W_X")
