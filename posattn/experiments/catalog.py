"""The experiments by name. A figure's numbers live here and nowhere else.

Those of your own are in Python files that define ``EXPERIMENT``.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from posattn import files
from posattn.baselines import GraphConfig
from posattn.errors import UsageError, choice, counted, path_of
from posattn.experiments.attention_study import AttentionMaps, AttentionStudy
from posattn.experiments.declaration import Computation, Experiment, Grid, Series, series
from posattn.experiments.diagrams import Diagrams, diagram_rows
from posattn.experiments.discrepancy_study import discrepancy_networks, discrepancy_rows
from posattn.experiments.figures import Bars, Lines, View
from posattn.experiments.gap_study import GapPanels, Gaps
from posattn.experiments.gpt2_comparison import METRICS, FineTunings
from posattn.experiments.measures import EachShift, FineTuned, Lengths, Scales, Shifts
from posattn.experiments.ood_study import Contours, ood_probability_rows
from posattn.looped import PromptTableConfig
from posattn.pretrained import COMPARED
from posattn.tasks import FIVE_TASKS, task
from posattn.tasks.layouts import LAYOUTS
from posattn.theory.bound import ATTENTION
from posattn.training.recipe import recipe

_TWO = ("positional", "standard")
THREE = series(*COMPARED)
EIGHT = (*THREE, *series("positional-input", "misaligned", "input-regularized", "no-encoding", "rope-only"))
_TRAINING = View("training lists", {"split": "train"})
_INSIDE = View("in distribution", {"split": "test", "scale": 1}, published={"split": "validation", "scale": 1})
_OUTSIDE = View("scale 3", {"split": "test", "scale": 3}, opens=True)


def _variants(lines: Iterable[Series], name: str, **settings: Any) -> tuple[Series, ...]:
    """The same networks with other settings, and ``name`` after their labels."""
    return tuple(replace(line, label=f"{line.label}, {name}", settings={**line.settings, **settings}) for line in lines)


# With the other encodings, Figure 24's two, and the network without RoPE. The paper's binary encodings have ceil(log2 n)
# dimensions, 3 for n = 8; ours have one more, which tells the scratchpad from the first number.
ENCODED = (
    *_variants(THREE, "binary", encoding="binary"),
    *_variants(series(*_TWO), "binary, 3 dimensions", encoding="binary", encoding_dim=3),
    *_variants(THREE, "sinusoidal", encoding="sinusoidal"),
    *series("standard-rope", *_TWO),
)


def _of_width(width: int, layers: int) -> Series:
    label = f"standard, width {width}, {counted(layers, 'layer')}"
    return Series(label, {"arch": "standard", "width": width, "layers": layers})


# Graph networks; the published table fits those whose nodes do not know their positions.
GRAPHS = tuple(
    Series(
        f"{kind.upper()}, {graph}{'' if positions else ', no positions'}",
        {"arch": kind, "graph": graph, "encoded_input": positions},
        GraphConfig,
    )
    for positions in (False, True)
    for graph in ("complete", "star")
    for kind in ("gcn", "gat")
)


def _of_task(name: str, variant: str) -> tuple[Series, ...]:
    """The paper's two networks for a task of tokens, and both again with ``variant`` set."""
    lines = series(*_TWO, **{field: value for field, value in task(name).NETWORK.items() if field != "n"})
    return (*lines, *_variants(lines, variant, **{variant: True}))


LETTERS = _of_task("khop", "tied")  # tied: can name letters that training never showed
# Prompts by their layout (docs/tokens.md); relative: answers scale with the numbers.
ELEMENTS = _of_task("mixed-min", "relative")
SHARED = _variants(ELEMENTS[:2], "shared digits", tokens=LAYOUTS["elements-shared"].tokens)
_SPELLED = tuple(replace(line, settings={**line.settings, "tokens": "characters"}) for line in ELEMENTS)
CHARACTERS = (*_SPELLED[:2], *(replace(line, seeds=3) for line in _SPELLED[2:]))
FOUR_MIXED = ("mixed-min", "mixed-sum", "mixed-multitask", "mixed-max")
_SIZES = (5_000, 10_000, 20_000, 50_000)  # of training sets of tokens; the paper says no more than how large they get
_HOPS = tuple(
    View(title, {"split": split, "hops": hops}, metric, more=split == "train" or hops != "all", opens=title == "without '~'")
    for title, split, hops, metric in (
        ("training", "train", "all", "cross_entropy"),
        ("test", "test", "all", "cross_entropy"),
        ("without '~'", "test", "all", "accuracy_found"),
        *((f"without '~', k = {k}", "test", k, "accuracy_found") for k in "0123"),
    )
)
_PROMPT_ERRORS = (View(""), View("", metric="mape"))
_PROMPT_SIZES = tuple(
    View(title, where, metric, more=(metric, title) != ("mse", "scale 10"), opens=(metric, title) == ("mse", "scale 10"))
    for metric in ("mse", "mape")
    for title, where in (
        ("training prompts", {"split": "train"}),
        ("in distribution", {"split": "test", "scale": 1}),
        ("scale 10", {"split": "test", "scale": 10}),
    )
)


def _khop(
    layers: tuple[int, ...] = (8,),
    samples: tuple[int, ...] = (50_000,),
    lines: tuple[Series, ...] = LETTERS,
    **own: Any,
) -> Grid:
    """Networks of letters. A sequence of 30 costs as much as ten lists of 8, so the smaller sizes have fewer."""
    fewer = (5000, 20, 100, 2), (60, 2, 30, 1)
    return Grid(("khop",), lines, (30,), samples, layers=layers, quick=fewer[0], smoke=fewer[1], **own)


def _mixed(layout: str, lines: tuple[Series, ...], samples: tuple[int, ...] = (50_000,), **own: Any) -> Grid:
    """Networks of prompts. One in characters costs as much as five to ten in elements, so the smaller sizes have fewer."""
    fewer: dict[str, Any] = {"quick": (10_000, 15, 50, 3), "smoke": (60, 2, 30, 1)} if layout == "characters" else {}
    positions = (LAYOUTS[layout].positions,)
    return Grid(FOUR_MIXED, lines, positions, samples, recipe=recipe("paper", batch=1024), **fewer, **own)


def _several_lengths(shuffled: bool) -> Grid:
    """One network for lists of 1 to 8; the published runs shuffled the batches of all lengths in every epoch."""
    plan = recipe("paper", batch=2048, lr=1e-4, shuffle_lengths=shuffled)
    return Grid(FIVE_TASKS, THREE, samples=(500_000,), recipe=plan, variable_length=True, measure=Scales(samples=2000))


def _any_length(label: str, arch: str) -> tuple[Series, ...]:
    """Two series of self-attention for lists of every length: with a stack of layers, and with one layer, looped."""
    own = Series(label, {"arch": arch, "any_length": True, "causal": True})
    return own, *_variants((own,), "looped", looped=True)


EVERY_LENGTH = (
    Series("looped positional", {"arch": "looped"}),
    Series("looped positional, blank sink", {"arch": "looped", "stay": False}),
    Series("looped positional, wide state", {"arch": "looped", "embed": 64, "d_v": 32, "width": 64}),
    *_any_length("randomized encodings", "randomized"),
    *_any_length("RoPE", "rope-only"),
    *_any_length("no encodings", "no-encoding"),
    *_any_length("ALiBi", "alibi"),
)


# One row per figure: name, place in the paper, title; where its rows come from; how they are shown.
# fmt: off
_LIST = (
    Experiment(
        "fix-scale", "Figure 4", "error against the scale of the numbers",
        Grid(FIVE_TASKS, THREE),
        Lines(published="fix-scale"),
    ),
    Experiment(
        "fix-scale-tuned", "Figure 4, tuned recipe", "error against the scale of the numbers",
        Grid(FIVE_TASKS, THREE, recipe=recipe("tuned")),
        Lines(published="fix-scale"),
    ),
    Experiment(
        "compiled-scale", "Figure 4, beyond the paper", "error against scale, with compiled programs",
        Grid(FIVE_TASKS, THREE, programs=True),
    ),
    Experiment(
        "fix-sample", "Figures 2, 14-18", "error against the number of training lists",
        Grid(FIVE_TASKS, THREE, samples=tuple(range(5000, 50_001, 5000)), measure=Scales((1, 3), train=True)),
        Lines("samples", (_TRAINING, _INSIDE, _OUTSIDE), published="fix-sample"),
    ),
    Experiment(
        "length", "Figures 9-13", "error against the length of the lists",
        Grid(FIVE_TASKS, THREE, n=(2, 4, 8, 16, 32), measure=Scales((1, 3), train=True)),
        Lines("n", (_TRAINING, _INSIDE, _OUTSIDE)),
    ),
    Experiment("variable-length", "Figure 19", "error against scale, lists of 1 to 8 numbers", _several_lengths(True)),
    Experiment(
        "variable-length-in-turn", "Figure 19, batches in turn", "error against scale, lists of 1 to 8 numbers",
        _several_lengths(False),
    ),
    Experiment(
        "compact", "Figures 20, 21", "compact standard Transformers",
        Grid(("sum", "min"), (*THREE, *(_of_width(width, layers) for layers in (4, 1) for width in (2, 4, 8, 16)))),
    ),
    Experiment(
        "encodings", "Figures 22-24", "binary, sinusoidal and rotary encodings",
        Grid(FIVE_TASKS, ENCODED),
        Lines(akin=True, views=tuple(
            View(title, {"encoding": encoding, "split": "test"})
            for title, encoding in (("binary", "binary"), ("sinusoidal", "sinusoidal"), ("rotary", "one-hot"))
        )),
    ),
    Experiment(
        "ablation", "Figures 25, 26", "seven architectural choices, and the bias-free one",
        Grid(("sum", "sort"), EIGHT),
    ),
    Experiment(
        "fine-tune", "Table 1", "V matrices fine-tuned at scale 10, relative errors",
        Grid(("sum", "min", "sort"), THREE, measure=FineTuned()),
        Bars("stage", (View("", metric="mse_over_c2"),), published="fine-tune"),
    ),
    Experiment(
        "gnn", "Table 2", "graph networks on complete and star graphs",
        Grid(("sum", "sort"), GRAPHS, measure=Scales((1, 2, 3, 4, 5, 10))),
        Lines(published="gnn"),
    ),
    Experiment(
        "attention-maps", "Figures 36, 37", "attention against input scale, and what is left of positions",
        Grid(("sort",), series(*_TWO), measure=AttentionStudy()),
        AttentionMaps(
            views=(View("movement of the attention", metric="movement"), View("positions read by a probe", metric="probe")),
            columns=("layer",),
        ),
    ),
    Experiment(
        "accuracy", "Figures 27, 28", "rounding and closeness accuracy against scale",
        Grid(FIVE_TASKS, THREE),
        Lines(views=(
            View("rounding", metric="rounding"), View("closeness", metric="closeness"),
            View("strict closeness", metric="strict_closeness", more=True),  # both tolerances at once
        )),
    ),
    Experiment(
        "ood-probability", "Figure 35", "probability that a test list lies inside the training domain",
        Computation(ood_probability_rows),
        Contours(
            views=(View("the paper's bound, corrected for n = 2", metric="bound"), View("exact", metric="exact")),
            prose="The probability that a list drawn at scale c lies inside the training domain: the closed bound of Eq. 27 "
            "and 28, with the factor 4 that Eq. 28 lacks, beside the exact value by quadrature. The rows also hold a "
            "simulation.",
        ),
    ),
    Experiment(
        "generalization-gap", "Theorem 6.1", "gap of trained networks beside the bound on it",
        Grid(
            ("sum", "sort"), series(*_TWO), layers=(1, 2, 4), samples=(1000, 3000, 10_000, 30_000), measure=Gaps(),
            quick=(10_000, 50, 100, 3),  # small batches: 500 steps with 1000 lists
        ),
        GapPanels(
            "samples",
            (
                View("measured gap", metric="gap"),
                View("risk, cut off at the cap", metric="capped risk"),
                *(View(f"bound, {kind}", metric=f"{kind} bound") for kind in ATTENTION),
                *(View(f"power of t, {kind}", metric=f"{kind} power") for kind in ATTENTION),
            ),
            columns=("task", "layers"),
        ),
    ),
    Experiment(
        "discrepancy", "Appendix G", "a standard OOD bound stands still while the error falls",
        Computation(discrepancy_rows, discrepancy_networks),
        Lines(
            "samples", (View("", metric="risk"),), columns=("z",),
            prose="Networks of the appendix's class learn the minimum of integers on 0..3 from m lists and are tested on "
            "integers on 0..3+z. The bound of Theorem G.1 is at least the discrepancy, which two members of the class, min and "
            "max, keep near z.",
        ),
    ),
    Experiment(
        "diagrams", "Figures 1, 7, 8", "the two attentions, communication graphs, a Beneš network",
        Computation(diagram_rows),
        Diagrams(
            prose="Figure 1: what feeds queries, keys and values, found by asking the networks which input moves them; A is "
            "head 1 of layer 2 of the packaged sorting networks on one list, and on three times that list. Figure 7: the "
            "programs as they are written here, whose sort has the round that the paper's lacks. Figure 8: the network that "
            "routing uses.",
        ),
    ),
    Experiment(
        "distribution-shift", "beyond the paper", "error on lists from other distributions",
        Grid(FIVE_TASKS, EIGHT, measure=Shifts()),
        Bars(views=(View("relative error", metric="relative"), View("closeness", metric="closeness"))),
    ),
    Experiment(
        "length-generalization", "Section 8, beyond the paper", "error on lists longer than those trained on",
        Grid(
            ("sum", "min", "maxsub"), EVERY_LENGTH, n=(16,), samples=(40_000,), seeds=5, measure=Lengths(),
            recipe=recipe("looped", epochs=100, batch=400),  # 10,000 steps
            variable_length=(2, 4, 8, 16), quick=(4000, 40, 250, 1), smoke=(80, 1, 40, 1),
        ),
        Lines("n", tuple(View(f"scale {c}", {"split": "test", "scale": c}, "relative_square") for c in (1, 10))),
    ),
    Experiment(
        "khop-samples", "Figures 3, 29", "k-hop induction heads against training sequences",
        _khop(samples=_SIZES, measure=Scales((1, 2), train=True)),
        Lines("samples", _HOPS, ("domain",)),
    ),
    Experiment(
        "khop-steps", "Figures 3, 29, a control", "k-hop induction heads against training sequences, at equal steps",
        _khop(samples=_SIZES, lines=LETTERS[:2], measure=Scales((1, 2), train=True), equal_steps=True),
        Lines("samples", _HOPS, ("domain",)),
    ),
    Experiment(
        "khop-layers", "Figures 3, 5, 30", "k-hop induction heads against layers",
        _khop(layers=(1, 2, 3, 4, 6, 8, 12), measure=Scales((1, 2), train=True)),
        Lines("layers", _HOPS, ("domain",)),
    ),
    Experiment(
        "compiled-khop", "Figures 3, 5, beyond the paper", "k-hop induction heads, with the compiled program",
        _khop(measure=Scales((1, 2)), programs=True),
        Bars("hops", (View("without '~'", metric="accuracy_found"),), ("domain",)),
    ),
    Experiment(
        "khop-scan", "Figures 3, 5, beyond the paper", "k-hop induction heads by scans",
        _khop(
            lines=(*LETTERS[:2], Series("table", {"arch": "table"}, recipe=recipe("table"), seeds=5)),
            measure=Scales((1, 2)),
        ),
        Bars("hops", (View("without '~'", metric="accuracy_found"),), ("domain",)),
    ),
    Experiment(
        "mixed-scale", "Figure 6", "mixed-type prompts against the scale of the values",
        _mixed("characters", CHARACTERS, yardsticks=True),
        Lines(views=_PROMPT_ERRORS),
    ),
    Experiment(
        "mixed-shift", "Figure 6, beyond the paper", "mixed-type prompts with unseen words, larger values, or both",
        _mixed("characters", CHARACTERS, measure=EachShift(), yardsticks=True),
        Lines(
            views=tuple(View(f"{words} words", {"split": "test", "words": words}) for words in EachShift.WORDS),
            prose="Models are trained on prompts with identifiers 1 to 20, signs + and - and values in [0, 5], and tested with "
            "values in [0, 5c] (scale c), both with these words and with unseen ones, identifiers 21 to 40 and signs _ and *. "
            "So training words above scale 1 and unseen words at scale 1 are one shift without the other. Lines are medians "
            "over runs, bands the 10th to 90th percentile.",
        ),
    ),
    Experiment(
        "mixed-elements", "Figure 6, other layouts", "mixed-type prompts, an element per position",
        _mixed("elements", (*ELEMENTS, *SHARED), seeds=3, yardsticks=True),
        Lines(views=_PROMPT_ERRORS),
    ),
    Experiment(
        "compiled-mixed", "Figure 6, beyond the paper", "mixed-type prompts, with the compiled program",
        _mixed("elements", ELEMENTS, seeds=3, programs=True),
        Lines(views=(View(""), View("", metric="closeness"))),
    ),
    Experiment(
        "mixed-scan", "Figure 6, beyond the paper", "mixed-type prompts by scans",
        _mixed(
            "elements", (*ELEMENTS[:2], Series("table", kind=PromptTableConfig, recipe=recipe("prompt-table"))),
            yardsticks=True,
        ),
        Lines(views=(View(""), View("", metric="closeness"))),
    ),
    Experiment(
        "mixed-samples", "Figures 31-33", "mixed-type prompts against training prompts",
        _mixed("characters", CHARACTERS, _SIZES, measure=Scales((1, 10), train=True), yardsticks=True),
        Lines("samples", _PROMPT_SIZES),
    ),
    Experiment(
        "mixed-elements-samples", "Figures 31-33, other layouts", "training prompts, an element per position",
        _mixed(
            "elements", (*ELEMENTS[:2], *SHARED), _SIZES, seeds=3, measure=Scales((1, 10), train=True), yardsticks=True
        ),
        Lines("samples", _PROMPT_SIZES),
    ),
    Experiment(
        "gpt2", "Figure 34", "a fine-tuned GPT-2 on mixed-type prompts as text",
        FineTunings(replace(_mixed("elements", ELEMENTS[:1]), tasks=("mixed-min", "mixed-sum", "mixed-multitask"))),
        Lines(views=tuple(View("", metric=metric) for metric in METRICS)),
    ),
)
# fmt: on

EXPERIMENTS: dict[str, Experiment] = {row.name: row for row in _LIST}


def experiments_named(name: str) -> list[Experiment]:
    """The experiments that a name stands for: one of the catalogue, ``all`` of it, or that of a Python file."""
    if path_of("experiment", name).suffix:
        return [load_experiment(Path(name))]
    if name == "all":
        return list(EXPERIMENTS.values())
    return [EXPERIMENTS[choice("experiment", name, [*EXPERIMENTS, "all"])]]


def load_experiment(path: Path) -> Experiment:
    """The experiment that a file declares. The file is run, so it may define tasks, encodings and networks too."""
    found = files.execute(path, "the experiment's file").get("EXPERIMENT")
    if not isinstance(found, Experiment):
        raise UsageError(f"{path} does not define EXPERIMENT; it must be a posattn.experiments.Experiment.")
    if found.name in EXPERIMENTS:
        raise UsageError(f"name in {path} is {found.name!r}, an experiment of the package; it must be another.")
    found.cells("paper")  # every network of the grid can be configured
    return found
