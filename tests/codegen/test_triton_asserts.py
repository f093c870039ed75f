"""Indices that do not exist on a GPU: kernels assert those that are not known to, here in Triton's interpreter, where that is an IndexError."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from tests.codegen.test_triton_forms import numbers
from tests.codegen.triton_bench import computed_bounds, context, interpreted, planned

aten = torch.ops.aten
I64 = torch.int64


def rows_of(i):
    """Each index for a row of eight."""
    return i.unsqueeze(1).expand(9, 8)


def classes(i):
    """One of eight classes for each that exists."""
    return aten.where(aten.lt(aten.abs(i - 11), 12), i % 8, i)


#: name -> function of (a matrix of 23 x 8, 9 x 8 values, 9 indices of 23 rows); those that count negative ones from the end
FORMS = {
    "embedding": lambda x, v, i: aten.embedding(x, i) * 2,
    "index_select": lambda x, v, i: aten.index_select(x, 0, i) * 2,
    "index_select of int32": lambda x, v, i: aten.index_select(x, 0, i.int()) * 2,
    "gather": lambda x, v, i: aten.gather(x, 0, rows_of(i)) * 2,
    "sums of what is gathered": lambda x, v, i: aten.sum(aten.gather(x, 0, rows_of(i)), [1]),
    "index_copy": lambda x, v, i: aten.index_copy(x, 0, i, v),
    "index_add": lambda x, v, i: aten.index_add(x, 0, i, v),
    "index_add to zeros": lambda x, v, i: aten.index_add(x.new_zeros(23, 8), 0, i, v),
    "scatter": lambda x, v, i: aten.scatter(x, 0, rows_of(i), v),
    "scatter of a number": lambda x, v, i: aten.scatter(x, 0, i.unsqueeze(1), 2),
    "scatter of one for each row": lambda x, v, i: aten.scatter(v, 1, classes(i).unsqueeze(1), v.narrow(1, 0, 1)),
    "scatter_add": lambda x, v, i: aten.scatter_add(x, 0, rows_of(i), v),
    "scatter_reduce": lambda x, v, i: aten.scatter_reduce(x, 0, rows_of(i), v, "sum"),
    "cross entropy": lambda x, v, i: aten.nll_loss_forward(aten.log_softmax(v, 1), classes(i), None, 1, -100)[0],
}  # fmt: skip
WRAPPED = {
    "index": lambda x, v, i: aten.index(x, [i]) * 2,
    "index of both": lambda x, v, i: aten.index(x, [i, i * 0]) * 2,
    "index_put": lambda x, v, i: aten.index_put(x, [i], v),
    "index_put of sums": lambda x, v, i: aten.index_put(x, [i], v, True),
    "index_fill": lambda x, v, i: aten.index_fill(x, 0, i, 3),
}  # fmt: skip


def given(*changed):
    i = torch.arange(9)
    for number in changed:
        i[4] = number
    return numbers(23, 8), numbers(9, 8), i


@pytest.mark.parametrize("beyond", [24, -24, 1 << 40])
@pytest.mark.parametrize("name", {**FORMS, **WRAPPED})
def test_an_index_that_does_not_exist_is_told(name, beyond, tmp_path):
    if "int32" in name and beyond > 1 << 31:
        pytest.skip("no number of int32")
    low = "-23" if name in WRAPPED else "0"
    size = 8 if name in ("cross entropy", "scatter of one for each row") else 23
    with pytest.raises(
        IndexError, match=f"BZ5013: index out of bounds, {low} <= index < {size} does not hold, in .*"
    ):
        interpreted({**FORMS, **WRAPPED}[name], tmp_path, *given(beyond))


@pytest.mark.parametrize("name", FORMS)
def test_an_index_counts_from_the_end_only_where_eager_s_does(name, tmp_path):
    with pytest.raises(IndexError, match="BZ5013"):
        interpreted(FORMS[name], tmp_path, *given(-1))


@pytest.mark.parametrize("last", [22, -1, -23])
@pytest.mark.parametrize("name", WRAPPED)
def test_the_first_and_the_last_index_exist(name, last, tmp_path):
    inputs = given(last)
    _, (found,) = interpreted(WRAPPED[name], tmp_path, *inputs)
    torch.testing.assert_close(found, WRAPPED[name](*inputs))


def test_places_that_are_filled_on_a_gpu_may_be_counted_from_the_end(tmp_path):
    fn, inputs = WRAPPED["index_fill"], given(-2)
    _, (found,) = interpreted(fn, tmp_path, *inputs)
    assert torch.equal(found, fn(*inputs)) and found[21].eq(3).all()


def test_a_target_that_is_ignored_is_not_looked_at(tmp_path):
    fn, (_, v, i) = FORMS["cross entropy"], given(-100)
    _, (found,) = interpreted(lambda v, i: fn(None, v, i), tmp_path, v, i)
    torch.testing.assert_close(found, fn(None, v, i))


def test_an_index_that_is_read_where_a_condition_holds_is_looked_at_there(tmp_path):
    fn = lambda x, i: aten.index_select(
        aten.constant_pad_nd(aten.index_select(x, 0, i), [0, 0, 2, 3], 0.0), 0, i
    )
    x, _, i = given()
    _, (found,) = interpreted(fn, tmp_path, x, i)
    assert torch.equal(found, fn(x, i))


def asserted(fn, *inputs, **options):
    texts = generate(planned(fn, *inputs, **options), context(**options))
    return [line.strip() for t in texts for line in t.source.split("\n") if "tl.device_assert" in line]


#: what is known to exist, of a matrix of 23 x 8 and 9 numbers
KNOWN = {
    "counted": lambda x, i: aten.index_select(x, 0, aten.arange.start_step(0, 23, 2, device=x.device)),
    "counted to the end": lambda x, i: aten.index(x, [aten.arange.start_step(-23, 23, 2, device=x.device)]),
    "clamped": lambda x, i: aten.index_select(x, 0, aten.clamp(i, 0, 22)),
    "clamped from the end on": lambda x, i: aten.index(x, [aten.clamp(i, -23, 22)]),
    "modulo": lambda x, i: aten.index(x, [aten.remainder(i, 23)]),
    "modulo, and more": lambda x, i: aten.index(x, [aten.remainder(i, 20) + 3]),
    "half": lambda x, i: aten.index(x, [aten.div(aten.remainder(i, 46), 2, rounding_mode="floor")]),
    "bits": lambda x, i: aten.index(x, [aten.bitwise_and(i, 15)]),
    "truth": lambda x, i: aten.index(x, [aten._to_copy(aten.gt(i, 0), dtype=I64)]),
    "a place of an extreme": lambda x, i: aten.index(x, [aten.argmax(x, 0)]),
    "in memory": lambda x, i: (aten.index(x, [aten.remainder(i, 23)]), aten.remainder(i, 23)),
    "looked up": lambda x, i: aten.index(x, [aten.index(aten.remainder(i, 23), [aten.arange(9, device=x.device)])]),
    "stored at": lambda x, i: aten.index_put(x, [aten.arange(9, device=x.device)], aten.narrow(x, 0, 3, 9)),
}  # fmt: skip
UNKNOWN = {
    "clamped one too far": lambda x, i: aten.index_select(x, 0, aten.clamp(i, 0, 23)),
    "clamped above alone": lambda x, i: aten.index_select(x, 0, aten.clamp_max(i, 22)),
    "clamped below the first": lambda x, i: aten.index_select(x, 0, aten.clamp(i, -1, 22)),
    "modulo, and one too far": lambda x, i: aten.index(x, [aten.remainder(i, 20) + 4]),
    "remainder of either sign": lambda x, i: aten.index_select(x, 0, aten.fmod(i, 23)),
    "a sum that wraps": lambda x, i: aten.index_select(x, 0, aten.clamp_min(i, 0) + 1),
    "a place of an extreme of a longer dim": lambda x, i: aten.index(x, [None, aten.argmax(x, 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_an_index_that_is_known_to_exist_is_not_looked_at(name, tmp_path):
    x, i = numbers(23, 8), torch.tensor([0, 1, -1, 22, 23, -23, 1 << 40, -(1 << 62), 99])
    assert asserted(KNOWN[name], x, i) == []
    wanted = KNOWN[name](x, i)
    _, found = interpreted(KNOWN[name], tmp_path, x, i)
    for ours, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_index_that_is_not_known_to_exist_is_looked_at(name):
    assert len(asserted(UNKNOWN[name], numbers(23, 8), torch.arange(9))) == 1


def test_nothing_is_asserted_where_nobody_is_to_be_told():
    plan = planned(FORMS["embedding"], *given())
    (text,) = generate(plan, context(assert_indices=False))
    (told,) = generate(plan, context())
    assert dict(text.launch.constants)["ASSERTS"] == 0 and dict(told.launch.constants)["ASSERTS"] == 1
    assert text.canonical != told.canonical


@computed_bounds
def test_an_index_of_a_row_that_is_walked_twice_is_looked_at_once(tmp_path):
    fn = lambda x, i: aten.softmax(aten.gather(x, 1, i), 1)
    x, i = numbers(3, 40000), torch.arange(120000).view(3, 40000) * 7 % 40000
    said = asserted(fn, x, i)
    assert said and len(said) == len(set(said))


def test_what_is_measured_of_a_kernel_does_not_go_by_the_line_of_its_index():
    def other(x, v, i):
        return aten.embedding(x, i) * 2

    texts = [generate(planned(fn, *given()), context())[0] for fn in (FORMS["embedding"], other)]
    assert "BZ5013" in texts[0].source and "BZ5013" not in texts[0].work
    assert texts[0].work == texts[1].work
