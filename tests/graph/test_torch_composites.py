"""What PyTorch takes apart in Python for sizes that are symbols comes to what its kernels do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.graph.fakes import fakes, torch_composites
from tests.helpers import logged

WAYS = {
    "captured": torch_composites.composites_in_python,
    "differentiated": torch_composites.python_composites,
}
MODES = {"grad": torch.enable_grad, "no grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("within", MODES)
@pytest.mark.parametrize("name", WAYS)
def test_dropout_that_drops_nothing_gives_its_argument(name: str, within: str) -> None:
    mode = fakes.new_mode(dynamic=True)
    with MODES[within]():
        x = mode.fake(torch.randn(5, 3), symbolic_dims={0}, source="x")
        with mode, WAYS[name]():
            assert F.dropout(x, 0.5, False) is x and F.dropout(x, 0.0, True) is x
            dropped = F.dropout(x, 0.5, True)
    assert dropped is not x and str(dropped.shape[0]) == str(x.shape[0])


def test_other_compilers_dropout_is_as_it_was_behind_it() -> None:
    cache = torch.ops.aten.dropout.default._dispatch_cache
    before = dict(cache)
    with torch_composites.python_composites(), torch_composites.composites_in_python():
        pass
    assert cache == before
    with contextlib.suppress(ValueError), torch_composites.composites_in_python():
        raise ValueError
    assert cache == before


def written(x: torch.Tensor) -> tuple[object, ...]:
    y = x * 2
    z = F.dropout(y, 0.5, False)
    z.add_(1)
    return z is y, y, z


def given(x: torch.Tensor) -> tuple[object, ...]:
    z = F.dropout(x, 0.5, False)
    return z is x, z


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("program", [written, given])
@pytest.mark.parametrize("grad", [True, False])
def test_a_write_to_what_was_not_dropped_reaches_its_argument_at_every_size(
    program: Callable[..., tuple[object, ...]], backend: str, grad: bool
) -> None:
    braze.reset()
    compiled = braze.compile(program, backend=backend, dynamic=True)
    with logged() as messages:
        for rows in (5, 7):
            x = torch.randn(rows, 3, requires_grad=grad)
            made, expected = compiled(x), program(x)
            assert made[0] is expected[0] is True
            for mine, its in zip(made[1:], expected[1:], strict=True):
                assert isinstance(mine, torch.Tensor) and (mine is x) is (its is x)
                torch.testing.assert_close(mine, its)
    assert not messages


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_dropout_of_everything_draws_nothing(backend: str, grad: bool, dynamic: bool) -> None:
    """In eager it is a product with zero, which makes no number of what is infinite."""
    braze.reset()
    compiled = braze.compile(
        lambda x: torch.dropout(x, 1.0, True) * 2,
        backend=backend,
        dynamic=dynamic,
        options={"fallback_random": True},
    )
    x = torch.tensor([1.0, -2.0, torch.inf] * 100, requires_grad=grad)
    torch.manual_seed(0)
    first = torch.rand(())
    torch.manual_seed(0)
    made = compiled(x)
    assert torch.rand(()) == first
    torch.testing.assert_close(made, torch.dropout(x, 1.0, True) * 2, equal_nan=True)
    if grad:
        made.sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0.0] * 300
