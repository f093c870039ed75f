"""Values stored and added at computed places by loops of ours, in Triton's interpreter beside ATen."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("triton")

from braze import pipeline
from braze.loops.ir import StoreMode
from braze.lower.scatters import scattered
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_forms import numbers
from tests.codegen.test_triton_segments import calls, places
from tests.codegen.triton_bench import captured, context, interpreted, planned, run

aten = torch.ops.aten
interpreter = pytest.importorskip("triton.runtime.interpreter")
F16, F32, F64, BF16 = torch.float16, torch.float32, torch.float64, torch.bfloat16
I32, I64 = torch.int32, torch.int64
DIGITS = {F64: 1e-12, F32: 1e-5, F16: 2e-3, BF16: 2e-2}


def asks_for_a_number(dtype, asked):
    """Skip what has a number of bfloat16 in a kernel's text, which the interpreter of Triton 3.6 does not know."""
    if asked and dtype is BF16 and not hasattr(interpreter.InterpreterBuilder, "get_bf16"):
        pytest.skip("Triton 3.6's interpreter has no number of bfloat16")


def once(count, rows):
    """Places of which none is named twice."""
    return torch.arange(count) * 7 % rows


def given(fn, *inputs):
    """What eager gives, sums in float64."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    return fn(*wide)


def check(fn, folder, *inputs, own=True):
    """Kernels alone, no call, and the result of eager in type, strides and numbers; the inputs as they were."""
    before = [x.clone() for x in inputs]
    plan, (found,) = interpreted(fn, folder, *inputs)
    wanted = fn(*inputs)
    assert not own or not calls(plan)
    assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
    exact = given(fn, *inputs) if wanted.is_floating_point() else wanted
    digits = DIGITS.get(wanted.dtype, 0)
    torch.testing.assert_close(found.to(exact.dtype), exact, rtol=digits, atol=digits, equal_nan=True)
    assert all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(inputs, before, strict=True))
    return plan


#: name -> function of (a matrix of 23 x 8, 9 x 8 values, 9 places of 23, each once)
STORES = {
    "index_put": lambda x, v, i: aten.index_put(x, [i - 23], v),
    "index_put of int32": lambda x, v, i: aten.index_put(x, [i.int()], v),
    "index_put of one row": lambda x, v, i: aten.index_put(x, [i], v.select(0, 0)),
    "index_put of elements": lambda x, v, i: aten.index_put(x, [i, i % 8 - 8], v.select(1, 0)),
    "index_put of a grid": lambda x, v, i: aten.index_put(x, [i.unsqueeze(1), i.narrow(0, 0, 3) % 8], v.narrow(1, 0, 3)),
    "index_put of columns": lambda x, v, i: aten.index_put(x.t(), [None, i], v.t()),
    "index_copy": lambda x, v, i: aten.index_copy(x, 0, i, v),
    "index_copy of a middle dim": lambda x, v, i: aten.index_copy(x.view(1, 23, 8), -2, i, v.view(1, 9, 8)),
    "index_fill": lambda x, v, i: aten.index_fill(x, 0, i, 3),
    "index_fill by a tensor": lambda x, v, i: aten.index_fill(x, -2, i, v.select(0, 0).select(0, 0)),
    "scatter": lambda x, v, i: aten.scatter(x, 0, i.unsqueeze(1).expand(9, 8), v),
    "scatter of a part": lambda x, v, i: aten.scatter(x, 0, i.narrow(0, 0, 4).unsqueeze(1).expand(4, 3), v),
    "scatter of a number": lambda x, v, i: aten.scatter(x, 0, i.unsqueeze(1), 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I64, I32, torch.int8, torch.bool])
@pytest.mark.parametrize("name", STORES)
def test_what_is_stored_at_computed_places(name, dtype, tmp_path):
    asks_for_a_number(dtype, name in ("index_fill", "scatter of a number"))
    x, v = (numbers(*s).mul(9).to(dtype) for s in ((23, 8), (9, 8)))
    check(STORES[name], tmp_path, x, v, once(9, 23))


#: the same, where several values are for one place, of 50 x 8 values and 50 places
SUMS = {
    "index_put": lambda x, v, i: aten.index_put(x, [i - 23], v, True),
    "index_put of int32": lambda x, v, i: aten.index_put(x, [i.int()], v, True),
    "index_put of a number": lambda x, v, i: aten.index_put(x, [i, i % 8], v.select(0, 0).select(0, 0), True),
    "index_put of columns": lambda x, v, i: aten.index_put(x.t(), [None, i], v.t(), True),
    "index_add": lambda x, v, i: aten.index_add(x, 0, i, v),
    "index_add of a share": lambda x, v, i: aten.index_add(x, 0, i, v, alpha=2),
    "index_add of a middle dim": lambda x, v, i: aten.index_add(x.view(1, 23, 8), -2, i, v.view(1, 50, 8)),
    "scatter_add": lambda x, v, i: aten.scatter_add(x, 0, i.unsqueeze(1).expand(50, 8), v),
    "scatter_add of a part": lambda x, v, i: aten.scatter_add(
        x, 0, i.narrow(0, 0, 7).unsqueeze(1).expand(7, 3), v
    ),
    "scatter_reduce": lambda x, v, i: aten.scatter_reduce(x, 0, i.unsqueeze(1).expand(50, 8), v, "sum"),
    "scatter_reduce of others": lambda x, v, i: aten.scatter_reduce(
        x, 0, i.unsqueeze(1).expand(50, 8), v, "sum", include_self=False
    ),
}


@pytest.mark.parametrize("how", ["spread", "half", "one"])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I64, I32])
@pytest.mark.parametrize("name", SUMS)
def test_what_is_added_at_computed_places(name, dtype, how, tmp_path, monkeypatch):
    monkeypatch.setattr(scattered, "SPARSE", 100)
    x, v = (numbers(*s).mul(9).to(dtype) for s in ((23, 8), (50, 8)))
    if name == "scatter_reduce of others" and dtype in (F16, BF16):
        pytest.skip("eager rounds each sum, and so does its float64 not start from these")
    check(SUMS[name], tmp_path, x, v, places(50, 23, how))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool])
def test_sums_of_small_integers_are_atens(dtype):
    fn = lambda x, v, i: aten.index_put(x, [i], v, True)
    given = [torch.zeros(23, 8, dtype=dtype), torch.zeros(50, 8, dtype=dtype), places(50, 23, "spread")]
    assert calls(planned(fn, *given)) == ["aten.index_put_.default"]


@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add"])
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, -0.0, 3e38])
def test_special_values_go_where_eager_s_do(name, special, tmp_path):
    x, v = numbers(23, 8), numbers(50, 8)
    x[3], v[5], v[7, 2] = special, special, -special
    check(SUMS[name], tmp_path, x, v, places(50, 23, "half"))


@pytest.mark.parametrize(
    ("x", "v"),
    [
        (lambda: numbers(8, 23).t(), lambda: numbers(8, 50).t()),
        (lambda: numbers(24, 8)[1:], lambda: numbers(51, 9)[1:, 1:]),
        (lambda: numbers(23, 16)[:, ::2], lambda: numbers(8).expand(50, 8)),
        (lambda: numbers(1).expand(23, 8), lambda: numbers(50, 1).expand(50, 8)),
    ],
)
@pytest.mark.parametrize("name", SUMS)
def test_operands_may_lie_anyhow(name, x, v, tmp_path):
    if name.startswith("index_add") and x().stride() == (1, 23):
        pytest.skip("PyTorch's fake of it asks for a GPU")
    i = torch.stack([places(50, 23, "spread"), torch.full((50,), 99)], 1)[:, 0]  # every second number
    check(SUMS[name], tmp_path, x(), v(), i)


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (1, 7), (7, 1)])
@pytest.mark.parametrize("columns", [1, 3])
def test_sizes_of_one(rows, count, columns, tmp_path):
    x, v, i = numbers(rows, columns), numbers(count, columns), torch.arange(count) % rows
    check(lambda x, v, i: aten.index_add(x, 0, i, v), tmp_path, x, v, i)
    check(lambda x, v, i: aten.index_put(x, [i], v, True), tmp_path, x, v, i)
    at = i[:, None].expand(count, columns)
    check(lambda x, v, i: aten.scatter_add(x, 0, i, v), tmp_path, x, v, at)


def test_of_no_values_eager_is_asked():
    fn = lambda x, v, i: aten.index_add(x, 0, i, v)
    plan = planned(fn, numbers(5, 8), numbers(0, 8), torch.empty(0, dtype=I64))
    assert calls(plan) == ["aten.index_add_.default"]


@pytest.mark.parametrize("name", ["index_put", "index_copy", "scatter"])
def test_nothing_is_stored_at_a_place_that_does_not_exist_where_nobody_is_to_be_told(name, tmp_path):
    x, v, i = numbers(23, 8), numbers(9, 8), once(9, 23)
    beyond = i.clone()
    beyond[2], beyond[5] = 70, -60
    _, (found,) = interpreted(STORES[name], tmp_path, x, v, beyond, assert_indices=False)
    kept = torch.ones(9, dtype=torch.bool)
    kept[2] = kept[5] = False
    torch.testing.assert_close(found, x.index_put([i[kept]], v[kept]))


def test_nothing_is_added_at_a_place_that_does_not_exist_where_nobody_is_to_be_told(tmp_path):
    x, v, i = numbers(23, 8), numbers(50, 8), places(50, 23, "spread")
    i[4], i[9] = 23, -1  # index_add counts from the first alone
    _, (found,) = interpreted(SUMS["index_add"], tmp_path, x, v, i, assert_indices=False)
    kept = (i >= 0) & (i < 23)
    torch.testing.assert_close(found, x.index_add(0, i[kept], v[kept]))


def test_what_makes_the_values_is_computed_where_they_are_stored(tmp_path):
    def fn(h, w, s, d):
        return aten.index_add(h.new_zeros(23, 8), 0, d, torch.relu(aten.index_select(h, 0, s) * w)) * 0.5

    plan = check(fn, tmp_path, numbers(31, 8), numbers(8), places(50, 31, "spread"), places(50, 23, "half"))
    adding = [g for g in plan.groups if any(s.mode is StoreMode.ADD for n in g.steps for s in n.stores)]
    assert len(plan.groups) == 3 and len(adding) == 1, "zeros, sums, and what is done with them"
    assert set(adding[0].reads) >= {"h", "w", "s", "d"}


@pytest.mark.parametrize("dtype", [F32, BF16, I64])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_very_many_values_for_few_places_are_shared_among_copies(dtype, columns, tmp_path):
    x, v = numbers(5, *columns).mul(9).to(dtype), numbers(3000, *columns).mul(9).to(dtype)
    plan = check(lambda x, v, i: aten.index_add(x, 0, i, v), tmp_path, x, v, places(3000, 5, "half"))
    made = [b for b in plan.program.buffers if b.sizes and b.sizes[0].value == 64]
    assert made, "a copy of the sums for each 64th of the values"


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I64])
def test_one_element_for_each_row_is_a_choice_in_the_kernel_around_it(dtype, tmp_path):
    asks_for_a_number(dtype, True)
    x, v = (numbers(*s).mul(9).to(dtype) for s in ((23, 8), (23, 1)))
    i = (torch.arange(23) * 5 % 8).view(23, 1)
    for fn in (
        lambda x, v, i: aten.scatter(x, 1, i, v) * 2,
        lambda x, v, i: aten.scatter(x.new_zeros(23, 8), -1, i.int(), 3) + v,
        lambda x, v, i: aten.scatter_add(x * 2, 1, i, v),
        lambda x, v, i: aten.scatter_add(x.t().new_zeros(23, 8), 1, i, v * 2),
    ):
        assert len(check(fn, tmp_path, x, v, i).groups) == 1


def test_of_a_row_whose_element_does_not_exist_nothing_is_changed_where_nobody_is_to_be_told(tmp_path):
    x, v, i = numbers(23, 8), numbers(23, 1), torch.full((23, 1), 8)
    _, (found,) = interpreted(
        lambda x, v, i: aten.scatter(x, 1, i, v), tmp_path, x, v, i, assert_indices=False
    )
    assert torch.equal(found, x)


def test_a_sum_in_a_wider_type_of_few_values_in_much_memory_is_atens():
    fn = lambda x, v, i: aten.index_add(x, 0, i, v)
    few = [numbers(2, 8, dtype=BF16), torch.arange(2)]
    assert calls(planned(fn, numbers(23, 8, dtype=BF16), *few)) == ["aten.index_add_.default"]
    assert calls(planned(fn, numbers(4, 8, dtype=BF16), *few)) == []


@pytest.mark.parametrize(
    ("rows", "dtype", "wanted"), [(23, BF16, "braze.table_sums"), (23, F32, ""), (2, BF16, "")]
)
def test_few_long_rows_of_a_half_type_in_many_rows_of_zeros_are_written_once(rows, dtype, wanted, tmp_path):
    fn = lambda v, i: aten.index_add(v.new_zeros(rows, 128), 0, i, v)
    inputs = numbers(7, 128, dtype=dtype), torch.arange(7) % rows
    assert calls(planned(fn, *inputs)) == ([f"{wanted}.default"] if wanted else [])
    check(fn, tmp_path, *inputs, own=False)


def fixed(fn, *inputs):
    """The schedule of a program that asks for the same numbers each time."""
    ctx = dataclasses.replace(context(), deterministic=True)
    partition = captured(fn, ctx, *inputs)
    with torch.no_grad():
        return pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("index_put", ["braze.table_sums.default"]),
        ("index_add", ["braze.table_sums.default"]),
        ("index_add of a share", ["braze.table_sums.default"]),
        ("index_add of a middle dim", ["aten.index_add_.default"]),
        ("scatter_add", ["aten.scatter_add_.default"]),
    ],
)
def test_the_same_numbers_each_time_where_the_program_asks_for_them(name, wanted, tmp_path):
    inputs = numbers(23, 8), numbers(50, 8), places(50, 23, "half")
    plan = fixed(SUMS[name], *inputs)
    assert calls(plan) == wanted
    if wanted[0].startswith("braze"):
        (found,) = run(plan, tmp_path, *inputs)
        torch.testing.assert_close(found.double(), given(SUMS[name], *inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", STORES)
def test_of_values_for_one_place_the_same_stays_each_time_where_the_program_asks_for_it(name):
    alike = name.startswith("index_fill") or name == "scatter of a number"
    assert bool(calls(fixed(STORES[name], numbers(23, 8), numbers(9, 8), once(9, 23)))) is not alike


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["index_add", "index_put", "index_copy", "scatter_add", "scatter"])
def test_an_input_is_written_where_it_lies(name, whole, tmp_path):
    functions = {
        "index_add": lambda x, v, i: x.index_add_(0, i, v * 2),
        "index_put": lambda x, v, i: x.index_put_([i], v * 2, True),
        "index_copy": lambda x, v, i: x.index_copy_(0, i, v * 2),
        "scatter": lambda x, v, i: x.scatter_(0, i.unsqueeze(1).expand(9, 8), v * 2),
        "scatter_add": lambda x, v, i: x.scatter_add_(0, i.unsqueeze(1).expand(9, 8), v * 2),
    }

    def fn(x, v, i):
        functions[name](x if whole else x.narrow(0, 2, 23), v, i)
        return v + 1

    x, v, i = numbers(23 if whole else 30, 8), numbers(9, 8), once(9, 23)
    plan = planned(fn, x, v, i)
    assert plan.program.again and not calls(plan)
    wanted, found = x.clone(), x.clone()
    fn(wanted, v, i)
    run(plan, tmp_path, found, v, i, found)
    torch.testing.assert_close(found, wanted)


def test_places_that_the_written_input_holds_are_read_before_it_is_written(tmp_path):
    def fn(x, v):
        x.index_put_([x % 5], v)

    x, v = torch.arange(5) * 3 % 5, torch.arange(5) * 10
    plan = planned(fn, x, v)
    wanted, found = x.clone(), x.clone()
    fn(wanted, v)
    run(plan, tmp_path, found, v, *[found] * len(plan.program.again))
    assert torch.equal(found, wanted)


def test_gradients_of_what_is_taken_are_sums_of_ours(tmp_path):
    x, i = numbers(23, 8), places(50, 23, "half")
    at = i[:, None].expand(50, 8).contiguous()
    g = numbers(50, 8)
    check(lambda g, i: aten.index_select_backward(g, [23, 8], 0, i), tmp_path, g, i)
    check(lambda g, x, at: aten.gather_backward(g, x, 0, at, False), tmp_path, g, x, at)


def test_forms_stand_for_operators_that_have_a_call_in_place():
    from braze.lower.scatters.scatters import IN_PLACE

    assert set(scattered.FORMS) <= set(IN_PLACE)


def test_they_compile_to_sm_90_where_sums_wait_for_nothing():
    printed = offline("tests.codegen.scatters_offline").splitlines()
    of = {
        name: [x for x in printed if x.startswith(name)]
        for name in ("rows", "halves", "counts", "stored", "one each")
    }
    assert all("acq_rel" not in x for x in printed)
    assert any("relaxed.add.v4.f32" in x for x in of["rows"]), "four of a row at once"
    assert any("add.v4.f32" in x for x in of["halves"]) and len(of["one each"]) == 1
    assert any("add.u64" in x for x in of["counts"]) and all(
        "red" not in x.split("x", 1)[1] for x in of["stored"]
    )


@pytest.mark.parametrize("reduced", [lambda x: x.logsumexp(0), lambda x: x.sin().amax(0), lambda x: x.var(0)])
@pytest.mark.parametrize("returned", [False, True])
def test_a_reduction_in_parts_is_added_by_a_kernel_behind_it(reduced, returned, tmp_path):
    """Joined with what adds its results, it would be the work of one program; duplicates add up."""

    def fn(x, y, i):
        found = reduced(x)
        added = torch.zeros_like(found).scatter_add(0, i, found + y)
        return (added, found) if returned else (added,)

    x, y, i = numbers(4000, 10), numbers(10), torch.arange(10) // 3
    plan, results = interpreted(fn, tmp_path, x, y, i, cores=4)
    adding = [g for g in plan.groups if any(s.mode is not StoreMode.PLAIN for n in g.steps for s in n.stores)]
    assert [bool(g.row_axes) for g in adding] == [False]
    assert sum(bool(g.row_axes) for g in plan.groups) == 2
    for result, exact in zip(results, given(fn, x, y, i), strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


#: functions of (a matrix, places of its rows, places of its elements along rows) whose rows are both reduced and added
BESIDE = {
    "rows beside a mean": lambda x, i, at: (torch.zeros_like(x).index_put([i], x, True), x.mean((0, 1))),
    "elements less a sum": lambda x, i, at: (torch.zeros_like(x).scatter_add(1, at, x - x.sum()), x + 1),
    "what is kept, too": lambda x, i, at: _centred(x, at),
    "down columns": lambda x, i, at: (torch.zeros_like(x).scatter_add(1, at, x * x.var(0)), x.amax(0)),
}  # fmt: skip


def _centred(x, at):
    kept = x - x.mean()
    return torch.zeros_like(kept).scatter_add(1, at, kept.sin()), kept


@pytest.mark.parametrize("name", BESIDE)
def test_what_lies_along_reduced_rows_is_added_by_a_kernel_behind_their_parts(name, tmp_path):
    """In one kernel with the reduction it was all the work of one program: 1.3 ms where eager takes 0.1."""
    x, i = numbers(6000, 8), torch.arange(6000) // 3
    at = torch.arange(6000 * 8).view(6000, 8) * 3 % 8
    plan, results = interpreted(BESIDE[name], tmp_path, x, i, at, cores=4)
    adding = [g for g in plan.groups if any(s.mode is not StoreMode.PLAIN for n in g.steps for s in n.stores)]
    assert [bool(g.row_axes) for g in adding] == [False]
    assert any("parts" in g.reason for g in plan.groups)
    for result, exact in zip(results, given(BESIDE[name], x, i, at), strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "places", "values", "ours"),
    [
        (BF16, 101, 101, False),
        (F16, 101, 60, False),
        (BF16, 100, 100, True),
        (BF16, 101, 102, True),
        (F32, 101, 101, True),
    ],
)
def test_sums_of_half_types_that_no_cache_has_room_for_are_atens_where_few_meet(
    dtype, places, values, ours, monkeypatch
):
    """In float32 each is twice as far from the others; where many meet at a place their sums in the half type would be rounded each time."""
    monkeypatch.setattr(scattered, "CACHED", 400)
    x, v, i = numbers(places, dtype=dtype), numbers(values, dtype=dtype), torch.arange(values) % places
    found = calls(planned(lambda x, v, i: x.scatter_add(0, i, v * 2), x, v, i))
    assert found == ([] if ours else ["aten.scatter_add_.default"])
