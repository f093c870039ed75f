"""Operators that write besides what they return, and writes whose functional form is declared differently."""

from __future__ import annotations

import pytest
import torch

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
     ((2, 4), (4, 1), 4, False)],
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
