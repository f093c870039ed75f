"""Capture sizes: the pattern, limits of the buffers, and sizes from traffic."""

from __future__ import annotations

import itertools
import random

import pytest

from braze.serving.policy.sizes import Limits, pattern, read_traffic, suggest_sizes, within
from braze.support.errors import UserError


def test_the_pattern_is_the_seeds():
    assert pattern(512) == (1, 2, 4, 8, *range(16, 513, 16))
    assert len(pattern(512)) == 36


def test_the_patterns_last_size_is_the_one_asked_for():
    assert pattern(100) == (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 100)
    assert pattern(1) == (1,)
    assert pattern(6) == (1, 2, 4, 6)


def test_sizes_over_the_buffers_are_left_out_and_told_of():
    found = within((1, 8, 64), Limits(16, 512), listed=True, tokens=False)
    assert found.sizes == (8, 1)
    assert found.dropped == (64,)
    assert found.notes[0].startswith("BZ7107")
    assert "max_num_seqs=16" in found.notes[0]


def test_requests_of_several_tokens_have_to_fit_the_buffer_of_tokens():
    assert within((4, 8, 16), Limits(64, 32, 4), listed=True, tokens=False).sizes == (8, 4)


def test_where_mixed_batches_are_recorded_sizes_are_tokens():
    assert within((4, 16, 512), Limits(8, 64), listed=True, tokens=True).sizes == (16, 4)


def test_a_pattern_has_the_largest_batch_as_a_size():
    assert within(pattern(512), Limits(100, 512), listed=False, tokens=False).sizes[0] == 100
    assert within(pattern(64), Limits(100, 512), listed=False, tokens=False).sizes[0] == 64


def test_no_size_left_is_an_error():
    with pytest.raises(UserError) as error:
        within((64,), Limits(8, 32), listed=True, tokens=False)
    assert error.value.code == "BZ7105"


def padded(histogram, sizes):
    return sum(count * min(s for s in sizes if s >= size) for size, count in histogram.items())


@pytest.mark.parametrize("seed", range(20))
def test_suggested_sizes_are_the_best_there_are(seed):
    numbers = random.Random(seed)
    histogram = {size: numbers.randint(1, 30) for size in numbers.sample(range(1, 60), 8)}
    k = numbers.randint(1, 5)
    found = suggest_sizes(histogram, k, default=(1 << 12,))
    choices = [c for c in itertools.combinations(sorted(histogram), k) if c[-1] == max(histogram)]
    assert padded(histogram, found.sizes) == min(padded(histogram, c) for c in choices)
    assert len(found.sizes) <= k
    assert not found.keep_default


def test_flat_traffic_keeps_the_default():
    found = suggest_sizes(dict.fromkeys(range(1, 257), 10), 16, default=pattern(256))
    assert found.keep_default
    assert found.sizes == pattern(256)
    assert "keep the default" in str(found)


def test_peaked_traffic_gets_fewer_and_better_sizes():
    numbers = random.Random(0)
    histogram: dict[int, int] = {}
    for _ in range(4000):
        size = max(1, round(numbers.gauss(37, 9)))
        histogram[size] = histogram.get(size, 0) + 1
    found = suggest_sizes(histogram, 10, default=pattern(256))
    assert not found.keep_default
    assert len(found.sizes) == 10
    assert found.waste < 0.06 < 0.15 < found.default_waste


def test_a_measured_cost_decides_instead_of_tokens():
    """Below 64 tokens a step costs the same, so that one size serves them all."""
    histogram = {3: 100, 20: 100, 60: 100, 200: 100}
    found = suggest_sizes(histogram, 2, default=(1024,), cost=lambda size: max(64, size))
    assert found.sizes == (60, 200)
    assert found.waste == 0


def test_no_traffic_keeps_the_default():
    assert suggest_sizes({}, 4).keep_default
    assert suggest_sizes({4096: 7}, 4).keep_default


@pytest.mark.parametrize("text", ['{"5": 3, "9": 1}', "5 3\n9 1\n", "5\n5\n5\n9\n", "5,3\n9,1"])
def test_traffic_is_read_from_json_or_lines(tmp_path, text):
    file = tmp_path / "traffic"
    file.write_text(text)
    assert read_traffic(file) == {5: 3, 9: 1}


@pytest.mark.parametrize(
    "text",
    [
        "five",
        '{"5": "x"}',
        '{"5": 1.5}',
        '{"5": 1e400}',
        '{"5": NaN}',
        '{"5": null}',
        "{",
        "5 -1",
        "-5",
        "1 2 3",
    ],
)
def test_a_file_that_is_no_histogram_is_refused(tmp_path, text):
    file = tmp_path / "traffic"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_traffic(file)
    assert error.value.code == "BZ7109"
    assert error.value.hints


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError) as error:
        read_traffic(tmp_path / "none")
    assert error.value.code == "BZ7109"
    assert error.value.hints
