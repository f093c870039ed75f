"""Big operators by core operators, one file per family.

Imports graph and base. The pipeline hands ``table()`` to the aot stage.
"""

from braze.decomp.families import table
from braze.decomp.registry import decompose

__all__ = ["decompose", "table"]
