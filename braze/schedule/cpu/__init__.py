"""How a group becomes a kernel of a processor: vectors, tasks, phases.

Imports facts.
"""
