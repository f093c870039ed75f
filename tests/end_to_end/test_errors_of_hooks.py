"""What the program's own code raises inside a graph is the call's error: a kernel of its operator, a hook, what a backend made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Planted(Exception):
    pass


class Once:
    """Raises at the first call after it was armed; counts the calls."""

    def __init__(self) -> None:
        self.armed = False
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.armed:
            self.armed = False
            raise Planted


due = Once()


@torch.library.custom_op("errors_of_hooks::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    due()
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def disarmed() -> None:
    due.armed, due.calls = False, 0


def fails_once(call: Callable[[], Any]) -> None:
    """The next call of what is compiled raises, and the one after it does not."""
    due.armed = True
    with pytest.raises(Planted):
        call()
    assert not due.armed
    call()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_an_error_of_a_kernel_that_comes_once_is_the_calls(backend: str) -> None:
    """The call is not run again, where the kernel would find nothing wrong: it is called as often as in eager."""
    compiled = braze.compile(lambda x: twice(x) + 1, backend=backend)
    assert torch.equal(compiled(X), X * 2 + 1)
    fails_once(lambda: compiled(X))
    assert due.calls == 3


def test_effects_before_an_error_of_a_kernel_are_there() -> None:
    log: list[int] = []

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        log.append(n)
        return twice(x) + n

    compiled = braze.compile(f, backend="eager")
    compiled(X, 1)
    fails_once(lambda: compiled(X, 1))
    assert log == [1, 1, 1]


@contextlib.contextmanager
def handling() -> Iterator[None]:
    try:
        yield
    except Planted:
        due.armed = False


class Suppressing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is Planted


def by_except(x: torch.Tensor) -> torch.Tensor:
    try:
        return twice(x)
    except Planted:
        return x * 7


def by_generator(x: torch.Tensor) -> torch.Tensor:
    with handling():
        return twice(x)
    return x * 7


def by_manager(x: torch.Tensor) -> torch.Tensor:
    with Suppressing():
        return twice(x)
    return x * 7


def by_library(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(Planted):
        return twice(x)
    return x * 7


@pytest.mark.provokes("BZ6013")
@pytest.mark.parametrize("program", [by_except, by_generator, by_manager, by_library])
def test_an_error_of_a_kernel_that_comes_each_time_reaches_the_programs_handler(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = braze.compile(program, backend="eager")
    assert torch.equal(compiled(X), X * 2)

    def always() -> None:
        raise Planted

    monkeypatch.setitem(globals(), "due", always)
    assert torch.equal(program(X), X * 7)
    assert torch.equal(compiled(X), X * 7)


def test_an_error_of_what_a_backend_made_is_the_calls() -> None:
    def backend(gm: Any, examples: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            due()
            return gm.forward(*inputs)

        return run

    compiled = braze.compile(lambda x: x.sin() * 2, backend=backend)
    fails_once(lambda: compiled(X))


def test_an_error_of_the_data_in_what_a_backend_made_is_raised_in_the_programs_lines() -> None:
    """The program's function is on the way, but it is PyTorch that refuses the index."""

    def backend(gm: Any, examples: Any) -> Callable[..., Any]:
        return lambda *inputs: gm.forward(*inputs)

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    compiled = braze.compile(f, backend=backend)
    with pytest.raises(IndexError) as raised:
        compiled(X, torch.tensor([5]))
    assert "f" in [entry.name for entry in raised.traceback]


def test_an_error_of_a_hook_that_packs_is_the_calls() -> None:
    w = torch.ones(3, 3, requires_grad=True)

    def pack(x: torch.Tensor) -> torch.Tensor:
        due()
        return x

    compiled = braze.compile(lambda: (X @ w).sin(), backend="eager")

    def call() -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            return compiled()

    call()
    fails_once(call)


def test_what_was_entered_before_a_break_is_left_by_an_error_behind_it() -> None:
    """The end of a ``with`` that a resumed frame is in is Python's: hooks stayed in force for all that came after."""
    w, armed = torch.ones(3, 3, requires_grad=True), [False]

    def pack(x: torch.Tensor) -> torch.Tensor:
        due.calls += 1
        if armed[0]:
            raise Planted
        return x

    def program() -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            return (X @ w).sin()

    compiled = braze.compile(program, backend="eager")
    compiled()
    armed[0] = True
    with pytest.raises(Planted):
        compiled()
    before = due.calls
    (X @ w).sin()
    assert due.calls == before
    armed[0] = False
    compiled()


@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError])
def test_an_error_of_a_hook_that_unpacks_is_the_backwards(error: type[Exception]) -> None:
    """It is none of autograd's, which refuses values that were written since."""
    w = torch.ones(3, 3, requires_grad=True)
    armed = [False]

    def unpack(x: torch.Tensor) -> torch.Tensor:
        if armed.pop():
            armed.append(False)
            raise error("planted")
        armed.append(False)
        return x

    compiled = braze.compile(lambda: (X @ w).sin().sum())

    def step() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            loss = compiled()
        loss.backward()

    step()
    armed[:] = [True]
    with pytest.raises(error, match="planted"):
        step()
    step()


def of_another_size(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.new_ones(7)


class Nameless:
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return of_another_size(gradient)


@pytest.mark.parametrize("hook", [of_another_size, Nameless()])
@pytest.mark.parametrize("on", ["argument", "between", "result"])
def test_a_gradient_of_another_size_is_refused_by_the_name_of_the_hook_that_gave_it(
    hook: Any, on: str
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y.exp() * 2
        {"argument": x, "between": y, "result": z}[on].register_hook(hook)
        return z

    said = []
    for called in (f, braze.compile(f)):
        with pytest.raises(RuntimeError, match="changed the size") as caught:
            called(X.clone().requires_grad_()).sum().backward()
        said.append(str(caught.value))
    assert said[0] == said[1]
