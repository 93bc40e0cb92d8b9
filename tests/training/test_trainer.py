"""A step of the ensemble against the loop one would write by hand, and members that must not notice each other."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

import posattn
from posattn import metrics
from posattn.errors import UsageError
from posattn.looped import AnyLengthConfig
from posattn.streams import fold_in, permutation, stream
from posattn.tasks import task
from posattn.training import Member, Recipe, Trainer, network_for
from posattn.training.parameters import initial_model
from posattn.training.ways import Folded, Plain
from posattn.training.workers import Workers

CPU = torch.device("cpu")
TINY = posattn.ModelConfig(3, embed=8, width=8)


def ensemble(config, recipe, members, threads=1, way=None, **options):
    """A trainer that has trained to the end."""
    with Workers(threads) as workers:
        trainer = Trainer(config, recipe, members, CPU, workers, **options)
        trainer.way = trainer.way if way is None else way
        for _ in trainer.steps():
            pass
    return trainer


def named(trainer, member=0):
    return {name: value[0] for name, value in trainer.parameters.named(slice(member, member + 1)).items()}


def relative_difference(ours, theirs):
    """Between two networks as whole vectors; key biases are left out, as their gradient is rounding (notes, 4)."""
    names = [name for name in theirs if not name.endswith("W_K.bias")]
    assert set(ours) == set(theirs) and len(names) >= len(theirs) - 4
    a, b = (torch.cat([side[name].flatten() for name in names]).double() for side in (ours, theirs))
    return ((a - b).norm() / b.norm()).item()


def cosine(step, total, warmup):
    """The factor of step 1, 2, ..., total: up along a line, then down along half a cosine that ends at 0 after the last."""
    rising = warmup * total
    return step / rising if step <= rising else (1 + math.cos(math.pi * (step - 1 - rising) / (total - rising))) / 2


def by_hand(config, recipe, member):
    """One module, eager autograd, torch's Adam, scheduler and clipping. The state dict, losses and rates of epochs, norms."""
    model = initial_model(config, member.seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=member.lr)
    x, y = task(member.task).sample(recipe.samples, n=config.n, seed=member.seed)
    shuffle = torch.tensor([stream(member.seed, "shuffle", config.n)])
    steps_an_epoch = -(-recipe.samples // recipe.batch)
    plateau = ReduceLROnPlateau(
        optimiser, factor=recipe.factor, patience=recipe.patience, threshold=recipe.threshold, min_lr=recipe.floor
    )
    losses, rates, norms, step = [], [], [], 0
    for epoch in range(recipe.epochs):
        order = permutation(fold_in(shuffle, epoch), recipe.samples)[0]
        assert order.sort().values.equal(torch.arange(recipe.samples))
        total = 0.0
        for rows in order.split(recipe.batch):
            step += 1
            if recipe.schedule == "cosine":
                factor = cosine(step, recipe.epochs * steps_an_epoch, recipe.warmup)
                optimiser.param_groups[0]["lr"] = member.lr * factor
            loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            if recipe.clip is not None:
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip).item())
            optimiser.step()
            total += loss.item()
        losses.append(total / steps_an_epoch)
        rates.append(optimiser.param_groups[0]["lr"])
        if recipe.schedule == "plateau":
            plateau.step(total)
    return model.state_dict(), losses, rates, norms


# 37 lists in batches of 10: the last one is of 7. Four steps an epoch, 32 in all.
PLATEAU = Recipe(samples=37, batch=10, epochs=8, lr=2e-3, patience=0, threshold=0.1, factor=0.5, floor=4e-4)
COSINE = Recipe(schedule="cosine", samples=37, batch=10, epochs=8, lr=2e-3, warmup=0.15, clip=1.5)


@pytest.mark.parametrize("arch", ["positional", "scale-exact", "standard", "rope-only"])
@pytest.mark.parametrize("recipe", [PLATEAU, COSINE], ids=["plateau", "cosine and clipping"])
def test_training_is_what_a_plain_loop_does(arch, recipe):
    config, member = posattn.ModelConfig(5, arch), Member("sum", 11, recipe.lr)
    trainer = ensemble(config, recipe, [member])
    weights, losses, rates, norms = by_hand(config, recipe, member)
    assert relative_difference(named(trainer), weights) < 1e-4
    assert relative_difference(named(trainer), initial_model(config, 11).state_dict()) > 1e-2  # it has moved
    assert trainer.history[:, 0, 0].tolist() == pytest.approx(losses, rel=1e-4)
    assert trainer.history[:, 1, 0].tolist() == pytest.approx(rates, rel=1e-6, abs=1e-9)
    if recipe.schedule == "plateau":
        assert len(set(rates)) >= 3  # the schedule has acted, more than once
    else:
        assert min(norms) < recipe.clip < max(norms)  # clipping too, and not always
    assert len(trainer.batches()) == 4 and trainer.steps_done == 32


FOLDED = [
    *((posattn.ModelConfig(5, arch, embed=16), "sort") for arch in ("positional", "standard", "input-regularized")),
    (network_for("mixed-sum", layout="elements-shared", layers=2, embed=16, width=16), "mixed-sum"),
]


@pytest.mark.parametrize(("config", "name"), FOLDED)
def test_the_folded_step_trains_as_the_plain_one(config, name):
    member = Member(name, 2, 1e-3)
    recipe = Recipe(samples=37, batch=10, epochs=5, lr=1e-3)
    folded, plain = (ensemble(config, recipe, [member], way=way) for way in (None, Plain(config, CPU)))
    assert isinstance(folded.way, Folded) and type(plain.way) is Plain
    assert relative_difference(named(folded), named(plain)) < 1e-4


def test_a_batch_larger_than_a_tile_is_one_batch():
    config, recipe = TINY, Recipe(samples=1300, batch=1200, epochs=3, lr=1e-3)
    weights, losses, _, _ = by_hand(config, recipe, Member("sum", 0, 1e-3))
    trainer = ensemble(config, recipe, [Member("sum", 0, 1e-3)])
    assert relative_difference(named(trainer), weights) < 1e-4
    assert trainer.history[:, 0, 0].tolist() == pytest.approx(losses, rel=1e-5)


def test_the_plateau_schedule_stops_at_its_floor():
    recipe = Recipe(samples=20, batch=20, epochs=12, lr=1e-3, patience=1, threshold=0.9, factor=0.5, floor=2e-4)
    rates = ensemble(TINY, recipe, [Member("sum", 0, 1e-3)]).history[:, 1, 0].tolist()
    # The first epoch is an improvement on infinity; then every second one is a bad one too many.
    assert rates == pytest.approx([1e-3] * 3 + [5e-4] * 2 + [2.5e-4] * 2 + [2e-4] * 5, rel=1e-6)


def test_the_plateau_schedule_is_torchs_for_any_losses():
    generator = torch.Generator().manual_seed(5)
    losses = torch.rand(60, 3, generator=generator) * torch.tensor([1.0, 10.0, 1e-3])
    losses += torch.linspace(1, 0, 60)[:, None]
    losses[:, 2] = 1 - losses[:, 2].clamp_min(0.5)  # rises, then lies still
    recipe = Recipe(samples=20, batch=20, epochs=1, patience=2, factor=0.7, floor=1e-5)
    with Workers(1) as workers:
        trainer = Trainer(TINY, recipe, [Member("sum", k, 10.0 ** -(k + 2)) for k in range(3)], CPU, workers)
    optimisers = [torch.optim.SGD([torch.zeros(1)], lr=10.0 ** -(k + 2)) for k in range(3)]
    theirs = [ReduceLROnPlateau(o, factor=0.7, patience=2, threshold=1e-4, min_lr=1e-5) for o in optimisers]
    for row in losses:
        trainer.loss = row.clone()
        trainer._plateau()
        for scheduler, loss in zip(theirs, row.tolist(), strict=True):
            scheduler.step(loss)
        assert trainer.lr.tolist() == pytest.approx([o.param_groups[0]["lr"] for o in optimisers], rel=2e-6)
    assert trainer.lr[0] < 5e-3 and trainer.lr[1:].tolist() == pytest.approx([1e-5] * 2)  # reduced, two to the floor


TEAM = [Member(("sum", "min", "sort", "median", "maxsub")[k % 5], 20 + k, 1e-3 / (1 + k)) for k in range(10)]
STEPS_40 = Recipe(samples=60, batch=12, epochs=8, patience=2, threshold=0.05)  # five steps an epoch


@pytest.fixture(scope="module")
def company():
    plain = AnyLengthConfig(3, "rope-only", embed=8, width=8)  # does not fold
    return {"folded": ensemble(TINY, STEPS_40, TEAM), "plain": ensemble(plain, STEPS_40, TEAM[:3])}


@pytest.mark.parametrize(("kind", "k"), [("folded", 0), ("folded", 4), ("folded", 9), ("plain", 1)])
def test_a_member_alone_is_the_member_among_others(company, kind, k):
    beside = company[kind]
    alone = ensemble(beside.config, STEPS_40, [TEAM[k]])
    assert alone.steps_done == beside.steps_done == 40
    assert torch.equal(alone.blocks[0].x[0], beside.blocks[0].x[k])
    assert torch.equal(alone.blocks[0].y[0], beside.blocks[0].y[k])
    assert torch.equal(alone.blocks[0].order(7)[0], beside.blocks[0].order(7)[k])
    assert relative_difference(named(alone), named(beside, k)) < 1e-4  # what is required
    assert torch.equal(alone.parameters.flat[0], beside.parameters.flat[k])  # what the CPU promises
    assert torch.equal(alone.history[:, :, 0], beside.history[:, :, k])


def test_members_differ_in_data_shuffle_rate_and_weights(company):
    trainer = company["folded"]
    assert len({tuple(x[0].tolist()) for x in trainer.blocks[0].x}) == 10
    orders = [trainer.blocks[0].order(epoch)[k] for epoch in (0, 1) for k in range(10)]
    assert len({tuple(order.tolist()) for order in orders}) == 20
    assert len({tuple(row[:20].tolist()) for row in trainer.parameters.flat}) == 10
    assert len(set(trainer.history[-1, 1].tolist())) == 10
    assert any(trainer.history[-1, 1, k] < 0.95 * TEAM[k].lr for k in range(10))  # the plateau is each member's own


@pytest.mark.parametrize("arch", ["positional", "standard", "rope-only"])
def test_two_threads_give_the_bits_of_one(arch):
    # Batches of 1100 are cut into tiles, of which two threads may take any.
    config = posattn.ModelConfig(3, arch, embed=8, width=8)
    recipe = Recipe(samples=1200, batch=1100, epochs=4, clip=1.0)
    one, two = (ensemble(config, recipe, TEAM[:3], threads) for threads in (1, 2))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def bits_of(trainer, k):
    return torch.cat([trainer.parameters.flat[k], trainer.history[:, :, k].flatten()])


FATES = Recipe(samples=40, batch=10, epochs=5, lr=1e-3)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_member_whose_data_turn_to_nan_stops_with_the_weights_it_had(clip):
    recipe = Recipe(samples=40, batch=10, epochs=5, lr=1e-3, clip=clip)
    team = [Member("sum", k, 1e-3) for k in range(3)]
    healthy = ensemble(TINY, recipe, team)
    with Workers(1) as workers:
        trainer = Trainer(TINY, recipe, team, CPU, workers)
        steps = trainer.steps()
        for _ in range(6):
            next(steps)
        before = trainer.parameters.flat.clone()
        trainer.blocks[0].y[1] = math.nan
        for _ in steps:
            pass
    assert trainer.alive.tolist() == [True, False, True]
    assert torch.equal(trainer.parameters.flat[1], before[1])
    assert trainer.history[-1, 0, 1].isnan()
    for k in (0, 2):
        assert torch.equal(bits_of(trainer, k), bits_of(healthy, k))


class Steep(torch.nn.Module):
    """The list, raised by a number that is 0, and whose derivative is infinite."""

    def __init__(self, n):
        super().__init__()
        self.raised = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + (self.raised - self.raised.detach()).sqrt()


def test_a_member_whose_gradient_is_not_finite_stops_although_its_loss_is():
    plan, members = Recipe(samples=8, batch=4, epochs=1), [Member("sort", 0, 0.1), Member("sort", 1, 0.1)]
    trainer = ensemble(posattn.network.own_network("steep", Steep)(n=3), plan, members)
    assert trainer.loss.isfinite().all() and trainer.history.isfinite().all()
    assert trainer.alive.tolist() == [False, False] and trainer.parameters.flat.tolist() == [[1], [1]]


def test_the_last_step_of_the_warm_up_has_the_whole_rate():
    plan = Recipe(schedule="cosine", samples=8, batch=2, epochs=2, warmup=0.25)  # 2 of 8 steps
    factors = ensemble(TINY, plan, [Member("sort", 0, 1e-3)])._schedule(torch.arange(1.0, 9.0))
    assert factors[:3].tolist() == [0.5, 1.0, pytest.approx((1 + math.cos(0)) / 2)] and (factors.diff()[2:] < 0).all()
    assert factors.tolist() == pytest.approx([cosine(step, 8, 0.25) for step in range(1, 9)])


def test_the_state_goes_on_bit_for_bit_from_every_step():
    recipe = Recipe(samples=25, batch=10, epochs=5, lr=1e-3, patience=1, threshold=0.9, factor=0.5)
    whole = ensemble(TINY, recipe, TEAM[:2])
    with Workers(1) as workers:
        first = Trainer(TINY, recipe, TEAM[:2], CPU, workers)
        states = [
            (first.steps_done, {name: value.clone() for name, value in first.state_dict().items()})
            for _ in first.steps()
        ]
        assert [done for done, _ in states] == list(range(1, 16))
        assert first.lr.tolist() == pytest.approx([TEAM[k].lr / 4 for k in range(2)])  # the schedule has acted twice
        for _, state in states:
            again = Trainer(TINY, recipe, TEAM[:2], CPU, workers)
            again.load_state_dict({name: value.clone() for name, value in state.items()})
            for _ in again.steps():
                pass
            assert torch.equal(again.parameters.flat, whole.parameters.flat)
            assert torch.equal(again.history, whole.history)


def test_two_trainers_do_not_share_the_state_that_one_took_from_the_other():
    with Workers(1) as workers:
        one, other = (Trainer(TINY, FATES, TEAM[:1], CPU, workers) for _ in range(2))
        next(one.steps())
        other.load_state_dict(one.state_dict())
        before = one.parameters.flat.clone()
        next(other.steps())
        assert torch.equal(one.parameters.flat, before)


LENGTHS = posattn.ModelConfig(4, embed=16, width=16)


def test_variable_lengths_come_equally_often_in_batches_of_one_length_each_list_once_an_epoch():
    recipe = Recipe(samples=100, batch=10, epochs=2, lr=1e-3, shuffle_lengths=True)
    with Workers(1) as workers:
        trainer = Trainer(LENGTHS, recipe, TEAM[:2], CPU, workers, lengths=range(1, LENGTHS.n + 1))
        seen = []
        step = trainer._step
        trainer._step = lambda x, y, *rest: (seen.append((x.clone(), y.clone())), step(x, y, *rest))
        for _ in trainer.steps():
            pass
    assert len(seen) == 2 * len(trainer.batches()) == 2 * 4 * 3  # 25 lists a length: 10, 10, 5
    for epoch in (seen[:12], seen[12:]):
        by_length = {k: torch.cat([x for x, _ in epoch if x.shape[-1] == k], dim=1) for k in range(1, 5)}
        assert [x.shape[1] for x in by_length.values()] == [25] * 4
        for k, x in by_length.items():
            drawn = trainer.blocks[k - 1].x
            for member in range(2):
                assert sorted(x[member].tolist()) == sorted(drawn[member].tolist())
    # Every epoch has its own order of the lengths and of the lists of each, and the targets belong to the inputs.
    lengths = [x.shape[-1] for x, _ in seen]
    assert lengths[:12] != lengths[12:] and sorted(lengths[:12]) == sorted(lengths[12:]) == sorted([1, 2, 3, 4] * 3)
    assert lengths[:12] != [1, 2, 3, 4] * 3 != lengths[12:]
    firsts = [next(x for x, _ in epoch if x.shape == (2, 10, 4)) for epoch in (seen[:12], seen[12:])]
    assert not torch.equal(*firsts)
    for x, y in seen:
        assert torch.equal(y[0], task(TEAM[0].task).target(x[0])) and torch.equal(y[1], task(TEAM[1].task).target(x[1]))


def test_the_order_of_batches_is_one_for_all_members_and_resumes_within_an_epoch():
    recipe = Recipe(samples=100, batch=10, epochs=2, lr=1e-3, shuffle_lengths=True)
    with Workers(1) as workers:
        whole, begun, resumed, alone = (
            Trainer(LENGTHS, recipe, team, CPU, workers, lengths=range(1, LENGTHS.n + 1))
            for team in (TEAM[:2], TEAM[:2], TEAM[:2], TEAM[1:2])
        )
        for steps in (whole.steps(), alone.steps()):
            for _ in steps:
                pass
        going = begun.steps()
        for _ in range(17):
            next(going)
        resumed.load_state_dict(begun.state_dict())
        for _ in resumed.steps():
            pass
    assert torch.equal(resumed.parameters.flat, whole.parameters.flat)
    assert torch.equal(alone.parameters.flat[0], whole.parameters.flat[1])


def test_without_shuffling_lengths_come_in_turn():
    recipe = Recipe(samples=60, batch=10, epochs=2, lr=1e-3)
    with Workers(1) as workers:
        trainer = Trainer(LENGTHS, recipe, TEAM[:1], CPU, workers, lengths=(2, 4))
        assert trainer.batch_order() == list(range(6))
    assert [index for index, _, _ in trainer.batches()] == [0, 1] * 3


@pytest.mark.parametrize(
    ("arch", "given", "shuffled"),
    [
        ("positional", {"variable_length": True}, True),
        ("positional", {"variable_length": (2, 4)}, False),
        ("positional", {}, False),
        ("positional", {"variable_length": True, "recipe": Recipe()}, False),  # a recipe of one's own says it itself
        ("looped", {"variable_length": True, "polish": 0}, False),
    ],
)
def test_the_recipes_shuffle_lists_of_1_to_n_numbers(arch, given, shuffled):
    small = {"samples": 8, "epochs": 1, "batch": 2, "device": "cpu"}
    run = posattn.train("sum", posattn.ModelConfig(4, arch), **small, **given)
    assert run.spec.recipe.shuffle_lengths is shuffled
    assert ("shuffle_lengths" in run.spec.to_dict()["recipe"]) is shuffled  # so that earlier runs keep their identity


def test_variable_length_training_learns():
    recipe = Recipe(schedule="cosine", samples=400, batch=20, epochs=30, lr=3e-3, warmup=0.1, clip=1.0)
    losses = ensemble(LENGTHS, recipe, [Member("sum", 0, 3e-3)], lengths=range(1, LENGTHS.n + 1)).history[:, 0, 0]
    assert losses.isfinite().all() and losses[-1] < losses[0] / 20


def test_too_few_samples_for_the_lengths_are_refused_by_their_name(tmp_path):
    with pytest.raises(UsageError, match=r"^samples is 3; .*at least 4"):
        posattn.train("sum", LENGTHS, samples=3, epochs=1, variable_length=True, device="cpu", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def linear_predictor_error(x, y):
    """The squared error of the best affine map, which no model that ignores the nonlinearity can beat."""
    design = torch.cat([x, torch.ones(len(x), 1)], dim=1).double()
    return (design @ torch.linalg.lstsq(design, y.double()).solution - y).square().mean().item()


@pytest.mark.parametrize(("arch", "samples"), [("positional", 2000), ("scale-exact", 4000), ("standard", 2000)])
def test_a_short_training_learns_the_minimum(arch, samples):
    recipe = Recipe("short", "cosine", samples=samples, epochs=20, batch=100, lr=3e-3, warmup=0.05, clip=1.0)
    run = posattn.train("min", posattn.ModelConfig(4, arch, embed=32, width=32), recipe=recipe, seed=1, device="cpu")
    x, y = task("min").sample(2000, n=4, seed=1, split="test")
    error = metrics.mean_squared_error(run.predict(x)[0], y).item()
    assert error < 0.005 * (y - y.mean(dim=0)).square().mean().item()  # the best constant
    assert error < linear_predictor_error(x, y) / 10
    assert run.status == ["ok"]


@pytest.mark.parametrize("c", [2, 7])
def test_without_biases_the_error_out_of_distribution_is_known_from_the_one_within(c):
    def errors(arch):
        """At scales 1 and c, of answers as large as the targets, so that the model's part in the error counts."""
        model = initial_model(posattn.ModelConfig(4, arch, embed=16, width=16), 0)
        found = []
        with torch.no_grad():
            for scale in (1, c):
                x, y = task("sum").sample(40_000, n=4, scale=scale, split="test")
                if scale == 1:
                    model.decoder.weight *= y.std() / model(x).std()
                found.append(metrics.mean_squared_error(model(x), y).item())
        return found

    law = c**2 + 1  # notes, 5.1
    within, beyond = errors("scale-exact")
    assert beyond == pytest.approx(law * within, rel=0.05)
    within, beyond = errors("positional")
    assert beyond != pytest.approx(law * within, rel=0.05)


def test_the_plateau_schedule_never_raises_a_rate_below_its_floor():
    rule = Recipe(samples=20, batch=20, epochs=4, patience=0, threshold=0.9, floor=1e-3)
    trainer = ensemble(TINY, rule, [Member("sum", 0, 5e-4)])
    optimiser = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=5e-4)
    scheduler = ReduceLROnPlateau(optimiser, factor=0.9, patience=0, threshold=0.9, min_lr=1e-3)
    for loss in trainer.history[:, 0, 0]:
        scheduler.step(loss)
    assert scheduler.get_last_lr() == [5e-4] and trainer.lr.tolist() == pytest.approx([5e-4])
