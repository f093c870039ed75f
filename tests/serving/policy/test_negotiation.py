"""Which mode can be had: one test a rule, and none of them changes what the user gave."""

from __future__ import annotations

import pytest

from braze.serving import AttentionCGSupport, CUDAGraphMode
from braze.serving.policy.negotiation import Capabilities, resolve_mode
from braze.support.errors import UserError

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
BOTH, DECODE_ONLY = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY
NEVER, SINGLE, UNIFORM, ALWAYS = AttentionCGSupport

#: wanted, what there is, what comes of it, the rules that were used
CASES = [
    (BOTH, dict(), BOTH, ()),
    (FULL, dict(support=ALWAYS), FULL, ()),
    (BOTH, dict(enforce_eager=True), NONE, (1,)),
    (FULL, dict(support=UNIFORM), BOTH, (2,)),
    (FULL, dict(support=UNIFORM, pieces=False), DECODE_ONLY, (2,)),
    (FULL, dict(support=NEVER), PIECEWISE, (2, 3)),
    (FULL, dict(support=NEVER, pieces=False), NONE, (2, 3)),
    (DECODE_ONLY, dict(support=NEVER, pieces=False), NONE, (3,)),
    (BOTH, dict(support=NEVER), PIECEWISE, (3,)),
    (BOTH, dict(support=SINGLE), BOTH, ()),
    (BOTH, dict(support=SINGLE, uniform_query_len=3), PIECEWISE, (4,)),
    (BOTH, dict(support=UNIFORM, uniform_query_len=3), BOTH, ()),
    (BOTH, dict(state_blocks=4, max_num_seqs=8), PIECEWISE, (5,)),
    (BOTH, dict(state_blocks=8, max_num_seqs=8), BOTH, ()),
    (BOTH, dict(pieces=False), DECODE_ONLY, (6,)),
    (PIECEWISE, dict(pieces=False), NONE, (6,)),
    (PIECEWISE, dict(split_nowhere=True), FULL, (7,)),
    (BOTH, dict(split_nowhere=True), FULL, (7,)),
    (BOTH, dict(split_nowhere=True, support=UNIFORM), DECODE_ONLY, (7,)),
    (PIECEWISE, dict(split_nowhere=True, support=NEVER), NONE, (7,)),
    (NONE, dict(support=NEVER, pieces=False, enforce_eager=True), NONE, ()),
]


@pytest.mark.parametrize(("wanted", "have", "mode", "rules"), CASES)
def test_a_mode_that_nobody_asked_for_is_changed_by_numbered_rules(wanted, have, mode, rules):
    found = resolve_mode(wanted, Capabilities(**have))
    assert found.mode is mode
    assert tuple(d.rule for d in found.downgrades) == rules
    assert all(d.text and str(d).startswith(f"rule {d.rule}: ") for d in found.downgrades)


@pytest.mark.parametrize(("wanted", "have", "mode", "rules"), [case for case in CASES if case[3]])
def test_a_mode_that_the_user_gave_is_never_changed(wanted, have, mode, rules):
    with pytest.raises(UserError) as error:
        resolve_mode(wanted, Capabilities(**have), given=True)
    assert error.value.code == "BZ7104"
    assert f"rule {rules[0]}: " in error.value.why


@pytest.mark.parametrize("wanted", CUDAGraphMode)
def test_what_was_resolved_can_be_had(wanted):
    """A second resolution of the result changes nothing, whatever there is."""
    for support in AttentionCGSupport:
        for pieces in (True, False):
            for split_nowhere in (True, False):
                for q in (1, 3):
                    have = Capabilities(support, pieces, split_nowhere, q)
                    mode = resolve_mode(wanted, have).mode
                    assert resolve_mode(mode, have, given=True).mode is mode
