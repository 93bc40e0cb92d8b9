"""The site: mkdocs builds it strictly, it has every page, result and tutorial, all its links lead somewhere, and it asks
nothing of any other server."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

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
