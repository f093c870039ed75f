"""A call that eager has no kernel for is refused, whatever metadata and kernels of ours would make of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.capture.graph import recorder
from braze.graph.fakes import missing_kernels
from braze.graph.fakes.missing_kernels import missing_kernel

#: calls of a tensor of each type
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "addcmul_": lambda x: x.clone().addcmul_(x, x),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=1),
    "round_": lambda x: x.clone().round_(),
    "threshold": lambda x: F.threshold(x, 1, 1),
    "threshold_": lambda x: F.threshold_(x.clone(), 1, 1),
    "log_softmax": lambda x: x.log_softmax(1),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "soft margin": lambda x: F.multilabel_soft_margin_loss(x, x),
    "max_pool1d": lambda x: torch.max_pool1d(x, 1),
    "gelu": lambda x: F.gelu(x),
    "erfinv": lambda x: torch.special.erfinv(x),
    "remainder": lambda x: x % x,
    "lerp": lambda x: torch.lerp(x, x, x),
    "heaviside": lambda x: torch.heaviside(x, torch.ones(3)),
    "cross": lambda x: torch.linalg.cross(x, x),
    "gcd": lambda x: torch.gcd(x, x),
    "cumsum into": lambda x: torch.cummax(x, 0).values,
    "in a list": lambda x: torch._foreach_addcmul([x, x], [x, x], [x, x]),
    "of an overload": lambda x: torch.ops.aten.glu(torch.cat([x, x], 1)),
}
TYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64, torch.float32]


def said(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", CALLS)
def test_what_eager_has_no_kernel_for_is_refused_in_its_words(name: str) -> None:
    for dtype in TYPES:
        braze.reset()
        x = torch.ones(4, 3, dtype=dtype)
        found, wanted = said(braze.compile(CALLS[name]), x), said(CALLS[name], x)
        assert type(found) is type(wanted), (dtype, found, wanted)
        if type(wanted) is str:
            assert found == wanted, dtype


def test_a_handler_of_the_program_sees_the_error() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x.addcmul_(x, x)
        except NotImplementedError as error:
            return x + 1, str(error)

    for x in (torch.ones(3, dtype=torch.bool), torch.ones(3)):
        assert str(braze.compile(f)(x.clone())) == str(f(x.clone()))


def test_a_call_is_tried_once_for_its_types_and_never_at_its_size() -> None:
    calls = []

    def tried(*args: Any, **kwargs: Any) -> Any:
        calls.append([tuple(a.shape) for a in args if isinstance(a, torch.Tensor)])
        return torch.addcmul(*args, **kwargs)

    # a function that counts stands in for one of PyTorch's
    is_tried, missing_kernels._is_tried = missing_kernels._is_tried, lambda func: True
    try:
        with torch._subclasses.FakeTensorMode():
            for n in (5, 1000, 1 << 40):
                x = torch.empty(n, 0 if n == 5 else 1, dtype=torch.bool)
                missing_kernel(tried, (x, x, x), {})
    finally:
        missing_kernels._is_tried = is_tried
    assert calls == [[(2, 0)] * 3, [(2, 1)] * 3]


def test_what_is_not_known_to_compute_alone_is_not_tried() -> None:
    x = torch.ones(2, dtype=torch.bool)
    for function in (print, torch.save, torch.Tensor.numpy, lambda x: 1 / 0):
        assert missing_kernel(function, (x,), {}) is None
    assert isinstance(missing_kernel(operator.mod, (x, x), {}), NotImplementedError)


@pytest.mark.parametrize(
    "follows",
    [torch.lstm, torch.rnn_relu, torch.embedding_bag, torch.ctc_loss, torch.max_pool2d, torch.grid_sampler, F.nll_loss, torch.gather, torch.linalg.lu_solve],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_what_follows_indices_lengths_or_weights_is_not_tried(follows: Callable[..., Any]) -> None:
    """On small tensors made for their types alone it reads beyond them."""
    assert not missing_kernels._is_tried(follows)


def test_a_kernel_that_the_program_registers_is_called_as_often_as_in_eager() -> None:
    calls = []

    def counted(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1) -> torch.Tensor:
        calls.append(tuple(x.shape))
        return x + a * b

    library = torch.library.Library("aten", "IMPL")
    library.impl("addcmul", counted, "CPU")
    try:
        x = torch.ones(5)
        braze.compile(lambda x: torch.addcmul(x, x, x))(x)
    finally:
        library._destroy()
        braze.reset()
    assert calls == [(5,)]


def test_what_has_a_kernel_only_where_a_gradient_is_asked_for_runs_with_one() -> None:
    f = lambda x: torch.max_pool1d(x, 1)
    for wants in (True, False):
        x = torch.ones(2, 3, dtype=torch.float16, requires_grad=wants)
        assert type(said(braze.compile(f), x)) is type(said(f, x)), wants


def test_under_a_transform_operators_are_what_its_rules_make_of_them() -> None:
    f = lambda x: torch.func.vmap(lambda row: torch.addcmul(row, row, row))(x)
    for dtype in (torch.bool, torch.float32):
        x = torch.ones(2, 3, dtype=dtype)
        assert type(said(braze.compile(f), x)) is type(said(f, x)), dtype


def test_warnings_of_a_call_come_as_in_eager(recwarn: pytest.WarningsRecorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x, x[:, :1])

    f(torch.ones(4, 3))
    wanted = [str(w.message) for w in recwarn]
    recwarn.clear()
    braze.compile(f)(torch.ones(4, 3))
    assert wanted
    assert {str(w.message) for w in recwarn} == set(wanted)


def test_of_a_call_that_was_accepted_it_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def listening(func: Any, name: str, args: Any, kwargs: Any) -> Exception | None:
        asked.append(name)
        return missing_kernels.refusal(func, name, args, kwargs)

    monkeypatch.setattr(recorder, "refusal", listening)
    x = torch.ones(7, 11)
    with torch.no_grad():
        for _ in range(2):
            braze.compile(lambda x: torch.lerp(x, x, x).log_softmax(1), backend="eager")(x)
        assert sorted(asked) == ["lerp", "log_softmax"]
        assert (
            type(said(braze.compile(CALLS["lerp"], backend="eager"), x.bool())) is str
        )  # of other types, it is
    assert asked[2:]


def test_a_call_while_the_program_has_kernels_is_not_taken_for_accepted() -> None:
    x = torch.ones(5, 17, dtype=torch.bool)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("addcmul", lambda x, a, b, *, value=1: x | (a & b), "CPU")
        assert torch.equal(braze.compile(CALLS["addcmul"], backend="eager")(x), x)
    finally:
        library._destroy()
    assert said(braze.compile(CALLS["addcmul"]), x) == said(CALLS["addcmul"], x)
