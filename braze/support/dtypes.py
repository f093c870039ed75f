"""Names of element types: PyTorch's, and the short ones of listings and generated code."""

from __future__ import annotations

#: PyTorch's name, without "torch." -> short name
SHORT: dict[str, str] = {
    "bool": "bool",
    "complex32": "c32",
    "complex64": "c64",
    "complex128": "c128",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0",
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}
#: the other way
LONG: dict[str, str] = {short: long for long, short in SHORT.items()}


def short(dtype: object) -> str:
    """``f32`` for ``torch.float32``; the type's own name without "torch." where it has no short one."""
    name = str(dtype).removeprefix("torch.")
    return SHORT.get(name, name)
