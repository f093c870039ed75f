"""What PyTorch's profiler shows of compiled code: ranges with the names of functions, of their ways back and of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import braze
from braze import native
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def shown(run: Callable[[], object]) -> list[tuple[str, ...]]:
    """What a profile has of a run, each range with those around it, outermost first."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    ways = []
    for event in found.events():
        way: list[str] = []
        each: Any = event
        while each is not None:
            way.insert(0, each.name)
            each = each.cpu_parent
        ways.append(tuple(way))
    return ways


def ours(ways: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Of each of braze's ranges itself and those of braze's around it."""
    return [tuple(x for x in way if x.startswith("braze")) for way in ways if way[-1].startswith("braze")]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    braze.graph_break()
    return x * 2


def marked(x: torch.Tensor) -> torch.Tensor:
    with record_function("within"):
        braze.graph_break()
        return x + 1


def looked_up(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i] * 2


def weighed(x: torch.Tensor) -> torch.Tensor:
    return (x * x.shape[0]).sin()


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


X = torch.arange(8.0)


def test_a_call_is_a_range_with_its_kernels_inside():
    compiled = braze.compile(scaled)
    compiled(X)
    ways = ours(shown(lambda: compiled(X)))
    assert ways[0] == ("braze: scaled",)
    assert ways[1:] == [("braze: scaled", "braze: cpu_poi_fused_mul_sin_0")]


def test_results_are_the_same_and_nothing_is_compiled_again_while_a_profiler_listens():
    compiled = braze.compile(scaled)
    expected = compiled(X)
    found: list[torch.Tensor] = []
    ways = shown(lambda: found.append(compiled(X)))
    assert torch.equal(found[0], expected)
    assert not any("compiles" in name for way in ways for name in way)


def test_a_first_call_shows_that_it_compiles():
    compiled = braze.compile(scaled)
    ways = ours(shown(lambda: compiled(X)))
    assert ways[0] == ("braze: compiles scaled",)
    assert ("braze: scaled",) in ways


def test_each_variant_has_a_number():
    compiled = braze.compile(scaled)
    compiled(X), compiled(X.double())
    names = [way[0] for way in ours(shown(lambda: (compiled(X), compiled(X.double())))) if len(way) == 1]
    assert names == ["braze: scaled", "braze: scaled #2"]


def test_a_module_and_its_way_back_have_the_name_of_its_class():
    model = braze.compile(Layer())
    x = torch.randn(4, 8, requires_grad=True)
    model(x).sum().backward()
    ways = shown(lambda: model(x).sum().backward())
    found = ours(ways)
    assert found[0] == ("braze: Layer",)
    assert ("braze: Layer backward",) in found
    assert any(way[0] == "braze: Layer" and len(way) == 2 for way in found)
    assert any(way[0] == "braze: Layer backward" and len(way) == 2 for way in found)
    # products of ATen's, which else are called past the dispatcher
    assert any("braze: Layer backward" in way and way[-1] == "aten::mm" for way in ways)


def test_a_way_back_through_python_has_its_name_too():
    """Of symbolic sizes, which the C core leaves to Python."""
    compiled = braze.compile(weighed, dynamic=True)
    for n in (3, 4, 5):
        compiled(torch.randn(n, 3, requires_grad=True)).sum().backward()
    x = torch.randn(6, 3, requires_grad=True)
    found = ours(shown(lambda: compiled(x).sum().backward()))
    assert any(way[0].endswith("backward") and "compile" not in way[0] for way in found), found


def test_what_comes_after_a_break_lies_within_the_call():
    compiled = braze.compile(broken)
    compiled(X)
    found = ours(shown(lambda: compiled(X)))
    (resumed,) = {way[1] for way in found if len(way) > 1 and "from line" in way[1]}
    assert resumed.startswith("braze: broken from line ")
    assert ("braze: broken", resumed, "braze: cpu_poi_fused_mul_0") in found


def test_it_nests_in_marks_of_the_users_and_they_in_it():
    compiled = braze.compile(marked)
    compiled(X)

    def run() -> None:
        with record_function("around"):
            compiled(X)

    ways = shown(run)
    assert ("around", "braze: marked") in ways
    assert any(way[:3] == ("around", "braze: marked", "within") for way in ways)


def test_a_range_ends_where_the_call_raises():
    compiled = braze.compile(looked_up)
    compiled(X, torch.tensor([1]))
    ended: list[str] = []

    def run() -> None:
        with pytest.raises(IndexError):
            compiled(X, torch.tensor([99]))
        with record_function("after"):
            ended.append("yes")

    ways = shown(run)
    assert ended and ("after",) in ways
    assert ("braze: looked_up",) in ways


def test_a_replayed_recording_is_a_range():
    register("cpu", SimulatedGraphs)
    try:
        compiled = braze.compile(scaled, options={"cudagraphs": True, "cudagraph_launches": 1})
        for _ in range(4):
            compiled(X)
        found = ours(shown(lambda: compiled(X)))
    finally:
        register("cpu", None)
    assert found[:2] == [("braze: scaled",), ("braze: scaled", "braze: replay")]


def test_nobody_is_told_where_nobody_listens():
    class Told:
        names: list[str] = []

        def __init__(self, name: str) -> None:
            self.names.append(name)

        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    from braze.native import torch_state

    compiled = braze.compile(scaled)
    compiled(X)
    try:
        native.watch_ranges(Told, torch_state.listening_address())
        compiled(X)
        assert not Told.names
        with profile(activities=[ProfilerActivity.CPU]):
            compiled(X)
        assert Told.names == ["braze: scaled", "braze: cpu_poi_fused_mul_sin_0"]
        native.watch_ranges(Told, 0)
        with profile(activities=[ProfilerActivity.CPU]):
            compiled(X)
        assert len(Told.names) == 2
    finally:
        native.watch_ranges(torch_state.range_of_profiler(), torch_state.listening_address())


def test_ranges_that_cannot_begin_or_end_spoil_nothing():
    class Refusing:
        def __init__(self, name: str) -> None:
            if name == "refused":
                raise ValueError(name)

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            raise ValueError("no end")

    if not native.native_available:
        pytest.skip("the core in Python lets errors of its own pass")
    from braze.native import torch_state

    try:
        native.watch_ranges(Refusing, torch_state.listening_address())
        with profile(activities=[ProfilerActivity.CPU]):
            assert native.in_range("refused", lambda x: x + 1, 1) == 2
            assert native.in_range("begun", lambda x: x + 1, 1) == 2
            with pytest.raises(KeyError, match="its own"):
                native.in_range("begun", {}.__getitem__, "its own")
    finally:
        native.watch_ranges(torch_state.range_of_profiler(), torch_state.listening_address())


def test_the_core_in_python_shows_the_same():
    program = textwrap.dedent(
        """
        import torch, braze
        from torch.profiler import profile, ProfilerActivity
        def scaled(x):
            return (x * 2).sin()
        compiled = braze.compile(scaled)
        x = torch.arange(8.0)
        compiled(x)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            compiled(x)
        print([e.name for e in found.events() if e.name.startswith("braze")])
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BRAZE_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "['braze: scaled', 'braze: cpu_poi_fused_mul_sin_0']" in done.stdout
