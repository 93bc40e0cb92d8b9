"""One self-contained page on which trained and compiled networks run: what it shows, and how it is put together.

networks.py    a network and its weights as text
content.py     which networks and programs are on the page: those of the package, or the user's runs
results.py     the figures of a result store as numbers
document.py    one file of HTML from page/, which holds its markup, style and scripts; ``explore`` writes it
"""

from posattn.explorer.content import of_package, of_runs
from posattn.explorer.document import document, explore

__all__ = ["document", "explore", "of_package", "of_runs"]
