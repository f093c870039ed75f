"""Text becomes tokens and tokens text, a character never in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from braze.serving.server.tokens import ByteTokens, Detokenizer, FileTokens, tokens_of
from braze.support.errors import UserError

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer a token a byte, so that characters are in pieces, and a chat template."""
    made = tmp_path_factory.mktemp("tokens")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}})
    )
    return made


@settings(max_examples=50)
@given(text=st.text(max_size=20), cuts=st.lists(st.integers(1, 4), max_size=30))
def test_parts_join_to_the_whole_and_hold_whole_characters(folder, text, cuts):
    tokens = FileTokens(folder)
    left, writer, parts = tokens.encode(text), Detokenizer(tokens), []
    for cut in [*cuts, 100]:
        parts.append(writer.add(left[:cut], last=cut == 100))
        left = left[cut:]
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts if "\ufffd" not in text)


def test_a_text_that_goes_on_from_another_keeps_the_space_between_them(tmp_path):
    """Decoders of SentencePiece's tokens leave out the one that begins a text."""
    made = Tokenizer(models.BPE({"<unk>": 0, "▁a": 1, "▁b": 2}, [], unk_token="<unk>"))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = FileTokens(tmp_path)
    writer = Detokenizer(tokens, behind=[1, 1])
    assert not writer.begun
    assert [writer.add([2]), writer.add([1, 2], last=True)] == [" b", " a b"]
    assert writer.begun and writer.length == 6
    assert Detokenizer(tokens).add([2]) == "b"


def test_bytes_that_are_no_text_are_not_decoded_again_for_each_that_follows(folder):
    """A request can ask for nothing but them, by its biases."""
    tokens, decoded = FileTokens(folder), 0
    decode = tokens.decode

    def counted(given):
        nonlocal decoded
        decoded += len(given)
        return decode(given)

    tokens.decode = counted
    half = tokens.encode("é")[:1]
    writer = Detokenizer(tokens)
    said = "".join(writer.add(half) for _ in range(2000)) + writer.add(tokens.encode("z"), last=True)
    assert said == "\ufffd" * 2000 + "z"
    assert decoded < 2000 * 256


@given(text=st.text("ab", max_size=20), stop=st.text("ab", min_size=1, max_size=4), size=st.integers(1, 5))
def test_what_may_begin_a_stop_text_is_held_back(text, stop, size):
    tokens = ByteTokens(256)
    writer, said = Detokenizer(tokens, [stop]), ""
    encoded = tokens.encode(text)
    for at in range(0, len(encoded), size):
        said += writer.add(encoded[at : at + size], last=at + size >= len(encoded))
        if writer.stopped:
            break
        assert stop not in said
    wanted = text.split(stop)[0]
    assert said == wanted
    assert writer.stopped == (stop in text)


def test_a_conversation_goes_through_the_template(folder):
    tokens = tokens_of(folder, 300)
    ids = tokens.chat([{"role": "user", "content": "hé"}])
    assert ids[0] == 256
    assert tokens.decode(ids) == "[user]hé[assistant]"
    with pytest.raises(UserError, match="no tools") as error:
        tokens.chat([{"role": "tool", "content": ""}])
    assert error.value.code == "BZ7502"


def test_a_model_without_a_template_has_no_chat(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    with pytest.raises(UserError) as error:
        tokens_of(tmp_path, 300).chat([{"role": "user", "content": "hi"}])
    assert error.value.code == "BZ7502"


def test_a_folder_without_a_tokenizer_takes_bytes(tmp_path):
    assert tokens_of(tmp_path, 300).encode("az") == [97, 122]
