"""``posattn graph``: who hears whom, as a picture."""

from pathlib import Path
from typing import Annotated

import typer

from posattn.commands.console import print_frame
from posattn.compiler.graph import svg
from posattn.compiler.graph_report import BY, pretrained_report, report_of
from posattn.errors import UsageError
from posattn.training import files


def graph(
    what: Annotated[
        str | None,
        typer.Argument(metavar="PROGRAM|benes|FOLDER", help="A program, benes, or the folder of a network."),
    ] = None,
    pretrained: Annotated[
        str | None, typer.Option(metavar="TASK", help="In its place: the network for TASK that comes with the package.")
    ] = None,
    arch: Annotated[str, typer.Option(help="Which of these: positional, scale-exact or looped.")] = "positional",
    machines: Annotated[
        int | None, typer.Option(help="Machines of a program, or numbers in a list of a looped network (default 8).")
    ] = None,
    member: Annotated[int, typer.Option(help="Which network of a trained run.")] = 0,
    by: Annotated[
        str, typer.Option(help="What an arrow needs in a trained network: attention, or effect on the answers.")
    ] = BY[0],
    least: Annotated[
        float, typer.Option(help="Smallest attention weight to draw, or smallest share of the largest effect.")
    ] = 0.3,
    samples: Annotated[int, typer.Option(help="Fresh lists that effects and errors are measured on.")] = 1000,
    out: Annotated[Path, typer.Option(help="The SVG file to write.")] = Path("graph.svg"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write edges and numbers to this file.")] = None,
) -> None:
    """Draw who hears whom, rounds from left to right, as SVG; of a network also say what its layers resemble, and how many of
    a trained one's edges can be cut."""
    if out.suffix != ".svg":
        raise UsageError(f"out is {str(out)!r}; it must end in .svg.")
    if (what is None) == (pretrained is None):
        raise UsageError("a graph is drawn of one thing; give a program, benes or a folder, or --pretrained TASK.")
    if pretrained is not None:
        report = pretrained_report(pretrained, arch, least, by, samples, machines)
    else:
        report = report_of(str(what), member, least, by, samples, machines)
    asked, drawn = report.settings.get("machines"), len(report.graph.names)
    if "program" in report.settings and drawn != asked:
        print(f"{what} for {asked} has {drawn} machines, and all are drawn.")
    files.write(out, svg(report.graph).encode())
    if json_file is not None:
        files.write_json(json_file, report.as_json())
    if report.layers:
        print_frame(f"{report.graph.title}: shares of what is heard from others", report.patterns())
    if report.cuts:
        print_frame("edges that can be cut, weakest first", report.cutting())
    print(f"Graph: {out}" + ("" if json_file is None else f"\nEdges: {json_file}"))
