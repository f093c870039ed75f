"""What stands in dicts, and where tensors among that lie."""

from __future__ import annotations

import pytest
import torch

from braze import native
from braze.native import places


@pytest.mark.parametrize("read", [native.addresses, places.addresses], ids=["native", "python"])
def test_what_stands_in_dicts_and_where_it_lies_is_told(read):
    x, module = torch.ones(4), torch.nn.Linear(2, 2)
    spaces = ({"x": x, "part": x[2:], "nothing": None}, module._parameters, module._parameters, {})
    dicts, keys = (
        (spaces[0], spaces[0], spaces[0], spaces[1], spaces[2], spaces[3]),
        ("x", "part", "nothing", "weight", "bias", "x"),
    )
    first = read(dicts, keys)
    assert len(first) == 16 * 6
    assert first == read(dicts, keys) == places.addresses(dicts, keys)
    assert first[-16:] == bytes(16)
    for change in (
        lambda: spaces[0].update(x=torch.ones(4)),
        lambda: setattr(module, "weight", torch.nn.Parameter(module.weight.detach())),
        lambda: setattr(module.weight, "data", torch.ones(2, 2)),
        lambda: setattr(module, "bias", None),
        lambda: spaces[3].update(x=3),
    ):
        before, held = read(dicts, keys), [module.weight, module.weight.data, spaces[0]["x"]]
        change()
        assert read(dicts, keys) != before
        assert held


def test_what_is_no_tuple_of_dicts_with_as_many_keys_is_refused():
    with pytest.raises((TypeError, ValueError)):
        native.addresses(({},), ())
