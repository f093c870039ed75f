"""Operators registered directly: once, with a schema read off the function, found by name and by mark."""

from __future__ import annotations

import gc

import pytest
import torch

import braze
from braze.serving.pieces.custom_ops import (
    direct_register_custom_op,
    is_marked,
    mark_splitting_op,
    names_of,
    spelled,
)
from braze.support import trace
from braze.support.errors import UserError
from tests import processes


def scaled(x: torch.Tensor, out: torch.Tensor, factor: float, layer: str) -> None:
    out.copy_(x * factor)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def fake_doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_that_writes_its_output_runs_and_is_captured_without_a_break():
    op = direct_register_custom_op("t_scaled", scaled, ["out"], dispatch_key="CPU")
    assert str(op._schema) == "braze::t_scaled(Tensor x, Tensor(a1!) out, float factor, str layer) -> ()"

    @braze.compile(fullgraph=True)
    def f(x):
        out = torch.empty_like(x)
        torch.ops.braze.t_scaled(x + 1, out, 3.0, "layer.0")
        return out * 2

    x = torch.randn(4, 5)
    torch.testing.assert_close(f(x), (x + 1) * 6)


def test_an_operator_that_returns_needs_its_fake():
    op = direct_register_custom_op("t_doubled", doubled, fake_impl=fake_doubled, dispatch_key="CPU")
    x = torch.randn(3)
    torch.testing.assert_close(
        braze.compile(lambda x: op(x) + 1, fullgraph=True)(x), x * 2 + 1, rtol=0, atol=0
    )


def test_the_same_registration_twice_is_one():
    first = direct_register_custom_op("t_twice", doubled, fake_impl=fake_doubled, dispatch_key="CPU")
    assert direct_register_custom_op("t_twice", doubled, fake_impl=fake_doubled, dispatch_key="CPU") is first


def test_another_device_gets_a_function_of_its_own():
    direct_register_custom_op("t_two_keys", doubled, fake_impl=fake_doubled, dispatch_key="CUDA")
    with pytest.raises(NotImplementedError):
        torch.ops.braze.t_two_keys(torch.ones(2))
    direct_register_custom_op("t_two_keys", doubled, dispatch_key="CPU")
    assert torch.equal(torch.ops.braze.t_two_keys(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("function", "written", "tags"),
    [(lambda x: x, [], ()), (scaled, ["out"], ()), (doubled, [], (torch.Tag.cudagraph_unsafe,))],
    ids=["function", "schema", "tags"],
)
def test_another_operator_of_the_name_is_refused(function, written, tags):
    direct_register_custom_op("t_taken", doubled, fake_impl=fake_doubled, dispatch_key="CPU")
    if function.__name__ == "<lambda>":
        function.__annotations__ = dict(doubled.__annotations__)
    with pytest.raises(UserError, match="BZ7201"):
        direct_register_custom_op("t_taken", function, written, dispatch_key="CPU", tags=tags)
    assert torch.equal(torch.ops.braze.t_taken(torch.ones(1)), torch.full((1,), 2.0))


def test_an_operator_of_somebody_elses_is_not_replaced():
    theirs = torch.library.Library("t_theirs", "FRAGMENT")
    theirs.define("op(Tensor x) -> Tensor")
    with pytest.raises(UserError, match="BZ7201"):
        direct_register_custom_op("op", doubled, target_lib=theirs, dispatch_key="CPU")


def test_a_function_without_annotations_is_refused_with_what_to_do():
    with pytest.raises(UserError, match=r"BZ7202.*t_bare") as caught:
        direct_register_custom_op("t_bare", lambda x: x)
    assert "annotate" in str(caught.value)
    with pytest.raises(UserError, match="BZ7202"):
        direct_register_custom_op("t_bare", doubled, ["nothing_of_that_name"])


def test_the_library_outlives_whoever_made_it():
    direct_register_custom_op(
        "op",
        doubled,
        fake_impl=fake_doubled,
        target_lib=torch.library.Library("t_kept", "FRAGMENT"),
        dispatch_key="CPU",
    )
    gc.collect()
    assert torch.equal(torch.ops.t_kept.op(torch.ones(1)), torch.full((1,), 2.0))


def test_tags_reach_the_operator():
    op = direct_register_custom_op(
        "t_tagged",
        doubled,
        fake_impl=fake_doubled,
        dispatch_key="CPU",
        tags=(torch.Tag.cudagraph_unsafe,),
    )
    assert torch.Tag.cudagraph_unsafe in op.tags


def test_annotations_may_be_text_and_the_registration_works_in_a_fresh_process():
    text = (
        "from __future__ import annotations\nimport torch\n"
        "from braze.serving.pieces.custom_ops import direct_register_custom_op as r\n"
        "def f(x: torch.Tensor, n: int = 2) -> torch.Tensor:\n    return x * n\n"
        "r('t_fresh', f, dispatch_key='CPU')\nprint(torch.ops.braze.t_fresh(torch.ones(1)).item())"
    )
    done = processes.run(text)
    assert done.stdout.split() == ["2.0"], done.stderr


def test_names_have_one_spelling():
    add = torch.ops.aten.add
    assert spelled("aten::add") == spelled("aten.add") == spelled(add) == "aten::add"
    assert spelled("aten.add.Tensor") == spelled("aten::add.Tensor") == spelled(add.Tensor)
    assert names_of(add.Tensor) == ("aten::add", "aten::add.Tensor")
    assert names_of(add) == ("aten::add",)
    assert names_of(torch.add) == ()
    for wrong in ("add", "", "a::b::c", "a.b.c.d", 3):
        with pytest.raises(UserError, match="BZ7203"):
            spelled(wrong)


def test_a_mark_on_an_overload_is_of_that_overload_alone():
    direct_register_custom_op("t_marked", doubled, fake_impl=fake_doubled, dispatch_key="CPU")
    op = torch.ops.braze.t_marked
    assert not is_marked(op)
    assert mark_splitting_op(op.default) is op.default
    assert is_marked(op.default)
    assert not is_marked(torch.ops.aten.add.Tensor)
    mark_splitting_op("braze.t_marked")
    assert is_marked(op)


def test_what_an_operator_does_besides_is_done_as_often_as_it_is_called():
    """In braze's namespace, too, whose own operators only compute."""
    seen = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x + 1

    op = direct_register_custom_op("t_noting", noting, fake_impl=fake_doubled, dispatch_key="CPU")

    @braze.compile(fullgraph=True)
    def f(x):
        op(x * 3)
        return op(x) + op(x)

    x = torch.ones(2)
    for _ in range(2):
        seen.clear()
        torch.testing.assert_close(f(x), x * 2 + 2)
        assert seen == [6.0, 2.0, 2.0]


def test_a_graph_with_an_operator_that_writes_is_compiled():
    """It is no reason to run the graph as captured, also in braze's namespace."""
    direct_register_custom_op("t_writes", scaled, ["out"], dispatch_key="CPU")

    @braze.compile(fullgraph=True)
    def f(x):
        out = torch.empty_like(x)
        torch.ops.braze.t_writes(x + 1, out, 3.0, "layer.0")
        return out * 2

    before = trace.COUNTERS["graphs_run_as_captured"]
    x = torch.randn(4, 5)
    torch.testing.assert_close(f(x), (x + 1) * 6)
    assert trace.COUNTERS["graphs_run_as_captured"] == before
