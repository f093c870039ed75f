"""What one trace knows, as four records - what is outside, what was done, the graph's state, the frames - and the interpreter's
verbs. The rooms above take these; none of them knows the tracer.

Imports facts.
"""
