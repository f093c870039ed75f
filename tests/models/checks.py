"""What is asked of every model: one graph, the results of eager, no second compile, another batch size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

import braze
from braze.inspect.explain import Explanation, observe
from tests.helpers import as_double, tensors
from tests.models.exceptions import EXCEPTIONS


def call(model: Any, inputs: dict[str, Any]) -> Any:
    """timm's models take the picture alone."""
    return model(inputs["x"]) if "x" in inputs else model(**inputs)


@contextlib.contextmanager
def as_under_a_compiler(case: Any) -> Iterator[None]:
    """Eager in the way that a model takes when it is compiled."""
    with mock.patch.object(
        torch.compiler, "is_compiling", return_value=getattr(case, "minds_compilers", False)
    ):
        yield


def options_of(case: Any) -> dict[str, Any]:
    """What a model is compiled with to be one graph."""
    on = getattr(case, "decided_by_data", False)
    return {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True} if on else {}


def check_capture(case: Any) -> None:
    """Through capture alone, results are the same to the last bit."""
    if case.missing():
        pytest.skip(case.missing())
    model, first, second = case.make(), case.inputs(2), case.inputs(3)
    compiled = braze.compile(model, backend="eager", options=options_of(case))
    results: list[Any] = []
    with torch.no_grad():
        with as_under_a_compiler(case):
            expected, wider = call(model, first), call(model, second)
        found = observe(lambda: results.append(call(compiled, first)), case.name)
        again = observe(lambda: results.append(call(compiled, first)), case.name)
        other = observe(lambda: results.append(call(compiled, second)), case.name)
    for result, wanted in zip(results, (expected, expected, wider), strict=True):
        same(result, wanted, getattr(case, "rounding", 0.0))
    one = not found.breaks and len(found.graphs) == 1
    if case.name in EXCEPTIONS:
        assert not one, f"{case.name} is one graph: remove its line in exceptions.py"
        return
    assert one, [(b.code, b.reason, b.place) for b in found.breaks]
    assert (again.graphs, again.recompiles) == ((), ())
    assert not other.breaks and len(other.graphs) <= 1, [(b.code, b.reason, b.place) for b in other.breaks]


def same(ours: Any, theirs: Any, rounding: float) -> None:
    """The same kinds of results, with the same tensors in them."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
    mine, wanted = tensors(ours), tensors(theirs)
    assert len(mine) == len(wanted) > 0
    for a, b in zip(mine, wanted, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=rounding, atol=rounding, equal_nan=True)


def check_kernels(case: Any) -> Explanation:
    """With braze's own kernels, results are no further from float64 than eager's."""
    if case.missing():
        pytest.skip(case.missing())
    model, inputs = case.make(), case.inputs(2)
    compiled = braze.compile(model, options=options_of(case))
    results: list[Any] = []
    with torch.no_grad():
        with as_under_a_compiler(case):
            theirs = tensors(call(model, inputs))
            exact = tensors(call(as_double(model), as_double(inputs)))
        found = observe(lambda: results.append(call(compiled, inputs)), case.name)
    ours = tensors(results[0])
    assert len(ours) == len(theirs) == len(exact) > 0
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if not b.is_floating_point():
            assert torch.equal(a, b)
            continue
        finite = b.isfinite()
        assert torch.equal(a.isfinite(), finite)
        a, b, c = a[finite].double(), b[finite].double(), c[finite].double()
        if not c.numel():
            continue
        room = 8 * torch.finfo(theirs[0].dtype).eps * float(c.abs().max())
        error, eager = (a - c).square().mean().sqrt(), (b - c).square().mean().sqrt()
        assert float(error) <= 1.5 * float(eager) + room
    return found
