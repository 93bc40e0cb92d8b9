"""The store that the tests of a module share, and tables that come back as they were."""

import pytest
import torch

from posattn.encodings import ENCODINGS
from posattn.experiments import Engine, Store
from posattn.tasks import TASKS


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def engine():
    return Engine(torch.device("cpu"))


@pytest.fixture
def tables():
    """A function that takes back what a file of one's own added to the package's tables."""
    before = [(table, dict(table)) for table in (TASKS, ENCODINGS)]

    def restore():
        for table, rows in before:
            table.clear()
            table.update(rows)

    yield restore
    restore()
