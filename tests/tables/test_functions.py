"""PyTorch's tables of autograd functions, custom operators and operators over subgraphs: compiled is eager, with gradients."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.opinfo.core import OpInfo

import braze
from tests.end_to_end import op_gradients
from tests.tables import checks
from tests.tables.known import ENTRIES

SWEEP = bool(os.environ.get("BRAZE_SWEEP"))

pytestmark = pytest.mark.usefixtures("own_kernels")


def entries() -> dict[str, OpInfo]:
    found = {}
    for table, db in (
        ("autograd", autograd_function_db),
        ("custom", custom_op_db),
        ("subgraphs", hop_db),
    ):
        for op in db:
            if op.supported_dtypes("cpu"):
                name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
                found[f"{table} {name}"] = op
    return found


TABLE = entries()


def cases(kind: str) -> list[object]:
    """Every entry; a known failure must fail."""
    made = []
    for name in TABLE:
        reason = ENTRIES.get(f"{name} {kind}")
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        made.append(pytest.param(name, id=name, marks=marks))
    return made


def most(few: int) -> int:
    return 1000 if SWEEP else few


@pytest.mark.parametrize("name", cases("results"))
def test_results(name: str) -> None:
    op = TABLE[name]
    for dtype in op.supported_dtypes("cpu") if SWEEP else [torch.float32]:
        if dtype in op.supported_dtypes("cpu"):
            assert not list(checks.entry(op, dtype, most(2)))


@pytest.mark.parametrize("name", cases("gradients"))
def test_gradients(name: str) -> None:
    op = TABLE[name]
    if not op_gradients.differentiable(op):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = op_gradients.calls(op, most(2))
    braze.reset()
    assert not given or not list(op_gradients.differences(op, given))
