"""What a recorded region reads of the forward context is frozen, and held to."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from braze.serving import AttentionMetaData, Context, forward_context, get_forward_context
from braze.serving.step.context import recorded_reads
from braze.serving.step.frozen import per_step
from braze.support.errors import UserError

BUFFER = torch.zeros(8, dtype=torch.int64)


def metadata(tokens: int = 3, **more) -> AttentionMetaData:
    return AttentionMetaData(
        **{
            "cu_seqlens_q": torch.zeros(2, dtype=torch.int32),
            "seq_lens": torch.zeros(1, dtype=torch.int32),
            "block_tables": torch.zeros(1, 1, dtype=torch.int32),
            "slot_mapping": BUFFER[:4],
            "max_seqlen_q": 1,
            "max_seqlen_k": 64,
            "num_actual_tokens": tokens,
            **more,
        }
    )


def region(read, **fields):
    """What a region reads while it is recorded."""
    with forward_context(metadata(**fields), None, Context(BUFFER, batch_size=2)), recorded_reads() as reads:
        read(get_forward_context())
    return reads


def test_what_is_another_at_each_step_is_refused_at_the_users_line():
    def read(context):
        return context.attn_metadata.num_actual_tokens * 2

    with pytest.raises(UserError) as error:
        region(read)
    assert error.value.code == "BZ7301"
    assert "attn_metadata.num_actual_tokens" in error.value.what
    assert error.value.origin.line == read.__code__.co_firstlineno + 1
    assert "return context.attn_metadata.num_actual_tokens" in str(error.value)


def test_a_users_own_metadata_says_what_changes():
    @dataclasses.dataclass
    class Mine:
        fixed: int
        moving: int = per_step()

    with forward_context(Mine(1, 2)):
        assert get_forward_context().attn_metadata.moving == 2
        with recorded_reads(), pytest.raises(UserError) as error:
            get_forward_context().attn_metadata.moving
    assert error.value.code == "BZ7301"


def test_a_number_that_was_read_must_be_the_same_at_each_replay():
    reads = region(lambda context: context.attn_metadata.max_seqlen_k, max_seqlen_k=64)
    with forward_context(metadata(max_seqlen_k=64)):
        reads.check(get_forward_context())
    with forward_context(metadata(max_seqlen_k=65)), pytest.raises(UserError) as error:
        reads.check(get_forward_context())
    assert error.value.code == "BZ7302"
    assert "attn_metadata.max_seqlen_k" in error.value.what
    assert "65, then 64" in error.value.what
    assert "max_seqlen_k" in str(error.value.origin.excerpt())


def test_a_tensor_that_was_read_must_lie_where_it_lay():
    reads = region(lambda context: context.attn_metadata.slot_mapping)
    with forward_context(metadata(slot_mapping=BUFFER[:4])):
        BUFFER.fill_(7)  # its elements are read anew
        reads.check(get_forward_context())
    for other in (BUFFER[:4].clone(), BUFFER[:3], BUFFER[1:5]):
        with forward_context(metadata(slot_mapping=other)), pytest.raises(UserError) as error:
            reads.check(get_forward_context())
        assert error.value.code == "BZ7302"


def test_what_was_not_read_may_change():
    reads = region(lambda context: context.attn_metadata.slot_mapping)
    assert reads.paths() == ("attn_metadata.slot_mapping",)
    with forward_context(metadata(tokens=1, max_seqlen_k=99), None, "other context"):
        reads.check(get_forward_context())


def test_items_of_a_mapping_are_noted_by_key():
    caches = {"layer.0": (BUFFER, BUFFER), "layer.1": (BUFFER,)}

    def read(context):
        assert isinstance(context.kv_cache_data, dict)
        assert "layer.9" not in context.kv_cache_data
        return context.kv_cache_data["layer.0"][0]

    with forward_context(kv_cache_data=caches), recorded_reads() as reads:
        assert read(get_forward_context()) is BUFFER
    with forward_context(kv_cache_data={**caches, "layer.1": ()}):
        reads.check(get_forward_context())
    with (
        forward_context(kv_cache_data={"layer.0": (BUFFER.clone(), BUFFER)}),
        pytest.raises(UserError) as error,
    ):
        reads.check(get_forward_context())
    assert "kv_cache_data['layer.0']" in error.value.what


def test_a_mapping_that_was_compared_is_not_looked_into_again():
    caches = {"layer.0": BUFFER}
    with forward_context(kv_cache_data=caches), recorded_reads() as reads:
        get_forward_context().kv_cache_data["layer.0"]
    with forward_context(kv_cache_data=caches):
        reads.check(get_forward_context())
        caches["layer.0"] = BUFFER.clone()
        reads.check(get_forward_context())
        with pytest.raises(UserError):
            reads.check(get_forward_context(), anew=True)
    with forward_context(kv_cache_data=dict(caches)), pytest.raises(UserError):
        reads.check(get_forward_context())


def test_whether_a_key_is_there_is_held_to():
    with forward_context(kv_cache_data={}), recorded_reads() as reads:
        assert "a" not in get_forward_context().kv_cache_data
    with forward_context(kv_cache_data={"a": 1}), pytest.raises(UserError) as error:
        reads.check(get_forward_context())
    assert "'a' in kv_cache_data" in error.value.what


def test_a_step_without_what_was_read_is_told_so():
    reads = region(lambda context: context.attn_metadata.max_seqlen_k)
    with forward_context(), pytest.raises(UserError) as error:
        reads.check(get_forward_context())
    assert "nothing, then 64" in error.value.what


def test_whether_there_is_metadata_is_a_value_too():
    with forward_context(), recorded_reads() as reads:
        assert get_forward_context().attn_metadata is None
    with forward_context(metadata()), pytest.raises(UserError):
        reads.check(get_forward_context())


def test_a_view_is_an_instance_of_what_it_views():
    def read(context):
        assert isinstance(context.attn_metadata, AttentionMetaData)
        assert isinstance(context.context, Context)

    assert len(region(read)) == 0


def test_a_region_does_not_write_the_context():
    def write(context):
        context.attn_metadata = None

    with pytest.raises(UserError) as error:
        region(write)
    assert error.value.code == "BZ7303"
    assert error.value.origin.line == write.__code__.co_firstlineno + 1


def test_after_a_region_that_fails_the_context_is_itself_again():
    def fail(context):
        raise ZeroDivisionError

    with forward_context(metadata()):
        with pytest.raises(ZeroDivisionError):
            region(fail)
        assert get_forward_context().attn_metadata.num_actual_tokens == 3
