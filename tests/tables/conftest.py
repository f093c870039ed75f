"""Fixtures of tests/end_to_end serve here, too."""

from tests.end_to_end.conftest import own_kernels

__all__ = ["own_kernels"]
