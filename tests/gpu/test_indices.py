"""Indices that do not exist: a compiled program ends as eager's does, each in a process of its own, since the GPU is lost to it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

#: functions of (a matrix of 23 x 8, 9 x 8 values, 9 indices of rows)
FORMS = {
    "embedding": "lambda x, v, i: F.embedding(i, x) * 2",
    "gather": "lambda x, v, i: x.gather(0, i[:, None].expand(9, 8)) * 2",
    "index": "lambda x, v, i: x[i] * 2",
    "index_put": "lambda x, v, i: x.index_put((i,), v)",
    "index_fill": "lambda x, v, i: x.index_fill(0, i, 3.0)",
    "index_add": "lambda x, v, i: x.index_add(0, i, v)",
    "scatter": "lambda x, v, i: x.scatter(0, i[:, None].expand(9, 8), v)",
    "cross_entropy": "lambda x, v, i: F.cross_entropy(x.t().expand(9, 8, 23)[:, 0], i)",
}
PROGRAM = """
import sys, torch, torch.nn.functional as F, braze
mode, form = sys.argv[1:]
x, v, i = torch.randn(23, 8, device="cuda"), torch.randn(9, 8, device="cuda"), torch.arange(9, device="cuda")
f = eval(form) if mode == "eager" else braze.compile(eval(form), mode=mode)
for _ in range(4):
    f(x, v, i)
torch.cuda.synchronize()
print("before")
i[4] = 23
f(x, v, i)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
@pytest.mark.parametrize("name", FORMS)
def test_an_index_that_does_not_exist_ends_the_program_as_in_eager(name, mode):
    command = [sys.executable, "-c", PROGRAM, mode, FORMS[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode and done.stdout == "before\n"
    assert "device-side assert triggered" in done.stderr
    assert mode == "eager" or "BZ5013: index out of bounds" in done.stderr
