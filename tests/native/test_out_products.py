"""Matrix products into given memory go past the dispatcher where nobody could tell, and else through PyTorch's function."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze import native
from tests.helpers import logged

pytestmark = pytest.mark.skipif(not native.native_available, reason="the pure core calls PyTorch's functions")

X, W, B = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
CASES = {"mm": (X, W), "addmm": (B, X, W), "bmm": (X[None], W[None]), "baddbmm": (B, X[None], W[None])}


@pytest.fixture(autouse=True)
def bound() -> None:
    native.bind_torch()


def counted(name: str):
    """The product, and the calls that PyTorch's own function got."""
    seen: list[str] = []

    def general(*args, **kwargs):
        seen.append(name)
        return getattr(torch, name)(*args, **kwargs)

    return native.out_product(name, general), seen


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_plain_products_are_eagers_and_go_past_the_dispatcher(name, mode):
    product, seen = counted(name)
    want = getattr(torch, name)(*CASES[name])
    with mode():
        out = torch.empty_like(want)
        assert product(*CASES[name], out=out) is out
    assert torch.equal(out, want)
    assert not seen


@pytest.mark.parametrize("sizes", [(0, 6, 5), (1, 1, 1), (4, 0, 5)])
def test_empty_and_single_elements(sizes):
    m, k, n = sizes
    product, seen = counted("mm")
    a, b, out = torch.randn(m, k), torch.randn(n, k).t(), torch.full((m, n), 7.0)
    with torch.no_grad():
        product(a, b, out=out)
    assert torch.equal(out, a @ b)
    assert not seen


def test_a_lazily_negated_tensor_is_for_pytorch():
    product, seen = counted("mm")
    negated = torch.randn(4, 6, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    with torch.no_grad():
        out = product(negated, W, out=torch.empty(4, 5))
    assert torch.allclose(out, negated.clone() @ W)
    assert seen == ["mm"]


def test_a_mode_that_watches_operators_sees_the_product():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with torch.no_grad(), Names():
        counted("mm")[0](X, W, out=torch.empty(4, 5))
    assert "aten.mm.out" in names


def test_where_gradients_are_on_pytorch_decides():
    product, seen = counted("mm")
    product(X, W, out=torch.empty(4, 5))
    assert seen == ["mm"]


def test_what_fails_raises_eagers_error(capfd):
    product, _ = counted("mm")
    with torch.no_grad(), pytest.raises(RuntimeError, match="cannot be multiplied"):
        product(X, X, out=torch.empty(4, 5))


def test_other_arguments_are_pytorchs():
    product, seen = counted("addmm")
    with torch.no_grad():
        assert torch.equal(product(B, X, W), torch.addmm(B, X, W))
        out = product(B, X, W, beta=2, out=torch.empty(4, 5))
    assert torch.equal(out, torch.addmm(B, X, W, beta=2))
    assert seen == ["addmm", "addmm"]


@pytest.mark.parametrize("cast", [False, True])
def test_a_graph_of_turned_products_alone_runs_without_gradients_and_casts(cast):
    """The gradient ends between the product and the result, so that the graph itself has none."""

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            return (x @ x.mT).detach().exp2()

    x = torch.randn(2, 4, 2, requires_grad=True)[..., ::2]
    compiled = braze.compile(f)
    with logged() as said, torch.autocast("cpu", torch.bfloat16, enabled=cast):
        torch.testing.assert_close(compiled(x), f(x))
    assert not said
