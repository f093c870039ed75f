"""What braze knows of nodes: one record, copied as FX copies metadata, and no keys beside it."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch.fx

import braze
from braze.graph.nodes.facts import (
    InputRole,
    NodeFacts,
    facts,
    note_place,
    set_facts,
    settle_places,
    share_facts,
)

#: PyTorch's keys of nodes, and what modules tell of themselves to backends
KEYS = {
    "val",
    "partitioner_tag",
    "input_roles",
    "output_roles",
    "uses_autograd",
    "name",
    "label",
    "functions",
    "effects",
    "differentiated_twice",
    "may_break",
    "raises_alone",
}


def nodes() -> list[torch.fx.Node]:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.exp, (x,)))
    return list(graph.nodes)


def test_a_node_of_which_nothing_is_said_has_the_defaults() -> None:
    assert facts(nodes()[0]) == NodeFacts()


def test_what_is_said_later_is_added() -> None:
    x = nodes()[0]
    set_facts(x, role=InputRole.PARAMETER, source="L['x']")
    set_facts(x, source="L['y']", leaf=True)
    assert facts(x) == NodeFacts(role=InputRole.PARAMETER, source="L['y']", leaf=True)


def test_a_copy_knows_the_same_and_learns_on_its_own() -> None:
    """Graphs that are copied share no record that changes."""
    module = torch.fx.GraphModule(torch.nn.Module(), nodes()[0].graph)
    set_facts(next(iter(module.graph.nodes)), source="x", step=4)
    other = copy.deepcopy(module)
    x, y = (next(iter(m.graph.nodes)) for m in (module, other))
    assert facts(y) == facts(x)
    set_facts(y, step=7)
    assert (facts(x).step, facts(y).step, facts(y).source) == (4, 7, "x")


def test_what_stands_in_for_a_node_shares_what_is_known_but_the_value() -> None:
    x, y, _ = nodes()
    x.meta["val"] = 3
    set_facts(x, unversioned=True)
    share_facts(y, x)
    assert facts(y).unversioned and "val" not in y.meta


def test_unknown_facts_are_errors() -> None:
    x = nodes()[0]
    for _ in ("the first fact of a node", "a later one"):
        with pytest.raises((TypeError, ValueError), match="rolle"):
            set_facts(x, rolle=InputRole.USER)  # type: ignore[call-arg]
        set_facts(x, role=InputRole.USER)


def test_no_fact_of_ours_is_a_key_of_its_own() -> None:
    """``node.meta`` holds PyTorch's keys and the record."""
    found = {
        (path.name, key)
        for path in Path(braze.__file__).parent.rglob("*.py")
        for key in re.findall(r"\.meta(?:\[|\.\w+\()[\"'](\w+)[\"']", path.read_text())
    }
    assert len(found) > 20
    assert {(name, key) for name, key in found if key not in KEYS} == set()


def test_a_place_becomes_an_origin_and_the_rest_stays():
    node = torch.fx.Graph().placeholder("x")
    note_place(node, ("code", 3), 7)
    assert facts(node) == NodeFacts(place=("code", 3), step=7)
    set_facts(node, checkpoint=2)
    settle_places([node], lambda place: None)
    assert facts(node) == NodeFacts(step=7, checkpoint=2)
    assert type(facts(node)) is NodeFacts
