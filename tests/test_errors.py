"""Each check of :mod:`posattn.errors`, and the public functions that must use one: what they do not understand they refuse."""

import math
from functools import partial

import numpy as np
import pytest
import torch

import posattn
from posattn import ModelConfig, PositionalAttention, TokenConfig, UsageError, errors
from posattn.compiler import PCOC, Known, Round, compile_program
from posattn.compiler.compiled_model import CompiledConfig
from posattn.folding import fold, stack_layers
from posattn.guarantees import extremum_model
from posattn.tasks import Task, register, sample_lists, sample_shift
from posattn.theory.discrepancy import chance_of_both_ends, empirical_discrepancy, least_length
from posattn.training import Member, Recipe, RunSpec
from posattn.training.finetune import fine_tune

HUGE = 10**5000  # Python writes no such number


@pytest.mark.parametrize(
    ("check", "value", "told"),
    [
        (errors.whole, 1.9, "x is 1.9; it must be a whole number of at least 1."),
        (errors.whole, True, "x is True; it must be a whole number of at least 1."),
        (errors.whole, -HUGE, "x is a number of 5001 digits; it must be a whole number of at least 1."),
        (errors.whole, 2**63, "x is 9223372036854775808; it must be at most 9.22337e+18."),
        (errors.positive, HUGE, "x is a number of 5001 digits; it must be at most 1e308."),
        (errors.positive, math.nan, "x is nan; it must be a finite number above 0."),
        (errors.share, 1, "x is 1; it must be a number of at least 0 and less than 1."),
        (errors.share, HUGE, "x is a number of 5001 digits; it must be a number of at least 0 and less than 1."),
        (errors.flag, "no", "x is 'no'; it must be True or False."),
        (errors.flag, np.array([1, 2]), "x is array([1, 2]); it must be True or False."),
        (errors.several, 1, "x is 1; it must be a list, such as [1]."),
        (errors.several, b"x", "x is b'x'; it must be a list, such as [b'x']."),
        (errors.function, 3, "x is 3; it must be a function."),
        (errors.path_of, 3, "x is 3; it must be the name of a file or folder."),
        (errors.path_of, "a\0b", "x is 'a\\x00b'; it must be the name of a file or folder."),
        (partial(errors.choice, accepted=["a"]), torch.zeros(2, 2), "x is tensor([[0., 0.], [0., 0.]]); it must be one of a."),
        (partial(errors.instance, kind=str, what="a text"), None, "x is None; it must be a text."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_check_tells_the_field_the_value_and_what_is_accepted(check, value, told):
    with pytest.raises(UsageError) as error:
        check("x", value)
    assert str(error.value) == told


def test_what_is_accepted_comes_back_in_its_type():
    assert errors.whole("x", np.int64(3)) == 3 and type(errors.whole("x", np.int64(3))) is int
    assert type(errors.positive("x", 3)) is float and errors.share("x", 0) == 0.0
    assert errors.seed_number(10**30) == 10**30 and errors.several("x", range(2)) == [0, 1]


def test_one_is_counted_in_the_singular():
    assert [errors.counted(count, "epoch") for count in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]
    assert errors.counted(1884, "step", ",") == "1,884 steps" and errors.counted(1.0, "layer", "g") == "1 layer"
    assert errors.apiece(1, "seed") == "" and errors.apiece(3, "seed") == ", for each of 3 seeds,"


def test_a_long_value_is_shown_on_one_line_and_cut():
    shown = errors.shown(torch.zeros(100, 100))
    assert len(shown) <= 200 and "\n" not in shown and "..." in shown


LETTERS = TokenConfig(n=6, layers=1, embed=4, width=4, tokens="letters", causal=True)
SMALL = {"samples": 4, "epochs": 1, "batch": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def hop():
    return posattn.train("khop", LETTERS, **SMALL)


@pytest.fixture(scope="module")
def run():
    return posattn.train("sum", ModelConfig(n=3, layers=1, embed=4, width=4), **SMALL)


WORDS = [0, 5, 6, 7, 5, 6]


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ([[1.9, 5, 6, 7, 5, 6]], r"^x is \[\[1\.9, 5, .*; it must be whole numbers, in a tensor or in lists of one length\.$"),
        ([[-1, 5, 6, 7, 5, 6]], r"^x has the token -1; there are 16 words, from 0 to 15\.$"),
        ([[16, 5, 6, 7, 5, 6]], r"^x has the token 16; there are 16 words"),
        ([[math.nan, 5, 6, 7, 5, 6]], "^x is "),
        ([[1e300, 5, 6, 7, 5, 6]], "^x is "),
    ],
)  # fmt: skip
def test_tokens_are_words(tokens, told, hop, unchecked):
    for call in (hop.predict, hop.answer, posattn.task("khop").decode, lambda x: posattn.task("khop").target(torch.tensor(x))):
        with pytest.raises(UsageError, match=told if call == hop.predict else "^x (is|has the token) "):
            call(tokens)
    assert hop.predict([[float(word) for word in WORDS]]).equal(hop.predict([WORDS]))  # whole numbers all the same


LAYER = PositionalAttention(5, 8, 2)
KEPT = {"machines": 2, "memory": 2, "inputs": (Known(-1.0, 1.0),)}
ROUND = Round(lambda i: [], lambda memory: [memory[0], memory[1]])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda run: PositionalAttention(5, 8, 2, causal="no"), "causal is 'no'; it must be True or False."),
        (lambda run: PositionalAttention(5, 8, 2, bias="no"), "bias is 'no'; it must be True or False."),
        (lambda run: ModelConfig(3, causal="no"), "causal is 'no'; it must be True or False."),
        (lambda run: sample_lists(2, integers="no"), "integers is 'no'; it must be True or False."),
        (lambda run: posattn.task("khop").sample(2, integers="no"), "integers is 'no'; it must be True or False."),
        (lambda run: posattn.task("sum", cumulative="no"), "cumulative is 'no'; it must be True or False."),
        (lambda run: posattn.generalization_bound(run.model(), 100, layer_norm="no"), "layer_norm is 'no'; it must be True or"),
        (lambda run: compile_program("prefix-sum", 3, route="no"), "route is 'no'; it must be one of lean, theorem."),
        (lambda run: posattn.train("sum", tensorboard="no"), "tensorboard is 'no'; it must be True or False."),
        (lambda run: extremum_model(4, maximum="no"), "maximum is 'no'; it must be True or False."),
        (lambda run: CompiledConfig(3, 1, 1, 2, 1, ((2,),), ((-1.0, 1.0),), hardmax="no"), "hardmax is 'no'; it must be"),
        (lambda run: CompiledConfig(3, 1, 1, 2, 1, ((2,),), ((5, -5),)), "bounds is ((5, -5),); it must be"),
        (lambda run: CompiledConfig(3, 1, 1, 2, 1, ((2,),), ((-1.0, 1.0),), spare=-3), "spare is -3; it must be"),
        (lambda run: PCOC(**KEPT, rounds=(ROUND,), spare=-3), "spare is -3; it must be a whole number of at least 0."),
        (lambda run: PCOC(**KEPT, rounds=(ROUND,), outputs=()), "program has no outputs; it must have at least one."),
        (lambda run: PCOC(**KEPT, rounds=(3,)), "round 1 is 3; it must be a Round."),
        (lambda run: Known("no", 1), "a value lies in ['no', 1]; both ends must be numbers."),
        (lambda run: run.model("no"), "member is 'no'; this run has member 0 only."),
        (lambda run: run.truth(torch.zeros(3), -1), "member is -1; this run has member 0 only."),
        (lambda run: run.predict(torch.zeros(3, dtype=torch.complex64)), "x is tensor([0.+0.j, 0.+0.j, 0.+0.j]); it must be"),
        (lambda run: run.evaluate([1], 5, split=np.array([1, 2])), "split is array([1, 2]); it must be a name"),
        (lambda run: run.evaluate_shifts([]), "names is empty; it must have at least one value."),
        (lambda run: run.model().attention(length="no"), "length is 'no'; it must be a whole number of at least 0."),
        (lambda run: posattn.Frozen(run.model(), 1.9), "length is 1.9; it must be a whole number of at least 0."),
        (lambda run: posattn.Transformer(None), "config is None; it must be a ModelConfig."),
        (lambda run: posattn.Run.of(None, "sum"), "model is None; it must be a Transformer."),
        (lambda run: posattn.load(None), "the run's folder is None; it must be the name of a file or folder."),
        (lambda run: posattn.load("run", device=1.9), "device is '1.9'; it must be cpu or cuda."),
        (lambda run: sample_lists(2, device="abacus"), "device is 'abacus'; it must be cpu or cuda."),
        (lambda run: sample_shift("uniform", 2, device=[]), "device is '[]'; it must be cpu or cuda."),
        (lambda run: posattn.pretrained([]), "task is []; it must be a task's name."),
        (lambda run: posattn.GraphConfig(3).build()(None), "the input is a NoneType; it must be a tensor"),
        (lambda run: LAYER(None), "the input is a NoneType; it must be a tensor, "),
        (lambda run: LAYER.weights(3, "no"), "key_padding_mask is 'no'; it must be a tensor."),
        (lambda run: posattn.task("sum").target(None), "the lists are None; they must be a tensor of numbers"),
        (lambda run: posattn.task("mixed-min").target(torch.zeros(3)), "the prompt has 3 elements of the list and 0 of"),
        (lambda run: posattn.task("mixed-min").encode(None), "the prompt is None; it must be a text"),
        (lambda run: register(None), "row is None; it must be a Task."),
        (lambda run: register(Task(3, "three", torch.sort)), "name is 3; it must be a text."),
        (lambda run: Member("sum", -1, 0.1), "seed is -1; it must be a whole number of at least 0."),
        (lambda run: RunSpec(run.config, Recipe(), ()), "members is (); it must be a tuple of at least one Member."),
        (lambda run: fine_tune(run, scale=1e300), "scale is 1e+300; it must be from 1e-37 to 1e+37."),
        (lambda run: fine_tune(run, only=""), "only is ''; it must be a part of the names of parameters."),
        (lambda run: chance_of_both_ends(0, 3), "n is 0; it must be a whole number of at least 1."),
        (lambda run: least_length(-1, 3), "largest is -1; it must be a whole number of at least 1."),
        (lambda run: empirical_discrepancy(None, torch.zeros(2, 2)), "train is None; it must be a tensor of lists, (m, n)."),
        (lambda run: posattn.network.own_network("mine", 3), "make is 3; it must be a function."),
        (lambda run: posattn.network.can(None, "fold"), "config is None; it must be a ModelConfig."),
    ],
)  # fmt: skip
def test_what_a_function_does_not_understand_it_refuses(call, told, run, unchecked):
    with pytest.raises(UsageError) as error:
        call(run)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("shape", [(7, 2, 3), (4, 3), (1, 2, 3)])
def test_a_padding_mask_gives_the_output_no_other_shape(shape, unchecked):
    x = torch.zeros(2, 3, 8)
    with pytest.raises(UsageError, match=r"^key_padding_mask has shape .*; for x of shape \(2, 3, 8\) it must be \(2, 3\), or"):
        LAYER(x, torch.zeros(shape, dtype=torch.bool))
    for fits in ((2, 3), (1, 3), (3,)):
        assert LAYER(x, torch.zeros(fits, dtype=torch.bool)).shape == x.shape


def test_a_module_that_is_there_and_fails_is_named(tmp_path, monkeypatch):
    """Its error names no module, as where a library that it loads is missing."""
    (tmp_path / "halfway.py").write_text("raise ImportError('its library is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"halfway is not installed; install it with pip install 'posattn\[onnx\]'"):
        errors.extra("onnx", "halfway")
    assert errors.extra("onnx", "math") is math


def test_a_plain_function_is_told_how_to_become_a_program():
    def largest(me, n, x):
        return x

    with pytest.raises(UsageError, match=r"program is the function largest; write @posattn\.program above it"):
        compile_program(largest, machines=4)


def test_a_fold_of_what_places_share_names_the_one_that_takes_it():
    config = TokenConfig(23, tokens="elements-shared")
    named = {name: value[None] for name, value in config.build().named_parameters()}
    with pytest.raises(UsageError, match="SharedFold folds it"):
        fold(stack_layers(named), config, config.build().P)
