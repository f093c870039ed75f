"""What a compile did, for people: explain and its printing.

Imports backends and below.
"""
