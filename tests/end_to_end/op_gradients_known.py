"""Where gradients of compiled operators differ from eager's, and why. An entry that starts to pass fails its test until it is removed.

An operator whose graph runs as captured has eager's gradients, with a warning, and is listed too.
"""

from __future__ import annotations

import torch

_CONJUGATED = "runs as captured: its gradient is a lazily conjugated tensor (BZ2003)"

_OF_MEMORY = "runs as captured: the gradient of a window on an input's memory (BZ2031)"

#: operator -> reason
KNOWN: dict[str, str] = {
    "fft.ifft": _CONJUGATED,
    "fft.ihfft": _CONJUGATED,
    "fft.ihfftn": _CONJUGATED,
    "as_strided": _OF_MEMORY,
    "as_strided.partial_views": _OF_MEMORY,
    "native_group_norm": "runs as captured: whether both of its statistics get gradients is known when the backward runs (BZ2028)",
    "index_fill": "runs as captured: the gradient of a value at doubled places asks the data (aten._unique, BZ2021)",
}

#: as above, where two samples pass, but not all
KNOWN_OF_ALL: dict[str, str] = {
    "fft.ihfft2": _CONJUGATED,
    "index_put": "runs as captured: the gradient of values at doubled places asks the data (BZ2021)",
}

#: as KNOWN, where every size and float is a symbol
KNOWN_SYMBOLIC: dict[str, str] = {
    **KNOWN,
    **dict.fromkeys(
        ("fft.hfft", "fft.hfft2", "fft.hfftn", "linalg.eig", "linalg.eigvals", "polar"), _CONJUGATED
    ),
}
if torch.__version__ < "2.12":
    KNOWN_SYMBOLIC["trace"] = (
        "runs as captured: PyTorch's own gradient asks for a number of elements that is a symbol (BZ2021)"
    )
