"""The machine of operators that the others do not call: its rows are met, and are its own."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F

from tests.fuzz.tensors import check, operators, rare


def test_rows_of_other_operators_are_met():
    text = "\n".join(line.text for seed in range(60) for line in operators.generate(seed).lines)
    for word in ("torch.special.", "torch._foreach_", "out=", "scatter", "tensor_split("):
        assert word in text, word


def test_no_row_stands_in_another_table():
    for family, (usual, ours, _) in operators.TABLES.items():
        assert not {*ours} & {*usual, *rare.TABLES[family][1]} and len({*ours}) == len(ours)


def test_no_row_asks_eager_for_the_median_of_what_may_be_repeated():
    """Its kernel on the CPU takes a repeated line for one that is laid out, and reads beyond its end."""
    rows = [row for tables in operators.TABLES.values() for row in tables[1] if "median(" in row]
    assert rows and all(".contiguous()." in row for row in rows)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (3, 3)])
def test_no_row_pools_where_a_window_sees_padding_alone(shape):
    """Eager's kernel notes a place beyond the tensor for it, where the backward writes."""
    x = torch.randn(shape)
    rows = [
        row
        for row in operators.TABLES["INEXACT"][1] + operators.TABLES["EXACT"][1]
        if row.startswith("F.max_pool2d(")
    ]
    assert len(rows) == 3
    for row in rows:
        with contextlib.suppress(RuntimeError):
            made = eval(row.replace("{g}", "x").replace("{0}", "x"), {"F": F, "x": x})
            assert torch.isfinite(made).all(), row


def test_no_row_gives_tril_another_tensor_to_write():
    """Eager's kernel writes beyond one of four dims that lies otherwise than row by row."""
    rows = [
        row for tables in operators.TABLES.values() for row in tables[1] if "tril(" in row and "out=" in row
    ]
    assert rows == ["torch.tril({w}, out={w})"]


@pytest.mark.parametrize("seed", [730000003, 730000011])
def test_a_program_does_compiled_what_it_does_in_eager(seed):
    assert check.check(operators.generate(seed)) is None
