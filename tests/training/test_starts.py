"""Several starts of every member, of which the best by training loss is kept; and sorting, which they are for."""

import math

import pytest
import torch

import posattn
from posattn import ModelConfig, UsageError
from posattn.training import Member, Recipe, RunSpec, Trainer, train_spec
from posattn.training.finetune import fine_tune
from posattn.training.fit import _choose
from posattn.training.recipe import recipe
from posattn.training.workers import Workers

CPU = torch.device("cpu")
SMALL = ModelConfig(n=3, arch="looped", family="butterfly", width=5)
THREE = Recipe(schedule="cosine", lr=1e-2, epochs=3, batch=10, samples=40, sharpen_to=0.5, starts=3)
TEAM = (Member("sort", 0, 1e-2), Member("min", 7, 2e-2))


@pytest.fixture(scope="module")
def run():
    return train_spec(RunSpec(SMALL, THREE, TEAM), CPU)


def test_a_member_is_the_best_of_its_starts_as_each_would_be_alone(run):
    for index, member in enumerate(TEAM):
        starts = member.starts(3)
        assert starts[0] == member and len({start.seed for start in starts}) == 3
        alone = [train_spec(RunSpec(SMALL, recipe(THREE, starts=1), (start,)), CPU) for start in starts]
        losses = [each.result["train_loss"][0] for each in alone]
        assert run.result["start_losses"][index] == losses and len(set(losses)) == 3
        best = losses.index(min(losses))
        assert run.result["start"][index] == best and run.result["train_loss"][index] == losses[best]
        assert torch.equal(run.parameters.flat[index], alone[best].parameters.flat[0])
        assert run.history[run.history["member"] == index]["loss"].tolist() == alone[best].history["loss"].tolist()
    assert run.status == ["ok", "ok"] and "start" not in alone[0].result


def test_the_training_lists_are_those_of_the_start_that_was_kept(run):
    """The same figures as the kept start has alone; on test lists they are the member's, as for all its starts."""
    assert any(run.result["start"])  # or nothing is tested
    for index, member in enumerate(TEAM):
        start = member.starts(3)[run.result["start"][index]]
        assert run.kept[index] == start
        alone = train_spec(RunSpec(SMALL, recipe(THREE, starts=1), (start,)), CPU)
        own = run.evaluate([1], samples=40, split="train").iloc[index]
        assert own["mse"] == alone.evaluate([1], samples=40, split="train").iloc[0]["mse"]
        assert own["seed"] == member.seed
        x, y = posattn.task(member.task).sample(40, n=3, seed=member.seed, split="test")
        tested = (run.model(index)(x) - y).square().mean().item()
        assert run.evaluate([1], samples=40).iloc[index]["mse"] == pytest.approx(tested)
    tuned, other = fine_tune(run, epochs=1, lr=0.1), fine_tune(alone, epochs=1, lr=0.1)
    torch.testing.assert_close(tuned.parameters.flat[1:], other.parameters.flat)


def test_members_with_several_starts_do_not_notice_each_other(run):
    second = train_spec(RunSpec(SMALL, THREE, TEAM[1:]), CPU)
    assert torch.equal(second.parameters.flat[0], run.parameters.flat[1])


def test_a_run_with_several_starts_goes_on_where_it_stopped(run, tmp_path):
    def stop(epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_spec(RunSpec(SMALL, THREE, TEAM), CPU, tmp_path / "run", save_every=0, report=stop)
    again = train_spec(RunSpec(SMALL, THREE, TEAM), CPU, tmp_path / "run")
    assert torch.equal(again.parameters.flat, run.parameters.flat) and again.result["start"] == run.result["start"]
    assert posattn.load(tmp_path / "run").result["start_losses"] == run.result["start_losses"]


def test_a_start_without_a_loss_is_not_chosen():
    with Workers(1) as workers:
        trainer = Trainer(SMALL, THREE, TEAM[0].starts(3), CPU, workers)
    trainer.history[-1, 0] = torch.tensor([math.nan, 2.0, 1.0])
    trainer.alive[2] = False  # its gradient was not finite
    wanted = trainer.parameters.flat[1:2].clone()
    assert _choose(trainer, 3) == {"start": [1], "start_losses": [[None, 2.0, None]]}
    assert torch.equal(trainer.parameters.flat, wanted) and trainer.members == TEAM[0].starts(3)[1:2]
    assert next(trainer.steps()) is None  # and training can go on with what is left


@pytest.mark.parametrize("kept", [2, 0])
def test_members_that_are_kept_go_on_as_if_alone(kept):
    """In the middle of an epoch: with their own lists, shuffles, moments and rates, and without a trace in the others'."""
    team = [Member("sort", 3, 1e-2), Member("min", 4, 1e-2), Member("sort", 5, 2e-2)]
    plan = recipe(THREE, starts=1)
    with Workers(1) as workers:
        trainer, alone = (Trainer(SMALL, plan, members, CPU, workers) for members in (team, team[kept : kept + 1]))
        for _, _ in zip(range(6), trainer.steps(), strict=False):
            pass
        before = trainer.state_dict()  # shares memory with the trainer
        copied = {name: value.clone() for name, value in before.items()}
        lists = trainer.blocks[0].x
        trainer.keep([kept])
        for each in (trainer, alone):
            for _ in each.steps():
                pass
    assert [len(block.x) for block in trainer.blocks] == [len(block.y) for block in trainer.blocks] == [1]
    assert torch.equal(trainer.blocks[0].x[0], lists[kept]) and trainer.members == team[kept : kept + 1]
    state, wanted = trainer.state_dict(), alone.state_dict()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    rows = ("parameters", "first_moment", "second_moment")
    assert all(torch.equal(before[name], copied[name]) for name in rows)


def test_the_number_of_starts_is_part_of_the_recipe():
    assert "starts" not in Recipe().to_dict() and Recipe(**THREE.to_dict()) == THREE
    for bad in (0, 1.5, True):
        with pytest.raises(UsageError, match=rf"^starts is {bad}; it must be a whole number of at least 1\.$"):
            Recipe(starts=bad)


def test_a_network_trained_on_up_to_four_numbers_sorts_many():
    """With half of the recipe's steps, from one start."""
    run = posattn.train(
        "sort",
        ModelConfig(n=4, arch="looped", family="butterfly"),
        recipe=recipe("sorter", starts=1, epochs=12),
        seed=2,
        variable_length=True,
        device="cpu",
    )
    table = run.evaluate_lengths([4, 100], scales=[10], samples=20).set_index("n")["relative_square"]
    assert table[100] < 1e-3 and table[4] < 1e-4
    # What is learned are the exchanges: h_1 the partner everywhere, h_2 the partner or oneself.
    heads = run.model(0).layer.attention.table().argmax(dim=-1).tolist()
    partner, less, more = [2, 2, 1, 1], [2, 0, 0, 1], [0, 2, 1, 0]
    assert sorted(heads) in (sorted(pair) for pair in ([partner, less], [partner, more], [less, more]))
