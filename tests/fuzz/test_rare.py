"""The machine of rarer statements: its programs are its own, each of its rows is met, and those of the other machine stay as they were."""

from __future__ import annotations

import re

import torch

from tests.fuzz.tensors import generate, rare
from tests.fuzz.tensors.observe import observe
from tests.fuzz.tensors.program import Given


def test_rows_are_of_both_tables():
    texts = [line.text for seed in range(60) for line in rare.generate(seed).lines]
    assert any(".shape[0] // 2" in text for text in texts) and any("_foreach_" in text for text in texts)
    assert len(texts) - sum(".shape[" in text for text in texts) > len(texts) // 2


def test_programs_of_the_other_machine_are_those_of_their_seeds():
    assert generate.generate(11) == generate.generate(11) != rare.generate(11)


def test_no_row_stands_in_both_tables():
    assert not [row for usual, more in rare.TABLES.values() for row in more if row in usual]
    assert all(re.search(r"\{\w\}", row) for _, more in rare.TABLES.values() for row in more)


def test_no_row_asks_eager_for_the_median_of_what_may_be_repeated():
    """Its kernel on the CPU takes a repeated line for one that is laid out, and reads beyond its end."""
    rows = [row for tables in rare.TABLES.values() for table in tables for row in table if "median(" in row]
    assert rows and all(".contiguous()." in row for row in rows)


def test_complex_numbers_are_seen_by_their_parts_and_have_gradients():
    x = torch.tensor([1.0, 2.0])
    seen = observe(
        lambda x: (torch.complex(x, x * 3).conj(),), [x], (Given("x0", ("",), "leaf"),), "", backward=True
    )
    assert seen.facts["dtype"]["result 0"] == "torch.complex64"
    assert torch.equal(seen.values["result 0"], torch.tensor([[1.0, -3.0], [2.0, -6.0]]))
    assert seen.backward_error is None and seen.values["gradient of x0"].dtype is torch.float32
