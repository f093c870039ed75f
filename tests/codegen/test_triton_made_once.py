"""Numbers of long rows that are costly to have again, made once before the walks; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.loops.ir import Op, ReduceKind
from braze.loops.rewrite import roots, walk
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.passes import kinds_of
from braze.schedule.forms import made_once
from tests.codegen.test_triton_forms import INF, NAN, agree, check, exact, numbers, small
from tests.codegen.triton_bench import context, interpreted, planned

__all__ = ["small"]


@pytest.fixture
def cut(small, monkeypatch):
    """Small tiles, and a launch that costs nothing."""
    monkeypatch.setattr(Choices, "launch_bytes", 0)
    monkeypatch.setattr(made_once, "NEAR", 256)


def places(most, *shape, seed=3):
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


def looked_up(plan):
    """How many loads each kernel has whose places are read from memory."""
    return [
        len({n for step in g.steps for n in walk(*roots(step)) if n.op is Op.LOAD and n.args})
        for g in plan.groups
    ]


def computed(plan, op):
    """How many such operations each kernel has."""
    kernels = [g for g in plan.groups if g.call is None]
    return [len({n for step in g.steps for n in walk(*roots(step)) if n.op is op}) for g in kernels]


USES = {
    "softmax": lambda x: torch.softmax(x, 1),
    "log softmax": lambda x: torch.log_softmax(x, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "normalize": lambda x: F.normalize(x, dim=1),
    "entropy": lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1),
    "three walks": lambda x: x - x.amax(1, keepdim=True) - (x - x.amax(1, keepdim=True)).abs().sum(1, keepdim=True),
}  # fmt: skip


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("length", [200, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", list(USES))
def test_a_gathered_row_that_is_walked_is_gathered_once(name, dtype, length, tmp_path):
    x, i = numbers(20, length, dtype=dtype), places(length, 20, length)
    i[1, 0], i[2, -1] = 0, length - 1
    fn = lambda x, i: USES[name](x.gather(1, i))
    digits = 8e-3 if dtype is torch.float16 else 1e-5
    plan, results = interpreted(fn, tmp_path, x, i, cores=1)
    agree(results, exact(fn, x, i), digits)
    assert looked_up(plan) == [1] + [0] * (len(plan.groups) - 1)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["softmax", "log softmax", "entropy"])
def test_what_is_not_finite_stays_in_its_row(name, tmp_path):
    x = numbers(9, 200)
    x[1, 3], x[2, 3], x[3], x[5, 7] = INF, -INF, -INF, NAN
    i = places(200, 9, 200)
    i[:, 0], i[:, 1] = 3, 7
    check(lambda x, i: USES[name](x.gather(1, i)), tmp_path, x, i, cores=1)


@pytest.mark.usefixtures("cut")
def test_negative_places_and_places_that_all_rows_share(tmp_path):
    x, i = numbers(40, 300), places(300, 300) - 150
    fn = lambda x, i: torch.softmax(torch.ops.aten.index(x, [None, i]), 1)
    plan, results = interpreted(fn, tmp_path, x, i, cores=1)
    agree(results, exact(fn, x, i))
    assert looked_up(plan) == [1, 0]


@pytest.mark.usefixtures("cut")
def test_rows_that_are_looked_up_whole_are_read_where_they_are(tmp_path):
    """They lie side by side: another copy would be read no quicker."""
    x, i = numbers(50, 300), places(50, 40)
    fn = lambda x, i: torch.softmax(F.embedding(i, x), 1)
    plan, results = interpreted(fn, tmp_path, x, i, cores=1)
    agree(results, exact(fn, x, i))
    assert len(plan.groups) == 1


@pytest.mark.usefixtures("cut")
def test_gathered_columns_are_gathered_once(tmp_path):
    x, i = numbers(300, 70), places(300, 300, 70)
    fn = lambda x, i: torch.softmax(x.gather(0, i), 0)
    plan, results = interpreted(fn, tmp_path, x, i, cores=1)
    agree(results, exact(fn, x, i))
    assert looked_up(plan)[0] == 1 and not any(looked_up(plan)[1:])


@pytest.mark.usefixtures("cut")
def test_long_rows_in_parts_are_gathered_once(tmp_path):
    x, i = numbers(2, 1000), places(1000, 2, 1000)
    fn = lambda x, i: torch.softmax(x.gather(1, i), 1)
    plan, results = interpreted(fn, tmp_path, x, i, cores=132)
    agree(results, exact(fn, x, i))
    assert len(plan.groups) > 2 and looked_up(plan) == [1] + [0] * (len(plan.groups) - 1)


@pytest.mark.usefixtures("cut")
def test_what_the_program_returns_is_the_copy_that_walks_read(tmp_path):
    x, i = numbers(60, 300), places(300, 60, 300)
    fn = lambda x, i: (x.gather(1, i), x.gather(1, i).softmax(1))
    plan, results = interpreted(fn, tmp_path, x, i, cores=1)
    agree(results, exact(fn, x, i))
    assert looked_up(plan) == [1, 0]
    assert {n for g in plan.groups for n in g.writes} == {o.buffer for o in plan.program.outputs}


@pytest.mark.usefixtures("cut")
def test_an_index_that_does_not_exist_is_told_where_it_is_looked_up():
    x, i = numbers(60, 300), places(300, 60, 300)
    first, second = generate(
        planned(lambda x, i: torch.softmax(x.gather(1, i), 1), x, i, cores=1), context(1)
    )
    assert "device_assert" in first.source and "device_assert" not in second.source


def costly(x):
    return torch.sin(x).exp() + torch.erf(x) * torch.cos(x)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", list(USES))
def test_what_is_costly_to_compute_is_computed_once(name, dtype, tmp_path):
    x = numbers(20, 257, dtype=dtype)
    fn = lambda x: USES[name](costly(x))
    plan, results = interpreted(fn, tmp_path, x, cores=1)
    agree(results, exact(fn, x), 8e-3 if dtype is torch.float16 else 1e-5)
    assert computed(plan, Op.SIN) == [1] + [0] * (len(plan.groups) - 1)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("use", [lambda x: x.softmax(0), lambda x: (x - x.mean(0)) * x.var(0)])
def test_what_is_costly_down_columns_is_computed_once(use, tmp_path):
    x = numbers(300, 70)
    fn = lambda x: use(costly(x))
    plan, results = interpreted(fn, tmp_path, x, cores=1)
    agree(results, exact(fn, x))
    assert computed(plan, Op.SIN) == [1] + [0] * (len(plan.groups) - 1)


@pytest.mark.usefixtures("cut")
def test_what_lies_across_beside_what_lies_in_order_is_turned_once(tmp_path):
    x, y = numbers(60, 300), numbers(300, 60)
    fn = lambda x, y: torch.softmax(x + y.t(), 1)
    plan, results = interpreted(fn, tmp_path, x, y, cores=1)
    agree(results, exact(fn, x, y))
    assert len(plan.groups) == 2 and len(plan.groups[1].reads) == 1


@pytest.mark.usefixtures("cut")
def test_what_lies_across_alone_is_read_along_memory(tmp_path):
    y = numbers(300, 60)
    fn = lambda y: torch.softmax(y.t() * 2, 1)
    plan, results = interpreted(fn, tmp_path, y, cores=1)
    agree(results, exact(fn, y))
    assert not any("_made" in g.name for g in plan.groups)


@pytest.mark.usefixtures("cut")
def test_many_rows_of_numbers_are_joined_once_where_the_cache_does_not_hold_them(tmp_path, monkeypatch):
    rows = [numbers(20, 300, seed=k) for k in range(5)]
    fn = lambda a, b, c, d, e: torch.softmax(a + b + c + d + e, 1)
    assert len(planned(fn, *rows, cores=1).groups) == 1
    monkeypatch.setattr(made_once, "CACHE", 1024)
    plan, results = interpreted(fn, tmp_path, *rows, cores=1)
    agree(results, exact(fn, *rows))
    assert [len(g.reads) for g in plan.groups] == [5, 1]


@pytest.mark.usefixtures("cut")
def test_random_numbers_of_long_rows_are_drawn_once():
    fn = lambda x: F.layer_norm(F.dropout(x, 0.1, True), (300,))
    plan = planned(fn, numbers(60, 300, dtype=torch.bfloat16), cores=1)
    drawn = computed(plan, Op.RANDOM)
    assert sum(drawn) == 1 and drawn[-1] == 0


def test_long_columns_are_read_once_for_their_maximum_and_powers(small, tmp_path):
    x = numbers(300, 70)
    x[3, 1], x[3, 2], x[:, 3], x[5, 4] = INF, -INF, -INF, NAN
    for fn in (lambda x: x.softmax(0), lambda x: torch.logsumexp(x, 0), lambda x: x.log_softmax(0)):
        plan, results = interpreted(fn, tmp_path, x, cores=1)
        agree(results, exact(fn, x))
        assert kinds_of(plan.groups[0].steps) == {ReduceKind.ONLINE_SOFTMAX}


def test_only_rows_that_are_walked_take_their_maximum_and_powers_at_once():
    """What a program holds is read once in any case: there the two are the cheaper sums."""
    x = torch.empty(64, 300, device="meta")
    for rows, kinds in (
        (x, {ReduceKind.MAX, ReduceKind.SUM}),
        (x.repeat(1, 1000), {ReduceKind.ONLINE_SOFTMAX}),
    ):
        (group,) = planned(lambda x: x.softmax(1), rows, cores=1).groups
        assert kinds_of(group.steps) == kinds


LONG = {
    "softmax": lambda x: x.softmax(1),
    "norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "entropy": USES["entropy"],
}
#: what was measured on an H200: uses of rows of so many numbers, and whether a kernel before them was quicker
MEASURED = [
    ("softmax", lambda x: costly(x), (1024, 65536), 1, True),
    ("entropy", lambda x: costly(x), (2048, 32768), 1, True),
    ("softmax", lambda x: F.gelu(x), (1024, 65536), 1, True),
    ("norm", lambda x: F.gelu(x), (2048, 32768), 1, True),
    ("softmax", lambda x: 30 * torch.tanh(x / 30), (1024, 65536), 1, False),
    ("norm", lambda x: F.silu(x), (2048, 32768), 1, False),
    ("softmax", lambda a, b, c, d, e: a + b + c + d + e, (1024, 65536), 5, True),
    ("entropy", lambda a, b, c, d, e: a + b + c + d + e, (2048, 32768), 5, False),
    ("softmax", lambda x: costly(x), (8192, 8192), 1, False),
]  # fmt: skip


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"{case[0]}-{case[2][0]}-{case[3]}-{case[4]}")
def test_rows_are_made_before_where_that_was_measured_quicker(case):
    use, made, shape, inputs, before = case
    names = "abcde"[:inputs]
    fn = eval(f"lambda {','.join(names)}: use(made({','.join(names)}))", {"use": LONG[use], "made": made})
    plan = planned(fn, *(torch.empty(shape, dtype=torch.bfloat16) for _ in names))
    assert any(g.name.endswith("_made") for g in plan.groups) is before


@pytest.mark.usefixtures("cut")
def test_what_lies_in_order_is_read_again():
    x = numbers(60, 300)
    assert len(planned(lambda x: torch.softmax(x * 2 + 1, 1), x, cores=1).groups) == 1
    assert len(planned(lambda x, y: torch.softmax(x + y, 1), x, numbers(60, 300), cores=1).groups) == 1


def test_few_numbers_are_not_worth_a_launch(small):
    x, i = numbers(60, 300), places(300, 60, 300)
    assert len(planned(lambda x, i: torch.softmax(x.gather(1, i), 1), x, i, cores=1).groups) == 1


@pytest.mark.usefixtures("cut")
def test_what_is_looked_up_in_a_short_table_is_looked_up_again():
    """It is in the nearest cache."""
    i = places(60, 60, 300)
    fn = lambda x, i: torch.softmax(torch.ops.aten.index(x, [i]), 1)
    assert len(planned(fn, numbers(60), i, cores=1).groups) == 1
    assert len(planned(fn, numbers(70), i, cores=1).groups) == 2


@pytest.mark.parametrize(("length", "before"), [(1 << 14, False), (1 << 15, True)])
def test_what_is_looked_up_in_a_row_of_ones_own_is_looked_up_again_where_the_nearest_cache_holds_it(
    length, before
):
    x, i = (
        torch.empty(1024, n, dtype=t, device="meta")
        for n, t in ((length, torch.float32), (1 << 16, torch.int64))
    )
    plan = planned(lambda x, i: torch.softmax(x.gather(1, i), 1), x, i)
    assert any(g.name.endswith("_made") for g in plan.groups) is before
