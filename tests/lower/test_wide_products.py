"""Products of half types by those of float32, where oneDNN has no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.lower.products import contractions
from braze.runtime.operators import wide_products

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def without_half_types(monkeypatch):
    for module in (contractions, wide_products):
        monkeypatch.setattr(module, "has_type", lambda dtype: False)
    monkeypatch.setattr(wide_products, "SMALL", 1000)
    monkeypatch.setattr(wide_products, "BLOCK", 4 * 40 * 7)  # seven columns, or one matrix
    yield
    braze.reset()


def numbers(*sizes: int, dtype: torch.dtype, across: bool = False) -> torch.Tensor:
    """Random ones, of which columns lie in one piece where it is to lie ``across``."""
    made = torch.randn(*sizes[:-2], *reversed(sizes[-2:])).mT if across else torch.randn(sizes)
    return made.to(dtype)


def calls(fn: Any, *inputs: Any, dynamic: bool | None = None) -> tuple[Any, int]:
    """A function's results, compiled, and how often they are made wide."""
    count, into = 0, wide_products.into

    def counted(*args: Any, **out: Any) -> Any:
        nonlocal count
        count += 1
        return into(*args, **out)

    with pytest.MonkeyPatch.context() as patch:
        from braze.runtime.operators import operators

        patch.setitem(operators._DIRECT, "braze.wide_product.out", counted)
        return braze.compile(fn, dynamic=dynamic)(*inputs), count


def assert_as_exact(found: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert (found.dtype, found.shape, found.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    error, wanted = ((v.double() - exact).abs().max() for v in (found, theirs))
    assert error <= wanted + exact.abs().max() * torch.finfo(found.dtype).eps


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_are_as_exact_as_eagers(dtype, across, dynamic):
    a, b = numbers(13, 40, dtype=dtype, across=across), numbers(40, 17, dtype=dtype, across=across)
    three, bias = numbers(3, 13, 40, dtype=dtype), torch.randn(17).to(dtype)

    def fn(a, b, three, bias):
        return (
            a @ b,
            torch.addmm(bias, a, b, beta=0.5, alpha=2),
            torch.addmm(a[:, :1], a, b),
            F.linear(three, b.t(), bias),
            F.linear(three[0, 0], b.t()),
            torch.bmm(three, b.expand(3, 40, 17)),
            torch.baddbmm(bias, three, b.expand(3, 40, 17), beta=2),
        )

    inputs = (a, b, three, bias)
    found, count = calls(fn, *inputs, dynamic=dynamic)
    assert count == 6  # a row is little work
    exact = fn(*(x.double() for x in inputs))
    for each in zip(found, fn(*inputs), exact, strict=True):
        assert_as_exact(*each)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_are_as_exact_as_eagers(dtype):
    x, weight = numbers(2, 12, 40, dtype=dtype), numbers(30, 40, dtype=dtype)

    def gradients(fn: Any, to: torch.dtype) -> tuple[torch.Tensor, ...]:
        given = [v.to(to).requires_grad_() for v in (x, weight)]
        return torch.autograd.grad(fn(*given).square().sum(), given)

    compiled = braze.compile(F.linear)
    for each in zip(
        gradients(compiled, dtype),
        gradients(F.linear, dtype),
        gradients(F.linear, torch.float64),
        strict=True,
    ):
        assert_as_exact(*each)


def test_what_is_not_finite_stays_where_it_is():
    a, b = numbers(8, 40, dtype=torch.bfloat16), numbers(40, 17, dtype=torch.bfloat16)
    a[2, 3], a[4, 0], b[5, 16] = torch.inf, torch.nan, -torch.inf
    bias = torch.full((17,), torch.nan, dtype=torch.bfloat16)
    fn = lambda bias, a, b: (a @ b, torch.addmm(bias, a, b, beta=0))
    found, count = calls(fn, bias, a, b)
    assert count == 2
    torch.testing.assert_close(found, fn(bias, a, b), equal_nan=True)


@pytest.mark.parametrize(
    "sizes", [(0, 40, 17), (8, 0, 17), (8, 40, 0), (1, 1, 1), (2, 400, 3), (1, 400, 3)], ids=str
)
def test_no_elements_and_few_rows(sizes):
    m, k, n = sizes
    bias = torch.randn(n).to(torch.bfloat16)
    for across in (False, True):
        a, b = numbers(m, k, dtype=torch.bfloat16), numbers(k, n, dtype=torch.bfloat16, across=across)
        fn = lambda bias, a, b: (a @ b, torch.addmm(bias, a, b))
        for dynamic in (None, True):
            torch.testing.assert_close(calls(fn, bias, a, b, dynamic=dynamic)[0], fn(bias, a, b))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_by_one_column_are_sums_of_rows(dtype):
    """They were made wide for a product that reads each number once, which took three times as long as eager's."""

    def fn(a, v, b, w, bias):
        return a @ v, (a * 2).t() @ a[:, 0], F.linear(a, w, bias), F.linear(b, w), a[:1] @ v, a[:0] @ v

    a, v, w = numbers(13, 40, dtype=dtype), torch.randn(40).to(dtype), numbers(1, 40, dtype=dtype)
    inputs = (a, v, numbers(2, 5, 40, dtype=dtype), w, torch.randn(1).to(dtype))
    for dynamic in (None, True):
        found, count = calls(fn, *inputs, dynamic=dynamic)
        assert count == 0
        for each in zip(found, fn(*inputs), fn(*(x.double() for x in inputs)), strict=True):
            if each[0].numel():
                assert_as_exact(*each)
            else:
                assert each[0].shape == each[1].shape
    without = (torch.randn(3, 0).to(dtype), torch.randn(0).to(dtype))
    assert torch.equal(calls(lambda a, v: a @ v, *without)[0], torch.zeros(3, dtype=dtype))
    with pytest.MonkeyPatch.context() as patch:
        targets = []
        patch.setattr(contractions, "call_extern", lambda g, target, *rest: targets.append(target))
        braze.compile(lambda a, v: a @ v)(a, v)
    assert not targets


@pytest.mark.parametrize("other", [torch.float32, torch.float64])
def test_other_types_are_left_alone(other):
    a, b = numbers(13, 40, dtype=other), numbers(40, 17, dtype=other)
    assert calls(lambda a, b: a @ b, a, b)[1] == 0
    with pytest.raises(RuntimeError):
        calls(lambda a, b: a @ b, a, b.to(torch.bfloat16))


def test_where_onednn_has_the_type_its_own_are_called(monkeypatch):
    monkeypatch.setattr(contractions, "has_type", lambda dtype: True)
    a, b = numbers(13, 40, dtype=torch.bfloat16), numbers(40, 17, dtype=torch.bfloat16)
    assert calls(lambda a, b: a @ b, a, b)[1] == 0
