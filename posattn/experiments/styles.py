"""How figures look: colours, markers and dashes of series, and what axes, metrics and panels are called."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from posattn.tasks import TASKS

# Okabe and Ito's colours, which stay apart for colour-blind readers; markers say the same again.
STYLES = {"standard": ("#D55E00", "s"), "positional": ("#0072B2", "o"), "scale-exact": ("#009E73", "^")}
YARDSTICKS = {"ignoring the query": ("#555555", ""), "a constant": ("#BBBBBB", "")}  # lines without markers
_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#7F3C00")  # of other series, taken in turn
_MARKERS = ("d", "v", "P", "X", "*", "<", ">")  # one more than colours: series without variants differ up to the 42nd
_DASHES = ("-", "--", "-.")


class Metric(NamedTuple):
    """What an axis calls a metric. The axis of a ``log`` metric is logarithmic, that of a ``share`` goes from 0 to 1."""

    title: str
    axis: str = "linear"


_METRICS = {
    "mse": Metric("mean squared error", "log"),
    "mse_over_c2": Metric("mean squared error / c²", "log"),
    "relative": Metric("squared error / variance of answers", "log"),
    "relative_square": Metric("squared error / mean square of answers", "log"),
    "mape": Metric("mean absolute percentage error / 100", "log"),
    "cross_entropy": Metric("cross-entropy", "log"),
    "risk": Metric("mean absolute error, and bounds on it", "log"),
    "gap": Metric("|risk - empirical risk|", "log"),
    "positional bound": Metric("bound on the gap", "log"),
    "self-attention bound": Metric("bound on the gap", "log"),
    "positional power": Metric("growth when W_Q, W_K grow by t"),
    "self-attention power": Metric("growth when W_Q, W_K grow by t"),
    "rounding": Metric("share right after rounding", "share"),
    "closeness": Metric("share within 5%", "share"),
    "strict_closeness": Metric("share within 0.05 and 5%", "share"),
    "accuracy": Metric("share of letters right", "share"),
    "accuracy_found": Metric("share of letters right", "share"),
    "movement": Metric("total variation from c = 1"),
    "probe": Metric("share of positions"),
    "unparsed": Metric("answers that are no number"),
}
_AXES = {"scale": "scale of the numbers (1 is the training range)", "n": "numbers in a list", "distribution": ""}


def metric(name: str) -> Metric:
    return _METRICS.get(name, Metric(name))


def axis(x: str, inputs: str = "lists") -> str:
    """The label of the x axis for a column; ``inputs`` names what the networks were trained on."""
    return f"training {inputs}" if x == "samples" else _AXES.get(x, x)


def titled(column: str, value: object) -> str:
    """The title of a panel whose rows have this value in ``column``."""
    if value in TASKS:
        return TASKS[str(value)].title
    if column == "domain":
        return {"id": "in distribution", "ood": "out of distribution"}[str(value)]
    return f"{value}" if isinstance(value, str) else f"{column} {value:g}"


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    marker: str
    dash: str = "-"


def looks(labels: Sequence[str], akin: bool = False) -> dict[str, Look]:
    """The look of each series of a figure, the same in all its panels; and those of the paper's architectures.

    Variants of a series share its colour and have other dashes: "RoPE, looped" that of "RoPE", if both are shown. If labels are
    ``akin``, so do variants of the paper's architectures, and marker and dash say which variant it is, alike for all of these.
    """
    found = {name: Look(*look) for name, look in (STYLES | YARDSTICKS).items()}  # published ones may be there without ours
    papers = [name for name in labels if _plain(name) in STYLES]
    if akin:
        variants = list(dict.fromkeys(["", *(name.removeprefix(_plain(name)) for name in papers)]))
        for name in papers:
            if place := variants.index(name.removeprefix(_plain(name))):
                colour, _ = STYLES[_plain(name)]
                found[name] = Look(colour, _MARKERS[(place - 1) % len(_MARKERS)], _DASHES[place % len(_DASHES)])
    else:
        each = Counter(map(_plain, papers))
        found |= {name: Look(*STYLES[_plain(name)]) for name in papers if each[_plain(name)] == 1}
    others = [name for name in labels if name not in found]
    colours = list(dict.fromkeys(_kind(name, others) for name in others))
    drawn: Counter[str] = Counter()  # variants so far, by what they are variants of
    for place, name in enumerate(others):
        of, dash = colours.index(_kind(name, others)), drawn[_kind(name, labels)]
        drawn[_kind(name, labels)] += 1
        found[name] = Look(
            _COLOURS[of % len(_COLOURS)],
            _MARKERS[place % len(_MARKERS)],
            _DASHES[(dash + dash // len(_COLOURS)) % len(_DASHES)],
        )
    return found


def _plain(label: str) -> str:
    """What a series is a variant of by its label: "positional" for "positional, binary"."""
    return label.split(",")[0]


def _kind(label: str, labels: Sequence[str]) -> str:
    """The series among ``labels`` that this one is a variant of; itself if there is none."""
    return next((name for name in labels if label.startswith(f"{name}, ")), label)
