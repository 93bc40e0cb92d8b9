"""``posattn train``: networks of a task into a folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from posattn.commands import console
from posattn.errors import UsageError, counted, whole
from posattn.names import ARCHITECTURES, ENCODINGS, FAMILIES, LAYOUTS, RECIPES, TASKS

if TYPE_CHECKING:
    from posattn.training import Run


def command(
    name: str | None = Argument(
        None, metavar="TASK", help=f"What to learn: {', '.join(TASKS)} (default: what --from or --pretrained learned)."
    ),
    arch: str | None = Option(None, help=f"Architecture: {', '.join(ARCHITECTURES)} (default positional)."),
    n: int | None = Option(None, help="Numbers in a training list (default 8), or tokens (default: the task's own)."),
    members: int = Option(1, help="How many networks to train together, each from its own seed."),
    samples: int | None = Option(None, help="Training lists per network (default: the recipe's; paper 30000)."),
    epochs: int | None = Option(None, help="Passes over the training lists (default: the recipe's; paper 2001)."),
    batch: int | None = Option(None, help="Lists per step (default: the recipe's; paper 1000)."),
    lr: float | None = Option(None, help="Learning rate (default: the recipe's; paper 5e-4)."),
    polish: int | None = Option(None, metavar="STEPS", help="Last steps of looped networks (default: the recipe's)."),
    recipe: str | None = Option(
        None, help=f"How to train: {', '.join(RECIPES)} (default: paper, or what looped networks have of their own)."
    ),
    seed: int = Option(0, help="Seed of the first network; the others count on from it."),
    layers: int | None = Option(None, help="Layers (default floor(log2 n) + 1, or the token task's own; looped 1)."),
    heads: int | None = Option(None, help="Attention heads per layer (default 2)."),
    embed: int | None = Option(None, help="Width of the state (default 64, or the token task's or the family's own)."),
    width: int | None = Option(None, help="Hidden width of the MLPs (default 64, or the token task's own; looped 24)."),
    encoding: str | None = Option(None, help=f"Positional encoding: {', '.join(ENCODINGS)} (default one-hot)."),
    encoding_dim: int | None = Option(None, help="Its dimension (default: the encoding's own)."),
    no_bias: bool = Option(False, "--no-bias", help="Leave out every bias."),
    tied: bool = Option(False, "--tied", help="Decode words by the vectors that embed them (khop)."),
    relative: bool = Option(False, "--relative", help="Read a prompt's numbers relative to their mean (mixed tasks)."),
    layout: str | None = Option(None, help=f"Positions of a prompt: {', '.join(LAYOUTS)} (mixed; default elements)."),
    family: str | None = Option(None, help=f"Where looped networks look: {', '.join(FAMILIES)} (default: the task's)."),
    variable_length: bool = Option(False, "--variable-length", help="Train on lists of 1 to n numbers, equally often."),
    lengths: str | None = Option(
        None, help="Numbers in the training lists, of these lengths equally often: 2,4,8,16; the longest is n."
    ),
    begin: Path | None = Option(
        None,
        "--from",
        metavar="RUN",
        help="Begin with a run's weights, and its network where no option says another; or with those of a program that "
        "solves the task: compiled, or compiled:PROGRAM.",
    ),
    pretrained: str | None = Option(
        None, metavar="TASK", help="Begin with the package's network for TASK, of architecture --arch."
    ),
    task_file: Path | None = console.TASK_FILE,
    device: str | None = console.DEVICE,
    precision: str = Option("fp32", help="fp32, or on a GPU tf32 or fp16."),
    out: Path | None = Option(None, help="Folder for the run (default runs/TASK-ARCH)."),
    save_every: float = Option(60.0, help="Seconds between checkpoints."),
    tensorboard: bool = Option(False, "--tensorboard", help="Also write TensorBoard events."),
) -> None:
    """Train networks on a task into a folder. The same command again resumes the run, or does nothing if it is done.

    Example: posattn train sort --members 10 --out runs/sort
    """
    from posattn.run_folder import RunFolder
    from posattn.training import network_for, train
    from posattn.training.begin import named_program, names_program, run_of_program, task_of
    from posattn.training.run import trained

    whole("members", members)
    if variable_length and lengths is not None:
        raise UsageError(f"lengths is {lengths!r}; --variable-length is given too, and says other ones.")
    if begin is not None and pretrained is not None:
        raise UsageError(f"pretrained is {pretrained!r}; --from is given too, and training begins with one of them.")
    before = None
    if begin is not None and names_program(begin):
        if name is None:
            raise UsageError(f"TASK is missing; --from {begin} begins with a program for it.")
        before = run_of_program(named_program(begin, name, n or network_for(name).n), name, members)
    elif begin is not None:
        before = trained(begin, "from")
    if pretrained is not None:
        from posattn.pretrained import pretrained_run

        before = pretrained_run(pretrained, arch or "positional")
    learned = task_of(before, members) if name is None else name
    if learned is None and before is not None:
        raise UsageError("TASK is missing; the run to begin with has learned data of its own, which is no task of the command.")
    if learned is None:
        raise UsageError(f"TASK is missing; it must be one of {', '.join(TASKS)}, or that of --from RUN or --pretrained TASK.")
    if name is None and before is not None:
        before.task_of(0)  # raises, with what to do, where it is somebody's own and not here
    first, *others = [learned] if isinstance(learned, str) else dict.fromkeys(learned)
    network = {"arch": arch, "n": n, "layers": layers, "heads": heads, "embed": embed, "width": width, "family": family}
    network |= {"encoding": encoding, "encoding_dim": encoding_dim, "bias": False if no_bias else None}
    network |= {"tied": tied or None, "relative": relative or None, "layout": layout}
    config = network_for(first, None if before is None else before.spec.model, **network)
    folder = Path("runs") / f"{'-'.join((first, *others))}-{config.arch}" if out is None else out
    known = RunFolder(folder).finished
    run = train(
        learned,
        config,
        members=members,
        samples=samples,
        epochs=epochs,
        batch=batch,
        lr=lr,
        polish=polish,
        recipe=recipe,
        seed=seed,
        variable_length=variable_length if lengths is None else console.parse_lengths(lengths),
        begin=before,
        device=device,
        precision=precision,
        out=folder,
        save_every=save_every,
        tensorboard=tensorboard,
        announce=lambda line: print(line, flush=True),
    )
    _show(run, folder, "already trained" if known else "trained", "" if task_file is None else f" --task-file {task_file}")


def _show(run: "Run", folder: Path, what: str, more: str) -> None:
    from posattn.network import can

    losses = zip(run.result["train_loss"], run.result["validation_loss"], strict=True)
    rows = [
        (index, member.seed, status, *("-" if loss is None else f"{loss:.3e}" for loss in own))
        for index, (member, status, own) in enumerate(zip(run.spec.members, run.status, losses, strict=True))
    ]
    columns = ("member", "seed", "status", "training loss", "validation loss")
    console.print_table(f"{len(run)} {what} in {folder}", columns, rows)
    if "polished" in run.result:
        better = sum(run.result["polished"])
        print(f"Last steps: {better} of {counted(len(run), 'network')} {'is' if better == 1 else 'are'} the better for them.")
        if better < len(run):
            print("Where attention has not settled, lists of several --lengths, or another --seed, may help.")
    scales = "1:10" if len(run.task.SCALES) == 10 else ",".join(f"{scale:g}" for scale in run.task.SCALES)
    options = f"--scales {scales}"
    if can(run.spec.model, "last steps"):
        options = f"--lengths {run.spec.model.n},{64 * run.spec.model.n} --scales 1,10 --samples 100"
    print(f"Next: posattn evaluate {folder} {options}{more}")
