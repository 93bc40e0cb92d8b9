"""What tests of several verbs share."""

import pytest

from posattn.compiled_run import save
from posattn.compiler import compile_program


@pytest.fixture(scope="module")
def sorter(tmp_path_factory):
    """The folder of a compiled program that sorts five numbers."""
    folder = tmp_path_factory.mktemp("compiled") / "sorter"
    save(compile_program("bitonic-sort", 5), folder)
    return folder
