"""The table network: exact weights exist and hold for every length and alphabet, letters are alike to it, and it trains."""

from dataclasses import replace

import onnxruntime
import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.export import TOLERANCE, to_onnx
from posattn.looped.table_model import TableConfig
from posattn.training import Run, network_for

TASK = posattn.task("khop")


def exact():
    """Weights that compute k-hop exactly, with one word: whether the value is there and, in a mark, whether the key is."""
    model = TableConfig(30, words=1, fixed=True).build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.write[0].weight[0], model.write[0].bias[0], model.write[2].weight[0, 0] = torch.tensor([1.0, 1.0]), -1.0, 1.0
        model.join[0].weight[0, 0], model.join[2].weight[0, 0], model.join[2].bias[0] = 1.0, -1.0, 1.0  # 1 - the own mark
        model.read[0].weight[0, 0], model.read[2].weight[0, 0] = 1.0, 1.0
        model.decoder.copy_(torch.tensor([40.0, 0.5]))
    return model


@pytest.mark.parametrize("n", [2, 3, 30, 65])
@pytest.mark.parametrize("domain", ["id", "ood"])
def test_some_weights_are_exact_at_every_length(n, domain):
    x, y = TASK.sample(10, n=n, seed=4, domain=domain)
    assert torch.equal(exact()(x).argmax(dim=-1), y)


def test_more_hops_and_letters_than_the_vocabulary_has():
    """Against brute force: 26 letters, no two alike side by side, six hops."""
    s = torch.randint(1, 26, (4, 40), generator=torch.Generator().manual_seed(0)).cumsum(dim=1) % 26
    follower = torch.full_like(s, -1)
    for i in range(40):
        for q in range(i):
            follower[:, i] = torch.where(s[:, q] == s[:, i], q + 1, follower[:, i])
    model, place = exact(), torch.arange(40).expand_as(s)
    for said in model.hops(torch.nn.functional.one_hot(s.mT, 26).float(), 6):
        wanted = torch.where(place >= 0, s.gather(1, place.clamp_min(0)), 26)
        assert torch.equal(said.argmax(dim=-1).mT, wanted)
        place = torch.where(place >= 0, follower.gather(1, place.clamp_min(0)), -1)


def test_letters_are_alike_to_it():
    model = TableConfig(12).build().double()
    letters = torch.nn.functional.one_hot(TASK.sample(5, n=12)[0][:, 1:].mT - 4, 10).double()
    order = torch.cat([torch.randperm(10, generator=torch.Generator().manual_seed(1)), torch.tensor([10])])  # none stays
    for own, other in zip(model.hops(letters, 3), model.hops(letters[..., order[:-1]], 3), strict=True):
        torch.testing.assert_close(own[..., order], other)


def test_letters_that_do_not_occur_change_no_answer():
    """The network computes with the letters that occur, and one for all others."""
    model, x = TableConfig(12).build().double(), TASK.sample(6, n=12)[0]
    alone = torch.cat([model(row[None]) for row in x])
    torch.testing.assert_close(alone, model(torch.cat([x, TASK.sample(6, n=12, domain="ood")[0]]))[:6])


def test_no_sequences_have_no_answers():
    assert TableConfig(12).build()(TASK.sample(1, n=12)[0][:0]).shape == (0, 12, 16)


def test_members_computed_together_answer_as_alone(monkeypatch):
    """As on a GPU: by vmap, with rows for all letters."""
    model, x = TableConfig(12).build(), TASK.sample(6, n=12)[0]
    alone, weights = model(x), {name: torch.stack([own, own]).detach() for name, own in model.named_parameters()}
    monkeypatch.setattr(type(model), "_slots", lambda self, hops, letters: (torch.arange(10), 10))
    found = torch.func.vmap(lambda own: torch.func.functional_call(model, own, (x,)))(weights)
    torch.testing.assert_close(found, alone.expand(2, *alone.shape))


def test_short_and_long_sequences_go_through_the_same_attention(monkeypatch):
    model, x = TableConfig(12).build().double(), TASK.sample(6, n=12)[0]
    by_matrix = model(x)
    monkeypatch.setattr("posattn.looped.table_model._SHORT", 1)
    torch.testing.assert_close(model(x), by_matrix)


def test_later_letters_change_no_earlier_answer():
    model, x = TableConfig(12, fixed=True).build(), TASK.sample(6, n=12)[0]
    torch.testing.assert_close(model(x)[:, :7], model(x[:, :7]))


def test_an_exported_file_answers_every_letter(tmp_path, unchecked):
    """Also batches that the file was not traced with; and the network answers afterwards as before."""
    model, path = exact(), tmp_path / "khop.onnx"
    assert to_onnx(model, path, length=5) <= TOLERANCE
    session = onnxruntime.InferenceSession(str(path))
    for domain, count in (("id", 1), ("ood", 13)):
        x, y = TASK.sample(count, n=5, seed=4, domain=domain)
        logits = torch.from_numpy(session.run(["logits"], {"tokens": x.numpy()})[0])
        assert torch.equal(logits.argmax(dim=-1), y) and torch.equal(model(x).argmax(dim=-1), y)


@pytest.mark.parametrize("fixed", [False, True])
def test_it_trains_saves_and_loads(fixed, tmp_path):
    config = TableConfig(4, words=2, width=6, fixed=fixed)
    settings = {"samples": 20, "epochs": 2, "batch": 10, "members": 2, "device": "cpu", "lr": 2e-2}
    run = posattn.train("khop", config, **settings, out=tmp_path / "run")
    again = posattn.load(tmp_path / "run")
    x = TASK.sample(3, n=20)[0]  # longer than it was trained on
    assert torch.equal(run.predict(x), again.predict(x)) and again.predict(x).shape == (2, 3, 20, 16)
    with pytest.raises(UsageError, match="the table network is no Transformer of posattn"):
        posattn.network.require(run.config, "graph")
    alone = posattn.train("khop", config, **settings | {"members": 1})
    torch.testing.assert_close(alone.predict(x)[0], run.predict(x)[0])


def test_a_run_is_tested_at_any_length():
    """Exact weights are right at every length, on either alphabet; a length is that of the tokens, the hop count included."""
    run = Run.of(exact(), "khop")
    table = run.evaluate_lengths([2, 33], samples=40)
    assert set(zip(table["n"], table["scale"], strict=True)) == {(n, scale) for n in (2, 33) for scale in (1, 2)}
    assert set(table["accuracy"]) == {1.0} and len(table) == 2 * 2 * 5
    (own,) = run.evaluate_lengths([33], samples=40, domain="ood").query("hops == 'all'")["cross_entropy"]
    far = table.query("n == 33 and scale == 2 and hops == 'all'")["cross_entropy"].item()
    assert own == far  # the scale of letters is their domain
    for lengths, sentence in (([1], "n is 1; it must be a whole number of at least 2"), ([], "lengths is empty")):
        with pytest.raises(UsageError, match=sentence):
            run.evaluate_lengths(lengths)


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
        (lambda: TableConfig(5).build()(torch.tensor([[2, 4, 15]])), "the sequence has other words; it must be a hop count"),
        (lambda: TableConfig(5).build()(torch.tensor([[4, 4, 5]])), "the sequence has other words; it must be a hop count"),
    ],
)
def test_bad_input_is_one_sentence(unchecked, make, sentence):
    with pytest.raises(UsageError) as error:
        make()
    assert str(error.value).startswith(sentence)
