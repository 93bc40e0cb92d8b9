"""``posattn export``: a network for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from posattn.commands.console import Member, RunFolder
from posattn.compiler.saved import load
from posattn.errors import UsageError


def export(
    run: RunFolder,
    onnx: Annotated[Path | None, typer.Option(help="Write this ONNX file.")] = None,
    torch_file: Annotated[
        Path | None, typer.Option("--torch", help="Write this file, which torch.export.load reads.")
    ] = None,
    member: Member = 0,
    length: Annotated[
        int | None,
        typer.Option("--length", "--n", help="Numbers in a list that the file takes (default: as many as trained on)."),
    ] = None,
) -> None:
    """Write a trained network for other programs: folded, for any number of lists at once, and checked."""
    from posattn.export import to_onnx, to_torch

    if onnx is None and torch_file is None:
        raise UsageError("nothing is to be written; give --onnx FILE or --torch FILE.")
    held = load(run)
    model, lists = held.model(member), held.examples()
    where = "up to scale 10" if lists is None else "within its bounds"
    for path, write in ((onnx, to_onnx), (torch_file, to_torch)):
        if path is not None:
            difference = write(model, path, length, lists)
            size = path.stat().st_size / 1e6
            print(f"{path}: {size:.1f} MB; its answers are the network's to {difference:.0e}, relative, {where}.")
