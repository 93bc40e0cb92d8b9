"""Shapes in types are checked while tests run, in every module that has them, whenever it is imported."""

import importlib
import inspect

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from shapes import _where_shapes_are, beartype_shapes, checked_modules
from torch import Tensor

from posattn.training.ways import squared_error

pytest.importorskip("beartype", reason="beartype is not installed, which checks the shapes")


def test_arguments_and_answers_are_checked_and_nothing_else():
    with pytest.raises(jaxtyping.TypeCheckError, match="the parameters of posattn"):
        squared_error(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))

    @_where_shapes_are(typechecker=beartype_shapes)
    def turned(x: Float[Tensor, "a b"], names: list[str]) -> Float[Tensor, "b a"]:
        return x if names else x.mT

    assert turned(torch.zeros(2, 3), None).shape == (3, 2)
    with pytest.raises(jaxtyping.TypeCheckError, match="the return value of"):
        turned(torch.zeros(2, 3), "name")
    with pytest.raises(jaxtyping.TypeCheckError, match="the parameters of"):
        turned(torch.zeros(3), None)


def test_shapes_that_passed_once_pass_and_no_others():
    @_where_shapes_are(typechecker=beartype_shapes)
    def pair(x: Float[Tensor, "a b"], y: Float[Tensor, "a b"] | None = None) -> tuple[Float[Tensor, "b a"], int]:
        return (x.mT if y is None else y.mT), 0

    @_where_shapes_are(typechecker=beartype_shapes)
    def repeated(x: Float[Tensor, " n"], times: int) -> Float[Tensor, "{times} n"]:
        return x.expand(2, -1)

    for _ in range(2):
        assert pair(torch.zeros(2, 3))[0].shape == pair(torch.zeros(2, 3), torch.zeros(2, 3))[0].shape == (3, 2)
        assert repeated(torch.zeros(3), 2).shape == (2, 3)
        for wrong in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.int64), "tensor"):
            with pytest.raises(jaxtyping.TypeCheckError, match="the parameters of"):
                pair(torch.zeros(2, 3), y=wrong)
        with pytest.raises(jaxtyping.TypeCheckError, match="the return value of"):
            repeated(torch.zeros(3), 3)


def test_every_module_with_shapes_is_checked():
    names = checked_modules()
    assert len(names) > 40 and {"posattn.model", "posattn.kernels.fused"} <= set(names)
    for name in names:
        module = importlib.import_module(name)
        assert module.__spec__.loader.__class__.__module__.startswith("jaxtyping"), name
    assert inspect.unwrap(squared_error) is not squared_error
