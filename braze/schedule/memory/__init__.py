"""Where buffers live: groups in an order that keeps few bytes alive, one arena, and the proof that nothing is overwritten too early.

Imports facts.
"""
