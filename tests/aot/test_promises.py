"""A layout that is not the promised one is found: before a graph is used, and in each call where stages are verified."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import braze
from braze.aot.calls import promises, rebuild
from braze.aot.calls.promises import Known, require_promised
from braze.aot.joint import outputs
from braze.lower.stage.program import GraphLowering
from braze.support.errors import InternalError
from braze.symbolic.expr import contiguous_strides
from tests.aot.recording import compile_aot


def copied_and_viewed(x, y):
    v = x.neg()
    v.copy_(y)
    return v, v[:1]


def columns(n):
    return torch.arange(3.0 * n).view(3, n).t(), torch.arange(float(n)).view(n, 1).expand(n, 3)


def rows(n):
    return torch.arange(3.0 * n).view(3, n).t(), torch.arange(3.0 * n).view(n, 3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_is_left_with_other_strides_is_found_when_the_graph_is_made(dynamic, monkeypatch):
    monkeypatch.setattr(outputs.Outputs, "_laid_out", lambda self, node, like, mode: node)
    compiled = braze.compile(copied_and_viewed, dynamic=dynamic, backend="aot_eager", options={"verify": 1})
    with pytest.raises(InternalError, match="BZ9026"):
        compiled(*columns(4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_that_are_taken_for_others_are_found_in_the_call(dynamic, monkeypatch):
    """The mistake is in what both the graph and its promises are made with."""
    compiled = braze.compile(copied_and_viewed, dynamic=dynamic, backend="aot_eager", options={"verify": 2})
    with monkeypatch.context() as patch:
        patch.setattr("braze.aot.calls.promises._alike", lambda *_: True)
        patch.setattr(outputs.Outputs, "_laid_out", lambda self, node, like, mode: node)
        compiled(*rows(4))
    with pytest.raises(InternalError, match="BZ9026"):
        compiled(*rows(5 if dynamic else 4))


@pytest.mark.parametrize("change", [dict(strides=(3, 1)), dict(sizes=(4, 2)), dict(dtype=torch.float64)])
def test_each_part_of_a_promise_is_compared(change):
    part, _ = compile_aot(lambda x, y: (x * y).t(), [torch.randn(3, 4), torch.randn(3, 4)])
    require_promised(part)
    (role,) = part.forward.meta["output_roles"]
    broken = dataclasses.replace(role, spec=dataclasses.replace(role.spec, **change))
    part.forward.meta["output_roles"] = (broken,)
    with pytest.raises(InternalError, match="BZ9026"):
        require_promised(part)


@pytest.mark.parametrize("fault", ["copied", "moved", "turned"])
def test_a_view_that_is_not_where_it_should_be_is_found(fault, monkeypatch):
    wrong = {
        "copied": lambda view: view.clone(),
        "moved": lambda view: view.as_strided(view.shape, view.stride(), view.storage_offset() + 1),
        "turned": lambda view: view.as_strided(view.shape, view.stride()[::-1]),
    }[fault]
    build = rebuild._viewer
    monkeypatch.setattr(rebuild, "_viewer", lambda *spec: lambda *given: wrong(build(*spec)(*given)))
    compiled = braze.compile(lambda x: x[:2, 1:].t(), backend="aot_eager", options={"verify": 2})
    with pytest.raises(InternalError, match="BZ9026"):
        compiled(torch.randn(4, 4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_kernels_give_is_held_against_the_promise(dynamic, monkeypatch):
    made = GraphLowering.output_view
    monkeypatch.setattr(
        GraphLowering, "output_view", lambda self, x, strides: made(self, x, contiguous_strides(x.sizes))
    )
    compiled = braze.compile(lambda x, y: x + y, dynamic=dynamic, options={"verify": 2})
    with pytest.raises(InternalError, match="BZ9026"):
        compiled(*columns(4))


def test_a_size_that_is_decided_about_after_a_result_is_promised():
    """What a triangle is cut from has one column, as its rule asks; its promise said what the diagonal said."""

    def fn(x):
        v = x.diagonal(3, -2, -1).isfinite()
        v.tril_()
        return v

    compiled = braze.compile(fn, backend="aot_eager", options={"verify": 2})
    for n in (5, 17, 9):
        x = torch.rand(2, 3, 1, n)
        assert torch.equal(compiled(x), fn(x))


def test_a_size_that_is_decided_about_by_a_later_result_than_the_promised_one():
    """How a copy of the diagonal lies depends on whether it has as many rows as its other dim steps over."""

    def fn(x):
        v = x.clip(max=1)
        return v.clone().permute(2, 1, 0), v.diagonal(0, -2, -1)

    compiled = braze.compile(fn, backend="aot_eager", dynamic=True, options={"verify": 2})
    for n, m in ((3, 2), (4, 2), (4, 3)):
        x = torch.rand(n, m, 1) < 0.5
        for found, wanted in zip(compiled(x), fn(x), strict=True):
            assert torch.equal(found, wanted)
            assert found.stride() == wanted.stride()


def test_a_symbol_that_was_found_to_be_another_number_is_that_in_both_formulas():
    assert promises._same("s0 * s1", "2*s1", Known({"s0": "2"}))
    assert promises._same("s0", "s1", Known({"s0": "s1"}))
    assert not promises._same("s0 * s1", "3*s1", Known({"s0": "2"}))
    assert not promises._same("s0", "s1", Known({"s2": "s1"}))


def test_a_view_of_an_input_that_begins_within_memory_is_promised_there():
    """An input with a history, of symbolic sizes."""
    compiled = braze.compile(lambda x: x.view_as(x), dynamic=True, backend="aot_eager", options={"verify": 2})
    x = torch.rand(5, requires_grad=True).neg()[-1:]
    assert compiled(x).storage_offset() == 4


def test_an_empty_result_of_a_written_argument_takes_any_strides():
    def fn(x):
        x[...] = x.floor()
        return x.clone()

    compiled = braze.compile(fn, backend="aot_eager", options={"verify": 2})
    for size in ((4, 4, 4), (0, 6, 0)):
        x = (torch.rand(size, requires_grad=True) * 3).movedim(-1, 0)
        assert torch.equal(compiled(x.clone()), fn(x.clone()))
        assert torch.equal(compiled(x), fn(x))


def test_a_promise_may_be_multiplied_out():
    """Of a pad over an expanded tensor of varying sizes: PyTorch says ``s1 * (s2 + 1)`` in one place and ``s1*s2 + s1`` in the other."""

    def fn(x):
        v = torch.nn.functional.pad(x, (0, 1, 2, 0), value=3)
        return v.view_as(v)

    compiled = braze.compile(fn, dynamic=True, backend="aot_eager", options={"verify": 2})
    for size in ((1, 3, 6, 8), (1, 2, 5, 4)):
        x = torch.rand(size).expand(4, *size[1:]).requires_grad_()
        assert torch.equal(compiled(x), fn(x)) and compiled(x).stride() == fn(x).stride()


@pytest.mark.parametrize(
    ("other", "alike"), [("s0*s1 + s0", True), ("s0*s1 + s1", False), ("s0*s1", False), (6, False)]
)
def test_formulas_of_sizes_are_compared_by_what_they_give(other, alike):
    assert promises._same("s0 * (1 + s1)", other) is alike


def test_formulas_are_compared_where_the_graph_may_be_called():
    known = Known(traced={"s0": 8, "s1": 6}, guards=("(s0 % (4)) == 0", "(s1 != s0)"))
    assert promises._same("s0", "4 * (s0 // 4)", known)
    assert promises._same("s0 * s1 // 4", "s1 * (s0 // 4)", known)
    assert not promises._same("s0", "8 * (s0 // 8)", known)
    assert not promises._same("s1", "4 * (s1 // 4)", known)
    assert not promises._same("s0", "4 * (s0 // 4)")


def test_formulas_of_sizes_that_no_call_has_are_not_held_for_alike():
    assert promises._same("s0 * (s1 // (s0 // 4))", "(s1 // (s0 // 4)) * s0")
    assert not promises._same("s0", "2 * s0", Known(traced={"s0": 8}, guards=("s0 == 3",)))


def test_what_was_written_through_rows_of_four_has_its_own_size():
    """A guard says that it has it: as PyTorch writes the size of the way back, it is that of sizes that four divides alone."""

    def fn(x):
        rows = x.view(-1, 4)
        rows.unflatten(-1, (1, -1)).scatter_(1, torch.zeros(rows.shape[0], 1, 4, dtype=torch.int64), 0)
        return rows + 1

    compiled = braze.compile(fn, options={"verify": 2})
    for n in (8, 16, 12):
        x, y = torch.ones(n, n), torch.ones(n, n)
        assert torch.equal(compiled(x), fn(y))
        assert torch.equal(x, y)
