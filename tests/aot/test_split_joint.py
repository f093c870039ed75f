"""Which tangents each gradient of a joint graph is made of."""

from __future__ import annotations

import operator

import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.aot.cut.min_cut import ancestors
from braze.aot.joint.split_joint import tangents_of


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_tangents_of_gradients_are_those_among_their_ancestors(data: st.DataObject) -> None:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"p{k}") for k in range(data.draw(st.integers(1, 5)))]
    tangents = [n for n in nodes if data.draw(st.booleans())]
    for _ in range(data.draw(st.integers(0, 12))):
        some = st.sampled_from(nodes)
        nodes.append(graph.call_function(operator.add, (data.draw(some), data.draw(some))))
    gradients = data.draw(st.lists(st.sampled_from(nodes), max_size=6))
    found = tangents_of(graph, gradients, tangents)
    assert found == tuple(
        tuple(i for i, t in enumerate(tangents) if t in ancestors([gradient])) for gradient in gradients
    )
