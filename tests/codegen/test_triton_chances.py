"""Random numbers on a GPU: their words, as Philox gives them, and comparisons with known numbers, which are made of the words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from braze.codegen import triton as triton_code
from braze.codegen.triton import chances
from braze.codegen.triton.chances import WORDS, words_below
from braze.codegen.triton.kernels import HEADER
from braze.codegen.triton.prelude import used
from braze.runtime.operators.philox import philox
from braze.runtime.triton.triton_worker import load_module
from tests.codegen.triton_bench import context, interpreted, planned

NAN, INF = float("nan"), float("inf")
LIMITS = [0.9, 0.1, 0.5, 2**-31, 1e-38, 0.0, -0.0, -1.0, 1.0, 0.99999994, 7.0, INF, -INF, NAN]


def drawn(*shape):
    return lambda seed: torch.ops.braze.uniform(seed, shape)


def less_than(draw, limit):
    return lambda seed: draw(seed) < limit


def more_than(draw, number):
    return lambda seed: draw(seed) + number


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1, 2**62 + 3, -(2**62) - 1])
def test_words_are_philoxs(seed, dtype, tmp_path):
    """Of places beyond 32 bits, too."""
    begin = 2**31 - 40 if dtype == "int32" else 2**34 - 20
    text = f"""{HEADER}
{used("bz_words(")}

@triton.jit
def words(seed, a, b):
    place = tl.arange(0, 32).to(tl.{dtype}) + {begin}
    first, second, _, _ = bz_words(tl.load(seed), place)
    tl.store(a + tl.arange(0, 32), first.to(tl.int32, bitcast=True))
    tl.store(b + tl.arange(0, 32), second.to(tl.int32, bitcast=True))
"""
    path = tmp_path / "words.py"
    path.write_text(text)
    a, b = torch.zeros(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    load_module(path).words[(1,)](torch.tensor(seed), a, b)
    wanted = philox(seed, begin + np.arange(32))
    for found, words in zip((a, b), wanted, strict=True):
        assert np.array_equal(found.numpy().view(np.uint32).astype(np.uint64), words)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(("rows", "width"), [(3, 64), (5, 30)])
def test_a_comparison_is_that_of_the_number(limit, rows, width, tmp_path):
    draw, seed = drawn(rows, width), torch.tensor(11)
    both = lambda seed: (draw(seed), draw(seed) < limit)
    numbers, less = interpreted(both, tmp_path, seed)[1]
    assert torch.equal(less, numbers < torch.tensor(limit)) and 0 <= numbers.min() <= numbers.max() < 1


def test_a_number_is_not_less_than_itself(tmp_path):
    """A limit that is drawn: where its own word ends what counts."""
    draw, seed = drawn(4, 16), torch.tensor(3)
    numbers = interpreted(more_than(draw, 0.0), tmp_path, seed)[1][0]
    for at in (0, 5, 63):
        limit = numbers.flatten()[at].item()
        less = interpreted(less_than(draw, limit), tmp_path, seed)[1][0]
        assert torch.equal(less, numbers < limit) and not less.flatten()[at]


@pytest.mark.parametrize("limit", [0.9, 0.1, 2**-31, 1e-3, 0.99999994, 4.6566127342e-10, 0.123456789])
def test_so_many_numbers_are_below_a_limit(limit):
    few = words_below(limit)
    assert 0 < few < WORDS
    assert chances._number(few - 1) < np.float32(limit) <= chances._number(few)


def test_all_numbers_or_none_are_below_a_limit():
    assert words_below(1.0) == words_below(INF) == WORDS
    assert words_below(0.0) == words_below(-3.0) == words_below(NAN) == 0


@pytest.mark.parametrize("shape", [(16, 1024), (8, 4096), (7, 8, 1028), (6, 1023)])
def test_what_a_thread_stores_it_draws(shape, tmp_path):
    """Eight words of 16-bit elements and four of others, along rows too: the same are dropped."""
    draw, seed = drawn(*shape), torch.tensor(9)
    drop = lambda seed, x: torch.where(draw(seed) < 0.7, x, 0.0)
    x = torch.ones(shape)
    wide, narrow = [interpreted(drop, tmp_path, seed, x.to(t))[1][0] for t in (torch.float32, torch.bfloat16)]
    assert torch.equal(wide, narrow.float()) and 0.65 < wide.mean() < 0.75
    along = lambda seed, x: drop(seed, x) - drop(seed, x).float().sum(-1, keepdim=True).to(x.dtype) * 0
    for t in (torch.float32, torch.bfloat16):
        assert torch.equal(interpreted(along, tmp_path, seed, x.to(t))[1][0].float(), wide)
    for dtype, words in ((torch.float32, "bz_4_words("), (torch.bfloat16, "bz_8_words(")):
        (text,) = triton_code.generate(planned(drop, seed, x.to(dtype)), context())
        assert f"= {words}" in text.source and "bz_uniform(" not in text.source


def test_lists_are_dropped_by_a_chance_each(tmp_path):
    """Kernels that differ in their limits alone are one text, whose numbers are then the members' own."""
    limits, sizes = (0.2, 0.9, 0.5, 0.7), (1000, 1501, 2100, 33)

    def drop(seed, a, b, c, d):
        each = zip(limits, sizes, (a, b, c, d), strict=True)
        return [torch.where(drawn(n)(seed) < p, x, 0.0) for p, n, x in each]

    seed, lists = torch.tensor(4), [torch.full((n,), n / 7) for n in sizes]
    plan, found = interpreted(drop, tmp_path, seed, *lists)
    assert [len(g.members) for g in plan.groups] == [4]
    (text,) = triton_code.generate(plan, context())
    assert text.source.count("= bz_is_among(") < 4
    for p, x, kept in zip(limits, lists, found, strict=True):
        numbers = interpreted(more_than(drawn(len(x)), 0.0), tmp_path, seed)[1][0]
        assert torch.equal(kept, torch.where(numbers < p, x, 0.0))
