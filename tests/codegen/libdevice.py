"""NVIDIA's libdevice for Triton's interpreter, which has none: each function by ATen's of the same meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

FUNCTIONS = {
    "fmod": lambda a, b: torch.from_numpy(
        np.fmod(a.numpy(), b.numpy())
    ),  # ATen's vectors give nan for huge quotients
    "pow": torch.pow,
    "tanh": torch.tanh,
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "log10": torch.log10,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "atan2": torch.atan2,
    "erfc": torch.special.erfc,
}


def _stand_in(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The function on the interpreter's tensors."""
    from triton.language.core import block_type, tensor
    from triton.runtime.interpreter import TensorHandle

    def called(*arguments: Any) -> Any:
        made = function(*(torch.from_numpy(a.handle.data.copy()) for a in arguments))
        scalar = arguments[0].dtype
        return tensor(TensorHandle(made.numpy(), scalar), block_type(scalar, list(made.shape)))

    return called


@pytest.fixture(scope="module")
def libdevice() -> Iterator[None]:
    """Its functions are there while the tests of a module run."""
    from triton.language.extra import libdevice as module

    with pytest.MonkeyPatch.context() as patch:
        for name, function in FUNCTIONS.items():
            patch.setattr(module, name, _stand_in(function))
        yield
