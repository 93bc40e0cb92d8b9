"""Kinds of network: every field of every configuration, to and from dictionaries, and what each network can do."""

import copy
import json
import math
import pickle
import tempfile
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import posattn
from posattn import ARCHITECTURES, Frozen, GraphConfig, LoopedConfig, ModelConfig, Recipe, TokenConfig, UsageError
from posattn.baselines.gnn import GRAPHS
from posattn.compiled_run import save as save_program
from posattn.compiler import Compilation
from posattn.compiler.compiled_model import CompiledConfig
from posattn.compiler.program_network import ProgramConfig
from posattn.compiler.selection import SelectionConfig
from posattn.encodings import ENCODINGS
from posattn.looped import FAMILIES, AnyLengthConfig, PromptTableConfig
from posattn.model import Transformer
from posattn.network import ABILITIES, KINDS_BY_ARCH, can, configuration, from_dict, missing, own_network, require

# --- every field of every kind ---------------------------------------------------------------------------------------------

ARCHS = {
    ModelConfig: [*ARCHITECTURES],
    TokenConfig: [*ARCHITECTURES],
    AnyLengthConfig: ["no-encoding", "rope-only", "alibi", "randomized"],
    LoopedConfig: ["looped"],
    GraphConfig: ["gcn", "gat"],
}
KINDS = [*ARCHS, CompiledConfig]
# Values that a field takes. Some of them contradict each other, and are refused together.
FITTING = {
    "n": st.sampled_from([1, 2, 3, 5]),
    "layers": st.integers(1, 2),
    "heads": st.integers(1, 2),
    "embed": st.sampled_from([2, 4, 6]),
    "width": st.sampled_from([2, 3, 4, 6]),
    "encoding": st.sampled_from([*ENCODINGS]),
    "encoding_dim": st.sampled_from([1, 2, 3, 4, 6]),
    "d_k": st.integers(1, 4),
    "tokens": st.sampled_from(["letters", "prompts"]),
    "family": st.sampled_from([*FAMILIES]),
    "d_v": st.integers(1, 3),
    "mlp": st.sampled_from([((3,),), ((2, 4),)]),
    "sharpness": st.sampled_from([1, 7.5]),
    "inputs": st.integers(1, 2),
    "outputs": st.integers(1, 2),
    "spare": st.integers(0, 2),
    "bounds": st.sampled_from([((-1.0, 1.0),), ((2, 3),), ((0, math.inf), (-1.5, 1.5))]),
    "integers": st.sampled_from([(), (0,), (0, 1)]),
    "graph": st.sampled_from([*GRAPHS]),
}
FITTING |= dict.fromkeys(
    ("bias", "causal", "tied", "relative", "looped", "stay", "hardmax", "encoded_input", "lengths"), st.booleans()
)
ODD = [None, True, 0, -3, 2.5, math.nan, math.inf, "yes", "", (), (0,), ((0,),), ((1.0, 0.0),), [[2]], [3], {"a": 1}]
TASKS = {"none": "sum", "letters": "khop", "prompts": "mixed-min"}
BRIEF = Recipe(epochs=1, samples=2, batch=2)


def fitting(kind):
    """Fields of a kind with values that fit: those without a default, and some of the others."""
    arch = {"arch": st.sampled_from(ARCHS[kind])} if kind in ARCHS else {}
    of_length = {"n": st.sampled_from([2, 3, 23])} if kind is TokenConfig else {}  # a prompt has 23 positions
    own = {field.name: (FITTING | arch | of_length)[field.name] for field in fields(kind)}
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    needed += ["arch", "tokens"] if kind in (AnyLengthConfig, TokenConfig) else []
    given = {name: strategy for name, strategy in own.items() if name in needed}
    return st.fixed_dictionaries(given, optional={name: value for name, value in own.items() if name not in given})


def attempt(make, given):
    """The configuration, or None if it is refused: then in one sentence, which begins with a field."""
    try:
        return make(**given)
    except UsageError as error:
        sentence = str(error)
        assert sentence.split()[0] in {*FITTING, "arch"} and sentence.endswith(".") and "\n" not in sentence
        return None


def some_input(model, length):
    config, reads = model.config, model.config.reads
    if config.kind == "compiled":
        return model.blank_input(config.n)
    if reads == "none":
        return torch.randn(3, length)
    words = torch.randint(16, (3, length))
    return words if reads == "letters" else torch.where(torch.arange(length) % 2 == 0, -1.0 - words, words / 5)


def check_runs(config):
    """Builds the network and runs it forward and backward; returns it with an input and its answers."""
    model = config.build()
    if config.kind == "compiled":  # of random weights, machines may break rules; numbers of 0 are none
        model.layers[-1].requires_grad_(False).W_2.weight[-1], model.layers[-1].W_2.bias[-1] = 0, 0
        model.layers[-1].requires_grad_()
    for length in {config.n, 1} if config.kind != "compiled" else {config.n}:
        x = some_input(model, length)
        answers = model(x)
        assert answers.isfinite().all() and len(answers) == len(x)
    assert any(name.endswith("bias") for name, _ in model.named_parameters()) == getattr(config, "bias", True)
    answers.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)
    return model, x, model(x).detach()


def check_description(config):
    again = from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and type(again) is type(config) and hash(again) == hash(config)
    assert None not in config.to_dict().values()
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * max(1e-3, expected.abs().max().item()))


def check_saves(config, model, x, answers):
    """What is loaded answers as what was saved, by whatever way is fastest: the folded network where it folds."""
    with tempfile.TemporaryDirectory() as folder:
        if config.kind == "compiled":
            lowered = SimpleNamespace(model=model.double(), temperature=None, error=0.0, misfit=0.0)
            mine = SimpleNamespace(name="mine", labels=None)
            save_program(Compilation(mine, mine, lowered), folder)
            close(posattn.load(folder).predict(x.double())[0].float(), answers)
        elif config.reads == "none" or config.n == {"letters": 3, "prompts": 23}[config.reads]:
            task, path = TASKS[config.reads], Path(folder) / "run"
            run = posattn.train(task, config, recipe=BRIEF, device="cpu", out=path)
            close(posattn.load(path).predict(x)[0], run.model(0)(x).detach())
            assert run.spec.model == config or config.kind == "looped"  # which takes the family that suits the task


def check_folds(config, model, x, answers):
    """A frozen network answers as the network; what cannot be frozen, or does not fold, says so in a sentence."""
    for ability in ("fold", "freeze"):
        assert can(config, ability) or missing(config, ability).startswith(f"the {config.arch} network ")
    if can(config, "freeze"):
        close(Frozen(model, x.shape[-1])(x), answers)
    elif isinstance(model, Transformer):
        with pytest.raises(UsageError, match=r"^the [\w-]+ network [^\n]+; [^\n]+\.$"):
            Frozen(model)


@pytest.mark.filterwarnings("ignore:family is")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_accepted_runs_folds_saves_and_loads(kind, unchecked):
    accepted = []

    @settings(max_examples=60 if kind is CompiledConfig else 16)
    @given(fitting(kind))
    def check(given):
        if (config := attempt(kind, given)) is None:
            return
        accepted.append(config)
        kept = {name for name, value in given.items() if getattr(config, name) == value}
        assert {*given} - kept <= {"arch", "encoding"}  # positional without biases, and one-hot at random places
        check_description(config)
        ran = check_runs(config)
        check_folds(config, *ran)
        if len(accepted) <= 4:  # the slowest part
            check_saves(config, *ran)

    check()
    assert len(accepted) >= 5


@st.composite
def odd(draw):
    """A kind, and fields of which one does not fit: an odd value, a field of another kind, or one that is left out."""
    kind = draw(st.sampled_from(KINDS))
    fitted = draw(fitting(kind))
    field = draw(st.sampled_from([*FITTING, "arch"]))
    if field in fitted and draw(st.booleans()):
        return kind, {name: value for name, value in fitted.items() if name != field}
    own = {each.name for each in fields(kind)}
    return kind, fitted | {
        field: draw(st.sampled_from(ODD if field in own or field not in FITTING else [3, True, "letters"]))
    }


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd())
def test_what_is_refused_is_one_sentence(unchecked, drawn):
    kind, given = drawn
    for make in (kind, configuration) if kind is not GraphConfig else (kind,):
        if (config := attempt(make, given)) is not None:
            check_description(config)
            check_runs(config)


OF_A_MODEL = "ModelConfig has n, arch, layers, heads, embed, width, encoding, encoding_dim, d_k, bias, causal."


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"d_v": 16}, f"d_v is 16, a field of CompiledConfig, LoopedConfig; {OF_A_MODEL}"),
        ({"mlp": ((8,),)}, f"mlp is ((8,),), a field of CompiledConfig, LoopedConfig; {OF_A_MODEL}"),
        ({"spare": -3}, f"spare is -3, a field of CompiledConfig; {OF_A_MODEL}"),
        ({"hardmax": "yes"}, f"hardmax is 'yes', a field of CompiledConfig; {OF_A_MODEL}"),
        ({"tokens": "letters"}, f"tokens is 'letters', a field of TokenConfig; {OF_A_MODEL}"),
        ({"family": "dilated"}, f"family is 'dilated', a field of LoopedConfig; {OF_A_MODEL}"),
        ({"graph": "star"}, f"graph is 'star', a field of GraphConfig; {OF_A_MODEL}"),
        ({"colour": "red"}, f"colour is 'red', which is no field; {OF_A_MODEL}"),
    ],
)
def test_a_field_of_another_kind_is_refused_with_whose_it_is(given, sentence):
    with pytest.raises(UsageError) as error:
        ModelConfig(8, "standard", **given)
    assert str(error.value) == sentence


def test_a_configuration_without_its_length_says_so():
    for make in (ModelConfig, TokenConfig, AnyLengthConfig, LoopedConfig, GraphConfig, configuration):
        with pytest.raises(UsageError, match=r"^n is missing; \w+ has no default for it\.$"):
            make()


def test_the_kind_is_told_from_the_fields():
    assert type(configuration(n=8)) is ModelConfig
    assert type(configuration(n=8, tokens="letters")) is TokenConfig
    assert type(configuration(n=8, arch="looped")) is type(ModelConfig(8, "looped")) is LoopedConfig
    for more in ({"any_length": True}, {"looped": True}, {"any_length": True, "looped": True}):
        assert type(configuration(n=8, arch="rope-only", **more)) is AnyLengthConfig
    assert type(configuration(n=8, arch="alibi")) is type(ModelConfig(8, "alibi")) is AnyLengthConfig
    assert type(configuration(kind="graph", n=8)) is GraphConfig
    with pytest.raises(UsageError, match=r"^the model's kind is 'maze'; import the module that defines it first\.$"):
        configuration(kind="maze", n=8)


# --- what a network can do -------------------------------------------------------------------------------------------------

own_network("mine", lambda n: torch.nn.Linear(n, n))
NETWORKS = {arch: ModelConfig(4, arch) for arch in (*ARCHITECTURES, *KINDS_BY_ARCH)}
NETWORKS["table of prompts"] = PromptTableConfig(4)
NETWORKS |= {f"{arch} of letters": TokenConfig(4, arch, causal=True) for arch in ("positional", "standard")}
NETWORKS |= {f"{arch} of prompts": TokenConfig(4, arch, tokens="prompts") for arch in ("scale-exact", "rope-only")}
NETWORKS |= {f"{arch}, any length": AnyLengthConfig(4, arch) for arch in ("no-encoding", "rope-only")}
NETWORKS["compiled"] = CompiledConfig(4, layers=1, heads=1, embed=2, d_v=1, mlp=((2,),), bounds=((0.0, 1.0),))
NETWORKS["sparse"] = SelectionConfig(
    4, layers=1, heads=1, embed=2, d_v=1, mlp=((2,),), bounds=((0.0, 1.0),), hardmax=True, entries=((1, 1),), uses=(0,)
)
NETWORKS["program"] = ProgramConfig(4, layers=1, heads=1, embed=2, d_v=1, mlp=((2,),), bounds=((0.0, 1.0),))
NETWORKS |= {arch: GraphConfig(4, arch) for arch in ("gcn", "gat")}
NETWORKS["one's own"] = own_network("mine", lambda n: torch.nn.Linear(n, n))(n=4)
TABLE = """
                          fold  freeze  export  show  bound  certify  graph  communicate  every length  last steps
positional                 x      x       x      x      x       -       x         x            -            -
scale-exact                x      x       x      x      x       x       x         x            -            -
standard                   x      x       x      x      x       -       -         -            -            -
positional-input           x      x       x      x      x       -       -         -            -            -
misaligned                 x      x       x      x      x       -       x         x            -            -
input-regularized          x      x       x      x      -       -       -         -            -            -
no-encoding                x      x       x      x      x       -       -         -            -            -
rope-only                  x      x       x      x      -       -       -         -            -            -
standard-rope              x      x       x      x      -       -       -         -            -            -
looped                     -      -       x      x      -       -       x         -            x            x
alibi                      -      -       x      x      -       -       -         -            x            -
randomized                 -      -       x      -      -       -       -         -            x            -
table                      -      -       x      -      -       -       -         -            x            -
table of prompts           -      -       x      -      -       -       -         -            -            -
positional of letters      x      -       x      -      -       -       x         x            -            -
standard of letters        x      -       x      -      -       -       -         -            -            -
scale-exact of prompts     x      -       x      -      -       -       x         x            -            -
rope-only of prompts       x      -       x      -      -       -       -         -            -            -
no-encoding, any length    -      -       x      x      -       -       -         -            x            -
rope-only, any length      -      -       x      x      -       -       -         -            x            -
compiled                   -      -       x      x      -       -       x         x            -            -
sparse                     -      -       x      -      -       -       x         -            -            -
program                    -      -       x      -      -       -       x         x            -            -
gcn                        -      -       -      -      -       -       -         -            -            -
gat                        -      -       -      -      -       -       -         -            -            -
one's own                  -      -       -      -      -       -       -         -            -            -
"""


def test_what_each_network_can_do():
    head, *rows = TABLE.strip("\n").splitlines()
    assert [name for name in head.strip().split("  ") if name] == [*ABILITIES]
    expected = {row[:26].strip(): [mark == "x" for mark in row[26:].split()] for row in rows}
    found = {name: [can(config, ability) for ability in ABILITIES] for name, config in NETWORKS.items()}
    assert found == expected


@pytest.mark.parametrize("ability", ABILITIES)
def test_what_a_network_cannot_do_it_says_in_a_sentence(ability):
    for config in NETWORKS.values():
        if can(config, ability):
            require(config, ability)
            continue
        with pytest.raises(UsageError, match=rf"^the {config.arch} network [^;\n]+; [^;\n]+\.$"):
            require(config, ability)


def test_refusals_say_what_is_in_the_way_and_what_is_accepted():
    told = {missing(NETWORKS["gat"], "export"), missing(NETWORKS["positional of letters"], "freeze")}
    told |= {missing(NETWORKS["standard"], "every length")}
    told |= {missing(NETWORKS["gcn"], "last steps"), missing(NETWORKS["looped"], "freeze")}
    assert told == {
        "the gat network is no Transformer of posattn; only Transformers and table networks can be exported.",
        "the positional network reads letters; only networks trained on lists of up to n numbers can be frozen.",
        "the standard network is for lists of up to 4 numbers only; tests by length are for networks of every length and "
        "compiled programs.",
        "the gcn network has no loops; only looped networks have last steps (polish).",
        "the looped network is for lists of every length; only networks trained on lists of up to n numbers can be frozen.",
    }
