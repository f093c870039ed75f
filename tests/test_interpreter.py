"""Triton's interpreter as the tests have it, and with BRAZE_SWEEP=1 as it is: reductions and scans by a kernel's own function."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.interpreter import quicken


@triton.jit
def then(a, b, c, d):
    """x -> a * x + b, then x -> c * x + d: another result in another order."""
    return a * c, b * c + d


def one_by_one(maps):
    return functools.reduce(lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1]), maps)


def tensors(*arrays):
    op = interpreter.ReduceOps(0, then, False)
    return tuple(op.to_tensor(x, tl.int64) for x in arrays)


def maps(*shape):
    random = np.random.default_rng(0)
    return random.integers(-3, 4, shape), random.integers(-3, 4, shape)


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def first(v, i, w, j):
    better = (w > v) | ((w == v) & (j < i))
    return tl.where(better, w, v), tl.where(better, j, i)


@pytest.fixture(autouse=True)
def within_a_launch():
    """Triton's language does as the interpreter has it do."""
    quicken()
    scope = interpreter._patch_lang(then.fn)
    yield
    scope.restore()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("shape", [(1,), (8,), (4, 16), (2, 1, 4)])
def test_blocks_are_reduced_in_order(shape, keeps):
    a, b = maps(*shape)
    for axis in (*range(len(shape)), *([None] if len(shape) == 1 else [])):
        dims = tuple(range(len(shape))) if axis is None else axis
        along = [
            x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0).reshape(shape[axis], -1)
            for x in (a, b)
        ]
        rest = () if axis is None else (*shape[:axis], *shape[axis + 1 :])
        wanted = [one_by_one(zip(*(x[:, i] for x in along), strict=True)) for i in range(along[0].shape[1])]
        got = interpreter.ReduceOps(axis, then, keeps).apply(tensors(a, b))
        for mine, theirs in zip(got, zip(*wanted, strict=True), strict=True):
            each = np.array(theirs).reshape(rest)
            assert np.array_equal(mine.handle.data.reshape(rest), each)
            assert [int(n) for n in mine.shape] == list((np.expand_dims(each, dims) if keeps else each).shape)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1,), (8,), (4, 16)])
def test_blocks_are_scanned_in_order(shape, reverse):
    a, b = maps(*shape)
    for axis in range(len(shape)):
        got = interpreter.ScanOps(axis, then, reverse).apply(tensors(a, b))
        lines = [np.moveaxis(x, axis, 0).reshape(shape[axis], -1)[:: -1 if reverse else 1] for x in (a, b)]
        found = [np.moveaxis(x.handle.data, axis, 0).reshape(shape[axis], -1) for x in got]
        found = [x[:: -1 if reverse else 1] for x in found]
        for i in range(lines[0].shape[1]):
            steps = list(zip(*(x[:, i] for x in lines), strict=True))
            for n in range(len(steps)):
                assert tuple(x[n, i] for x in found) == one_by_one(steps[: n + 1])


def test_what_is_combined_keeps_its_type():
    """Sums of eight bits wrap as they do where each is stored."""
    (got,) = interpreter.ReduceOps(0, added, False).apply(
        (interpreter.ReduceOps(0, added, False).to_tensor(np.full(8, 100, np.int8), tl.int8),)
    )
    assert got.dtype == tl.int8
    assert got.handle.data.item() == np.int8(32)


def test_the_first_of_equals_is_found():
    """As where each number is compared with the best so far."""
    op = interpreter.ReduceOps(1, first, False)
    v, i = (
        np.array([[1.0, 3, 2, 3], [0.0, -0.0, 0, -1]], np.float32),
        np.arange(8, dtype=np.int32).reshape(2, 4),
    )
    values, places = op.apply((op.to_tensor(v, tl.float32), op.to_tensor(i, tl.int32)))
    assert values.handle.data.tolist() == [3, 0]
    assert places.handle.data.tolist() == [1, 4]
