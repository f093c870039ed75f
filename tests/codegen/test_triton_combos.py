"""Small independent kernels by one launch: each member's own points, whatever their sizes, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.loops.ir import BufferKind
from braze.schedule.facts.records import GroupKind
from braze.schedule.forms import combos
from braze.schedule.memory.memory import plan_memory
from braze.schedule.memory.proof import prove_memory
from braze.schedule.stage.verify import verify_schedule
from braze.support.errors import InternalError
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_forms import agree, exact, numbers
from tests.codegen.test_triton_gemm import planned_for
from tests.codegen.triton_bench import context, interpreted, planned

SIZES = (3, 33, 1, 64, 4097, 5000, 100, 1024)


def of_list(fn, count):
    """A function of a list as one of so many tensors."""
    names = ", ".join(f"x{k}" for k in range(count))
    made: dict[str, object] = {"fn": fn}
    exec(f"def of_tensors({names}):\n    return fn([{names}])", made)
    return made["of_tensors"]


def check(fn, folder, tensors, digits=1e-5):
    """Run on a list, compare with eager's numbers in double, and give the members of each kernel."""
    of_tensors = of_list(fn, len(tensors))
    plan, results = interpreted(of_tensors, folder, *tensors)
    agree(results, exact(of_tensors, *tensors), digits)
    return [len(g.members) or 1 for g in plan.groups]


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_list_of_tensors_of_many_sizes_is_one_kernel(dtype, tmp_path):
    tensors = [numbers(n, dtype=dtype, seed=k).abs() for k, n in enumerate(SIZES)]
    digits = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-5
    assert check(lambda xs: [x * 2 + 1 for x in xs], tmp_path, tensors, digits) == [len(SIZES)]


def test_members_of_one_text_are_written_once(tmp_path):
    tensors = [numbers(8 * n, seed=n) for n in range(1, 40)]
    of_tensors = of_list(lambda xs: torch._foreach_mul(xs, 3.0), len(tensors))
    (text,) = generate(planned(of_tensors, *tensors), context())
    assert text.source.count("def triton_") == 2 and text.source.count("tl.store(") == 1
    agree(interpreted(of_tensors, tmp_path, *tensors)[1], exact(of_tensors, *tensors))


def test_members_do_what_each_of_them_does(tmp_path):
    def fn(xs):
        a, b, c, d, e, f = xs
        return a * 2 + 1, b.exp(), c.relu(), d.sigmoid() * d, e.t() + 1, f > 0

    tensors = [numbers(n, seed=n) for n in (1000, 4097, 33)] + [numbers(9, 7), numbers(20, 30), numbers(5)]
    assert check(fn, tmp_path, tensors) == [6]


def test_inputs_of_any_layout(tmp_path):
    tensors = [
        numbers(5, 1).expand(5, 6),
        numbers(1).expand(300),
        numbers(41, 33)[1:, 1:],
        numbers(100)[3:],
        numbers(60)[::3],
        numbers(7, 9).t(),
        numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
        numbers(),
    ]
    assert sum(check(lambda xs: [x * 2 for x in xs], tmp_path, tensors)) == len(tensors)


def test_empty_members_stay_alone(tmp_path):
    found = check(
        lambda xs: [x * 2 for x in xs], tmp_path, [numbers(0), numbers(5), numbers(3, 0), numbers(7)]
    )
    assert max(found) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_norms_of_a_list_share_launches(dtype, tmp_path):
    tensors = [numbers(n, dtype=dtype, seed=n) for n in (1, 33, 64, 4097, 5000, 768)]
    digits = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-2)
    assert check(lambda xs: torch._foreach_norm(xs, 2.0), tmp_path, tensors, digits) == [6]


@pytest.mark.parametrize("order", [1.0, float("inf")])
def test_other_norms_of_a_list(order, tmp_path):
    tensors = [numbers(n, seed=n) for n in (1, 33, 4097, 77)]
    assert check(lambda xs: torch._foreach_norm(xs, order), tmp_path, tensors) == [4]


def test_norms_of_long_tensors_are_cut_and_added_in_order(tmp_path):
    tensors = [numbers(n, seed=n) for n in (300_000, 7, 270_001, 64)]
    of_tensors = of_list(lambda xs: torch._foreach_norm(xs), 4)
    plan, first = interpreted(of_tensors, tmp_path, *tensors)
    agree(first, exact(of_tensors, *tensors))
    assert len(plan.groups) <= 4 and any(len(g.members) == 4 for g in plan.groups)
    again = interpreted(of_tensors, tmp_path, *tensors)[1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def clipped(xs):
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(xs, 2.0)))
    factor = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    return [total, *(x * factor for x in xs)]


@pytest.mark.parametrize("count", [3, 12, 30])
def test_gradients_are_clipped_in_four_launches(count, tmp_path):
    tensors = [numbers(17 * n + 1, seed=n) for n in range(count)]
    assert len(check(clipped, tmp_path, tensors)) <= 4


def test_a_list_longer_than_a_kernel_takes_is_several(tmp_path, monkeypatch):
    monkeypatch.setattr(combos, "MEMBERS", 4)
    tensors = [numbers(n + 1, seed=n) for n in range(10)]
    assert check(lambda xs: [x * 2 for x in xs], tmp_path, tensors) == [4, 4, 2]


def test_kernels_have_no_more_pointers_than_a_launch_takes():
    tensors = [torch.empty(n + 1) for n in range(300)]

    def fn(xs):
        return [a * b * c for a, b, c in zip(xs[::3], xs[1::3], xs[2::3])]

    alike = [torch.empty(1 + n // 3) for n in range(300)]
    assert len(tensors) == len(alike)
    texts = generate(planned(of_list(fn, 300), *alike), context())
    assert texts and max(len(text.args) for text in texts) <= combos.POINTERS


def test_what_depends_on_another_waits(tmp_path):
    def fn(xs):
        a, b, c, d = xs
        total = a.sum()
        return a + total, b * 2, c - total, d.sum() * b.sum()

    tensors = [numbers(n, seed=n) for n in (100, 37, 4097, 12)]
    check(fn, tmp_path, tensors)


def test_large_kernels_that_differ_stay_apart():
    large = [torch.empty(n << 20) for n in (3, 4, 5)]
    plan = planned(lambda a, b, c: (a * 2, b.exp(), c.tanh()), *large)
    assert [len(g.members) for g in plan.groups] == [0, 0, 0]
    alike = planned(lambda a, b, c: (a * 2, b * 2, c * 2), *large)
    assert [len(g.members) for g in alike.groups] == [3]


def test_large_results_are_not_made_before_a_call_that_stands_before_them():
    fn = lambda x, y: (torch.mm(x * 2, x), y * 2)
    large = planned(fn, torch.empty(1024, 1024), torch.empty(1000, 1000))
    assert all(not g.members for g in large.groups)
    small = planned(fn, torch.empty(100, 100), torch.empty(90, 90))
    assert [len(g.members) for g in small.groups if g.members] == [2]


def test_sizes_that_change_are_not_combined():
    fn = lambda x, y: (x * 2, y.exp())
    plan = planned_for(fn, {0: (2, 500)}, torch.empty(30, 8), torch.empty(7))
    assert all(g.kind is not GroupKind.COMBO for g in plan.groups)


def test_lists_are_written_in_place():
    """What inputs become lies where they lay: nobody copies it there."""

    def fn(xs):
        torch._foreach_mul_(xs, 0.5)
        torch._foreach_add_(xs, 1.0)
        return xs[0].sum()

    tensors = [torch.empty(n) for n in SIZES]
    plan = planned(of_list(fn, len(tensors)), *tensors)
    combo = next(g for g in plan.groups if g.members)
    renewed = {old for _, old in plan.memory.renewed}
    assert len(renewed) >= len(tensors) - 1 and len(combo.members) >= len(tensors) - 1


def test_inputs_are_renewed_behind_what_may_fail():
    """A call may raise; what stands behind it in the program does not move in front of it, where inputs could not be renewed."""

    def fn(x, y, m):
        z = torch.linalg.cholesky(m)
        x.mul_(2.0)
        return y * 3, z

    plan = planned(fn, torch.empty(100), torch.empty(33), torch.empty(4, 4))
    assert [old for _, old in plan.memory.renewed] == [plan.program.inputs[0]]


def test_a_member_that_touches_what_another_writes_is_refused():
    plan = planned(lambda a, b: (a * 2, b + 1), torch.empty(5), torch.empty(70))
    (group,) = plan.groups
    one, other = group.members
    reading = replace(other, reads=(*other.reads, *one.writes))
    bad = replace(plan, groups=(replace(group, members=(one, reading)),))
    with pytest.raises(InternalError, match="BZ9040"):
        verify_schedule(bad)


def test_memory_that_another_member_reads_is_not_written_over():
    def fn(xs):
        a, b = xs
        return a.mul_(2.0), (a.narrow(0, 0, 50) * b).sum()

    plan = planned(of_list(fn, 2), torch.empty(100), torch.empty(50))
    groups = list(plan.groups)
    kept = {b.name for b in plan.program.buffers if b.kind is not BufferKind.TEMPORARY}
    prove_memory(plan.program, groups, plan_memory(plan.program, groups, kept))


def test_programs_of_members_are_compiled_offline():
    """Each program takes the pointers of its own member alone: few registers, whatever the number of members, and whole vectors."""
    printed = offline("tests.codegen.combos_offline")
    assert printed.count("60 members") == 2
    assert "pairs of 16 bits: 0" in printed, (
        "the assembler of CUDA 12.8 and 12.9 takes ones for noughts there"
    )
