"""Integer expressions for indices and sizes: interned, in normal form, with value ranges.

Imports support only; SymPy stays at the border (``symbolic/border.py``).
"""
