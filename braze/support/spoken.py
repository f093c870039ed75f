"""What objects say they are called, for messages: an object may make anything of any attribute."""

from __future__ import annotations


def spoken(value: object, *attributes: str) -> str:
    """The first of these attributes that is text and not empty, or "": ``torch.ops`` and mocks make objects of any name."""
    for attribute in attributes:
        try:
            found = getattr(value, attribute, None)
        except Exception:  # of the program's ``__getattr__``
            continue
        if isinstance(found, str) and found:
            return found
    return ""


def name_of_callable(function: object) -> str:
    """What a callable says it is called, or the name of its class."""
    return spoken(function, "__name__") or type(function).__name__
