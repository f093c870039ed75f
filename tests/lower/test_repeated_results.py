"""A result of stride 0 stands in memory once; so its elements must be the same there, and there must be one."""

import pytest

from braze.loops import build
from braze.loops.ir import DType
from braze.lower.values.lazy import Lazy
from braze.lower.values.realize import differs_along
from braze.symbolic.expr import as_expr


def lazy(load, *sizes):
    return Lazy(tuple(as_expr(n) for n in sizes), DType.F32, "cpu", load)


@pytest.mark.parametrize(
    ("load", "dims", "differs"),
    [
        (lambda at: build.load("x", DType.F32, at[0] * 3), [1], False),
        (lambda at: build.load("x", DType.F32, at[0] * 3 + at[1]), [1], True),
        (lambda at: build.load("x", DType.F32, at[0] * 3 + at[1]), [], False),
        (lambda at: build.cast(build.index(at[1]), DType.F32), [1], True),
    ],
)
def test_what_an_index_shows_along_a_dim(load, dims, differs):
    assert differs_along(lazy(load, 4, 3), dims) is differs
