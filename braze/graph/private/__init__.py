"""The files that touch private names of PyTorch: tensors, fakes, symbols, settings, Dynamo's import, and what is assumed of them.

Imports no other room.
"""
