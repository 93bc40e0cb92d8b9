"""One self-contained HTML page for an experiment: figure, numbers, settings, hardware and time."""

import base64
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from posattn.experiments.declaration import Experiment, Plan
from posattn.training import files

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
"""


def write(
    path: Path,
    experiment: Experiment,
    scale: str,
    plan: Plan,
    summary: pd.DataFrame,
    figure: Path,
    results: dict[str, Any],
) -> Path:
    """Writes the page and returns its path."""
    image = base64.b64encode(figure.read_bytes()).decode()
    settings = {
        "scale": scale,
        "tasks": ", ".join(plan.tasks),
        "list length n": plan.n,
        "runs a task and architecture": plan.seeds,
        "recipe": f"{plan.recipe.name}: {plan.recipe.schedule} schedule, learning rate {plan.recipe.lr:g}",
        "training": f"{plan.recipe.samples} lists, {plan.recipe.epochs} epochs, batches of {plan.recipe.batch}",
        "test lists a scale": plan.test_samples,
    }
    hardware = [
        [arch, result["hardware"], result["precision"], f"{result['seconds']:.0f}", _ended(result["status"])]
        for arch, result in results.items()
    ]
    parts = [
        f"<h1>{escape(experiment.name)}: {escape(experiment.title)}</h1>",
        f"<p>{escape(experiment.reference)} of the paper, at {escape(scale)} scale. Models are trained on numbers in "
        "[−2, 2] (scale 1) and tested on numbers in [−2c, 2c]. Lines are medians over runs, bands the 10th to 90th "
        "percentile, dotted lines the published medians, which took the full recipe: below paper scale ours are trained "
        "for a fraction of that, so compare the shapes. The scale-exact Transformer is the positional one without biases.</p>",
        f'<img alt="{escape(experiment.title)}" src="data:image/png;base64,{image}">',
        "<h2>Median squared error</h2>",
        *(_numbers(name, own) for name, own in summary.groupby("task", sort=False)),
        "<h2>Settings</h2>",
        _table(["setting", "value"], [[key, str(value)] for key, value in settings.items()]),
        "<h2>Hardware</h2>",
        _table(["architecture", "hardware", "precision", "seconds of training", "runs ended"], hardware),
    ]
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(experiment.name)}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    files.write(path, page.encode())
    return path


def _ended(status: list[str]) -> str:
    """How many runs ended how."""
    return ", ".join(f"{status.count(kind)} {kind}" for kind in sorted(set(status)))


def pivot(summary: pd.DataFrame) -> pd.DataFrame:
    """Scales down, architectures across, medians inside."""
    return summary.pivot(index="scale", columns="arch", values="median")[list(dict.fromkeys(summary["arch"]))]


def _numbers(name: object, own: pd.DataFrame) -> str:
    wide = pivot(own)
    rows = [
        [f"{scale:g}", *(f"{value:.2e}" for value in values)]
        for scale, values in zip(wide.index, wide.values, strict=True)
    ]
    return f"<h3>{escape(str(name))}</h3>" + _table(["scale", *map(str, wide.columns)], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
