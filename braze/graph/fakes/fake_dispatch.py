"""The dispatch mode of a trace's fakes: what an operator does to metadata is remembered, told by rules of ours, or asked of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from braze.graph.fakes import own_memory
from braze.graph.fakes.as_in_eager import PICKING, left_out, refuse_no_place, refuse_unfit
from braze.graph.fakes.refused_calls import refuse_call
from braze.graph.operators.operators import says_whose_memory
from braze.graph.private import torch_compat, torch_nodes, torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.graph.rules import dynamic_ops, metadata
from braze.graph.rules.memo import MISS, Memo, OfTrace, fakes_in
from braze.graph.sizes.known_sizes import WantsPlainSizes

_DEVICE = torch.ops.prim.device.default
_SIZES = torch.ops.aten.size.default
#: what a number becomes a tensor by
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)

#: what operators do to metadata
OPERATORS = Memo()


class Dispatch(FakeTensorMode):
    """A FakeTensorMode that asks the memo first."""

    owner: Any  # the FakeMode whose it is
    #: what memos remember of calls with symbolic sizes, by memo
    symbolic_memos: dict[int, dict[Any, Any]]
    #: how many operators that write have come by
    writes = 0
    #: a call runs that PyTorch's composites in C++ may decide, which would make numbers of symbolic sizes
    in_cpp = False

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        torch_nodes.mode_constructor()(self, *args, **kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would have each operator switch Dynamo off; capture has it off for as long as it runs."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and not self.in_kernel_invocation:
            return torch_compat.device_of_fake(args[0])
        if func is _SIZES and self.in_cpp:
            raise WantsPlainSizes
        kwargs = kwargs or {}
        key = OPERATORS.key(self, func, args, kwargs, torch.get_default_dtype())
        if func._schema.is_mutable:
            refuse_unfit(func, args, kwargs)
            self.writes += 1
        if key is None:
            return self._unremembered(func, types, args, kwargs)
        found = OPERATORS.recall(self, key, args, kwargs)
        if found is not MISS:
            return found
        refuse_call(func, args, kwargs)
        if type(key) is not OfTrace and self._is_composite(func, args):
            with self:
                result = own_memory.apart(func, args, kwargs, func.decompose(*args, **kwargs))
        else:
            result = self._by_rule(key, func, args, kwargs)
        if result is MISS or result is NotImplemented:
            result = self.run(func, types, args, kwargs)
        OPERATORS.store(self, key, args, kwargs, result, mutates=func._schema.is_mutable)
        return result

    def _is_composite(self, func: Any, args: Any) -> bool:
        return metadata.is_composite(func) and not metadata.has_rule_on_gpu(func, args)

    def _by_rule(self, key: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """What our rules say that an operator gives, or MISS."""
        if self.shape_env is not None and holds_unbacked(args):
            return MISS  # our rules decide by sizes; PyTorch's know what to assume of these
        if any(map(metadata.is_lazy, args[:1])) and says_whose_memory(func):
            return MISS
        if type(key) is OfTrace:
            return metadata.symbolic_result_of(self, func, args, kwargs, self.owner.ground)
        return metadata.result_of(self, func, args, kwargs)

    def _unremembered(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A call that has no key: what a known constant holds may decide of it, but not where our rules tell what it gives.

        Of constants alone PyTorch computes another, and what is written is none from there on.
        """
        refuse_call(func, args, kwargs)
        known = {fake.constant is not None for fake in fakes_in(args, kwargs)}
        result = MISS
        if len(known) == 2 and not func._schema.is_mutable and not self._is_composite(func, args):
            state = torch.get_default_dtype()
            key = OPERATORS.key(self, func, args, kwargs, state, constants=True)
            result = MISS if key is None else self._by_rule(key, func, args, kwargs)
        unruled = result is MISS or result is NotImplemented
        return self.run(func, types, args, kwargs) if unruled else result

    def run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The usual way. Meta functions in Python need the Python dispatcher for symbolic sizes."""
        if func in PICKING:
            refuse_no_place(func, args, kwargs)
        if func in dynamic_ops.RULES:
            made = dynamic_ops.result_of(self, func, args, kwargs)
            if made is not NotImplemented:
                return made
        if func in _LIFTS and _is_number(args[0]):
            return torch_compat.fake_of_number(self, args[0])
        if self.shape_env is None:
            made = super().__torch_dispatch__(func, types, args, kwargs)
        else:
            with torch_compat.python_dispatcher():
                made = super().__torch_dispatch__(func, types, args, kwargs)
        made = left_out(func, args, kwargs, _without_wish(made, (*args, *kwargs.values())))
        return own_memory.apart(func, args, kwargs, made)


def _is_number(value: Any) -> bool:
    """Whether a tensor is a real one, of one number."""
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.dim() == 0
        and not value.requires_grad
    )


def _without_wish(result: Any, given: Any) -> Any:
    """An operator's result, which does not require grad below autograd; some rules of PyTorch's (pad, roll) copy that of their argument.

    What it is given, and gives back, is the program's: a leaf as ``out=``, too.
    """
    if isinstance(result, torch.Tensor) and result.requires_grad and result.is_leaf:
        if not any(result is value for value in given):
            result.requires_grad_(False)
    return result


def holds_unbacked(values: Any) -> bool:
    """Whether a size of one of these tensors, or a number here, is one that only the data tell."""
    for value in values:
        if isinstance(value, FakeTensor):
            if any(type(n) is torch.SymInt and torch_symbols.is_unbacked(n) for n in value.shape):
                return True
        elif isinstance(value, (list, tuple)):
            if holds_unbacked(value):
                return True
        elif isinstance(value, SYMBOLIC) and torch_symbols.is_unbacked(value):
            return True
    return False
