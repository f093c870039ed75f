"""The table of decompositions, and that what it traces to is core."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.aot.trace.structural import KEPT
from braze.decomp import decompose, table
from braze.decomp.families import ours
from braze.graph.operators.operators import operator_facts
from braze.graph.private.torch_compat import has_composite_kernel
from braze.lower import LOWERINGS
from braze.support.errors import InternalError
from tests.decomp.test_against_eager import CASES

aten = torch.ops.aten


def test_two_functions_for_one_operator_are_refused():
    assert aten.stack.default in table()  # which loads them all
    with pytest.raises(InternalError, match="BZ9021"):
        decompose(aten.stack.default)(lambda: None)


def test_the_users_function_comes_first():
    mine = lambda tensors, dim=0: tensors[0]
    assert table({aten.stack.default: mine})[aten.stack.default] is mine
    assert table()[aten.stack.default] is ours()[aten.stack.default]


def is_core(op):
    """Whether the table of operators has a row for it, or a lowering takes it."""
    return operator_facts(op) is not None or op in LOWERINGS or op is aten.sym_size.int


def test_no_lowering_is_of_an_operator_that_the_trace_takes_apart():
    """It would never be asked."""
    traced = [op for op in LOWERINGS if torch._C._dispatch_has_kernel(op.name()) and op not in KEPT]
    assert len(traced) > 200 and not [op for op in traced if has_composite_kernel(op)]


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: set = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.add(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", list(CASES), ids=str)
def test_a_decomposition_is_made_of_core_operators(op):
    """Or of operators that the trace takes apart further."""
    further = {
        *table(),
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.copy_.default,
        aten.softmax.int,
        aten._assert_async.msg,  # a check runs through ATen
        aten.result_type.Tensor,  # asks two tensors for the type they have in common: no node
    }
    for args, kwargs in CASES[op]:
        with Seen() as seen, torch._C._AutoDispatchBelowAutograd():
            result = ours()[op](*args, **kwargs)
        if result is not NotImplemented:
            strange = {o for o in seen.ops if not is_core(o) and o not in further and o.namespace == "aten"}
            assert not strange
