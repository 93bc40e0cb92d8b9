"""The command ``explore``."""

from pathlib import Path
from typing import Annotated

import typer

from posattn import files
from posattn.errors import UsageError
from posattn.explorer.content import Content, of_package, of_runs
from posattn.explorer.document import LARGEST, document

_STORES = (Path("results/store"), Path("out/store"))  # where results are looked for, in this order


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
    if out.suffix not in (".html", ".htm"):
        raise UsageError(f"out is {str(out)!r}; it must end in .html.")
    if store is not None and not (store / "rows").is_dir():
        raise UsageError(f"store is {str(store)!r}, which holds no rows of results.")
    if members is not None and not runs:
        raise UsageError(f"members is {members}; only runs of your own have several networks to choose from.")
    content = fitting(runs, members) if runs else of_package()
    found = store if store is not None else next((path for path in _STORES if (path / "rows").is_dir()), None)
    from posattn.experiments import Store
    from posattn.explorer.results import figures_of  # drawing is slow to import

    results = figures_of(None if found is None else Store(found))
    source = "your runs" if runs else "the networks and programs that come with the package"
    html = document(content, results, source)
    files.write(out, html.encode())
    if content.note:
        print(content.note)
    print(f"Results: {'none, so published medians alone' if found is None else found}")
    print(f"Page: {out} ({len(html.encode()) / 1e6:.1f} MB, {len(content.networks)} networks); open it in a browser.")


def fitting(runs: list[Path], members: int | None) -> Content:
    """The runs with as many of their networks as the page has room for, if nobody says how many."""
    content = of_runs(runs, members)
    # For every choice on the page its place among the choices of its model, and its size.
    models = [model for subject in content.subjects for model in subject["models"]]
    sizes = [len(packed.weights) for packed in content.networks]
    places = [(k, sizes[choice["network"]]) for model in models for k, choice in enumerate(model["choices"])]
    room = LARGEST * _FOR_WEIGHTS - (sum(sizes) - sum(size for _, size in places))
    most = max((k + 1 for k, _ in places), default=1)
    fewer = most
    while fewer > 1 and sum(size for k, size in places if k < fewer) > room:
        fewer -= 1
    if members is None and fewer < most:
        content = of_runs(runs, fewer)
        word = "network" if fewer == 1 else f"{fewer} networks"
        content.note = f"The page has room for the first {word} of each run; --members chooses how many."
    return content


_FOR_WEIGHTS = 0.9  # of the page
