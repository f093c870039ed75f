"""Libraries of C text: built, loaded, and kept under a key of their content.

Imports no other room.
"""
