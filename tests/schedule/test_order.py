"""The order of groups: a topological one, none worse than that which fusion leaves, what is made again just before it is read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.memory.order import Weights, alive, low_peak_order


def group(name: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> Group:
    return Group(name, GroupKind.POINTWISE, reads=reads, writes=writes)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Group], dict[int, set[int]], dict[str, int], set[str]]:
    """Groups of which each writes a value or two and reads some from before; some values leave the program."""
    groups: list[Group] = []
    writer: dict[str, int] = {}
    before: dict[int, set[int]] = {}
    for k in range(draw(st.integers(1, 14))):
        reads = draw(st.lists(st.sampled_from([*writer, "input"]), max_size=3, unique=True))
        before[k] = {writer[n] for n in reads if n in writer}
        writes = [f"b{k}_{i}" for i in range(draw(st.integers(1, 2)))]
        writer.update(dict.fromkeys(writes, k))
        groups.append(group(f"g{k}", tuple(reads), tuple(writes)))
    sizes = {n: draw(st.integers(1, 100)) for n in writer}
    kept = {"input", *(n for n in writer if draw(st.booleans()))}
    return groups, before, sizes, kept


@settings(max_examples=200, deadline=None)
@given(programs())
def test_an_order_is_topological_and_its_peak_no_higher(found):
    groups, before, sizes, kept = found
    weights = Weights(sizes, kept, frozenset(), {})
    order = low_peak_order(groups, before, weights)
    place = {g.name: k for k, g in enumerate(order)}
    assert sorted(place) == sorted(g.name for g in groups) and len(order) == len(groups)
    for k, needs in before.items():
        assert all(place[groups[n].name] < place[groups[k].name] for n in needs)
    assert alive(order, weights)[0] <= alive(groups, weights)[0]


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.randoms(use_true_random=False))
def test_what_is_made_again_is_made_when_it_is_read(layers, random):
    """A backward whose values are all made at its start, in any order: each is moved to its layer."""
    again = [group(f"again{k}", (f"saved{k}",), (f"value{k}",)) for k in range(layers)]
    random.shuffle(again)
    steps = [
        group(f"step{k}", (f"tangent{k}", f"value{k}"), (f"tangent{k + 1}", f"gradient{k}"))
        for k in range(layers)
    ]
    groups = [*again, *steps]
    place = {g.name: k for k, g in enumerate(groups)}
    before = {k: set() for k in range(layers)}
    for k in range(layers):
        before[layers + k] = {place[f"again{k}"], *([layers + k - 1] if k else [])}
    made = [n for g in groups for n in g.writes]
    sizes = {n: 1 if "gradient" in n else 100 for n in made}
    kept = {f"gradient{k}" for k in range(layers)} | {f"saved{k}" for k in range(layers)}
    order = [g.name for g in low_peak_order(groups, before, Weights(sizes, kept, frozenset(), {}))]
    assert order == [name for k in range(layers) for name in (f"again{k}", f"step{k}")]


def test_what_comes_in_counts_until_it_is_read_last_and_what_a_call_takes_for_itself_while_it_runs():
    """Two steps in either order: the one that frees an input goes first, unless that is when the other's workspace hurts."""
    frees = group("frees", ("given",), ("small",))
    works = group("works", ("other",), ("large",))
    sizes = {"given": 100, "small": 1, "large": 50}
    before = {0: set(), 1: set()}
    kept = {"small", "large", "other"}
    weights = Weights(sizes, kept, frozenset({"given"}), {})
    assert alive([works, frees], weights) == (151, 150 + 151)
    assert alive([frees, works], weights) == (101, 101 + 51)
    assert low_peak_order([works, frees], before, weights) == [frees, works]
    weights = Weights(sizes, kept, frozenset({"given"}), {"works": 200})
    assert alive([works, frees], weights)[0] == 350
    assert alive([frees, works], weights)[0] == 251


def test_the_largest_that_leaves_is_made_when_what_the_others_are_made_of_has_gone():
    """The gradient of a table, beside two small sums whose parts are read at their ends only."""
    table = group("table", ("tangent",), ("large",))
    parts = [group(f"part{k}", ("saved",), (f"part{k}",)) for k in range(4)]
    sums = [group(f"sum{k}", (f"part{2 * k}", f"part{2 * k + 1}"), (f"sum{k}",)) for k in range(2)]
    groups = [table, parts[0], parts[1], sums[0], parts[2], parts[3], sums[1]]
    before = {0: set(), 1: set(), 2: set(), 3: {1, 2}, 4: set(), 5: set(), 6: {4, 5}}
    sizes = {"tangent": 10, "large": 1000, **{f"part{k}": 60 for k in range(4)}, "sum0": 60, "sum1": 60}
    weights = Weights(sizes, {"large", "sum0", "sum1"}, frozenset({"tangent"}), {})
    assert alive(groups, weights)[0] == 1000 + 60 + 3 * 60
    order = low_peak_order(groups, before, weights)
    assert order[-1] is table
    assert alive(order, weights)[0] == 10 + 2 * 60 + 1000
