"""Programs with code of their own in every place where braze, autograd or PyTorch calls it, and an error at its n-th call.

``program(strike, compile)`` gives a step: what one call leaves, as tensors. Called with ``compile`` as it is for eager, it is the oracle.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import braze
from braze import aot
from braze.support.log import SUBJECTS
from tests.fuzz.served_hooks import SERVED, served

Step = Callable[[], list[torch.Tensor]]
Compile = Callable[..., Any]
X = torch.linspace(-1, 1, 6).reshape(2, 3)
aten = torch.ops.aten


class Planted(Exception):
    """What a hook of the program raises."""


class Ending(BaseException):
    """What ends a program, and is no error."""


ERRORS: tuple[type[BaseException], ...] = (
    Planted, KeyboardInterrupt, Ending, MemoryError, AttributeError, StopIteration, IndexError, NotImplementedError, RuntimeError,
)  # fmt: skip


class Strike:
    """Called where the program's code is: raises at the n-th call after it was armed."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.left, self.error = at, error
        self.armed = self.raised = False

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self.armed:
            self.left -= 1
            if self.left < 0:
                self.armed, self.raised = False, True
                raise self.error


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def trained(call: Callable[[], torch.Tensor], *leaves: torch.Tensor) -> list[torch.Tensor]:
    """A call's result and the gradients of its sum."""
    for leaf in leaves:
        leaf.grad = None
    result = call()
    result.sum().backward()
    return [result.detach(), *[leaf.grad.clone() for leaf in leaves if leaf.grad is not None]]


def backend(strike: Strike, compile: Compile) -> Step:
    def by(gm: Any, examples: Any) -> Any:
        strike()
        return gm.forward

    of = layer()
    call = compile(lambda: of(X) * 2, backend=by)
    return lambda: trained(call, of.weight)


def made_by_backend(strike: Strike, compile: Compile) -> Step:
    def by(gm: Any, examples: Any) -> Any:
        return lambda *inputs: strike() or gm.forward(*inputs)

    of = layer()
    call = compile(lambda: of(X) * 2, backend=by)
    return lambda: trained(call, of.weight)


def decomposition(strike: Strike, compile: Compile) -> Step:
    def threshold(x: torch.Tensor, low: Any, value: Any) -> torch.Tensor:
        strike()
        return torch.where(x > low, x, value)

    call = compile(lambda: nn.functional.threshold(X, 0.1, 2.0) + 1)

    def step() -> list[torch.Tensor]:
        with braze.decompositions({aten.threshold.default: threshold}):
            return [call()]

    return step


def handler_of_logs(strike: Strike, compile: Compile) -> Step:
    handler = logging.Handler()
    handler.emit = strike  # type: ignore[method-assign]
    call = compile(lambda: X.sin().sort().values + X.sum().item())

    def step() -> list[torch.Tensor]:
        with contextlib.ExitStack() as after:
            for subject in SUBJECTS:
                told = logging.getLogger(f"braze.{subject}")
                after.callback(told.setLevel, told.level)
                after.callback(setattr, told, "propagate", told.propagate)
                after.callback(told.removeHandler, handler)
                told.setLevel("DEBUG")
                told.propagate = False
                told.addHandler(handler)
            return [call()]

    return step


#: what the operator's parts call: kernel, fake, setup_context, formula
parts: list[Callable[[], None]] = [lambda: None] * 4


@torch.library.custom_op("fault_hooks::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    parts[0]()
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    parts[1]()
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    parts[2]()


def _formula(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    parts[3]()
    return tangent * 2


twice.register_autograd(_formula, setup_context=_setup)


def part_of_operator(which: int, strike: Strike, compile: Compile) -> Step:
    of = layer()
    call = compile(lambda: twice(of(X)) + 1)

    def step() -> list[torch.Tensor]:
        parts[which] = strike
        try:
            return trained(call, of.weight)
        finally:
            parts[which] = lambda: None

    return step


def of_aot(word: str, running: bool, strike: Strike, compile: Compile) -> Step:
    """``running``: not the compiler but what it gave."""

    def compiler(gm: Any, examples: Any) -> Any:
        if running:
            return lambda *inputs: strike() or gm.forward(*inputs)
        strike()
        return gm.forward

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int) -> Any:
        strike()
        return aot.min_cut_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    words = {"fw_compiler": aot.nop, "bw_compiler": aot.nop}
    words[word] = partition if word == "partition_fn" else compiler
    w = torch.linspace(-1, 1, 9).reshape(3, 3).requires_grad_()
    call = compile(
        lambda: (X @ w).sin(), backend=lambda gm, examples: aot.aot_module_simplified(gm, examples, **words)
    )
    return lambda: trained(call, w)


def policy_of_checkpoint(strike: Strike, compile: Compile) -> Step:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        strike()
        return CheckpointPolicy.PREFER_RECOMPUTE

    of = layer()

    def f() -> torch.Tensor:
        contexts = lambda: create_selective_checkpoint_contexts(policy)
        return checkpoint(lambda x: of(x).sin().cos(), X, use_reentrant=False, context_fn=contexts)

    call = compile(f)
    return lambda: trained(call, of.weight)


def allowed_in_graph(strike: Strike, compile: Compile) -> Step:
    def thrice(x: torch.Tensor) -> torch.Tensor:
        strike()
        return x * 3

    allowed = thrice if compile is as_it_is else braze.allow_in_graph(thrice)
    call = compile(lambda: allowed(X) + 1)
    return lambda: [call()]


def hook_of_module(put: str, strike: Strike, compile: Compile) -> Step:
    of = layer()
    getattr(of, put)(lambda *args: strike())
    call = compile(nn.Sequential(of, nn.ReLU()), backend="eager")
    return lambda: trained(lambda: call(X), of.weight)


def hook_of_weight(put: str, strike: Strike, compile: Compile) -> Step:
    of = layer()
    getattr(of.weight, put)(lambda *args: strike())
    call = compile(of)
    return lambda: trained(lambda: call(X), of.weight)


def hook_that_saves(which: int, strike: Strike, compile: Compile) -> Step:
    of = layer()
    hooks = [lambda x: x, lambda x: x]
    hooks[which] = lambda x: strike() or x
    call = compile(lambda: of(X).sin() * 2)

    def forward() -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            result: torch.Tensor = call()
            return result

    return lambda: trained(forward, of.weight)


def mode_of_functions(strike: Strike, compile: Compile) -> Step:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            strike()
            return func(*args, **(kwargs or {}))

    call = compile(lambda: X.sin() * 2)

    def step() -> list[torch.Tensor]:
        with Mode():
            return [call()]

    return step


def torch_function(strike: Strike, compile: Compile) -> Step:
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            strike()
            return super().__torch_function__(func, types, args, kwargs or {})

    own = X.clone().as_subclass(Own)
    call = compile(lambda x: x.sin() * 2)
    return lambda: [call(own).as_subclass(torch.Tensor)]


def method(name: str, strike: Strike, compile: Compile) -> Step:
    """A special method of an object of the program's, which guards and the trace may ask."""

    def own(answer: Any) -> Any:
        return lambda self, *args: strike() or answer

    answers = {
        "__eq__": True,
        "__hash__": 7,
        "__bool__": True,
        "__len__": 3,
        "value": 2,
        "__iter__": iter(()),
        "__index__": 1,
        "__float__": 4.0,
    }
    usual = {k: (lambda self, *args, a=a: a) for k, a in answers.items()}
    members = usual | {name: own(answers[name])}
    members["value"] = property(members["value"])
    kind = type("Kind", (), members)
    first, second = kind(), kind()

    def f(a: Any, table: Any) -> torch.Tensor:
        y = X * table[a] + len(a) + a.value + X[0, a] * math.sqrt(a)
        y = y + 1 if a else y
        return y * 2 if a == second else y + sum(a)

    call = compile(f, backend="eager")
    return lambda: [call(first, {second: 4})]


def hook_of_state(put: str, strike: Strike, compile: Compile) -> Step:
    model = nn.Sequential(layer())
    getattr(model, put)(lambda *args, **kwargs: strike())
    call = compile(model)

    def step() -> list[torch.Tensor]:
        result = call(X).detach()
        state = call.state_dict()
        call.load_state_dict(state)
        return [result, *state.values()]

    return step


def hook_of_optimizer(put: str, strike: Strike, compile: Compile) -> Step:
    of = layer()
    optimizer: Any = torch.optim.SGD(of.parameters(), 0.1)
    if compile is not as_it_is:
        optimizer = braze.compile_optimizer(optimizer)
    getattr(optimizer, put)(strike)

    def step() -> list[torch.Tensor]:
        trained(lambda: of(X), of.weight)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        return [of.weight.detach().clone()]

    return step


def as_it_is(function: Any, **words: Any) -> Any:
    """What ``compile`` is for eager."""
    return function


def _of(make: Callable[..., Step], *words: Any) -> Callable[[Strike, Compile], Step]:
    return lambda strike, compile: make(*words, strike, compile)


#: where the program's code is -> the program
PLACES: dict[str, Callable[[Strike, Compile], Step]] = {
    "backend": backend,
    "what a backend made": made_by_backend,
    "decomposition": decomposition,
    "handler of logs": handler_of_logs,
    **{f"operator's {n}": _of(part_of_operator, k) for k, n in enumerate(("kernel", "fake", "setup_context", "formula"))},
    **{word: _of(of_aot, word, False) for word in ("fw_compiler", "bw_compiler", "partition_fn")},
    **{f"what {word} made": _of(of_aot, word, True) for word in ("fw_compiler", "bw_compiler")},
    "policy of a checkpoint": policy_of_checkpoint,
    "function allowed in graphs": allowed_in_graph,
    **{n: _of(hook_of_module, n) for n in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook", "register_full_backward_pre_hook")},
    **{n: _of(hook_of_weight, n) for n in ("register_hook", "register_post_accumulate_grad_hook")},
    "hook that packs": _of(hook_that_saves, 0),
    "hook that unpacks": _of(hook_that_saves, 1),
    "mode of torch functions": mode_of_functions,
    "__torch_function__": torch_function,
    **{n: _of(method, n) for n in ("__eq__", "__hash__", "__bool__", "__len__", "__iter__", "__index__", "__float__", "value")},
    **{n: _of(hook_of_state, n) for n in ("register_state_dict_pre_hook", "register_load_state_dict_pre_hook", "register_load_state_dict_post_hook")},
    **{f"optimizer's {n}": _of(hook_of_optimizer, n) for n in ("register_step_pre_hook", "register_step_post_hook", "register_state_dict_pre_hook")},
    **{n: _of(served, *how) for n, how in SERVED.items()},
}  # fmt: skip
#: code that a trace may call for real: what it raises there is left to Python, which calls it once more, or for a graph once and for all
#: or that is called for recordings besides, which are left out where it raises
TRACED = frozenset({"operator's setup_context", "operator's formula", "function allowed in graphs", "policy of a checkpoint", "decomposition", "operator's fake", *SERVED})  # fmt: skip
