"""Outputs whose storage the program gives other memory, or lets others see without holding it: nothing is replayed over where they were."""

from __future__ import annotations

import pytest
import torch

from braze import native
from tests.cudagraphs.helpers import assert_equal, numbers, recording, recordings

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def by_a_kernel(x):
    return x.sin() + 1


def by_an_operator(x):
    return x.sort(-1)[0]


def larger(y):
    y.resize_(400).fill_(3.0)


def grown_through_a_view(y):
    y.view(-1)[1:].resize_(400).fill_(3.0)


def freed(y):
    y.untyped_storage().resize_(0)


def freed_and_back(y):
    size = y.untyped_storage().nbytes()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(4 * size)


CHANGES = (larger, grown_through_a_view, freed, freed_and_back)


def check(fn, change, wanted=3, **options):
    """Calls whose outputs are changed are as eager's, and what was allocated since is as it was; so many recordings are made at least."""
    f = recording(fn, **options)
    inputs = [numbers(8, 8) for _ in range(16)]
    with recordings() as made:
        for x, next_x in zip(inputs[::2], inputs[1::2], strict=True):
            y = f(x)
            assert_equal(y, fn(x))
            change(y)
            others = [torch.full((8, 8), 7.0) for _ in range(20)]
            del y
            assert_equal(f(next_x), fn(next_x))
            assert all(bool((each == 7).all()) for each in others)
        assert wanted <= made() <= 4


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fn", [by_a_kernel, by_an_operator])
def test_an_output_of_other_memory(fn, change):
    check(fn, change)


@pytest.mark.parametrize("change", [larger, freed])
def test_a_borrowed_output_of_other_memory(change):
    check(by_a_kernel, change, wanted=2, outputs="borrow", verify=0)


@pytest.mark.parametrize("change", CHANGES)
def test_without_the_c_core(change, monkeypatch):
    monkeypatch.setattr(native, "replays_natively", lambda: False)
    check(by_a_kernel, change)


def test_an_output_that_becomes_smaller_stays_where_it_is():
    f = recording(by_a_kernel)
    inputs = [numbers(8, 8) for _ in range(6)]
    with recordings() as made:
        for x in inputs:
            y = f(x)
            y.resize_(3)
            assert_equal(y, by_a_kernel(x).view(-1)[:3])
            del y
        assert made() == 1


@pytest.mark.skipif(not native.native_available, reason="the C core is not built")
def test_a_lazy_clone_of_an_output_keeps_its_values():
    f = recording(by_a_kernel)
    kept, wanted = [], []
    for _ in range(8):
        x = numbers(8, 8)
        kept.append(torch._lazy_clone(f(x)))
        wanted.append(by_a_kernel(x))
    assert_equal([x.clone() for x in kept], wanted)


def test_an_output_of_other_memory_beside_one_that_is_as_it_was():
    """What an earlier recording of the pool writes is seen to lie elsewhere by those that would write it."""
    f, g = recording(by_an_operator), recording(lambda x: x.sort(0)[0] * 2)
    for _ in range(6):
        x = numbers(8, 8)
        y = f(x)
        z = g(y)
        assert_equal(z, by_an_operator(x).sort(0)[0] * 2)
        freed(z)
        assert_equal(y, by_an_operator(x))
        larger(y)
        del y, z
