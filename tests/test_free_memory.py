"""The memory that is free: of the machine, within the limits of the process, and on systems that know neither."""

import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import posattn
from posattn import UsageError, free_memory
from posattn.free_memory import check_fits, free_bytes

CPU = torch.device("cpu")


def test_the_least_of_machine_and_limits_is_free(monkeypatch):
    assert 0 < free_bytes(CPU) < math.inf
    for reader in ("_machine", "_address_space"):
        with monkeypatch.context() as patch:
            patch.setattr(free_memory, reader, lambda: 1234.0)
            assert free_bytes(CPU) == 1234
            patch.setattr(free_memory, reader, lambda: -1.0)
            assert free_bytes(CPU) == 0
    assert free_bytes(torch.device("meta")) == math.inf


@pytest.mark.parametrize("version", [0, 1])
def test_a_control_group_counts_with_what_it_uses(monkeypatch, tmp_path, version):
    limit, used = tmp_path / "limit", tmp_path / "used"
    groups = list(free_memory._CONTROL_GROUPS)
    groups[version] = (str(limit), str(used))
    monkeypatch.setattr(free_memory, "_CONTROL_GROUPS", groups)
    monkeypatch.setattr(free_memory, "_machine", lambda: 9000.0)
    assert free_bytes(CPU) == 9000
    limit.write_text("5000\n")
    assert free_bytes(CPU) == 5000
    used.write_text("1000\n")
    assert free_bytes(CPU) == 4000
    limit.write_text("max\n")
    assert free_bytes(CPU) == 9000


def test_a_limit_on_the_address_space_counts(monkeypatch):
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (used + 2**27, resource.RLIM_INFINITY))
    assert 2**26 < free_bytes(CPU) <= 2**27


def test_posattn_works_where_there_are_no_locks_and_no_limits(tmp_path, monkeypatch):
    """As on Windows, which has neither fcntl nor resource, nor /proc."""
    monkeypatch.chdir(tmp_path)
    code = """if True:
        import math, sys
        from pathlib import Path
        sys.modules |= {"fcntl": None, "resource": None}
        import torch
        import posattn.cli, posattn.experiments, posattn.explorer
        posattn.free_memory.Path = lambda path: Path("/nowhere" + path)
        assert posattn.free_memory.free_bytes(torch.device("cpu")) == math.inf
        run = posattn.train("sum", posattn.ModelConfig(3, layers=1), samples=4, epochs=1, batch=2, device="cpu", out="run")
        assert posattn.load("run").predict([1.0, 2.0]).shape == (1, 2)
        assert posattn.compile("prefix-sum", 2)(torch.tensor([1.0, 2.0])).tolist() == [1, 3]
    """
    told = {"env": os.environ | {"PYTHONPATH": str(Path(posattn.__file__).parents[1])}, "capture_output": True}
    assert subprocess.run([sys.executable, "-c", code], **told, timeout=200).stderr == b""
    assert posattn.load("run").status == ["ok"]


def test_elsewhere_than_on_linux_all_memory_counts(monkeypatch):
    monkeypatch.setattr(free_memory, "Path", lambda path: Path("/nowhere" + path))
    assert free_bytes(CPU) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_only_what_is_large_is_looked_at(monkeypatch):
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: 0.0)
    check_fits(1, 1000, 100, 4, CPU)
    with pytest.raises(UsageError, match=r"^the list has 1000000 numbers; with 0\.0 GB .* takes up to 0\.$"):
        check_fits(1, 1_000_000, 100, 4, CPU)
