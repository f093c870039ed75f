"""The kernels in an explanation: floors, what they take of a GPU, and times."""

from __future__ import annotations

import json

import pytest
import torch

import braze
from braze.inspect import kernels, machine
from braze.inspect.explain import gather
from braze.runtime.triton.kernel_facts import BuiltKernel, KernelWork

X = torch.ones(64, 100)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that moves a gigabyte a second, multiplies at 1e12 and computes at 1e10."""
    braze.reset()
    monkeypatch.setattr(machine, "bytes_per_second", lambda device: 1e9)
    monkeypatch.setattr(machine, "products_per_second", lambda device, kind: 1e12)
    monkeypatch.setattr(machine, "operations_per_second", lambda device: 1e10 if device != "cpu" else None)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def test_each_kernel_has_its_bytes_and_the_least_time_that_they_take():
    (cost,) = braze.explain(scaled)(X).costs
    assert (cost.name, cost.function, cost.device) == (
        "cpu_poi_fused_mul_sin_0",
        "cpu_poi_fused_mul_sin_0",
        "cpu",
    )
    assert (cost.read, cost.written, cost.operations) == (25600, 25600, 12800)
    assert cost.floor == pytest.approx(51.2) and cost.bound == "bytes"
    assert cost.measured is None and cost.registers is None


def test_kernels_of_forward_and_backward_are_all_there():
    from braze.inspect.explain import observe

    compiled = braze.compile(scaled)
    x = torch.randn(64, 100, requires_grad=True)
    found = observe(lambda: compiled(x).sum().backward(), "a step")
    assert [cost.graph for cost in found.costs] == ["scaled", "scaled backward"]
    assert {cost.name for cost in found.costs} <= set(found.kernels)


def test_equal_kernels_name_the_function_that_they_share():
    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.sin() * 2) @ torch.linalg.inv(y.sin() * 2)

    found = braze.explain(twice)(torch.eye(4), torch.eye(4)).costs
    same = [cost for cost in found if "sin" in cost.name]
    assert len(same) > 1 and len({cost.function for cost in same}) == 1
    assert f"(runs {same[0].function})" in _text(same)


def test_the_page_and_the_data_have_the_table():
    found = braze.explain(scaled)(X)
    page = str(found)
    assert "floor us" in page and "cpu_poi_fused_mul_sin_0" in page and "51.2" in page
    assert "1 GB/s of a copy on cpu" in page
    (row,) = json.loads(found.to_json())["costs"]
    assert row["read"] == 25600 and row["bound"] == "bytes"
    assert len(page.splitlines()) < 40


def test_times_stand_beside_floors_where_calls_are_timed():
    calls: list[int] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return scaled(x)

    found = braze.explain(counted, timed=3)(X)
    (cost,) = found.costs
    assert cost.measured is not None and cost.measured > 0
    assert cost.share == pytest.approx(51.2 / cost.measured)
    assert "of floor" in str(found)
    assert len(calls) == 5  # the one explained, one more, three that are timed


def test_kernels_that_run_in_one_call_are_timed_together():
    def several(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1) + x.sum(0)

    found = braze.explain(several, timed=2)(X)
    assert len(found.costs) == 2 and all(cost.measured is None for cost in found.costs)
    (stretch,) = found.stretches
    assert stretch.measured > 0
    assert stretch.floor == pytest.approx(sum(cost.floor or 0 for cost in found.costs))
    assert "us together" in str(found)


def work(**changes: object) -> KernelWork:
    given = dict(
        graph="graph",
        name="triton_poi_0",
        function="triton_poi_0",
        device="cuda:0",
        read=10**6,
        written=10**6,
    )
    given |= dict(operations=10**6, flops=0, product="", path="/kernel.py")
    return KernelWork(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "floor", "bound"),
    [
        ({}, 2000, "bytes"),
        ({"operations": 10**8}, 10000, "operations"),
        ({"flops": 5 * 10**9, "product": "bf16"}, 5000, "products"),
        ({"flops": 5 * 10**9, "product": "f8e4m3"}, 2000, "bytes"),  # at what speed is not known
        ({"read": 0, "written": 0, "operations": 0}, 0, "bytes"),
    ],
)
def test_the_floor_is_the_most_of_bytes_products_and_operations(changes, floor, bound):
    (found,) = kernels.reports([work(**changes)], [])
    assert found.floor == pytest.approx(floor) and found.bound == bound


def test_what_a_kernel_takes_of_a_gpu_stands_beside_it():
    built = BuiltKernel("/kernel.py", "triton_poi_0", registers=255, spilled=64, shared=4096, threads=128)
    other = BuiltKernel("/other.py", "triton_poi_0", registers=9, spilled=0, shared=0, threads=32)
    found = gather("f", [("work", (work(),)), ("built", built), ("built", other)], {}, {})
    (cost,) = found.costs
    assert (cost.registers, cost.spilled, cost.shared, cost.threads) == (255, 64, 4096, 128)
    lines = [line for line in str(found).splitlines() if "triton_poi_0" in line]
    assert lines and lines[0].split()[-3:] == ["255", "64", "4096"]


def test_the_slowest_come_first_and_the_page_stays_a_page():
    rows = [work(name=f"k{i}", function=f"k{i}", read=i * 10**6) for i in range(30)]
    text = _text(kernels.reports(rows, []))
    assert text.index("k29") < text.index("k28") and "and 18 more" in text


def test_where_a_speed_cannot_be_measured_there_is_no_floor(monkeypatch: pytest.MonkeyPatch):
    def refused(device: str) -> float:
        raise RuntimeError("no such device")

    monkeypatch.setattr(machine, "bytes_per_second", refused)
    (found,) = kernels.reports([work()], [])
    assert found.floor is None and found.share is None
    assert "triton_poi_0" in _text([found])


def test_speeds_are_measured_here():
    """As they are, for once."""
    import importlib

    measured = importlib.reload(machine)
    assert measured.bytes_per_second("cpu") > 1e8
    assert measured.products_per_second("cpu", "f32") > 1e8
    assert measured.operations_per_second("cpu") is None


def _text(found) -> str:
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(kernels.table(found))
    return out.getvalue()
