"""The Python module that allocates, launches and returns."""

from braze.codegen.host.footprint import footprint
from braze.codegen.host.module import CUnits, generate_host

__all__ = ["CUnits", "footprint", "generate_host"]
