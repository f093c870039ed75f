"""The search for where top-k and top-p end finds what ordering the vocabulary finds, and draws by weight."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import braze
from braze.serving.engine import kept
from braze.serving.engine.compiled import compiled_rows
from braze.serving.engine.kept import Rows, bound, cleaned, distances, keys_of, left, weighed
from braze.serving.engine.sampling import SamplingParams, number_of, sample
from tests.serving.cases import share
from tests.serving.engine.tiny import engine, tiny

TYPES = (torch.float32, torch.bfloat16, torch.float16)
#: few, so that many are equal; ends of the range, infinite ones, zeros of both signs, and no numbers
VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.5, -3.0, 8.0, 30.0, -1e30, 3e38, math.inf, -math.inf, math.nan])
LOGITS = st.lists(VALUES | st.floats(-20, 20, width=32), min_size=1, max_size=300)
WARM = st.sampled_from([1.0, 0.1, 0.7, 100.0, 1e-30])
SHARES = st.sampled_from([1.0, 0.5, 0.25, 0.9, 1e-300, 5e-324, 1 - 1e-12]) | st.floats(0.001, 0.999)


def ordered(logits: torch.Tensor, cold: float, many: int, part: float) -> torch.Tensor:
    """Whether each token of a row is kept, by putting all in order."""
    clean = cleaned(logits)
    weights = weighed(distances(clean, clean.amax(), cold))
    order = torch.where(clean == 0, 0.0, clean).sort(descending=True, stable=True).indices[:many]
    before = weights[order].cumsum(0) - weights[order]
    found = torch.zeros(len(logits), dtype=torch.bool)
    found[order[before < bound(weights[order].sum(), torch.tensor(part, dtype=torch.float64))]] = True
    return found


def searched(
    rows: Rows, logits: torch.Tensor, colds: list[float], many: list[int], parts: list[float]
) -> torch.Tensor:
    """The same of several rows at once, by the search."""
    column = [
        torch.tensor(values, dtype=dtype)[:, None]
        for values, dtype in ((colds, torch.float32), (many, torch.int64), (parts, torch.float64))
    ]
    size = logits.shape[-1]
    apart = all(k >= size or p == 1 for k, p in zip(many, parts, strict=True))
    cut = rows.cut(logits, *column, apart=apart)
    return left(keys_of(cleaned(logits), kept._EMPTY.get(logits.dtype, 0)), cut)


@settings(max_examples=share(2), deadline=None)
@given(LOGITS, st.sampled_from(TYPES), WARM, st.integers(1, 320), SHARES)
def test_the_search_keeps_what_ordering_keeps(values, dtype, warmth, many, part):
    """Ties, top-k beyond the vocabulary, shares of 1 and near 0, logits that are infinite or no numbers."""
    logits = torch.tensor(values, dtype=torch.float32).to(dtype)
    size = len(values)
    cases = [(min(many, size), part), (min(many, size), 1.0), (size, part), (size, 1.0)]
    found = searched(Rows(), logits.expand(4, -1), [1 / warmth] * 4, *map(list, zip(*cases, strict=True)))
    inorder = searched(
        Rows(few=4), logits.expand(4, -1), [1 / warmth] * 4, *map(list, zip(*cases, strict=True))
    )
    assert inorder.equal(found)
    for row, (k, p) in zip(found, cases, strict=True):
        assert row.equal(ordered(logits, 1 / warmth, k, p)), (k, p)
    apart = searched(Rows(), logits.expand(2, -1), [1 / warmth] * 2, [cases[1][0], size], [1.0, part])
    assert apart[0].equal(found[1]) and apart[1].equal(found[2])


@settings(max_examples=share(2), deadline=None)
@given(LOGITS, WARM, st.integers(0, 320), SHARES, st.integers(0, 2**64 - 1))
def test_the_processor_and_the_search_draw_what_ordering_keeps(values, warmth, many, part, number):
    logits = torch.tensor(values, dtype=torch.float32)
    params = SamplingParams(temperature=warmth, top_k=many, top_p=part)
    may = ordered(logits, 1 / warmth, min(many or len(values), len(values)), part)
    for rows in (None, Rows()):
        token = int(sample(logits[None], [params], [number], rows))
        assert may[token]
        assert not math.isnan(values[token]) or all(math.isnan(v) or v == -math.inf for v in values)


@settings(max_examples=share(1), deadline=None)
@given(
    LOGITS,
    st.sampled_from(TYPES),
    st.lists(st.tuples(WARM, st.integers(0, 2**64 - 1)), min_size=1, max_size=4),
)
def test_without_bounds_all_tokens_are_drawn_from_as_with_bounds_that_leave_all(values, dtype, rows):
    logits = torch.tensor(values, dtype=torch.float32).to(dtype).expand(len(rows), -1)
    params = [SamplingParams(temperature=warmth) for warmth, _ in rows]
    numbers = [number for _, number in rows]
    column = [
        torch.tensor(v)[:, None] for v in ([n & 0xFFFFFFFF for n in numbers], [n >> 32 for n in numbers])
    ]
    colds = torch.tensor([1 / warmth for warmth, _ in rows], dtype=torch.float32)[:, None]
    top, end = kept.greatest(logits), torch.full(colds.shape, -(1 << 31))
    bounded = kept.drawn(logits, top, colds, end, torch.zeros_like(end), *column)
    assert sample(logits, params, numbers, Rows()).equal(bounded)


class Operators(TorchDispatchMode):
    """Counts what is not a view."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func is not torch.ops.aten._unsafe_view.default:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("temperatures", "launches"),
    [([0.7], ["repeat", "of_all"]), ([0.7, 1.0, 0.3], ["of_all"]), ([0.7, 0.0], ["of_all", "eq", "where"])],
)
def test_a_step_that_draws_from_all_tokens_launches_little_else(temperatures, launches):
    """Of few rows on a GPU a step waits for the host. The greatest logits of recorded steps are there; numbers go over by one copy."""
    called: list[str] = []

    def compiled(function):
        def call(*args, **words):
            called.append(function.__name__)
            with _disable_current_modes():
                return function(*args, **words)

        return call

    logits = torch.randn(len(temperatures), 50)
    params = [SamplingParams(temperature=t) for t in temperatures]
    numbers, best, rows = [number_of(7, i) for i in range(len(params))], logits.argmax(-1), Rows(compiled)
    with Operators() as seen:
        found = sample(logits, params, numbers, rows, best)
    names = [name.split(".")[1] for name in seen.names if "alias" not in name and "_to_copy" not in name]
    assert sorted(names + called) == sorted(launches)
    assert found.equal(sample(logits, params, numbers, Rows()))


@pytest.mark.parametrize(("many", "part"), [(0, 0.999), (1500, 0.9), (1500, 1.0), (40, 0.5), (9999, 1.0)])
def test_of_many_tokens_the_processor_keeps_what_ordering_keeps(many, part):
    """Whether the share is found among the heaviest, or not."""
    logits = torch.randn(4000, generator=torch.Generator().manual_seed(3)).mul(2).round() / 2
    params = SamplingParams(temperature=1.5, top_k=many, top_p=part)
    may = ordered(logits, 1 / 1.5, min(many or 4000, 4000), part)
    drawn = torch.cat([sample(logits[None], [params], [number_of(1, i)]) for i in range(300)])
    assert may[drawn].all()
    weights = logits.div(1.5).exp() * may
    heavy = weights / weights.sum() > 0.01
    assert heavy[drawn].float().mean().sub(weights[heavy].sum() / weights.sum()).abs() < 0.1


def test_exponentials_are_of_their_distribution():
    """By the share of them below each of some bounds, and of two rows of neighbouring numbers together."""
    low, high = (torch.tensor([[5], [6]]) for _ in range(2))
    found = kept.exponentials(low, high, 200_000)
    for limit in (1e-3, 0.1, 0.7, 2.0, 5.0):
        chance = 1 - math.exp(-limit)
        wide = 5 * math.sqrt(chance * (1 - chance) / 200_000)
        assert ((found < limit).float().mean(-1) - chance).abs().max() < wide
        both = ((found[0] < limit) & (found[1] < limit)).float().mean()
        assert abs(both - chance**2) < 5 * math.sqrt(chance**2 / 200_000)
    assert found.isfinite().all() and (found > 0).all()


def test_few_rows_are_put_in_order_and_many_are_searched(monkeypatch):
    """A row's token is the same in either company."""
    rows, asked = compiled_rows(), []
    monkeypatch.setattr(rows, "nearer", lambda *words: asked.append(1) or kept.nearer(*words))
    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(1)).mul(4).round().bfloat16()
    params = [
        SamplingParams(temperature=1.0, top_k=(0, 9)[i % 2], top_p=(0.7, 1.0)[i // 2 % 2]) for i in range(20)
    ]
    draws = [number_of(4, i) for i in range(20)]
    few = sample(logits[:8], params[:8], draws[:8], rows)
    assert not asked
    many = sample(logits, params, draws, rows)
    assert asked and many[:8].equal(few)


def test_compiled_rows_keep_and_draw_what_plain_ones_do():
    """For one row, which goes as two, and for several."""
    compiled_rows.cache_clear()
    braze.reset()
    numbers = torch.Generator().manual_seed(0)
    for count in (2, 5, 1):
        logits = torch.randn(count, 700, generator=numbers).mul(3).round().bfloat16()
        params = [
            SamplingParams(temperature=0.5 + i, top_k=(0, 7, 20)[i % 3], top_p=(0.8, 1.0)[i % 2])
            for i in range(count)
        ]
        draws = [number_of(9, i) for i in range(count)]
        plain = sample(logits, params, draws, Rows())
        assert sample(logits, params, draws, compiled_rows()).equal(plain)
        assert searched(
            compiled_rows(), logits.repeat(2, 1), [0.7] * count * 2, [20] * count * 2, [0.6] * count * 2
        ).equal(searched(Rows(), logits.repeat(2, 1), [0.7] * count * 2, [20] * count * 2, [0.6] * count * 2))


def test_what_draws_is_compiled_before_anything_is_served():
    """A warm-up calls each function that a GPU's draws call."""
    runner, called = engine(tiny()).runner, set()

    def noted(function):
        return lambda *given: called.add(function.__name__) or function(*given)

    runner.drawing.rows = Rows(noted, few=3)  # up to so many rows are put in order, and more searched
    runner.warm_up()
    assert called == {"greatest", "weight", "nearer", "last_place", "drawn", "of_all"}
