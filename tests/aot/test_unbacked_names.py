"""Sizes that only the data tell: what a run makes is known by the name that an earlier run gave it in the same place."""

from __future__ import annotations

from torch.fx.experimental.symbolic_shapes import ShapeEnv

from braze.aot.unbacked import settle


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
