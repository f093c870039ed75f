"""Hooks that the program puts on tensors: they are put there when the graph has run, in the order of the program.

A tensor from outside gets its hook as it would in eager: its gradient comes out of the compiled backward, and autograd hands
it to the hook. A tensor that the graph makes may get one where nothing else of the graph reads it: then all of its gradient
comes from those to whom it is returned. Elsewhere the gradient exists inside the compiled backward only: a hook that does
nothing but compute becomes a part of the graph (:mod:`braze.graph.calls.autograd_calls`), any other ends it.

The results of a graph may be one operation for autograd: what it made of a tensor that it gives too need not come through that tensor. So whatever
else asks for the gradient of one (``retain_grad``, derivatives by it) ends the graph before the first operation that uses it.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.hooks import BackwardHook, RemovableHandle

from braze.capture.facts.breaks import (
    DIFFERENTIATED_TWICE,
    HINT_MOVE,
    BreakSignal,
    Retry,
    Unrebuildable,
    graph_break,
)
from braze.capture.facts.libraries import is_library_module
from braze.capture.facts.purity import memory_written
from braze.capture.facts.records import Build, Effect, EffectKind, Step
from braze.capture.facts.replay import AfterGiven, WhereGiven, put_hook
from braze.capture.facts.values import Identity
from braze.capture.features.subgraphs import note, region, traced
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.graph.recorder import refuse_unfaked
from braze.capture.python import calls
from braze.capture.python.unwinding import trail_of
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import Hooked, Ledger
from braze.capture.state.trace import Trace
from braze.graph.calls.autograd_calls import hooked
from braze.graph.fakes.fakes import was_given_history
from braze.graph.nodes.facts import facts
from braze.graph.private.torch_compat import disable_functions, storage_key

FEATURE = Feature()
rule = FEATURE.call

HINT = "put the hook on a tensor that comes into the function, or use torch.autograd.Function"
#: the methods of a tensor that take a hook and give a handle
REGISTER: tuple[Any, ...] = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
#: what a hook in the middle of the graph may use beside tensors of the graph
NUMBERS = frozenset({int, float, bool, type(None), torch.SymInt})
MIDDLE = "a hook is put on a tensor in the middle of the graph"


def unknown_dict() -> None:
    """What a handle refers to: only the tensor will have it."""


@rule(unknown_dict)
def refuse_dict(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    graph_break("BZ1014", "the inside of a hook's handle is looked at")


@FEATURE.each(*REGISTER)
def register_hook(register: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A hook is noted, and a handle given for it."""
    given = dict(zip(("self", "hook"), args, strict=False), **kwargs)
    tensor = given.get("self")
    if len(args) > 2 or given.keys() != {"self", "hook"} or not issubclass(type(tensor), torch.Tensor):
        return calls.interpret(t, register, args, kwargs, tail)
    if t.outside.unfaked:
        refuse_unfaked(t.outside, (tensor,))
    refuse_doubtful(t, register, tensor)
    return add(t, register, tensor, given["hook"])


def refuse_doubtful(t: Trace, register: Any, tensor: Any) -> None:
    """Eager's errors; a break where a hook that comes later than in the program would be another."""
    node = t.outside.tree.node_of(tensor)
    wants = tensor.requires_grad if node is None else node.real.requires_grad
    if wants is not tensor.requires_grad or t.graph.inference_on or t.outside.settings.inference:
        graph_break("BZ1010", "a hook is put on a tensor whose place in autograd the function changes", HINT)
    if not wants:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if register is torch.Tensor.register_post_accumulate_grad_hook and (
        node is None or not node.real.is_leaf
    ):
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")


def add(t: Trace, register: Any, tensor: Any, hook: Any) -> Any:
    """Note a hook, and give what stands for its handle."""
    if t.outside.tree.node_of(tensor) is None and (
        not t.graph.recorder.knows(tensor) or id(tensor) in t.done.leaves
    ):
        graph_break("BZ1010", "a hook is put on a tensor that the function makes", HINT)
    end_before_use(t, tensor, "a hook is put on a tensor that the graph has used before", HINT)
    for earlier in t.done.hooks.values():
        if earlier.inside and earlier.tensor is tensor:  # hooks of one tensor run in their order
            t.frames.break_at = BreakSignal("BZ1010", f"{MIDDLE} that gets more than one", (HINT,))
            raise Retry(max(1, earlier.step))
    handle = t.done.claim(object.__new__(RemovableHandle))
    number = t.done.claim(Identity(id(handle)))
    # numbers of handles are told apart, and used as keys, as ids are
    t.outside.identities[id(handle)] = handle
    vars(handle).update(hooks_dict_ref=unknown_dict, id=number, extra_dict_ref=())
    t.done.hooks[id(handle)] = found = Hooked(register, tensor, hook, handle, tensor._version)
    found.step = t.frames.steps
    if found.step in t.graph.hooks_inside:
        found.inside = True
        found.cells = variables(t, hook)
        put_inside(t, tensor, hook)
    return handle


def variables(t: Trace, hook: Any) -> list[tuple[types.CellType, Any]]:
    """The variables that a hook uses, with what they hold; a break where it uses what may be another at the backward."""
    if type(hook) is not types.FunctionType or (hook.__closure__ and not t.done.is_ours(hook)):
        graph_break("BZ1010", f"{MIDDLE} that is no plain function", HINT)
    for instruction in dis.get_instructions(hook.__code__):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and not is_fixed(hook, instruction.argval):
            graph_break("BZ1010", f"{MIDDLE}, and uses the global {instruction.argval!r}", HINT)
        if instruction.opname in (
            "STORE_DEREF",
            "DELETE_DEREF",
            "STORE_GLOBAL",
            "MAKE_FUNCTION",
            "IMPORT_NAME",
        ):
            graph_break("BZ1010", f"{MIDDLE}, and does more than to compute", HINT)
    held = [(cell, cell.cell_contents) for cell in hook.__closure__ or ()]
    for value in (*(v for _, v in held), *(hook.__defaults__ or ())):
        made_here = type(value) is FakeTensor and t.outside.tree.node_of(value) is None
        if not made_here and type(value) not in NUMBERS:
            graph_break("BZ1010", f"{MIDDLE}, and uses a {type(value).__name__} from outside", HINT)
    return held


def is_fixed(hook: types.FunctionType, name: str) -> bool:
    """Whether a global is a module of PyTorch or the standard library, or a builtin."""
    found = hook.__globals__.get(name, vars(builtins).get(name))
    if isinstance(found, types.ModuleType):
        return is_library_module(found)
    return name not in hook.__globals__ and found is not None


def put_inside(t: Trace, tensor: Any, hook: Any) -> None:
    """Make a hook a part of the graph: interpret it on a gradient, which goes through what it computes."""
    if t.graph.recorder.outer is not None:
        graph_break("BZ1010", f"{MIDDLE} of a region", HINT)
    with disable_functions(), t.graph.mode:
        gradient = torch.empty_like(tensor, requires_grad=False)
    with region(t, MIDDLE, (hook,)):
        with torch.no_grad():
            part = traced(t, hook, (gradient,), (gradient,))
        if gradient._version or storage_key(gradient) in memory_written(part.recorder.graph.nodes):
            graph_break("BZ1019", "it writes to the gradient")
        if part.result is None:
            return  # it has done nothing
        made = part.leaves[0] if isinstance(part.result, torch.Tensor) else None
        if made is None or made.shape != tensor.shape or made.dtype is not tensor.dtype:
            graph_break("BZ1019", "it gives something else than a gradient")
        inputs = part.recorder.lifted
        if any(x is tensor or (isinstance(x, torch.Tensor) and x.requires_grad) for x in inputs):
            graph_break("BZ1019", "it computes with tensors that have gradients themselves")
        note(t.graph, hooked, (tensor,), {"hook": part.module([gradient, *inputs])}, (tuple(inputs),), ())
    made_node = next(iter(reversed(t.graph.recorder.graph.nodes)))
    made_node.meta["val"] = tensor
    t.graph.recorder.nodes[id(tensor)] = (tensor, made_node)


REMOVE: Any = RemovableHandle.remove


@rule(REMOVE)
def remove(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A hook of this trace was never there; any other is taken away by Python's code."""
    found = t.done.hooks.get(id(args[0])) if len(args) == 1 and not kwargs else None
    if found is None or found.handle is not args[0]:
        return calls.interpret(t, REMOVE, args, kwargs, tail)
    if found.inside:
        graph_break("BZ1010", "a hook in the middle of the graph is removed", HINT)
    found.removed = True
    return None


@FEATURE.each(BackwardHook.setup_input_hook, BackwardHook.setup_output_hook)
def put_around(setup: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A module's backward hooks are put around what goes into it, or leaves it."""
    if len(args) == 2 and not kwargs and torch.is_grad_enabled():
        given = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
            graph_break("BZ1010", "a module has backward hooks", HINT)
    return calls.interpret(t, setup, args, kwargs, tail)


# -- when the trace has ended


class Inside(BaseException):
    """The hook that an instruction puts on a tensor must become a part of the graph: trace again, knowing that."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def effects(t: Trace, table: RecipeTable) -> list[Effect]:
    """The hooks that stay."""
    found = []
    for row in t.done.hooks.values():
        if row.removed:
            continue
        check(t, row)
        if row.inside:
            continue
        found.append(Effect(EffectKind.MADE, (table.id_of(row.handle),)))
    return found


def recipe(table: RecipeTable, handle: Any) -> Build | None:
    """How residual code gets a handle: it puts the hook on the tensor. None for a handle from elsewhere."""
    found = table.t.done.hooks.get(id(handle))
    if found is None or found.handle is not handle:
        return None
    if found.removed or found.inside:
        raise Unrebuildable(handle)
    of_gradients = found.register is torch.Tensor.register_hook
    hook = table.add(table.call(WhereGiven if of_gradients else AfterGiven, table.id_of(found.hook)))
    return table.call(put_hook if of_gradients else found.register, table.id_of(found.tensor), hook)


def check(t: Trace, row: Hooked) -> None:
    """Go back to before the hook where eager's would see another gradient than the one that comes in afterwards."""
    tensor = row.tensor
    place = t.outside.tree.node_of(tensor)
    if place is not None and place.real.is_leaf and tensor.requires_grad:
        return  # a leaf stays one: it is written under no_grad only
    reason = ""
    if not tensor.requires_grad:
        reason = "a hook is put on a tensor that is cut off from its history afterwards"
    elif tensor._version != row.version:
        reason = "a hook is put on a tensor that is written in place afterwards"
    elif row.inside and changes(t.done, row):
        reason = "a hook is put on a tensor in the middle of the graph, and uses variables that may change"
    elif place is None and not row.inside and t.graph.recorder.nodes[id(tensor)][1].users:
        raise Inside(row.step)
    if reason:
        t.frames.break_at = BreakSignal("BZ1010", reason, (HINT,))
        raise Unrebuildable(row.handle)


def verify(t: Trace, table: RecipeTable) -> None:
    """Go back to before a hook in the middle of the graph whose tensor is handed out: others may put hooks there, after it."""
    for row in t.done.hooks.values():
        if row.inside and t.graph.recorder.nodes[id(row.tensor)][1] in table.output_index:
            reason = "a hook is put on a tensor in the middle of the graph that is handed out, too"
            t.frames.break_at = BreakSignal("BZ1010", reason, (HINT,))
            raise Unrebuildable(row.handle)


def changes(done: Ledger, row: Hooked) -> bool:
    """Whether a variable that the hook uses has changed since, or somebody may change it before the backward."""
    if row.cells and done.frames.live:
        return True  # the frame goes on after a break
    for cell, held in row.cells:
        if cell.cell_contents is not held:
            return True
        for value, _ in done.made.values():
            if type(value) is types.FunctionType and value is not row.hook:
                if any(c is cell for c in value.__closure__ or ()):
                    return True
    return False


FEATURE.effects.append(effects)
FEATURE.checks.append(verify)
FEATURE.recipes[RemovableHandle] = recipe


# -- other ways to ask for the gradient of a tensor in the middle of the graph


INSIDE = "gradients are computed inside the function"
HINT_TWICE = "compute them by torch.func.grad, jacrev or hessian, which are captured"


def end_before_use(t: Trace, tensor: Any, reason: str, *hints: str) -> None:
    """End the graph before what first used a tensor that it makes, or an argument to whose history it has added.

    Nothing ends where no use counts for autograd, nor for an argument with the history that it came with: gradients of those come out of the graph.
    """
    uses = [n for node in with_its_history(t, tensor) for n in node.users if carries_gradient(n)]
    if uses:
        signal = BreakSignal("BZ1010", reason, hints)
        signal.position = max(1, min(facts(n).step for n in uses))
        signal.trail = trail_of(t.frames)
        raise signal


def with_its_history(t: Trace, tensor: torch.Tensor) -> list[torch.fx.Node]:
    """What stands in the graph for a history that it has made of a tensor, or added to: the tensor, and arguments that are views of it.

    Fakes of arguments do not know of what they are views, and what is written to one becomes a part of the whole's history.
    """
    recorder, place = t.graph.recorder, t.outside.tree.node_of(tensor)
    if place is None:
        return [recorder.node_of(tensor)] if recorder.knows(tensor) else []
    written = [
        (node, at)
        for node, at in recorder.placeholders
        if isinstance(at.value, torch.Tensor) and was_given_history(at.value)
    ]
    return [
        n
        for n, at in written
        if at is place or t.outside.read(at, Step.ATTR, "_base", at.real._base) is tensor
    ]


def carries_gradient(node: torch.fx.Node) -> bool:
    """Whether what a node makes may have a history; a write says nothing of what it wrote."""
    made = node.meta.get("val")
    return not isinstance(made, torch.Tensor) or made.requires_grad


def tensors_among(values: Any) -> list[torch.Tensor]:
    """A tensor, or those of a sequence of them."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [x for x in values if isinstance(x, torch.Tensor)] if isinstance(values, Sequence) else []


#: what takes gradients by the tensors in its argument ``inputs``: which argument that is, and which is ``create_graph``
DIFFERENTIATING: dict[Any, dict[str, int]] = {
    torch.autograd.grad: {"inputs": 1, "create_graph": 4},
    torch.autograd.backward: {"inputs": 5, "create_graph": 3},
    torch.Tensor.backward: {"inputs": 4, "create_graph": 3},
}


@FEATURE.each(*DIFFERENTIATING)
def differentiate(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    given = {
        name: args[place] if len(args) > place else kwargs.get(name)
        for name, place in DIFFERENTIATING[function].items()
    }
    for tensor in tensors_among(given["inputs"]):
        end_before_use(t, tensor, INSIDE, HINT_MOVE)
    if given["create_graph"] in (None, False):
        graph_break("BZ1024", INSIDE, HINT_MOVE)
    graph_break(
        DIFFERENTIATED_TWICE, "gradients that have gradients are computed inside the function", HINT_TWICE
    )


@rule(torch.Tensor.retain_grad)
def retain_grad(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The tensor's gradient is to be kept."""
    for tensor in args[:1]:
        end_before_use(
            t, tensor, "the gradient of a tensor that the graph has used before is kept", HINT_MOVE
        )
    return calls.call_c(t, torch.Tensor.retain_grad, args, kwargs)
