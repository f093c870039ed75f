"""Kernels that the tests go through."""

from braze.optim.rules import ADAM, SGD, Kind

MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = [
    Kind(ADAM, "f32", MOMENTS),
    Kind(ADAM, "bf16", (*MOMENTS, "max_exp_avg_sq")),
    Kind(ADAM, "f64", MOMENTS),
    Kind(SGD, "f32"),
    Kind(SGD, "f16", ("momentum_buffer",)),
    Kind(SGD, "f32", ("momentum_buffer",), nesterov=True),
]
