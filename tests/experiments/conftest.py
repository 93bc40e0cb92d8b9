"""The store that the tests of a module share."""

import pytest
import torch

from posattn.experiments import Engine, Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def engine():
    return Engine(torch.device("cpu"))
