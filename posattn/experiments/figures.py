"""Figures and tables from result rows alone: median line, 10th to 90th percentile band, published medians dotted."""

from collections.abc import Sequence
from importlib.resources import files as resources
from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from posattn.experiments.declaration import Experiment
from posattn.tasks import task
from posattn.training import files

# Okabe and Ito's colours, which stay apart for colour-blind readers; markers say the same again.
STYLES = {
    "standard": ("#D55E00", "s"),
    "positional": ("#0072B2", "o"),
    "scale-exact": ("#009E73", "^"),
}


_OTHERS = (("#CC79A7", "d"), ("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"), ("#999999", "*"), ("#7F3C00", "<"))


def style(arch: str, archs: Sequence[str]) -> tuple[str, str]:
    """Colour and marker of an architecture, the same in every panel of a figure that shows ``archs``."""
    others = [name for name in archs if name not in STYLES]
    return STYLES.get(arch) or _OTHERS[others.index(arch) % len(_OTHERS)]


def published() -> pd.DataFrame:
    """Medians and percentiles of the published runs, where they are known."""
    with resources("posattn").joinpath("data/published.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def medians(rows: pd.DataFrame, metric: str = "mse") -> pd.DataFrame:
    """Median, 10th and 90th percentile over runs, and how many runs ended well, by task, architecture and scale."""
    chosen = rows[rows["metric"] == metric]
    chosen = chosen.assign(value=chosen["value"].fillna(float("inf")))  # a run without a number is no better than any
    groups = chosen.groupby(["task", "arch", "scale"], sort=False)
    table = groups["value"].quantile([0.1, 0.5, 0.9]).unstack()
    table.columns = ["p10", "median", "p90"]
    table["runs"] = groups["value"].size()
    table["ok"] = groups["status"].agg(lambda status: int((status == "ok").sum()))
    return table.reset_index()


def error_against_scale(rows: pd.DataFrame, experiment: Experiment, out: Path) -> Path:
    """One panel a task. Writes PNG and PDF, returns the PNG's path."""
    table = medians(rows)
    tasks = list(dict.fromkeys(table["task"]))
    figure, panels = plt.subplots(
        1, len(tasks), figsize=(1.2 + 3.8 * len(tasks), 3.8), squeeze=False, layout="constrained"
    )
    archs = list(dict.fromkeys(table["arch"]))
    known = published()
    known = known[(known["experiment"] == experiment.name) & (known["split"] == "test")]
    for axes, name in zip(panels[0], tasks, strict=True):
        _panel(axes, table[table["task"] == name], known[known["task"] == name], archs)
        axes.set_title(task(name).title)
    panels[0][0].set_ylabel("mean squared error")
    panels[0][-1].legend(fontsize="small")
    path = out / f"{experiment.name}.png"
    for suffix in (".png", ".pdf"):
        image = BytesIO()
        figure.savefig(image, format=suffix[1:], dpi=150, metadata={"CreationDate": None} if suffix == ".pdf" else None)
        files.write(path.with_suffix(suffix), image.getvalue())
    plt.close(figure)
    return path


def _panel(axes: Axes, table: pd.DataFrame, known: pd.DataFrame, archs: list[str]) -> None:
    for arch, own in table.groupby("arch", sort=False):
        colour, marker = style(str(arch), archs)
        axes.fill_between(own["scale"], own["p10"], own["p90"], color=colour, alpha=0.18, linewidth=0)
        axes.plot(own["scale"], own["median"], color=colour, marker=marker, markersize=4, label=str(arch))
    for arch, theirs in known.groupby("arch", sort=False):
        colour, _ = STYLES[str(arch)]
        axes.plot(
            theirs["scale"],
            theirs["median"],
            color=colour,
            linestyle=":",
            linewidth=1.2,
            label=f"{arch}, published (full recipe)",
        )
    axes.set_yscale("log")
    axes.set_xlabel("scale of the numbers (1 is the training range)")
    axes.grid(alpha=0.25, which="both")
