"""A runner of language models: attention over a paged cache, schedule, steps, sampling.

Imports policy, step and pieces.
"""
