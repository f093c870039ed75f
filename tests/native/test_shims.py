"""Convolutions and attention go past the dispatcher where nobody could tell, and else through PyTorch's function."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze import native
from braze.native import shims, torch_state

pytestmark = pytest.mark.skipif(not native.native_available, reason="the pure core calls PyTorch's functions")

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
CONV, CONV_BACKWARD = aten.convolution.default, aten.convolution_backward.default

X, W, B = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3), torch.randn(8)
LAST = X.to(memory_format=torch.channels_last)
VOLUME = torch.randn(1, 2, 4, 4, 4), torch.randn(3, 2, 2, 2, 2)
G = torch.randn(2, 8, 6, 6)
TAIL = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
Q, K, V = torch.randn(3, 2, 3, 5, 8).unbind()
OUT, LOGSUMEXP = FLASH(Q, K, V)
MASK = torch.randn(2, 1, 5, 5)

CASES = [
    (CONV, (X, W, None, *TAIL), {}),
    (CONV, (X, W, B, *TAIL), {}),
    (CONV, (LAST, W, B, *TAIL), {}),
    (CONV, (X, W[:, :2], B, (2, 1), (0, 1), (1, 2), False, (0, 0), 2), {}),
    (CONV, (X, W.transpose(0, 1), None, [2, 2], [1, 1], [1, 1], True, [1, 0], 1), {}),
    (CONV, (X[:0], W, B, *TAIL), {}),
    (CONV, (X, W.double().float()[:1], B[3:4], *TAIL), {}),
    (CONV, (*VOLUME, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1), {}),
    (
        CONV,
        (X[:, :, 0], W[:, :, 0], B, [1], [1], [1], False, [0], 1),
        {},
    ),  # inside, a view of one of two dimensions
    (CONV_BACKWARD, (G[:, :, 0], X[:, :, 0], W[:, :, 0], [8], [1], [1], [1], False, [0], 1, [True] * 3), {}),
    (CONV_BACKWARD, (G, X, W, [8], *TAIL, [True, True, True]), {}),
    (CONV_BACKWARD, (G, LAST, W, None, *TAIL, [False, True, False]), {}),
    (CONV_BACKWARD, (G, X, W, [0], *TAIL, (True, False, False)), {}),
    (FLASH, (Q, K, V), {}),
    (FLASH, (Q, K, V, 0.0, True), {"scale": 0.3}),
    (FLASH, (Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)), {"attn_mask": None, "scale": None}),
    (FLASH, (Q, K, V), {"attn_mask": MASK}),
    (FLASH_BACKWARD, (Q, Q, K, V, OUT, LOGSUMEXP, 0.0, False), {}),
    (FLASH_BACKWARD, (Q, Q, K, V, OUT, LOGSUMEXP, 0.0, False), {"attn_mask": MASK, "scale": 0.5}),
]


@pytest.fixture(autouse=True)
def bound() -> None:
    native.bind_torch()


def counted(op):
    """The call past the dispatcher, and the calls that PyTorch's own function got."""
    seen: list[str] = []

    def general(*args, **kwargs):
        seen.append(str(op))
        return op(*args, **kwargs)

    return native.shim(op._schema, general), seen


def told(result):
    """All that can be seen of results."""
    many = result if isinstance(result, tuple) else (result,)
    return [
        t if not isinstance(t, torch.Tensor)
        else (t.tolist(), t.stride(), t.dtype, t.storage_offset(), t._is_view(), t.requires_grad, t.is_inference())
        for t in many
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_plain_calls_are_eagers_and_go_past_the_dispatcher(case, mode):
    op, args, kwargs = CASES[case]
    shim, seen = counted(op)
    with mode():
        got, want = shim(*args, **kwargs), op(*args, **kwargs)
    assert type(got) is type(want)
    assert told(got) == told(want)
    assert not seen


@pytest.mark.parametrize("case", range(len(CASES)))
def test_nothing_is_held_and_nothing_let_go_of_twice(case):
    op, args, kwargs = CASES[case]
    shim, _ = counted(op)
    given = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]

    def uses():
        return [(sys.getrefcount(t), torch_state.storage_uses(t.untyped_storage())) for t in given]

    with torch.no_grad():
        shim(*args, **kwargs)
        before = uses()
        for _ in range(20):
            made = shim(*args, **kwargs)
        assert uses() == before
        want = op(*args, **kwargs)

    def held(results):
        many = results if isinstance(results, tuple) else (results,)
        return [
            torch_state.storage_uses(t.untyped_storage()) if isinstance(t, torch.Tensor) else t for t in many
        ]

    assert held(made) == held(want)


def test_where_the_dispatchers_keys_cannot_be_left_out_all_is_pytorchs(monkeypatch):
    monkeypatch.setattr(shims, "_leaves_autograd_out", lambda: False)
    shim, seen = counted(CONV)
    with torch.no_grad():
        assert torch.equal(shim(X, W, None, *TAIL), CONV(X, W, None, *TAIL))
    assert len(seen) == 1


def test_a_guard_that_leaves_nothing_out_is_noticed(monkeypatch):
    """Its functions are taken for another's: nothing that they do may be relied on."""
    address = torch_state.address_in
    monkeypatch.setattr(
        torch_state, "address_in", lambda path, name: 0 if "Guard" in name else address(path, name)
    )
    try:
        assert shims._leaves_autograd_out.__wrapped__() is False
    finally:
        monkeypatch.undo()
        assert shims._leaves_autograd_out.__wrapped__() is True


def test_a_function_that_refuses_what_pytorch_takes_is_not_tried_again(monkeypatch, capfd):
    """Here PyTorch takes what it refuses, since it is another function."""

    def general(*args, **kwargs):
        seen.append(args)
        return torch.ones(())

    seen: list[tuple] = []
    shim = native.shim(CONV._schema, general)
    bad = X, W.transpose(0, 1), None, *TAIL
    with torch.no_grad():
        assert torch.equal(shim(*bad), torch.ones(()))
        shim(X, W, None, *TAIL)
    assert len(seen) == 2


def test_a_parameter_is_plain():
    shim, seen = counted(CONV)
    with torch.no_grad():
        shim(X, torch.nn.Parameter(W), None, *TAIL)
    assert not seen


def test_a_mode_that_watches_operators_sees_the_call():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with torch.no_grad(), Names():
        counted(CONV)[0](X, W, None, *TAIL)
    assert "aten.convolution.default" in names


def test_where_gradients_are_on_pytorch_decides():
    shim, seen = counted(CONV)
    assert shim(X, torch.nn.Parameter(W), None, *TAIL).requires_grad
    assert len(seen) == 1


def test_a_tensor_of_another_kind_is_for_pytorch():
    shim, seen = counted(CONV)
    with torch.no_grad():
        assert shim(X.to("meta"), W.to("meta"), None, *TAIL).is_meta
        negated = torch.view_as_complex(torch.randn(8, 4, 3, 3, 2)).conj().imag
        assert torch.equal(shim(X, negated, None, *TAIL), CONV(X, negated.clone(), None, *TAIL))
    assert len(seen) == 2


@pytest.mark.parametrize(
    "args",
    [(X, W.transpose(0, 1), None, *TAIL), (X, W, B[:3], *TAIL), (X.double(), W, None, *TAIL)],
)
def test_what_fails_raises_eagers_error(args, capfd):
    with torch.no_grad():
        with pytest.raises(RuntimeError) as want:
            CONV(*args)
        with pytest.raises(RuntimeError) as got:
            counted(CONV)[0](*args)
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, W, None, *TAIL, 1), {}),
        ((X, W, None, *TAIL), {"groups": 1}),
        ((X, W, None, *TAIL), {"other": 1}),
        ((X, W, None), {}),
        ((X, W, None, *TAIL[:-1], "1"), {}),
        ((X, None, None, *TAIL), {}),
    ],
)
def test_arguments_that_pytorch_refuses_are_refused_by_it(args, kwargs):
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError)) as want:
        CONV(*args, **kwargs)
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError)) as got:
        counted(CONV)[0](*args, **kwargs)
    assert str(got.value) == str(want.value)


def test_arguments_that_pytorch_converts_are_pytorchs():
    shim, seen = counted(CONV)
    with torch.no_grad():
        assert torch.equal(shim(X, W, None, torch.Size([1, 1]), *TAIL[1:]), CONV(X, W, None, *TAIL))
    assert len(seen) == 1


def test_arguments_by_name_are_found():
    shim, seen = counted(CONV)
    with torch.no_grad():
        got = shim(
            X,
            W,
            groups=1,
            bias=B,
            stride=[1, 1],
            padding=[1, 1],
            dilation=[1, 1],
            transposed=False,
            output_padding=[0, 0],
        )
    assert torch.equal(got, CONV(X, W, B, *TAIL))
    assert not seen


@pytest.mark.parametrize("target", native.SHIMS)
def test_the_core_knows_each_operator_as_this_pytorch_declares_it(target):
    op = getattr(aten, target.split(".")[1]).default
    assert native.shim(op._schema, op) is not op


def test_an_operator_with_an_argument_more_is_pytorchs():
    class Changed:
        name = CONV._schema.name
        arguments = (*CONV._schema.arguments, CONV._schema.arguments[-1])

    assert native.shim(Changed, CONV) is CONV


# -- products that see their arguments in other layouts, and views for operators that read


A, M = torch.randn(2, 3, 8), torch.randn(4, 8)
LAYOUTS = {
    "mm": ((((6, 8), (8, 1), 0), ((8, 4), (1, 8), 0)), (A, M)),
    "mm from within": ((((2, 8), (8, 1), 16), None), (A, M.t())),
    "mm of one row again and again": ((((5, 8), (0, 1), 8), None), (A, M.t())),
    "mm of a part": ((None, ((7, 4), (1, 8), 1)), (torch.randn(3, 7), M)),
    "addmm": ((None, ((6, 8), (8, 1), 0), ((8, 4), (1, 8), 0)), (torch.randn(4), A, M)),
    "bmm": ((None, ((2, 8, 4), (0, 1, 8), 0)), (A, M)),
    "baddbmm": (
        (((2, 3, 4), (0, 0, 1), 0), None, ((2, 8, 4), (0, 1, 8), 0)),
        (torch.randn(4), A, M),
    ),
}


def laid_out(case, general=None):
    layouts, args = LAYOUTS[case]
    name = case.split()[0]
    function = getattr(torch, name)
    seen = [
        a if row is None else a.as_strided(row[0], row[1], a.storage_offset() + row[2])
        for a, row in zip(args, layouts, strict=True)
    ]
    return native.out_product(name, general or function, layouts), args, function(*seen)


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_product_sees_its_arguments_in_other_layouts(case):
    def never(*args, **kwargs):
        raise AssertionError("PyTorch's own was called")

    product, args, want = laid_out(case, never)
    given = [torch.nn.Parameter(a) for a in args]
    with torch.no_grad():
        product(*given, out=(out := torch.empty_like(want)))
        assert torch.equal(out, want)
        held = [torch_state.storage_uses(a.untyped_storage()) for a in given]
        for _ in range(20):
            product(*given, out=out)
        assert held == [torch_state.storage_uses(a.untyped_storage()) for a in given]


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_product_that_is_watched_sees_them_so_too(case):
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    product, args, want = laid_out(case)
    names: list[str] = []
    out = torch.empty_like(want)
    with torch.no_grad(), Names():
        product(*args, out=out)
    assert torch.equal(out, want)
    assert names[-1] == f"aten.{case.split()[0]}.out" and "aten.as_strided.default" in names


def test_no_gradient_is_recorded_of_a_parameter_where_gradients_are_on():
    product, args, want = laid_out("mm")
    out = torch.empty_like(want)
    product(*map(torch.nn.Parameter, args), out=out)
    assert not out.requires_grad and torch.equal(out, want)


def test_a_product_of_views_that_fails_raises_eagers_error(capfd):
    product = native.out_product("mm", torch.mm, (((6, 8), (8, 1), 0), None))
    held = torch_state.storage_uses(A.untyped_storage())
    with torch.no_grad(), pytest.raises(RuntimeError, match="cannot be multiplied"):
        product(A, A[0], out=torch.empty(6, 8))
    assert torch_state.storage_uses(A.untyped_storage()) == held


@pytest.mark.parametrize(
    "layouts",
    [
        (),
        (None,),
        (None, 3),
        (None, ((1,), (1, 2), 0)),
        (None, (("a",), (1,), 0)),
        (None, ((1,) * 17, (1,) * 17, 0)),
    ],
)
def test_layouts_that_are_none_are_refused(layouts):
    core = sys.modules["braze.native._native"]
    with pytest.raises((TypeError, ValueError)):
        core.OutProduct(2, len, torch.mm, layouts)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "layout", [((6, 8), (8, 1), 0), ((3, 2), (1, 0), 5), ((), (), 3), ((0, 4), (4, 1), 0)]
)
def test_a_view_for_an_operator_is_as_strided_but_known_as_none(layout, mode):
    view = native.view(layout)
    part = A[1]
    want = (
        part.as_strided(layout[0], layout[1], part.storage_offset() + layout[2])
        if layout[0] != (6, 8)
        else None
    )
    base = A if want is None else part
    with mode():
        made = view(base)
    want = A.view(6, 8) if want is None else want
    assert torch.equal(made, want) and made.stride() == want.stride()
    assert made.data_ptr() == want.data_ptr() and made.storage_offset() == want.storage_offset()
    assert not made._is_view() and not made.requires_grad


def test_a_view_of_what_is_not_plain_is_pytorchs():
    view = native.view(((4,), (1,), 0))
    with torch.no_grad():
        assert view(torch.empty(4, device="meta")).is_meta
        negated = torch.view_as_complex(torch.randn(4, 2)).conj().imag
        assert torch.equal(native.view(((4,), (2,), 0))(negated), negated)
    assert view(torch.ones(2, 2, requires_grad=True)).requires_grad is False
