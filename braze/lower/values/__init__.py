"""What a lowering is written with: values that are functions of an index, the program under construction, the table of lowerings, and calls of ATen where there is none.

Imports no other room.
"""
