"""Tests of this folder run with the processor as a device that can record."""

from tests.cudagraphs.conftest import simulated

__all__ = ["simulated"]
