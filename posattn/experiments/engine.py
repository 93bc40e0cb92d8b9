"""Runs an experiment on this machine: trains what its folder lacks, tests it, and writes rows, figure and page.

out/runs/ARCH-.../     a folder for each ensemble (see posattn.training.run); finished ones are never trained again
out/rows.csv           one row a run, scale factor and metric, with the settings beside each
out/NAME.png, .pdf     the figure, drawn from the rows alone
out/NAME.html          figure, table, settings and hardware on one self-contained page
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from posattn.experiments import figures, report
from posattn.experiments.declaration import Experiment
from posattn.training import RunSpec, files, train_spec


@dataclass(frozen=True)
class Outcome:
    """What a reproduction leaves behind."""

    rows: pd.DataFrame
    table: pd.DataFrame
    page: Path
    figure: Path


def reproduce(
    experiment: Experiment,
    scale: str,
    out: Path,
    device: torch.device,
    announce: Callable[[str], None] = lambda message: None,
    progress: bool | None = None,
) -> Outcome:
    """Runs ``experiment`` at ``scale`` into the folder ``out``; called again, it goes on or does nothing."""
    plan = experiment.plan(scale)
    rows, notes = [], []
    for spec in plan.ensembles():
        folder = out / "runs" / _folder(spec)
        announce(
            f"{spec.model.arch}: {len(spec.members)} models, {spec.recipe.epochs} epochs of {spec.recipe.samples} lists"
        )
        run = train_spec(spec, device, folder, progress=progress)
        rows.append(run.rows(run.evaluate(plan.factors, plan.test_samples), experiment.name))
        notes.append(report.RunNote(spec.model.arch, run.result))
    table = pd.concat(rows, ignore_index=True)
    files.write(out / "rows.csv", table.to_csv(index=False).encode())
    figure = figures.error_against_scale(table, experiment, out)
    summary = figures.medians(table)
    page = report.write(out / f"{experiment.name}.html", experiment, scale, summary, figure, notes)
    return Outcome(table, summary, page, figure)


def _folder(spec: RunSpec) -> str:
    digest = hashlib.sha256(json.dumps(spec.to_dict(), sort_keys=True).encode()).hexdigest()[:12]
    return f"{spec.model.arch}-{digest}"
