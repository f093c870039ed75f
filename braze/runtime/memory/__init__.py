"""Memory of calls: arenas, plans of offsets, what is packed of constants and whether they have changed, what a call that fails has to undo.

Imports no other room.
"""
