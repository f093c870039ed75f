"""Where compiled operators differ from eager, and why. An entry that starts to pass fails its test until it is removed."""

from __future__ import annotations

#: "operator variant dtype" -> reason
KNOWN: dict[str, str] = {}
