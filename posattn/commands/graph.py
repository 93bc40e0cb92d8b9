"""``posattn graph``: who hears whom, as a picture."""

from pathlib import Path

from typer import Argument, Option

from posattn.commands import console
from posattn.errors import UsageError, counted
from posattn.names import BY


def command(
    what: str | None = Argument(
        None, metavar="PROGRAM|benes|FOLDER", help="A program (or FILE.py:NAME), benes, or the folder of a network."
    ),
    pretrained: str | None = console.PRETRAINED,
    arch: str | None = console.PRETRAINED_ARCH,
    task_file: Path | None = console.TASK_FILE,
    machines: int | None = Option(None, help="A program's machines, or numbers in a looped network's list (default 8)."),
    member: int = Option(0, help="Which network of a trained run."),
    by: str = Option(BY[0], help="What an arrow needs in a trained network: attention, or effect on the answers."),
    least: float = Option(0.3, help="Smallest attention weight to draw, or smallest share of the largest effect."),
    samples: int = Option(1000, help="Fresh lists that effects and errors are measured on."),
    out: Path = Option(Path("graph.svg"), help="The SVG file to write."),
    json_file: Path | None = Option(None, "--json", help="Also write edges and numbers to this file."),
) -> None:
    """Draw who hears whom, rounds from left to right, as SVG; of a network also say what its layers resemble, and how many of
    a trained one's edges can be cut."""
    from posattn import files
    from posattn.graphs.pictures import svg
    from posattn.graphs.reports import report_of, trained_report

    if out.suffix != ".svg":
        raise UsageError(f"out is {str(out)!r}; it must end in .svg.")
    console.check_one(what, pretrained, arch, "a program, benes or a folder")
    if pretrained is not None:
        found, origin = console.networks(None, pretrained, arch, "cpu")
        title = f"{pretrained}, {origin}"
        report = trained_report(found.model(member), pretrained, title, least, by, samples, machines)
    else:
        report = report_of(str(what), member, least, by, samples, machines)
    asked, drawn = report.settings.get("machines"), len(report.graph.names)
    if "program" in report.settings and drawn != asked:
        print(f"{what} for {asked} has {counted(drawn, 'machine')}, and all are drawn.")
    files.output(out, svg(report.graph).encode())
    if json_file is not None:
        files.output(json_file, files.as_json(report.as_json()))
    if report.layers:
        console.print_frame(f"{report.graph.title}: shares of what is heard from others", report.patterns())
    if report.cuts:
        console.print_frame("edges that can be cut, weakest first", report.cutting())
    print(f"Graph: {out}" + ("" if json_file is None else f"\nEdges: {json_file}"))
