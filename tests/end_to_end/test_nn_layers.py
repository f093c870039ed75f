"""Every layer of torch.nn in eval mode (PyTorch's module_db): eager's answers, and one graph but for a few."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
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


def outcome(module: Any, given: list[ops.Call]) -> Any:
    torch.manual_seed(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return module(given)
        except Exception as error:
            return error


def samples(info: ModuleInfo) -> list[Any]:
    """Two of the layer's samples, evenly; where there are more, others than those it is trained with (test_nn_gradients.py)."""
    torch.manual_seed(0)
    found = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    )
    found = [s for s in found if s.forward_input is not None]
    return found[(len(found) + 1) // 4 :: max(1, -(-len(found) // 2))]


class Layers(torch.nn.Module):
    """Layers of one kind, each called with arguments of its own: a capture and a build for them all."""

    def __init__(self, info: ModuleInfo, chosen: list[Any]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for sample in chosen:
            torch.manual_seed(0)
            made = sample.constructor_input
            self.layers.append(info.module_cls(*made.args, **made.kwargs))

    def forward(self, calls: list[ops.Call]) -> list[Any]:
        return [layer(*args, **kwargs) for layer, (args, kwargs) in zip(self.layers, calls)]


def compiled_of(twin: Layers, **options: Any) -> Callable[[list[ops.Call]], list[Any]]:
    """The layers compiled: one that is alone by itself."""
    if len(twin.layers) > 1:
        return braze.compile(twin, options=options)
    layer = braze.compile(twin.layers[0], options=options)
    return lambda given: [layer(*args, **kwargs) for args, kwargs in given]


def groups(
    info: ModuleInfo, chosen: list[Any], fails: Callable[[Layers, list[ops.Call]], bool]
) -> list[list[Any]]:
    """The samples; those alone that eager refuses, and of layers that become others at their first call."""
    lazy = info.name.startswith("nn.Lazy")
    alone = [s for s in chosen if lazy or fails(Layers(info, [s]), calls([s]))]
    return [group for group in ([s for s in chosen if s not in alone], *([s] for s in alone)) if group]


def calls(chosen: list[Any]) -> list[ops.Call]:
    return [(s.forward_input.args, s.forward_input.kwargs) for s in chosen]


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    info = LAYERS[name]
    fails = lambda layers, given: isinstance(outcome(layers.eval(), given), Exception)
    for chosen in groups(info, samples(info), fails):
        module, given = Layers(info, chosen).eval(), calls(chosen)
        twin, double = copy.deepcopy(module), copy.deepcopy(module).double()
        eager, exact = outcome(module, copy.deepcopy(given)), outcome(double, ops.as_double(given))
        braze.reset()
        compiled = compiled_of(twin, verify=2)
        with trace.collect() as events:
            for _ in range(2):
                ours = outcome(compiled, copy.deepcopy(given))
                assert isinstance(ours, Exception) == isinstance(eager, Exception), (ours, eager)
                if not isinstance(eager, Exception):
                    assert not list(ops.compare(ours, eager, exact, True))
        broke = {payload.code for kind, payload in events if kind == "break"}
        assert broke <= (LAZY if name.startswith("Lazy") else BREAKS.get(name, set()))
        assert not [p for kind, p in events if kind == "fallback" and str(p).startswith("the graph of")]
