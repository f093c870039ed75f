"""The Python module that allocates, launches and returns."""

from braze.codegen.host.footprint import footprint, large_values
from braze.codegen.host.module import CUnits, generate_host

__all__ = ["CUnits", "footprint", "generate_host", "large_values"]
