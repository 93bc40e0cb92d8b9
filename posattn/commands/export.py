"""``posattn export``: a network for other programs."""

from pathlib import Path

from typer import Option

from posattn.commands import console
from posattn.errors import UsageError


def command(
    run: Path | None = console.RUN_IF_ANY,
    onnx: Path | None = Option(None, help="Write this ONNX file."),
    torch_file: Path | None = Option(None, "--torch", help="Write this file, which torch.export.load reads."),
    member: int = console.MEMBER,
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    length: int | None = Option(
        None, "--length", "--n", help="Numbers in a list, or tokens in a sequence, that the file takes (default: as trained)."
    ),
) -> None:
    """Write a network for other programs: folded where it can be, for any number of lists at once, and checked."""
    if onnx is None and torch_file is None:
        raise UsageError("nothing is to be written; give --onnx FILE or --torch FILE.")
    from posattn.compiler.compiled_model import CompiledConfig
    from posattn.export import INTERFACES, to_onnx, to_torch
    from posattn.tasks import TASKS, TokenTask

    held, _ = console.networks(run, pretrained, arch, "cpu")
    model, lists = held.model(member), held.examples(length)
    named = TASKS.get(held.members[member].task)  # not there where it is somebody's own; the example is of ours then
    learned = named if isinstance(named, TokenTask) and held.config.reads != "none" else None
    where = "within its bounds" if isinstance(held.config, CompiledConfig) else INTERFACES[held.config.reads].checked
    for path, write in ((onnx, to_onnx), (torch_file, to_torch)):
        if path is not None:
            difference = write(model, path, length, lists, learned)
            size = path.stat().st_size / 1e6
            print(f"{path}: {size:.1f} MB; its answers are the network's to {difference:.0e}, relative, {where}.")
