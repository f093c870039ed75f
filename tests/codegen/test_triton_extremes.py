"""Places of extremes in rows that one tile holds whole, in Triton's interpreter: eager's, of numbers, of what is none, and of equals."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from tests.codegen.test_triton_forms import INF, NAN, numbers
from tests.codegen.triton_bench import context, interpreted, planned

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def rows_of(length, dtype):
    """Few numbers, each many times; and rows of the least and greatest."""
    x = (numbers(9, length) * 1.5).round()
    x = x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)
    if dtype.is_floating_point:
        x[1], x[2] = -INF, INF
        x[3, ::2] = x[3, 1::2] = 0.0
        x[3, ::3] = -0.0
        x[4, length // 2], x[5, 0], x[6, -1], x[7] = NAN, NAN, NAN, NAN
        x[8] = -INF
        x[8, length // 3] = NAN
    else:
        x[1], x[2] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x


def same(fn, folder, x):
    """Equal to eager's, whatever is no number."""
    results = interpreted(fn, folder, x)[1]
    for ours, theirs in zip(results, torch.utils._pytree.tree_leaves(fn(x)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [1, 7, 8, 33, 128, 1025])
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_the_first_of_equals_and_what_is_no_number_before_all(dtype, length, tmp_path):
    x = rows_of(length, dtype)
    same(lambda x: (x.argmax(1), x.argmin(1)), tmp_path, x)
    same(lambda x: x.max(1, keepdim=True), tmp_path, x)
    same(lambda x: x.min(1), tmp_path, x)


def test_extremes_of_what_is_made_of_a_row(tmp_path):
    """Of the row's own sums, of several at once, of what is stored too."""
    x = rows_of(64, torch.float32).nan_to_num(0.5, 2, -2)
    same(lambda x: ((x - x.amax(1, keepdim=True)).abs().argmax(1), x.amin(1)), tmp_path, x)
    same(lambda x: (x.argmin(1), (x * 2 + 1).argmax(1), x.amax(1)), tmp_path, x)
    same(lambda x: (x.abs(), x.abs().argmax(1)), tmp_path, x)
    same(lambda x: x.reshape(9, 8, 8).amax(2).argmax(1), tmp_path, x)


def test_the_few_among_which_an_extreme_is_are_read_again_where_one_instruction_reads_them():
    x, odd = (torch.empty(4096, n, dtype=torch.bfloat16, device="meta") for n in (1024, 1025))

    def again(fn, x):
        return any("pindex" in text.source for text in generate(planned(fn, x), context()))

    assert again(lambda x: x.argmax(1), x) and again(lambda x: x.max(1), x.float())
    assert not again(lambda x: x.argmax(1), odd) and not again(lambda x: x.argmax(1), x.double())
    assert not again(lambda x: F.dropout(x, 0.5, True).argmax(1), x)
    assert not again(lambda x: (y := x.abs(), y.argmax(1)), x)


def test_the_place_of_an_extreme_of_a_walked_row_is_sought_in_whole_vectors_where_that_is_quicker():
    """Of halves that lie side by side, and of nothing that a second look could find changed or elsewhere."""
    x = torch.empty(64, 1 << 17, dtype=torch.bfloat16, device="meta")
    table, places = x + 1, torch.empty(64, 1 << 17, dtype=torch.int64, device="meta")

    def whole(fn, *inputs):
        return any("RBLOCK // 8" in t.source for t in generate(planned(fn, *inputs), context()))

    assert whole(lambda x: x.argmax(1), x) and whole(lambda x: (x * 2).argmin(1), x)
    assert not whole(lambda x: x.argmax(1), x.float())
    assert not whole(lambda x: x.argmax(1), torch.empty(64, (1 << 17) + 1, dtype=x.dtype, device="meta"))
    assert not whole(lambda x: F.dropout(x, 0.5, True).argmax(1), x)
    assert not whole(lambda x, table, places: (x + table.gather(1, places)).argmax(1), x, table, places)
    few = torch.empty(64, dtype=torch.int8, device="meta")
    assert not whole(lambda x, table, few: (x + F.embedding(few.long(), table)).argmax(1), x, table, few)


def test_an_extreme_is_found_once_for_its_value_and_its_place():
    (text,) = generate(planned(lambda x: x.max(1), torch.empty(4096, 101, device="meta")), context())
    assert text.source.count("tl.reduce(") == 1 and "bz_argmax" not in text.source
