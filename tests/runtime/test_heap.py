"""A training step on the CPU finds the memory of the last one's gradients again."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.runtime.memory import heap

Set = list[tuple[int, int]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Set:
    """What glibc would be told."""
    calls: Set = []
    monkeypatch.setattr(heap, "_mallopt", lambda: lambda name, value: calls.append((name, value)))
    monkeypatch.setattr(heap, "_user_decides", lambda: False)
    monkeypatch.setattr(heap, "_kept", 0)
    return calls


def ends(calls: Set) -> list[int]:
    return [value >> 20 for name, value in calls if name == heap._TRIM]


def test_the_end_of_the_heap_may_hold_what_backwards_give(told: Set) -> None:
    """Never less than glibc's own rule may come to, and all graphs' together."""
    heap.keep(2 << 20)
    heap.keep(100 << 20)
    heap.keep(50 << 20)
    heap.keep(3 << 30)
    assert ends(told) == [64, 204, 304, 2047]
    assert {value for name, value in told if name == heap._MAP} == {32 << 20}


def test_small_results_leave_the_heap_to_glibc(told: Set) -> None:
    heap.keep(1000)
    heap.give_back()
    assert told == []


def test_a_reset_forgets_the_backwards(told: Set) -> None:
    heap.keep(100 << 20)
    heap.give_back()
    heap.keep(40 << 20)
    assert ends(told) == [200, 64, 80]


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "1000000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")],
)
def test_what_the_environment_says_of_the_heap_stays(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Set = []
    monkeypatch.setattr(heap, "_mallopt", lambda: lambda name, value: calls.append((name, value)))
    monkeypatch.setenv(name, value)
    heap.keep(100 << 20)
    assert calls == []


@pytest.mark.parametrize(("arena", "wanted"), [(True, [64]), (False, [])])
def test_a_compiled_backward_says_what_it_gives(told: Set, arena: bool, wanted: list[int]) -> None:
    """Twice the bytes of its gradients, once, unless no memory is to be kept between calls; inference says nothing."""
    weight = torch.randn(1024, 1024, requires_grad=True)
    layer = braze.compile(lambda x: (x @ weight).relu(), options={"arena": arena})
    with torch.no_grad():
        layer(torch.randn(2, 1024))
    assert told == []
    for _ in range(2):
        layer(torch.randn(2, 1024)).sum().backward()
    assert ends(told) == wanted
    assert heap._kept == (2 * weight.nbytes if arena else 0)
