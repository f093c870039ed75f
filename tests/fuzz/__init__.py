"""Machines that look for wrong answers: `python -m tests.fuzz tensors --minutes 5` (tests/README.md tells more)."""
