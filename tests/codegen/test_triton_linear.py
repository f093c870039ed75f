"""Linear layers on a GPU: one product of rows into planned memory, kernels of ours around it, beside ATen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from braze.loops.ir import ExternCall
from tests.codegen.test_triton_forms import agree, numbers
from tests.codegen.triton_bench import computed_bounds, interpreted, planned

pytestmark = computed_bounds


def calls(plan):
    return [(g.call.target, g.call.out_variant) for g in plan.groups if isinstance(g.call, ExternCall)]


INPUTS = {
    "rows": numbers(6, 16),
    "batches": numbers(2, 3, 16),
    "one row": numbers(1, 1, 16),
    "turned": numbers(3, 2, 16).transpose(0, 1),
    "columns first": numbers(16, 6).t(),
    "one row for all": numbers(1, 16).expand(5, 16),
    "offset": numbers(9, 16)[3:],
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("how", INPUTS)
def test_a_linear_layer_is_a_product_into_planned_memory(how, bias, tmp_path):
    given = (INPUTS[how], numbers(24, 16), *([numbers(24)] if bias else []))

    def layer(x, w, b=None):
        return F.linear(x * 2, w, b).relu()

    plain = layer if bias else lambda x, w: layer(x, w)

    plan, results = interpreted(plain, tmp_path, *given)
    name = "addmm" if bias else "mm"
    assert calls(plan) == [(f"aten.{name}.default", f"aten.{name}.out")]
    agree(results, [layer(*given).double()], 1e-4)


@pytest.mark.parametrize("rows", [(16,), (0, 16), (2, 0, 16)])
def test_what_is_no_product_of_matrices_stays_a_linear_layer(rows):
    plan = planned(lambda x, w, b: F.linear(x, w, b), torch.randn(rows), torch.randn(24, 16), torch.randn(24))
    assert calls(plan) in ([("aten.linear.default", "")], []), "of no rows nothing is computed"


def test_integers_stay_a_linear_layer():
    given = torch.ones(3, 16, dtype=torch.int32), torch.ones(4, 16, dtype=torch.int32)
    plan = planned(lambda x, w: F.linear(x, w), *given)
    assert calls(plan) == [("aten.linear.default", "")]
