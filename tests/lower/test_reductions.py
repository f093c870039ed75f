"""Reductions give eager's values and types over any dimensions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import braze
from braze.loops.ir import DType, LoopNest
from tests.lower.conftest import check

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
]


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * 2
    if dtype is torch.bool:
        return values > 0.3
    return values.abs().to(dtype) if dtype is torch.uint8 else values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all"])
def test_reduction_of_each_type(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype, 3, 4, 5)
    check(lambda v: getattr(v, name)(1), x)
    check(lambda v: getattr(v, name)(-1, keepdim=True), x)
    if name in ("sum", "any", "all", "prod"):
        check(lambda v: getattr(v, name)(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_mean_and_variance(dtype: torch.dtype) -> None:
    x = sample(dtype, 4, 6)
    check(lambda v: v.mean(), x)
    check(lambda v: v.mean(0, keepdim=True), x)
    check(lambda v: v.var(1), x)
    check(lambda v: v.var((0, 1), correction=0), x)
    check(lambda v: v.std(0), x)
    check(lambda v: torch.var_mean(v, 1, correction=0, keepdim=True), x)
    check(lambda v: torch.std_mean(v, 1), x)


def test_accumulation_types() -> None:
    """A result type that is asked for is also computed in; half types sum in float32."""
    x = sample(torch.bfloat16, 2000)
    check(lambda v: v.sum(), x)
    check(lambda v: v.sum(dtype=torch.float32), x)
    check(lambda v: v.sum(dtype=torch.float64), sample(torch.float32, 9))
    check(lambda v: v.sum(dtype=torch.int32), sample(torch.float32, 9))
    check(lambda v: v.mean(dtype=torch.float32), sample(torch.int64, 9))
    check(lambda v: v.sum(), torch.full((4,), 2**62))
    check(lambda v: v.sum(dtype=torch.int8), torch.full((4,), 100))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_with_index(name: str) -> None:
    """The first of equal elements; nan wins."""
    x = torch.tensor(
        [[1.0, 3.0, 3.0, -1.0], [math.nan, 1.0, math.nan, 9.0], [-math.inf, -math.inf, -math.inf, -math.inf]]
    )
    for values in (x, x.bfloat16(), x.nan_to_num(0, 5, -5).int()):
        check(lambda v: tuple(getattr(v, name)(1)), values)
        check(lambda v: tuple(getattr(v, name)(0, keepdim=True)), values)
        check(lambda v: getattr(v, name)(), values)
        check(lambda v: getattr(v, "arg" + name)(1), values)
        check(lambda v: getattr(v, "arg" + name)(), values)
        check(lambda v: getattr(v, "arg" + name)(-1, keepdim=True), values)


def test_argmax_of_a_permuted_tensor_counts_logically() -> None:
    x = torch.randn(3, 4, 5).permute(2, 0, 1)
    check(lambda v: v.argmax(), x)
    check(lambda v: v.argmin(1), x)


def test_special_values_in_sums() -> None:
    x = torch.tensor([[1.0, math.inf], [math.inf, -math.inf], [math.nan, 1.0], [-0.0, -0.0]])
    for name in ("sum", "mean", "amax", "amin", "prod"):
        check(lambda v, name=name: getattr(v, name)(1), x)


def test_empty_dimensions() -> None:
    """Neutral elements; nan for a mean of nothing."""
    x = torch.randn(3, 0)
    for name in ("sum", "prod", "mean", "any", "all", "var"):
        check(lambda v, name=name: getattr(v, name)(1), x)
        check(lambda v, name=name: getattr(v, name)(0), x)
    check(lambda v: v.sum((), keepdim=True), torch.randn(2, 3))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("reduction", [torch.any, torch.all])
def test_a_truth_of_no_dimensions_is_of_each_element(reduction, keepdim, dtype, dynamic) -> None:
    def f(x):
        return reduction(x, dim=(), keepdim=keepdim)

    x = torch.tensor([[0, 1, 2], [3, 0, 5]], dtype=dtype)
    compiled = braze.compile(f, dynamic=dynamic)
    for given_ in (x, x.T, x[:0], x[0, 0], x[:, ::2]):
        got, expected = compiled(given_), f(given_)
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(got, expected)


def test_tensor_without_dimensions() -> None:
    x = torch.tensor(2.5)
    check(lambda v: v.sum(), x)
    check(lambda v: v.sum(0), x)
    check(lambda v: v.amax(), x)
    check(lambda v: v.var(correction=0), x)
    check(lambda v: tuple(v.max(0)), x)


def test_variances_are_of_doubles_but_in_norms() -> None:
    """As eager's are on the CPU; norms say so by a float correction."""

    def kinds(correction: float) -> set[DType]:
        program = check(
            lambda v: torch.ops.aten.var.correction(v, [1], correction=correction), torch.randn(3, 9)
        )
        return {r.dtype for s in program.steps if isinstance(s, LoopNest) for r in s.reductions}

    assert kinds(1) == kinds(0) == {DType.F64}
    assert kinds(0.0) == {DType.F32}


def test_extremes_of_truths_with_their_places_are_atens() -> None:
    for name in ("max", "min"):
        check(lambda v, name=name: getattr(v, name)(1), sample(torch.bool, 3, 5), allow=[f"aten.{name}.dim"])


def test_single_element_variance_is_nan() -> None:
    check(lambda v: v.var(1), torch.randn(3, 1))


@pytest.mark.parametrize("order", [1, 2, math.inf, -math.inf])
def test_vector_norms(order: float) -> None:
    x = sample(torch.float32, 4, 5)
    check(lambda v: torch.linalg.vector_norm(v, order, dim=1), x)
    check(lambda v: torch.linalg.vector_norm(v, order), x)


def test_input_arithmetic_is_in_the_reduction() -> None:
    """An elementwise producer is read inside the reduction's own nest."""
    program = check(lambda v: (v * v + 1).sum(-1), sample(torch.float32, 3, 8))
    assert len(program.steps) == 1
    assert isinstance(program.steps[0], LoopNest)


def test_softmax_from_parts() -> None:
    def softmax(v: torch.Tensor) -> torch.Tensor:
        e = (v - v.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    x = sample(torch.float32, 2, 3, 7)
    check(softmax, x)
    check(softmax, torch.tensor([[-math.inf, 0.0, 1.0], [-math.inf, -math.inf, -math.inf]]))


def test_costly_row_values_are_stored_before_they_are_broadcast() -> None:
    """1/sqrt of a row is computed once per row, not once per element."""

    def norm(v: torch.Tensor) -> torch.Tensor:
        return v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6)

    program = check(norm, sample(torch.float32, 4, 16))
    assert [len(s.axes) for s in program.steps] == [1, 1, 2]


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], bool]:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    dims = draw(st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda d: d % len(shape)))
    x = torch.randn(shape)
    order = draw(st.permutations(range(len(shape))))
    x = torch.randn([shape[d] for d in order]).permute([list(order).index(d) for d in range(len(shape))])
    return x, dims, draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_dimensions_of_any_layout(case: tuple[torch.Tensor, list[int], bool]) -> None:
    x, dims, keep = case
    check(lambda v: v.sum(dims, keepdim=keep), x)
    check(lambda v: v.amax(dims, keepdim=keep), x)
    check(lambda v: torch.var_mean(v, dims, correction=0, keepdim=keep), x)


INFINITE = float("inf")


@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, 0.0, 1e30, 1.0]],
        [[INFINITE] * 4] * 2,
        [[1.0, 2.0, INFINITE], [INFINITE, 2.0, 1.0], [1.0, -INFINITE, INFINITE]],
        [[INFINITE]],
    ],
    ids=["large", "infinite", "in places", "one"],
)
def test_variances_of_extreme_rows_are_eagers(rows):
    """Squares that a float cannot hold are summed in double; an infinite element spoils the mean unless it is the last."""
    x = torch.tensor(rows)
    for name in ("std", "var_mean", "std_mean"):
        for dim in (0, 1):
            wanted = getattr(torch, name)(x, dim)
            found = braze.compile(lambda v, name=name, dim=dim: getattr(torch, name)(v, dim))(x)
            torch.testing.assert_close(found, wanted, equal_nan=True)


GROUPS = [(8, 2), (8, 3), (4, 10), (2, 24), (3, 1), (1, 8), (4, 16)]


def by_groups(groups: int, each: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Channels-last pictures whose channels are groups."""
    x = sample(dtype, 2, groups * each, *size)
    form = torch.channels_last if len(size) == 2 else torch.channels_last_3d
    return x.contiguous(memory_format=form).unflatten(1, (groups, each))


@pytest.mark.parametrize(("groups", "each"), GROUPS)
def test_groups_of_channels_side_by_side(groups: int, each: int) -> None:
    x = by_groups(groups, each, 5, 4)
    check(lambda v: v.sum((2, 3, 4)), x)
    check(lambda v: v.mean((2, 3, 4), keepdim=True), x)
    check(lambda v: (v * v).mean((4, 2, 3)), x)
    check(lambda v: torch.var_mean(v, (2, 3, 4), correction=0.0, keepdim=True), x)
    check(lambda v: v.std((2, 3, 4), correction=2.0), x)
    check(lambda v: v.amax((2, 3, 4)), x)
    check(lambda v: v.sum((0, 2, 3, 4)), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool])
def test_groups_of_channels_of_each_type(dtype: torch.dtype) -> None:
    x = by_groups(4, 6, 4, 5, dtype=dtype)
    check(lambda v: v.sum((2, 3, 4)), x)
    if dtype.is_floating_point:
        check(lambda v: torch.var_mean(v, (2, 3, 4), correction=0.0), x)
        check(lambda v: torch.var_mean(v, (2, 3, 4)), x)


def test_groups_of_channels_of_volumes() -> None:
    check(lambda v: torch.var_mean(v, (2, 3, 4, 5), correction=0.0), by_groups(3, 4, 2, 3, 4))


def test_means_far_from_zero_keep_their_variance_in_stages() -> None:
    x = by_groups(4, 6, 8, 8) + 1000.0
    got = braze.compile(lambda v: torch.var_mean(v, (2, 3, 4), correction=0.0))(x)
    exact = torch.var_mean(x.double(), (2, 3, 4), correction=0.0)
    eager = torch.var_mean(x.contiguous(), (2, 3, 4), correction=0.0)
    for ours, theirs, right in zip(got, eager, exact, strict=True):
        assert (ours - right).abs().max() <= 2 * (theirs - right).abs().max() + 1e-5


def nests(fn: object, x: torch.Tensor) -> list[LoopNest]:
    return [s for s in check(fn, x).steps if isinstance(s, LoopNest)]  # type: ignore[arg-type]


def test_rows_are_walked_in_the_order_of_memory() -> None:
    """Statistics of a whole channels-last picture are those of one stretch of memory; places are counted in the order of dims."""
    x = sample(torch.float32, 3, 6, 5, 4).contiguous(memory_format=torch.channels_last)
    for fn in (
        lambda v: v.sum((1, 2, 3)),
        lambda v: torch.var_mean(v, (1, 2, 3), correction=0.0),
        lambda v: v.amax((3, 1, 2)),
    ):
        (nest,) = nests(fn, x)
        assert [a.extent.value for a in nest.reduce_axes] == [120]
    (nest,) = nests(lambda v: v.t().sum(), sample(torch.float32, 7, 9))
    assert [a.extent.value for a in nest.reduce_axes] == [63]
    same = torch.ones(6, 7).t()  # all are as large: the first one counts
    same[3, 2] = same[5, 0] = 2.0
    check(lambda v: v.argmax(), same)


def test_few_channels_beside_each_other_are_reduced_last() -> None:
    """Vectors lie along all channels; where channels lie apart, or there is one group, one stage does it."""

    def total(v: torch.Tensor) -> torch.Tensor:
        return v.sum((2, 3, 4))

    first, second = nests(total, by_groups(8, 4, 6, 6))
    assert [a.extent.value for a in first.axes] == [2, 32]
    assert [a.extent.value for a in second.reduce_axes] == [4]
    assert len(nests(total, by_groups(8, 4, 6, 6).contiguous())) == 1
    assert len(nests(total, by_groups(1, 8, 6, 6))) == 1
    assert len(nests(total, by_groups(8, 16, 6, 6))) == 1
    assert len(nests(total, by_groups(8, 4, 1, 3))) == 1
