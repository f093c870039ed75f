"""What is known without a trace: records, values, code objects, which callables are harmless, names of objects.

Imports no other room of capture.
"""
