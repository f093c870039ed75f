"""Functions of PyTorch that take functions, and functions that PyTorch's own compiler was told about.

Transforms, control-flow operators and checkpoints push and pop state of the dispatcher that no resume function could
restore half way: the graph ends before the call, and nothing beneath it is captured.
"""

from __future__ import annotations

import copy
import os
import sys
import types
from typing import Any, NoReturn

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from braze import native
from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.markers import ALLOWED, DISABLED, OWN, WITH_CALLEES
from braze.capture.facts.values import is_constant
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import GraphState, Trace
from braze.graph.operators import untraced_formulas
from braze.graph.private.torch_codes import checkpoint_codes, disabling_wrapper
from braze.graph.private.torch_compat import TorchDispatchMode, disable_functions, outside_modes

FEATURE = Feature()

#: where flex_attention is, and masks for it; the other functions there are plain code
FLEX = "torch.nn.attention.flex_attention"
#: modules of PyTorch whose functions are called whole, and what they do
MODULES: dict[str, str] = {
    "torch._functorch.vmap": "a function is vectorized by vmap",
    "torch._functorch.eager_transforms": "a function is transformed by torch.func",
    "torch._higher_order_ops.cond": "torch.cond chooses a branch by a tensor",
    "torch._higher_order_ops.while_loop": "torch.while_loop runs until a tensor says so",
    "torch._higher_order_ops.scan": "scan runs a function along a dimension",
    "torch._higher_order_ops.map": "map runs a function along a dimension",
    "torch._higher_order_ops.associative_scan": "associative_scan runs a function along a dimension",
    FLEX: "flex_attention takes functions that change scores",
    "torch.utils.checkpoint": "a checkpointed function runs again in the backward",
}
#: the modules of PyTorch whose functions shard a model
SHARDING = "torch.distributed.fsdp."
#: where einops looks a type of tensors up
EINOPS = "einops._backends"
#: once torch.compile has run, the construction of every module ends with a note of it in PyTorch's own books
BOOKS, BOOKKEEPING = "torch._dynamo.mutation_guard", "GenerationTracker.tag"


#: codes of the functions that the makers of torch.func give back
TRANSFORMED = {
    code
    for make in (
        torch.func.vmap,
        torch.func.grad,
        torch.func.grad_and_value,
        torch.func.jacrev,
        torch.func.jacfwd,
        torch.func.functionalize,
    )
    for code in make.__code__.co_consts
    if isinstance(code, types.CodeType)
}
#: codes of the wrapper that runs an optimizer's step between its hooks
STEPS = {
    code
    for code in torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    if isinstance(code, types.CodeType)
}
#: what else changes an optimizer's settings or gradients between two graphs, by numbers that are others at each step
TUNING: tuple[types.FunctionType, ...] = tuple(
    function
    for holder in (*vars(lr_scheduler).values(), SWALR, torch.amp.GradScaler)
    if isinstance(holder, type) and holder.__module__.startswith("torch.")
    for name, function in vars(holder).items()
    if name in ("step", "unscale_", "update") and isinstance(function, types.FunctionType)
)
#: what enters and leaves a dispatch mode: beside it PyTorch keeps flags, which say while tracing that one is at work
MODES: tuple[Any, ...] = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__
#: marks that PyTorch's compiler leaves on functions
DISABLED_THERE, BENEATH, COMPILED_THERE = (
    "_torchdynamo_disable",
    "_torchdynamo_disable_recursive",
    "_is_torch_compile",
)
#: codes of these, and of what goes through all of a model, of which nothing is worth a graph; modules of which the same holds
WHOLE = {
    *TRANSFORMED, *STEPS, *(function.__code__ for function in (*TUNING, *MODES)),
    copy.copy.__code__, copy.deepcopy.__code__, torch.nn.Module._apply.__code__,
}  # fmt: skip
# a checkpoint runs its function, and runs it again, both times as it is: they must keep the same
WITH_CALLEES.update(checkpoint_codes())
WHOLE_MODULES = {*MODULES, "torch.func", "torch._functorch.apis", "random"}
OTHER_HOOK = os.path.join("torch", "_dynamo", "eval_frame.py")
ORIGINAL = "_torchdynamo_orig_callable"


def of_other_compiler(code: types.CodeType) -> bool:
    """Whether code belongs to the functions that ``torch.compile`` gives back: it has a frame hook of its own."""
    return code.co_filename.endswith(OTHER_HOOK)


def is_unfinished(module: Any) -> bool:
    """Whether a module is one of those that make their parameters at their first call, and has not been called."""
    return isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()  # type: ignore[misc]


def is_node(target: Any) -> bool:
    """Whether a function of PyTorch's in Python becomes a node: there is nothing to capture in its own frame."""
    return target.__module__ == FLEX and target.__name__ == "flex_attention"


def run_whole(target: Any) -> bool:
    """Whether nothing beneath a broken call of ``target`` may be captured."""
    if untraced_formulas.is_learned(target):
        return True
    code, module = getattr(target, "__code__", None), getattr(target, "__module__", None)
    if code in WITH_CALLEES or code in WHOLE or target is torch.cond or module in WHOLE_MODULES:
        return True
    own = getattr(target, "__dict__", None) or {}
    marked = own.get(BENEATH) or COMPILED_THERE in own
    return bool(marked or str(module).startswith(SHARDING) or is_unfinished(target))


def fill_table_of_einops(function: types.FunctionType) -> None:
    """Have einops enter PyTorch's tensors into its table, as the first call in a process does, by code that goes through all classes."""
    if function is getattr(sys.modules.get(EINOPS), "get_backend", None):
        with outside_modes(), disable_functions():
            native.unhooked(function, torch.empty(0))


def break_around(what: str) -> NoReturn:
    """Break before a call that is run whole, with all that is beneath it."""
    graph_break("BZ1019", what, HINT_MOVE)


def call_operator(graph: GraphState, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator: a node, or a break, if no graph has its gradient."""
    if untraced_formulas.stands_between(op, args, kwargs):
        break_around(f"the gradient of {op} asks what tensors hold")
    return graph.recorder.call(op, tuple(args), kwargs)


def call_marked(t: Trace, fn: types.FunctionType, args: Any, kwargs: Any, tail: bool) -> Any:
    """Call a function whose marks tell a compiler something; NotImplemented where they tell us nothing."""
    own = fn.__dict__
    if DISABLED in own:
        why = "is braze's own" if own[DISABLED] == OWN else "is marked with braze.disable"
        graph_break("BZ1005", f"{fn.__qualname__} {why}")
    if ALLOWED in own:
        return t.graph.recorder.call(fn, tuple(args), kwargs or {})
    if fn.__code__ is disabling_wrapper():
        return t.call(own["__wrapped__"], args, kwargs, tail)  # PyTorch's own: meant for its compiler only
    if own.get(DISABLED_THERE):
        graph_break("BZ1005", f"{fn.__qualname__} is marked with torch.compiler.disable")
    if COMPILED_THERE in own:
        return t.call(own[ORIGINAL], args, kwargs, tail)
    if "_dynamo_marked_constant" in own:
        return constant_result(fn, args, kwargs)
    return NotImplemented


def refuse_step(t: Trace, fn: types.FunctionType, args: Any, kwargs: Any) -> NoReturn:
    """An optimizer's step is run whole."""
    own_kernel = args and hasattr(type(args[0]), "__compiled__")
    hint = "give the optimizer a compiled step of its own: braze.compile_optimizer(optimizer)"
    reason = "an optimizer takes its step, over whatever parameters have gradients by then"
    graph_break("BZ1022", reason, *(() if own_kernel else (hint,)))


FEATURE.codes |= dict.fromkeys(STEPS, refuse_step)


@FEATURE.call(*MODES)
def refuse_mode(t: Trace, args: Any, kwargs: Any, tail: bool) -> NoReturn:
    """A dispatch mode is entered or left by PyTorch itself; while one is at work functions run as they are."""
    graph_break("BZ1026", "a dispatch mode is entered or left, which sees each operator")


def constant_result(fn: types.FunctionType, args: Any, kwargs: Any) -> Any:
    """A function said to give the same result always: called once, now."""
    if not all(is_constant(v) for v in (*args, *(kwargs or {}).values())):
        return NotImplemented
    result = native.unhooked(fn, *args, **(kwargs or {}))
    return result if is_constant(result) else NotImplemented
