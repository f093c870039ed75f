"""The machine of places and masks: its rows are met, and the other machines' programs stay as they were."""

from __future__ import annotations

import re

import pytest

from tests.fuzz.tensors import check, generate, places


def test_rows_of_places_and_masks_are_met():
    text = "\n".join(line.text for seed in range(40) for line in places.generate(seed).lines)
    for word in ("arange(", "cat(", "where(", "masked_fill", ".roll(", "F.pad(", "tril(", "[torch.arange("):
        assert word in text, word


def test_every_row_has_a_place_and_the_usual_programs_are_those_of_their_seeds():
    assert all(
        re.search(r"\{\w\}", row) for tables in places.TABLES.values() for table in tables for row in table
    )
    assert generate.generate(11) == generate.generate(11) != places.generate(11)


@pytest.mark.parametrize("seed", [730000003, 730000017])
def test_a_program_does_compiled_what_it_does_in_eager(seed):
    assert check.check(places.generate(seed)) is None
