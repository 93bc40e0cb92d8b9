"""``posattn explore``: one page on which networks run."""

from pathlib import Path
from typing import Annotated

import typer

from posattn.explorer import explore as write_page


def explore(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Folders of runs or of compiled programs (default: the package's own)."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("explorer.html"),
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of result rows to draw (default: results/store or out/store, if there is one)."),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="How many networks of each run (default: all, or as many as the page holds).")
    ] = None,
) -> None:
    """Write one self-contained page on which networks answer, attend and step through programs, with the stored results.

    Example: posattn explore --out explorer.html
    """
    content, found = write_page(out, runs or (), store, members)
    if content.note:
        print(content.note)
    print(f"Results: {'none, so published medians alone' if found is None else found}")
    size = out.stat().st_size / 1e6
    print(f"Page: {out} ({size:.1f} MB, {len(content.networks)} networks); open it in a browser.")
