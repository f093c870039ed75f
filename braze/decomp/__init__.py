"""Big operators as compositions of core ones: one file per family, one function per operator.

Imports graph and base.
"""
