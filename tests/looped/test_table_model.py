"""The table network: exact weights exist and hold for every length and alphabet, letters are alike to it, and it trains."""

from dataclasses import replace

import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.looped.table_model import TableConfig
from posattn.training import network_for

TASK = posattn.task("khop")


def exact():
    """Weights that compute k-hop exactly. Of an entry, one word says whether the value is there, one whether the key is."""
    model = TableConfig(30, fixed=True).build()
    value, key, w = 0, 1, 4
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.write.first.weight[value], model.write.first.bias[value] = torch.tensor([1.0, 1.0]), -1.0
        model.write.first.weight[key, 0] = 1.0
        for word in (value, key):
            model.write.last.weight[word, word] = 1.0
            model.join.first.weight[word, word] = 1.0  # the own entry,
            model.join.first.weight[2 + word, w + word] = 1.0  # and the left one
            model.join.first.weight[2 + word, 2 * w + key] = -1.0  # where the own row has no key
            model.join.last.weight[word, [word, 2 + word]] = 1.0
        model.read.first.weight[0, [value, 2 * w]], model.read.first.bias[0], model.read.last.weight[0, 0] = 1.0, -1.0, 1.0
        model.decoder.copy_(torch.tensor([5.0, 0.5, -1.0]))
    return model


@pytest.mark.parametrize("n", [2, 3, 30, 65])
@pytest.mark.parametrize("domain", ["id", "ood"])
def test_some_weights_are_exact_at_every_length(n, domain):
    x, y = TASK.sample(10, n=n, seed=4, domain=domain)
    assert torch.equal(exact()(x).argmax(dim=-1), y)


def test_more_hops_and_letters_than_the_vocabulary_has():
    """Against brute force: 26 letters, six hops."""
    generator = torch.Generator().manual_seed(0)
    s = torch.randint(26, (4, 40), generator=generator)
    follower = torch.full_like(s, -1)
    for i in range(40):
        for q in range(i):
            follower[:, i] = torch.where(s[:, q] == s[:, i], q + 1, follower[:, i])
    model, place = exact(), torch.arange(40).expand_as(s)
    for h in model.hops(torch.nn.functional.one_hot(s, 26).float(), 6):
        wanted = torch.where(place >= 0, s.gather(1, place.clamp_min(0)), 26)
        assert torch.equal(model.answers(h).argmax(dim=-1), wanted)
        place = torch.where(place >= 0, follower.gather(1, place.clamp_min(0)), -1)


def test_letters_are_alike_to_it():
    model = TableConfig(12).build().double()
    letters = model.one_hot(TASK.sample(5, n=12)[0][:, 1:])
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    for own, other in zip(model.hops(letters, 3), model.hops(letters[..., order], 3), strict=True):
        torch.testing.assert_close(own[..., order], other)


def test_later_letters_change_no_earlier_answer():
    model, x = TableConfig(12).build(), TASK.sample(6, n=12)[0]
    torch.testing.assert_close(model(x)[:, :7], model(x[:, :7]))


@pytest.mark.parametrize("fixed", [False, True])
def test_it_trains_saves_and_loads(fixed, tmp_path):
    config = TableConfig(4, words=2, width=6, fixed=fixed)
    settings = {"samples": 20, "epochs": 2, "batch": 10, "members": 2, "device": "cpu", "lr": 2e-2}
    run = posattn.train("khop", config, **settings, out=tmp_path / "run")
    again = posattn.load(tmp_path / "run")
    x = TASK.sample(3, n=20)[0]  # longer than it was trained on
    assert torch.equal(run.predict(x), again.predict(x)) and again.predict(x).shape == (2, 3, 20, 16)
    with pytest.raises(UsageError, match="the task khop has no lists of numbers; lengths are only for those"):
        run.evaluate_lengths([4])
    with pytest.raises(UsageError, match="the table network is no Transformer of posattn"):
        posattn.network.require(run.config, "graph")
    alone = posattn.train("khop", config, **settings | {"members": 1})
    torch.testing.assert_close(alone.predict(x)[0], run.predict(x)[0])


def test_sharpening_reaches_the_logits():
    """With attention that is learned, the recipe's factor on the logits changes training; where it is fixed, it does not."""
    plan = posattn.Recipe(schedule="cosine", lr=1e-3, samples=40, epochs=2, batch=20)
    for fixed in (False, True):
        config = TableConfig(5, words=1, width=4, fixed=fixed)
        runs = [posattn.train("khop", config, recipe=replace(plan, sharpen_to=share), device="cpu") for share in (0.0, 0.9)]
        first, second = (run.predict(TASK.sample(3, n=5)[0]) for run in runs)
        assert torch.equal(first, second) == fixed


def test_commands_and_python_make_the_same_network():
    assert network_for("khop", arch="table") == posattn.ModelConfig(n=30, arch="table") == TableConfig(30)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TableConfig(0), "n is 0; it must be a whole number of at least 1."),
        (lambda: TableConfig(5, words=1.5), "words is 1.5"),
        (lambda: TableConfig(5, fixed="no"), "fixed is 'no'"),
        (lambda: TableConfig(10**9, width=10**9).build(), "the weights of a network for TableConfig"),
        (lambda: TableConfig(5, family="dilated"), "family is 'dilated', a field of LoopedConfig"),
        (lambda: network_for("sort", arch="table"), "the table network reads the tokens 'letters'; the task sort has"),
        (lambda: TableConfig(5).build()(torch.tensor([[2]])), "the sequence is a hop count alone"),
        (lambda: TableConfig(5).build()(torch.tensor([[2.0, 3.0]])), "the input is of torch.float32"),
    ],
)
def test_bad_input_is_one_sentence(unchecked, make, sentence):
    with pytest.raises(UsageError) as error:
        make()
    assert str(error.value).startswith(sentence)
