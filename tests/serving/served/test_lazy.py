"""Lazy capture: what steps ask for, in idle steps, within a budget, on all ranks or none."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from braze.serving import BatchDescriptor, CUDAGraphMode
from braze.serving.policy.lazy import choose, choose_together
from braze.serving.served.serve import serve

pytestmark = pytest.mark.usefixtures("simulated")
FULL = CUDAGraphMode.FULL
WORDS = dict(level=0, cudagraph_mode="FULL", max_num_seqs=8, max_num_batched_tokens=32)


def key(n: int):
    return FULL, BatchDescriptor(n, n)


class Rows(nn.Module):
    def forward(self, x):
        return torch.tanh(x * 2) + 1


def test_nothing_is_captured_until_a_step_is_idle():
    m = serve(Rows(), capture="lazy", capture_sizes=[1, 2, 4, 8], **WORDS)
    x = torch.randn(3, 16)
    torch.testing.assert_close(m(x), m.model(x))
    assert m.stats().captured == 0
    assert m.idle() == (key(4),)
    torch.testing.assert_close(m(x), m.model(x))
    assert dict(m.stats().replayed) == {"FULL": 1}
    assert m.idle() == ()


def test_the_hottest_goes_first_and_a_larger_one_serves_meanwhile():
    m = serve(Rows(), capture="lazy", capture_sizes=[1, 2, 4, 8], **WORDS)
    for n in (7, 7, 3, 1, 8):
        m(torch.randn(n, 16))
    assert m.idle() == (key(8),)
    assert m.dispatch(1).descriptor.num_tokens == 8
    assert m.idle(5) == (key(4), key(1))
    assert m.dispatch(1).descriptor.num_tokens == 1
    assert m.dispatch(2).descriptor.num_tokens == 4


def test_a_budget_is_kept_to():
    whole = serve(Rows(), capture_sizes=[1, 2, 4, 8], **WORDS)
    whole(torch.randn(8, 64))
    budget = whole.stats().bytes // 2
    m = serve(Rows(), capture_sizes=[1, 2, 4, 8], memory_budget=budget, **WORDS)
    m(torch.randn(8, 64))
    stats = m.stats()
    assert 0 < stats.captured < 4
    assert stats.bytes <= budget
    assert all("memory_budget" in why for _, why in stats.failures)
    for n in (1, 3, 8):
        x = torch.randn(n, 64)
        torch.testing.assert_close(m(x), m.model(x))


def test_a_hotter_size_takes_the_place_of_a_colder_one():
    one = serve(Rows(), capture_sizes=[8], **WORDS)
    one(torch.randn(8, 64))
    m = serve(Rows(), capture="lazy", capture_sizes=[7, 8], memory_budget=one.stats().bytes, **WORDS)
    m(torch.randn(8, 64))
    assert m.idle() == (key(8),)
    for _ in range(9):
        m(torch.randn(7, 64))
    assert m.idle() == (key(7),)
    assert m.stats().captured == 1
    assert m.stats().bytes <= one.stats().bytes


def test_choices():
    keys = [key(8), key(4), key(2)]
    assert choose(keys, {}, {}).capture is None
    assert choose(keys, {key(4): 3, key(2): 1}, {}).capture == key(4)
    assert choose(keys, {key(4): 3, key(2): 1}, {key(4): 10}).capture == key(2)
    assert choose(keys, {key(4): 3}, {}, failed={key(4)}).capture is None
    full = choose(keys, {key(4): 3, key(8): 3}, {key(8): 80}, budget=100)
    assert (full.capture, full.drop) == (None, None)
    assert "as often" in full.reason
    hotter = choose(keys, {key(4): 7, key(8): 3}, {key(8): 80}, budget=100)
    assert (hotter.capture, hotter.drop) == (key(4), key(8))


def test_ranks_choose_what_all_ask_for_most_and_never_what_failed_on_one():
    keys = [key(8), key(4), key(2)]
    heats = [{key(8): 5, key(4): 4}, {key(4): 4, key(2): 1}]
    barrier, rows, found = threading.Barrier(2), [[], []], [None, None]

    def rank(i, failed):
        def reduce(row):
            rows[i] = list(row)
            barrier.wait()
            return list(rows)

        found[i] = choose_together(keys, heats[i], {}, failed[i], None, reduce)

    for failed, expected in ((({}, {}), key(4)), (({key(4)}, {}), key(8))):
        threads = [threading.Thread(target=rank, args=(i, failed)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [choice.capture for choice in found] == [expected, expected]
        barrier.reset()


def test_a_capture_that_fails_on_one_rank_is_undone_on_all():
    answers = iter([[[1], [0]]])

    def reduce(row):
        return next(answers) if len(row) == 1 else [list(row)]

    m = serve(Rows(), capture="lazy", capture_sizes=[4], reduce=reduce, **WORDS)
    m(torch.randn(3, 16))
    assert m.idle() == ()
    assert m.stats().captured == 0
    assert m.stats().failures == (("FULL 4", "another rank could not capture it"),)


def test_ranks_stop_capturing_together_when_the_memory_of_one_is_spent():
    """The other has memory left, and hears of it where the first fails."""
    heard = []

    def reduce(row):
        rows = [list(row), [0]] if len(row) == 1 else [list(row)]
        heard.append(row)
        return rows

    m = serve(Rows(), capture_sizes=[1, 2, 4], reduce=reduce, memory_budget="1GiB", **WORDS)
    m(torch.randn(3, 16))
    assert m.stats().failures == (("FULL 4", "another rank could not capture it"),)
    assert [row for row in heard if len(row) == 1] == [[1], [1]]


def test_a_step_asks_other_ranks_once():
    """Also while sizes are missing: a rank whose call is unlike the example's does not want to know which it would take."""
    asked = []

    def reduce(row):
        asked.append(len(row))
        return [list(row), list(row)]

    m = serve(Scaled(), capture="lazy", capture_sizes=[4], reduce=reduce, **WORDS)
    for scale in (2, 2, 3):
        asked.clear()
        m(torch.randn(3, 16), scale)
        assert asked == [5]
    assert m.idle() == (key(4),)


class Scaled(nn.Module):
    def forward(self, x, scale: int):
        return torch.tanh(x) * scale
