"""The backends on hand-made graphs: what they return, and when a graph runs as captured."""

from __future__ import annotations

import pytest
import torch
import torch.fx

import braze
from braze.aot import needs_gradients
from braze.backends import default
from braze.backends.registry import find_backend, list_backends
from braze.graph.fakes.fakes import new_mode
from braze.graph.nodes.facts import set_facts
from braze.options import Options
from braze.support.errors import Unsupported
from tests.helpers import logged


def captured(fn, *inputs):
    """A torch-level graph with the metadata that capture gives, and its fake inputs."""
    gm = torch.fx.symbolic_trace(fn)
    mode = new_mode()
    fakes = [mode.fake(value) for value in inputs]
    values: dict[torch.fx.Node, object] = {}

    class Noting(torch.fx.Interpreter):
        def run_node(self, n):
            values[n] = super().run_node(n)
            return values[n]

    with mode:
        Noting(gm).run(*fakes)
    for node, value in values.items():
        if node.op != "output":
            node.meta["val"] = value
        if node.op == "placeholder":
            set_facts(node, source=f"L[{node.name}]")
    return gm, fakes


def run(backend: str, fn, *inputs):
    """What the backend's callable returns for real inputs."""
    gm, fakes = captured(fn, *inputs)
    words = {"options": Options()} if find_backend(backend).needs_options else {}
    call = find_backend(backend).compile(gm, fakes, **words)
    return list(call(inputs) if getattr(call, "boxed", False) else call(*inputs))


def several(x, y):
    return (x * y).relu().sum(-1), x.t(), (x + y).softmax(-1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_outputs_and_views_are_eagers(backend):
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for ours, theirs in zip(run(backend, several, x, y), several(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    assert run(backend, several, x, y)[1].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_inputs_that_are_written_are_written(backend):
    def write(x, y):
        x.add_(y)
        return (x * 2,)

    x, y = torch.arange(3.0), torch.ones(3)
    (out,) = run(backend, write, x, y)
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert out.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_gradients_flow(backend):
    x = torch.randn(3, requires_grad=True)
    (out,) = run(backend, lambda x: ((x * x).sum(),), x)
    out.backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_no_gradient_needed_where_grad_mode_is_off():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        gm, _ = captured(lambda x: (x * 2,), x)
    assert not needs_gradients(gm)
    gm, _ = captured(lambda x: (x * 2,), x)
    assert needs_gradients(gm)


def test_returning_a_parameter_as_it_is_needs_no_autograd():
    gm, _ = captured(lambda x, p: (p, x + 1), torch.ones(2), torch.ones(2, requires_grad=True))
    assert not needs_gradients(gm)


def test_a_write_that_carries_gradients_into_an_input_needs_autograd():
    def write(x, p):
        x.mul_(p)
        return (1,)

    gm, _ = captured(write, torch.ones(2), torch.ones(2, requires_grad=True))
    assert needs_gradients(gm)


def test_what_a_stage_refuses_runs_as_captured_and_says_so(monkeypatch):
    def refuse(*args):
        raise Unsupported("BZ2018", "a thing that cannot be")

    monkeypatch.setattr(default, "compile_graph", refuse)
    x = torch.randn(3)
    with logged() as messages:
        assert torch.equal(run("braze", lambda x: (x * 2,), x)[0], x * 2)
    assert any("a thing that cannot be" in m for m in messages)


def test_target_is_the_processor_for_cpu_inputs():
    _, fakes = captured(lambda x: (x,), torch.ones(2))
    assert default.target_of(fakes).kind == "cpu"
    assert default.target_of([]).kind == "cpu"


def test_names_are_listed_before_any_is_imported():
    assert {"aot_eager", "braze", "eager"} <= set(list_backends())


def test_a_callable_backend_gets_its_own_options_and_none_of_brazes():
    got = []

    def backend(gm, examples, options=None):
        got.append(options)
        return gm.forward

    braze.compile(lambda x: x + 1, backend=backend, options={"recompile_limit": 3})(torch.ones(2))
    braze.compile(lambda x: x + 1, backend=backend, options={"recompile_limit": 3, "level": 2})(torch.ones(2))
    assert got == [None, {"level": 2}]


@pytest.mark.unverified
@pytest.mark.provokes("BZ9025")
def test_a_stage_that_raises_leaves_the_program_running(monkeypatch, caplog):
    monkeypatch.setattr("braze.pipeline.partition_graph", [].pop)
    x = torch.arange(3.0)
    assert torch.equal(braze.compile(lambda x: x + 1)(x), x + 1)
    assert "BZ9025" in caplog.text and "TypeError: pop expected" in caplog.text
    with pytest.raises(TypeError, match="pop expected"):
        braze.compile(lambda x: x + 2, options={"verify": 1})(x)


def test_what_the_programs_own_code_raises_is_raised(monkeypatch):
    def fail(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(default, "compile_graph", fail)
    with pytest.raises(ZeroDivisionError):
        run("braze", lambda x: (x * 2,), torch.randn(3))


def test_a_graph_that_runs_as_captured_is_told_with_its_place_and_what_to_do():
    """Of many graphs it is one, and a code alone helps nobody."""

    @braze.compile
    def f(x, w):
        y = w * 2
        (g,) = torch.autograd.grad(y.square().sum(), w, create_graph=True)
        return (g * x).sum()

    def looks_up(bag, numbers):
        return bag(numbers, torch.tensor([0, 2])).sum()

    with logged() as said:
        f(torch.ones(3), torch.ones(3, requires_grad=True)).backward()
        bag = torch.nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
        braze.compile(looks_up)(bag, torch.tensor([1, 2, 4, 5])).backward()
    twice, sparse = said
    for message, code in ((twice, "BZ2023"), (sparse, "BZ2021")):
        assert message.startswith(f"graph ({__file__}:")
        assert f"{code}: " in message and "do:  " in message
