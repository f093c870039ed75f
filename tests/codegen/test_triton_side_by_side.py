"""Rows of few or odd columns laid side by side, and short stretches of rows reduced place by place first; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.codegen.test_triton_forms import INF, NAN, agree, exact, numbers, plans, small
from tests.codegen.triton_bench import interpreted, planned

__all__ = ["small"]

pytestmark = pytest.mark.usefixtures("small")


def columns_of(fn, *inputs, cores=4):
    """The columns of the first kernel with rows."""
    plan = next(p for p in plans(planned(fn, *inputs, cores=cores)) if p.row is not None)
    return plan.points[-1].extent.value


def holds(fn, tmp_path, *inputs, digits=1e-5, cores=4):
    """Eager's numbers."""
    agree(interpreted(fn, tmp_path, *inputs, cores=cores)[1], exact(fn, *inputs), digits)


@pytest.mark.parametrize("shape", [(8 * 67, 7), (3, 8 * 67, 5), (2, 2, 8 * 67, 3), (8 * 67, 77)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_rows_that_tiles_do_not_divide(dtype, shape, tmp_path):
    """Eight of them lie side by side, as whole vectors, of each matrix of a batch."""
    x, dim = numbers(*shape, dtype=dtype), len(shape) - 2
    for fn in (lambda x: x.sum(dim), lambda x: (x.amax(dim), (x > 2).any(dim))):
        holds(fn, tmp_path, x, digits=1e-4 if dtype is torch.float32 else 0.5)
        wide = columns_of(fn, x)
        assert wide > shape[-1] and wide % shape[-1] == 0 and wide * x.itemsize % 16 == 0


@pytest.mark.parametrize("shape", [(16 * 60, 7), (2, 8 * 60, 5)])
def test_means_and_variances_of_rows_side_by_side(shape, tmp_path):
    x, dim = numbers(*shape) + 100, len(shape) - 2
    for fn in (lambda x: torch.var_mean(x, dim), lambda x: x - x.mean(dim, keepdim=True)):
        holds(fn, tmp_path, x, digits=1e-4)
        assert columns_of(fn, x) > shape[-1]


def test_parts_of_means_and_variances_are_full_and_many(tmp_path):
    """Of a number of rows that no number near that of the parts divides, they stay as they are."""
    x = numbers(8 * 67, 7) + 100
    holds(lambda x: torch.var_mean(x, 0), tmp_path, x, digits=1e-4)
    assert columns_of(lambda x: torch.var_mean(x, 0), x) == 7


@pytest.mark.parametrize("shape", [(8 * 67, 7), (2, 8 * 67, 5)])
def test_logarithms_of_sums_of_rows_side_by_side(shape, tmp_path):
    x, dim = numbers(*shape), len(shape) - 2
    x[..., 0], x[..., 3, 1], x[..., 9, 2] = -INF, INF, NAN
    fn = lambda x: x.logsumexp(dim)
    holds(fn, tmp_path, x)
    assert columns_of(fn, x) > shape[-1]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((8 * 67, 7), dtype) for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64)),
        *(((2, 8 * 67, 5), dtype) for dtype in (torch.bfloat16, torch.int64)),
    ],
)
def test_of_equal_extremes_in_rows_side_by_side_the_first_is_found(shape, dtype, tmp_path):
    """What lies in an earlier row may lie in a later part."""
    dim = len(shape) - 2
    few = numbers(*shape, dtype=torch.float32).round().to(dtype)
    same, late = torch.full_like(few, 3), few.clone()
    late[..., 531, 0], late[..., 17, 1], late[..., 18, 1] = 100, 100, 100
    cases = [few, same, late]
    if dtype.is_floating_point:
        none = few.clone()
        none[..., 5, 0], none[..., 530, 0], none[..., 20, 1], none[..., 3, 1] = NAN, NAN, NAN, INF
        cases += [none, torch.full_like(few, -INF), torch.full_like(few, NAN)]
    for x in cases:
        fn = lambda x: (x.argmax(dim), x.argmin(dim), x.amax(dim))
        found = interpreted(fn, tmp_path, x, cores=4)[1]
        for ours, theirs in zip(found, fn(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        assert columns_of(fn, x) > shape[-1]


def test_odd_columns_of_many_programs_begin_at_vectors(tmp_path):
    """They are cut in no more parts than lie side by side."""
    x = numbers(1024, 333, dtype=torch.bfloat16)
    holds(lambda x: x.sum(0), tmp_path, x, digits=0.5, cores=1)
    assert columns_of(lambda x: x.sum(0), x, cores=1) == 8 * 333
    assert columns_of(lambda x: x.sum(0), x[:, :328].contiguous(), cores=1) == 328


@pytest.mark.parametrize(
    "x",
    [numbers(8 * 67, 7).flip(0), numbers(8 * 67, 9)[:, :7], numbers(1, 7).expand(8 * 67, 7), numbers(537, 7)],
    ids=["turned round", "gaps", "one row", "rows left over"],
)
def test_what_does_not_lie_row_after_row_is_cut_otherwise(x, tmp_path):
    for fn in (lambda x: x.sum(0), lambda x: torch.var_mean(x, 0), lambda x: x.argmax(0)):
        holds(fn, tmp_path, x, digits=1e-4)


@pytest.mark.parametrize("shape", [(300, 40, 3), (64, 5, 40, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_short_stretches_of_rows_are_reduced_place_by_place(dtype, shape, tmp_path):
    """Each place of a stretch is a column, which begins where those of others do."""
    x, dims = numbers(*shape, dtype=dtype), (0, len(shape) - 1)
    for fn in (
        lambda x: x.amax(dims),
        lambda x: torch.var_mean(x, dims),
        lambda x: x * torch.rsqrt(x.square().sum(dims, keepdim=True) + 1e-6),
    ):
        holds(fn, tmp_path, x, digits=1e-4 if dtype is torch.float32 else 0.1)
        plan = planned(fn, x, cores=4)
        assert f"rows in {shape[-1]} parts" in plan.groups[0].reason


def test_stretches_apart_of_which_some_stay(tmp_path):
    """Places of extremes, whose order counts; stretches of whole sectors; rows that stand for others."""

    def apart(fn, x):
        holds(fn, tmp_path, x, digits=1e-3)
        return any(f"rows in {x.shape[-1]} parts" in g.reason for g in planned(fn, x, cores=1).groups)

    assert apart(lambda x: x.sum((0, 2)), numbers(300, 40, 3))
    assert not apart(lambda x: x.sum((0, 2)), numbers(300, 20, 16))
    assert not apart(lambda x: x.transpose(0, 1).reshape(40, -1).argmax(1), numbers(300, 40, 3))
    assert apart(lambda x: x.sum((0, 2)), numbers(300, 40, 6)[..., :3]) is False
