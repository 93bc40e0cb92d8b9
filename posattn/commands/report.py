"""``posattn report``: one page of what a store holds."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    store: Annotated[Path, typer.Option(help="Folder of trained runs and their rows.")] = Path("out/store"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("out/report.html"),
) -> None:
    """One self-contained page of the listed experiments that a store holds: figures, numbers, settings, hardware."""
    from posattn.experiments import Store, report_on  # drawing is slow to import

    shown, others = report_on(Store(store), out)
    print("\n".join(shown))
    if others:
        print("Not on the page, with less than half of what their figures draw:\n" + "\n".join(others))
    print(f"Page: {out}")
