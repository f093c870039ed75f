"""Kernels of many steps over the same points, as updates of a list of tensors are: one launch, and all loads on their way at once."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.passes import keeps_what_it_stores
from braze.schedule.gpu.kernels import plan_kernel
from tests.codegen.test_triton_forms import agree, exact, numbers
from tests.codegen.triton_bench import context, interpreted, planned

NAN, INF = torch.nan, torch.inf


@pytest.fixture(autouse=True)
def one_loop(monkeypatch):
    """Updates as steps of one loop, as those of sizes that may change are."""
    monkeypatch.setattr(Choices, "combos", False)


def updated(count):
    """Averages of ``count`` pairs of tensors, as a function of all of them by name: a graph is traced of it."""
    names = [f"x{k}" for k in range(2 * count)]
    pairs = ", ".join(f"{a} * 0.9 + {b} * 0.1" for a, b in zip(names[:count], names[count:]))
    return eval(f"lambda {', '.join(names)}: ({pairs},)")


def lines(plan):
    """(loads and stores of a schedule's only kernel, in order)."""
    (text,) = generate(plan, context())
    return ["load" if "tl.load" in line else "store" for line in text.source.splitlines() if "tl.load" in line or "tl.store" in line]  # fmt: skip


@pytest.mark.parametrize("size", [1, 65, 4096])
def test_updates_of_many_small_tensors_are_one_kernel(size, tmp_path):
    given = [numbers(size, seed=k) for k in range(40)]
    given[0][0], given[1][0], given[2][-1], given[3][0] = NAN, INF, -INF, -0.0
    plan, results = interpreted(updated(20), tmp_path, *given)
    assert len(plan.groups) == 1
    agree(results, exact(updated(20), *given))


def cut(plan):
    (group,) = plan.groups
    found = plan_kernel(group, {b.name: b for b in plan.program.buffers})
    return [tile.block for tile in found.points], found.warps


@pytest.mark.parametrize(("size", "tile"), [(4096, ([32], 1)), (65536, ([256], 8)), (1 << 18, ([256], 8))])
def test_a_thread_has_an_element_of_each_of_many_tensors(size, tile):
    plan = planned(updated(32), *(torch.empty(size, device="meta") for _ in range(64)))
    assert lines(plan) == ["load"] * 64 + ["store"] * 32
    assert cut(plan) == tile


def test_of_fewer_tensors_or_narrower_ones_a_thread_has_more_elements():
    large = [torch.empty(1 << 18, device="meta") for _ in range(32)]
    assert cut(planned(updated(8), *large[:16])) == ([256], 2)
    assert cut(planned(updated(16), *large)) == ([256], 4)
    assert cut(planned(updated(16), *(x.bfloat16() for x in large))) == ([256], 2)


def test_stores_do_not_wait_where_registers_hold_no_more():
    plan = planned(updated(7), *(torch.empty(1 << 18, device="meta") for _ in range(14)))
    assert lines(plan) == ["load"] * 8 + ["store"] * 4 + ["load"] * 6 + ["store"] * 3


def test_what_an_earlier_step_stored_is_at_hand(tmp_path):
    def steps(x, y):
        z = x.exp()
        z.add_(y)
        w = z * 2
        z.mul_(w)
        return z, w

    given = numbers(70), numbers(70, seed=1)
    plan, results = interpreted(steps, tmp_path, *given)
    agree(results, exact(steps, *given))
    assert all(keeps_what_it_stores(g.steps) for g in plan.groups)
