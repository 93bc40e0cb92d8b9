"""The table network for prompts: exact weights exist, words of a kind are alike to it, it scales with numbers, it trains."""

from itertools import product
from pathlib import Path

import onnxruntime
import pytest
import torch

import posattn
from posattn.errors import UsageError
from posattn.experiments.yardsticks import ignoring_query
from posattn.export import TOLERANCE, to_onnx
from posattn.looped import PromptTableConfig, TableConfig
from posattn.tokens.vocabulary import IDENTIFIERS, TYPES, VOCABULARIES, word_code, word_index
from posattn.training import network_for
from posattn.training.suitability import suited

TASKS = ("mixed-min", "mixed-max", "mixed-sum", "mixed-multitask")
STORED = sorted(path.parent for path in Path(posattn.__file__).parents[1].glob("results/mixed-scan/*/run.json"))


def exact():
    """Weights that answer every prompt: attention to i - s, gates by kind, the later mark stays, and min, max and sum."""
    model = PromptTableConfig(23, width=3).build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.logits[1] = 10  # of the offset -1
        model.gates.copy_(
            torch.tensor(
                [
                    [-9, 9, -9, -9, -9, -9],  # plain categories are carried
                    [-9, -9, -9, 9, 9, 9],  # so are operations
                    [9, -9, -9, -9, -9, -9],  # numbers write
                    [-9, 9, -9, -9, -9, -9],  # plain categories read
                ]
            )
        )
        model.join[0].weight[0, 0], model.join[2].weight[0, 0], model.join[2].bias[0] = 1, -18, 9  # takes if not marked
        model.pair.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]))  # f, f', relu(f - f')
        model.operation.copy_(torch.tensor([[1.0, 0, -1], [0, 1, 1], [1, 1, 0]]))
    return model


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("scale", "domain"), [(1, "id"), (1, "ood"), (10, "ood"), (1e5, "id")])
def test_some_weights_are_exact(name, scale, domain):
    x, y = posattn.task(name).sample(50, scale=scale, domain=domain)
    torch.testing.assert_close(exact()(x), y)


def test_any_order_of_categories_and_of_the_query():
    prompt = (
        "['Cat14', 3.45, 'Cat5', 'Cat+14', 1.23, 'Cat7', 0.65, 'Cat8', 2.23, 'Cat11', 'Cat-8', 4.10, 'Cat13', 1.10, "
        "'Cat2', 0.10, 'Cat20', 2.75, 'Find sum of Cat20, Cat2, Cat14 and Cat5']"
    )
    x = posattn.task("mixed-sum").encode(prompt)
    torch.testing.assert_close(exact()(x), torch.tensor([2.75 + 0.10 + 3.45 + 1.23]))


def random_network():
    torch.manual_seed(3)
    model = PromptTableConfig(23).build().double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) / 10)
    return model


def by_loops(model, x):
    """The answer to one prompt by the formulas of the module, position by position, with rows called by identifiers."""
    words = [None if v >= 0 else VOCABULARIES["prompts"].words[int(-1 - v)].replace(" ", "") for v in x.tolist()]
    kinds = [0 if w is None else 2 - w[3].isdigit() if w.startswith("Cat") else 3 + TYPES.index(w) for w in words]
    names = [w.strip("Cat+-_*") if w and w.startswith("Cat") else None for w in words]
    carries, operates, writes, reads = (torch.sigmoid(20 * model.gates[:, kinds])).unbind()
    weights = (model.config.sharpness * model.logits).softmax(dim=0)
    positions, strides = range(len(x)), (1, 2, 4, 8, 16)

    def places(i, stride):
        return [(weights[c], i - c * stride) for c in range(4)]

    def hear(of, i, stride):
        return sum((a * of[j] for a, j in places(i, stride) if j >= 0), torch.zeros(()).double())

    def scan(mark, value):
        for stride in strides:
            heard = [(hear(mark, i, stride), hear(value, i, stride)) for i in positions]
            shares = [torch.sigmoid(20 * model.join(torch.stack([mark[i], heard[i][0]]))[0]) for i in positions]
            shares = [g * (1 - sum(a for a, j in places(i, stride) if j < 0)) for i, g in enumerate(shares)]
            mark = [(1 - g) * own + g * other for g, own, (other, _) in zip(shares, mark, heard, strict=True)]
            value = [(1 - g) * own + g * other for g, own, (_, other) in zip(shares, value, heard, strict=True)]
        return mark, value

    r, f = [torch.zeros(()).double() for _ in positions], [torch.zeros(()).double() for _ in positions]
    for name in set(names) - {None}:
        owner = scan(carries, [carries[i] * (names[i] == name) for i in positions])[1]
        row = [writes[i] * owner[i] for i in positions]
        found = scan(row, [row[i] * x[i].clamp(min=0) for i in positions])
        for i in positions:
            if names[i] == name:
                r[i], f[i] = (reads[i] * table[i] for table in found)
    asked = [scan(operates, [operates[i] * (kinds[i] == 3 + q) for i in positions])[1] for q in range(3)]
    for stride in strides:
        heard = [(hear(r, i, stride), hear(f, i, stride)) for i in positions]
        for i, (other_r, other_f) in enumerate(heard):
            out = sum(asked[q][i] * model.operation[q] for q in range(3))
            both = out @ (model.pair.weight @ torch.stack([f[i], other_f])).relu()
            f[i] = (1 - other_r) * f[i] + (1 - r[i]) * other_f + r[i] * other_r * both
            r[i] = r[i] + other_r - r[i] * other_r
    return f[-1]


@torch.no_grad()
def test_it_computes_what_it_says():
    model, x = random_network(), posattn.task("mixed-multitask").sample(3)[0].double()
    torch.testing.assert_close(model(x)[:, 0], torch.stack([by_loops(model, own) for own in x]))


def test_identifiers_and_signs_are_alike_to_it():
    """Whatever the weights are: other names for the eight categories and other signs change no answer."""
    model, x = random_network(), posattn.task("mixed-sum").sample(20)[0].double()
    word = word_index(x)
    sign, identifier = word // len(IDENTIFIERS), word % len(IDENTIFIERS)
    category = (x < 0) & (sign < 5)
    other = torch.randperm(40, generator=torch.Generator().manual_seed(1))[identifier]
    renamed = torch.where(category, word_code(sign.where(sign == 0, 5 - sign) * 40 + other).double(), x)
    assert not torch.equal(renamed, x) and torch.equal(model(renamed), model(x))
    plain = torch.where(category & (sign > 0), word_code(identifier).double(), x)  # without signs it is another prompt
    assert not torch.allclose(model(plain), model(x))


def test_rows_that_no_identifier_has_change_nothing():
    """So a table with a row for each of the forty identifiers would answer the same."""
    model, x = random_network(), posattn.task("mixed-sum").sample(20)[0].double()
    larger = PromptTableConfig(23, rows=len(IDENTIFIERS)).build().double()
    larger.load_state_dict(model.state_dict())
    torch.testing.assert_close(larger(x), model(x))


def test_answers_scale_with_the_numbers():
    model, x = random_network(), posattn.task("mixed-max").sample(20)[0].double()
    torch.testing.assert_close(model(torch.where(x < 0, x, 1e4 * x)), 1e4 * model(x))


def test_members_computed_together_answer_as_alone(monkeypatch):
    models, task = [PromptTableConfig(23).build() for _ in range(2)], posattn.task("mixed-min")
    x = torch.stack([task.sample(6, seed=seed)[0] for seed in range(2)])
    alone = torch.stack([model(own) for model, own in zip(models, x, strict=True)])
    weights, _ = torch.func.stack_module_state(models)
    monkeypatch.setattr(type(models[0]), "_check", lambda self, *_: None)  # as on a GPU
    found = torch.func.vmap(lambda own, own_x: torch.func.functional_call(models[0], own, (own_x,)))(weights, x)
    torch.testing.assert_close(found, alone)


def test_no_prompts_have_no_answers():
    assert PromptTableConfig(23).build()(posattn.task("mixed-min").sample(1)[0][:0]).shape == (0, 1)


def test_an_exported_file_answers_every_prompt(tmp_path, unchecked):
    """Also identifiers, signs and batches that the file was not traced with; and the network answers as before."""
    model, path = exact(), tmp_path / "mixed.onnx"
    assert to_onnx(model, path) <= TOLERANCE
    session = onnxruntime.InferenceSession(str(path))
    for name, (count, scale) in product(TASKS[:3], ((1, 1), (13, 10))):
        x, y = posattn.task(name).sample(count, scale=scale, seed=5)
        torch.testing.assert_close(torch.from_numpy(session.run(["answers"], {"prompts": x.numpy()})[0]), y)
        torch.testing.assert_close(model(x), y)


def test_it_trains_saves_and_loads(tmp_path):
    settings = {"samples": 40, "epochs": 2, "batch": 20, "members": 2, "device": "cpu"}
    run = posattn.train("mixed-min", posattn.ModelConfig(n=23, arch="table", width=4), **settings, out=tmp_path / "run")
    again = posattn.load(tmp_path / "run")
    x = posattn.task("mixed-min").sample(3)[0]
    assert run.config == PromptTableConfig(23, width=4) and run.spec.recipe.name == "prompt-table"
    assert torch.equal(run.predict(x), again.predict(x)) and again.predict(x).shape == (2, 3, 1)
    with pytest.raises(UsageError, match="the table network is no Transformer of posattn"):
        posattn.network.require(run.config, "graph")


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_networks_read_the_query(folder):
    """Each on prompts of its own task: with identifiers and signs of training and with others, at scales 1 and 10."""
    run = posattn.load(folder)
    for member, (scale, domain) in product(range(len(run)), ((1, "id"), (1, "ood"), (10, "ood"))):
        x, y = run.task_of(member).sample(500, scale=scale, domain=domain, seed=77)
        error, ignoring = ((said - y).square().mean() for said in (run.model(member)(x), ignoring_query(x)))
        assert error < ignoring / 100, (run.members[member], scale, domain)


def test_commands_and_python_make_the_same_network():
    made = network_for("mixed-sum", arch="table")
    assert made == PromptTableConfig(23) == network_for("mixed-sum", arch="table", layout="elements")
    assert made == network_for("mixed-sum", begin=made, layout="elements")
    assert made == suited(posattn.ModelConfig(23, arch="table"), "mixed-sum")
    assert network_for("mixed-sum", arch="table", rows=12, width=5) == PromptTableConfig(23, rows=12, width=5)
    assert network_for("khop", arch="table") == TableConfig(30)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PromptTableConfig(0), "n is 0; it must be a whole number of at least 1."),
        (lambda: PromptTableConfig(23, rows=0), "rows is 0; it must be a whole number of at least 1."),
        (lambda: PromptTableConfig(23, words=2), "words is 2, a field of TableConfig"),
        (lambda: PromptTableConfig(23, arch="looped"), "arch is 'looped'"),
        (lambda: PromptTableConfig(23, width=10**14).build(), "the weights of a network for PromptTableConfig"),
        (lambda: network_for("mixed-min", arch="table", n=20), "n is 20; a prompt has 23 positions in the layout elements"),
        (lambda: network_for("mixed-min", arch="table", layout="characters"), "layout is 'characters'; table networks read"),
        (lambda: network_for("mixed-min", arch="table", layers=2), "layers is 2, a field of CompiledConfig, GraphConfig, Mo"),
        (lambda: network_for("mixed-min", arch="table", fixed=True), "fixed is True, a field of TableConfig; PromptTableCo"),
        (lambda: suited(TableConfig(23, fixed=True), "mixed-min"), "fixed is True, a field of TableConfig; PromptTableCo"),
        (lambda: suited(TableConfig(23, words=7), "mixed-min"), "words is 7, a field of TableConfig; PromptTableConfig has"),
        (
            lambda: network_for("mixed-min", begin=PromptTableConfig(23), layout="characters"),
            "layout is 'characters'; the run to begin with reads the tokens 'prompts'",
        ),
        (lambda: PromptTableConfig(23).build()(torch.tensor([[1, 2]])), "the input is of torch.int64"),
        (lambda: PromptTableConfig(23).build()(torch.zeros(2, 0)), "the sequence has 0 tokens; this model takes 1 to 23."),
        (
            lambda: PromptTableConfig(23).build()(posattn.task("mixed-min").sample(2, n=101)[0]),
            "the sequence has 101 tokens; this model takes 1 to 23.",
        ),
        (
            lambda: PromptTableConfig(23, rows=7).build()(posattn.task("mixed-min").sample(2)[0]),
            "a prompt has 8 different identifiers; this network takes 7.",
        ),
        (lambda: PromptTableConfig(23).build()(torch.tensor([3.0, -204.0])), "a prompt has a word that is not there; the vo"),
    ],
)
def test_bad_input_is_one_sentence(unchecked, make, sentence):
    with pytest.raises(UsageError) as error:
        make()
    assert str(error.value).startswith(sentence)
