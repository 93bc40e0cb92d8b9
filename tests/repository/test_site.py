"""The site: mkdocs builds it strictly, it has every page, result and tutorial, all its links lead somewhere, and it asks
nothing of any other server. It works from a folder: search, equations, and code on screens of every width."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("playwright", reason="Playwright is not installed, which opens the pages")
from playwright.sync_api import Browser

import posattn

pytestmark = pytest.mark.xdist_group("site")  # which is built once
ROOT = Path(__file__).resolve().parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}  # and <link rel=stylesheet href>


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_document_result_and_tutorial_is_a_page(site: Path) -> None:
    wanted = [f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")]
    wanted += ["quickstart.html", "contributing.html", "gpu.html", "ray.html", "results/index.html"]
    wanted += [f"tutorials/{path.stem}.html" for path in (ROOT / "docs" / "tutorials").glob("*.py")]
    for readme in (ROOT / "results").glob("*/README.md"):
        wanted.append(f"results/{readme.parent.name}/index.html")
        wanted += [str(image.relative_to(ROOT)) for image in readme.parent.glob("*.png")]
    assert [name for name in wanted if not (site / name).exists()] == []
    assert not (site / "hooks.py").exists()


def test_results_are_shown_figure_by_figure(site: Path, pages: dict[Path, Page]) -> None:
    shown = pages[site / "results" / "index.html"].loads
    assert {"fix-scale/fix-scale.png", "diagrams/diagrams-7.png", "fine-tune/fine-tune.png"} <= set(shown)
    for page in ("results/fix-scale/index.html", "quickstart.html"):  # where the table belongs to an item of a list
        text = (site / page).read_text(encoding="utf-8")
        assert "<table>" in text and "fix-scale.png" in text and "|---|" not in text


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    lost = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or (anchor and there in pages and anchor not in pages[there].anchors):
                lost.append((str(path.relative_to(site)), link))
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for load in page.loads:
            assert not re.match(r"([a-z]+:)?//", load), f"{path.relative_to(site)} loads {load}"
            assert (path.parent / unquote(load).split("?")[0]).resolve().exists(), f"{path.relative_to(site)}: {load}"


def test_the_reference_has_signatures_and_docstrings(site: Path) -> None:
    listed = re.findall(r"^::: posattn\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(posattn.__all__) <= set(listed)
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8"))
    for word in (
        "PositionalAttention",
        "n_positions",
        "Trains an ensemble of",
        "generalization_bound",
        "compile_program",
    ):
        assert word in text, word


def test_sections_with_a_page_of_their_own_are_moved_not_copied(site: Path) -> None:
    assert "fused kernel" in (site / "gpu.html").read_text(encoding="utf-8").lower()
    training = (site / "training.html").read_text(encoding="utf-8")
    assert "fused kernel" not in training.lower() and 'id="on-a-gpu"' in training and 'href="gpu.html"' in training


def test_the_landing_page_has_the_picture_and_three_doors(site: Path, pages: dict[Path, Page]) -> None:
    assert "images/quick.png" in pages[site / "index.html"].loads
    text = (site / "index.html").read_text(encoding="utf-8")
    doors = re.findall(r"<p><strong>([^<]+)</strong></p>", text[text.index('class="grid cards"') :])
    assert doors == ["Use the layer", "Train and reproduce", "Compile programs"]
    assert {"layer.html", "quickstart.html", "compiler.html"} <= set(pages[site / "index.html"].links)


def test_pages_are_called_by_their_titles(site: Path) -> None:
    text = (site / "training.html").read_text(encoding="utf-8")
    called = re.findall(r'<a href="[^"]*" class="md-nav__link">\s*<span class="md-ellipsis">\s*([^<]+?)\s*<', text)
    assert "Figure 4: error against the scale of the numbers" in called and "Lists of every length" in called
    assert [name for name in called if re.fullmatch(r"[\w-]+\.(md|py)|[a-z]+-[a-z-]+", name)] == []
    assert re.findall(r">[\w-]+\.md<", text) == []


def test_equations_are_mathml(site: Path, pages: dict[Path, Page]) -> None:
    count = 0
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert "arithmatex" not in text, path
        equations = re.findall(r"<math.*?</math>", text, re.DOTALL)
        count += len(equations)
        for found in equations:  # what the converter does not know it leaves as it was
            words = re.sub(r"<[^>]+>", " ", found)
            assert not re.search(r"\\|merror|\$|&amp;", words), (path.name, words)
    assert count > 300


def test_search_works_from_a_folder(browser: Browser, site: Path) -> None:
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "results" / "fix-scale" / "index.html").as_uri())
    page.fill(".md-search__input", "certificate")
    page.wait_for_selector(".md-search-result__link")
    found = [link.get_attribute("href") or "" for link in page.query_selector_all(".md-search-result__link")]
    assert any("scale-law.html" in link for link in found)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()


def test_sentences_in_the_table_of_claims_are_wide_enough_to_read_on_a_phone(browser: Browser, site: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto((site / "claims.html").as_uri())
    figures = page.locator("table:not([class])").first.locator("tbody td:nth-child(3)").all()
    assert len(figures) > 10 and all(box["width"] >= 250 for cell in figures if (box := cell.bounding_box()))
    page.close()


@pytest.mark.parametrize("width", [1400, 768, 390])
def test_nothing_is_cropped(browser: Browser, site: Path, width: int) -> None:
    """Commands and Python wrap; tables, equations and what commands print scroll where they are wider than the page."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    for name in ("index", "commands", "training", "bound", "architecture", "paper-map", "results/mixed-elements-samples/index"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        cropped = page.evaluate("""[...document.querySelectorAll(".md-typeset pre > code, .equation")].filter(
            box => box.scrollWidth > box.clientWidth + 1
                && (box.closest(".language-bash, .language-python") || getComputedStyle(box).overflowX != "auto")
        ).map(box => box.innerText)""")
        assert cropped == [], name
        assert page.locator(".language-bash, .language-python").count() or name not in ("commands", "training")
    page.close()
