"""One call that puts any module under all this: dispatch, pad, replay, slice.

Imports policy, step and pieces.
"""
