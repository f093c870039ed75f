"""What the trace finds outside the frame: how it is read and guarded, and the shadows and overlays that take its writes.

Imports facts, guards and state.
"""
