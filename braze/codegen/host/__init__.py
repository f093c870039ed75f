"""The Python module that allocates, launches and returns."""

from braze.codegen.host.module import CUnits, generate_host

__all__ = ["CUnits", "generate_host"]
