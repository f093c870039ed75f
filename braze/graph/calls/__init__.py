"""What nodes call over subgraphs and functions of the program's: control flow, checkpoints, transforms, flex attention.

Imports private.
"""
