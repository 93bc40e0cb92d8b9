"""The content security policy of the pages that the package writes: a browser loads and runs nothing but what is in them."""

import base64
import hashlib


def policy(style: str, script: str | None = None, images: bool = False) -> str:
    """The policy of a page with this style and this script; ``images`` says whether it holds pictures."""
    allowed = {"style-src": _hash(style)}
    if script is not None:
        allowed["script-src"] = _hash(script)
    if images:
        allowed["img-src"] = "data:"
    rules = {"default-src": "'none'"} | allowed | {"base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{kind} {source}" for kind, source in rules.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
