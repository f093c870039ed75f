"""Short rows that begin anywhere, read in whole vectors and held to their ends; in Triton's interpreter."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule.forms import shifted, whole_vectors
from tests.codegen.test_triton_forms import INF, NAN, check, numbers
from tests.codegen.test_triton_vectors import plan_of
from tests.codegen.triton_bench import context, planned


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(whole_vectors, "LEAST", 2048)
    monkeypatch.setattr(shifted, "LEAST_ROWS", 8)


DIGITS = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 4e-2}
#: a warp's tiles filled but for a vector, just, and over; and what two and four warps take
LENGTHS = [1025, 1026, 1031, 1287, 2047, 2049, 5001, 8191]


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x, w):
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def gradient(g, y):
    """A softmax's."""
    return ((g.float() - (g.float() * y.float()).sum(-1, keepdim=True)) * y.float()).to(g.dtype)


def with_special_values(length, dtype):
    x = numbers(9, length, dtype=dtype)
    x[1, 0], x[1, -1], x[3], x[5, 2], x[6, 255] = INF, INF, -INF, NAN, -INF
    return x


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", list(DIGITS))
def test_softmaxes(dtype, length, tmp_path):
    """Rows that begin at each place in a vector, and numbers that are not finite at both ends."""
    x = with_special_values(length, dtype)
    check(softmax, tmp_path, x, cores=1, digits=DIGITS[dtype])
    assert plan_of(softmax, x, cores=1).to_its_end


@pytest.mark.parametrize(
    ("length", "dtype"), [(1025, torch.float16), (4097, torch.float16), (8191, torch.bfloat16)]
)
def test_log_softmaxes_and_a_softmaxs_gradient(length, dtype, tmp_path):
    x, y = with_special_values(length, dtype), numbers(9, length, dtype=dtype, seed=1)
    check(lambda x: torch.log_softmax(x, 1), tmp_path, x, cores=1, digits=2 * DIGITS[dtype])
    check(gradient, tmp_path, numbers(9, length, dtype=dtype), y / 64, cores=1, digits=8 * DIGITS[dtype])
    assert plan_of(gradient, x, y, cores=1).to_its_end


@pytest.mark.parametrize("length", [1025, 1287, 4097])
@pytest.mark.parametrize("dtype", list(DIGITS))
def test_norms_whose_weight_lies_anew_for_each_place_where_a_row_may_begin(
    dtype, length, tmp_path, monkeypatch
):
    monkeypatch.setattr("braze.schedule.forms.shifted.LEAST_ROWS", 8)
    x, w, b = (numbers(*s, dtype=dtype, seed=k) for k, s in enumerate([(9, length), (length,), (length,)]))
    x[4] += 100
    check(layer_norm, tmp_path, x, w, b, cores=1, digits=4 * DIGITS[dtype])
    assert plan_of(layer_norm, x, w, b, cores=1).to_its_end
    check(rms_norm, tmp_path, x, w, cores=1, digits=4 * DIGITS[dtype])


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(1, 1025),
        lambda: numbers(3, 3, 1025),
        lambda: numbers(9, 1030)[:, 3:-2],  # the rows that are read begin elsewhere than those that are written
        lambda: numbers(9, 1025, 2)[..., 1],
        lambda: numbers(1025, 9).t(),
        lambda: numbers(9, 1).expand(9, 1025),
        lambda: numbers(1, 1025).expand(9, 1025),
        lambda: numbers(19, 1025)[1::2],
    ],
    ids=["one row", "a batch", "a window", "every second", "turned", "one number", "one row again", "every second row"],
)  # fmt: skip
def test_rows_that_lie_otherwise(make, tmp_path):
    check(softmax, tmp_path, make(), cores=1)
    check(lambda x: x - x.mean(-1, keepdim=True), tmp_path, make(), cores=1)


@pytest.mark.parametrize("length", [1025, 4097])
@pytest.mark.parametrize("dtype", list(DIGITS))
def test_rows_that_nothing_is_stored_along(dtype, length, tmp_path):
    x = with_special_values(length, dtype)
    for fn in (lambda x: x.amax(1), lambda x: torch.logsumexp(x, 1), lambda x: (x > 3).any(1)):
        check(fn, tmp_path, x, cores=1, digits=DIGITS[dtype])
        assert plan_of(fn, x, cores=1).to_its_end
    x = numbers(9, length, dtype=dtype)
    check(lambda x: torch.var_mean(x, 1), tmp_path, x, cores=1, digits=DIGITS[dtype])
    check(lambda x: x.sum(1), tmp_path, x, cores=1, digits=64 * DIGITS[dtype])


def text_of(fn, *inputs):
    """The last kernel of a function of bfloat16 on a Hopper GPU."""
    return generate(planned(fn, *inputs), context())[-1].source


def test_what_lies_around_the_vectors_of_a_row_is_one_number_a_thread_and_joined_with_its_own():
    x = torch.empty(8192, 4097, dtype=torch.bfloat16)
    for fn, exchanges in ((softmax, 2), (lambda x: x - x.float().sum(1, keepdim=True).bfloat16(), 1)):
        text = text_of(fn, x)
        assert "ebase = tl.arange(0, 128)[None, :]" in text
        assert len(re.findall(r"tl\.(?:reduce|sum)\(.*, None[,)]", text)) == exchanges
    several = text_of(lambda x: x.float().sum(1), torch.empty(1 << 16, 1025, dtype=torch.bfloat16))
    assert "ebase = tl.arange(0, 16)[None, :]" in several  # a warp has two rows
    assert "ebase = tl.arange(0, 8)[None, :]" in text_of(softmax, x.float())  # a thread has two vectors


def test_powers_that_are_wanted_again_are_made_once_and_others_in_the_walk_that_finds_the_maximum():
    x = torch.empty(8192, 4097, dtype=torch.bfloat16)
    assert "bz_below" not in text_of(softmax, x)
    assert "bz_below" in text_of(lambda x: torch.log_softmax(x, 1), x)


def test_rows_that_vectors_divide_are_held_whole_as_they_were():
    for length in (1032, 2048, 4096, 8192):
        assert plan_of(softmax, numbers(9, length, dtype=torch.bfloat16), cores=1).whole


def test_few_rows_are_held_whole_by_as_many_warps_as_they_can_have(monkeypatch):
    monkeypatch.undo()
    x = torch.empty(1024, 4097, dtype=torch.bfloat16)
    assert plan_of(softmax, x, cores=1).to_its_end
    assert plan_of(softmax, x[:256], cores=1).whole


def test_warps_are_counted_by_what_is_read_along_the_row():
    """Not by what a row leaves."""
    x = torch.empty(9, 4097, dtype=torch.bfloat16)
    plans = [plan_of(fn, x, cores=1) for fn in (softmax, lambda x: torch.logsumexp(x.float(), 1))]
    assert [plan.warps for plan in plans] == [4, 4]


def test_rows_of_which_two_words_would_be_held_for_each_element_are_held_whole():
    x, y = numbers(9, 1025), numbers(9, 1025)
    assert plan_of(gradient, x, y, cores=1).whole
    assert plan_of(gradient, x.half(), y.half(), cores=1).to_its_end


@pytest.mark.parametrize(
    ("length", "dtype", "registers"),
    [
        (4097, torch.float32, 64),
        (8191, torch.bfloat16, 0),
        (1025, torch.float32, 0),
    ],
)
def test_long_rows_of_norms_of_floats_keep_to_fewer_registers(length, dtype, registers):
    x, w, b = (torch.empty(s, dtype=dtype) for s in [(9, length), (length,), (length,)])
    assert plan_of(layer_norm, x, w, b, cores=1).registers == registers
    assert plan_of(softmax, x, cores=1).registers == 0
