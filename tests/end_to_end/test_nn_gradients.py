"""Every layer of torch.nn in train mode (PyTorch's module_db): results, gradients and buffers no further from float64 than eager's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

import braze
from braze.support import trace
from tests.end_to_end import ops
from tests.end_to_end.test_nn_layers import Layers, calls, compiled_of, groups

LAYERS = {info.name.removeprefix("nn."): info for info in module_db}

#: layers whose graphs do not train compiled, and why
UNTRAINED: dict[str, str] = {}


pytestmark = pytest.mark.usefixtures("own_kernels")


def samples(info: ModuleInfo) -> list[Any]:
    """Two of the layer's samples, evenly."""
    torch.manual_seed(0)
    found = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
    )
    found = [s for s in found if s.forward_input is not None]
    return found[:: max(1, -(-len(found) // 2))]


def leaf(value: Any) -> Any:
    """A copy with leaf tensors of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {k: leaf(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(leaf(v) for v in value)
    return copy.deepcopy(value)


def trained(module: Any, called: Any, given: list[ops.Call]) -> Any:
    """What one step leaves: results, gradients of inputs and parameters, buffers; or the exception that it raises."""
    torch.manual_seed(1)
    given = leaf(given)
    module.zero_grad(set_to_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = ops.leaves(called(given))
            loss = [weighed(t) for t in results if t.requires_grad]
            if loss:
                torch.stack(loss).sum().backward()
        except Exception as error:
            return error
    gradients = [t.grad for t in [*ops.leaves(given), *module.parameters()]]
    buffers = [b.clone() for b in module.buffers()]
    return {"results": [t.detach() for t in results], "gradients": gradients, "buffers": buffers}


def weighed(t: torch.Tensor) -> torch.Tensor:
    """One number in which every element counts differently."""
    weights = torch.linspace(0.5, 1.5, max(1, t.numel()), dtype=t.dtype)[: t.numel()].reshape(t.shape)
    return (t * weights).sum()


def difference(ours: Any, theirs: Any, exact: Any) -> Iterator[str]:
    for what, values in theirs.items():
        for k, (a, b, x) in enumerate(zip(ours[what], values, exact[what], strict=True)):
            if (a is None) != (b is None):
                yield f"{what}[{k}] is {a}, not {b}"
            elif b is not None and (a.dtype, a.shape) != (b.dtype, b.shape):
                yield f"{what}[{k}] is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"
            elif b is not None and not b.is_floating_point():
                if not torch.equal(a, b):
                    yield f"{what}[{k}] differs"
            elif b is not None and (found := ops.real_difference(a, b, x)):
                yield f"{what}[{k}] {found}"


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    info = LAYERS[name]
    fails = lambda layers, given: isinstance(trained(layers, layers, given), Exception)
    for chosen in groups(info, samples(info), fails):
        module, given = Layers(info, chosen).train(), calls(chosen)
        double, twin = copy.deepcopy(module).double(), copy.deepcopy(module)
        braze.reset()
        compiled = compiled_of(twin, verify=2, fallback_random=True)
        with trace.collect() as events:
            for _ in range(2):
                eager = trained(module, module, given)
                exact = trained(double, double, wide(given))
                ours = trained(twin, compiled, given)
                assert isinstance(ours, Exception) == isinstance(eager, Exception), (ours, eager)
                if not isinstance(eager, Exception):
                    same_draws = not isinstance(exact, Exception) and "Dropout" not in name
                    assert not list(difference(ours, eager, exact if same_draws else eager))
        fell = [str(p) for kind, p in events if kind == "fallback" and str(p).startswith("the graph of")]
        assert bool(fell) == (name in UNTRAINED), fell


def wide(value: Any) -> Any:
    """In double precision, with the same wishes for gradients."""
    if isinstance(value, torch.Tensor):
        made = value.detach().double() if value.is_floating_point() else value.clone()
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {k: wide(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(wide(v) for v in value)
    return copy.deepcopy(value)
