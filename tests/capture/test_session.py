"""The compile driver with a stand-in for the interpreter: variants, recompiles, limits, errors."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx

from braze.capture.dispatch import session as session_module
from braze.capture.dispatch.session import Session, reset
from braze.capture.facts.records import (
    Capture,
    Check,
    FromSource,
    GraphBreak,
    GraphOutput,
    Guard,
    Source,
    Step,
)
from braze.graph.nodes.specs import SymbolSpec, TensorSpec
from braze.options import Options
from braze.support import trace
from braze.support.errors import BrazeError, CaptureError, Origin, Unsupported
from braze.support.log import forget_warnings


def scaled(x: torch.Tensor, k: Any = 2) -> torch.Tensor:
    return x * k


#: a line of this file, which messages quote
LINE = scaled.__code__.co_firstlineno + 1


def local(index: int) -> Source:
    return Source(Step.LOCAL, index)


class FakeTracer:
    """Captures ``x * k``: sizes static or as asked, ``k`` by value or as a symbol."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fail: Exception | None = None
        self.graph_break: GraphBreak | None = None

    def __call__(
        self, function: Any, locals: tuple[Any, ...], options: Options, *, symbolic: Any = None
    ) -> Capture:
        self.calls.append(symbolic)
        if self.fail is not None:
            raise self.fail
        x, k = locals
        origin = Origin(__file__, LINE, 4)

        def is_symbolic(index: int, dim: int) -> bool:
            return symbolic == "all" or (symbolic is not None and (local(index), dim) in symbolic)

        sizes = tuple(f"s{i}" if is_symbolic(0, i) else n for i, n in enumerate(x.shape))
        strides: list[int | str] = []
        step: int | str = 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step = (
                size
                if step == 1
                else f"{step}*{size}"
                if isinstance(step, str) or isinstance(size, str)
                else step * size
            )
        spec = TensorSpec(x.dtype, x.device, sizes, tuple(strides))
        guards = [Guard(local(0), Check.TENSOR, spec, origin)]
        inputs, specs = [local(0)], [spec]
        graph = torch.fx.Graph()
        first = graph.placeholder("x")
        factor: Any = k
        if is_symbolic(1, -1) and type(k) is int:
            factor = graph.placeholder("k")
            inputs.append(local(1))
            specs.append(SymbolSpec("k0", k))
        else:
            guards.append(Guard(local(1), Check.EQUAL, k, origin))
        graph.output((graph.call_function(torch.mul, (first, factor)),))
        return Capture(
            code=function.__code__,
            name=function.__name__,
            graph=torch.fx.GraphModule({}, graph) if self.graph_break is None else None,
            inputs=tuple(inputs),
            specs=tuple(specs),
            guards=tuple(guards),
            recipes=(GraphOutput(0), FromSource(local(0))),
            effects=(),
            result=0,
            graph_break=self.graph_break,
        )


@pytest.fixture
def tracer() -> FakeTracer:
    forget_warnings()
    return FakeTracer()


def eager(gm: Any, examples: Any) -> Any:
    return gm.forward


def entry_of(tracer: FakeTracer, backend: Any = eager, function: Any = scaled, **options: Any) -> Any:
    return Session(backend, Options(**options), tracer).entry(function, function.__name__)


def test_a_second_call_hits_the_first_variant(tracer: FakeTracer) -> None:
    entry = entry_of(tracer)
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(entry(x), x * 2) and torch.equal(entry(x + 1), (x + 1) * 2)
    assert torch.equal(entry(x, k=2), x * 2)
    assert len(tracer.calls) == 1


def test_a_changed_size_becomes_symbolic(tracer: FakeTracer) -> None:
    entry = entry_of(tracer)
    for rows in (2, 3, 4, 5, 6):
        x = torch.rand(rows, 3)
        assert torch.equal(entry(x), x * 2)
    assert tracer.calls == [None, frozenset({(local(0), 0)})]


def test_a_changed_int_argument_becomes_symbolic(tracer: FakeTracer) -> None:
    entry = entry_of(tracer)
    x = torch.rand(3)
    for k in (2, 3, 4, 5):
        assert torch.equal(entry(x, k), x * k)
    assert tracer.calls == [None, frozenset({(local(1), -1)})]


def test_dynamic_false_never_generalises(tracer: FakeTracer) -> None:
    entry = entry_of(tracer, dynamic=False)
    for rows in (2, 3, 4):
        entry(torch.rand(rows))
    assert tracer.calls == [None, None, None]


def test_dynamic_true_generalises_at_once(tracer: FakeTracer) -> None:
    entry = entry_of(tracer, dynamic=True)
    for rows in (2, 3, 4):
        entry(torch.rand(rows))
    assert tracer.calls == ["all"]


def test_past_the_limit_a_generic_variant_serves_loudly(
    tracer: FakeTracer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("braze"), "propagate", True)
    entry = entry_of(tracer, recompile_limit=3)
    for k in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5):
        x = torch.rand(3)
        assert torch.equal(entry(x, k), x * k)
    k_only = frozenset({(local(1), -1)})
    assert tracer.calls[:3] == [None, k_only, k_only]
    assert tracer.calls[3:] == [k_only | {(local(0), 0)}] * 3
    loud = list({id(r): r.message for r in caplog.records if "BZ1101" in r.message}.values())
    assert len(loud) == 1 and "k == " in loud[0] and "3 times" in loud[0]
    # room is made for what is in use: never more than the limit and one, never eager
    assert len(entry.variants) <= 4


def test_a_miss_names_guard_line_old_and_new_value(tracer: FakeTracer) -> None:
    entry = entry_of(tracer)
    with trace.collect() as events:
        entry(torch.rand(2))
        entry(torch.rand(2, dtype=torch.float64))
        entry(torch.rand(2, dtype=torch.float64), 7)
    recompiles = [payload for kind, payload in events if kind == "recompile"]
    assert [type(m).__name__ for m in recompiles] == ["Recompile", "Recompile"]
    text = recompiles[0].misses[0].text
    assert "x is float32[2]" in text and "now float64[2]" in text and f"test_session.py:{LINE}" in text
    assert "k == 2" in recompiles[1].misses[0].text and "now 7" in recompiles[1].misses[0].text


def test_fullgraph_turns_a_break_into_an_error(tracer: FakeTracer) -> None:
    tracer.graph_break = GraphBreak(
        None,
        (),
        None,
        "BZ1012",
        "print is impure",
        ("move it out",),
        Origin(__file__, LINE, 4, LINE, 9),
        (),
        (),
    )
    with pytest.raises(CaptureError) as caught:
        entry_of(tracer, fullgraph=True)(torch.rand(2))
    text = str(caught.value)
    assert "BZ1012" in text and "print is impure" in text and "move it out" in text and "^" in text


def test_fullgraph_turns_unsupported_into_an_error(tracer: FakeTracer) -> None:
    tracer.fail = Unsupported("BZ1013", "cannot")
    with pytest.raises(CaptureError, match="BZ1013"):
        entry_of(tracer, fullgraph=True)(torch.rand(2))


def test_without_fullgraph_an_uncapturable_frame_runs(tracer: FakeTracer) -> None:
    tracer.fail = Unsupported("BZ1013", "cannot")
    x = torch.rand(2)
    assert torch.equal(entry_of(tracer)(x, k=5), x * 5)


def test_arguments_of_every_kind_reach_an_uncapturable_frame(tracer: FakeTracer) -> None:
    def many(a: Any, /, b: Any, *rest: Any, c: Any, d: Any = 4, **more: Any) -> Any:
        return a, b, rest, c, d, more

    tracer.fail = Unsupported("BZ1013", "cannot")
    entry = Session(eager, Options(), lambda *a, **k: tracer.__call__(*a, **k)).entry(many, "many")
    assert entry(1, 2, 3, 4, c=5, e=6) == (1, 2, (3, 4), 5, 4, {"e": 6})
    assert entry(1, b=2, c=5) == (1, 2, (), 5, 4, {})


def test_a_failing_backend_is_not_hidden(tracer: FakeTracer) -> None:
    def backend(gm: Any, examples: Any) -> Any:
        raise Unsupported("BZ3001", "no lowering")

    with pytest.raises(BrazeError, match="BZ3001") as caught:
        entry_of(tracer, backend)(torch.rand(2))
    assert any("scaled" in note for note in caught.value.__notes__)


def test_calls_made_while_compiling_run_as_they_are(tracer: FakeTracer) -> None:
    seen = []

    def backend(gm: Any, examples: Any) -> Any:
        seen.append(entry(torch.ones(2), 3))
        return gm.forward

    entry = entry_of(tracer, backend)
    assert torch.equal(entry(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(seen[0], torch.full((2,), 3.0)) and len(tracer.calls) == 1


def test_threads_compile_once(tracer: FakeTracer) -> None:
    def backend(gm: Any, examples: Any) -> Any:
        time.sleep(0.05)
        return gm.forward

    entry = entry_of(tracer, backend)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(entry(torch.ones(2)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tracer.calls) == 1 and len(results) == 6
    assert all(torch.equal(r, torch.full((2,), 2.0)) for r in results)


def test_reset_forgets_variants(tracer: FakeTracer) -> None:
    entry = entry_of(tracer)
    entry(torch.rand(2))
    reset()
    assert not entry.variants
    entry(torch.rand(2))
    assert len(tracer.calls) == 2


class Layer(torch.nn.Module):
    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k


def test_the_limit_counts_per_module() -> None:
    """Eight instances with a variant each are not eight recompiles of one."""
    asked: list[Any] = []

    def traced(function: Any, locals: tuple[Any, ...], options: Any, *, symbolic: Any = None) -> Capture:
        asked.append(symbolic)
        graph = torch.fx.symbolic_trace(lambda x: (x * 2,))
        guards = (Guard(local(0), Check.IS, locals[0]),)
        return Capture(function.__code__, "f", graph, (local(1),), (None,), guards, (GraphOutput(0),), (), 0)

    def forward(self: Any, x: Any) -> Any:
        return x * 2

    entry = Session(eager, Options(recompile_limit=2), traced).entry(forward, "forward")
    layers = [Layer(i) for i in range(5)]
    for layer in layers * 2:
        entry(layer, torch.ones(1))
    assert asked == [None] * 5


@pytest.mark.provokes("BZ9013")
def test_guards_that_never_hold_are_reported(
    tracer: FakeTracer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("braze"), "propagate", True)

    def wrong(function: Any, locals: tuple[Any, ...], options: Any, *, symbolic: Any = None) -> Capture:
        made = tracer(function, (locals[0], 99), options)
        return made

    x = torch.rand(2)
    assert torch.equal(Session(eager, Options(), wrong).entry(scaled, "scaled")(x), x * 99)
    assert any("BZ9013" in r.message for r in caplog.records)
    with pytest.raises(BrazeError, match="BZ9013"):
        Session(eager, Options(verify=1), wrong).entry(scaled, "scaled")(x)


def test_no_graph_needs_no_backend() -> None:
    def traced(function: Any, locals: tuple[Any, ...], options: Any, *, symbolic: Any = None) -> Capture:
        return Capture(function.__code__, "f", None, (), (), (), (FromSource(local(0)),), (), 0)

    def backend(gm: Any, examples: Any) -> Any:
        raise AssertionError("nothing to compile")

    assert session_module.Session(backend, Options(), traced).entry(lambda x: x, "f")(3) == 3


def test_constructors_of_named_tuples_are_not_captured_beneath_a_break() -> None:
    """Their code is of no file, and what they are given is another object each time."""

    class Pair(NamedTuple):
        first: Any
        second: Any

    assert session_module.is_skipped(Pair.__new__.__code__, Pair.__new__)
    assert not session_module.is_skipped(scaled.__code__, scaled)
