"""Writing operators: which arguments they write, and the operator that computes what they would write."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.fakes import kernels
from braze.graph.fakes.probe import WRITES
from braze.graph.nodes.facts import facts
from braze.graph.operators.functional_ops import functional_of
from braze.graph.operators.operators import functional_form, is_elementwise, written_parameters
from braze.runtime.operators.purity import is_known
from braze.support.errors import Unsupported

aten = torch.ops.aten

Node = torch.fx.Node
Insert = Callable[[Any, tuple[Any, ...], dict[str, Any]], Node]


def is_write(node: Node) -> bool:
    """Whether a node writes to any of its arguments."""
    return node.op == "call_function" and hasattr(node.target, "_schema") and node.target._schema.is_mutable


def is_writing_call(node: Node) -> bool:
    """The same of a captured call, which says so by its function's name or by ``out=``."""
    name = str(getattr(node.target, "__name__", node.target))
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.strip("_") in WRITES or "out" in node.kwargs


def written_arguments(node: Node) -> list[Node]:
    """The arguments that a node writes, in order of its schema."""
    found: list[Node] = []
    for i, parameter in written_parameters(node.target):  # type: ignore[arg-type]
        value = _argument(node, i, parameter)
        found += [n for n in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(n, Node)]
    return found


def told_apart(op: OpOverload, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call's ``out=`` tensors, in order of its schema, and its other keyword arguments."""
    names = [p.name for p in op._schema.arguments if p.is_out]
    return [kwargs[name] for name in names], {k: v for k, v in kwargs.items() if k not in names}


def each_of(made: Any) -> Sequence[Any]:
    """What an operator gives, one result or several, as several."""
    return made if isinstance(made, (tuple, list)) else (made,)


def read_beside(node: Node, written: Node) -> list[Node]:
    """The tensors that a node is given besides one that it writes; that one too, where it is given twice."""
    given: list[Node] = []
    torch.fx.node.map_arg((node.args, node.kwargs), given.append)
    given.remove(written)
    return [n for n in given if isinstance(n.meta.get("val"), torch.Tensor)]


def _argument(node: Node, position: int, parameter: Any) -> Any:
    if not parameter.kwarg_only and position < len(node.args):
        return node.args[position]
    return node.kwargs.get(parameter.name)


def is_custom(op: Any) -> bool:
    """Whether an operator is not PyTorch's own, or has a kernel of the program's: nothing is known of it but its schema."""
    return not is_known(op) or op in kernels.called()


def called_as_it_is(op: OpOverload) -> OpOverload:
    """An operator that writes nothing, as one of which nothing else is known."""
    made = functional_of(op, ())
    assert made is not None, "an operator without written arguments returns what it makes"
    return made.op


#: products that are added to their first argument
ADDING = frozenset({aten.addmm.out, aten.addmv.out, aten.addbmm.out, aten.baddbmm.out, aten.addr.out})


def reads_in_place(node: Node, other: Node) -> bool:
    """Whether an operator reads each element of ``other``, if at all, where and before it writes it."""
    if node.target is aten.copy_.default or (node.target in ADDING and node.args[0] is other):
        return True
    return is_elementwise(functional_form(node.target))  # type: ignore[arg-type]


def functional_values(node: Node, insert: Insert) -> tuple[list[Node], Node | None]:
    """The values that a node would write, one per written argument, and what it would return besides.

    Its reads must be up to date. The second part is None where a node returns just what it writes.
    """
    if is_custom(node.target) or _draws_by_place(node):
        return _custom_values(node, insert)
    own = _functional_with_results(node.target)
    if own is None:
        return _written_values(node, insert), None
    like = [target.meta["val"] for target in written_arguments(node)]
    result = insert(own, node.args, node.kwargs)
    returned = len(node.target._schema.returns)  # type: ignore[union-attr]
    parts = [insert(operator.getitem, (result, returned + i), {}) for i in range(len(like))]
    values = [_fit(part, target, insert) for part, target in zip(parts, like, strict=True)]
    return values, result if returned > 1 else insert(operator.getitem, (result, 0), {})


def _draws_by_place(node: Node) -> bool:
    """Whether an operator draws numbers in the order of memory, where the one that computes them draws in that of rows."""
    if node.target is not aten.bernoulli_.float or node.kwargs.get("generator") is not None:
        return False
    return not node.args[0].meta["val"].is_contiguous()  # type: ignore[union-attr]


def _custom_values(node: Node, insert: Insert) -> tuple[list[Node], Node | None]:
    """As :func:`functional_values`, by the operator itself on copies."""
    given = tuple(
        len(value) if isinstance(value, (list, tuple)) else None if value is None else -1
        for value in (_argument(node, i, p) for i, p in written_parameters(node.target))  # type: ignore[arg-type]
    )
    functional = functional_of(node.target, given)  # type: ignore[arg-type]
    if functional is None:
        raise _refuse(node, "it returns memory that it was given")
    call = insert(functional.op, node.args, node.kwargs)
    made = call.meta["val"]
    parts = [call]
    if made is None:  # nothing is given of what it may write
        parts = []
    elif not isinstance(made, torch.Tensor):
        parts = [insert(operator.getitem, (call, i), {}) for i in range(len(made))]
    values, own = parts[functional.results :], parts[: functional.results]
    fitted = [
        _fit(value, like.meta["val"], insert)
        for value, like in zip(values, written_arguments(node), strict=True)
    ]
    return fitted, None if not own else own[0] if len(own) == 1 else call


@functools.cache
def _functional_with_results(op: Any) -> OpOverload | None:
    """The operator that returns what ``op`` returns and then what it writes, as batch normalization's does."""
    if any(p.alias_info is not None for p in op._schema.returns):
        return None
    packet = getattr(aten, op._schema.name.removeprefix("aten::") + "_functional", None)
    return packet.default if packet is not None else None


def _written_values(node: Node, insert: Insert) -> list[Node]:
    """The values that a node would write, where it returns no others."""
    op = node.target
    like = [target.meta["val"] for target in written_arguments(node)]
    if op is aten.copy_.default or op is aten.fill_.Tensor:
        return [_fit(node.args[1], like[0], insert)]  # type: ignore[arg-type]
    if op is aten.fill_.Scalar or op is aten.zero_.default:
        value = node.args[1] if op is aten.fill_.Scalar else 0
        return [_fit(value, like[0], insert)]
    functional = functional_form(op)
    if functional is None:
        raise _refuse(node, "no functional form of it is known")
    outs = {p.name for p in op._schema.arguments if p.is_out}  # type: ignore[union-attr]
    kwargs = {name: value for name, value in node.kwargs.items() if name not in outs}
    result = insert(functional, _with_defaults(node), kwargs)
    made = result.meta["val"]
    if isinstance(made, torch.Tensor):
        return [_fit(result, like[0], insert)]
    parts = [insert(operator.getitem, (result, i), {}) for i in range(len(made))]
    if len(parts) != len(like):
        raise _refuse(node, "it gives more than it writes")
    return [_fit(part, target, insert) for part, target in zip(parts, like, strict=True)]


def _with_defaults(node: Node) -> tuple[Any, ...]:
    """A node's arguments with those spelled out that only ``node.target`` has a default for."""
    declared = [p for p in node.target._schema.arguments if not p.kwarg_only]  # type: ignore[union-attr]
    return (*node.args, *(p.default_value for p in declared[len(node.args) :]))


def _fit(value: Any, like: torch.Tensor, insert: Insert) -> Node:
    """A value, or a number, with the dtype, device and shape of the tensor that it is written to."""
    if not isinstance(value, Node) or not isinstance(value.meta["val"], torch.Tensor):
        return insert(
            aten.full.default, (list(like.shape), value), {"dtype": like.dtype, "device": like.device}
        )
    have = value.meta["val"]
    options: dict[str, Any] = {}
    if have.device != like.device:
        options["device"] = like.device
    if options or have.dtype != like.dtype:
        # the type in any case: without, PyTorch's fake lays the copy on another device as its operand, also where that repeats its memory
        value = insert(aten._to_copy.default, (value,), {"dtype": like.dtype, **options})
    if tuple(have.shape) != tuple(like.shape):
        value = insert(aten.expand.default, (value, list(like.shape)), {})
    return value


def _refuse(node: Node, why: str) -> Unsupported:
    return Unsupported(
        "BZ2016", f"{node.target}, which writes to a tensor", why=why, origin=facts(node).origin
    )
