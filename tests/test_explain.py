"""braze.explain tells graphs, breaks with their lines, guards, recompiles and seconds."""

from __future__ import annotations

import sys

import torch
from torch import nn

import braze
from braze.inspect.explain import Explanation

X = torch.arange(3.0)


def two_breaks(x):
    x = x + 1
    braze.graph_break()
    x = x * 2
    print(end="", file=sys.stdout)
    return x - 3


def line(offset: int) -> int:
    return two_breaks.__code__.co_firstlineno + offset


def test_one_graph_no_break():
    found = braze.explain(lambda x: (x + 1).relu(), backend="eager")(X)
    assert isinstance(found, Explanation)
    assert len(found.graphs) == 1
    assert found.breaks == ()
    assert found.operations == 2
    assert dict(found.graphs[0].operations) == {"add": 1, ".relu": 1}
    assert any("tensor" in guard for guard in found.guards)
    assert found.compile_seconds > 0
    assert "capture" in dict(found.seconds)


def test_breaks_name_their_lines_reasons_and_hints():
    found = braze.explain(two_breaks, backend="eager")(X)
    assert [b.line for b in found.breaks] == [line(2), line(4)]
    assert len(found.graphs) == 3
    for broken in found.breaks:
        assert broken.code.startswith("BZ10")
        assert broken.reason
        assert "test_explain.py" in broken.place
    assert "braze.graph_break()" in found.breaks[0].excerpt
    assert "^" in found.breaks[0].excerpt


def test_prints_one_page_with_the_lines():
    page = str(braze.explain(two_breaks, backend="eager")(X))
    assert f"test_explain.py:{line(2)}" in page
    assert f"test_explain.py:{line(4)}" in page
    assert "3 graphs, 2 graph breaks" in page
    assert "Seconds by stage" in page
    assert len(page.splitlines()) < 60
    assert "\x1b" not in page


def test_a_break_in_a_called_function_names_the_callers():
    def inner(x):
        braze.graph_break()
        return x + 1

    def outer(x):
        return inner(x * 2) * 3

    (broken,) = braze.explain(outer, backend="eager")(X).breaks
    assert broken.line == inner.__code__.co_firstlineno + 1
    assert any(f":{outer.__code__.co_firstlineno + 1} in " in place for place in broken.called_from)


def test_a_module_is_named_by_its_class():
    found = braze.explain(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend="eager")(X)
    assert found.name == "Sequential"
    assert len(found.graphs) == 1


def test_a_compiled_callable_is_explained_afresh():
    compiled = braze.compile(two_breaks, backend="eager")
    compiled(X)
    assert len(braze.explain(compiled, backend="eager")(X).breaks) == 2
    model = braze.compile(nn.Linear(3, 3), backend="eager")
    model(X)
    assert len(braze.explain(model, backend="eager")(X).graphs) == 1


def test_recompiles_say_which_guard_failed():
    compiled = braze.compile(lambda x, flag: x + 1 if flag else x - 1, backend="eager")

    def calls():
        compiled(X, True)
        compiled(X, False)

    from braze.inspect.explain import observe

    found = observe(calls, "calls")
    assert len(found.graphs) == 2
    assert len(found.recompiles) == 1
    assert "flag" in found.recompiles[0] or "L[1]" in found.recompiles[0]


def test_every_operator_that_aten_runs_is_counted():
    """Also those that are meant to run so, of which no warning speaks."""
    with torch.no_grad():
        found = braze.explain(lambda x: torch.cumsum(x.sort().values, 0).sort().values)(torch.randn(5))
    assert found.fallbacks == ()
    assert dict(found.aten)["aten.sort.default"] == 2
    assert "aten.sort.default ×2" in str(found)


def test_kernels_and_fallbacks_of_the_default_backend():
    with torch.no_grad():
        found = braze.explain(lambda x: torch.linalg.svd(x.relu() + 1)[1])(torch.randn(3, 3))
    assert len(found.kernels) >= 1
    assert any("svd" in name for name, _ in found.fallbacks)
    assert set(found.fallbacks) <= set(found.aten)
    stages = [name for name, _ in found.seconds]
    assert stages.index("capture") < stages.index("lower") < stages.index("codegen")


def test_an_object_that_makes_objects_of_any_name_is_shown_by_what_it_is():
    class Holder:
        operators = torch.ops

    found = braze.explain(lambda x: Holder.operators.aten.relu.default(x) + 1, backend="eager")(X)
    assert any("torch.ops" in guard for guard in found.guards), found.guards
    assert found.operations == 2
