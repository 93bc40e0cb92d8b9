"""The commands ``compile`` and ``graph``."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from posattn import files
from posattn.compiler.compiling import BOUND, compile_program
from posattn.compiler.graph import svg
from posattn.compiler.graph_report import BY, MACHINES, folder_report, pretrained_report, program_report
from posattn.compiler.library import PROGRAMS
from posattn.compiler.pcoc_to_weights import VALUES
from posattn.compiler.run import save
from posattn.console import print_frame
from posattn.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("compile")(compile_command)
    app.command("graph")(graph_command)


def compile_command(
    name: Annotated[
        str | None, typer.Argument(metavar="PROGRAM", help="A program of the library (see --list).")
    ] = None,
    machines: Annotated[
        int, typer.Option(help="How many machines: one for each number of a list (of self-attention, tokens).")
    ] = MACHINES,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Softmax attention that moves no answer by more than this (default: hardmax, exact)."),
    ] = None,
    bound: Annotated[
        float | None, typer.Option(help=f"Largest absolute value of the real numbers it is given (default {BOUND:g}).")
    ] = None,
    values: Annotated[str, typer.Option(help=f"What W_V holds: {' or '.join(VALUES)}.")] = VALUES[0],
    direct: Annotated[
        bool, typer.Option("--direct", help="Do not route messages whose addresses are known beforehand.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare all levels on random inputs.")] = False,
    samples: Annotated[int, typer.Option(help="How many inputs --check tries.")] = 20,
    out: Annotated[Path | None, typer.Option("--save", help="Folder for the network.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the programs.")] = False,
) -> None:
    """Compile a parallel program to the weights of a positional Transformer, and say how large it is.

    Example: posattn compile prefix-sum --machines 8 --check
    """
    if show_list or name is None:
        rows = [(row.name, row.title, row.task or "") for row in PROGRAMS.values()]
        _show(pd.DataFrame(rows, columns=["program", "computes", "task"]), "programs")
        return
    largest = BOUND if bound is None else bound
    compilation = compile_program(name, machines, epsilon=epsilon, bound=largest, values=values, direct=direct)
    _show(compilation.sizes(), f"{name} on {machines} machines")
    ends = [(known.lo, known.hi) for known in compilation.written.inputs]
    if bound is not None and all(bound not in (-lo, hi) for lo, hi in ends):
        own = ", and from ".join(f"{lo:g} to {hi:g}" for lo, hi in ends)
        print(f"The bound of {bound:g} does not matter: {name} takes numbers from {own}.")
    lowered = compilation.lowered
    if lowered.temperature is not None:
        print(f"Softmax at temperature {lowered.temperature:.3f}: no answer moves by more than {lowered.error:.3g}.")
    if lowered.misfit:
        print(
            f"Some functions are fitted: at the points tried no answer errs by more than {lowered.misfit:.3g} through them."
        )
    if check:
        table = compilation.check(samples, epsilon=1e-3 if epsilon is None else epsilon)
        _show(table, f"against the direct answer, {samples} random inputs")
        if not table["agrees"].all():
            raise UsageError(f"the levels of {name} do not agree; this is a bug in the compiler.")
    if out is not None:
        save(compilation, out)
        print(f"Saved in {out}. Next: posattn predict {out} LIST")


def graph_command(
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
    elif what is not None and Path(what).exists():
        report = folder_report(what, member, least, by, samples, machines)
    else:
        if what not in (named := (*PROGRAMS, "benes")):
            raise UsageError(f"FOLDER is {what!r}, which does not exist; a PROGRAM must be one of {', '.join(named)}.")
        asked = MACHINES if machines is None else machines
        report = program_report(what, asked)
        if (drawn := len(report.graph.names)) != asked:
            print(f"{what} for {asked} has {drawn} machines, and all are drawn.")
    files.write(out, svg(report.graph).encode())
    if json_file is not None:
        files.write_json(json_file, report.as_json())
    if report.layers:
        print_frame(report.patterns(), f"{report.graph.title}: shares of what is heard from others")
    if report.cuts:
        print_frame(report.cutting(), "edges that can be cut, weakest first")
    print(f"Graph: {out}" + ("" if json_file is None else f"\nEdges: {json_file}"))


def _show(frame: pd.DataFrame, title: str) -> None:
    table = Table(title=title)
    for column in frame.columns:
        table.add_column(str(column), justify="left" if frame[column].dtype == object else "right")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else _text(value) for value in row))
    Console(width=130).print(table)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,}" if isinstance(value, int) else str(value)
