"""FX graphs through every stage: the numbers are eager's, the kernels as few as promised."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.context import CompileContext
from braze.graph.fakes.fakes import new_mode
from braze.graph.nodes.facts import InputRole, set_facts
from braze.options import Options
from braze.runtime.libraries import build
from braze.runtime.memory.arena import POOL
from braze.support import trace
from braze.support.errors import Unsupported
from braze.target import cpu_target

CONTEXT = CompileContext(Options(verify=2), cpu_target())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts with an empty cache."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))


def captured(fn: Callable[..., Any], inputs: Sequence[Any], parameters: Sequence[int] = ()) -> Any:
    """(graph module with metadata on its placeholders, fake inputs), as capture hands them over."""
    gm = torch.fx.symbolic_trace(fn)
    mode = new_mode()
    fakes = [mode.fake(x) for x in inputs]
    for k, (node, fake) in enumerate(
        zip((n for n in gm.graph.nodes if n.op == "placeholder"), fakes, strict=False)
    ):
        node.meta["val"] = fake
        set_facts(node, role=InputRole.PARAMETER if k in parameters else InputRole.USER)
    return gm, fakes


def compiled(
    fn: Callable[..., Any], inputs: Sequence[Any], parameters: Sequence[int] = ()
) -> tuple[Any, Any]:
    """(call, CompiledInfo) of a function of tensors."""
    with torch.no_grad(), trace.collect() as events:
        call = pipeline.compile_graph(*captured(fn, inputs, parameters), CONTEXT)
    infos = [payload for kind, payload in events if kind == "compiled"]
    return (lambda *args: call(args)), infos[0] if infos else None


def check(fn: Callable[..., Any], *inputs: torch.Tensor, parameters: Sequence[int] = ()) -> Any:
    """Compile and compare with eager twice; the result is at most rounding further from float64 than eager is."""
    call, info = compiled(fn, inputs, parameters)
    with torch.no_grad():
        exact = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
        eager = fn(*inputs)
        exact, eager = ((x,) if isinstance(x, torch.Tensor) else x for x in (exact, eager))
        for _ in range(2):
            for found, expected, truth in zip(call(*inputs), eager, exact, strict=True):
                assert found.dtype == expected.dtype
                assert found.stride() == expected.stride()
                off = (found.double() - truth).abs().max().item() if found.numel() else 0.0
                allowed = (expected.double() - truth).abs().max().item() if found.numel() else 0.0
                scale = truth.abs().max().item() if found.numel() else 0.0
                assert off <= 2 * allowed + 4 * torch.finfo(torch.float32).eps * max(scale, 1e-30)
    return info


def test_softmax_is_one_kernel() -> None:
    """Softmax over the last dimension."""
    info = check(lambda x: torch.softmax(x, -1), torch.randn(37, 130))
    assert (len(info.kernels), info.externs) == (1, ())


def test_masked_softmax_is_one_kernel() -> None:
    """Scaling and a broadcast mask join the softmax."""
    info = check(
        lambda x, m: torch.softmax(x / 8 + m, -1), torch.randn(2, 3, 16, 16), torch.randn(2, 1, 1, 16)
    )
    assert (len(info.kernels), info.externs) == (1, ())


def test_layer_norm_is_one_kernel() -> None:
    """Mean, variance, scale and shift in one pass over each row."""
    info = check(
        lambda x, w, b: F.layer_norm(x, (96,), w, b), torch.randn(4, 33, 96), torch.randn(96), torch.randn(96)
    )
    assert (len(info.kernels), info.externs) == (1, ())


def test_add_and_layer_norm_is_one_kernel() -> None:
    """The residual sum is part of the kernel and is returned as well."""

    def fn(x: Any, y: Any, w: Any, b: Any) -> Any:
        s = x + y
        return F.layer_norm(s, (96,), w, b), s

    info = check(fn, torch.randn(40, 96), torch.randn(40, 96), torch.randn(96), torch.randn(96))
    assert (len(info.kernels), info.externs) == (1, ())


def test_linear_and_gelu_is_one_kernel() -> None:
    """Bias and GELU are the GEMM's epilogue."""
    info = check(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), torch.randn(3, 50, 64), torch.randn(112, 64), torch.randn(112),
        parameters=(1, 2),
    )  # fmt: skip
    assert (len(info.kernels), info.externs) == (1, ())


def test_weight_changes_are_seen() -> None:
    """In place, through .data, and replaced data: the packed copy follows."""
    x, w = torch.randn(20, 32), torch.nn.Parameter(torch.randn(48, 32))

    def fn(x: Any, w: Any) -> Any:
        return F.linear(x, w)

    call, _ = compiled(fn, (x, w), parameters=(1,))
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: w.add_(1),
        lambda: w.data.mul_(0.5),
        lambda: setattr(w, "data", torch.randn(48, 32)),
    ]
    with torch.no_grad():
        for change in changes:
            change()
            torch.testing.assert_close(call(x, w)[0], fn(x, w), rtol=1e-5, atol=1e-5)


def test_what_depends_on_constants_is_computed_once() -> None:
    """Batch norm's scale and a weight's cast are kept, and follow changes of the parameters."""
    x = torch.randn(4, 8, 6, 6)
    parameters = [
        torch.randn(8),
        torch.rand(8) + 0.5,
        torch.randn(8),
        torch.randn(8),
        torch.randn(8, 8).double(),
    ]

    def fn(x: Any, mean: Any, var: Any, weight: Any, bias: Any, mix: Any) -> Any:
        y = F.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-5)
        return torch.matmul(y.mean((2, 3)), mix.float()), y

    call, info = compiled(fn, (x, *parameters), parameters=range(1, 6))
    assert info.fixed
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: parameters[1].mul_(2),
            lambda: parameters[4].data.neg_(),
            lambda: None,
        ):
            change()
            for found, expected in zip(call(x, *parameters), fn(x, *parameters), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_grad_mode_does_not_matter() -> None:
    """Parameters that require grad meet out= calls only with grad mode off."""
    x, y = torch.randn(4, 8, 8), torch.nn.Parameter(torch.randn(4, 8, 8))

    def fn(x: Any, y: Any) -> Any:
        return torch.bmm(torch.bmm(x + 1, y), y) * 2

    call, _ = compiled(fn, (x, y), parameters=(1,))
    with torch.enable_grad():
        found = call(x, y)[0]
    with torch.no_grad():
        torch.testing.assert_close(found, fn(x, y))


def test_outputs_are_fresh_at_each_call() -> None:
    """Results of one call are not overwritten by the next."""
    call, _ = compiled(lambda x: torch.softmax(x, -1) + 1, (torch.randn(8, 16),))
    a, b = torch.randn(8, 16), torch.randn(8, 16)
    with torch.no_grad():
        first = call(a)[0]
        kept = first.clone()
        call(b)
    assert torch.equal(first, kept)


def test_mutated_input() -> None:
    """An in-place update reaches the caller's tensor."""
    call, _ = compiled(lambda x, y: x.add_(y).mul(2), (torch.randn(8, 16), torch.randn(8, 16)))
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    expected = x + y
    with torch.no_grad():
        found = call(x, y)[0]
    assert torch.equal(x, expected)
    assert torch.equal(found, expected * 2)


def test_index_out_of_range_is_an_index_error() -> None:
    """An embedding looked up beyond its end raises what eager raises."""
    call, _ = compiled(lambda i, w: F.embedding(i, w) + 1, (torch.tensor([0, 1]), torch.randn(4, 8)))
    with pytest.raises(IndexError):
        call(torch.tensor([0, 4]), torch.randn(4, 8))
    w = torch.randn(4, 8)
    assert torch.equal(call(torch.tensor([0, 3]), w)[0], w[[0, 3]] + 1)


def test_second_compile_does_not_call_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm kernel cache: the library is read from disk."""
    x = torch.randn(8, 16)
    compiled(lambda x: torch.softmax(x, -1), (x,))
    monkeypatch.setattr(build, "build_c", lambda *a, **k: pytest.fail("the compiler was called"))
    call, _ = compiled(lambda x: torch.softmax(x, -1), (x,))
    torch.testing.assert_close(call(x)[0], torch.softmax(x, -1))


def test_equal_layers_are_built_once() -> None:
    """Four equal layers give the kernels of one."""

    def layer(x: Any) -> Any:
        return torch.softmax(torch.sort(x, -1)[0], -1)

    def deep(x: Any) -> Any:
        for _ in range(4):
            x = layer(x)
        return x

    before, _ = trace.snapshot()
    check(deep, torch.randn(6, 20))
    after, _ = trace.snapshot()
    assert after["kernels_built"] - before["kernels_built"] == 1


def test_without_a_compiler_graphs_run_through_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gcc, no clang: right answers, and a counter that says so."""

    def none(*args: object, **kwargs: object) -> Any:
        raise Unsupported("BZ5001", "no C compiler found")

    monkeypatch.setattr(build, "compiler_id", none)
    before, _ = trace.snapshot()
    call, _ = compiled(lambda x: torch.softmax(x, -1), (torch.randn(8, 16),))
    after, _ = trace.snapshot()
    assert after["graphs_run_eagerly"] - before["graphs_run_eagerly"] == 1
    x = torch.randn(8, 16)
    assert torch.equal(call(x), torch.softmax(x, -1))


def test_dumps_are_numbered_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BRAZE_DUMP gets one readable file per stage, in order."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path / "dump"))
    compiled(lambda x: torch.softmax(x, -1), (torch.randn(8, 16),))
    names = [p.name.partition("_")[2] for p in sorted((tmp_path / "dump").iterdir())]
    stages = [n.partition("_")[2].partition(".")[0].rstrip("0123456789") for n in names]
    assert list(dict.fromkeys(stages)) == ["graph", "aten", "loops", "schedule", "host", "kernels"]


def test_concurrent_calls() -> None:
    """Two threads in one graph have their own arenas."""

    def fn(x: Any) -> Any:
        return torch.sort(torch.softmax(torch.sort(x, -1)[0] * 3, -1) + 1, -1)[0] * 2

    call, _ = compiled(fn, (torch.randn(64, 256),))
    wrong: list[float] = []

    def work(seed: int) -> None:
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected = fn(x)
            for _ in range(30):
                off = (call(x)[0] - expected).abs().max().item()
                if off > 1e-5:
                    wrong.append(off)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_symbolic_sizes() -> None:
    """One compile serves every batch and length; the arena is planned for the numbers of the call."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        y = torch.bmm(x, x.transpose(1, 2)) * 2
        z = torch.bmm(torch.softmax(y, -1) + 1, x)
        return F.layer_norm(z + x, (32,), w, b), z.size(1)

    first = (torch.randn(3, 7, 32), torch.randn(32), torch.randn(32))
    gm = torch.fx.symbolic_trace(fn)
    mode = new_mode(dynamic=True)
    fakes = [
        mode.fake(x, symbolic_dims={0, 1} if k == 0 else None, source=f"x{k}") for k, x in enumerate(first)
    ]
    for node, fake in zip((n for n in gm.graph.nodes if n.op == "placeholder"), fakes, strict=False):
        node.meta["val"] = fake
        set_facts(node, role=InputRole.USER)
    with torch.no_grad():
        call = pipeline.compile_graph(gm, fakes, CONTEXT)
        for batch, length in ((3, 7), (2, 50), (5, 2), (3, 7)):
            inputs = (torch.randn(batch, length, 32), *first[1:])
            found, expected = call(inputs), fn(*inputs)
            torch.testing.assert_close(found[0], expected[0], rtol=2e-5, atol=2e-5)
            assert found[1] == length


@pytest.mark.parametrize("shape", [(0, 16), (4, 0), (1, 1)])
def test_empty_and_single_elements(shape: tuple[int, int]) -> None:
    """Loops without points, and rows without elements."""
    x = torch.randn(shape)
    call, _ = compiled(lambda x: (torch.softmax(x * 2, -1) + 1, (x + 1).sum(-1), x.sum(), x.exp()), (x,))
    with torch.no_grad():
        expected = torch.softmax(x * 2, -1) + 1, (x + 1).sum(-1), x.sum(), x.exp()
        for a, b in zip(call(x), expected, strict=True):
            torch.testing.assert_close(a, b)


def test_what_lies_behind_no_elements_is_not_read() -> None:
    """A load that stands outside of its loop, for no axis moves it, would be one through a null pointer."""
    x = torch.empty(0, 0)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.repeat(3, 1).tanh().mean(), x.repeat(3, 1), x.expand(4, 0, 0).exp() + 1)

    call, _ = compiled(fn, (x,))
    with torch.no_grad():
        for ours, eager in zip(call(x), fn(x), strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True)


LOOKUPS = {
    "index": lambda x, i: x[i] * 2,
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "gather": lambda x, i: x.gather(0, i[:, None]) * 2,
    "embedding": lambda x, i: F.embedding(i, x) * 2,
    "a sum": lambda x, i: x[i].sum(0),
    "columns": lambda x, i: x.t()[:, i] * 2,
    "behind a product": lambda x, i: F.linear(x[i], torch.ones(5, 4)),
}


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_lookup_in_a_table_without_rows_is_refused_before_it_reads(name: str, count: int) -> None:
    """Places beyond a table stand for its first row until they are told: of none there is no memory."""
    fn, x, i = LOOKUPS[name], torch.ones(0, 4), torch.zeros(count, dtype=torch.int64)
    call, _ = compiled(fn, (x, i))
    with pytest.raises((IndexError, RuntimeError)):
        call(x, i)
    call, _ = compiled(fn, (x, i[:0]))
    with torch.no_grad():
        torch.testing.assert_close(call(x, i[:0])[0], fn(x, i[:0]))


def test_a_mean_of_nothing_is_cast_as_eager_casts_a_nan() -> None:
    """The C compiler knows that number, and what is undefined of it."""
    x = torch.empty(3, 0)
    call, _ = compiled(lambda x: (x.mean().to(torch.int64), x.mean(1).to(torch.int32)), (x,))
    with torch.no_grad():
        assert torch.equal(call(x)[0], x.mean().to(torch.int64))
        assert torch.equal(call(x)[1], x.mean(1).to(torch.int32))


def test_inference_mode_then_no_grad() -> None:
    """The arena of a first call under inference_mode serves later calls outside, and the other way round."""
    x = torch.randn(4, 8, 8)

    def fn(x: Any) -> Any:
        return torch.bmm(torch.bmm(x + 1, x) * 2, x)

    call, _ = compiled(fn, (x,))
    POOL.clear()
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(call(x)[0], fn(x))


def test_options_reach_the_stages() -> None:
    """fusion=False gives one kernel per loop nest, arena=False the same numbers."""
    x = torch.randn(8, 16)
    options = dataclasses.replace(CONTEXT, options=Options(fusion=False, arena=False))
    with torch.no_grad(), trace.collect() as events:
        call = pipeline.compile_graph(*captured(lambda x: torch.softmax(x + 1, -1), (x,)), options)
        torch.testing.assert_close(call((x,))[0], torch.softmax(x + 1, -1))
    (info,) = [payload for kind, payload in events if kind == "compiled"]
    assert len(info.kernels) > 1


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_a_compiler_starts_for_kernels_and_not_for_the_calls_of_them(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What calls kernels in turn stands in a unit beside some of them, and finds those of other units."""
    built: list[tuple[str, ...]] = []
    build_c = build.build_c
    monkeypatch.setattr(build, "build_c", lambda units, arch: built.append(units) or build_c(units, arch))
    context = dataclasses.replace(CONTEXT, target=dataclasses.replace(CONTEXT.target, cores=cores))

    def norms(x: torch.Tensor) -> torch.Tensor:
        for k in range(6):
            x = F.layer_norm(x.mT.softmax(-1) * k, (x.shape[-2],))
        return x

    x = torch.randn(24, 40)
    with torch.no_grad():
        call = pipeline.compile_graph(*captured(norms, [x]), context)
    torch.testing.assert_close(call([x])[0], norms(x))
    (units,) = built
    assert len(units) == cores and sum("int64_t segment_" in unit for unit in units) == 1
    assert all(re.search(r"^(static )?void cpu_\w+\(void \*\*b", unit, re.M) for unit in units)
