"""What is known without a trace: records, code objects, kinds of values, which callables are harmless, names of objects.

Imports no other room.
"""
