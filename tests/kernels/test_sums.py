"""The kernel that adds parts up, run by Triton's interpreter on the CPU, equals ``torch.sum``."""

import os

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

from posattn.kernels.sums import Parts, Shared


def test_several_sums_at_once():
    """One part and more than a program reads at once, sums of one entry and of more than a program's."""
    shapes = {
        "a": Shared((2, 3, 7), 1),
        "b": Shared((11, 1), 0),
        "c": Shared((5, 2, 1, 13, 17), 2),
        "d": Shared((19, 601), 0),
    }
    parts = Parts(torch.empty(0), shapes)
    for value in parts.tensors.values():
        value.normal_()
    sums = parts.summed()
    for name, one in shapes.items():
        torch.testing.assert_close(sums[name], parts.tensors[name].sum(dim=one.axis))
