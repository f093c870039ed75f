"""Where compiled code differs from eager on PyTorch's tables, and why. An entry that starts to pass fails its test until it is removed."""

from __future__ import annotations

_SUMS = "sums beyond the type's range, which eager's kernel makes in double precision"
_ORDERS = "other strides than eager's where operands lie in different orders"
_FAKES = "PyTorch's fakes promise other strides than its kernel makes"
_DRAWS = "eager draws other numbers into memory with gaps"

#: "operator type" -> reason
SPECIAL_VALUES: dict[str, str] = {
    f"{name} float32": _SUMS
    for name in (
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "native_batch_norm",
        "native_group_norm",
        "native_layer_norm",
        "nn.functional.batch_norm",
        "nn.functional.group_norm",
        "nn.functional.instance_norm",
    )
}

#: "operator layout" -> reason
LAYOUTS: dict[str, str] = {
    "ldexp turned": _ORDERS,
    **{
        f"{name} turned": _FAKES
        for name in (
            "_batch_norm_with_update",
            "_native_batch_norm_legit",
            "native_dropout_backward",
            "normal",
            "special.xlog1py",
        )
    },
    **{
        f"nn.functional.{name} repeated": _FAKES
        for name in ("conv2d", "max_unpool1d", "max_unpool1d.grad", "max_unpool2d", "max_unpool2d.grad")
    },
    "normal.in_place apart": _DRAWS,
    **{
        f"nn.functional.{name} turned": "a picture of turned memory comes out in its order, eager's contiguous"
        for name in ("interpolate.nearest", "interpolate.nearest-exact", "upsample_nearest")
    },
}

#: "operator type" -> reason
TYPES: dict[str, str] = {}

#: "operator inside" or "operator outside" -> reason
FORWARD_MODE: dict[str, str] = {}

#: optimizer -> reason
OPTIMIZERS: dict[str, str] = {}

#: "table entry" -> reason
ENTRIES: dict[str, str] = {}
