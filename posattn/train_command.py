"""The command ``posattn train``: networks of a task into a folder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from posattn.console import console, parse_lengths
from posattn.encodings import ENCODINGS
from posattn.errors import UsageError
from posattn.model import ARCHITECTURES, ModelConfig
from posattn.offsets import FAMILIES
from posattn.run_folder import RunFolder
from posattn.tasks import TASKS, task
from posattn.training import RECIPES, Run, train
from posattn.training.network import NetworkConfig, family_of
from posattn.training.run import trained


def train_command(
    name: Annotated[str, typer.Argument(metavar="TASK", help=f"What to learn: {', '.join(TASKS)}.")],
    arch: Annotated[
        str | None, typer.Option(help=f"Architecture: {', '.join(ARCHITECTURES)} (default positional).")
    ] = None,
    n: Annotated[
        int | None, typer.Option(help="Numbers in a training list (default 8), or tokens (default: the task's own).")
    ] = None,
    members: Annotated[int, typer.Option(help="How many networks to train together, each from its own seed.")] = 1,
    samples: Annotated[
        int | None, typer.Option(help="Training lists a network (default: the recipe's; paper 30000).")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training lists (default: the recipe's; paper 2001).")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Lists a step (default: the recipe's; paper 1000).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate (default: the recipe's; paper 5e-4).")] = None,
    polish: Annotated[
        int | None, typer.Option(metavar="STEPS", help="Last steps of looped networks (default: the recipe's).")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help=f"How to train: {', '.join(RECIPES)} (default: paper, or what looped networks have of their own)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first network; the others count on from it.")] = 0,
    layers: Annotated[
        int | None, typer.Option(help="Layers (default floor(log2 n) + 1, or the token task's own; looped 1).")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads a layer (default 2).")] = None,
    embed: Annotated[
        int | None, typer.Option(help="Width of the state (default 64, or the token task's or the family's own).")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Hidden width of the MLPs (default 64, or the token task's own; looped 24).")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help=f"Positional encoding: {', '.join(ENCODINGS)} (default one-hot).")
    ] = None,
    encoding_dim: Annotated[int | None, typer.Option(help="Its dimension (default: the encoding's own).")] = None,
    no_bias: Annotated[bool, typer.Option("--no-bias", help="Leave out every bias.")] = False,
    tied: Annotated[bool, typer.Option("--tied", help="Decode words by the vectors that embed them (khop).")] = False,
    relative: Annotated[
        bool, typer.Option("--relative", help="Read the numbers of a prompt relative to their mean (mixed tasks).")
    ] = False,
    family: Annotated[
        str | None,
        typer.Option(help=f"Where looped networks look: {', '.join(FAMILIES)} (default: as the task needs)."),
    ] = None,
    variable_length: Annotated[
        bool, typer.Option("--variable-length", help="Train on lists of 1 to n numbers, equally often.")
    ] = False,
    lengths: Annotated[
        str | None,
        typer.Option(help="Numbers in the training lists, of these lengths equally often: 2,4,8,16; the longest is n."),
    ] = None,
    begin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Begin with the weights of a run, and its network where no option says another.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU if there is one).")] = None,
    precision: Annotated[str, typer.Option(help="fp32, or on a GPU tf32 or fp16.")] = "fp32",
    out: Annotated[Path | None, typer.Option(help="Folder for the run (default runs/TASK-ARCH).")] = None,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train networks on a task into a folder. The same command again resumes the run, or does nothing if it is done.

    Example: posattn train sort --members 10 --out runs/sort
    """
    given = {"arch": arch, "n": n, "layers": layers, "heads": heads, "embed": embed, "width": width, "family": family}
    given |= {
        "encoding": encoding,
        "encoding_dim": encoding_dim,
        "bias": False if no_bias else None,
        "tied": tied or None,
        "relative": relative or None,
    }
    if variable_length and lengths is not None:
        raise UsageError(f"lengths is {lengths!r}; --variable-length is given too, and says other ones.")
    before = None if begin is None else trained(begin, "from")
    config = _network(name, {field: value for field, value in given.items() if value is not None}, before)
    folder = Path("runs") / f"{name}-{config.arch}" if out is None else out
    known = RunFolder(folder).finished
    run = train(
        name,
        config,
        members=members,
        samples=samples,
        epochs=epochs,
        batch=batch,
        lr=lr,
        polish=polish,
        recipe=recipe,
        seed=seed,
        variable_length=variable_length if lengths is None else parse_lengths(lengths),
        begin=before,
        device=device,
        precision=precision,
        out=folder,
        save_every=save_every,
        tensorboard=tensorboard,
    )
    _print_training(run, folder, "already trained" if known else "trained")


def _network(name: str, given: dict[str, Any], before: Run | None) -> NetworkConfig:
    """What the options say, over the network of the run to begin with, or over the task's own settings."""
    if before is not None:
        return _like(before.spec.model, given)
    if task(name).TOKENS != "none" and given.get("arch") == "looped":
        raise UsageError(f"arch is 'looped'; {name} reads words, and looped networks read lists of numbers.")
    if task(name).TOKENS != "none" and given.get("arch") == "scale-exact":
        raise UsageError(
            f"arch is 'scale-exact'; {name} reads words, which do not grow with the numbers, so it has no such network; "
            "--no-bias leaves out the biases of a positional one."
        )
    if given.get("arch") == "looped" and (family := family_of(name)) is not None:
        given = {"family": family} | given
    return ModelConfig(**task(name).NETWORK | given)


def _like(model: NetworkConfig, given: dict[str, Any]) -> NetworkConfig:
    """A run's network with other settings."""
    if given.get("arch", model.arch) != model.arch:
        raise UsageError(f"arch is {given['arch']!r}; that of the run to begin with is {model.arch!r}.")
    if not isinstance(model, ModelConfig):  # of another kind, whose settings are not those of options
        return model
    of_length = {"encoding_dim": None} if model.encoding == "one-hot" and "n" in given else {}
    return replace(model, **of_length | given)


def _print_training(run: Run, folder: Path, what: str) -> None:
    table = Table(
        "member", "seed", "status", "training loss", "validation loss", title=f"{len(run)} {what} in {folder}"
    )
    losses = zip(run.result["train_loss"], run.result["validation_loss"], strict=True)
    for index, pair in enumerate(losses):
        member = run.spec.members[index]
        numbers = ["-" if loss is None else f"{loss:.3e}" for loss in pair]
        table.add_row(str(index), str(member.seed), run.status[index], *numbers)
    console().print(table)
    if "polished" in run.result:
        better = sum(run.result["polished"])
        print(f"Last steps: {better} of {len(run)} networks are the better for them.")
        if better < len(run):
            print("Where attention has not settled, lists of several --lengths, or another --seed, may help.")
    scales = "1:10" if len(run.task.SCALES) == 10 else ",".join(f"{scale:g}" for scale in run.task.SCALES)
    options = f"--scales {scales}"
    if getattr(run.spec.model, "family", None) is not None:
        options = f"--lengths {run.spec.model.n},{64 * run.spec.model.n} --scales 1,10 --samples 100"
    print(f"Next: posattn evaluate {folder} {options}")
