"""The layout of the repository: which part of the package may import which, and that the tests mirror the package."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "posattn"

# From the ground up: a part may import those of its own row and of the rows before it.
ROWS = (
    ("errors", "names", "streams", "page_policy"),
    ("files", "devices", "encodings", "network"),
    ("attention", "network"),
    ("model",),
    ("tokens", "looped"),
    ("tasks", "theory", "compiler"),
    ("metrics", "run_folder"),
    ("runs",),
    ("compiled_run", "folding"),
    ("kernels",),
    ("layers",),
    ("training",),
    ("baselines", "pretrained", "guarantees", "export", "graphs"),
    ("experiments",),
    ("explorer",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
LEVEL = {part: level for level, row in enumerate(ROWS) for part in row}
EXTRAS = {"ray", "torch_geometric", "transformers", "onnx", "onnxruntime", "onnxscript", "tensorboard", "triton"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path, everywhere=True):
    """The modules that a file imports: anywhere, or when it is itself imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if everywhere else _at_import(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if (PACKAGE.parent / whole.replace(".", "/")).exists() or _is_module(whole) else node.module


def _at_import(body):
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.If, ast.Try)):
            yield from _at_import([*node.body, *node.orelse, *getattr(node, "handlers", [])])
        elif isinstance(node, ast.ExceptHandler):
            yield from _at_import(node.body)
        else:
            yield node


def _is_module(name):
    return (PACKAGE.parent / f"{name.replace('.', '/')}.py").exists()


def part_of(module):
    return module.split(".")[1] if "." in module else ""


def test_every_part_of_the_package_has_its_place():
    assert {part_of(name_of(path)) for path in modules()} - {""} == set(LEVEL)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_one_way(path):
    name = name_of(path)
    if name == "posattn":  # the public names
        return
    for other in imported(path):
        if other == "posattn" or not other.startswith("posattn."):
            continue
        assert LEVEL[part_of(other)] <= LEVEL[part_of(name)], f"{name} imports {other}"


def test_only_commands_import_typer_and_rich():
    """But for the progress bar of training, which is imported where it is shown."""
    found = {
        name_of(path) for path in modules() for other in imported(path) if other.split(".")[0] in ("typer", "rich")
    }
    assert {name for name in found if part_of(name) not in ("commands", "cli")} == {"posattn.training.progress"}


def test_the_core_imports_no_extra():
    """Ray, PyTorch Geometric, transformers and the rest are imported where they are used; kernels need Triton by nature."""
    for path in modules():
        if part_of(name_of(path)) != "kernels":
            found = {other.split(".")[0] for other in imported(path, everywhere=False)} & EXTRAS
            assert not found, f"{name_of(path)} imports {found} when it is imported"


def test_every_test_file_has_a_module_of_its_name():
    """``test_<module>.py`` or ``test_<module>_<aspect>.py``; tests of the whole repository have a folder to themselves."""
    tests = PACKAGE.parent / "tests"
    for path in tests.rglob("test_*.py"):
        folder = path.relative_to(tests).parent
        if folder != Path("repository"):
            names = {module.stem for module in (PACKAGE / folder).glob("*.py")}
            assert any(f"{path.stem}_".startswith(f"test_{name}_") for name in names), path


def test_no_two_modules_have_the_same_name():
    """A file's name says what it is; packages and what stands for them aside."""
    names = sorted(path.stem for path in modules() if not path.stem.startswith("__"))
    commands = {path.stem for path in (PACKAGE / "commands").glob("*.py")}  # named after verbs
    assert not [one for one, other in pairwise(names) if one == other and one not in commands]
