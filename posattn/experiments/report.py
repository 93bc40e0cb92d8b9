"""What an experiment measured, for reading: Markdown and LaTeX tables, and one self-contained HTML page."""

import base64
import re
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from posattn import files
from posattn.experiments import figures
from posattn.experiments.declaration import Bars, Experiment, Lines
from posattn.tasks import task

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
"""

_LINES = (
    "Models are trained on numbers in [−2, 2] (scale 1) and tested on numbers in [−2c, 2c]. Lines are medians over runs, bands "
    "the 10th to 90th percentile. "
)
_DOTTED = "Dotted lines are the published medians, which took the full recipe"
_SHAPES = ": ours are trained for a fraction of that, so compare the shapes. "
_MARKERS = "Markers are medians over runs, bars the 10th to 90th percentile. "
_HOLLOW = "Hollow markers are the published medians, which took the full recipe. "
_SHIFTS = (
    "Models are trained on one distribution of lists and tested on it and on others. The relative error is the squared error "
    "over the variance of the answers: 1 is what the best constant has. "
)
_KINDS = {
    "letters": (
        "Models are trained on sequences of the letters a-e (scale 1) and tested on these and on sequences of f-j (scale 2, "
        "out of distribution). Lines are medians over runs, bands the 10th to 90th percentile. "
    ),
    "prompts": (
        "Models are trained on prompts with identifiers 1 to 20 and values in [0, 5] (scale 1) and tested on these and, at "
        "scale c, on identifiers 21 to 40, other irrelevant elements and values in [0, 5c]. Lines are medians over runs, bands "
        "the 10th to 90th percentile. "
    ),
}
_EXACT = "The scale-exact Transformer is the positional one without biases."


def write(
    out: Path,
    experiment: Experiment,
    scale: str,
    summary: pd.DataFrame,
    drawn: list[Path],
    described: list[dict[str, Any]],
) -> Path:
    """Writes tables and page, and returns the page's path."""
    write_tables(out, experiment, summary)
    body = section(experiment, scale, summary, drawn, described)
    path = out / f"{experiment.name}.html"
    files.write(path, page(experiment.name, body).encode())
    return path


def write_tables(out: Path, experiment: Experiment, summary: pd.DataFrame) -> None:
    """The medians as Markdown and LaTeX."""
    tables = list(pivots(summary, experiment.shown))
    files.write(out / f"{experiment.name}.md", "".join(_markdown(*table) for table in tables).encode())
    files.write(out / f"{experiment.name}.tex", "".join(_latex(*table) for table in tables).encode())


def page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>{body}</body></html>\n"
    )


def contents(sections: Iterable[tuple[str, str, str]], others: Iterable[str]) -> str:
    """The head of a page of many sections: for each its name and scale, which are its place, and a line of what it is.

    ``others`` are not on the page.
    """
    lines = (f'<li><a href="#{name}-{scale}">{name}</a>: {escape(said)}</li>' for name, scale, said in sections)
    few = "; ".join(others)
    left_out = f"<p>Less than half of what their figures draw: {escape(few)}.</p>" if few else ""
    return f"<h1>Results</h1><ul>{''.join(lines)}</ul>{left_out}"


def section(
    experiment: Experiment,
    scale: str,
    summary: pd.DataFrame,
    drawn: list[Path],
    described: list[dict[str, Any]],
) -> str:
    """An experiment on a page."""
    tables = pivots(summary, experiment.shown)
    images = [base64.b64encode(path.read_bytes()).decode() for path in drawn]
    numbered = re.fullmatch(r"(Figures?|Table|Appendix|Theorem) [\w.]+([-,] ?[\d.]+)*", experiment.reference)
    reference = experiment.reference[:1].upper() + experiment.reference[1:] + (" of the paper" if numbered else "")
    parts = [
        f'<h1 id="{experiment.name}-{scale}">{escape(experiment.name)}: {escape(experiment.title)}</h1>',
        f"<p>{escape(reference)}, at {escape(scale)} scale. {_explained(experiment, scale)}</p>",
        *(f'<img alt="{escape(experiment.title)}" src="data:image/png;base64,{image}">' for image in images),
        "<h2>Medians</h2>",
        *(f"<h3>{escape(title)}</h3>{_html(_cells(table))}" for title, table in tables),
        _published(summary, experiment) if scale == "paper" else "",
        _trained(experiment, scale, described) if experiment.computed is None else "",
    ]
    return "".join(parts)


def _trained(experiment: Experiment, scale: str, described: list[dict[str, Any]]) -> str:
    """How the runs were trained, and on what."""
    cells, inputs = experiment.cells(scale), task(experiment.grid.tasks[0]).INPUTS
    recipes = list(dict.fromkeys(cell.recipe for cell in cells))
    there = {key for about in described for key in about["runs"]}
    each = Counter(cell.point for cell in cells if cell.key in there)
    settings = {
        "scale": scale,
        "tasks": _listed(cell.member.task for cell in cells),
        f"{inputs.removesuffix('s')} length n": _listed(f"{cell.model.n}" for cell in cells)
        + (" and shorter" if cells[0].variable_length else ""),
        "runs": f"{sum(each.values())} of {len(cells)}: {_listed(f'{count}' for count in sorted(each.values()))} a point",
        "recipe": f"{recipes[0].name}: {recipes[0].schedule} schedule, learning rate {recipes[0].lr:g}",
        "training": f"{_listed(f'{own.samples}' for own in recipes)} {inputs}, {recipes[0].epochs} epochs, batches of "
        f"{recipes[0].batch}",
        "measured": ", ".join(f"{key} {value}" for key, value in experiment.measure.at(scale).key().items()),
    }
    hardware = [
        [
            _network(about["spec"], inputs),
            about["result"]["hardware"],
            about["spec"]["precision"],
            f"{about['result']['seconds']:.0f}",
            ended(about["result"]["status"]),
        ]
        for about in described
    ]
    return (
        "<h2>Settings</h2>"
        + _html([["setting", "value"], *([key, value] for key, value in settings.items())])
        + "<h2>Hardware</h2>"
        + _html([["ensemble", "hardware", "precision", "seconds of training", "runs ended"], *hardware])
    )


def _network(spec: dict[str, Any], inputs: str) -> str:
    """What an ensemble is of, in words."""
    model = spec["model"]
    sizes = [
        f"{model[name]} {said}" for name, said in (("layers", "layers"), ("encoding", "encodings")) if name in model
    ]
    width = [f"width {model['width']}"] if "width" in model else []
    extra = [name for name in ("tied", "relative") if model.get(name)]
    trained = f"{spec['recipe']['samples']} {inputs}"
    return ", ".join([model.get("arch", "?"), f"n = {model['n']}", *sizes, *width, *extra, trained])


def _explained(experiment: Experiment, scale: str) -> str:
    shown, dotted = experiment.shown, _DOTTED + (_SHAPES if scale != "paper" else ". ")
    if experiment.computed is not None:
        return escape(experiment.computed.explained)
    if not isinstance(shown, Bars):
        kind = _KINDS.get(task(experiment.grid.tasks[0]).TOKENS, _LINES)
        return kind + (dotted if experiment.published else "") + _exact(experiment)
    hollow = _HOLLOW if experiment.published else ""
    return (_SHIFTS if shown.x == "distribution" else "") + _MARKERS + hollow + _exact(experiment)


def _exact(experiment: Experiment) -> str:
    return _EXACT if any(line.settings.get("arch") == "scale-exact" for line in experiment.grid.series) else ""


def _published(summary: pd.DataFrame, experiment: Experiment) -> str:
    """Ours against the published medians."""
    both = figures.against_published(summary, experiment)
    if both.empty:
        return ""
    header = [*experiment.shown.columns, "series", experiment.shown.x, "ours", "published", "ratio", "inside"]
    rows = [
        [
            *(f"{getattr(row, name)}" for name in header[:-4]),
            *(f"{value:.2e}" for value in (row.median, row.median_published)),
            f"{row.ratio:.2f}",
            ("yes" if row.inside else "no") if row.p10_published == row.p10_published else "",
        ]
        for row in both.itertuples()
    ]
    note = "<p>Inside: ours lies in the published 10th to 90th percentile band, where known, widened by a factor of two.</p>"
    return f"<h2>Against the published medians</h2>{note}{_html([header, *rows])}"


def ended(status: list[str]) -> str:
    """How many runs ended how."""
    return ", ".join(f"{status.count(kind)} {kind}" for kind in sorted(set(status)))


def pivots(summary: pd.DataFrame, shown: Lines) -> Iterable[tuple[str, pd.DataFrame]]:
    """For every panel of the figure its title and its medians: x down, series across, and a dash where there is no run."""
    for keys, own in summary.groupby(["metric", "view", *shown.columns], sort=False):
        metric, view, *column = keys
        title = ", ".join(dict.fromkeys(str(part) for part in (*column, view, metric) if part != ""))
        wide = own.pivot(index=shown.x, columns="series", values="median")
        there = own.assign(there=True).pivot(index=shown.x, columns="series", values="there").notna()
        if not there.all(axis=None):  # a median that is nan is one of runs that failed
            wide = wide.astype(object).where(there, "-")
        wide = wide[list(dict.fromkeys(own["series"]))]
        yield title, wide.loc[list(dict.fromkeys(own[shown.x]))] if isinstance(shown, Bars) else wide.sort_index()


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _cells(table: pd.DataFrame) -> list[list[str]]:
    """Header and rows as text."""
    rows = [
        [x if isinstance(x, str) else f"{x:g}", *(value if isinstance(value, str) else f"{value:.2e}" for value in own)]
        for x, own in zip(table.index, table.to_numpy(), strict=True)
    ]
    return [[str(table.index.name), *map(str, table.columns)], *rows]


def _html(rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _markdown(title: str, table: pd.DataFrame) -> str:
    rows = _cells(table)
    rule = ["---"] * len(rows[0])
    return f"### {title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], rule, *rows[1:])) + "\n"


def _latex(title: str, table: pd.DataFrame) -> str:
    rows = [" & ".join(cell.replace("%", r"\%").replace("_", r"\_") for cell in row) + r" \\" for row in _cells(table)]
    lines = [
        rf"\begin{{tabular}}{{r{'r' * table.shape[1]}}}",
        r"\toprule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
    ]
    return f"% {title}\n" + "\n".join([*lines, r"\end{tabular}"]) + "\n\n"
