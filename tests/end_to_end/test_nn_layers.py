"""Every layer of torch.nn in eval mode (PyTorch's module_db): eager's answers, and one graph but for a few."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

import braze
from braze.support import trace
from tests.end_to_end import ops

#: layers that look at what a tensor holds, or are no tensor program before their first call; the codes of their breaks
BREAKS: dict[str, set[str]] = {
    "CTCLoss": {"BZ1013"},
    "FractionalMaxPool2d": {"BZ1012"},
    "GaussianNLLLoss": {"BZ1013"},
    "Transformer": {"BZ1003"},
    "TransformerEncoder": {"BZ1003"},
}
LAZY = {"BZ1010", "BZ1011", "BZ1014"}

LAYERS = {info.name.removeprefix("nn."): info for info in module_db}


def outcome(module: Any, args: Any, kwargs: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return module(*args, **kwargs)
        except Exception as error:
            return error


def samples(info: ModuleInfo) -> list[Any]:
    """Three of the layer's samples, evenly."""
    torch.manual_seed(0)
    found = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    )
    found = [s for s in found if s.forward_input is not None]
    return found[:: max(1, -(-len(found) // 3))]


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    info = LAYERS[name]
    for sample in samples(info):
        torch.manual_seed(0)
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).eval()
        twin = copy.deepcopy(module)
        args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
        eager = outcome(module, copy.deepcopy(args), copy.deepcopy(kwargs))
        exact = outcome(copy.deepcopy(module).double(), ops.as_double(args), ops.as_double(kwargs))
        braze.reset()
        compiled = braze.compile(twin, options={"verify": 2})
        with trace.collect() as events:
            for _ in range(2):
                ours = outcome(compiled, copy.deepcopy(args), copy.deepcopy(kwargs))
                assert isinstance(ours, Exception) == isinstance(eager, Exception), (ours, eager)
                if not isinstance(eager, Exception):
                    assert not list(ops.compare(ours, eager, exact, True))
        broke = {payload.code for kind, payload in events if kind == "break"}
        assert broke <= (LAZY if name.startswith("Lazy") else BREAKS.get(name, set()))
        assert not [p for kind, p in events if kind == "fallback" and str(p).startswith("the graph of")]
