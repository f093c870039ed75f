"""The table of ATen's operators says what PyTorch says, where PyTorch says it."""

from __future__ import annotations

import pytest
import torch

from braze.aot.trace.foreach import loop_of
from braze.graph.operators import operators
from braze.graph.operators.operators import OPERATORS, Family, Result

aten = torch.ops.aten


def functional(name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(aten, name)
    found = [getattr(packet, overload) for overload in packet.overloads()]
    return [op for op in found if operators.operator_facts(op) is not None]


def test_each_name_stands_in_one_row_and_is_an_operator():
    names = [name for _, names in operators._ROWS for name in names.split()]
    assert len(names) == len(set(names))
    assert all(functional(name) for name in names if not name.startswith("resize"))
    assert (
        operators.operator_facts(aten.add_.Tensor) is None and operators.operator_facts(aten.add.out) is None
    )
    assert operators.operator_facts("add") is None


def test_elementwise_rows_have_the_tag_where_pytorch_gives_it():
    told = [n for n, known in OPERATORS.items() if known.family is Family.ELEMENTWISE]
    untagged = {n for n in told if not any(torch.Tag.pointwise in op.tags for op in functional(n))}
    assert untagged - {"leaky_relu"} == {"floor_divide", "hardswish"}  # that one has it from PyTorch 2.12 on
    others = [
        n for n, known in OPERATORS.items() if known.family in (Family.REDUCTION, Family.VIEW, Family.PRODUCT)
    ]
    tagged = {str(op) for n in others for op in functional(n) if torch.Tag.pointwise in op.tags}
    assert tagged <= {"aten.max.other", "aten.min.other"}


def test_views_share_memory_as_their_schemas_say():
    views = [n for n, known in OPERATORS.items() if known.family is Family.VIEW]
    apart = {n for n in views if not all(op.is_view for op in functional(n) if op.namespace == "aten")}
    assert apart <= {
        "_unsafe_view",
        "select",
        "slice",
        "split",
        "squeeze",
        "transpose",
        "unbind",
        "diagonal",
        "unsqueeze",
    }
    assert operators.is_view(aten.slice.Tensor) and operators.is_view(aten._unsafe_view.default)
    assert not operators.is_view(aten.split.Tensor) and not operators.is_view(aten.clone.default)


@pytest.mark.parametrize("name", sorted(n for n, known in OPERATORS.items() if known.result is not None))
def test_the_type_rule_is_eagers(name):
    for op in functional(name):
        tensors = [p for p in op._schema.arguments if str(p.type) == "Tensor"]
        if len(tensors) != len(
            [p for p in op._schema.arguments if not p.has_default_value() and not p.kwarg_only]
        ):
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
            try:
                made = op(*[torch.ones(2, dtype=dtype) for _ in tensors])
            except (RuntimeError, NotImplementedError):
                continue
            rule = OPERATORS[name].result
            floating = dtype if dtype.is_floating_point else torch.get_default_dtype()
            expected = {Result.KEEP: dtype, Result.FLOAT: floating, Result.BOOL: torch.bool}[rule]
            if OPERATORS[name].takes is operators.Takes.NUMBERS and dtype is torch.bool:
                continue
            assert made.dtype is expected, (op, dtype)


def test_scatters_undo_views():
    x = torch.arange(12.0).reshape(3, 4)
    for view, scatter in operators.SCATTERS.items():
        given = {
            aten.slice.Tensor: (1, 1, 3),
            aten.select.int: (0, 2),
            aten.diagonal.default: (),
            aten.as_strided.default: ((2, 2), (4, 1), 1),
        }[view]
        part = view(x, *given)
        assert torch.equal(scatter(x, part, *given), x)
        assert torch.equal(view(scatter(x, part + 1, *given), *given), part + 1)


def test_lists_of_tensors_have_a_loop_for_every_elementwise_operator():
    assert all(
        map(loop_of, (aten._foreach_add.List, aten._foreach_lgamma.default, aten._foreach_copy_.default))
    )
    assert loop_of(aten._foreach_max.default) is None and loop_of(aten.add.Tensor) is None
