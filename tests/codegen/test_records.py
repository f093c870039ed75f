"""Generated text as data, on its way to a later process."""

from __future__ import annotations

import json

import pytest

from braze.codegen.records import HostModule, KernelText, PackText, TritonLaunch, as_data, host_of

LAUNCH = TritonLaunch("(n + 63) // 64", (("BLOCK", 64), ("EARLY", 1)), 4, 3, ("fp32", "i64"))
C = KernelText(
    "add",
    "c",
    "void add(void **b, const int64_t *s) {}",
    ("x", "packed:w"),
    ("n",),
    packs=(PackText("w", "pack", 64),),
)
TRITON = KernelText("mul", "triton", "def mul(): pass", ("x",), ("n", "m"), "def k(): pass", LAUNCH)


@pytest.mark.parametrize("kernels", [(), (C,), (TRITON, C)])
def test_a_host_module_comes_back_from_json_as_it_was(kernels):
    host = HostModule(
        "graph", "def make(runtime): ...", kernels, "sm_90", ("int x;", "int y;"), "cuda:0", True
    )
    assert host_of(json.loads(json.dumps(as_data(host)))) == host


@pytest.mark.parametrize(
    "spoil", [{"kernels": None}, {"more": 1}, {"kernels": [{"name": "add"}]}, {"units": None}]
)
def test_what_is_no_host_module_is_refused(spoil):
    data = as_data(HostModule("graph", "", (C,), "sm_90"))
    with pytest.raises((KeyError, TypeError, ValueError)):
        host_of({**data, **spoil})
