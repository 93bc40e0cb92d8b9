"""The page as one HTML file: markup, style and scripts of ``page/``, with the content as JSON and text.

No content can become markup: JSON escapes the characters that begin a tag, weights have none of them, and the page's scripts
write text as text. A content security policy allows only the page's own script and style, by their hashes.
"""

from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps

from posattn import files
from posattn.errors import UsageError, path_of, several
from posattn.explorer.content import Content, is_program, of_package, of_runs
from posattn.page_policy import policy
from posattn.runs import AnyRun

LARGEST = 8_000_000  # bytes of a page
_FOR_WEIGHTS = 0.9  # the share of the page that weights may take
_FOLDER = resources("posattn").joinpath("explorer/page")
# In this order, because later scripts use earlier ones.
_NAMES = "tensors offsets network tasks dom maps graph inputs answers programs charts results main"
SCRIPTS = [f"{name}.js" for name in _NAMES.split()]


def explore(
    out: Path,
    runs: Sequence[str | Path | AnyRun] = (),
    store: Path | None = None,
    members: int | None = None,
    machines: int | None = None,
) -> tuple[Content, Path | None]:
    """Writes the page for ``runs``, or for the package's own networks; returns its content and the store of its results.

    Args:
        store: folder of result rows; by default ``out/store`` or ``results/store``, if there is one.
        members: how many networks per run; by default all, or as many as the page has room for.
        machines: those of programs of one's own, ``my.py:bfs``.
    """
    from posattn.experiments import Store  # drawing is slow to import
    from posattn.experiments.store import first_store
    from posattn.explorer.results import figures_of

    out = path_of("out", out)
    store = None if store is None else path_of("store", store)
    runs = several("runs", runs)
    if out.suffix not in (".html", ".htm"):
        raise UsageError(f"out is {str(out)!r}; it must end in .html.")
    if store is not None and not (store / "rows").is_dir():
        lacks = "which holds no rows of results" if store.is_dir() else "there is no such folder"
        raise UsageError(f"store is {str(store)!r}; {lacks}.")
    if members is not None and not runs:
        raise UsageError(f"members is {members}; only runs of your own have several networks to choose from.")
    if machines is not None and not any(is_program(each) for each in runs):
        raise UsageError(f"machines is {machines}; it is for programs of your own, FILE.py:NAME, and none is given.")
    content = fitting(runs, members, machines) if runs else of_package()
    found = store if store is not None else first_store()
    results = figures_of(None if found is None else Store(found))
    source = "your runs" if runs else "the networks and programs that come with the package"
    files.output(out, document(content, results, source).encode())
    return content, found


def fitting(runs: Sequence[str | Path | AnyRun], members: int | None, machines: int | None = None) -> Content:
    """The content for ``runs``; if ``members`` is None, with as many networks per run as the page has room for."""
    content = of_runs(runs, members, machines)
    # For every choice on the page: its place among the choices of its model, and its size.
    models = [model for subject in content.subjects for model in subject["models"]]
    sizes = [len(packed.weights) for packed in content.networks]
    places = [(k, sizes[choice["network"]]) for model in models for k, choice in enumerate(model["choices"])]
    room = LARGEST * _FOR_WEIGHTS - (sum(sizes) - sum(size for _, size in places))
    most = max((k + 1 for k, _ in places), default=1)
    fit = next((count for count in range(most, 1, -1) if sum(size for k, size in places if k < count) <= room), 1)
    if members is None and fit < most:
        content = of_runs(runs, fit, machines)
        word = "network" if fit == 1 else f"{fit} networks"
        content.note = f"The page has room for the first {word} of each run; --members chooses how many."
    return content


def document(content: Content, results: list[dict[str, Any]], source: str) -> str:
    """The page as HTML; ``source`` says in words what it was made from."""
    script = '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in SCRIPTS) + "})();\n"
    style = _part("style.css")
    told = {
        "source": source,
        "note": content.note,
        "networks": [packed.described for packed in content.networks],
        "subjects": content.subjects,
        "programs": content.programs,
        "results": results,
    }
    weights = (
        f'<script type="text/plain" id="weights-{number}">{packed.weights}</script>'
        for number, packed in enumerate(content.networks)
    )
    filled = {
        "POLICY": policy(style, script),
        "STYLE": style,
        "CONTENT": htmlsafe_json_dumps(told, separators=(",", ":"), allow_nan=False),
        "WEIGHTS": "\n".join(weights),
        "SCRIPT": script,
    }
    html = jinja2.Template(_part("page.html"), keep_trailing_newline=True).render(filled)
    size = len(html.encode())
    if size > LARGEST:
        raise UsageError(
            f"the page would have {size / 1e6:.1f} MB; it may have {LARGEST / 1e6:g}, so give fewer runs or fewer --members."
        )
    return html


def _part(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
