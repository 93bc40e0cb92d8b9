"""The package as a stranger gets it: a wheel that carries what it should, runs by itself and imports little."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ["pyproject.toml", "README.md", "LICENSE", "posattn", "tests", "benchmarks"]
OPTIONAL = ["ray", "torch_geometric", "transformers", "onnx", "tensorboard", "beartype", "pydantic"]


def run(*command: object, cwd: Path, path: Path | None = None) -> str:
    """The standard output of ``command``, run with ``path`` as the only PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_citation_is_complete_for_its_kind_and_the_same_in_both_places():
    """Of an article BibTeX wants a journal and a year, which the paper's text does not state; of ``misc`` it wants neither."""
    kind, entry = re.search(r"```bibtex\n@(\w+)\{(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL).groups()
    fields = dict(re.findall(r"(\w+) += \{(.*?)\}[,\n]", entry, re.DOTALL))
    assert kind == "misc" and fields.keys() >= {"title", "author"}
    stated = (ROOT / "CITATION.cff").read_text().split("preferred-citation:")[1]
    assert f'title: "{fields["title"]}"' in stated
    assert stated.count("family-names") == len(fields["author"].split(" and")) == 5


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that neither old build outputs nor this test change the result or the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the unpacked wheel alone; torch and the rest come from the environment of the tests."""
    target = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return target


def test_wheel_carries_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "posattn/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "posattn").rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    patterns = ("explorer/page/*", "experiments/templates/*", "graphs/*.svg")
    pages = {str(file.relative_to(ROOT)) for pattern in patterns for file in (ROOT / "posattn").glob(pattern)}
    assert len(pages) > 10 and pages <= set(names)
    assert {name.split("/")[0] for name in names} == {"posattn", f"posattn-{PROJECT['version']}.dist-info"}


def test_installed_wheel_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import posattn; posattn.task('sort'); print(posattn.__file__)"
    source = run(sys.executable, "-c", code, cwd=tmp_path, path=installed)
    assert Path(source.strip()).is_relative_to(installed)
    for command in ([sys.executable, "-m", "posattn"], [installed / "bin" / "posattn"]):
        text = run(*command, "--help", cwd=tmp_path, path=installed)
        assert all(name in text for name in ("train", "evaluate", "predict", "reproduce"))


def test_pinned_versions_are_allowed_ones() -> None:
    wanted = PROJECT["dependencies"] + [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    allowed = {requirement.name: requirement.specifier for requirement in map(Requirement, wanted)}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = {pin.name: str(pin.specifier).removeprefix("==") for pin in map(Requirement, lines)}
    assert pins["torch"] == "2.13.0"
    assert str(allowed["torch"]) == "<2.16,>=2.11"
    assert [name for name, version in pins.items() if not allowed[name].contains(version)] == []


def test_import_leaves_the_extras_alone_and_the_library_the_terminal(tmp_path: Path) -> None:
    code = "import sys, posattn.experiments, posattn.explorer, posattn.export; library = set(sys.modules); import posattn.cli; "
    code += f"print(*library & {{'typer', 'rich', 'posattn.commands'}}, *set({OPTIONAL}) & set(sys.modules))"
    assert run(sys.executable, "-c", code, cwd=tmp_path, path=ROOT).split() == []
