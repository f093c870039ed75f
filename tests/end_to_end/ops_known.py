"""Where compiled operators differ from eager, and why. An entry that starts to pass fails its test until it is removed."""

from __future__ import annotations

_DIMS = "the fakes of PyTorch take tensors of more than 64 dims, which eager refuses"
_OUT_DTYPE = "out= of another type than eager takes is cast to: PyTorch's fakes do not refuse it"

#: "operator variant dtype" -> reason
KNOWN: dict[str, str] = {
    "amax errors": _DIMS,
    "amin errors": _DIMS,
    "aminmax errors": _DIMS,
    "complex errors": _OUT_DTYPE,
    "multinomial errors": _OUT_DTYPE,
}
