"""Matrix products, convolutions, attention, and whatever runs through ATen."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.loops.ir import ExternCall, LoopNest, TemplateCall
from braze.support import trace
from braze.support.log import forget_warnings
from braze.target import cpu_target
from tests.helpers import logged
from tests.lower.conftest import check, lowered


def templates(program: object) -> list[TemplateCall]:
    return [s for s in program.steps if isinstance(s, TemplateCall)]  # type: ignore[attr-defined]


def test_linear_of_a_parameter_is_a_template() -> None:
    """Weight [N, K] seen transposed, bias in the epilogue."""
    x, w, b = torch.randn(2, 5, 8), torch.randn(6, 8), torch.randn(6)
    program = check(F.linear, x, w, b, constants=[1, 2])
    (call,) = templates(program)
    assert [str(s) for s in call.args[1].strides] == ["1", "8"]
    assert [str(s) for s in call.args[0].sizes] == ["10", "8"]
    assert len(program.steps) == 1
    check(lambda a, c: F.linear(a, c), x, w, constants=[1])
    check(lambda a, c, d: F.linear(a, c, d).relu(), x[0, 0], w, b, constants=[1, 2])


SIZES = [(5, 7, 1), (1, 7, 5), (5, 1, 7), (1, 1, 1), (1, 0, 3), (0, 4, 1), (3, 400, 1)]


@pytest.mark.parametrize("sizes", SIZES)
def test_products_with_one_row_or_column_are_sums(sizes: tuple[int, int, int]) -> None:
    """Neither the template, of whose sixteen columns one would count, nor a call: in any layout, of any numbers, with what follows in the same kernel."""
    m, k, n = sizes
    x, w = torch.randn(m, k), torch.randn(k, n)
    x.view(-1)[:3] = torch.tensor([float("inf"), float("nan"), -0.0])[: x.numel()]
    for a in (x, x.t().contiguous().t()):
        for b in (w, w.t().contiguous().t()):
            assert all(isinstance(s, LoopNest) for s in check(torch.mm, a, b).steps)
    if n == 1:
        layer, bias = torch.randn(1, k), torch.randn(1)
        for given in (x, x.view(m, 1, k)):
            made = check(
                lambda a, b, c: F.linear(a.relu(), b, c).sigmoid(), given, layer, bias, constants=[1, 2]
            )
            assert all(isinstance(s, LoopNest) for s in made.steps)
        check(torch.addmm, bias, x, w)
        check(torch.addmm, torch.randn(m, 1), x, w, allow=["aten.addmm.default"])


def test_products_of_one_place_have_eagers_signs_of_zeros() -> None:
    """Eager multiplies alone but for one row or one column, which it adds to 0."""
    a, b = -torch.zeros(5, 1), torch.ones(1, 7)

    def products(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [x @ y for x in (a, a[:1]) for y in (b, b[:, :1])]

    for given, made in zip(products(a, b), braze.compile(products)(a, b), strict=True):
        assert made.signbit().equal(given.signbit())


def test_sums_of_long_products_are_as_near_as_atens() -> None:
    x, w = torch.randn(4, 100_000), torch.randn(100_000, 1)
    exact = x.double() @ w.double()
    ours = braze.compile(lambda a, b: a @ b)(x, w)
    assert (ours - exact).abs().max() <= (x @ w - exact).abs().max() + 1e-4
    moved = braze.compile(lambda a, b: a.t() @ b, dynamic=True)
    for rows in (4, 9):
        y = torch.randn(100, rows)
        torch.testing.assert_close(moved(y, w[:100]), y.t() @ w[:100])


def test_addmm_and_mm_with_a_parameter() -> None:
    """GPT-2's Conv1D keeps its weight as [K, N]."""
    x, w, b = torch.randn(5, 8), torch.randn(8, 6), torch.randn(6)
    (call,) = templates(check(torch.addmm, b, x, w, constants=[0, 2]))
    assert [str(s) for s in call.args[1].strides] == ["6", "1"]
    assert templates(check(torch.mm, x, w, constants=[1]))


def test_rows_without_contiguous_elements_are_laid_out() -> None:
    program = check(torch.mm, torch.randn(5, 16)[:, ::2], torch.randn(8, 6), constants=[1])
    assert len(program.steps) == 2


def test_a_transposed_matrix_is_read_as_it_lies() -> None:
    program = check(torch.mm, torch.randn(8, 5).t(), torch.randn(8, 6), constants=[1])
    assert len(program.steps) == 1


def test_large_products_of_two_inputs_pack_in_each_call() -> None:
    """As the gradients of linear layers are: dY.t() @ X, dY @ W. On Intel's processors MKL is faster."""
    large = [torch.randn(24, 70).t(), torch.randn(24, 20)]
    amd, intel = (dataclasses.replace(cpu_target(), vendor=v) for v in ("AuthenticAMD", "GenuineIntel"))
    (call,) = templates(lowered(torch.mm, large, target=amd))
    assert not call.constant_b
    assert not templates(lowered(torch.mm, large, target=intel))
    assert not templates(lowered(torch.mm, [torch.randn(8, 24), torch.randn(24, 20)], target=amd))


@pytest.mark.parametrize("why", ["option", "user weight", "type", "scaled"])
def test_other_products_are_atens(why: str) -> None:
    x, w, b = torch.randn(5, 8), torch.randn(8, 6), torch.randn(6)
    if why == "option":
        program = lowered(torch.mm, [x, w], constants=[1], gemm_template=False)
        assert isinstance(program.steps[0], ExternCall)
        assert program.steps[0].out_variant == "aten.mm.out"
    elif why == "user weight":
        check(torch.mm, x, w, allow=["aten.mm.default"])
    elif why == "type":
        check(torch.mm, x.bfloat16(), w.bfloat16(), constants=[1], allow=["aten.mm.default"])
    else:
        for scales in ({"beta": 0.5, "alpha": 2}, {"beta": 0.5}, {"alpha": 2}):
            check(
                lambda c, a, d, scales=scales: torch.addmm(c, a, d, **scales), b, x, w, constants=[0, 2],
                allow=["aten.addmm.default"],
            )  # fmt: skip


def test_batched_products_and_convolution() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    check(torch.bmm, a, b, allow=["aten.bmm.default"])
    check(lambda x, y: torch.baddbmm(x[:, :, :1], x, y * 2), a, b, allow=["aten.baddbmm.default"])
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    check(lambda v, k: F.conv2d(v, k, padding=1).relu(), x, w, allow=["aten.convolution.default"])
    last = x.to(memory_format=torch.channels_last)
    check(lambda v, k: F.conv2d(v * 2, k, stride=2).relu(), last, w, allow=["aten.convolution.default"])


def test_attention_keeps_its_layout() -> None:
    q, k, v = (torch.randn(2, 5, 2, 8).transpose(1, 2) for _ in range(3))
    check(
        lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True).transpose(1, 2).reshape(2, 5, 16) + 1,
        q, k, v, allow=["aten._scaled_dot_product_flash_attention_for_cpu.default"],
    )  # fmt: skip


def test_unknown_operator_runs_through_aten_and_says_so_once() -> None:
    forget_warnings()
    before = trace.snapshot()[0]["fallbacks"]
    with trace.collect() as events, logged() as messages:
        check(
            lambda x: x.cumsum(0).erfinv() + x.erfinv(),
            torch.rand(4) / 8,
            allow=["aten.cumsum.default"] + ["aten.erfinv.default"] * 2,
        )
    assert sum("BZ3001" in m and "erfinv" in m for m in messages) == 1
    assert ("fallback", "aten.erfinv.default") in events
    assert trace.snapshot()[0]["fallbacks"] == before + 2


def test_several_results_of_an_extern_call() -> None:
    x = torch.randn(3, 7)
    check(lambda v: (lambda r: (r[0] + 1, r[1]))(v.topk(2)), x, allow=["aten.topk.default"])
    check(lambda v: v.sort(1)[1] + 0, x, allow=["aten.sort.default"])


def test_random_calls_stay_in_order() -> None:
    """The same draws as eager under one seed, although a later one is used first."""
    check(
        lambda x: (lambda a, b: b * 2 + a)(torch.rand_like(x), torch.randn_like(x)), torch.randn(4),
        allow=["aten.rand_like.default", "aten.randn_like.default"],
    )  # fmt: skip


def test_unused_random_call_still_advances_the_generator() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.rand_like(x)
        return torch.rand_like(x) + x

    check(f, torch.randn(4), allow=["aten.rand_like.default"] * 2)


def test_complex_values_pass_through() -> None:
    """Rotary embeddings by complex numbers: ATen computes, aliases are kept alive."""

    def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.reshape(3, 2, 2)) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(z).flatten(1) + 1

    program = check(
        rotate, torch.randn(3, 4), torch.randn(3, 2),
        allow=["aten.view_as_complex.default", "aten.polar.default", "aten.mul.Tensor", "aten.view_as_real.default"],
    )  # fmt: skip
    views = [s for s in program.steps if isinstance(s, ExternCall) and "view_as" in s.target]
    assert all(s.aliases for s in views)


def test_dead_values_cost_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        (x @ x).exp()
        return x + 1

    assert len(check(f, torch.randn(3, 3)).steps) == 1
