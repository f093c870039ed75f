"""Without the C core recordings are replayed by Python: to the same effect."""

from __future__ import annotations

import pytest
import torch

from braze import native
from tests.cudagraphs import test_cuts, test_limits, test_recorded

SAME = (
    test_recorded.test_the_second_call_is_recorded_and_later_ones_are_replayed,
    test_recorded.test_inputs_that_are_returned_are_the_callers_own,
    test_recorded.test_views_of_one_output_stay_views_of_one_memory,
    test_recorded.test_inference_mode_and_others_by_turns,
    test_recorded.test_outputs_fed_back_as_inputs,
    test_recorded.test_f_of_f,
    test_recorded.test_outputs_kept_in_a_list,
    test_recorded.test_outputs_changed_in_place,
    test_recorded.test_a_slot_whose_output_is_let_go_of_serves_again,
    test_recorded.test_training_forward_and_backward_are_recorded,
    test_recorded.test_threads_of_calls,
    test_limits.test_each_size_has_a_recording,
    test_cuts.test_values_live_across_several_cuts,
)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("same", SAME, ids=lambda test: test.__name__)
def test_python_alone_replays(same, monkeypatch):
    monkeypatch.setattr(native, "replays_natively", lambda: False)
    with torch.no_grad():
        same()


def test_what_was_used_longest_ago_makes_room(simulated, monkeypatch):
    monkeypatch.setattr(native, "replays_natively", lambda: False)
    with torch.no_grad():
        test_limits.test_what_was_used_longest_ago_makes_room(simulated)
