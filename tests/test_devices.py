"""Devices by name, and the memory that they have left."""

import math
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import posattn
from posattn import UsageError, devices
from posattn.devices import free_bytes, hardware, pick_device

CPU = torch.device("cpu")


def test_a_device_has_a_name_and_words():
    assert pick_device("cpu") == pick_device(CPU) == CPU
    assert pick_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert hardware(CPU).startswith("CPU (") and hardware(CPU).endswith("1 thread)")
    for name in ("meta", "abacus", "cuda:x"):
        with pytest.raises(UsageError, match=rf"^device is '{name}'; it must be cpu or cuda\.$"):
            pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(
        UsageError, match=r"^device is 'cuda'; this machine has no GPU that PyTorch can use, so give cpu\.$"
    ):
        pick_device("cuda")


@pytest.mark.parametrize(
    ("capability", "hip", "triton", "runs"),
    [
        ((9, 0), None, True, True),
        ((8, 0), None, True, True),
        ((7, 5), None, True, False),
        ((9, 4), "6.4", True, False),
        ((9, 0), None, False, False),
    ],
)
def test_kernels_are_for_gpus_that_triton_has_matrix_products_for(capability, hip, triton, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(devices, "_TRITON", triton)
    assert devices.runs_kernels(torch.device("cuda", 0)) == runs
    assert not devices.runs_kernels(torch.device("cpu"))


def test_a_gpu_that_is_computed_on_is_the_current_one(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: (asked.append(device), nullcontext())[1])
    with devices.current(torch.device("cuda", 1)), devices.current(CPU):
        assert asked == [torch.device("cuda", 1)]


def test_only_a_lack_of_memory_is_called_one():
    for size in (10**15, 2**62):  # more than any machine has, and more than an address holds
        with pytest.raises(RuntimeError) as error:
            torch.empty(size, 4)
        assert devices.out_of_memory(error.value)
    assert devices.out_of_memory(MemoryError()) and devices.out_of_memory(torch.OutOfMemoryError())
    for other in ("CUDA error: an illegal memory access was encountered", "more than one element refers to a single memory"):
        assert not devices.out_of_memory(RuntimeError(other))


def test_every_limit_on_the_process_counts(monkeypatch):
    assert 0 < free_bytes(CPU) < math.inf and free_bytes(torch.device("meta")) == math.inf
    for reader in ("_machine", "_address_space"):
        with monkeypatch.context() as patch:
            patch.setattr(devices, reader, lambda: 1234.0)
            assert free_bytes(CPU) == 1234
    monkeypatch.setattr(
        devices, "_lines", lambda path: ["total_inactive_file 10", "total_active_file 20", "active_file 7"]
    )
    for name, limit in (("memory.max", 5000.0), ("memory.limit_in_bytes", 4500.0)):
        values = {name: limit, "memory.current": 1000.0, "memory.usage_in_bytes": 1000.0}
        monkeypatch.setattr(devices, "_read", lambda path, other=math.inf, v=values: v.get(path.split("/")[-1], other))
        assert free_bytes(CPU) == limit - 970  # files that are kept in memory can go


def test_a_limit_on_addresses_leaves_what_is_not_used():
    script = """if True:
        import resource, torch
        from posattn.devices import free_bytes
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), used + (1 << 26)))
        print(free_bytes(torch.device("cpu")))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert 0 < float(done.stdout) <= 1 << 26, done.stderr


def test_a_system_without_unix_limits_has_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    assert devices._address_space() == math.inf


def test_posattn_works_where_there_are_no_locks_and_no_limits(tmp_path, monkeypatch):
    """As on Windows, which has neither fcntl nor resource, nor /proc."""
    monkeypatch.chdir(tmp_path)
    code = """if True:
        import math, sys
        from pathlib import Path
        sys.modules |= {"fcntl": None, "resource": None}
        import torch
        import posattn.cli, posattn.experiments, posattn.explorer
        posattn.devices.Path = lambda path: Path("/nowhere" + str(path))
        assert posattn.devices.free_bytes(torch.device("cpu")) > 0
        run = posattn.train("sum", posattn.ModelConfig(3, layers=1), samples=4, epochs=1, batch=2, device="cpu", out="run")
        assert posattn.load("run").status == ["ok"]
        assert posattn.compile("prefix-sum", 2)(torch.tensor([1.0, 2.0])).tolist() == [1, 3]
    """
    told = {"env": os.environ | {"PYTHONPATH": str(Path(posattn.__file__).parents[1])}, "capture_output": True}
    done = subprocess.run([sys.executable, "-c", code], **told, timeout=200)
    assert done.returncode == 0, done.stderr
    assert posattn.load("run").status == ["ok"]
