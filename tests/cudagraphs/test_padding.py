"""Calls of a marked batch are filled up to sizes that are recorded, where rows are independent, and only there."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.support import log
from braze.support.errors import UserError
from tests.cudagraphs.helpers import assert_equal, noted, numbers, placed, recordings, tensor
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def no_gradients():
    log.forget_warnings()
    with torch.no_grad():
        yield


def marked(*shape):
    x = numbers(*shape)
    braze.mark_batch(x, 0)
    return x


def laddered(fn, sizes=(4, 8), **options):
    given = {"cudagraphs": True, "cudagraph_launches": 1, "cudagraph_sizes": list(sizes), **options}
    return braze.compile(fn, options=given)


def run(fn, rows=(3, 2, 3, 5, 6, 7, 3, 2, 5, 4, 8), width=6, **options):
    """Calls of these numbers of rows; how many recordings were made, and the codes noted."""
    f, kept = laddered(fn, **options), []
    with recordings() as made, noted() as codes:
        for n in rows:
            x = marked(n, width)
            kept.append((f(x), fn(x)))
            for ours, theirs in kept:
                assert_equal(ours, theirs)
            kept = kept[-2:]
        return made(), codes()


def test_sizes_between_recorded_ones_are_filled_up():
    layer = placed(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.GELU()))
    made, codes = run(lambda x: layer(x).softmax(-1))
    assert 2 <= made <= 6
    assert not {"BZ6215"} & set(codes)


def test_each_size_is_filled_up_to_the_next():
    layer = placed(torch.nn.Linear(6, 6))
    f = laddered(lambda x: layer(x).relu(), sizes=(16, 4))
    for n in (3, 3, 3, 3):
        f(marked(n, 6))
    with recordings() as made:
        for n in (2, 3, 4):
            x = marked(n, 6)
            assert_equal(f(x), layer(x).relu())
        assert made() <= 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x - x.mean(0),
        lambda x: x.cumsum(0).flip(0),
        lambda x: x / x.shape[0],
        lambda x: x @ x.t(),
        lambda x: (x, x.amax(0)),
        lambda x: x.flip(0),
    ],
    ids=["mean", "cumsum", "number", "product", "maximum", "flip"],
)
def test_rows_that_are_not_independent_are_not_filled_up(fn):
    assert "BZ6215" in run(fn)[1]


def test_that_rows_are_not_independent_is_told_once():
    with logged() as messages:
        run(lambda x: x - x.mean(0))
    assert sum(m.startswith("BZ6215") for m in messages) == 1


def test_rows_that_lie_beside_each_other_in_results():
    made, codes = run(lambda x: (x.view(-1), (x * 2).reshape(-1, 3), x.sin().unsqueeze(1)))
    assert made >= 2 and "BZ6215" not in codes


def test_places_are_filled_up_with_places_that_are_there():
    table = numbers(10, 4)
    fn = lambda i: table[i] * 2
    f = laddered(fn)
    for n in (3, 2, 5, 6, 3, 2):
        i = torch.randint(0, 10, (n,)).to(table.device)
        braze.mark_batch(i, 0)
        assert_equal(f(i), fn(i))


def test_two_inputs_of_one_batch():
    fn = lambda x, y: (x @ torch.ones(6, 6, device=x.device)) * y
    f = laddered(fn)
    with recordings() as made, noted() as codes:
        for n in (3, 2, 3, 2, 3):
            x, y = marked(n, 6), marked(n, 1)
            assert_equal(f(x, y), fn(x, y))
        assert 1 <= made() <= 3 and "BZ6215" not in codes()


def test_special_values_of_real_rows_come_through():
    fn = lambda x: x * 2 + 1
    f = laddered(fn)
    for n in (3, 3, 2, 3):
        x = marked(n, 4)
        x[0] = tensor([float("nan"), float("inf"), -0.0, -float("inf")])
        assert_equal(f(x), fn(x))


def test_past_the_last_size_calls_run_unrecorded_and_that_is_told_once():
    f = laddered(lambda x: x * 2)
    with logged() as messages:
        for n in (3, 3, 9, 10, 11, 3):
            x = marked(n, 4)
            assert_equal(f(x), x * 2)
    assert sum(m.startswith("BZ6206") for m in messages) == 1


def test_a_graph_that_writes_an_input_is_not_filled_up():
    def fn(x, total):
        total[1] = 2 * total[0]
        return x * total

    f, ours = laddered(fn), numbers(4)
    theirs = ours.clone()
    with noted() as codes:
        for n in (3, 2, 3, 2):
            x = marked(n, 4)
            assert_equal(f(x, ours), fn(x, theirs))
            assert_equal(ours, theirs)
        assert "BZ6215" in codes() or ours.is_cuda  # on a GPU inputs are written after the graph


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: x @ x.t(), "are not the outermost in memory"),
        (lambda x: torch.nn.functional.dropout(x * 2, 0.5), "it draws random numbers"),
        (lambda x: (x * 2, x.shape[0] + 1), "is the number of rows"),
        (lambda x: (x * 2).t().contiguous(), "are not the outermost in memory"),
    ],
)
def test_a_graph_that_has_no_rows_to_fill_up_is_told_once(fn, why):
    f = laddered(fn)
    with logged() as messages:
        for n in (3, 5, 3, 6, 3):
            x = marked(n, 4)
            ours = f(x)
            if "random" not in why:
                assert_equal(ours, fn(x))
    told = [m for m in messages if m.startswith("BZ6215")]
    assert len(told) == 1 and why in told[0]


def test_a_graph_that_is_cut_is_filled_up_too():
    @torch.library.custom_op("braze_pads::halved", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    halved.register_fake(lambda x: torch.empty_like(x))
    w = numbers(6, 6)
    made, codes = run(lambda x: halved(x @ w).relu() @ w)
    assert made >= 3 and "BZ6215" not in codes


def test_results_are_the_callers_own():
    f = laddered(lambda x: x + 1)
    for _ in range(3):
        f(marked(3, 4))
    x = marked(3, 4)
    y = f(x)
    assert not y._is_view() and y.shape == (3, 4)
    y.add_(1)
    z = f(x)
    assert_equal(y, x + 2)
    assert_equal(z, x + 1)


def test_a_mark_makes_the_size_a_symbol():
    f = braze.compile(lambda x: x * 2, options={"recompile_limit": 1, "on_overflow": "error"})
    for n in (5, 6, 7):
        x = marked(n, 3)
        assert_equal(f(x), x * 2)


def test_a_size_that_the_program_fixes_is_an_error():
    f = braze.compile(lambda x: x * 2 if x.shape[0] == 5 else x)
    with pytest.raises(UserError, match="BZ0022"):
        f(marked(5, 3))
