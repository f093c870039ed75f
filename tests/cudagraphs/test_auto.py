"""mode="auto": recorded is what launches limit, by a measurement in the first calls."""

from __future__ import annotations

import threading

import pytest
import torch

import braze
from tests.cudagraphs.helpers import assert_equal, noted, numbers, recordings

fn = lambda x: torch.relu(x) @ x.t() + 1


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def calls(f, times=8):
    with recordings() as made, noted() as codes:
        for _ in range(times):
            x = numbers(4, 4)
            assert_equal(f(x), fn(x))
        return made(), codes()


@pytest.mark.parametrize(
    ("busy", "made", "codes"), [(0.5, 1, []), (0.89, 1, []), (0.91, 0, ["BZ6214"]), (1.2, 0, ["BZ6214"])]
)
def test_what_the_device_waits_for_is_recorded(simulated, busy, made, codes):
    simulated.clock = lambda behind: busy if behind else 1.0
    assert calls(braze.compile(fn, mode="auto")) == (made, codes)


def test_a_call_that_takes_no_time_is_not_recorded(simulated):
    simulated.clock = lambda behind: 0.0
    assert calls(braze.compile(fn, mode="auto")) == (0, ["BZ6214"])


def test_three_calls_run_before_it_is_known(simulated):
    asked = []
    simulated.clock = lambda behind: asked.append(behind) or (0.5 if behind else 1.0)
    f = braze.compile(fn, mode="auto")
    assert calls(f, 4) == (0, [])
    assert asked == [False, True]
    assert calls(f, 1)[0] == 1


@pytest.mark.parametrize(
    ("times", "made", "codes"),
    [
        ([1.0, 3.0, 1.0, 0.5], 1, []),  # another program had the device in the first call behind work
        ([1.0, 1.0, 9.0, 0.95], 0, ["BZ6214"]),  # and in the second call as it runs
        ([1.0, 1.0, 1.0, 0.89], 1, []),
    ],
)
def test_only_the_shortest_of_two_pairs_leave_a_graph_unrecorded(simulated, times, made, codes):
    left = list(times)
    simulated.clock = lambda behind: left.pop(0)
    assert calls(braze.compile(fn, mode="auto")) == (made, codes)
    assert not left


def test_a_call_that_fails_is_measured_again_by_the_next(simulated):
    simulated.clock = lambda behind: 0.5 if behind else 1.0
    table = numbers(4, 4)
    program = lambda i: (table[i] @ table).relu() @ table
    f = braze.compile(program, mode="auto")
    for k in range(6):
        if k in (1, 3):
            with pytest.raises(IndexError):
                f(torch.tensor([9]))
        with recordings() as made:
            assert_equal(f(torch.tensor([k % 4])), program(torch.tensor([k % 4])))
        assert made() == (k == 3)


def test_threads_measure_one_at_a_time(simulated):
    simulated.clock = lambda behind: 0.5 if behind else 1.0
    f, wrong = braze.compile(fn, mode="auto"), []

    def some():
        with torch.no_grad():
            for _ in range(20):
                x = numbers(4, 4)
                wrong.extend([] if torch.allclose(f(x), fn(x), atol=1e-5) else [x])

    threads = [threading.Thread(target=some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_options_ask_for_it_too(simulated):
    simulated.clock = lambda behind: 1.0
    assert calls(braze.compile(fn, options={"cudagraphs": True, "cudagraph_measure": True})) == (
        0,
        ["BZ6214"],
    )
