"""``posattn reproduce``: figures of the paper, or of one's own, from training to the page."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from posattn.commands import console
from posattn.errors import counted

if TYPE_CHECKING:
    from posattn.experiments import Experiment, Outcome


def command(
    name: str | None = Argument(None, help="Experiment (see --list), all, or a .py file, which is executed."),
    scale: str = Option("quick", help="smoke (seconds), quick (minutes) or paper (the full recipe)."),
    out: Path | None = Option(None, help="Folder for rows and figure (default out/NAME-SCALE; for all, its parent)."),
    store: Path = Option(Path("out/store"), help="Folder of trained runs and their rows, shared by experiments."),
    device: str | None = console.DEVICE,
    engine: str = Option("local", help="Where to run: local, which is this machine, or ray."),
    address: str | None = Option(None, help="Ray cluster: auto or host:port (default: Ray on this machine alone)."),
    gpus_per_task: float = Option(0, help="With ray, GPUs an ensemble takes; 0.25 shares one."),
    cpus_per_task: float = Option(1, help="With ray, CPU cores an ensemble takes."),
    precision: str | None = Option(None, help="fp32, or on a GPU tf32 or fp16 (default: fp32; rows of any are drawn)."),
    only: list[str] | None = Option(
        None, help="Train this series now; may be given several times. With all: where there is one."
    ),
    runs: int | None = Option(None, help="Train this many runs per point now (default all; 0 draws what is there)."),
    checkpoint: str | None = Option(None, help="Of gpt2: a folder that holds a GPT-2, or its name on the hub."),
    show_list: bool = Option(False, "--list", help="List the experiments."),
    as_json: bool = Option(False, "--json", help="Print the medians, or with --list the list, as JSON: one object per line."),
) -> None:
    """Redo a figure of the paper: train, test, draw. Run again, it goes on where it stopped or does nothing."""
    from posattn.baselines.gpt2 import NotHere
    from posattn.experiments import NothingStored, Store, engine_named, experiments_named, having, reproduce
    from posattn.experiments.gpt2_comparison import with_checkpoint

    if show_list or name is None:
        return _list(scale, device, as_json)

    def announce(line: str) -> None:
        print(line, flush=True, file=sys.stderr if as_json else None)

    chosen, held = experiments_named(name), Store(store)
    if checkpoint is not None:
        chosen = with_checkpoint(chosen, checkpoint)
    runner = engine_named(engine, announce, device, address, gpus_per_task, cpus_per_task)
    for each, own in having(chosen, only or (), scale):
        folder = out / each.name if out and name == "all" else out or Path("out") / f"{each.name}-{scale}"
        try:
            outcome = reproduce(each, scale, folder, held, runner, precision, own, runs)
        except (NothingStored, NotHere) as error:
            if name != "all":
                raise
            announce(f"{each.name}: {error}")
        else:
            (_print_json if as_json else _show)(each, scale, outcome)


def _list(scale: str, device: str | None, as_json: bool) -> None:
    import torch

    from posattn.devices import pick_device
    from posattn.experiments import EXPERIMENTS
    from posattn.training.estimate import REST, in_words, seconds, where

    place = torch.device("cuda") if device == "cuda" else pick_device(device)  # an estimate needs no GPU
    rows = []
    for each in EXPERIMENTS.values():
        cells = each.cells(scale)
        took = sum(seconds(cell.model, cell.recipe, place, lengths=cell.spec().lengths) for cell in cells)
        rows.append((each.name, each.reference, each.title, len(cells), took))
        if as_json:
            named = dict(zip(("name", "reference", "what", "runs", "seconds"), rows[-1], strict=True))
            print(json.dumps(named | {"scale": scale, "more": each.source.more(scale)}))
    if as_json:
        return
    columns = ("experiment", "in the paper", "what", f"models at {scale} scale", f"training on {where(place)}")
    console.print_table(None, columns, [(*about, in_words(took)) for *about, took in rows])
    rest = f"on {where(place)} as fast as {REST[place.type]}"
    print(f"Times are estimates for each experiment alone, {rest}; nothing is timed here.")
    print("Runs that several experiments share are trained once.")
    for each in EXPERIMENTS.values():
        if more := each.source.more(scale):
            print(f"Not in these numbers: {each.name} also takes {more}.")


def _print_json(experiment: "Experiment", scale: str, outcome: "Outcome") -> None:
    about = {"experiment": experiment.name, "scale": scale, "figure": str(outcome.figure), "page": str(outcome.page)}
    medians = json.loads(outcome.table.to_json(orient="records"))  # null where there is no number
    print(json.dumps(about | {"medians": medians}))


def _show(experiment: "Experiment", scale: str, outcome: "Outcome") -> None:
    from posattn.experiments.report import fewer_tasks

    print(f"{experiment.name}: {experiment.title}")
    if fewer := fewer_tasks(experiment, scale):
        print(fewer)
    for title, table in outcome.tables:
        console.print_frame(title, table.reset_index())
    cells = experiment.cells(scale)
    trained = outcome.rows["arch"].isin({cell.model.arch for cell in cells})  # neither compiled nor fine-tuned
    ended = outcome.rows[trained].drop_duplicates("run")["status"]
    if len(ended) < (declared := len(cells)):
        print(f"{len(ended)} of {counted(declared, 'run')} are there; of what has none, nothing is drawn, or a dash.")
    if failed := int((ended != "ok").sum()):
        print(f"{failed} of {counted(len(ended), 'network')} diverged or died; they count as they are.")
    print(f"Figure: {outcome.figure}\nPage:   {outcome.page}")
