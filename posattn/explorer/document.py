"""One file of HTML: markup, style and scripts of ``page/``, and the content as JSON and text beside them.

Nothing from outside becomes markup: JSON is written without the characters that begin a tag, weights have none, and the page's
scripts write text as text. A content security policy allows the page's own script and style, by their hashes, and nothing else.
"""

import base64
import hashlib
import json
from importlib.resources import files as resources
from typing import Any

from posattn.errors import UsageError
from posattn.explorer.content import Content

LARGEST = 8_000_000  # bytes of a page
_FOLDER = resources("posattn").joinpath("explorer/page")
# In the order in which one uses the other.
SCRIPTS = (
    "tensors.js",
    "offsets.js",
    "network.js",
    "tasks.js",
    "dom.js",
    "maps.js",
    "graph.js",
    "inputs.js",
    "answers.js",
    "programs.js",
    "charts.js",
    "results.js",
    "main.js",
)
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def document(content: Content, results: list[dict[str, Any]], source: str) -> str:
    """The page; ``source`` says in words what it was made from."""
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
        "POLICY": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'",
        "STYLE": style,
        "CONTENT": _json(told),
        "WEIGHTS": "\n".join(weights),
        "SCRIPT": script,
    }
    # One pass over the markup, so that nothing which is filled in is looked at again.
    first, *rest = _part("page.html").split("{{")
    html = first + "".join(filled[name] + after for name, after in (part.split("}}", 1) for part in rest))
    size = len(html.encode())
    if size > LARGEST:
        raise UsageError(
            f"the page would have {size / 1e6:.1f} MB; it may have {LARGEST / 1e6:g}, so give fewer runs or fewer --members."
        )
    return html


def _part(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return "".join(_ESCAPED.get(character, character) for character in text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
