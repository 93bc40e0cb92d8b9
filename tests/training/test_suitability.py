"""Which network a task is learned by: the same for commands and for Python."""

import pickle
import warnings
from dataclasses import replace

import pytest
import torch

import posattn
from posattn import LoopedConfig, ModelConfig, Recipe, TokenConfig, UsageError
from posattn.network import own_network
from posattn.training.suitability import check_reads, doubt_family, network_for, suited

LITTLE = {"recipe": Recipe(samples=8, epochs=1, batch=8), "variable_length": True, "device": "cpu"}


def test_a_looped_network_is_of_the_family_that_solves_the_task_however_it_is_asked_for():
    by_options = network_for("sort", n=4, arch="looped")
    run = posattn.train("sort", ModelConfig(n=4, arch="looped"), **LITTLE)
    assert by_options == run.spec.model == LoopedConfig(4, family="butterfly")
    assert by_options.recipe == "sorter"
    assert suited(LoopedConfig(4, width=5), "median-total") == LoopedConfig(4, family="selector", width=5)
    assert suited(LoopedConfig(4), "median").family == "dilated"  # which no looped network is known to solve


def test_a_family_that_is_left_to_the_task_stays_so_when_other_fields_are_replaced():
    changed = replace(LoopedConfig(4), width=5)
    assert changed == LoopedConfig(4, width=5) and changed.mlp == ((5, 5),)
    assert suited(changed, "sort") == LoopedConfig(4, width=5, family="butterfly")
    assert suited(pickle.loads(pickle.dumps(changed)), "sort") == suited(changed, "sort")
    wide = replace(LoopedConfig(4, heads=7), embed=9)
    assert suited(wide, "sort") == LoopedConfig(4, heads=7, embed=9, family="butterfly")
    fixed = replace(LoopedConfig(4, family="dilated"), width=5)
    assert suited(fixed, "sort") == fixed and type(fixed.to_dict()["family"]) is str
    assert type(changed.to_dict()["family"]) is str


def test_options_that_a_network_of_ones_own_does_not_have_are_refused_beside_from():
    before = own_network("own-begin", lambda n, width: torch.nn.Linear(n, n))(n=4, width=3)
    assert network_for("sum", before, width=3, n=4) == before
    for field, value, own in (("width", 5, 3), ("n", 8, 4), ("embed", 5, None), ("arch", "standard", "'own-begin'")):
        with pytest.raises(UsageError, match=f"^{field} is {value!r}; that of the run to begin with is {own}.$"):
            network_for("sum", before, **{field: value})


def test_a_family_that_is_given_stays_and_warns():
    given = LoopedConfig(4, family="dilated")
    assert network_for("sort", n=4, arch="looped", family="dilated") == suited(given, "sort") == given
    with pytest.warns(
        UserWarning, match="family is 'dilated'; the looped networks that solve sort are of family 'butterfly'"
    ):
        run = posattn.train("sort", given, **LITTLE)
    assert run.spec.model == given
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posattn.train("sum", ModelConfig(n=4, arch="looped"), **LITTLE)


def test_a_network_that_says_nothing_of_tokens_reads_those_of_the_task():
    assert suited(ModelConfig(6, "standard", layers=2), "khop") == TokenConfig(
        6, "standard", layers=2, tokens="letters", causal=True
    )
    assert network_for("mixed-min").tokens == "prompts" and network_for("sum") == ModelConfig(8)
    assert network_for("khop", arch="standard", tied=True).to_dict().items() >= {"n": 30, "tied": True}.items()


@pytest.mark.parametrize(
    ("config", "task", "sentence"),
    [
        (
            TokenConfig(8, tokens="letters"),
            "sum",
            "the positional network reads the tokens 'letters'; the task sum has lists of numbers.",
        ),
        (
            TokenConfig(30, tokens="prompts"),
            "khop",
            "the positional network reads the tokens 'prompts'; the task khop has sequences, for a TokenConfig with "
            "tokens='letters' and causal=True.",
        ),
        (
            LoopedConfig(23),
            "mixed-min",
            "the looped network reads numbers; the task mixed-min has sequences, for a TokenConfig with tokens='prompts'.",
        ),
    ],
)
def test_a_network_that_reads_something_else_is_refused(config, task, sentence):
    for ask in (suited, check_reads):
        with pytest.raises(UsageError) as error:
            ask(config, task)
        assert str(error.value) == sentence


def test_what_is_not_given_is_that_of_the_network_to_begin_with(unchecked):
    before = posattn.ModelConfig(8, "standard", embed=16)
    assert network_for("sort", before) == before
    longer = network_for("sort", before, n=16, width=8)
    assert longer == posattn.ModelConfig(16, "standard", layers=before.layers, embed=16, width=8)
    assert network_for("sort", LoopedConfig(4, family="butterfly"), n=8) == LoopedConfig(8, family="butterfly")
    graph = posattn.GraphConfig(4)
    assert network_for("sort", graph, n=4) is graph
    with pytest.raises(UsageError, match=r"^n is 8; that of the run to begin with is 4\.$"):
        network_for("sort", graph, n=8)
    with pytest.raises(UsageError, match=r"^arch is 'positional'; that of the run to begin with is 'standard'\.$"):
        network_for("sort", before, arch="positional")


@pytest.mark.parametrize("arch", ["scale-exact", "looped"])
def test_words_have_no_such_network(arch):
    with pytest.raises(UsageError, match=f"^arch is '{arch}'; mixed-min reads words, "):
        network_for("mixed-min", arch=arch)


def test_a_compiled_program_is_not_trained():
    config = posattn.compile("prefix-sum", 2).config
    with pytest.raises(UsageError, match=r"^config is a CompiledConfig; a compiled program has its weights, "):
        posattn.train("sum", config, **LITTLE)


@pytest.mark.parametrize("name", ["khop", "mixed-min", "sort"])
def test_an_unknown_architecture_is_told_all_that_there_are(name):
    with pytest.raises(UsageError, match=r"^arch is 'tabel' .did you mean table.*it must be one of positional, .*, table"):
        network_for(name, arch="tabel")


def test_a_looped_network_for_a_task_of_ones_own_is_not_doubted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doubt_family(LoopedConfig(4), ["largest"], [4])
    with pytest.warns(UserWarning, match="no looped network is known to solve median"):
        doubt_family(LoopedConfig(4), ["largest", "median"], [4])
