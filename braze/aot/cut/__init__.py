"""What the forward saves for the backward: the minimum cut, by bytes, arithmetic and a budget.

Imports facts.
"""
