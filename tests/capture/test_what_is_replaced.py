"""Functions and methods of libraries that the program replaces after the first call, also those that others call inside, are seen."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import Run

import braze


def sevens(*args: Any, **kwargs: Any) -> torch.Tensor:
    """What is put in the place of a function."""
    return torch.full((4, 4), 7.0)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return bool(a == b)


LINEAR = torch.nn.Linear(4, 4)
ATTENTION = torch.nn.MultiheadAttention(4, 2).eval()


def with_a_pause(x: torch.Tensor) -> torch.Tensor:
    with Pause():
        return x + Base.entered


class Base:
    """Counts how often it is entered."""

    entered = 0

    def __enter__(self) -> None:
        Base.entered += 1

    def __exit__(self, *error: object) -> None:
        pass


class Pause(Base):
    """Enters as its base does."""


def one_or_two(x: torch.Tensor) -> torch.Tensor:
    return x + (1 if torch.ones(()) else 2)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 1
    return y


CASES: list[tuple[str, Callable[..., Any], Any, str, Any]] = [
    ("within a layer's function", lambda x: F.relu(x) + 1, torch, "relu", sevens),
    ("within a loss", lambda x: F.cross_entropy(x, x.argmax(1)), F._Reduction, "get_enum", lambda reduction: 0),
    ("within attention", lambda x: ATTENTION(x, x, x)[0], F, "_in_projection_packed", lambda *args: (torch.ones(4, 1, 4),) * 3),
    ("of a module that has no such name", lambda x: torch.einsum("ij,jk->ik", x, x), torch._VF, "einsum", sevens),
    ("behind a method", lambda x: x.norm() + 1, torch, "norm", sevens),
    ("a method by a method of tensors'", lambda x: F.softmax(x, 0), torch.Tensor, "softmax", sevens),
    ("a method in Python", lambda x: x.split(2)[0] + 1, torch.Tensor, "split", lambda self, n: (self * 0,)),
    ("a method in C", lambda x: x.relu() + 1, torch.Tensor, "relu", sevens),
    ("an operator", lambda x: x + 1, torch.Tensor, "__add__", sevens),
    ("an operator of the second operand", lambda x: 1 - x, torch.Tensor, "__rsub__", sevens),
    ("a sign", lambda x: -x, torch.Tensor, "__neg__", sevens),
    ("a comparison", lambda x: x == 1, torch.Tensor, "__eq__", sevens),
    ("a comparison with nothing", lambda x: (x == None, x + 1), torch.Tensor, "__eq__", lambda self, other: 5),  # noqa: E711
    ("an item", lambda x: x[0] + 1, torch.Tensor, "__getitem__", sevens),
    ("an assignment", in_place, torch.Tensor, "__setitem__", lambda self, key, value: None),
    ("a length", lambda x: x * len(x), torch.Tensor, "__len__", lambda self: 9),
    ("an iteration", lambda x: [row + 1 for row in x][0], torch.Tensor, "__iter__", lambda self: iter([self * 0])),
    ("a truth", one_or_two, torch.Tensor, "__bool__", lambda self: False),
    ("a fact", lambda x: x + x.dim(), torch.Tensor, "dim", lambda self: 77),
    ("a field", lambda x: x + x.is_cuda, torch.Tensor, "is_cuda", property(lambda self: 5)),
    ("a field by a plain value", lambda x: x.T + 0, torch.Tensor, "T", 5),
    ("a name that there was not", lambda x: x.seven() if hasattr(x, "seven") else x + 1, torch.Tensor, "seven", sevens),
    ("what calls a module", lambda x: LINEAR(x) + 1, torch.nn.Module, "_call_impl", sevens),
    ("what calls a module of a class", lambda x: LINEAR(x) + 1, torch.nn.Linear, "_call_impl", sevens),
    ("what calls one module", lambda x: LINEAR(x) + 1, LINEAR, "_call_impl", sevens),
    ("a module's call", lambda x: LINEAR(x) + 1, torch.nn.Module, "__call__", sevens),
    ("what is entered", with_a_pause, Pause, "__enter__", lambda self: None),
    ("within the standard library", lambda x: (x + 1, json.dumps({"a": 1})), json.JSONEncoder, "encode", lambda *args: "no"),
    ("within a signature", lambda x: (x + 1, str(inspect.signature(sevens))), inspect, "_signature_from_callable", lambda *args, **kwargs: 7),
    ("within a pattern", lambda x: (x + 1, re.sub("a", "b", "ab")), re, "_compile", lambda *args: re.Pattern.__call__),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_the_program_replaces_after_the_first_call_is_seen(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fn, owner, name, value = case
    x, compiled = torch.randn(4, 4), braze.compile(fn, backend="aot_eager")

    def outcome(call: Any) -> Any:
        try:
            return call(x)
        except Exception as error:
            return type(error)

    Base.entered = 0
    before = outcome(fn)
    Base.entered = 0
    assert same(outcome(compiled), before)
    Base.entered = 0
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value, raising=False)
        wanted = outcome(fn)
        Base.entered = 0
        found = outcome(compiled)
    assert same(found, wanted)
    Base.entered = 0
    assert same(outcome(compiled), before)


def test_what_replaces_an_inner_function_runs_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only while it is traced: the outer function is no longer one node of the graph."""
    calls, plain = [], torch.relu
    monkeypatch.setattr(torch, "relu", lambda x: (calls.append(len(calls)), plain(x))[1])
    compiled = braze.compile(F.relu, backend="aot_eager")
    x = torch.randn(4)
    for _ in range(3):
        assert torch.equal(compiled(x), plain(x))
    assert calls == [0, 1, 2]


def test_a_tensor_that_is_called_self_is_an_input_as_any_other() -> None:
    compiled = braze.compile(lambda self: self * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


# -- kernels that the program registers for ATen's operators


@contextlib.contextmanager
def registered(operator: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """With a kernel of the program's."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(operator, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def filled(value: float) -> Callable[..., torch.Tensor]:
    """A kernel that gives one number everywhere, in the shape of the largest that it is given."""
    return lambda *args, **kwargs: max(args[:2], key=torch.numel).clone().fill_(value)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize(
    ("operator", "fn"),
    [
        ("sigmoid", torch.sigmoid),
        ("mm", lambda x: x @ x),
        ("bmm", lambda x: torch.einsum("bij,bjk->bik", x[None], x[None])),
        ("addmm", lambda x: F.linear(x, x, x[0])),
        ("baddbmm", lambda x: torch.baddbmm(x[None], x[None], x[None])),
        ("convolution", lambda x: F.conv2d(x[None, None], x[None, None, :3, :3], padding=1)),
    ],
)
def test_a_kernel_that_comes_goes_and_comes_again_is_called_while_it_is_there(
    operator: str, fn: Callable[..., Any]
) -> None:
    """Also below what PyTorch makes of it, and by a function that was compiled while it was gone."""
    x = torch.arange(16.0).view(4, 4)
    plain = fn(x)
    for value in (7.0, 8.0):
        compiled = braze.compile(fn)
        assert torch.allclose(compiled(x), plain)
        with registered(operator, filled(value)):
            assert torch.equal(compiled(x), torch.full_like(plain, value))
        assert torch.allclose(compiled(x), plain)
    braze.reset()


#: what a function may ask of a class's dict
OF_CLASS_DICTS = [
    "vars(K)['v']", "K.__dict__.get('v')", "K.__dict__.get('w')", "'w' in K.__dict__", "len(vars(K))", "[n for n in vars(K) if n[0] != '_']",
    "{n: q for n, q in vars(type(k)).items() if n[0] != '_'}", "dict(K.__dict__)['v']", "[c.__dict__.get('v') for c in type(k).__mro__]", "K.__dict__ | {'w': 0}",
]  # fmt: skip


@pytest.mark.parametrize("text", OF_CLASS_DICTS)
def test_what_the_dict_of_a_class_holds_is_that_of_the_call(text):
    class K:
        v = 3

    program = eval(f"lambda x: (x + 1, {text})", {"K": K, "k": K()})
    compiled = braze.compile(program, backend="eager")
    for change in ("pass", "K.v = 4.5", "K.w = 1", "del K.w", "K.v = 5.5"):
        exec(change, {"K": K})
        assert str(compiled(torch.ones(2))[1]) == str(program(torch.ones(2))[1])


def test_a_class_whose_dict_is_asked_for_is_compiled_once_while_it_stays():
    class K:
        v = [3]

    run = Run(lambda x: x + len(vars(K)["v"]))
    for _ in range(3):
        run(torch.ones(2))
    K.other = K.v
    run(torch.ones(2))
    assert len(run.graphs) == 2


def test_what_a_proxy_from_outside_has_not_got_may_come():
    held = {"a": 1}
    proxy = types.MappingProxyType(held)
    compiled = braze.compile(lambda x: (x + 1, proxy.get("a"), proxy.get("w", 0)), backend="eager")
    for change in ({}, {"w": 2}, {"a": 7}):
        held.update(change)
        assert compiled(torch.ones(2))[1:] == (held["a"], held.get("w", 0))
