"""What one step of an engine hands to a model beside its inputs: the forward context, and buffers that keep their addresses.

Imports policy.
"""
