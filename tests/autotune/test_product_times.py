"""Who multiplies two matrices is measured once per shape and machine, and what is kept decides from then on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.autotune import product_times
from braze.context import CompileContext
from braze.loops.ir import BufferKind, ExternCall, TemplateCall
from braze.lower import lower_graph
from braze.options import Options
from braze.products import Product, Way, quickest
from braze.runtime.operators.operators import onednn_linear
from braze.support import trace
from braze.target import cpu_target
from tests.lower.conftest import trace_graph


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(product_times, "_KEPT", {})
    return tmp_path


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, b).relu()


def operands() -> list[torch.Tensor]:
    return [torch.randn(6, 40), torch.randn(24, 40), torch.randn(24)]


SHAPE = Product(6, 40, 24, right_by_columns=True)


def steps(way: Way | None, *inputs: torch.Tensor) -> list[Any]:
    table = () if way is None else ((SHAPE, way),)
    ctx = CompileContext(Options(), cpu_target(), "test", lean=True, products=table)
    return list(lower_graph(trace_graph(linear, inputs), [BufferKind.INPUT] * 3, ctx).steps)


def test_ours_stays_unless_another_is_clearly_quicker() -> None:
    assert quickest({Way.OURS: 1.0, Way.ATEN: 0.97, Way.ONEDNN: 1.2}) is Way.OURS
    assert quickest({Way.OURS: 1.0, Way.ATEN: 0.9, Way.ONEDNN: 0.8}) is Way.ONEDNN
    assert quickest({Way.OURS: 1.0, Way.ATEN: 0.9}) is Way.ATEN


def test_the_table_decides_who_computes_a_product() -> None:
    assert isinstance(steps(Way.OURS, *operands())[0], TemplateCall)
    aten = steps(Way.ATEN, *operands())[0]
    assert isinstance(aten, ExternCall) and aten.target.startswith("aten.")
    other = steps(Way.ONEDNN, *operands())[0]
    assert isinstance(other, ExternCall)
    assert other.target == "mkldnn._linear_pointwise.default" or onednn_linear() is None


@pytest.mark.parametrize("way", list(Way))
def test_each_way_gives_eagers_numbers(way: Way, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    """Forward and gradients of a linear layer, of rows that lie apart too."""
    monkeypatch.setattr(product_times, "quickest", lambda seconds: way)
    monkeypatch.setattr(product_times, "_timed", lambda calls, threads: dict.fromkeys(calls, 1.0))
    for x in (torch.randn(6, 40), torch.randn(2, 3, 40), torch.randn(40, 6).t(), torch.randn(6, 80)[:, ::2]):
        w, b = torch.randn(24, 40), torch.randn(24)
        ours, exact = ([v.clone().requires_grad_() for v in (x, w, b)] for _ in range(2))
        exact = [v.detach().double().requires_grad_() for v in exact]
        got = braze.compile(linear, options={"measure_products": True})(*ours)
        want = linear(*exact)
        for a, e in zip(
            (got, *torch.autograd.grad(got.square().sum(), ours)),
            (want, *torch.autograd.grad(want.square().sum(), exact)),
            strict=True,
        ):
            torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-4)


def test_a_shape_is_measured_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first process found is read by the next."""
    ctx = CompileContext(Options(measure_products=True), cpu_target(), "test", lean=True)
    graph = trace_graph(linear, operands()).graph
    monkeypatch.setattr(product_times, "_settled", lambda times: len(times) > 0)
    monkeypatch.setattr(product_times, "_displaced", lambda: 0)
    before = trace.snapshot()[0]["products_measured"]
    first = product_times.measured_products(graph, (), ctx)
    assert [p for p, _ in first] == [SHAPE]
    (kept,) = empty_cache.glob("product/*/*.json")
    assert {*json.loads(kept.read_bytes().split(b"\n", 1)[1])} <= {way.value for way in Way}
    monkeypatch.setattr(product_times, "_KEPT", {})
    assert product_times.measured_products(graph, (), ctx) == first
    assert trace.snapshot()[0]["products_measured"] == before + 1


def test_nothing_is_measured_where_the_rule_is_asked_for_or_weights_stay_packed(empty_cache: Path) -> None:
    graph = trace_graph(linear, operands()).graph
    rule = CompileContext(Options(measure_products=False), cpu_target(), "test", lean=True)
    inference = CompileContext(Options(measure_products=True), cpu_target(), "test")
    assert product_times.measured_products(graph, (), rule) == ()
    assert product_times.measured_products(graph, (False, True, True), inference) == ()
    assert not list(empty_cache.iterdir())


def test_a_machine_too_busy_to_tell_keeps_nothing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule decides then, and the next process tries again."""
    monkeypatch.setattr(product_times, "_SECONDS", 0.01)
    monkeypatch.setattr(product_times, "_settled", lambda times: False)
    ctx = CompileContext(Options(measure_products=True), cpu_target(), "test", lean=True)
    assert product_times.measured_products(trace_graph(linear, operands()).graph, (), ctx) == ()
    assert not list(empty_cache.glob("product/*/*.json"))


def test_one_thread_decides_what_several_cannot_tell(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine; its seconds are kept as those of one thread, and the next compile asks several again."""
    asked: list[int] = []

    def timed(calls: Any, threads: int) -> Any:
        asked.append(threads)
        return None if threads > 1 else {Way.OURS: 2.0, Way.ATEN: 1.0}

    monkeypatch.setattr(product_times, "_timed", timed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    ctx = CompileContext(Options(measure_products=True), cpu_target(), "test", lean=True)
    graph = trace_graph(two_layers, [torch.randn(6, 40), torch.randn(24, 40), torch.randn(8, 24)]).graph
    wanted = 2 if torch.backends.mkl.is_available() else 0
    found = product_times.measured_products(graph, (), ctx)
    assert [way for _, way in found] == [Way.ATEN] * wanted
    assert asked == [4] + [1] * wanted
    monkeypatch.setattr(product_times, "_KEPT", {})
    assert product_times.measured_products(graph, (), ctx) == found
    assert asked == [4] + [1] * wanted + [4]


def two_layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(torch.nn.functional.linear(x, w).relu(), v)


def test_on_one_thread_each_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is the processor's, in which others have no part."""
    monkeypatch.setattr(product_times, "_displaced", lambda: pytest.fail("others do not matter"))
    monkeypatch.setattr(product_times, "_settled", lambda times: len(times) == 3)
    monkeypatch.setattr(product_times, "_SECONDS", 600)
    made: list[Way] = []
    calls = {way: lambda way=way: lambda: made.append(way) for way in (Way.OURS, Way.ATEN)}
    assert product_times._timed(calls, 1) is not None
    assert made == [Way.OURS, Way.ATEN] * 4  # the first call of each does not count


def test_each_call_finds_matrices_that_none_has_touched_since_the_end_of_the_memory() -> None:
    """As those of a step lie where other kernels left them; they begin at lines of the cache, each layout as the product's."""
    p = Product(6, 40, 24, left_by_columns=True, right_by_columns=True)
    memory = product_times._Memory(8 * product_times._bytes(p))
    found = [memory.matrices(p) for _ in range(7)]
    begins = [x.data_ptr() for given in found for x in given]
    assert begins == sorted({*begins})
    assert {at - begins[0] & 63 for at in begins} == {0}
    assert {tuple(x.stride() for x in given) for given in found} == {((1, 6), (1, 40), (24, 1))}
    assert all(x.isfinite().all() for given in found for x in given)
    again = [memory.matrices(p) for _ in range(2)]
    assert begins[0] in [x.data_ptr() for given in again for x in given]


def test_matrices_of_one_product_share_no_memory_at_the_end_of_it() -> None:
    p = Product(5, 7, 3)
    memory = product_times._Memory(product_times._bytes(p))
    for _ in range(5):
        spans = sorted((x.data_ptr(), x.nbytes) for x in memory.matrices(p))
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))


def test_what_a_graphs_products_touch_decides_in_how_much_memory_they_are_measured(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a shape one time for each class: few bytes lie in the cache from one step to the next."""
    asked: list[int] = []

    def measured(products: Any, room: int, threads: int, ctx: Any) -> Any:
        asked.extend(room for _ in products)
        return {p: {Way.OURS: 2.0, Way.ATEN: 1.0} for p in products}

    monkeypatch.setattr(product_times, "_measured", measured)
    ctx = CompileContext(Options(measure_products=True), cpu_target(), "test", lean=True)
    inputs = [torch.randn(6, 40), torch.randn(40, 40)]
    for layers in (1, 1, 200, 900):

        def many(x: torch.Tensor, w: torch.Tensor, layers: int = layers) -> torch.Tensor:
            for _ in range(layers):
                x = x @ w
            return x

        product_times.measured_products(trace_graph(many, inputs).graph, (), ctx)
    assert [room >> 20 for room in asked] == [1, 4, 16]
