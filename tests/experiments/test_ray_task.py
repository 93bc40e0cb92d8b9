"""What a Ray worker says where it cannot begin."""

import sys

import pytest

from posattn.experiments import ray_task


def test_a_node_without_the_package_says_so(monkeypatch):
    work = ray_task.task_function()
    monkeypatch.setitem(sys.modules, "posattn.experiments.ray_task", None)
    monkeypatch.delattr("posattn.experiments.ray_task")
    with pytest.raises(ImportError, match=r" cannot import .*; every node needs the driver's posattn, which is \d"):
        work(b"", None)
