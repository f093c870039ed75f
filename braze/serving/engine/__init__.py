"""A runner of language models: attention over a paged cache, schedule, steps, sampling.

May import ``policy``, ``step``, ``pieces`` and ``served``.
"""
