"""One self-contained HTML page on which trained and compiled networks run in the browser, put together by ``document``."""

from posattn.explorer.content import of_package, of_runs
from posattn.explorer.document import document, explore

__all__ = ["document", "explore", "of_package", "of_runs"]
