"""Runs an experiment on this machine: trains what its folder lacks, tests it, and writes rows, figure and page.

out/experiment.json         which experiment, at which scale
out/rows/ARCH-.csv, .json   an ensemble's rows, and its configuration and result; what is here is not trained again
out/runs/ARCH-.../          its folder in training, with the weights (see posattn.training.run)
out/rows.csv                all rows: one a run, scale factor and metric, with the settings beside each
out/NAME.png, .pdf          the figure, drawn from the rows alone
out/NAME.html               figure, table, settings and hardware on one self-contained page
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from posattn.errors import UsageError
from posattn.experiments import figures, report
from posattn.experiments.declaration import Experiment, Plan
from posattn.training import RunSpec, files, train_spec
from posattn.training.spec import PRECISIONS


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
    precision: str | None = None,
    only: Collection[str] = (),
) -> Outcome:
    """Runs ``experiment`` at ``scale`` into the folder ``out``; called again, it goes on or does nothing.

    ``only`` names the architectures to train now; those whose rows are there already are drawn too. Without a ``precision``
    rows of any will do, and what is lacking is trained in fp32.
    """
    plan = experiment.plan(scale)
    for arch in only:
        if arch not in plan.archs:
            raise UsageError(f"only is {arch!r}; {experiment.name} has {', '.join(plan.archs)}.")
    _claim(out, {"experiment": experiment.name, "scale": scale})
    tables, results = [], {}
    for spec in plan.ensembles():
        options = [replace(spec, precision=name) for name in (PRECISIONS if precision is None else (precision,))]
        held = [option for option in options if _stored(option, plan, experiment, out).with_suffix(".json").exists()]
        spec = (held or options)[0]
        stored = _stored(spec, plan, experiment, out)
        if not stored.with_suffix(".json").exists():
            if only and spec.model.arch not in only:
                continue
            _train(spec, plan, experiment, out, device, announce, progress)
        described = files.read_json(stored.with_suffix(".json"))
        tables.append(pd.read_csv(BytesIO(files.read_checked(stored, described.get("sha256")))))
        results[spec.model.arch] = described["result"] | {"precision": spec.precision}
    rows = pd.concat(tables, ignore_index=True)
    files.write(out / "rows.csv", rows.to_csv(index=False, na_rep="nan").encode())
    figure = figures.error_against_scale(rows, experiment, out)
    summary = figures.medians(rows)
    page = report.write(out / f"{experiment.name}.html", experiment, scale, plan, summary, figure, results)
    return Outcome(rows, summary, page, figure)


def _claim(out: Path, what: dict[str, str]) -> None:
    """Makes ``out`` the folder of one experiment at one scale; a folder of anything else is refused."""
    described = out / "experiment.json"
    if not described.exists():
        if out.is_dir() and set(out.iterdir()) - {out / "rows", out / "runs"}:
            raise UsageError(f"out is {str(out)!r}, which holds other files; give an empty or a new folder.")
        files.write_json(described, what)
    elif (held := files.read_json(described)) != what:
        raise UsageError(f"out is {str(out)!r}, which holds {held}; give another folder for {what}.")


def _train(
    spec: RunSpec,
    plan: Plan,
    experiment: Experiment,
    out: Path,
    device: torch.device,
    announce: Callable[[str], None],
    progress: bool | None,
) -> None:
    """Trains and tests one ensemble. The JSON is written last: what has one is complete."""
    announce(
        f"{spec.model.arch}: {len(spec.members)} models, {spec.recipe.epochs} epochs of {spec.recipe.samples} lists"
    )
    run = train_spec(spec, device, out / "runs" / f"{spec.model.arch}-{spec.digest}", progress=progress)
    rows = run.rows(run.evaluate(plan.factors, plan.test_samples), experiment.name)
    stored = _stored(spec, plan, experiment, out)
    content = rows.to_csv(index=False, na_rep="nan").encode()
    files.write(stored, content)
    described = _settings(spec, plan, experiment) | {"result": run.result, "sha256": files.sha256(content)}
    files.write_json(stored.with_suffix(".json"), described)


def _settings(spec: RunSpec, plan: Plan, experiment: Experiment) -> dict[str, Any]:
    """What determines an ensemble's rows."""
    tested = {"factors": list(plan.factors), "test_samples": plan.test_samples}
    return {"experiment": experiment.name, "tested": tested, "spec": spec.to_dict()}


def _stored(spec: RunSpec, plan: Plan, experiment: Experiment, out: Path) -> Path:
    """Where an ensemble's rows are or will be."""
    digest = files.sha256(json.dumps(_settings(spec, plan, experiment), sort_keys=True).encode())
    return out / "rows" / f"{spec.model.arch}-{digest[:12]}.csv"
