"""Penalties, biases, log-probabilities, echoed prompts and the best of several answers, by the official client."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from braze.serving.engine.requests import Ended, Score
from braze.serving.engine.sampling import SamplingParams
from braze.serving.server import app
from braze.serving.server.answers import Asked, Generation, collected
from braze.serving.server.logprobs import Told
from braze.serving.server.loop import Delta
from braze.serving.server.protocol import Answer
from braze.serving.server.tokens import ByteTokens, FileTokens
from tests.serving.engine.tiny import engine, tiny
from tests.serving.server.conftest import VOCAB, serving

TOKENS = ByteTokens(VOCAB)
PROMPT = "Once upon"
CHAT = dict(model="tiny", messages=[{"role": "user", "content": "Hi"}])
CHAT_PROMPT = "user: Hi\nassistant: "


@pytest.fixture(scope="module")
def plain():
    return engine(tiny("llama", vocab_size=VOCAB, eos_token_id=None))


@pytest.fixture(scope="module")
def ran(plain):
    """A request as the engine leaves it, without a server."""

    def run(prompt: str, **words):
        request = plain.add(TOKENS.encode(prompt), SamplingParams(**words))
        while not plain.scheduler.idle():
            plain.step()
        return request

    return run


def text(request) -> str:
    return TOKENS.decode(request.output)


@pytest.mark.parametrize(
    "words",
    [dict(presence_penalty=1.5), dict(frequency_penalty=0.9), dict(logit_bias={"70": 3.0, "71": -100})],
)
def test_what_changes_logits_is_what_the_engine_has(running, ran, words):
    bias = tuple((int(token), more) for token, more in words.get("logit_bias", {}).items())
    wanted = ran(PROMPT, max_tokens=12, **(words | dict(logit_bias=bias)))
    asked = dict(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0)
    found = running.client().completions.create(**asked, **words)
    assert found.choices[0].text == text(wanted)
    assert found.choices[0].text != running.client().completions.create(**asked).choices[0].text


def test_a_completion_tells_log_probabilities(running, ran):
    wanted = ran(PROMPT, max_tokens=6, logprobs=2)
    asked = dict(model="tiny", prompt=PROMPT, max_tokens=6, temperature=0, logprobs=2)
    found = running.client().completions.create(**asked).choices[0]
    told = found.logprobs
    assert "".join(told.tokens) == found.text == text(wanted)
    assert told.token_logprobs == [score.logprob for score in wanted.scores]
    assert told.text_offset == [len("".join(told.tokens[:i])) for i in range(6)]
    for top, score in zip(told.top_logprobs, wanted.scores, strict=True):
        assert top == {TOKENS.piece(token): value for token, value in score.likeliest}
        assert max(top.values()) == score.logprob, "a greedy token is the likeliest"
    parts = [chunk.choices[0] for chunk in running.client().completions.create(**asked, stream=True)]
    assert [t for part in parts for t in part.logprobs.tokens] == told.tokens
    assert [at for part in parts for at in part.logprobs.text_offset] == told.text_offset


def test_of_no_likeliest_tokens_the_drawn_one_is_told(running, ran):
    wanted = ran(PROMPT, max_tokens=3, temperature=1.5, seed=5, logprobs=0)
    asked = dict(model="tiny", prompt=PROMPT, max_tokens=3, temperature=1.5, seed=5, logprobs=0)
    told = running.client().completions.create(**asked).choices[0].logprobs
    assert told.top_logprobs == [{TOKENS.piece(score.token): score.logprob} for score in wanted.scores]


@pytest.mark.parametrize("most", [None, 3])
def test_a_chat_tells_log_probabilities(running, ran, most):
    wanted = ran(CHAT_PROMPT, max_tokens=5, logprobs=most or 0)
    asked = dict(CHAT, max_tokens=5, temperature=0, logprobs=True)
    if most:
        asked["top_logprobs"] = most
    found = running.client().chat.completions.create(**asked).choices[0]
    content = found.logprobs.content
    assert "".join(entry.token for entry in content) == found.message.content
    assert bytes(b for entry in content for b in entry.bytes).decode() == found.message.content
    assert [entry.logprob for entry in content] == [score.logprob for score in wanted.scores]
    for entry, score in zip(content, wanted.scores, strict=True):
        assert [(t.token, t.logprob) for t in entry.top_logprobs] == [
            (TOKENS.piece(token), value) for token, value in score.likeliest
        ]
    stream = running.client().chat.completions.create(**asked, stream=True)
    streamed = [entry for chunk in stream for entry in chunk.choices[0].logprobs.content]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in content]


def test_nothing_is_told_where_nothing_is_asked(running):
    assert running.client().completions.create(model="tiny", prompt="x").choices[0].logprobs is None
    assert running.client().chat.completions.create(**CHAT, max_tokens=2).choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError, match="top_logprobs is for requests with logprobs=true"):
        running.client().chat.completions.create(**CHAT, top_logprobs=2)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_stands_before_the_answer(running, ran, stream):
    """With its own log-probabilities: the first token has none. So are texts scored."""
    wanted = ran(PROMPT, max_tokens=4, logprobs=1, prompt_logprobs=1)
    asked = dict(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0, echo=True, logprobs=1)
    made = running.client().completions.create(**asked, stream=stream)
    parts = [chunk.choices[0] for chunk in made] if stream else made.choices
    assert "".join(part.text for part in parts) == PROMPT + text(wanted)
    told = [part.logprobs for part in parts]
    tokens = [token for t in told for token in t.tokens]
    assert "".join(tokens) == PROMPT + text(wanted)
    assert [at for t in told for at in t.text_offset] == [
        len("".join(tokens[:i])) for i in range(len(tokens))
    ]
    scores = [score.logprob for score in (*wanted.prompt_scores, *wanted.scores)]
    assert [value for t in told for value in t.token_logprobs] == [None, *scores]
    tops = [top for t in told for top in t.top_logprobs]
    assert tops[0] is None
    assert all(len(top) in (1, 2) for top in tops[1:])


def test_a_prompt_alone_is_scored_without_an_answer(running, ran):
    wanted = ran(PROMPT, max_tokens=1, prompt_logprobs=0)
    found = running.client().completions.create(
        model="tiny", prompt=TOKENS.encode(PROMPT), max_tokens=0, echo=True, logprobs=0
    )
    assert found.choices[0].text == PROMPT
    assert found.choices[0].logprobs.token_logprobs == [None] + [s.logprob for s in wanted.prompt_scores]
    assert found.usage.completion_tokens == 0
    with pytest.raises(openai.BadRequestError, match="max_tokens=0 is for requests with echo=true"):
        running.client().completions.create(model="tiny", prompt="x", max_tokens=0)


def test_echo_needs_no_log_probabilities(running, ran):
    found = running.client().completions.create(
        model="tiny", prompt=["one", "two"], max_tokens=4, temperature=0, echo=True, n=2
    )
    assert [choice.text for choice in found.choices] == [
        prompt + text(ran(prompt, max_tokens=4)) for prompt in ("one", "one", "two", "two")
    ]
    assert all(choice.logprobs is None for choice in found.choices)


def test_the_best_of_several_answers_are_the_likeliest(running, ran):
    words = dict(max_tokens=5, temperature=1.3)
    each = [ran(PROMPT, seed=40 + copy, logprobs=0, **words) for copy in range(4)]
    means = [sum(score.logprob for score in request.scores) / 5 for request in each]
    order = sorted(range(4), key=lambda i: -means[i])
    found = running.client().completions.create(model="tiny", prompt=PROMPT, seed=40, n=2, best_of=4, **words)
    assert [choice.text for choice in found.choices] == [text(each[i]) for i in order[:2]]
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.choices[0].logprobs is None
    assert found.usage.completion_tokens == 20


def test_an_echoed_prompt_counts_for_no_answer_among_the_best(running, ran):
    """A long answer would have a greater share of the unlikely prompt's mean."""
    words = dict(max_tokens=8, temperature=1.3, logit_bias={str(t): -100 for t in range(0, VOCAB, 3)})
    asked = dict(model="tiny", prompt=PROMPT, stop=["E", "R", "A", "h", "("], seed=3, **words)
    each = running.client().completions.create(**asked, n=16, logprobs=0).choices
    assert len({len(choice.logprobs.tokens) for choice in each}) > 2, "answers of several lengths"
    wanted = running.client().completions.create(**asked, best_of=16, n=6).choices
    found = running.client().completions.create(**asked, best_of=16, n=6, echo=True, logprobs=0).choices
    assert [choice.text for choice in found] == [PROMPT + choice.text for choice in wanted]


def test_an_echoed_prompt_of_tokens_that_are_none_is_refused(tmp_path):
    """As without echo; it has no text, and a tokenizer raises errors of its own."""
    with serving(_bytes(tmp_path)) as running:
        for wrong in (-1, 1 << 40, VOCAB):
            with pytest.raises(openai.BadRequestError, match="BZ7406"):
                running.client().completions.create(model="tiny", prompt=[65, wrong], echo=True)


def test_a_prompt_alone_ends_by_its_length_whatever_would_follow(running):
    """The engine draws one token, which may be one that ends an answer."""
    eos, scheduler = TOKENS.encode(text_of(running))[0], running.engine.scheduler
    before, scheduler.eos = scheduler.eos, frozenset([eos])
    try:
        found = running.client().completions.create(
            model="tiny", prompt=PROMPT, max_tokens=0, echo=True, temperature=0, logprobs=0
        )
    finally:
        scheduler.eos = before
    assert found.choices[0].finish_reason == "length"
    assert "".join(found.choices[0].logprobs.tokens) == PROMPT


def text_of(running) -> str:
    asked = dict(model="tiny", prompt=PROMPT, max_tokens=1, temperature=0)
    return running.client().completions.create(**asked).choices[0].text


def test_more_log_probabilities_of_prompts_than_can_be_told_are_refused(running, monkeypatch):
    monkeypatch.setattr(app, "_LIKELIHOODS", 4 * 21 * len(PROMPT))
    asked = dict(model="tiny", prompt=PROMPT, max_tokens=1, logprobs=20)
    assert len(running.client().completions.create(**asked, n=4, echo=True).choices) == 4
    assert len(running.client().completions.create(**asked, n=5).choices) == 5
    with pytest.raises(openai.BadRequestError, match="log-probabilities of prompts"):
        running.client().completions.create(**asked, n=5, echo=True)


def test_log_probabilities_of_pieces_of_characters_end_with_the_text(tmp_path):
    """A piece has no text of its own: what it is written as is no measure of where the next token begins."""
    tokens = _bytes(tmp_path)
    whole = "é😀é😀abcSTOP"
    given = tokens.encode(whole)

    choice = scripted(tokens, [1], given, stop=["STOP"])
    assert choice["text"] == "é😀é😀abc"
    assert len(choice["logprobs"]["tokens"]) == len("é😀é😀abc".encode())
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 6]


def test_the_space_that_begins_an_answer_is_of_its_first_token(tmp_path):
    made = Tokenizer(models.BPE({"<unk>": 0, "▁a": 1, "▁b": 2}, [], unk_token="<unk>"))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.save(str(tmp_path / "tokenizer.json"))
    choice = scripted(FileTokens(tmp_path), [1, 1], [2, 1, 2])
    assert choice["text"] == " b a b"
    assert choice["logprobs"]["text_offset"] == [0, 2, 4]
    echoed = scripted(FileTokens(tmp_path), [1, 1], [2, 1, 2], echoed=["a a"])
    assert echoed["text"] == "a a b a b"


def scripted(tokens, prompt, given, **asked):
    """The choice of a completion whose tokens are these."""

    class Scripted:
        def submit(self, prompt, params, send):
            for k, token in enumerate(given):
                last = Ended.LENGTH if k == len(given) - 1 else None
                send(Delta((token,), ended=last, scores=(Score(token, -1.0),)))

        def cancel(self, *_):
            pass

    async def answered():
        what, params = Asked([prompt], **asked), SamplingParams(logprobs=0)
        async with Generation(Scripted(), tokens, what, params, Told(tokens, False, 0), 60) as generation:
            return (await collected(generation, Answer("tiny", False)))["choices"][0]

    return asyncio.run(answered())


def _bytes(folder) -> FileTokens:
    """A token a byte, by a tokenizer's file."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return FileTokens(folder)


def test_log_probabilities_end_with_the_text_before_a_stop_text(running, ran):
    whole = text(ran(PROMPT, max_tokens=20))
    stop = whole[9:12]
    found = running.client().completions.create(
        model="tiny", prompt=PROMPT, max_tokens=20, temperature=0, stop=stop, logprobs=0
    )
    told = "".join(found.choices[0].logprobs.tokens)
    # a token that is cut by it stands whole
    assert found.choices[0].text == whole[: whole.index(stop)]
    assert told.startswith(found.choices[0].text)
    assert len("".join(found.choices[0].logprobs.tokens[:-1])) < len(found.choices[0].text)


def test_the_bytes_of_pieces_of_characters_are_told(tmp_path):
    """By tokenizers of bytes, and by those that write what they do not know as bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = FileTokens(tmp_path)
    whole = "a é😀\n"
    assert b"".join(tokens.bytes_of(t) for t in tokens.encode(whole)) == whole.encode()
    assert tokens.piece(tokens.encode("a")[0]) == "a"
    assert tokens.piece(256) == "<s>"

    vocabulary = {"<unk>": 0, "▁a": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = FileTokens(tmp_path)
    assert tokens.piece(1) == " a", "a space that decoders leave out where a text begins"
    assert tokens.bytes_of(2 + 0xC3) == b"\xc3"
    assert json.dumps(tokens.piece(2 + 0xC3)) == '"\\ufffd"'
