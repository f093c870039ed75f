"""A compiled module sees every change of its tree, also after many calls in which nothing changed."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.capture.dispatch.variants import all_sites


class Net(nn.Module):
    """Two layers, a buffer, a norm and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.norm = nn.LayerNorm(4)
        self.register_buffer("shift", torch.ones(4))
        self.flag = False
        self.scales = [1.0, 2.0]
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.second(self.first(x)) + self.shift)
        return x * self.scales[0] if self.flag else x * self.scales[1]


def settled(model: nn.Module, x: torch.Tensor) -> Any:
    """The model compiled, and called until its guards are one flat list."""
    compiled = braze.compile(model, backend="eager")
    for _ in range(5):
        torch.testing.assert_close(compiled(x), model(x))
    return compiled


def double(t: torch.Tensor) -> torch.Tensor:
    return t * 2


def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output + 1


def pre_hook(module: nn.Module, args: Any) -> Any:
    return (args[0] * 3,)


class Shifted(nn.Linear):
    """The class that a layer is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) - 5


def new_parameter(m: Net) -> None:
    m.first.weight = nn.Parameter(torch.rand(4, 4))


def new_data(m: Net) -> None:
    m.first.weight.data = torch.rand(4, 4)


def in_vars(m: Net) -> None:
    vars(m)["flag"] = True


def in_parameters(m: Net) -> None:
    m.first._parameters["weight"] = nn.Parameter(torch.rand(4, 4))


def hook_by_dict(m: Net) -> None:
    m.first._forward_hooks[12345] = hook


def no_bias(m: Net) -> None:
    m.first.bias = None


def transposed(m: Net) -> None:
    m.first.weight.data = m.first.weight.data.t()


def wider(m: Net) -> None:
    m.first.weight.data, m.first.bias.data = torch.rand(6, 4), torch.rand(6)
    m.second[0].weight.data = torch.rand(4, 6)


def another_dict(m: Net) -> None:
    m.__dict__ = {**m.__dict__, "flag": True}


def another_forward(m: Net) -> None:
    m.first.forward = lambda x: x * 7


def another_class(m: Net) -> None:
    m.first.__class__ = Shifted


def through_c(m: Net) -> None:
    torch.utils.swap_tensors(m.first.weight, nn.Parameter(torch.rand(4, 4)))


CHANGES: dict[str, Callable[[Net], Any]] = {
    "new parameter": new_parameter,
    "new data": new_data,
    "in vars()": in_vars,
    "in _parameters": in_parameters,
    "parameter gone": no_bias,
    "transposed, same storage": transposed,
    "other sizes": wider,
    "other type": lambda m: m.double(),
    "buffer": lambda m: setattr(m, "shift", torch.zeros(4)),
    "buffer of another shape": lambda m: setattr(m, "shift", torch.zeros(1)),
    "module": lambda m: setattr(m, "first", nn.Linear(4, 4)),
    "module in a Sequential": lambda m: m.second.__setitem__(0, nn.Linear(4, 4, bias=False)),
    "module appended": lambda m: m.second.append(nn.ReLU()),
    "training": lambda m: setattr(m.norm, "eps", 0.5),
    "flag": lambda m: setattr(m, "flag", True),
    "list": lambda m: m.scales.__setitem__(1, 4.0),
    "forward hook": lambda m: m.first.register_forward_hook(hook),
    "forward pre-hook": lambda m: m.second[0].register_forward_pre_hook(pre_hook),
    "hook by dict": hook_by_dict,
    "__dict__": another_dict,
    "forward on the instance": another_forward,
    "class": another_class,
    "swapped": through_c,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.rand(2, 4)
    compiled = settled(model, x)
    CHANGES[name](model)
    x = x.to(model.first.weight.dtype if name != "module" else x.dtype)
    for _ in range(5):
        torch.testing.assert_close(compiled(x), model(x))


def test_training_and_requires_grad_are_seen() -> None:
    model, x = Net(), torch.rand(2, 4)
    compiled = settled(model, x)
    for p in model.parameters():
        p.requires_grad_(False)
    assert not compiled(x).requires_grad
    model.first.weight.requires_grad_(True)
    assert compiled(x).requires_grad
    model.second[1].p = 1.0
    model.train()
    torch.testing.assert_close(compiled(x), model(x))


def test_hooks_removed_are_seen() -> None:
    model, x = Net(), torch.rand(2, 4)
    handle = model.first.register_forward_hook(hook)
    compiled = settled(model, x)
    handle.remove()
    torch.testing.assert_close(compiled(x), model(x))


def test_a_module_shared_and_split_again() -> None:
    model, x = Net(), torch.rand(2, 4)
    model.second[0] = model.first
    compiled = settled(model, x)
    model.second[0] = nn.Linear(4, 4)
    torch.testing.assert_close(compiled(x), model(x))
    model.second[0].weight = model.first.weight
    torch.testing.assert_close(compiled(x), model(x))


def test_the_guards_of_a_model_are_one_list() -> None:
    """Nearly all guards of a clean tree are words of the flat list; the tensors are compared there too."""
    model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))), torch.rand(2, 4)
    compiled = settled(model, x)
    (site,) = (s for s in all_sites() if s.entry is compiled.__compiled__.entry)
    whole, words, tensors = site.variants[0].program.sealed()
    if not braze.native.native_available:
        pytest.skip("needs the C extension")
    assert whole and tensors == 40 and words > 100


def test_threads_that_call_and_change() -> None:
    """Calls of two models on four threads while a fifth replaces parameters: each result is of one state."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(8))), torch.rand(2, 4)
    model.requires_grad_(False)
    eye, twice = torch.eye(4), 2 * torch.eye(4)
    for layer in model:
        layer.weight = nn.Parameter(eye.clone(), requires_grad=False)
    compiled = settled(model, x)
    stop = threading.Event()
    wrong: collections.deque[Any] = collections.deque()

    def call() -> None:
        while not stop.is_set():
            ratio = (compiled(x) / x).log2().round()
            if not 0 <= ratio.min() <= ratio.max() <= 8 or ratio.min() != ratio.max():
                wrong.append(ratio)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(400):
        layer = model[number % 8]
        layer.weight = nn.Parameter((twice if number // 8 % 2 == 0 else eye).clone(), requires_grad=False)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    torch.testing.assert_close(compiled(x), model(x))
