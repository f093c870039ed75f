"""Partitions and roles, and what is known of operators' views, writes, memory and symbols.

Imports no other room.
"""
