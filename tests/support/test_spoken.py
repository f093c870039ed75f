"""Names of objects in messages are text, whatever an object makes of its attributes."""

from unittest import mock

import pytest
import torch

from braze.support.spoken import spoken


class Raises:
    def __getattr__(self, name: str) -> str:
        raise RuntimeError(name)


NAMES = {"len": len, "Linear.forward": torch.nn.Linear.forward, "torch.ops.aten": torch.ops.aten}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_text_is_given(name):
    assert spoken(NAMES[name], "__qualname__", "__name__") == name


@pytest.mark.parametrize("kind", ["operators", "mock", "raises", "number"])
def test_what_is_no_text_is_no_name(kind):
    value = {"operators": torch.ops, "mock": mock.MagicMock(), "raises": Raises(), "number": 3}[kind]
    assert spoken(value, "__qualname__") == ""
