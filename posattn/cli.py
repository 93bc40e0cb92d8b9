"""The ``posattn`` command: one verb for each thing a person wants to do.

Bad input ends in one sentence on standard error and exit code 2.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.table import Table
from torch import Tensor, nn

from posattn.compiler.command import register as register_compiler
from posattn.compiler.saved import load
from posattn.console import console, parse_lengths, parse_list, parse_scales, print_frame
from posattn.errors import UsageError, choice
from posattn.explorer import explore
from posattn.gpt2_command import gpt2_command
from posattn.pretrained import pretrained as of_package
from posattn.pretrained import seed_of
from posattn.theory import commands as theory_commands
from posattn.train_command import train_command
from posattn.training import Run, files, pick_device
from posattn.training.answers import answer_tokens
from posattn.training.network import NetworkConfig
from posattn.training.scores import LENGTH_SCORES, scores_of
from posattn.training.spec import PRECISIONS

if TYPE_CHECKING:  # drawing is slow to import, and most commands do not
    from posattn.experiments import AnyEngine, Experiment, Outcome

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, test and reproduce positional Transformers: attention that depends on positions alone.",
)


def main() -> None:
    """The entry point: a UsageError becomes a sentence and exit code 2."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"posattn: {message}", file=sys.stderr)
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except UsageError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}."
    except KeyboardInterrupt:
        raise SystemExit(_stopped()) from None
    except Exception as error:
        if type(error).__name__ == "Abort":  # what typer makes of Ctrl-C
            raise SystemExit(_stopped()) from None
        # What the command line itself got wrong: typer's own errors, whose classes differ between its versions.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
    if message:  # none where help was shown for want of arguments
        print(f"posattn: {message}", file=sys.stderr)
    raise SystemExit(2)


def _stopped() -> int:
    print("posattn: stopped.", file=sys.stderr)
    return 130


def _show_version(wanted: bool) -> None:
    if wanted:
        from posattn import __version__

        print(f"posattn {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


_RUN = "Folder of a finished run, as given to train --out."
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help=_RUN)]
OfPackage = Annotated[
    str | None, typer.Option(metavar="TASK", help="In RUN's place: the network for TASK that comes with the package.")
]
OfArch = Annotated[
    str | None, typer.Option(help="Which of these: positional (the default), scale-exact, standard or looped.")
]


app.command("train")(train_command)


@app.command()
def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help=_RUN)] = None,
    scales: Annotated[
        str | None,
        typer.Option(
            help="Scale factors: 1:10 (default; 1,2 for khop; 1,10 with --lengths), or 1,2,5; 1 is the training range."
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Numbers in the test lists, 16,1024: for networks that take any (looped).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Test lists of each scale factor, and of each length.")] = 1000,
    each: Annotated[
        bool, typer.Option("--each", help="A row for every network instead of the median over them.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write every network's numbers to this CSV file.")] = None,
    pretrained: OfPackage = None,
    arch: OfArch = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU if there is one).")] = None,
) -> None:
    """Test a run in and out of distribution: squared error and the paper's two accuracies at every scale factor.

    Token tasks have other columns: cross-entropy and accuracy by hop count (khop), squared and percentage error (mixed).
    """
    factors = None if scales is None else parse_scales(scales)
    if (run is None) == (pretrained is None):
        raise UsageError("networks are tested; give RUN, or --pretrained TASK.")
    trained, title = _networks(run, pretrained, arch, device)
    if lengths is None:
        table = trained.evaluate(factors, samples)
        score = scores_of(trained.task.name)
    else:
        table = trained.evaluate_lengths(parse_lengths(lengths), factors or (1, 10), samples)
        score = LENGTH_SCORES
    if csv is not None:
        files.write(csv, table.to_csv(index=False).encode())
        print(f"Every network's numbers: {csv}")
    keys = ["task", "scale", *score.by] if not each else ["member", "task", "seed", "scale", *score.by]
    shown = table if each else table.groupby(keys, sort=False).median(numeric_only=True).reset_index()
    kind = trained.kind + (", each network" if each else f", median of {len(trained)}")
    print_frame(shown[[*keys, *score.metrics]], f"{title} ({kind})")
    failed = [f"member {k} {status}" for k, status in enumerate(trained.status) if status != "ok"]
    if failed:
        print(f"Not all networks trained: {', '.join(failed)}.")


@app.command(context_settings={"ignore_unknown_options": True})  # a list may begin with a minus sign
def predict(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help=_RUN)] = None,
    numbers: Annotated[
        str | None,
        typer.Argument(
            metavar="LIST",
            help="Numbers with commas between them: 3.2,1.5,-0.5,2. For khop a sequence: 2abcabd; for mixed tasks a prompt.",
        ),
    ] = None,
    member: Annotated[int | None, typer.Option(help="Which network of the run to ask (default 0).")] = None,
    pretrained: OfPackage = None,
    arch: OfArch = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU if there is one).")] = None,
) -> None:
    """Ask a trained network about a list: its answer beside the true one."""
    if pretrained is not None and numbers is None:
        run, numbers = None, run
    if numbers is None or (run is None) == (pretrained is None):
        raise UsageError("a network is asked about a list; give RUN and LIST, or LIST and --pretrained TASK.")
    if pretrained is not None and member is not None:
        raise UsageError(f"member is {member}; --pretrained TASK is one network.")
    trained, where = _networks(run, pretrained, arch, device)
    member = 0 if member is None else member
    if trained.reads_tokens:
        print(answer_tokens(trained, member, numbers))
        return
    values = parse_list(numbers)
    x = trained.as_input(values)
    if not trained.spec.variable_length:
        _warn_of_shorter(len(values), trained.spec.model, "this run" if pretrained is None else "this network")
    trained.check_member(member)
    title = f"{trained.spec.members[member].task} by {where}"
    _print_answers(title, x, trained.model(member), trained.truth(x, member))


def _networks(run: str | Path | None, pretrained: str | None, arch: str | None, device: str | None) -> tuple[Run, str]:
    """Those of a folder, or the one that comes with the package, and where they are from."""
    if pretrained is None:
        if arch is not None:
            raise UsageError(f"arch is {arch!r}; a run has its own.")
        return load(str(run), device), str(run)
    arch = "positional" if arch is None else arch
    model = of_package(pretrained, arch).to(pick_device(device))
    return Run.of(model, pretrained, seed_of(pretrained, arch)), f"{arch}, with the package"


def _warn_of_shorter(length: int, config: NetworkConfig, what: str) -> None:
    if length < config.n and not getattr(config, "any_length", False):
        warnings.warn(f"the list has {length} numbers; {what} was trained on {config.n} only.", stacklevel=1)


def _print_answers(title: str, x: Tensor, model: nn.Module, truth: Tensor) -> None:
    with torch.no_grad():
        answer = model(x)
    table = Table("position", "input", "model", "true", "error", title=title)
    for index, (given, said, right) in enumerate(zip(x, answer, truth, strict=True)):
        shown = [
            " ".join(f"{number:{form}}" for number in value.flatten().tolist())  # compiled programs may have vectors
            for value, form in ((given, "g"), (said, ".4f"), (right, ".4f"), (said - right, "+.4f"))
        ]
        table.add_row(str(index + 1), *shown)
    console().print(table)


@app.command()
def export(
    run: RunFolder,
    onnx: Annotated[Path | None, typer.Option(help="Write this ONNX file.")] = None,
    torch_file: Annotated[
        Path | None, typer.Option("--torch", help="Write this file, which torch.export.load reads.")
    ] = None,
    member: Annotated[int, typer.Option(help="Which network of the run.")] = 0,
    length: Annotated[
        int | None,
        typer.Option("--length", "--n", help="Numbers in a list that the file takes (default: as many as trained on)."),
    ] = None,
) -> None:
    """Write a trained network for other programs: folded, for any number of lists at once, and checked."""
    from posattn.export import to_onnx, to_torch

    if onnx is None and torch_file is None:
        raise UsageError("nothing is to be written; give --onnx FILE or --torch FILE.")
    held = load(run, "cpu")
    model, lists = held.model(member), held.examples()
    where = "up to scale 10" if lists is None else "within its bounds"
    for path, write in ((onnx, to_onnx), (torch_file, to_torch)):
        if path is not None:
            difference = write(model, path, length, lists)
            size = path.stat().st_size / 1e6
            print(f"{path}: {size:.1f} MB; its answers are the network's to {difference:.0e}, relative, {where}.")


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="Experiment (see --list), all of them (all), or a .py file of your own."),
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds), quick (minutes) or paper (the full recipe).")] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for rows, figure and page (default out/NAME-SCALE; for all, its parent)."),
    ] = None,
    store: Annotated[Path, typer.Option(help="Folder of trained runs and their rows, shared by experiments.")] = Path(
        "out/store"
    ),
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU if there is one).")] = None,
    engine: Annotated[str, typer.Option(help="Where to run: local, which is this machine, or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: auto or host:port (default: Ray on this machine alone).")
    ] = None,
    gpus_per_task: Annotated[float, typer.Option(help="With ray, GPUs an ensemble takes; 0.25 shares one.")] = 0,
    cpus_per_task: Annotated[float, typer.Option(help="With ray, CPU cores an ensemble takes.")] = 1,
    precision: Annotated[
        str | None, typer.Option(help="fp32, or on a GPU tf32 or fp16 (default: fp32; rows of any are drawn).")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Train this series now; may be given several times. With all: where there is one."),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Train this many runs of every point now (default: all; 0 draws what is there).")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the medians as JSON, an object an experiment, in place of tables.")
    ] = False,
) -> None:
    """Redo a figure of the paper: train, test, draw. Run again, it goes on where it stopped or does nothing."""
    from posattn.experiments import EXPERIMENTS, SIZES, Engine, NothingStored, RayEngine, Store, having
    from posattn.experiments import reproduce as run_experiment
    from posattn.experiments.estimate import in_words, seconds
    from posattn.experiments.userfile import experiments_named

    choice("scale", scale, SIZES)
    place = pick_device(device)
    if show_list or name is None:
        where = "the CPU" if place.type == "cpu" else "an H200 in fp16"
        table = Table("experiment", "in the paper", "what", f"models at {scale} scale", f"training on {where}")
        for row in EXPERIMENTS.values():
            cells = row.cells(scale)
            table.add_row(row.name, row.reference, row.title, str(len(cells)), in_words(seconds(cells, place)))
        console().print(table)
        print("Times are estimates for each experiment alone; runs that several share are trained once.")
        return
    chosen = experiments_named(name)
    choice("engine", engine, ["local", "ray"])
    if precision is not None:
        choice("precision", precision, PRECISIONS)

    def announce(line: str) -> None:
        print(line, flush=True, file=sys.stderr if as_json else None)

    runner: AnyEngine = Engine(place, announce)
    if engine == "ray":
        if device is not None:
            raise UsageError(f"device is {device!r}; with engine ray it follows from gpus-per-task.")
        runner = RayEngine(address, gpus_per_task, cpus_per_task, announce)
    else:
        for option, value, default in (
            ("address", address, None),
            ("gpus-per-task", gpus_per_task, 0),
            ("cpus-per-task", cpus_per_task, 1),
        ):
            if value != default:
                raise UsageError(f"{option} is {value!r}; only engine ray takes one.")
    held = Store(store)
    for experiment, own in having(chosen, only or (), scale):
        folder = out / experiment.name if out and name == "all" else out or Path("out") / f"{experiment.name}-{scale}"
        try:
            outcome = run_experiment(experiment, scale, folder, held, runner, precision, own, runs)
        except NothingStored as error:
            if name != "all":
                raise
            announce(f"{experiment.name}: {error}")
        else:
            _print_outcome(experiment, scale, outcome, as_json)


def _print_outcome(experiment: "Experiment", scale: str, outcome: "Outcome", as_json: bool) -> None:
    if as_json:
        medians = json.loads(outcome.table.to_json(orient="records"))  # null where there is no number
        about = {
            "experiment": experiment.name,
            "scale": scale,
            "figure": str(outcome.figure),
            "page": str(outcome.page),
        }
        print(json.dumps(about | {"medians": medians}))
        return
    print(f"{experiment.name}: {experiment.title}")
    for title, table in outcome.tables:
        print_frame(table.reset_index(), title)
    ended = outcome.rows.drop_duplicates("run").query("arch != 'compiled'")["status"]
    if len(ended) < (declared := len(experiment.cells(scale))):
        print(f"{len(ended)} of {declared} runs are there; of what has none, nothing is drawn, or a dash.")
    if failed := int((ended != "ok").sum()):
        print(f"{failed} of {len(ended)} networks diverged or died; they count as they are.")
    print(f"Figure: {outcome.figure}\nPage:   {outcome.page}")


@app.command()
def report(
    store: Annotated[Path, typer.Option(help="Folder of trained runs and their rows.")] = Path("out/store"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("out/report.html"),
) -> None:
    """One self-contained page of the listed experiments that a store holds: figures, numbers, settings, hardware."""
    from posattn.experiments import Store, report_on

    shown, others = report_on(Store(store), out)
    print("\n".join(shown))
    if others:
        print("Not on the page, with less than half of what their figures draw:\n" + "\n".join(others))
    print(f"Page: {out}")


# Help lists commands in this order: what most people want first.
app.command("explore")(explore)
register_compiler(app)
app.command("gpt2")(gpt2_command)
theory_commands.register(app)
