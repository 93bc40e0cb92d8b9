"""``posattn report``: one page of what a store holds."""

from pathlib import Path

from typer import Option


def command(
    store: Path = Option(Path("out/store"), help="Folder of trained runs and their rows."),
    out: Path = Option(Path("out/report.html"), help="The page to write."),
) -> None:
    """One self-contained page of the listed experiments that a store holds: figures, numbers, settings, hardware."""
    from posattn.experiments import Store, report_on

    shown, others = report_on(Store(store), out)
    print("\n".join(shown))
    if others:
        print("Not on the page, with less than half of what their figures draw:\n" + "\n".join(others))
    print(f"Page: {out}")
