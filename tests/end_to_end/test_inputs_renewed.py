"""Inputs that are written whole are written where they lie, by one kernel, and a call does nothing else for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze import native
from tests.helpers import logged

Tensor = torch.Tensor


def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], *args: Any) -> str:
    """The Python that calls the kernels of what one call compiles."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    braze.compile(f)(*args)
    return "\n".join(path.read_text() for path in sorted(tmp_path.glob("*_graph_host.py")))


def add(x: Tensor, y: Tensor) -> None:
    x.add_(1)


def decay(x: Tensor, y: Tensor) -> None:
    x.mul_(0.9).add_(y, alpha=0.1)


def copy(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


def clear(x: Tensor, y: Tensor) -> None:
    x.zero_()


def both(x: Tensor, y: Tensor) -> None:
    x.add_(y)
    y.mul_(2)


def read_after(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * 2


@pytest.mark.parametrize("f", [add, decay, copy, clear, both, read_after])
def test_new_contents_are_stored_over_the_old_ones(
    f: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = hosts(tmp_path, monkeypatch, f, torch.ones(7, 5), torch.ones(7, 5))
    assert " = x\n" in text
    assert text.count("empty_strided(") == (f is read_after)


@pytest.mark.parametrize("f", [add, decay, copy, clear, both, read_after])
@pytest.mark.parametrize(
    "made",
    [lambda: torch.randn(7, 5), lambda: torch.randn(5, 7).t(), lambda: torch.randn(9, 8)[1:8, ::2][:, :4]],
)
def test_inputs_results_and_versions_are_as_in_eager(
    f: Callable[..., Any], made: Callable[[], Tensor]
) -> None:
    g = braze.compile(f, options={"verify": 2})
    for _ in range(3):
        x, y = made(), made()
        a, b = x.clone(memory_format=torch.preserve_format), y.clone(memory_format=torch.preserve_format)
        before = x._version
        got, want = g(x, y), f(a, b)
        torch.testing.assert_close((got, x, y), (want, a, b))
        assert x._version > before


def turned(x: Tensor, y: Tensor) -> None:
    x.copy_(x.flip(0) + 0)


def old_is_returned(x: Tensor, y: Tensor) -> Tensor:
    before = x.sum(0, keepdim=True) * x
    x.add_(1)
    return before


def same_as_result(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    x.copy_(z)
    return z


def transposed(x: Tensor, y: Tensor) -> None:
    x.copy_(x.t() * 2)


@pytest.mark.parametrize("f", [turned, old_is_returned, same_as_result, transposed])
def test_what_reads_the_old_contents_elsewhere_or_later_gets_them(f: Callable[..., Any]) -> None:
    g = braze.compile(f, options={"verify": 2})
    for _ in range(2):
        x, y = torch.randn(40, 40), torch.randn(40, 40)
        a, b = x.clone(), y.clone()
        got, want = g(x, y), f(a, b)
        torch.testing.assert_close((got, x, y), (want, a, b))
        if got is not None:
            assert got.data_ptr() != x.data_ptr()


def scattered(x: Tensor, y: Tensor) -> None:
    x.t().scatter_(0, torch.zeros(40, 40, dtype=torch.int64), 2.0).clamp_(-1, 1)


def sorted_(x: Tensor, y: Tensor) -> None:
    x.t().copy_(y.sort(0)[0]).mul_(2)


def added_up(x: Tensor, y: Tensor) -> None:
    x.t().cumsum_(0).mul_(2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", [scattered, sorted_, added_up])
def test_a_square_input_that_is_written_through_its_transpose_has_each_element_in_its_place(
    f: Callable[..., Any], dynamic: bool
) -> None:
    g = braze.compile(f, dynamic=dynamic)
    for _ in range(2):
        x = torch.arange(1600.0).reshape(40, 40) - 800
        a, y = x.clone(), x.flip(0)
        g(x, y)
        f(a, y)
        torch.testing.assert_close(x, a, rtol=0, atol=0)


def test_nothing_is_written_before_what_may_fail() -> None:
    def f(x: Tensor, table: Tensor, i: Tensor) -> Tensor:
        y = table[i].sum()
        x.add_(1)
        return y

    g = braze.compile(f)
    x, table = torch.zeros(4), torch.ones(3, 4)
    g(x, table, torch.tensor([1]))
    with pytest.raises(IndexError):
        g(x, table, torch.tensor([9]))
    assert torch.equal(x, torch.ones(4))


@pytest.mark.unverified
def test_inputs_that_share_memory_are_told_from_those_that_do_not() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    g = braze.compile(f)
    memory, expected = torch.arange(12.0), torch.arange(12.0)
    for a, b in ((0, 4), (4, 0), (0, 2), (2, 0), (0, 0)):
        got, want = g(memory[a : a + 4], memory[b : b + 4]), f(expected[a : a + 4], expected[b : b + 4])
        torch.testing.assert_close((got, memory), (want, expected))


@pytest.mark.unverified
def test_inference_tensors_are_written_in_inference_mode_alone() -> None:
    g = braze.compile(add)
    g(torch.ones(3), torch.ones(3))
    with torch.inference_mode():
        x = torch.zeros(3)
        g(x, x)
        assert x.tolist() == [1, 1, 1]
    for call, then in ((add, 2), (g, 3)):  # eager writes, and refuses then
        with pytest.raises(RuntimeError, match=r"[Ii]nference"):
            call(x, torch.ones(3))
        assert x.tolist() == [then] * 3


@pytest.mark.unverified
def test_autograd_notices_what_a_kernel_writes() -> None:
    g = braze.compile(add)
    x, w = torch.zeros(3), torch.ones(3, requires_grad=True)
    g(x, torch.ones(3))
    loss = (w * x).sum()
    g(x, torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.unverified
@pytest.mark.skipif(not native.native_available, reason="the C core is what is looked at")
def test_a_call_that_writes_an_input_goes_from_the_entry_to_the_graph_without_python_between() -> None:
    made: list[Any] = []
    real = native.written_call

    def seen(*args: Any) -> Any:
        made.append(real(*args))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "written_call", seen)
        x = torch.zeros(3)
        braze.compile(add)(x, torch.ones(3))
    assert [type(call).__name__ for call in made] == ["WrittenCall"]
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 5), (3, 5)])
@pytest.mark.parametrize("place", [0, 3])
def test_an_input_takes_what_is_repeated_over_it(shape: tuple[int, ...], place: int) -> None:
    """New contents that are another input's, of stride 0: each of their elements has a place of its own."""

    def fill(x: Tensor, y: Tensor) -> Tensor:
        x[...] = y
        return x.sum()

    y = torch.rand(shape)
    expected, found = torch.arange(20.0)[place:][:15].view(3, 5), torch.arange(20.0)[place:][:15].view(3, 5)
    with logged() as messages:
        total = braze.compile(fill)(found, y)
    assert not messages
    torch.testing.assert_close(total, fill(expected, y))
    assert torch.equal(found, expected)
