"""Where compiled code differs from eager on PyTorch's tables, and why. An entry that starts to pass fails its test until it is removed."""

from __future__ import annotations

_SUMS = "sums beyond float32's range, which eager's kernel makes in double precision"
_STRIDES = "other strides than eager's where operands lie in different orders"
_FAKES = "PyTorch's fakes promise other strides than its kernel makes"

#: "operator type" -> reason
SPECIAL_VALUES: dict[str, str] = {
    f"{name} float32": _SUMS
    for name in (
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "native_group_norm",
        "native_layer_norm",
        "nn.functional.batch_norm",
        "nn.functional.group_norm",
        "nn.functional.instance_norm",
    )
}

#: "operator layout" -> reason
LAYOUTS: dict[str, str] = {
    **{f"{name} turned": _STRIDES for name in ("ldexp", "rsub", "special.xlog1py")},
    **{
        f"{name} turned": _FAKES
        for name in (
            "_batch_norm_with_update",
            "_native_batch_norm_legit",
            "native_dropout_backward",
            "normal",
        )
    },
    "nn.functional.max_unpool2d repeated": _FAKES,
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
