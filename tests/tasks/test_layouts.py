"""Layouts of prompts: each goes both ways, keeps the answer, and names the place of what is no prompt."""

import re

import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.tasks.layouts import LAYOUTS, elements_of
from posattn.tokens.vocabulary import VOCABULARIES, word_index
from posattn.training import network_for

TASK = posattn.task("mixed-multitask")
CHARACTERS = VOCABULARIES["characters"]


def spelled(x):
    """What the positions of a prompt of characters read, numbers as N."""
    words = (CHARACTERS.words[index] for index in word_index(x).tolist())
    return "".join("N" if value >= 0 else word for value, word in zip(x.tolist(), words, strict=True))


def test_every_character_of_text_and_every_number_is_a_position():
    for scale in (1, 4):
        x, _ = TASK.sample(50, n=101, scale=scale, seed=5)
        for row, text in zip(x, TASK.decode(x), strict=True):
            words = re.sub(r"\d+\.\d+", "N", text).replace("', ", "").replace("N, ", "N").strip("[]'").replace("'", "")
            assert spelled(row) == words.ljust(101, "#")
            numbers = [float(number) for number in re.findall(r"\d+\.\d+", text)]
            assert row[row >= 0].tolist() == pytest.approx(numbers)
    assert not spelled(x[0]).endswith("#")  # two digits everywhere make the longest prompt


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("scale", [0.5, 1, 7])
def test_layouts_go_both_ways_and_keep_prompt_and_answer(name, scale):
    layout = LAYOUTS[name]
    elements, y = TASK.sample(300, scale=scale, seed=[0, 3])
    x, same = TASK.sample(300, n=layout.positions, scale=scale, seed=[0, 3])
    assert x.shape == (2, 300, layout.positions) and torch.equal(y, same)
    assert torch.equal(layout.elements(x), elements) and torch.equal(elements_of(x), elements)
    assert torch.equal(TASK.target(x), y)
    text = TASK.decode(x[1, 0])
    assert torch.equal(TASK.encode(text, name), x[1, 0]) and text == TASK.decode(elements[1, 0])


def test_numbers_that_no_training_prompt_has_are_kept():
    x, _ = TASK.sample(1, n=101, seed=2)
    far = torch.where(x < 0, x, 1e30 * x + 0.125).double()
    assert torch.equal(far[far >= 0], elements_of(far)[elements_of(far) >= 0])


def test_a_wrong_character_is_named_unless_it_makes_another_prompt():
    x, refused = TASK.sample(1, n=101, scale=2, seed=1)[0][0], 0
    for position in range(101):
        wrong = x.clone()
        wrong[position] = -1.0 - CHARACTERS.index["*" if spelled(x)[position] != "*" else "n"]
        try:
            TASK.target(wrong)
        except UsageError as error:
            assert re.match(r"position \d+ of the prompt is ", str(error))
            refused += 1
        else:
            assert spelled(x)[position] in "0123456789_" and TASK.decode(wrong) != TASK.decode(x)
    assert refused > 80


def test_what_is_no_prompt_of_a_layout_is_refused():
    with pytest.raises(UsageError, match=r"must be a tensor of floats, \(\.\.\., 23\)"):
        elements_of(torch.zeros(23, dtype=torch.int64))
    for n, position, value in ((101, 0, -200.0), (23, 4, torch.inf), (101, 9, -torch.inf), (23, 2, torch.nan), (23, 1, -1.5)):
        wrong = TASK.sample(1, n=n)[0][0]
        wrong[position] = value
        sentence = f"^position {position + 1} of the prompt is {value:g}, which is no word and no finite number\\.$"
        with pytest.raises(UsageError, match=sentence):
            TASK.target(wrong)
    elements = TASK.sample(1)[0][0]
    elements[4] = torch.inf
    for layout in LAYOUTS.values():
        with pytest.raises(UsageError, match=r"^position 5 of the prompt is inf, which is no word and no finite number"):
            layout.lay_out(elements)
    with pytest.raises(UsageError, match="layout is 'letters'"):
        TASK.encode("[]", "letters")
    with pytest.raises(UsageError, match="n is 50; a prompt of mixed-multitask has 23 positions in the layout elements, "):
        TASK.sample(1, n=50)
    with pytest.raises(UsageError, match="layout is 'characters'; sort has no prompts"):
        network_for("sort", layout="characters")
    has = "a prompt has 23 positions in the layout elements, 23 in elements-shared and 101 in characters"
    for layout, n in (("characters", 23), ("elements", 101), ("elements-shared", 8)):
        sentence = rf"^n is {n}; {has}; this network is for {layout}, and --layout \(layout=\) gives another\.$"
        with pytest.raises(UsageError, match=sentence):
            network_for("mixed-min", layout=layout, n=n)


@pytest.mark.parametrize(
    ("kept", "listed", "asked"),
    [
        (slice(10), "10 elements", 0),
        (slice(18), "18 elements", 0),
        (slice(17, None), "1 element", 5),
        (slice(21), "18 elements", 3),
    ],
)
def test_a_prompt_that_is_not_whole_is_told_what_it_lacks(kept, listed, asked):
    told = rf"^the prompt has {listed} of the list and {asked} of the query; it must have 18 \(.*\) and 5 \(.*\), or 101 char"
    x, _ = TASK.sample(2, seed=3)
    for read in (TASK.target, TASK.decode):
        with pytest.raises(UsageError, match=told):
            read(x[:, kept])


@pytest.mark.parametrize("name", LAYOUTS)
def test_networks_of_every_layout_train_save_and_answer(name, tmp_path):
    config = network_for("mixed-min", layout=name, layers=1, embed=8, width=8)
    settings = {"samples": 60, "epochs": 2, "batch": 30, "members": 2, "device": "cpu"}
    run = posattn.train("mixed-min", config, **settings, out=tmp_path / "run")
    again = posattn.load(tmp_path / "run")
    text = posattn.task("mixed-min").decode(posattn.task("mixed-min").sample(1, seed=9)[0][0])
    x = posattn.task("mixed-min").encode(text, name)
    assert torch.equal(run.predict(x), again.predict(x)) and run.predict(x).shape == (2, 1)
    assert f"model  {run.predict(x)[1].item():.4f}" in posattn.runs.answer_tokens(again, 1, text)
    assert not torch.equal(*run.predict(x))
    x[-1] = -300.0
    with pytest.raises(UsageError, match="of the prompt is -300, which is no word"):
        run.answer(x)


def test_a_plain_configuration_reads_what_its_positions_say():
    model = posattn.train("mixed-min", posattn.ModelConfig(101, layers=1, embed=4, width=4), samples=8, epochs=1, batch=8)
    assert model.config.tokens == "characters"


def test_a_run_is_gone_on_with_in_its_own_layout():
    begin = network_for("mixed-min", layout="characters")
    assert network_for("mixed-min", begin, layout="characters") == begin == network_for("mixed-min", begin)
    refused = "^layout is 'elements'; the run to begin with reads the tokens 'characters', and keeps them.$"
    with pytest.raises(UsageError, match=refused):
        network_for("mixed-min", begin, layout="elements")


def test_networks_of_every_layout_answer_prompts_of_every_layout():
    prompts = [TASK.sample(3, n=n, seed=1)[0] for n in (23, 101)]
    for name in LAYOUTS:
        network = network_for("mixed-min", layout=name, layers=1, embed=8, width=8)
        run = posattn.train("mixed-min", network, samples=20, epochs=1, batch=10, device="cpu")
        answers = [run.predict(x) for x in prompts]
        assert torch.equal(*answers) and answers[0].std() > 0
        assert torch.equal(answers[0][0], run.model()(prompts[network.n == 101]).detach())
