"""What the site has beside the pages of docs/, and how links between files of the repository become links between its pages.

quickstart.md, contributing.md     README.md and CONTRIBUTING.md
claims.md                          results/README.md
gpu.md, ray.md                     sections of other pages, which keep their heading and a link
results/NAME/*.md                  results/NAME/README.md with its figures and tables, for whatever results/ holds
results/index.md                   the experiments of the catalogue, figure by figure
tutorials/NAME.md                  docs/tutorials/NAME.py, a percent script

Texts stay where they are: nothing is copied, and every page is written for the repository first. Equations, $...$ and blocks of
math, become MathML, which browsers set without any script.
"""

import html
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from posattn.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"quickstart.md": "README.md", "contributing.md": "CONTRIBUTING.md", "claims.md": "results/README.md"}
SECTIONS = {
    "gpu.md": ("docs/training.md", "On a GPU"),
    "ray.md": ("docs/experiments.md", "On a Ray cluster"),
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
IMAGES = (".png", ".svg")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
TITLES: dict[str, str] = {}  # of pages, by their place on the site: what the navigation calls them


def on_config(config: Any) -> Any:
    """Fills in the results of the navigation, and learns the titles of all pages."""
    for entry in config.nav:
        if "Results" in entry:
            pages = ({result_title(name): f"results/{name}/README.md"} for name in result_names())
            entry["Results"] = [{"All figures": "results/index.md"}, {"The paper's claims": "claims.md"}, *pages]
        for part in entry.values():
            for page in part if isinstance(part, list) else [entry]:
                TITLES.update({place: title for title, place in page.items()})
    return config


def on_files(files: Files, config: Any) -> Files:
    for page, text in generated_pages().items():
        files.append(File.generated(config, page, content=text))
    for image in (path for name in result_names() for path in sorted((ROOT / "results" / name).iterdir())):
        if image.suffix in IMAGES:
            files.append(File.generated(config, str(image.relative_to(ROOT)), abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them; sections that have a page of their own become a link to it."""
    here = page.file.src_uri
    for own, (source, heading) in SECTIONS.items():
        if source == f"docs/{here}":
            markdown = markdown.replace(section(markdown, heading), f"## {heading}\n\n[{heading}]({own})\n\n")
    return relinked(markdown, source_of(here), here)


def on_page_content(html_text: str, **_: Any) -> str:
    """Equations as MathML. The page has them as arithmatex leaves them: \\(...\\) in a line, \\[...\\] on their own."""

    def mathml(found: re.Match[str]) -> str:
        # The converter knows the lines of align*, which in LaTeX has no place inside an equation, and not those of aligned.
        tex = html.unescape(found[2]).replace("{aligned}", "{align*}")
        block = found[1] == "div"
        text = re.sub(r"<mo>(\w\w+)</mo>", r"<mi>\1</mi>", convert(tex, display="block" if block else "inline"))
        # Functions stand apart from letters and numbers (n log n), not from brackets; |x| and ‖x‖ close on what is inside.
        name = r"((?<!<msub>)(?<!<munder>)<mi>\w\w+</mi>|<msub><mi>\w\w+</mi><m\w>[^<]*</m\w></msub>)"
        text = re.sub(name + "(?=<m(?!o))", r'\1<mspace width="0.17em"/>', text)
        before = r"((?<=</mi>)|(?<=</mn>)|(?<=</msub>)|(?<=</msup>))(<mi>\w\w+</mi>)"
        text = re.sub(before, r'<mspace width="0.17em"/>\2', text)
        text = re.sub(r"<mo>(?=(&#x0007C;|&#x02016;)<)", '<mo stretchy="false">', text)
        text = re.sub(r"<mo( [^>]*)>(?=(&#x0007C;|&#x02016;)<)", r'<mo\1 lspace="0" rspace="0">', text)
        return f'<div class="equation">{text}</div>' if block else text

    return EQUATION.sub(mathml, html_text)


def generated_pages() -> dict[str, str]:
    """Every page that docs/ does not have, by its place on the site; links are still those of the repository."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in PAGES.items()}
    for page, (source, heading) in SECTIONS.items():
        text = section((ROOT / source).read_text(encoding="utf-8"), heading)
        pages[page] = text.removeprefix("#").replace("\n### ", "\n## ")
    for name in result_names():
        for page in sorted((ROOT / "results" / name).glob("*.md")):
            pages[str(page.relative_to(ROOT))] = page.read_text(encoding="utf-8")
    pages["results/index.md"] = results_page()
    for script in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        pages[f"tutorials/{script.stem}.md"] = tutorial(script.read_text(encoding="utf-8"), script.name)
    return pages


def result_names() -> list[str]:
    """The folders of results/ that say what they are: in the order of the catalogue, then the others."""
    found = sorted(path.parent.name for path in (ROOT / "results").glob("*/README.md"))
    return [*(name for name in EXPERIMENTS if name in found), *(name for name in found if name not in EXPERIMENTS)]


def result_title(name: str) -> str:
    """What the navigation calls a result: its place in the paper and its title, or the heading of its page."""
    known = EXPERIMENTS.get(name)
    if known is None:
        return (ROOT / "results" / name / "README.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    return f"{known.reference[:1].upper()}{known.reference[1:]}: {known.title}"


def results_page() -> str:
    parts = [
        "# Results",
        "What full-scale runs measured, figure by figure; each page has the settings and the words to it.",
    ]
    for name in result_names():
        folder = ROOT / "results" / name
        title = result_title(name)
        images = (path for path in sorted(folder.iterdir()) if path.suffix in IMAGES and not path.stem.endswith("-more"))
        parts.append(f"## {title}\n\n[What was asked, and what came out]({name}/README.md)")
        parts += [f"![{title}]({name}/{image.name})" for image in images]
    missing = [row for row in EXPERIMENTS.values() if row.name not in result_names()]
    if missing:
        lines = [f"- `posattn reproduce {row.name}`: {row.reference}, {row.title}" for row in missing]
        parts.append("## Not run at full scale yet\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def tutorial(script: str, name: str) -> str:
    """A percent script as a page: cells of comments become text, the others Python blocks."""
    cells = re.split(r"^# %%", script, flags=re.MULTILINE)[1:]
    parts = []
    for cell in cells:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + f"\n\nThis page is `docs/tutorials/{name}`, which runs as it is.\n"


def section(markdown: str, heading: str) -> str:
    """From its heading of two # to the next one."""
    found = re.search(rf"^## {re.escape(heading)}$.*?(?=^## |\Z)", markdown, flags=re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"docs/hooks.py: there is no section {heading!r}.")
    return found[0]


def source_of(page: str) -> str:
    """The file of the repository that a page of the site comes from."""
    if page in PAGES:
        return PAGES[page]
    if page in SECTIONS:
        return SECTIONS[page][0]
    return page if page.startswith("results/") else f"docs/{page}"


def page_of(source: str) -> str | None:
    """The page or image of the site that a file of the repository became, if any."""
    for page, own in PAGES.items():
        if own == source:
            return page
    if source.startswith("docs/tutorials/"):
        return source.removeprefix("docs/").removesuffix(".py") + ".md"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith("results/"):
        return source if source.endswith((".md", *IMAGES)) else None
    return None


def moved(source: str, anchor: str) -> str | None:
    """The page that the heading ``anchor`` of a file went to with its section, if it did."""
    for page, (own, heading) in SECTIONS.items():
        if own == source:
            text = section((ROOT / own).read_text(encoding="utf-8"), heading)
            below = re.findall(r"^###+ (.+)$", text, flags=re.MULTILINE)
            if anchor in (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in below):
                return page
    return None


def relinked(markdown: str, source: str, page: str) -> str:
    """``markdown`` with its links, written at ``source``, as links from ``page``; those to code become plain text."""

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        if "://" in target:
            return found[0]
        path, hash_mark, anchor = target.partition("#")
        place = os.path.normpath(os.path.join(os.path.dirname(source), path)) if path else source
        there = path if path in SECTIONS else moved(place, anchor) or page_of(place)
        if there is None:
            return text
        if text == os.path.basename(path) or text == path:  # a file's name, which is no title
            text = TITLES.get(there, text)
        if there == page and not mark:
            return f"[{text}](#{anchor})" if anchor else text
        return f"{mark}[{text}]({os.path.relpath(there, os.path.dirname(page) or '.')}{hash_mark}{anchor})"

    # Every second part is a fenced block, which stays. What belongs to an item of a list stands two spaces in, for mkdocs four.
    parts = FENCED.split(markdown)
    return "".join(
        part if index % 2 else LINK.sub(link, re.sub(r"^  (?=\S)", "    ", part, flags=re.MULTILINE))
        for index, part in enumerate(parts)
    )
