"""The machine of tensor programs."""

from __future__ import annotations

from tests.fuzz.machine import Machine
from tests.fuzz.tensors.check import check
from tests.fuzz.tensors.generate import generate

MACHINE = Machine(generate, check)
