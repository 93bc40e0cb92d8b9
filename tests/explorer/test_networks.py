"""Networks in the page, in Chromium, against PyTorch: every architecture, and everything that the package's page carries.

The reference is PyTorch in float64, on the same weights: an answer y may be off by 1e-6 + 1e-4 |y|, each number by itself. In
float32 PyTorch misses that itself (self-attention far from the training range magnifies the last digits), so it cannot judge.
"""

import numpy as np
import pytest
import torch

from posattn import ARCHITECTURES, ModelConfig, Transformer, UsageError, compile, pretrained, task
from posattn.compiler import PROGRAMS, compile_program
from posattn.compiler.looped_programs import LOOPED_PROGRAMS
from posattn.explorer.content import STEPPED, Content
from posattn.explorer.networks import pack
from posattn.looped import FAMILIES
from posattn.pretrained import COMPARED
from posattn.tasks import FIVE_TASKS
from posattn.tasks.sampling import sample_lists

pytestmark = pytest.mark.xdist_group("chromium")
SCALES = range(1, 11)


@pytest.fixture(scope="module")
def package_page(visit, package):
    return visit(package)


def in_page(page, number, lists):
    return np.array(page.evaluate("([number, lists]) => posattn.answers(number, lists)", [number, lists]))


def agree(found, right):
    """The promise, and what is true: the page computes the same in another order, so far less than allowed may be lost."""
    assert np.isfinite(right).all()
    assert (np.abs(found - right) <= 1e-6 + 1e-4 * np.abs(right)).all()
    assert np.abs(found - right).max() <= 1e-8 * np.abs(right).max()


def lists_of_all_scales(n):
    return torch.cat([sample_lists(20, n, float(scale), seed=71, split="test") for scale in SCALES]).double()


def number_of(content, task, label):
    (subject,) = (subject for subject in content.subjects if subject["task"] == task)
    (model,) = (model for model in subject["models"] if model["label"] == label)
    return model["choices"][0]["network"]


@pytest.mark.parametrize("arch", COMPARED)
@pytest.mark.parametrize("name", FIVE_TASKS)
def test_pretrained_networks_at_all_scales(package_page, package, name, arch):
    x = lists_of_all_scales(8)
    found = in_page(package_page, number_of(package, name, arch), x.tolist())
    with torch.no_grad():
        agree(found, pretrained(name, arch).double()(x).numpy())


@pytest.mark.parametrize("name", STEPPED)
def test_programs_and_their_direct_answers(package_page, package, name):
    """The network in the page, and what the page says the answer should be, against the library's direct answers."""
    (program,) = (program for program in package.programs if program["name"] == name)
    # The networks of many rounds take a while in the page.
    count = 200 if program["machines"] == 8 else 40
    x = PROGRAMS[name].sample(np.random.default_rng(5), count, program["machines"], 20.0)  # scale 10 is up to 20
    right, lists = PROGRAMS[name].answers(x).reshape(count, -1), x.reshape(count, -1).tolist()
    found = in_page(package_page, program["network"], lists)
    said = package_page.evaluate("([name, lists]) => lists.map((x) => posattn.programTruth(name, x))", [name, lists])
    if name in ("self-attention", "mixed"):  # fitted functions; and the page knows the answers to its examples alone
        agree(found, compile_program(name, STEPPED[name]).run(x).reshape(count, -1))
        assert said == [None] * count
        right, said = PROGRAMS[name].answers(np.array(program["examples"])), program["answers"]
    else:
        agree(found, right)
    np.testing.assert_allclose(np.array(said, dtype=float), right, rtol=1e-12, atol=1e-12)


def test_true_answers_of_tasks(package_page):
    x = lists_of_all_scales(7)[::2]
    for name in [*FIVE_TASKS, "sum-total", "min-total", "median-total", "maxsub-total"]:
        said = package_page.evaluate("([name, lists]) => lists.map((x) => posattn.truth(name, x))", [name, x.tolist()])
        np.testing.assert_allclose(said, task(name).target(x).numpy(), rtol=1e-12, atol=1e-12)
    assert package_page.evaluate("posattn.truth('constructor', [1, 2])") is None


SHAPES = {"n": 6, "layers": 3, "heads": 3, "embed": 15, "width": 11, "d_k": 7}
VARIANTS = {
    **{arch: {"arch": arch} for arch in ARCHITECTURES if arch not in ("looped", "randomized")},
    "causal": {"causal": True},
    "causal standard": {"arch": "standard", "causal": True},
    "binary": {"encoding": "binary", "arch": "misaligned"},
    "sinusoidal": {"encoding": "sinusoidal", "arch": "input-regularized"},
    "standard without biases": {"arch": "standard", "bias": False},
}
LOOPED = {"n": 8, "heads": 3, "embed": 5, "width": 7}
EVERY_LENGTH = {
    **{
        f"{family}, {'stay' if stay else 'blank'}": {"arch": "looped", "family": family, "stay": stay, "sharpness": 2.0}
        for family in FAMILIES
        for stay in (True, False)
    },
    "deeper": {"arch": "looped", "mlp": ((6, 4),), "d_v": 2},
    "looped rotary": {"arch": "rope-only", "looped": True, "causal": True, "embed": 12},
    "two layers, ALiBi": {"arch": "alibi", "layers": 2, "embed": 6},
    "no encodings": {"arch": "no-encoding", "any_length": True, "causal": True, "embed": 6},
}


MAPS = """([number, x]) => posattn.run(number, x).then(
    ({ maps }) => maps.map((layer) => layer.map((map) => Array.from(map))))"""


def page_of(visit, models):
    """A page of these networks, numbered in their order."""
    content = Content()
    for model in models:
        content.add(model)
    return visit(content)


def agree_on_lists(page, number, model, length, count, with_maps=True):
    """Answers to lists of a length, and the attention of the first of them."""
    x = sample_lists(count, length, 3.0, seed=3).double()
    with torch.no_grad():
        agree(in_page(page, number, x.tolist()), model(x).numpy())
        if with_maps:
            maps = model.attention(x[0]).numpy()
            found = page.evaluate(MAPS, [number, x[0].tolist()])
            np.testing.assert_allclose(np.array(found).reshape(maps.shape), maps, atol=1e-9)


def test_every_architecture_and_length(visit, lively):
    """Networks with lively weights, on full and shorter lists."""
    models = [lively(**SHAPES | fields) for fields in VARIANTS.values()]
    page = page_of(visit, models)
    for number, model in enumerate(models):
        for length in (6, 4, 1):
            agree_on_lists(page, number, model, length, count=20)


def test_networks_of_every_length(visit, lively):
    """Each family of offsets, staying or not, and others without a scratchpad, far beyond n."""
    models = [lively(**LOOPED | fields) for fields in EVERY_LENGTH.values()]
    page = page_of(visit, models)
    for number, model in enumerate(models):
        for length in (1, 2, 5, 13, 64):
            agree_on_lists(page, number, model, length, count=5, with_maps=1 < length < 64)
    assert page.evaluate(MAPS, [0, [1.0]]) == []  # a scan of one number has no loop
    with pytest.raises(Exception, match="the list is empty"):
        page.evaluate("posattn.answers(0, [[]])")


@pytest.mark.parametrize("name", LOOPED_PROGRAMS)
def test_looped_programs_are_exact_at_every_length(package_page, package, name):
    number = number_of(package, name, "looped, compiled")
    for length in (1, 3, 8, 33, 64):
        x = sample_lists(20, length, 10.0, seed=2).double()
        np.testing.assert_allclose(in_page(package_page, number, x.tolist()), task(name).target(x).numpy(), atol=1e-11)


@pytest.mark.parametrize("settings", [{}, {"route": "theorem"}, {"epsilon": 1e-3}], ids=str)
def test_compiled_with_softmax_and_as_proved(visit, settings):
    model = compile("median", machines=5, **settings)
    content = Content()
    number = content.add(model)
    x = sample_lists(30, 5, 10.0, seed=1).double()
    agree(in_page(visit(content), number, x.tolist()), model(x).numpy())


def test_the_page_refuses_what_pytorch_refuses(package_page, package):
    number = number_of(package, "sum", "compiled")
    refused = {"takes 8": [1.0] * 7, "from −1,000,000 to 1,000,000": [2e6] * 8, "finite": [float("inf")] * 8}
    for said, x in refused.items():
        with pytest.raises(Exception, match=said):
            package_page.evaluate("([number, x]) => posattn.answers(number, [x])", [number, x])


def test_weights_are_kept_to_the_last_bit(lively):
    """What cannot be said in float32 is kept in float64, so the two texts differ."""
    model = lively(**SHAPES)
    assert pack(model).described["tensors"]["counts"][0] > pack(model.float()).described["tensors"]["counts"][0]


def test_other_networks_are_refused():
    with pytest.raises(UsageError, match="Linear; the explorer shows"):
        pack(torch.nn.Linear(2, 2))
    with pytest.raises(
        UsageError, match=r"^the randomized network has encodings of random places; the explorer shows "
    ):
        pack(Transformer(ModelConfig(n=4, arch="randomized")))
