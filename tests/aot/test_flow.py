"""Minimum cuts are the cheapest of all cuts, and igraph's package is neither imported for them nor disturbed."""

from __future__ import annotations

import importlib.machinery
import itertools
import random
import sys

import pytest

from braze.aot.cut import flow
from braze.aot.facts.overlap import are_apart


def cheapest(vertices, edges, capacities):
    """What the cheapest of all divisions between the first vertex and the last costs."""
    return min(
        sum(c for (a, b), c in zip(edges, capacities, strict=True) if a in front and b not in front)
        for n in range(vertices - 1)
        for chosen in itertools.combinations(range(1, vertices - 1), n)
        for front in [{0, *chosen}]
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_cheapest_of_all(seed):
    draw = random.Random(seed)
    edges = [(a, b) for a in range(7) for b in range(7) if a != b and draw.random() < 0.4]
    capacities = [draw.choice([0.0, 0.5, 1.0, 3.0, 1e12]) for _ in edges]
    value, front = flow.minimum_cut(7, edges, capacities, 0, 6)
    crossing = sum(c for (a, b), c in zip(edges, capacities, strict=True) if a in front and b not in front)
    assert 0 in front
    assert 6 not in front
    assert value == crossing == cheapest(7, edges, capacities)


@pytest.mark.parametrize("edges", [[], [(1, 0)]])
def test_what_is_not_connected_costs_nothing(edges):
    value, front = flow.minimum_cut(2, edges, [1.0] * len(edges), 0, 1)
    assert (value, front) == (0, {0})


@pytest.fixture
def without_package(monkeypatch):
    """igraph's package as if nobody had imported it, on a machine without matplotlib; afterwards as it was."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "igraph"}
    if flow.EXTENSION in kept:
        sys.modules[flow.EXTENSION] = kept[flow.EXTENSION]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    yield
    for name in list(sys.modules):
        if name.startswith("igraph") and name != flow.EXTENSION:
            del sys.modules[name]
    sys.modules.update(kept)


def test_the_package_is_not_imported_and_can_be_later(without_package):
    assert flow.minimum_cut(2, [(0, 1)], [2.5], 0, 1) == (2.5, {0})
    assert [name for name in sys.modules if name.partition(".")[0] == "igraph"] == [flow.EXTENSION]
    import igraph

    assert igraph.Graph(n=2, edges=[(0, 1)], directed=True).mincut(0, 1, capacity=[1.5]).value == 1.5
    assert flow.minimum_cut(2, [(0, 1)], [2.5], 0, 1) == (2.5, {0})


def test_an_extension_without_a_file_is_the_packages(monkeypatch):
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *_: None)
    assert flow._alone() is None


@pytest.mark.parametrize("seed", range(30))
def test_spans_are_apart_where_no_pair_with_a_written_one_overlaps(seed):
    draw = random.Random(seed)
    spans = [
        (draw.randrange(60), draw.randrange(1, 9), draw.random() < 0.5) for _ in range(draw.randrange(9))
    ]
    overlaps = any(
        (w or v) and a < b + n and b < a + m for (a, m, w), (b, n, v) in itertools.combinations(spans, 2)
    )
    assert are_apart(spans) is not overlaps


def test_spans_that_touch_or_are_only_readare_apart():
    assert are_apart([])
    assert are_apart([(0, 4, True), (4, 4, True), (8, 4, False)])
    assert are_apart([(0, 9, False), (0, 9, False), (9, 1, True)])
    assert not are_apart([(0, 100, False), (1, 1, False), (50, 1, True)])
    assert not are_apart([(7, 1, False), (7, 1, True)])
