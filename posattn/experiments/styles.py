"""How figures look: colours, markers and dashes of series, and what axes, metrics and panels are called."""

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


def style(label: str, labels: Sequence[str], akin: bool = False) -> tuple[str, str]:
    """Colour and marker of a series, the same in every panel of a figure that shows ``labels``.

    If they are ``akin``, variants of an architecture, such as "positional, binary", have its colour; each has a marker and a
    dash, the same for every architecture.
    """
    if label in YARDSTICKS:
        return YARDSTICKS[label]
    variants = _variants(labels) if akin else {}
    if label in variants:
        colour, marker = STYLES[_plain(label)]
        return colour, _MARKERS[(variants[label] - 1) % len(_MARKERS)] if variants[label] else marker
    labels = [name for name in labels if name not in YARDSTICKS and name not in variants]
    plain = {name: _plain(name) for name in labels}
    own = {name for name in labels if plain[name] in STYLES and list(plain.values()).count(plain[name]) == 1}
    if label in own or label in STYLES:
        return STYLES[plain.get(label, label)]  # published ones may be there without ours
    others = [name for name in labels if name not in own and name not in STYLES]
    kinds = list(dict.fromkeys(_kind(name, others) for name in others))
    colour = _COLOURS[kinds.index(_kind(label, others)) % len(_COLOURS)]
    return colour, _MARKERS[others.index(label) % len(_MARKERS)]


def _plain(label: str) -> str:
    """What a series is a variant of by its label: "positional" for "positional, binary"."""
    return label.split(",")[0]


def _variants(labels: Sequence[str]) -> dict[str, int]:
    """The place of each series of the paper's architectures among their variants; 0 is the architecture as it is."""
    rest = {name: name.removeprefix(_plain(name)) for name in labels if _plain(name) in STYLES}
    places = list(dict.fromkeys(["", *rest.values()]))
    return {name: places.index(variant) for name, variant in rest.items()}


def _kind(label: str, labels: Sequence[str]) -> str:
    """The series that this one is a variant of and shares its colour with: "RoPE" for "RoPE, looped" if both are shown."""
    return next((name for name in labels if label.startswith(f"{name}, ")), label)


def dash(label: str, labels: Sequence[str], akin: bool = False) -> str:
    """The dash of a series' line, which tells the variants of one series apart."""
    if akin and label in (variants := _variants(labels)):
        return _DASHES[variants[label] % len(_DASHES)]
    alike = [name for name in labels if _kind(name, labels) == _kind(label, labels) and name not in STYLES]
    if label not in alike:
        return "-"
    index = alike.index(label)
    return _DASHES[(index + index // len(_COLOURS)) % len(_DASHES)]
