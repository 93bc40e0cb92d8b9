"""The documents are true: their Python runs, their commands and make targets exist, their paths and links lead somewhere.

An ``output`` block is what the Python block above it prints.
A Python block may be left out with a comment on the line above it: ``<!-- skip: the reason -->``.
"""

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import test_imports
import test_network
import typer

import posattn
from posattn import cli, encodings, model
from posattn.commands import console
from posattn.compiler import PROGRAMS
from posattn.experiments import EXPERIMENTS, SIZES
from posattn.network import KINDS, can
from posattn.tasks import TASKS
from posattn.training import RECIPES
from posattn.training.suitability import network_for

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [  # by hand, of the pages of results: the others are tables that commands write
    path for path in sorted((ROOT / "results").rglob("*.md")) if path.name in ("README.md", "tried.md")
]
SKIP = re.compile(r"<!-- skip: \S.* -->")


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, its text, and the line above it."""

    language: str
    line: int
    text: str
    above: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            above = lines[start - 1] if start else ""
            found.append(Block(lines[start][3:].strip(), start + 2, "\n".join(lines[start + 1 : number]), above))
            start = None
    assert start is None, f"{page.name}: the block that begins on line {start} has no end"
    return found


def text_blocks(page: Path) -> list[str]:
    """What the blocks of plain text of a page hold."""
    return [block.text for block in blocks(page) if block.language == "text"]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def shell_lines() -> Iterator[tuple[str, str]]:
    """(place, command) of every line in a bash block, and of every line after a $ in a console block."""
    for page in PAGES:
        for block in blocks(page):
            for offset, line in enumerate(block.text.splitlines()):
                typed = line.removeprefix("$ ") if block.language == "console" and line.startswith("$ ") else line
                if typed is line and block.language != "bash":
                    continue
                yield f"{page.name}:{block.line + offset}", typed


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.fixture
def tables() -> Iterator[None]:
    """Takes back the rows that snippets add to the package's tables."""
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (table, dict(table))
        for table in (TASKS, encodings.ENCODINGS, model.ARCHITECTURES, KINDS, EXPERIMENTS, RECIPES, PROGRAMS)
    ]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all pages run, in order, as for a reader who tries one after the other."""
    return tmp_path_factory.mktemp("reader")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(
    page: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tables: None,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(folder)
    if page.name == "export.md":  # checks of shapes would fix the number of lists in a traced network
        request.getfixturevalue("unchecked")
    session: dict[str, object] = {"__name__": "snippet"}
    for block in blocks(page):
        if block.language == "python" and not SKIP.fullmatch(block.above):
            capsys.readouterr()
            # Empty lines in front make a traceback point at the page's own line.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), session)
        elif block.language == "output":
            assert capsys.readouterr().out.rstrip("\n") == block.text, f"{page.name}:{block.line}"


def test_no_command_and_no_snippet_train_into_one_folder() -> None:
    made = {
        found for page in PAGES for block in blocks(page) if block.language == "python"
        for found in re.findall(r'\bout="(runs/[^"]+)"', block.text)
    }  # fmt: skip
    typed = {found for _, line in shell_lines() for found in re.findall(r"--(?:out|save) (runs/\S+)", line)}
    assert made and typed and made & typed == set()


def test_there_are_snippets_and_few_are_left_out() -> None:
    python = [block for page in PAGES for block in blocks(page) if block.language == "python"]
    assert len(python) > 30
    assert sum(bool(SKIP.fullmatch(block.above)) for block in python) <= 2


def test_commands_parse(monkeypatch: pytest.MonkeyPatch, tables: None) -> None:
    monkeypatch.chdir(ROOT)
    executed: dict[Path, dict[str, Any]] = {}

    def once(path: Path, what: str) -> dict[str, Any]:
        """Several lines name one file."""
        if path not in executed:
            executed[path] = runpy.run_path(str(path))
        return executed[path]

    monkeypatch.setattr(posattn.files, "execute", once)
    group = typer.main.get_command(cli.app)
    seen = set()
    for place, line in shell_lines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["posattn"]:
            continue
        name, *arguments = words[1:]
        assert name in group.commands, f"{place}: there is no command {name}"  # type: ignore[attr-defined]
        seen.add(name)
        if "--help" in arguments:
            continue
        try:
            given = group.commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
        except Exception as error:
            pytest.fail(f"{place}: {line}: {error}")
        check_names(place, name, given)
    assert seen == set(group.commands)  # type: ignore[attr-defined]


def check_names(place: str, command: str, given: dict[str, Any]) -> None:
    """The names and lists that a command line gives exist in the package's tables."""
    if command == "train" and given["name"] is None:
        assert given["begin"] or given["pretrained"], place
    elif command == "train":
        assert given["name"] in TASKS, place
        own = {
            field: given[field] for field in ("n", "arch", "encoding", "family", "embed", "width", "layers", "heads")
        }
        network_for(given["name"], **{field: value for field, value in own.items() if value is not None})
        assert given["recipe"] in {None, *RECIPES}, place
    elif command == "evaluate":
        assert given["scales"] is None or console.parse_scales(given["scales"]), place
    elif command == "compile":
        assert given["name"] is None or given["name"] in PROGRAMS or is_own_program(given["name"]), place
    elif command == "graph":
        known = (*PROGRAMS, "benes", None)
        assert given["what"] in known or given["what"].startswith("runs/") or is_own_program(given["what"]), place
    elif command == "predict":
        readers = (console.parse_list, posattn.task("khop").encode, posattn.task("mixed-min").encode)
        assert any(reads(reader, " ".join(given["numbers"] or [given["run"]])) for reader in readers), place
    elif command == "reproduce" and given["name"] is not None:
        own = given["name"].endswith(".py")
        assert (ROOT / given["name"]).exists() if own else given["name"] in (*EXPERIMENTS, "all"), place
        assert given["scale"] in SIZES, place


def is_own_program(name: str) -> bool:
    path, _, own = name.partition(":")
    return (ROOT / path).is_file() and f"def {own}(" in (ROOT / path).read_text(encoding="utf-8")


def reads(reader: Callable[[str], object], text: str) -> bool:
    try:
        reader(text)
    except posattn.UsageError:
        return False
    return True


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for place, line in shell_lines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert words[1] in targets, f"{place}: there is no target {words[1]}"
    for page in PAGES:
        for name in re.findall(r"`make ([\w-]+)", prose(page)):
            assert name in targets, f"{page.name}: there is no target {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name}: {target} names no heading"


@pytest.mark.parametrize("page", [*PAGES, *WRITTEN], ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_prose_fits_a_terminal(page: Path) -> None:
    """A line has at most 120 columns, unless it is of a table or has a link or name that cannot be broken."""
    wide = [line for line in prose(page).splitlines() if len(line) > 120 and not line.lstrip().startswith(("|", "!["))]
    assert [line for line in wide if " " in line.strip().removeprefix("- ")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_text_exist(page: Path) -> None:
    """A path in backticks, from the repository's root, exists, unless its line says that it is coming."""
    for line in prose(page).splitlines():
        if "coming" in line.lower():
            continue
        for path in re.findall(r"`((?:posattn|tests|benchmarks|docs|\.ci)/[\w./-]*)`", line):
            assert (ROOT / path).exists(), f"{page.name}: {path} does not exist"


def test_the_tree_is_the_tree() -> None:
    tree, _, _ = text_blocks(ROOT / "docs/architecture.md")
    paths = [line.strip().split("  ")[0].split(", ") for line in tree.splitlines() if line.startswith("  ")]
    parts = {path.name for path in (ROOT / "posattn").iterdir() if not path.name.startswith(("__", "."))}
    assert sorted(name.rstrip("/") for names in paths for name in names) == sorted(parts - {"py.typed"})
    outside = [line.split()[0] for line in tree.splitlines() if not line.startswith("  ")]
    assert [path for path in outside if not (ROOT / path).is_dir()] == []


def test_the_architectures_of_the_table_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \| (yes|no) \|$", prose(ROOT / "docs/model.md"), re.MULTILINE)
    assert [name for name, _, _ in rows] == list(model.ARCHITECTURES)
    for name, count, folds in rows:
        config = posattn.ModelConfig(8, name)
        found = sum(parameter.numel() for parameter in posattn.Transformer(config).parameters())
        assert (f"{found:,}", can(config, "fold")) == (count, folds == "yes"), name


def test_the_rows_of_the_architecture_are_those_of_the_imports() -> None:
    _, drawn, _ = text_blocks(ROOT / "docs/architecture.md")
    rows = [line.split("  ")[0].split(", ") for line in drawn.splitlines()]
    level = {part: number for number, row in enumerate(rows) for part in row}
    assert set(level) == set(test_imports.LEVEL) - {"__main__"}
    for path in test_imports.modules():
        name = test_imports.name_of(path)
        for other in test_imports.imported(path) if test_imports.part_of(name) in level else ():
            if other.startswith("posattn."):
                assert level[test_imports.part_of(other)] <= level[test_imports.part_of(name)], (
                    f"{name} imports {other}"
                )


def test_the_kinds_of_the_architecture_are_those_of_the_code() -> None:
    page = ROOT / "docs/architecture.md"
    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+Config|OwnNetwork)` \|", prose(page), flags=re.MULTILINE)
    assert dict(rows) == {kind: own.__name__ for kind, own in KINDS.items() if own.__module__.startswith("posattn.")}
    _, _, abilities = text_blocks(page)
    assert abilities == test_network.TABLE.strip("\n")


def test_every_figure_and_equation_is_on_the_map() -> None:
    text = prose(ROOT / "docs/paper-map.md")
    for kind, last in (("Figure", 37), ("Table", 2), ("Eq.", 29)):
        assert numbers(kind, text) == set(range(1, last + 1)), kind


def numbers(kind: str, text: str) -> set[int]:
    """Which numbers begin a row of the map: ``| Figure 4 |`` or ``| Figure 14-18 |``."""
    found: set[int] = set()
    for first, last in re.findall(rf"^\| {re.escape(kind)} (\d+)(?:-(\d+))? \|", text, flags=re.MULTILINE):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_nothing_is_left_to_fill_in() -> None:
    assert re.findall(r"\{\{\w+\}\}", "".join(page.read_text(encoding="utf-8") for page in PAGES)) == []


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1200


# Pages of results that do not have the common opening yet.
RESULTS = sorted((ROOT / "results").glob("*/README.md"))


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.parent.name)
def test_a_result_says_first_what_came_out(page: Path) -> None:
    """Title, *In short* in at most three sentences, a figure if there is one, a table, and only then headings."""
    opening = page.read_text(encoding="utf-8").split("\n## ")[0]
    title, short, *rest = opening.strip().split("\n\n")
    assert title.startswith("# ") and short.startswith("**In short.** ")
    assert 1 <= len(re.findall(r"[.?](?=\s|$)", short.removeprefix("**In short.** "))) <= 3, short
    if any(page.parent.glob("*.png")):
        assert rest.pop(0).startswith("![")
    assert sum(block.startswith("| ") for block in rest) == 1 and not any(block.startswith("![") for block in rest)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "results").glob("**/*.md")), ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_links_of_results_lead_somewhere(page: Path) -> None:
    test_links_lead_somewhere(page)
