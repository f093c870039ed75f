"""The packed GEMM template: shapes with every kind of remainder, layouts, epilogues."""

from __future__ import annotations

import ctypes
import dataclasses
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braze.codegen import c as codegen
from braze.codegen.c.gemm import tiling
from braze.codegen.c.micro import micro_kernel
from braze.context import CompileContext
from braze.loops.ir import Buffer, BufferKind, BufferView, DType, Op, Store, TemplateCall
from braze.options import Options
from braze.schedule.facts.records import Group, GroupKind
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, as_expr
from braze.target import cpu_target
from tests.codegen.c_bench import Bench, axis, call, const, load, op, result

F = DType.F32


def gemm(
    bench,
    m: int | Expr,
    n: int,
    k: int,
    *,
    transposed=True,
    epilogue="bias",
    row=None,
    constant=True,
    by=None,
    name="cpu_tem_test",
):
    """The kernel of C[m, n] = A[m, k] @ B[k, n], then the epilogue."""
    i, j = axis("m", m), axis("n", n)
    kinds = {"w": BufferKind.CONSTANT if constant else BufferKind.INPUT}
    names = ("a", "w", "bias", "c", "res")
    buffers = {x: Buffer(x, F, (ONE,), (ONE,), "cpu", kinds.get(x, BufferKind.INPUT)) for x in names}
    a = BufferView("a", (as_expr(m), as_expr(k)), (as_expr(row or k), ONE), as_expr(3 if row else 0), F)
    if by is not None:
        a = BufferView("a", (as_expr(m), as_expr(k)), (ONE, as_expr(by)), as_expr(3), F)
    strides = (ONE, as_expr(k)) if transposed else (as_expr(n), ONE)
    b = BufferView("w", (as_expr(k), as_expr(n)), strides, ZERO, F)
    value, at = result(0, F), i.symbol * n + j.symbol
    if epilogue != "none":
        value = op(Op.ADD, value, load("bias", F, j.symbol))
    if epilogue == "residual":
        value = op(Op.ADD, op(Op.MAXIMUM, value, const(0.0, F)), load("res", F, at))
    target = j.symbol * i.extent + i.symbol if epilogue == "across" else at
    stores = (Store("c", target, value),)
    template = TemplateCall("g", "gemm", (a, b), (i, j), stores, constant, ops=("linear",))
    group = Group(name, GroupKind.TEMPLATE, (), (i, j), (), (), template)
    return codegen.kernel(group, buffers, CompileContext(Options(), bench.target))


def multiply(library, text, tensors, sizes=None):
    """Pack, then call."""
    every = dict(tensors)
    for pack in text.packs:
        packed = torch.full((pack.bytes + 64,), 0x55, dtype=torch.uint8)
        f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
            library.symbol(pack.name)
        )
        f(tensors[pack.buffer].data_ptr(), packed.data_ptr(), 0)
        assert (packed[pack.bytes :] == 0x55).all(), "packed past the end"
        every[f"packed:{pack.buffer}"] = packed
    call(library, text, every, sizes or {})


def check(bench, m, n, k, *, symbolic=False, **how):
    """One product."""
    text = gemm(bench, Symbol("s0", 0) if symbolic else m, n, k, **how)
    check_product(bench.library(text), text, m, n, k, symbolic=symbolic, **how)


def check_rows(bench, rows, n, k):
    """Products of several numbers of rows, by kernels of one library."""
    texts = [gemm(bench, m, n, k, name=f"cpu_tem_{m}") for m in rows]
    library = bench.library(*texts)
    for m, text in zip(rows, texts, strict=True):
        check_product(library, text, m, n, k)


def check_product(
    library,
    text,
    m,
    n,
    k,
    *,
    epilogue="bias",
    transposed=True,
    row=None,
    symbolic=False,
    constant=True,
    by=None,
):
    a, w = torch.randn(3 + (k * by if by else m * (row or k))), torch.randn(n, k)
    bias, res = torch.randn(n), torch.randn(m, n)
    c = torch.full((m * n + 1,), 7.0)
    stored = w.flatten() if transposed else w.t().contiguous().flatten()
    multiply(
        library, text, {"a": a, "w": stored, "bias": bias, "res": res, "c": c}, {"s0": m} if symbolic else {}
    )
    left = a.as_strided((m, k), (1, by) if by else (row or k, 1), 3 if row or by else 0).double()
    exact = left @ w.double().t()
    if epilogue != "none":
        exact = exact + bias.double()
    if epilogue == "residual":
        exact = exact.clamp(min=0) + res.double()
    got = c[:-1].view(n, m).t() if epilogue == "across" else c[:-1].view(m, n)
    bound = 4e-7 * (left.abs() @ w.double().t().abs() + bias.abs() + res.abs())
    assert ((got.double() - exact).abs() <= bound).all()
    assert c[-1] == 7, "wrote past the end"


@pytest.mark.parametrize("n", [1, 48, 64, 100])
def test_remainders(native_bench, n):
    """Rows and columns that do not fill the last tile."""
    check_rows(native_bench, (1, 5, 8, 9, 23, 131), n, 37)


@pytest.mark.parametrize("k", [127, 128, 129, 257, 300, 385])
def test_long_sums_in_parts(native_bench, k):
    """The parts of a sum end where it does, though they are of one length: what lies behind the last is not added."""
    check(native_bench, 9, 20, k, row=k + 5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 20), (50, 96, 64), (13, 5, 300)])
def test_every_target(bench, shape):
    """Each instruction set's tile."""
    check(bench, *shape)


@pytest.mark.parametrize("k", [0, 1, 191, 192, 256, 257, 1024, 1025, 2500])
def test_depths(native_bench, k):
    """Sums in one or several parts, and an empty one, which leaves the bias."""
    check(native_bench, 19, 50, k)
    check(native_bench, 140, 50, k, epilogue="residual")


@pytest.mark.parametrize("epilogue", ["none", "bias", "residual", "across"])
@pytest.mark.parametrize("transposed", [True, False])
def test_epilogues_and_layouts(bench, epilogue, transposed):
    """Both layouts of the weight; additions, choices, and stores across the rows."""
    check(bench, 21, 70, 33, epilogue=epilogue, transposed=transposed)


def test_rows_apart_and_offset(native_bench):
    """A is a window of a larger matrix."""
    check(native_bench, 30, 50, 20, row=41)


def test_weight_that_is_not_constant(bench):
    """Without a kept copy the kernel packs for itself."""
    check(bench, 30, 50, 20, constant=False)


@pytest.mark.parametrize("shape", [(1, 50, 20), (30, 50, 20), (23, 100, 300), (131, 33, 1025)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_columns_of_the_left_matrix_lie_together(bench, shape, symbolic):
    """The gradient of a weight is the product of a transposed matrix, which is read as it lies."""
    m, n, k = shape
    check(bench, m, n, k, by=m, constant=False, symbolic=symbolic)
    check(bench, m, n, k, by=m + 5, constant=True, symbolic=symbolic, epilogue="residual")


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 150), k=st.integers(1, 40))
def test_symbolic_rows(tmp_path, n, k):
    """One kernel for every number of rows, none included."""
    bench = Bench(cpu_target(), tmp_path)
    for m in (0, 1, 6, 11, 130):
        check(bench, m, n, k, symbolic=True)


def test_rounding_is_no_worse_than_eager(native_bench):
    """Long sums are split like a library's."""
    m, n, k = 64, 96, 3072
    text = gemm(native_bench, m, n, k, epilogue="none")
    a, w, c = torch.randn(m, k), torch.randn(n, k), torch.empty(m * n)
    multiply(native_bench.library(text), text, {"a": a, "w": w, "c": c})
    exact = a.double() @ w.double().t()
    ours, eager = ((x.double() - exact).pow(2).mean().sqrt() for x in (c.view(m, n), a @ w.t()))
    assert ours <= 1.5 * eager


@pytest.mark.parametrize("k", [130, 192, 256, 300, 768, 1100])
def test_chains_are_of_equal_length(native_bench, k):
    """The longest chain decides how much is lost: no more than 128 products, whatever the depth."""
    m, n = 96, 96
    generator = torch.Generator().manual_seed(k)
    a, w = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
    c = torch.empty(m * n)
    text = gemm(native_bench, m, n, k, epilogue="none")
    multiply(native_bench.library(text), text, {"a": a, "w": w, "c": c})
    exact = a.double() @ w.double().t()
    # a chain of 128 loses 2.0e-7 of its sum, one of 192 2.5e-7
    assert (c.view(m, n).double() - exact).norm() <= 2.25e-7 * exact.norm()


def test_many_cores_get_tasks(native_bench):
    """A task is small enough for every core to get several."""
    many = dataclasses.replace(native_bench.target, cores=64)
    text = gemm(Bench(many, native_bench.folder), 256, 96, 8)
    rows = int(text.source.split("const int64_t m1 = m0 + ")[1].split()[0])
    assert -(-256 // rows) * 2 >= 32


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("k", [37, 1100])
def test_a_task_that_has_all_rows_packs_its_own_panel(native_bench, k, transposed):
    """Which another task's does not overwrite, on as many threads as there are; few rows or few panels are packed ahead."""
    alone = Bench(dataclasses.replace(native_bench.target, cores=2), native_bench.folder)
    check(alone, 23, 400, k, transposed=transposed, constant=False)
    check(alone, 23, 400, k, transposed=transposed, constant=False, by=29)
    assert "pack_panel(packed" in gemm(alone, 23, 400, k, constant=False).source
    assert "pack_panel(packed" not in gemm(alone, 23, 40, k, constant=False).source
    assert "pack_panel(packed" not in gemm(alone, 600, 400, k, constant=False).source


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("m", [1, 5, 23, 130])
def test_lines_of_the_next_panel_are_asked_for_while_one_is_multiplied_by(native_bench, m, transposed):
    """All of them, by as many blocks of rows as it takes; where panels are packed ahead none, and on Intel's processors none of rows that lie apart."""
    alone = Bench(
        dataclasses.replace(native_bench.target, cores=1, vendor="AuthenticAMD"), native_bench.folder
    )
    check(alone, m, 400, 37, transposed=transposed, constant=False)
    check(alone, m, 8, 37, transposed=transposed, constant=False)
    kernel = tiling(400, alone.target)
    blocks, lines = -(-m // kernel.rows), kernel.columns // 16
    named = re.search(
        r"bz_gemm\d+c\d+a(\d)_", gemm(alone, m, 400, 37, transposed=transposed, constant=False).source
    )
    asked = int(named[1]) if named else 0
    assert (asked - 1) * blocks < lines <= asked * blocks
    assert "next" not in gemm(alone, 600, 400, 37, transposed=transposed, constant=False).source
    assert "next" not in gemm(alone, m, 400, 37, transposed=transposed).source
    other = Bench(dataclasses.replace(alone.target, vendor="GenuineIntel"), native_bench.folder)
    asks = "next" in gemm(other, m, 400, 37, transposed=transposed, constant=False).source
    assert asks is (transposed and bool(asked))


def test_a_task_packs_its_own_panel_where_no_core_waits_long_for_the_last_ones(native_bench):
    panels = -(-400 // tiling(400, native_bench.target).columns)
    for cores, own in ((1, True), (panels, True), (panels - 1, False), (panels // 4, True)):
        bench = Bench(dataclasses.replace(native_bench.target, cores=cores), native_bench.folder)
        assert ("pack_panel(packed" in gemm(bench, 23, 400, 37, constant=False).source) is own


def test_room_for_results_is_asked_for_before_they_are_computed(native_bench):
    text = gemm(native_bench, 23, 400, 37, epilogue="residual").source
    assert text.index("__builtin_prefetch(b3 + ") < text.index("bz_gemm")


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(
    ("rows", "vectors", "w"), [(8, 3, 16), (1, 3, 16), (12, 2, 16), (6, 2, 8), (6, 2, 4)]
)
def test_each_line_of_a_panel_is_asked_for_ahead_of_its_use(rows, vectors, w, by_columns):
    """In the inner loop, once a row of the panel and line of the cache, all as far ahead: more than a line, less than half of a first cache."""
    text = micro_kernel(rows, vectors, w, by_columns, 0)
    loop = text[text.index("++i") : text.index("bz_splat")]
    ahead = [int(n) for n in re.findall(r"__builtin_prefetch\(b \+ (\d+)\);", loop)]
    assert len(ahead) == -(-vectors * w // 16)
    assert [n - ahead[0] for n in ahead] == [16 * n for n in range(len(ahead))]
    assert vectors * w < ahead[0] and 16 < ahead[0] < 16 << 8
