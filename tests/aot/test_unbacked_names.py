"""Sizes that only the data tell: what a run makes is known by the name that an earlier run gave it in the same place."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from braze.aot.facts.memory_order import out_of_order
from braze.aot.facts.unbacked import settle


def test_a_symbol_made_again_is_the_one_before() -> None:
    env = ShapeEnv()
    before, again = env.create_unbacked_symint(), env.create_unbacked_symint()
    settle(env, (before, 3), (again, 3))
    assert again.node.expr == before.node.expr


def test_what_is_computed_from_symbols_names_none() -> None:
    env = ShapeEnv()
    before, again, third = (env.create_unbacked_symint() for _ in range(3))
    settle(env, before + 1, again)
    settle(env, third, before * 2)
    assert again.node.expr == again.node._expr and not env.replacements


def test_how_a_tensor_lies_is_not_asked_where_the_data_tell_one_of_its_sizes() -> None:
    """A kernel that reads in order gets a copy, whatever the other sizes are; of known ones it is asked."""
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        rows, known = torch.empty(env.create_unbacked_symint(), 3), torch.empty(4, 3)
    of_rows = list(out_of_order(torch.ops.aten.median.dim, (rows, 1)))
    assert of_rows == [(0, torch.contiguous_format)]
    assert not list(out_of_order(torch.ops.aten.median.dim, (known, 1)))
