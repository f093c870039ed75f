"""Operators that write besides what they return, and writes whose functional form is declared differently."""

from __future__ import annotations

import pytest
import torch

from braze.aot import aot_function, nop
from braze.support.errors import Unsupported
from tests.aot.recording import compile_aot

aten = torch.ops.aten


def normalize(x, mean, var):
    out, saved_mean, saved_inv = aten._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)
    return out, saved_mean, saved_inv, mean * 2


def update(x, mean, var):
    return aten._batch_norm_with_update(x, torch.ones_like(mean), mean * 0, mean, var, 0.1, 1e-5)[0], var + 1


def leaky(x, noise, unused):
    return aten.rrelu_with_noise(x, noise, 0.25, 0.5, True), noise + 1


def drop(x, y, z):
    y.bernoulli_()
    z.bernoulli_(0.25)
    return x * y


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(normalize, [(4, 3), (3,), (3,)]), (update, [(4, 3), (3,), (3,)]), (leaky, [(5,), (5,), (1,)]),
     (drop, [(40,), (40,), (40,)])],
)  # fmt: skip
def test_what_is_returned_and_what_is_written(fn, shapes):
    args = [torch.randn(s) for s in shapes]
    args[2] = args[2].abs()
    ours, theirs = [a.clone() for a in args], [a.clone() for a in args]
    _, call = compile_aot(fn, [a.clone() for a in args])
    torch.manual_seed(0)
    found = call(ours)
    torch.manual_seed(0)
    wanted = fn(*theirs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for a, b in zip([*found, *ours], [*wanted, *theirs], strict=True):
        torch.testing.assert_close(a, b)


def test_in_place_transposition():
    def f(x):
        y = x + 1
        y.transpose_(0, 1)
        y.swapaxes_(1, 2)
        return y * 2

    x = torch.randn(2, 3, 4)
    _, call = compile_aot(f, [x])
    (found,) = call([x])
    assert found.shape == f(x).shape and found.stride() == f(x).stride()
    assert torch.equal(found, f(x))


@pytest.mark.parametrize(
    ("size", "strides", "offset", "all_of_it"),
    [((3, 1, 4), (4, 9, 1), 0, True), ((12,), (1,), 0, True), ((4, 3), (1, 4), 0, False), ((3, 3), (4, 1), 0, False),
     ((2, 4), (4, 1), 4, False), ((3, 4), (4, 1), 0, True)],
)  # fmt: skip
def test_windows_on_memory(size, strides, offset, all_of_it):
    """Such a window on all of a tensor, as an average over all of a picture has one, is a reshape."""

    def f(x):
        y = x * 2
        window = y.as_strided(size, strides, offset)
        window.copy_(torch.arange(window.numel()).view(size))
        return y + 1, window

    x = torch.randn(12)
    part, call = compile_aot(f, [x])
    for ours, theirs in zip(call([x]), f(x), strict=True):
        assert ours.shape == theirs.shape and torch.equal(ours, theirs)
    scattered = [n for n in part.forward.graph.nodes if n.target is aten.as_strided_scatter.default]
    assert bool(scattered) is not all_of_it


@pytest.mark.parametrize("through", ["the window", "the value", "both"])
def test_a_window_whose_place_a_size_tells_lies_there_after_a_write(through):
    """What it is a window of begins where it did, so that its place is as it is written."""

    def f(x, z):
        y = x * 2
        window = y.as_strided((2, 2), (3, 1), z.shape[0])
        if through != "the value":
            window.add_(1)
        if through != "the window":
            y.mul_(3)
        return y * 1, window * 2

    _, call = compile_aot(f, [torch.zeros(20), torch.zeros(5)], dynamic=True)
    for n, at in ((20, 5), (17, 3), (30, 11)):
        x, z = torch.randn(n), torch.zeros(at)
        for ours, theirs in zip(call([x, z]), f(x, z), strict=True):
            assert torch.equal(ours, theirs)


def elsewhere(x):
    y = x * 2
    y[2:6].as_strided((4,), (1,), 0).zero_()
    return y


def between_columns(x):
    y = x * 2
    y.view(3, 4)[:, :2].as_strided((2, 3), (4, 1), 0).zero_()
    return y


def elsewhere_read(x):
    y = x * 2
    window = y[4:8].as_strided((4,), (1,), 2)
    y.add_(1)
    return window * 2


def elsewhere_read_later(x):
    y = x * 2
    y.add_(1)
    return y[4:8].as_strided((4,), (1,), 2) * 2


@pytest.mark.parametrize("f", [elsewhere, between_columns, elsewhere_read, elsewhere_read_later])
def test_windows_on_memory_beside_the_view_that_they_are_taken_of(f):
    """They are windows on what the view is of."""
    x = torch.randn(12)
    _, call = compile_aot(f, [x])
    (found,) = call([x])
    assert torch.equal(found, f(x))


def test_a_write_to_memory_beside_an_input_is_refused():
    """It would be scattered into the input alone."""

    def f(x):
        x.as_strided((4,), (1,), 4).zero_()
        return x * 2

    with pytest.raises(Unsupported, match="BZ2014"):
        compile_aot(f, [torch.randn(12)[:6]])


def inside_a_view(x):
    y = x * 2
    y[2:10].as_strided((2, 2), (3, 1), 3).zero_()
    return y


def in_another_order(x):
    y = x * 2
    y.view(3, 4).t().as_strided((12,), (1,), 0).copy_(torch.arange(12.0))
    return y


def read_inside(x):
    y = x * 2
    window = y[4:8].as_strided((2,), (2,), 5)
    y.add_(1)
    return window * 2


@pytest.mark.parametrize("f", [inside_a_view, in_another_order, read_inside])
def test_windows_inside_the_view_that_they_are_taken_of(f):
    x = torch.randn(12)
    _, call = compile_aot(f, [x])
    (found,) = call([x])
    assert torch.equal(found, f(x))


def flattened(x):
    y = torch.empty(4, 4)
    y.copy_(x.t())
    return y.view(16)


def paired(x):
    y = torch.empty(4, 2)
    y.copy_(x[:, :2])
    return torch.view_as_complex(y) * 1j


def in_larger_words(x):
    y = torch.empty(4, 4)
    y.copy_(x.t())
    return y.view(torch.int64) + 0


@pytest.mark.parametrize("f", [flattened, paired, in_larger_words])
def test_views_that_want_strides_which_the_written_value_does_not_have(f):
    x = torch.randn(4, 4)[:, :3] if f is paired else torch.randn(4, 4)
    x = x.contiguous()
    _, call = compile_aot(f, [x])
    (found,) = call([x])
    assert torch.equal(found, f(x))


def test_a_write_to_a_constant_of_the_graph_is_refused():
    """It would be made anew at each call, where eager goes on from what it has become."""
    constant = torch.zeros(3)

    def f(x):
        constant.add_(1)
        return x * constant

    with pytest.raises(Unsupported, match="BZ2013"):
        aot_function(f, nop)(torch.ones(3))


def test_new_contents_stand_in_the_order_of_their_inputs():
    """Those over one storage, too, with another between them."""
    memory = torch.zeros(4)

    def f(a, b, c):
        c.add_(1)
        b.add_(2)
        a.add_(3)

    part, call = compile_aot(
        lambda a, b, c: (f(a, b, c), a.sum())[1], [memory[:2], torch.zeros(2), memory[2:]]
    )
    assert [role.input for role in part.mutations] == [0, 1, 2]
    other = torch.zeros(2)
    call([memory[:2], other, memory[2:]])
    assert memory.tolist() == [3, 3, 1, 1] and other.tolist() == [2, 2]


def test_a_product_is_laid_out_anew_where_a_write_has_changed_strides():
    def program(x):
        written = x.clamp(min=-1.5)
        written.zero_()
        return written.kron(x[:2].neg())

    x = torch.rand(5, 33, 2).movedim(-1, 0)[..., :4]
    found, wanted = compile_aot(program, (x,))[1]((x,))[0], program(x)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
