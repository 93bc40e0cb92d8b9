"""Prompts of mixed type: the sampler's law, answers equal to brute force on the text, and a strict reader."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posattn
from posattn.errors import UsageError
from posattn.tasks.prompts import number_in, parse, write

TASKS = {name: posattn.task(f"mixed-{name}") for name in ("min", "max", "sum", "multitask")}
# The two examples of Section 7.3.
TRAINING = (
    "['Cat2', 3.45, 'Cat+7', 'Cat5', 1.23, 'Cat7', 0.65, 'Cat8', 2.23, 'Cat11', 'Cat-8', 4.10, 'Cat13', 1.10, 'Cat14', 0.10, "
    "'Cat20', 2.75, 'Find min of Cat5, Cat8, Cat11 and Cat20']"
)
TEST = (
    "['Cat23', 7.28, 'Cat24', 33.5, 'Cat28', 9.17, 'Cat30', 55.90, 'Cat31', 'Cat*24', 23.70, 'Cat33', 12.47, 'Cat34', 8.45, "
    "'Cat_40', 'Cat40', 1.50, 'Find min of Cat28, Cat31, Cat33 and Cat40']"
)


def oracle(prompt: str) -> float:
    """The answer, read off the text."""
    *listed, query = re.findall(r"'[^']*'|\d+\.?\d*(?=[,\]])", prompt)
    values, name = {}, None
    for element in listed:
        if element.startswith("'"):
            name = element[1:-1] if re.fullmatch(r"'Cat\d+'", element) else name
        else:
            values[name] = float(element)
    kind = re.search(r"Find (\w+) of", query).group(1)
    return {"min": min, "max": max, "sum": sum}[kind](values[asked] for asked in re.findall(r"Cat\d+", query))


def test_the_papers_examples():
    task = TASKS["min"]
    assert task.target(task.encode(TRAINING)).item() == pytest.approx(1.23)
    assert task.target(task.encode(TEST)).item() == pytest.approx(1.50)
    assert task.decode(task.encode(TRAINING)) == TRAINING
    assert task.decode(task.encode(TEST)) == TEST.replace("33.5,", "33.50,")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("scale", [1, 10])
def test_answers_are_those_of_the_text(name, scale):
    x, y = TASKS[name].sample(200, scale=scale, seed=3)
    assert x.shape == (200, 23) and y.shape == (200, 1)
    texts = TASKS[name].decode(x)
    for prompt, answer in zip(texts, y[:, 0].tolist(), strict=True):
        assert answer == pytest.approx(oracle(prompt), rel=1e-6)
    assert torch.equal(torch.stack([TASKS[name].encode(prompt) for prompt in texts]), x)


@pytest.mark.parametrize(
    ("scale", "domain", "identifiers", "signs", "limit"),
    [
        (1, None, (1, 20), "+-", 5),
        (2, None, (21, 40), "_*", 10),
        (10, None, (21, 40), "_*", 50),
        (1, "ood", (21, 40), "_*", 5),  # words alone are shifted
        (10, "id", (1, 20), "+-", 50),  # the scale alone is
    ],
)
def test_the_law_of_prompts(scale, domain, identifiers, signs, limit):
    x, _ = TASKS["min"].sample(3000, scale=scale, seed=1, domain=domain)
    values = x[x >= 0].view(3000, 8)
    assert torch.equal((100 * values.double()).round(), torch.round(100 * values.double(), decimals=3))
    assert values.max() <= limit and values.max() > 0.97 * limit
    if scale > 1:  # the upper bound is outside the training range; hence some value nearly always is
        assert (values.amax(dim=1) > 5).float().mean() > 0.8
    texts = TASKS["min"].decode(x)
    plain = [[int(found) for found in re.findall(r"'Cat(\d+)'", text)] for text in texts]
    noise = [re.findall(r"'Cat([^\d'])(\d+)'", text) for text in texts]
    asked = [[int(found) for found in re.findall(r"Cat(\d+)", text.split("Find")[1])] for text in texts]
    assert all(len(row) == 8 and row == sorted(set(row)) for row in plain)
    assert all(
        len(row) == 4 and row == sorted(set(row)) and set(row) <= set(own)
        for row, own in zip(asked, plain, strict=True)
    )
    assert {found for row in plain for found in row} == set(range(identifiers[0], identifiers[1] + 1))
    assert all(
        len(row) == 2 and {int(number) for _, number in row} <= set(own) for row, own in zip(noise, plain, strict=True)
    )
    assert {sign for row in noise for sign, _ in row} == set(signs)
    counts = torch.bincount(torch.tensor(plain).flatten(), minlength=41)[identifiers[0] : identifiers[1] + 1]
    assert (counts / 3000 - 8 / 20).abs().max() < 0.04
    words = x < 0
    irrelevant = words[:, :18] & (-1 - x[:, :18] >= 40)
    assert (irrelevant.float().mean(dim=0) - 2 / 18).abs().max() < 0.03  # every place is as likely


def test_the_rejection_step_by_rejection():
    """The largest value of a prompt, against bounds drawn and rejected in a loop."""
    c, generator = 3.0, torch.Generator().manual_seed(0)
    bounds = 5 * c * torch.rand(60_000, 2, generator=generator)
    bounds = bounds[bounds.amax(dim=1) > 5].sort(dim=1).values
    low, high = bounds[:, :1], bounds[:, 1:]
    expected = (low + (high - low) * torch.rand(len(bounds), 8, generator=generator)).flatten()
    x, _ = TASKS["max"].sample(40_000, scale=c, seed=2)
    found = x[x >= 0]
    at = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    torch.testing.assert_close(found[:100_000].quantile(at), expected[:100_000].quantile(at), rtol=0.03, atol=0.03)


def test_a_domain_that_the_scale_has_anyway_changes_no_prompt():
    for scale, domain in ((1, "id"), (0.5, "id"), (3, "ood")):
        own, said = (TASKS["sum"].sample(20, scale=scale, seed=5, domain=given)[0] for given in (None, domain))
        assert torch.equal(own, said)


def test_multitask_asks_for_min_and_max_equally_often():
    texts = TASKS["multitask"].decode(TASKS["multitask"].sample(1000, seed=4)[0])
    assert sum("Find min" in text for text in texts) + sum("Find max" in text for text in texts) == 1000
    assert abs(sum("Find min" in text for text in texts) - 500) < 60


def test_tasks_differ_in_the_query_alone_and_prompts_in_seed_and_index():
    few, many = TASKS["min"].sample(5, seed=2)[0], TASKS["sum"].sample(50, seed=[9, 2])[0][1]
    assert torch.equal(few[:, :18], many[:5, :18]) and torch.equal(few[:, 19:], many[:5, 19:])
    assert not (few[:, 18] == many[:5, 18]).any()
    assert not torch.equal(few, TASKS["min"].sample(5, seed=2, split="test")[0])
    far = TASKS["min"].decode(TASKS["min"].sample(5, domain="ood")[0])
    assert all(int(found) > 20 for text in far for found in re.findall(r"'Cat(\d+)'", text))


@given(st.permutations(range(1, 41)), st.lists(st.integers(0, 5000), min_size=8, max_size=8), st.data())
def test_any_prompt_of_the_definition_reads_back(numbers, hundredths, data):
    """Categories in any order, irrelevant elements anywhere."""
    own = numbers[:8]
    elements = [
        part for number, value in zip(own, hundredths, strict=True) for part in (f"'Cat{number}'", f"{value / 100:.2f}")
    ]
    for _ in range(2):
        sign = data.draw(st.sampled_from("+-_*"))
        noise = f"'Cat{sign}{data.draw(st.sampled_from(own))}'"
        elements.insert(data.draw(st.integers(0, len(elements))), noise)
    kind, asked = data.draw(st.sampled_from(["min", "max", "sum"])), data.draw(st.permutations(own))[:4]
    prompt = f"[{', '.join(elements)}, 'Find {kind} of {', '.join(f'Cat{k}' for k in asked[:3])} and Cat{asked[3]}']"
    x = parse(prompt)
    assert write(x) == prompt
    assert TASKS["sum"].target(x).item() == pytest.approx(oracle(prompt), rel=1e-6, abs=1e-6)


QUERY = "'Find min of Cat5, Cat8, Cat11 and Cat20'"
# What is changed in the training prompt, what the sentence names, and what it asks for.
LIST = "it must be a list of texts in single quotes and numbers, such as ['Cat2', 3.45, ...]."
MISTAKES = [
    ("3.45", "three", "three, '", LIST),
    ("3.45", "-3.45", "-3.45, '", LIST),
    ("3.45,", "3.45", "'Cat+7',", LIST),
    ("Cat20']", "Cat20'] yes", "yes", LIST),
    ("'Cat2'", "'Dog2'", "'Dog2'", "it must be a category such as 'Cat5', or irrelevant structure such as 'Cat+7', "),
    ("'Cat2'", "'Cat41'", "'Cat41'", "identifiers must be 1 to 40."),
    ("'Cat2'", "'Cat02'", "'Cat02'", "it must be a category such as 'Cat5'"),
    ("'Cat2', 3.45", "3.45, 'Cat2'", "3.45", "there must be a category before it whose value it is."),
    ("'Cat5', 1.23", "'Cat5'", "'Cat7'", "the value of 'Cat5' must come before it."),
    ("'Cat20', 2.75", "'Cat20'", "'Cat20'", "its value must come after it."),
    ("'Cat13', 1.10", "'Cat14', 1.10", "'Cat14', 0.10", "no category may come twice."),
    ("3.45", "9" * 60, "9" * 60, "it must be a number that float32 can hold."),
    ("'Cat+7'", "'Cat+9'", "'Cat+9'", "its identifier must be that of a category in the list."),
    ("Find min", "find min", QUERY.replace("F", "f"), "the last must be a query such as 'Find min of Cat5, Cat8, "),
    (f", {QUERY}", "", "2.75", "the last must be a query such as"),
    (
        ", Cat11 and",
        " and",
        QUERY.replace(", Cat11", ""),
        f"the last must be a query such as {QUERY}, of min, max or sum and of 4 categories.",
    ),
    ("of Cat5,", "of Cat8,", QUERY.replace("Cat5", "Cat8"), "it must not ask for Cat8 twice."),
    ("of Cat5,", "of Cat6,", QUERY.replace("Cat5", "Cat6"), "Cat6 must be among the categories of the list."),
]


@pytest.mark.parametrize(("right", "wrong", "named", "wanted"), MISTAKES)
def test_a_malformed_prompt_is_one_sentence_with_its_place(right, wrong, named, wanted):
    prompt = TRAINING.replace(right, wrong, 1)
    assert prompt != TRAINING
    with pytest.raises(UsageError) as error:
        TASKS["min"].encode(prompt)
    said = str(error.value)
    place = prompt.index(named) + 1
    if said.startswith("element"):
        number = prompt[:place].count(", ") + 1  # no comma stands within an element before the query
        assert said.startswith(
            f"element {number} of the prompt (character {place}) is {named.split(', 0')[0]}; {wanted}"
        )
    else:
        assert said == f"the prompt has {named!r} at character {place}; {wanted}"
    assert said.endswith(".") and said.count(". ") == 0


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        ("['Cat2'", "'Cat2'", f"the prompt has \"'Cat2', \" at character 1; {LIST}"),
        ("Cat20']", "Cat20'", f"the prompt has nothing at character 177; {LIST}"),
        ("'Cat13', 1.10, ", "", "the prompt has 7 categories with a value; it must have 8."),
        ("'Cat+7', ", "", "the prompt has 1 irrelevant elements such as 'Cat+7'; it must have 2."),
        ("Find min", "Find sum", "the prompt's query asks for 'sum'; the task mixed-min answers min."),
    ],
)
def test_a_prompt_that_lacks_something_is_one_sentence(right, wrong, sentence):
    with pytest.raises(UsageError) as error:
        TASKS["min"].encode(TRAINING.replace(right, wrong, 1))
    assert str(error.value) == sentence


@pytest.mark.parametrize("text", ["", "[", "[]", "['Cat1']", "[1.0]", "['Cat2", TRAINING[:-9], TRAINING * 2, "[" * 50])
def test_whatever_is_not_a_prompt_is_refused(text):
    with pytest.raises(UsageError):
        TASKS["min"].encode(text)


@pytest.mark.parametrize("changes", [{"n": 8}, {"scale": -1}, {"domain": "x"}, {"split": None}, {"integers": True}])
def test_bad_settings_are_refused(changes):
    with pytest.raises(UsageError):
        TASKS["min"].sample(5, **changes)


def test_the_first_number_of_a_text():
    assert number_in(" 012.34 and 5") == 12.34 and number_in("7") == 7
    assert number_in("none") != number_in("none")
