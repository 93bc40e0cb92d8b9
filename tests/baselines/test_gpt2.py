"""GPT-2 on prompts as text, end to end with a small configuration and a tokenizer trained on the prompts, both built here."""

import sys

import pytest
import tokenizers
import torch
import torch.nn.functional as F
import transformers

import posattn
from posattn.baselines import gpt2
from posattn.errors import UsageError
from posattn.tasks.prompts import parse

CPU = torch.device("cpu")
SMALL = {"samples": 48, "epochs": 3, "batch": 8, "lr": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 of one layer and width 32, as save_pretrained leaves it."""
    place = tmp_path_factory.mktemp("gpt2")
    prompts, answers = gpt2.texts(posattn.task("mixed-min"), *posattn.task("mixed-min").sample(200))
    pairs = tokenizers.ByteLevelBPETokenizer()
    pairs.train_from_iterator(
        [*prompts, *answers], vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token="<|endoftext|>")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=32, n_layer=1, n_head=2, eos_token_id=tokenizer.eos_token_id
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def pair(folder):
    return gpt2.checkpoint(gpt2.FineTuning("mixed-min", str(folder)))


def test_texts_have_the_papers_digits():
    task = posattn.task("mixed-sum")
    x, y = task.sample(50, scale=10, seed=1)
    prompts, answers = gpt2.texts(task, x, y)
    for prompt, answer, row, value in zip(prompts, answers, x, y[:, 0].tolist(), strict=True):
        assert prompt.endswith("] Output =") and torch.equal(parse(prompt.removesuffix(" Output =")), row)
        assert len(answer) == 7 and answer[4] == "." and float(answer) == pytest.approx(value, abs=0.005)
    assert gpt2.texts(posattn.task("mixed-min"), *posattn.task("mixed-min").sample(1))[1][0][3] == "."


def test_the_loss_is_that_of_the_answers_tokens_and_the_end(pair):
    network, tokenizer = pair
    prompts, answers = gpt2.texts(posattn.task("mixed-min"), *posattn.task("mixed-min").sample(3))
    encoded = [gpt2._tokens(tokenizer, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    batch = gpt2._batch(encoded, tokenizer.pad_token_id, CPU)
    expected, count = 0.0, 0
    network.eval()
    for row, (tokens, asked) in enumerate(encoded):
        shown = batch["labels"][row][batch["labels"][row] != -100]
        assert tokenizer.decode(shown) == f"{answers[row]}<|endoftext|>"
        logits = network(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)
        expected -= sum(logits[place - 1, tokens[place]].item() for place in range(asked, len(tokens)))
        count += len(tokens) - asked
    frozen = torch.optim.SGD(network.parameters(), lr=0.0)
    assert gpt2._step(network, frozen, batch) == pytest.approx(expected / count, rel=1e-4)


def test_fine_tuning_lowers_the_loss_and_follows_from_the_seed(folder):
    settings = gpt2.FineTuning("mixed-min", str(folder), **SMALL)
    runs = []
    for _ in range(2):
        network, tokenizer = gpt2.checkpoint(settings)
        torch.rand(7)  # whatever else draws
        runs.append(gpt2.fine_tune(settings, network, tokenizer, 1, CPU))
    assert len(runs[0]) == 3 and runs[0][-1] < 0.8 * runs[0][0] and runs[0] == pytest.approx(runs[1])


def test_answers_do_not_depend_on_the_padding_beside_them(pair):
    network, tokenizer = pair
    prompts, _ = gpt2.texts(posattn.task("mixed-min"), *posattn.task("mixed-min").sample(4))
    prompts[1] = prompts[1][40:]
    assert gpt2.answer(network, tokenizer, prompts) == [gpt2.answer(network, tokenizer, [own])[0] for own in prompts]


def test_unreadable_answers_are_counted_and_left_out(monkeypatch, pair):
    settings = gpt2.FineTuning("mixed-max")
    y = settings.own.sample(4, scale=2, seed=3, split="test")[1]
    right = [f" {value:05.2f}" for value in y[:, 0].tolist()]
    said = [right[0], " none", f" {y[2].item() + 2:.2f} or so", ""]
    monkeypatch.setattr(gpt2, "answer", lambda *_: said)
    table = gpt2.evaluate(settings, *pair, seed=3, scales=[2], samples=4)
    assert table["unparsed"].tolist() == [2] and table["mse"].item() == pytest.approx(4 / 2, rel=1e-3)
    assert table["mape"].item() == pytest.approx(2 / y[2].item() / 2, rel=1e-3)


def test_a_checkpoint_that_cannot_be_had_says_how_to_get_it(monkeypatch):
    """Neither a folder nor in the cache, and no network."""

    def missing(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", missing)
    with pytest.raises(
        UsageError, match=r"^checkpoint is 'gpt2-large', which is no folder.*run hf download gpt2-large --local-dir"
    ):
        gpt2.checkpoint(gpt2.FineTuning("mixed-min"))


def test_without_the_extra_the_command_says_which_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        UsageError, match=r"^transformers is not installed; install it with pip install 'posattn\[gpt2\]'\.$"
    ):
        gpt2.checkpoint(gpt2.FineTuning("mixed-min"))


def test_a_tiny_network_needs_no_checkpoint():
    network, tokenizer = gpt2.checkpoint(gpt2.FineTuning("mixed-sum", gpt2.TINY), seed=2)
    again, _ = gpt2.checkpoint(gpt2.FineTuning("mixed-sum", gpt2.TINY), seed=2)
    text = "['Cat2', 03.45, 'Find sum of Cat5"
    assert (
        tokenizer.decode(tokenizer(text)["input_ids"]) == text and len(tokenizer(text)["input_ids"]) < len(text) / 1.5
    )
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert F.softmax(network(torch.tensor([[1, 2]])).logits, dim=-1).shape == (1, 2, len(tokenizer))
