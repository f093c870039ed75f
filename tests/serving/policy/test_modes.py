"""Modes of CUDA graphs: what each part of a mode is."""

from __future__ import annotations

import pytest

from braze.serving import CUDAGraphMode

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


@pytest.mark.parametrize(
    ("mode", "decode", "mixed"),
    [
        (NONE, NONE, NONE),
        (PIECEWISE, PIECEWISE, PIECEWISE),
        (FULL, FULL, FULL),
        (CUDAGraphMode.FULL_DECODE_ONLY, FULL, NONE),
        (CUDAGraphMode.FULL_AND_PIECEWISE, FULL, PIECEWISE),
    ],
)
def test_a_mode_is_one_of_decoding_and_one_of_the_rest(mode, decode, mixed):
    assert (mode.decode_mode(), mode.mixed_mode()) == (decode, mixed)
    assert mode.separate_routine() == (decode is not mixed)
    assert [m for m in (NONE, PIECEWISE, FULL) if mode.has_mode(m)] == sorted(
        {decode, mixed}, key=lambda m: m.value
    )
    assert mode.has_full_cudagraphs() == (FULL in (decode, mixed))
    assert mode.requires_piecewise_compilation() == (PIECEWISE in (decode, mixed))
    assert mode.max_cudagraph_mode() is max(decode, mixed, key=lambda m: m.value)
    assert bool(mode) == (mode is not NONE)


def test_a_step_runs_in_one_of_three_modes():
    assert CUDAGraphMode.valid_runtime_modes() == {NONE, PIECEWISE, FULL}


def test_without_pieces_the_rest_stays():
    assert [mode.without_piecewise() for mode in CUDAGraphMode] == [
        NONE,
        NONE,
        FULL,
        CUDAGraphMode.FULL_DECODE_ONLY,
        CUDAGraphMode.FULL_DECODE_ONLY,
    ]
