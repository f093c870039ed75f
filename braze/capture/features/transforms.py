"""Transforms of ``torch.func``: the function is a subgraph of plain tensors, its transformed call one node.

PyTorch itself runs the transform, on fakes now and on tensors when the graph runs; batching and differentiation see every operation
of the function. The wrappers that ``vmap`` and ``grad`` give are Python code that is interpreted as any other; the rules
stand where they call into the machinery.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Step
from braze.capture.features.control_flow import like, row_of
from braze.capture.features.subgraphs import Traced, flatten, noted, region, traced, union
from braze.capture.graph.tensor_facts import tell_memory
from braze.capture.outside.looked_into import fill_arguments
from braze.capture.python.higher_order import MODULES, break_around
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import GraphState, Trace
from braze.graph.calls import transforms
from braze.graph.private import torch_compat
from braze.graph.private.torch_compat import functorch, pytree

FEATURE = Feature()
rule = FEATURE.call

WHAT = MODULES["torch._functorch.eager_transforms"]


# raises for words that ``vmap`` does not know
FEATURE.rows({functorch.check_randomness: lambda t, args, kwargs, tail: functorch.check_randomness(*args)})


@rule(functorch.vmap_impl)
def vmap(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The function of one row."""
    function, in_dims, out_dims, randomness, chunk_size, *given = args
    fill_arguments(t.outside, given)
    with region(t, "vmap", (function,), pure=False):
        _, dims, leaves, spec = functorch.process_inputs(in_dims, tuple(given), function)
        rows = [x if d is None else row_of(x, d) for x, d in zip(leaves, dims, strict=True)]
        own = [x for x, d in zip(rows, dims, strict=True) if d is not None]
        stand_in(t, own, [x for x, d in zip(leaves, dims, strict=True) if d is not None])
        t.graph.batched += 1
        try:
            part = traced(t, function, pytree.tree_unflatten(rows, spec), own, kwargs)
        finally:
            t.graph.batched -= 1
        only_tensors(part.leaves)
        spread = functorch.broadcast_dims(out_dims, part.spec)
        if spread is None:
            graph_break("BZ1019", "its out_dims do not fit the results")
        others = union(part)
        batched = [(x, d) for x, d in zip(leaves, dims, strict=True) if d is not None]
        settings = ((*[d for _, d in batched], *[None] * len(others)), tuple(spread), randomness, chunk_size)
        operands = (*[x for x, _ in batched], *others)
        results = record(t.graph, transforms.vmap, part, others, (*settings, operands))
    return pytree.tree_unflatten(list(results), part.spec)


@FEATURE.each(functorch.grad_impl, functorch.grad_and_value_impl)
def grad(implementation: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Gradients in the structure of the arguments, alone or with the value, and what the function gives besides that."""
    function, argnums, has_aux, given, named = args
    with region(t, "grad", (function,), pure=False):
        break_under_saving_hooks(t)
        split = Split(t, argnums, tuple(given))
        part, value, aux, others = differentiated(t, function, split, has_aux, named)
        if not isinstance(value, torch.Tensor) or value.dim():
            graph_break("BZ1019", "its function gives no single number")
        count = len(split.own)
        results = record(t.graph, transforms.grad_and_value, part, others, (count, (*split.primals, *others)))
    grads, value = split.rebuilt(results[:count]), results[count]
    aux = pytree.tree_unflatten(list(results[count + 1 :]), pytree.tree_structure(aux))
    if implementation is functorch.grad_impl:
        return (grads, aux) if has_aux else grads
    return grads, ((value, aux) if has_aux else value)


@rule(torch.func.linearize, torch.func.functionalize)
def run_whole(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """These run a function transformed at once."""
    break_around(WHAT)


@rule(torch.func.jvp)
def jvp(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Results and their derivatives."""
    if len(args) != 3 or not isinstance(args[1], tuple) or kwargs.get("strict"):
        break_around(WHAT)
    function, primals, tangents = args
    has_aux = bool(kwargs.get("has_aux", False))
    with region(t, "jvp", (function,), pure=False):
        split = Split(t, tuple(range(len(primals))), primals)
        along, spec = flatten(t, tangents)
        if spec != pytree.tree_structure(primals):
            graph_break("BZ1019", "its tangents have another structure than its primals")
        only_tensors(along)
        # PyTorch casts one to its primal's where they lie otherwise, in memory that is larger or begins elsewhere
        if any(x.dtype != y.dtype for x, y in zip(split.primals, along, strict=True)):
            graph_break("BZ1019", "a tangent is of another type than its primal")
        for primal in split.primals:
            tell_memory(t, primal)
        enabled = torch.is_grad_enabled()
        part, value, aux, others = differentiated(t, function, split, has_aux, grad=enabled)
        count = len(pytree.tree_leaves(value))
        settings = (count, tuple(split.primals), tuple(along), tuple(others))
        results = record(t.graph, transforms.jvp, part, others, settings)
    out = pytree.tree_unflatten(list(results[:count]), pytree.tree_structure(value))
    derivatives = pytree.tree_unflatten(list(results[count : 2 * count]), pytree.tree_structure(value))
    if not has_aux:
        return out, derivatives
    return out, derivatives, pytree.tree_unflatten(list(results[2 * count :]), pytree.tree_structure(aux))


class Pull:
    """What ``vjp`` gives besides the results: a function of their gradients. It lives in the trace only."""

    def __init__(self, part: Traced, value: Any, split: Split, others: list[Any]) -> None:
        self.part = part
        self.spec = pytree.tree_structure(value)
        self.split = split
        self.others = others

    def __call__(self, /, *cotangents: Any, **settings: Any) -> Any:
        raise AssertionError("only called in a trace")


@rule(torch.func.vjp)
def vjp(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Results now; the function that pulls gradients back runs the subgraph again."""
    if not set(kwargs) <= {"has_aux"} or len(args) < 2:
        break_around(WHAT)
    function, *primals = args
    has_aux = bool(kwargs.get("has_aux", False))
    with region(t, "vjp", (function,)):
        break_under_saving_hooks(t)
        split = Split(t, tuple(range(len(primals))), tuple(primals))
        part, value, _, others = differentiated(t, function, split, has_aux)
        part.separate()
        with torch_compat.RandomWatch() as watch:
            results = record(t.graph, transforms.call, part, others, ((*split.primals, *others),))
        if watch.drawn:
            graph_break("BZ1019", "its function draws random numbers, and would run twice")
    made = pytree.tree_unflatten(list(results), part.spec)
    pull = t.done.claim(Pull(part, value, split, others))
    return (made[0], pull, made[1]) if has_aux else (made, pull)


@rule(Pull.__call__)
def pull_back(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Gradients of the primals."""
    pull, *cotangents = args
    with region(t, "vjp", ()):
        if set(kwargs) - {"retain_graph", "create_graph"} or len(cotangents) != 1:
            graph_break("BZ1019", "its function is called in another way than with one gradient per result")
        along, spec = flatten(t, cotangents[0])
        if spec != pull.spec:
            graph_break("BZ1019", "the gradients have another structure than the results")
        split, others = pull.split, pull.others
        settings = (len(along), tuple(split.primals), tuple(along), tuple(others))
        results = record(t.graph, transforms.vjp, pull.part, others, settings)
    return split.rebuilt(results)


def jacobian(t: Trace, wrapper: Any, args: Any, kwargs: Any, forward: bool) -> Any:
    """A call of what ``jacrev`` or ``jacfwd`` gave."""
    settings = closure(t, wrapper)
    function, argnums, has_aux = (settings.pop(name) for name in ("func", "argnums", "has_aux"))
    with region(t, "jacfwd" if forward else "jacrev", (function,), pure=False):
        if not forward:
            break_under_saving_hooks(t)
        if kwargs or settings.pop("_preallocate_and_copy", False):
            graph_break("BZ1019", "it is called with settings that braze does not carry")
        plain = {k: settings[k] for k in ("chunk_size", "randomness") if k in settings}
        split = Split(t, argnums, args)
        for primal in split.primals if forward else ():
            tell_memory(t, primal)
        part, value, aux, others = differentiated(t, function, split, has_aux)
        leaves = pytree.tree_leaves(value)
        given = (len(leaves), forward, plain, tuple(split.primals), tuple(others))
        results = record(t.graph, transforms.jacobian, part, others, given)
    width = len(split.own)
    rows = [split.rebuilt(results[i * width : (i + 1) * width]) for i in range(len(leaves))]
    made = pytree.tree_unflatten(rows, pytree.tree_structure(value))
    if not has_aux:
        return made
    return made, pytree.tree_unflatten(list(results[len(leaves) * width :]), pytree.tree_structure(aux))


def wrappers_of(make: Any) -> list[types.CodeType]:
    """The codes of the functions that a maker of torch.func gives."""
    return [c for c in make.__code__.co_consts if getattr(c, "co_name", "") == "wrapper_fn"]


for _make, _forward in ((torch.func.jacrev, False), (torch.func.jacfwd, True)):
    for _code in wrappers_of(_make):
        FEATURE.codes[_code] = functools.partial(jacobian, forward=_forward)


# -- parts


class Split:
    """The arguments of a call: those to differentiate by, as fresh inputs of the subgraph, and the others as they are."""

    def __init__(self, t: Trace, argnums: Any, args: tuple[Any, ...]) -> None:
        numbers = argnums if isinstance(argnums, tuple) else (argnums,)
        if not numbers or any(type(n) is not int or not -len(args) <= n < len(args) for n in numbers):
            graph_break("BZ1019", "it differentiates by arguments that there are not")
        chosen = tuple([args[n] for n in numbers])
        self.primals, self.spec = flatten(t, chosen if isinstance(argnums, tuple) else chosen[0])
        if len({n % len(args) for n in numbers}) < len(numbers):
            graph_break("BZ1019", "it differentiates by one argument twice")
        only_tensors(self.primals)
        self.own = [like(x) for x in self.primals]
        stand_in(t, self.own, self.primals)
        fresh = pytree.tree_unflatten(self.own, self.spec)
        arguments = list(args)
        for n, value in zip(numbers, fresh if isinstance(argnums, tuple) else (fresh,), strict=True):
            arguments[n] = value
        self.arguments = tuple(arguments)

    def rebuilt(self, leaves: Sequence[Any]) -> Any:
        """Values, one per leaf to differentiate by, in the structure of the arguments."""
        return pytree.tree_unflatten(list(leaves), self.spec)


def stand_in(t: Trace, own: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> None:
    """Say for what the inputs of a function's own stand."""
    pairs = [(mine, given) for mine, given in zip(own, operands, strict=True) if mine is not given]
    t.graph.stand_ins.update((torch_compat.storage_key(mine), (mine, given)) for mine, given in pairs)


def record(graph: GraphState, target: Any, part: Traced, others: Sequence[Any], args: tuple[Any, ...]) -> Any:
    """Run the transform on fakes, and note its node."""
    return noted(graph, target, {"function": part.module([*part.recorder.own, *others])}, args)


def break_under_saving_hooks(t: Trace) -> None:
    """PyTorch refuses a transform that goes backward where hooks are called of what autograd saves; guarded."""
    if t.graph.saving or t.outside.settings.told(torch_compat.are_saving_hooks, (), None):
        graph_break("BZ1019", "hooks of what autograd saves are at work")


def only_tensors(leaves: Sequence[Any]) -> None:
    """Break where something else takes part."""
    if not leaves or not all(isinstance(x, torch.Tensor) for x in leaves):
        graph_break("BZ1019", "a value that is no tensor takes part")


def halves(result: Any, has_aux: bool) -> tuple[Any, Any]:
    """What is differentiated, and what comes besides."""
    if not has_aux:
        return result, ()
    if not isinstance(result, tuple) or len(result) != 2:
        graph_break("BZ1019", "its function gives no pair of value and what comes besides")
    return result


def differentiated(
    t: Trace, function: Any, split: Split, has_aux: bool, named: Any = None, grad: bool = True
) -> tuple[Traced, Any, Any, list[Any]]:
    """(the graph of a function, what is differentiated, what comes besides, what it uses from outside).

    Inside a transform that differentiates, grad mode is on, but in those that go forward.
    """
    t.graph.transforms += 1
    try:
        with torch.set_grad_enabled(grad):
            part = traced(t, function, split.arguments, split.own, named)
    finally:
        t.graph.transforms -= 1
    only_tensors(part.leaves)
    return part, *halves(part.result, has_aux), union(part)


def closure(t: Trace, function: Any) -> dict[str, Any]:
    """What a wrapper of PyTorch's holds, by name."""
    found: dict[str, Any] = {}
    for index, (name, cell) in enumerate(
        zip(function.__code__.co_freevars, function.__closure__, strict=True)
    ):
        value = cell.cell_contents
        if not t.done.is_ours(function):
            value = t.outside.read(t.outside.tree.constant(function), Step.CLOSURE, index, value)
        found[name] = value
    return found
