"""The matrix product's template on a GPU: what becomes one kernel, and its numbers in Triton's interpreter."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.gemm import gemm_kernel
from braze.codegen.triton.gemm_tiles import PROGRAMS, SHARED, Means, Tiles, by_rule, candidates, parsed
from braze.graph.fakes.fakes import new_mode
from braze.graph.private.torch_compat import assemble_fake
from braze.loops.ir import TemplateCall
from braze.pipeline import lower_graph, partition_graph, schedule_program
from braze.schedule.facts.records import GroupKind
from braze.target import cuda_target
from tests.codegen.triton_bench import Values, captured, context, interpreted, launcher, planned, run
from tests.loops.interpret import interpret

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def numbers(*shape, dtype=F32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def several(found):
    return list(found) if isinstance(found, (tuple, list)) else [found]


def no_further(results, fn, inputs):
    """No further from float64 than eager, beyond rounding."""
    exact = several(fn(*(x.double() if x.is_floating_point() else x for x in inputs)))
    eager = several(fn(*inputs))
    for ours, theirs, wanted in zip(results, eager, exact, strict=True):
        assert ours.shape == theirs.shape and ours.dtype is theirs.dtype
        away, allowed = (ours.double() - wanted).abs(), (theirs.double() - wanted).abs().max()
        ticks = (
            4 if ours.dtype is BF16 else 2
        )  # Triton's interpreter cuts off what does not fit into bfloat16
        tick = ticks * torch.finfo(ours.dtype).eps * wanted.abs().max() if wanted.numel() else 0
        assert not away.numel() or away.max() <= allowed + tick, (away.max(), allowed, tick)


def check(fn, folder, *inputs, kernels=None, tiles=None):
    """Run and compare; how many kernels there are. The schedule's loops, interpreted, must agree as well."""
    plan, results = interpreted(fn, folder, *inputs, matmul_template=True)
    no_further(results, fn, inputs)
    if not any(x.dtype is BF16 for x in inputs):
        no_further(interpret(plan.program, list(inputs)), fn, inputs)
    if kernels is not None:
        assert [g.kind.value for g in plan.groups] == kernels
    if tiles is not None:
        buffers = {b.name: b for b in plan.program.buffers}
        rights = frozenset(
            v.buffer for g in plan.groups if isinstance(g.call, TemplateCall) for v in g.call.args[1:]
        )
        for early in (None, rights):
            texts = [gemm_kernel(g, buffers, tiles, early) for g in plan.groups]
            no_further(run(plan, folder, *inputs, texts=texts), fn, inputs)
    return plan


def rms(x, w):
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


MULTIPLY = [
    Tiles(Means.MULTIPLY, 1, 4, 64),
    Tiles(Means.MULTIPLY, 4, 2, 128),
    Tiles(Means.MULTIPLY, 8, 8, 32, stages=2),
]
CORES = [Tiles(Means.CORES, 16, 16, 32), Tiles(Means.CORES, 16, 32, 64, 4), Tiles(Means.CORES, 32, 16, 128, 2, stages=3), Tiles(Means.CORES, 16, 16, 16, band=2)]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 40), (1, 1, 1), (3, 100, 33), (8, 257, 129), (2, 5, 1)])
def test_a_product_of_few_rows(m, k, n, dtype, tmp_path):
    x, w = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype, seed=1)
    check(lambda x, w: F.linear(x, w), tmp_path, x, w, kernels=["tem"])


@pytest.mark.parametrize("tiles", [*MULTIPLY, *CORES], ids=Tiles.text)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 40), (7, 100, 33), (19, 64, 65)])
def test_every_cut_gives_the_same_product(m, k, n, tiles, tmp_path):
    x, w, b = numbers(m, k, dtype=F16), numbers(n, k, dtype=F16, seed=1), numbers(n, dtype=F16, seed=2)
    check(lambda x, w, b: F.linear(x, w, b).relu(), tmp_path, x, w, b, kernels=["tem"], tiles=tiles)


@pytest.mark.parametrize("tiles", [MULTIPLY[1], CORES[0], CORES[1]], ids=Tiles.text)
@pytest.mark.parametrize("m", [1, 5])
def test_a_norm_before_and_a_residual_after(m, tiles, tmp_path):
    def fn(x, g, w, r):
        return r + F.linear(rms(x, g), w)

    given = numbers(m, 96, dtype=F16), numbers(96, dtype=F16, seed=1), numbers(40, 96, dtype=F16, seed=2)
    check(fn, tmp_path, *given, numbers(m, 40, dtype=F16, seed=3), kernels=["tem"], tiles=tiles)


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("tiles", [MULTIPLY[1], MULTIPLY[2], None])
def test_a_layer_norm_before(dtype, tiles, tmp_path):
    def fn(x, g, b, w):
        return F.linear(F.layer_norm(x, (96,), g, b), w)

    given = [numbers(3, 96, dtype=dtype), *(numbers(96, dtype=dtype, seed=k) for k in (1, 2))]
    check(fn, tmp_path, *given, numbers(17, 96, dtype=dtype, seed=3), kernels=["tem"], tiles=tiles)


@pytest.mark.parametrize("tiles", [MULTIPLY[0], MULTIPLY[1], CORES[0], CORES[2]], ids=Tiles.text)
@pytest.mark.parametrize("m", [1, 4, 17])
def test_a_gate_and_its_value_are_one_kernel(m, tiles, tmp_path):
    def fn(x, w):
        gate, up = F.linear(x, w).chunk(2, -1)
        return F.silu(gate) * up

    x, w = numbers(m, 64, dtype=F16), numbers(2 * 24, 64, dtype=F16, seed=1, scale=0.3)
    plan = check(fn, tmp_path, x, w, kernels=["tem"], tiles=tiles)
    assert len(plan.groups[0].call.args) == 3


def test_halves_that_others_read_too_are_stored(tmp_path):
    def fn(x, w, b):
        both = F.linear(x, w, b)
        gate, up = both.chunk(2, -1)
        return gate.sigmoid() * up, both.exp()

    check(fn, tmp_path, numbers(3, 32), numbers(20, 32, seed=1, scale=0.2), numbers(20, seed=2))


def test_a_norm_that_several_products_read_is_computed_by_each(tmp_path):
    def fn(x, g, *weights):
        y = rms(x, g)
        return tuple(F.linear(y, w) for w in weights)

    given = numbers(2, 64, dtype=F16), numbers(64, dtype=F16, seed=1)
    weights = [numbers(n, 64, dtype=F16, seed=n) for n in (16, 8, 8)]

    def three(x, g, a, b, c):
        return fn(x, g, a, b, c)

    check(three, tmp_path, *given, *weights, kernels=["tem", "tem", "tem"])


def test_a_norm_that_is_returned_too_is_not_computed_again(tmp_path):
    def fn(x, g, w):
        y = rms(x, g)
        return y, F.linear(y, w)

    check(fn, tmp_path, numbers(2, 64), numbers(64, seed=1), numbers(16, 64, seed=2), kernels=["per", "tem"])


def test_a_chain_of_a_gated_layer(tmp_path):
    def fn(x, g, wide, down):
        gate, up = F.linear(rms(x, g), wide).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, down)

    given = numbers(4, 64, dtype=F16), numbers(64, dtype=F16, seed=1)
    weights = numbers(96, 64, dtype=F16, seed=2, scale=0.2), numbers(64, 48, dtype=F16, seed=3, scale=0.2)
    check(fn, tmp_path, *given, *weights, kernels=["tem", "tem"])


@pytest.mark.parametrize("which", ["turned", "offset", "by columns", "stride 0", "three", "matrix"])
def test_matrices_as_they_lie(which, tmp_path):
    x, w = numbers(6, 48, dtype=F16), numbers(20, 48, dtype=F16, seed=1)
    fn = lambda x, w: F.linear(x, w).relu()
    if which == "turned":
        w = numbers(48, 20, dtype=F16).t()
    elif which == "offset":
        x, w = numbers(7, 50, dtype=F16)[1:, 2:], numbers(21, 60, dtype=F16)[1:, 12:]
    elif which == "by columns":
        x = numbers(48, 6, dtype=F16).t()
    elif which == "stride 0":
        x = numbers(1, 48, dtype=F16).expand(6, 48)
    elif which == "three":
        x = numbers(2, 3, 48, dtype=F16)
    else:
        fn, w = (lambda x, w: x @ w), numbers(48, 20, dtype=F16)
    check(fn, tmp_path, x, w)


def test_special_values_pass(tmp_path):
    x, w = numbers(2, 40), numbers(9, 40, seed=1)
    x[0, 3], w[2, 5], w[4, 6] = torch.inf, torch.nan, -torch.inf
    _, (ours,) = interpreted(lambda x, w: F.linear(x, w), tmp_path, x, w, matmul_template=True)
    torch.testing.assert_close(ours, F.linear(x, w), equal_nan=True)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_empty_products_stay_with_aten(m, k, n):
    plan = planned(lambda x, w: F.linear(x, w), torch.ones(m, k), torch.ones(n, k), matmul_template=True)
    assert not any(isinstance(g.call, TemplateCall) for g in plan.groups)


@pytest.mark.parametrize(("m", "dtype"), [(9, F32), (2, torch.float64), (2, torch.int64)])
def test_what_the_template_cannot_do_as_well_stays_with_aten(m, dtype):
    plan = planned(
        lambda x, w: x @ w, torch.ones(m, 16).to(dtype), torch.ones(16, 16).to(dtype), matmul_template=True
    )
    assert not any(g.kind is GroupKind.TEMPLATE for g in plan.groups)


@pytest.mark.parametrize(
    ("rows", "dtype", "arch", "taken"),
    [(1, BF16, "sm_90", True), (16, F16, "sm_90", True), (17, BF16, "sm_90", False), (1, F32, "sm_90", False), (1, BF16, "sm_80", False)],
)  # fmt: skip
def test_by_default_few_rows_by_a_layers_weight_are_the_templates(rows, dtype, arch, taken):
    def fn(x, g, w, r):
        return r + F.linear(rms(x, g), w)

    given = torch.ones(rows, 1024), torch.ones(1024), torch.ones(2048, 1024), torch.ones(rows, 2048)
    ctx = dataclasses.replace(context(), target=cuda_target((int(arch[3]), 0), 132))
    partition = captured(fn, ctx, *(x.to(dtype) for x in given))
    with torch.no_grad():
        plan = schedule_program(lower_graph(partition, ctx), ctx)
    assert (GroupKind.TEMPLATE in [g.kind for g in plan.groups]) is taken
    assert not taken or len(plan.groups) == 1


@pytest.mark.parametrize("kind", ["relu", "gelu", "tanh"])
def test_functions_of_few_rows_with_a_bias_are_done_on_the_templates_tile(kind, tmp_path):
    def fn(x, w, b):
        out = F.linear(x, w, b)
        return out.relu() if kind == "relu" else F.gelu(out, approximate="tanh" if kind == "tanh" else "none")

    given = numbers(3, 128, dtype=F16), numbers(512, 128, dtype=F16, seed=1), numbers(512, dtype=F16, seed=2)
    plan, results = interpreted(fn, tmp_path, *given)
    assert [g.kind for g in plan.groups] == [GroupKind.TEMPLATE]
    no_further(results, fn, given)
    many = planned(fn, numbers(64, 128, dtype=F16), *given[1:])
    assert GroupKind.TEMPLATE not in [g.kind for g in many.groups]


@pytest.mark.parametrize(("low", "high", "kernels"), [(2, 16, 1), (2, 17, None), (0, 5, 1)])
def test_rows_between_bounds_are_one_kernel_for_all(low, high, kernels, tmp_path):
    def fn(x, g, w, r):
        return r + F.linear(rms(x, g), w)

    given = [numbers(n, 256, dtype=F16) for n in (5, 512)] + [numbers(5, 512, dtype=F16, seed=3)]
    given.insert(1, numbers(256, dtype=F16, seed=1))
    plan = planned_for(fn, {0: (low, high), 3: (low, high)}, *given)
    if kernels is None:
        assert GroupKind.TEMPLATE not in [g.kind for g in plan.groups]
        return
    assert [g.kind for g in plan.groups] == [GroupKind.TEMPLATE]
    (text,) = generate(plan, context())
    path = tmp_path / "kernel.py"
    path.write_text(text.source)
    launch = launcher(path, text)
    for rows in (2, 5) if high == 5 else (2, 5, 16):
        x, g, w, r = numbers(rows, 256, dtype=F16), *given[1:3], numbers(rows, 512, dtype=F16, seed=3)
        memory = dict(zip(plan.program.inputs, (x, g, w, r), strict=False))
        out = torch.full((rows + 1, 512), 7.0, dtype=F16)
        launch(*(memory.get(b, out) for b in text.args), *(rows for _ in text.sizes))
        no_further([out[:rows]], fn, (x, g, w, r))
        assert (out[rows] == 7).all()


def planned_for(fn, bounds, *inputs, **options):
    """The schedule for inputs whose first sizes lie between bounds, by number of the input."""
    graph, ctx = torch.fx.symbolic_trace(fn), context(**options)
    low, high = next(iter(bounds.values()))
    mode = new_mode(dynamic=True)
    rows = mode.bounded_symbol(max(low, 2), "rows", low, high)
    examples = []
    with torch.no_grad():
        for k, (node, x) in enumerate(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True)):
            sizes = (rows, *x.shape[1:]) if k in bounds else x.shape
            with mode:
                meta = torch.empty(sizes, dtype=x.dtype, device="meta")
            fake = assemble_fake(mode.dispatch, meta, torch.device("cuda:0"), False)
            node.meta["val"] = fake
            examples.append(fake)
        with mode:
            Values(graph).run(*examples)
        partition = partition_graph(graph, examples, ctx)
        return schedule_program(lower_graph(partition, ctx), ctx)


@pytest.mark.parametrize(("columns", "wide"), [(32767, False), (32769, True)])
def test_places_beyond_what_32_bits_count_are_of_64(columns, wide):
    x, w = (torch.empty(n, 1 << 16, dtype=BF16, device="meta") for n in (4, columns))
    plan = planned_for(lambda x, w: F.linear(x, w), {0: (2, 8)}, x, w, matmul_template=True)
    (text,) = generate(plan, context())
    assert ("tl.program_id(0).to(tl.int64)" in text.source) is wide


def test_by_default_few_columns_are_atens_until_they_are_measured():
    plan = planned(lambda x, w: x @ w, torch.ones(2, 16), torch.ones(16, 16))
    assert [g.kind for g in plan.groups] == [GroupKind.EXTERN]


@pytest.mark.parametrize(
    ("inner", "columns", "rights", "tile"),
    [
        (8192, 2048, 1, (1, 8192, 16)),
        (5632, 2048, 1, (1, 2048, 4)),
        (1024, 4096, 1, (8, 1024, 4)),
        (1024, 3072, 2, (2, 1024, 4)),
        (1024, 2048, 1, (2, 1024, 4)),
    ],
)
def test_one_row_has_its_weights_in_registers_and_leaves_room_for_the_kernel_behind(
    inner, columns, rights, tile
):
    """A long sum as a whole, and many columns of a short one in few programs; two rows are cut as before."""
    one, two = (by_rule(rows, inner, columns, rights, 2) for rows in (1, 2))
    assert (one.columns, one.inner, one.warps) == tile and one.means is Means.MULTIPLY
    assert (two.columns, two.inner) not in ((1, 8192), (8, 1024))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 17, 64, 65, 300, 4096])
@pytest.mark.parametrize(
    ("inner", "columns", "rights"),
    [(1024, 4096, 1), (1024, 3072, 2), (3072, 1024, 1), (5, 3, 1), (4096, 128256, 1), (4096, 28672, 2)],
)
def test_candidates_begin_with_the_rules_and_fit_the_product(rows, inner, columns, rights):
    found = candidates(rows, inner, columns, rights, 2)
    assert by_rule(rows, inner, columns, rights, 2) in found
    assert len(set(found)) == len(found)
    assert all(parsed(t.text()) == t for t in found)
    assert all(t.inner % t.slices == 0 for t in found)
    assert all(n > 0 and n & (n - 1) == 0 for t in found for n in (t.rows, t.columns, t.inner))
    tiles = [t for t in found if t.means is Means.CORES]
    assert all(2 * t.stages * t.inner * (t.rows + t.columns * rights) <= SHARED for t in tiles)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("columns", [64, 199, 200, 528, 4096, 16384])
def test_few_rows_are_tried_without_tensor_cores_as_wide_as_leaves_programs_enough(rows, columns):
    """The rule's way whatever it is, and of the others those that give all multiprocessors work; more columns leave more of them."""
    found = candidates(rows, 4096, columns, 1, 2)
    tried = {t.columns for t in found[1:] if t.means is Means.MULTIPLY}
    assert tried == {side for side in (1, 2, 4, 8) if -(-columns // side) >= PROGRAMS}
