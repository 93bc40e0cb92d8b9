"""One self-contained HTML page on which trained and compiled networks run in the browser.

networks.py    a network as JSON, and its weights as text
content.py     which networks and programs are on the page: those of the package, or the user's runs
results.py     the figures of a result store as numbers
document.py    the page, from the markup, style and scripts in page/; ``explore`` writes it
"""

from posattn.explorer.content import of_package, of_runs
from posattn.explorer.document import document, explore

__all__ = ["document", "explore", "of_package", "of_runs"]
