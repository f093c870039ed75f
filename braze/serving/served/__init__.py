"""One call that puts any module under all this: dispatch, pad, replay, slice.

May import ``policy``, ``step`` and ``pieces``.
"""
