"""What every other package may use: errors, records, logging, tracing.

Imports the standard library only.
"""
