"""braze.compile as users call it: forms, words, refusals."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import braze
import braze.serving
from braze import api
from braze.backends import registry
from braze.graph.private import torch_import
from braze.options import _FIELDS, INDUCTORS
from braze.runtime.memory import arena
from braze.support import log
from braze.support.codes import CODES
from braze.support.errors import BrazeError, CaptureError, UserError
from tests.helpers import logged


def double(x):
    """Twice x."""
    return x * 2


X = torch.arange(3.0)


def test_import_is_light():
    """``import braze`` imports no torch."""
    code = "import sys, braze; dir(braze); assert 'torch' not in sys.modules, 'torch'"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_is_collected_while_the_compiler_is_loaded():
    """The first name that is asked for loads modules, among which no collection is set off, however often one would be."""
    code = """if True:
        import gc, sys, torch, braze, braze.support.collector
        during = []
        def look(phase, info):
            api = sys.modules.get("braze.api")
            during.append(api is not None and api.__spec__._initializing)
        gc.callbacks.append(look)
        gc.set_threshold(1, 1, 1)
        braze.compile
        gc.collect()
        assert gc.isenabled() and during and not any(during), during
    """
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_exported_names_are_the_public_face():
    assert sorted(set(braze.__all__) - {"__version__", "aot", "forward_context", "serve"}) == sorted(
        api.__all__
    )
    for name in braze.__all__:
        assert getattr(braze, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        braze.complie


def test_takes_the_words_of_torch_compile():
    """Same names, same defaults, but for the name of the default backend."""
    theirs = inspect.signature(torch.compile).parameters
    ours = inspect.signature(braze.compile).parameters
    # and one word of ours, after theirs
    assert list(ours) == [*(name for name in theirs if name in ours), "shapes"]
    assert set(ours) >= {"model", "fullgraph", "dynamic", "backend", "mode", "options", "disable"}
    for name, parameter in ours.items() - {"shapes": ours["shapes"]}.items():
        assert parameter.kind == theirs[name].kind
        if name != "backend":
            assert parameter.default == theirs[name].default


def test_as_a_call():
    assert torch.equal(braze.compile(double, backend="eager")(X), X * 2)


def test_as_a_decorator_without_arguments():
    @braze.compile
    def f(x):
        return x + 1

    assert torch.equal(f(X), X + 1)


def test_as_a_decorator_with_arguments():
    @braze.compile(backend="eager", fullgraph=True)
    def f(x, *, by=1):
        return x + by

    assert torch.equal(f(X, by=3), X + 3)


def test_a_compiled_function_looks_like_the_function():
    compiled = braze.compile(double, backend="eager")
    assert compiled.__name__ == "double"
    assert compiled.__doc__ == "Twice x."
    assert compiled.__wrapped__ is double
    assert inspect.signature(compiled) == inspect.signature(double)


def test_a_decorated_method_binds_its_object():
    class Scale:
        def __init__(self, by):
            self.by = by

        @braze.compile(backend="eager")
        def apply(self, x):
            return x * self.by

    assert torch.equal(Scale(3).apply(X), X * 3)
    assert torch.equal(Scale(4).apply(X), X * 4)


def test_bound_methods_partials_and_callable_objects():
    class Scale:
        by = 5

        def apply(self, x):
            return x * self.by

        def __call__(self, x):
            return x - self.by

    scale = Scale()
    assert torch.equal(braze.compile(scale.apply, backend="eager")(X), X * 5)
    assert torch.equal(braze.compile(scale, backend="eager")(X), X - 5)
    assert torch.equal(braze.compile(functools.partial(torch.add, X), backend="eager")(X), X + X)
    assert torch.equal(braze.compile(torch.neg, backend="eager")(X), -X)


def test_disable_returns_what_it_was_given():
    assert braze.compile(double, disable=True) is double
    assert braze.compile(disable=True)(double) is double


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        ({"backend": "brase"}, "BZ0001", "did you mean 'braze'?"),
        ({"backend": 3}, "BZ0001", "backends: aot_eager, braze, eager"),
        ({"mode": "max-autotun"}, "BZ0002", "did you mean 'max-autotune'?"),
        (
            {"mode": 3},
            "BZ0002",
            "known: auto, default, max-autotune, max-autotune-no-cudagraphs, reduce-overhead",
        ),
        ({"options": {"fuson": True}}, "BZ0003", "did you mean 'fusion'?"),
        (
            {"options": {"epilogue_fusion": True}},
            "BZ0003",
            "leave it out: braze does so wherever that is quicker",
        ),
        (
            {"mode": "max-autotune", "options": {"fusion": False}},
            "BZ0002",
            "put the mode's options into options=",
        ),
        (
            {"backend": "inductor"},
            "BZ0001",
            "backend='braze', the default, is what 'inductor' is for torch.compile",
        ),
        ({"options": [1]}, "BZ0003", 'options={"verify": 2}'),
        ({"fullgraph": "no"}, "BZ0012", "fullgraph=True"),
        ({"dynamic": "auto"}, "BZ0012", "dynamic=True"),
        ({"disable": 3}, "BZ0012", "disable=True"),
    ],
)
def test_refuses_unknown_words_with_a_near_miss(words, code, hint):
    """At compile, not at the first call."""
    with pytest.raises(UserError) as refused:
        braze.compile(double, **words)
    assert refused.value.code == code
    assert hint in refused.value.hints
    with pytest.raises(UserError):
        braze.compile(**words)


def test_options_of_pytorchs_compiler_name_those_of_ours_that_exist():
    for name, hint in INDUCTORS.items():
        assert name not in _FIELDS
        assert set(re.findall(r"'(\w+)'", hint)) <= set(_FIELDS)


@pytest.mark.parametrize(
    "options",
    [
        {"fusion": 1},
        {"recompile_limit": True},
        {"recompile_limit": "8"},
        {"recompile_limit": 0},
        {"verify": -1},
        {"threads": -2},
        {"memory_budget": -0.5},
        {"autotune_seconds": float("nan")},
        {"cudagraph_sizes": [-1]},
    ],
)
def test_refuses_option_values_of_another_type_or_range(options):
    with pytest.raises(UserError) as refused:
        braze.compile(double, options=options)
    assert refused.value.code == "BZ0003"
    (name,) = options
    assert f"{name!r} takes" in refused.value.what
    assert refused.value.hints


@pytest.mark.parametrize(
    "call",
    [
        lambda: braze.register_backend(5),
        lambda: braze.register_backend(double, name=5),
        lambda: braze.disable(5),
        lambda: braze.allow_in_graph("double"),
        lambda: braze.explain(None),
        lambda: braze.register_backend(double, name="braze"),
        lambda: braze.compile(double, backend=lambda gm, inputs: None)(X),
        lambda: braze.mark_dynamic(None, 0),
        lambda: braze.mark_dynamic(torch.ones(3), 1),
        lambda: braze.mark_dynamic(torch.ones(3), "batch"),
        lambda: braze.mark_dynamic(torch.ones(3), 0, min="2"),
        lambda: braze.mark_dynamic(torch.ones(3), 0, min=5, max=4),
        lambda: braze.mark_dynamic(torch.ones(3), 0, min=5),
    ],
)
def test_a_mistake_is_told_with_a_code_and_what_to_do(call):
    with pytest.raises(BrazeError) as refused:
        call()
    assert refused.value.code in CODES
    assert refused.value.hints


@pytest.mark.parametrize("module", [braze, braze.serving])
def test_a_misspelt_name_of_the_package_is_told_so_that_python_can_say_the_nearest(module):
    with pytest.raises(AttributeError, match="no attribute 'complie'") as refused:
        module.complie
    assert (refused.value.name, refused.value.obj) == ("complie", module)


@pytest.mark.parametrize("what", [nn.Linear, 3, None.__class__, "double"])
def test_refuses_what_cannot_be_called(what):
    with pytest.raises(UserError) as refused:
        braze.compile(what)
    assert refused.value.code == "BZ0005"


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_accepts_the_modes_of_torch_compile(mode):
    assert torch.equal(braze.compile(double, mode=mode)(X), X * 2)


@pytest.mark.parametrize(
    "asked",
    [{"mode": "max-autotune-no-cudagraphs"}, {"options": {"coordinate_descent_tuning": True}}],
    ids=["a mode", "an option"],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_says_once_that_a_mode_changes_nothing_without_a_gpu(asked):
    log.forget_warnings()
    with logged() as messages:
        braze.compile(double, **asked)
        braze.compile(double, **asked)
    assert [m[:6] for m in messages] == ["BZ0010"]


def test_a_callable_backend_gets_graph_and_example_inputs():
    seen = []

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward

    assert torch.equal(braze.compile(double, backend=backend)(X), X * 2)
    ((gm, example_inputs),) = seen
    assert isinstance(gm, torch.fx.GraphModule)
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_function", "output"]
    assert [tuple(value.shape) for value in example_inputs] == [(3,)]


def test_a_callable_backend_gets_its_own_mode_and_options():
    seen = {}

    def backend(gm, example_inputs, **words):
        seen.update(words)
        return gm.forward

    braze.compile(double, backend=backend, mode="reduce-overhead", options={"theirs": 1})(X)
    assert seen == {"mode": "reduce-overhead", "options": {"theirs": 1}}


def test_a_boxed_backend_gets_its_inputs_as_one_sequence():
    def backend(gm, example_inputs):
        def call(inputs):
            return gm.forward(*inputs)

        call.boxed = True
        return call

    assert torch.equal(braze.compile(double, backend=backend)(X), X * 2)


def test_a_registered_backend_is_found_by_name(monkeypatch):
    monkeypatch.setattr(registry, "_backends", dict(registry._backends))
    name = "test_api_mine"

    @braze.register_backend(name=name)
    def mine(gm, example_inputs):
        return gm.forward

    assert name in braze.list_backends()
    assert torch.equal(braze.compile(double, backend=name)(X), X * 2)
    with pytest.raises(UserError) as refused:
        braze.register_backend(mine, name=name)
    assert refused.value.code == "BZ0006"
    with pytest.raises(UserError):
        braze.register_backend(mine, name="eager")


def test_backends_that_come_with_braze():
    assert {"aot_eager", "braze", "eager"} <= set(braze.list_backends())


def test_fullgraph_turns_a_break_into_an_error():
    def f(x):
        x = x + 1
        braze.graph_break()
        return x * 2

    assert torch.equal(braze.compile(f, backend="eager")(X), (X + 1) * 2)
    with pytest.raises(CaptureError) as refused:
        braze.compile(f, backend="eager", fullgraph=True)(X)
    assert refused.value.origin.line == f.__code__.co_firstlineno + 2
    assert "braze.graph_break()" in str(refused.value)


def test_is_compiling_is_true_inside_a_capture():
    def f(x):
        return x + 1 if braze.is_compiling() and torch.compiler.is_compiling() else x - 1

    assert torch.equal(f(X), X - 1)
    assert torch.equal(braze.compile(f, backend="eager")(X), X + 1)


def test_disable_keeps_a_function_out_of_the_graph():
    ran = []

    @braze.disable
    def outside(x):
        ran.append(type(x))
        return x + 1

    def f(x):
        return outside(x * 2) * 3

    assert torch.equal(braze.compile(f, backend="eager")(X), (X * 2 + 1) * 3)
    assert ran == [torch.Tensor]


def test_reset_forgets_compiled_code():
    compiles = []

    def backend(gm, example_inputs):
        compiles.append(gm)
        return gm.forward

    f = braze.compile(double, backend=backend)
    f(X)
    f(X)
    assert len(compiles) == 1
    braze.reset()
    f(X)
    assert len(compiles) == 2


def test_warns_once_of_an_untested_torch(monkeypatch):
    monkeypatch.setattr(torch_import, "VERSION", (9, 9))
    log.forget_warnings()
    with logged() as messages:
        braze.compile(double)
        braze.compile(double)
    assert len([m for m in messages if "is tested with PyTorch" in m]) == 1


def test_a_compiled_module_trains():
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    model(x).square().sum().backward()
    expected = model.weight.grad.clone()
    model.zero_grad()
    with logged() as messages:
        braze.compile(model)(x).square().sum().backward()
    torch.testing.assert_close(model.weight.grad, expected)
    assert not any("as captured" in m for m in messages)


def test_reset_frees_the_memory_that_calls_left_for_the_next():
    compiled = braze.compile(lambda x: torch.softmax(x.sin(), -1).cumsum(0).softmax(0))
    compiled(torch.randn(64, 64))
    assert arena.POOL._free
    braze.reset()
    assert not arena.POOL._free
