"""The server answers the official client as OpenAI's does."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from braze.serving.engine.sampling import SamplingParams
from braze.serving.server.app import ServerOptions, make_app
from braze.serving.server.tokens import ByteTokens
from braze.support.errors import UserError
from tests.serving.engine.tiny import engine, tiny
from tests.serving.server.conftest import PATIENCE, VOCAB

TOKENS = ByteTokens(VOCAB)
LONG = "Once upon a time"


@pytest.fixture(scope="module")
def expected():
    """What the engine gives for a prompt, without a server."""
    plain = engine(tiny("llama", vocab_size=VOCAB, eos_token_id=None))
    return lambda prompt, count: TOKENS.decode(
        plain.generate([TOKENS.encode(prompt)], SamplingParams(count))[0]
    )


def test_a_completion_is_what_the_engine_generates(running, expected):
    found = running.client().completions.create(model="tiny", prompt=LONG, max_tokens=9, temperature=0)
    assert found.choices[0].text == expected(LONG, 9)
    assert found.choices[0].finish_reason == "length"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(LONG), 9)
    assert (found.model, found.object) == ("tiny", "text_completion")


def test_a_stream_is_the_same_in_parts(running, expected):
    stream = running.client().completions.create(
        model="tiny",
        prompt=LONG,
        max_tokens=9,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == expected(LONG, 9)
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 8 + ["length"]
    assert chunks[-1].usage.completion_tokens == 9
    assert len({c.id for c in chunks}) == 1


def test_a_chat_goes_on_with_the_conversation(running, expected):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = "system: Be brief.\nuser: Hi\nassistant: "
    found = running.client().chat.completions.create(
        model="tiny", messages=messages, max_tokens=6, temperature=0
    )
    assert found.choices[0].message.content == expected(prompt, 6)
    assert found.choices[0].message.role == "assistant"
    stream = running.client().chat.completions.create(
        model="tiny", messages=messages, max_completion_tokens=6, temperature=0, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert "".join(d.content for d in deltas) == expected(prompt, 6)
    assert [d.role for d in deltas] == ["assistant"] + [None] * 5


def test_prompts_and_copies_have_their_places(running, expected):
    found = running.client().completions.create(
        model="tiny", prompt=["one", "two"], n=2, max_tokens=4, temperature=0
    )
    texts = {choice.index: choice.text for choice in found.choices}
    assert texts == {i: expected(("one", "two")[i // 2], 4) for i in range(4)}


def test_prompts_may_be_tokens(running, expected):
    client = running.client()
    found = client.completions.create(model="tiny", prompt=TOKENS.encode("abc"), max_tokens=4, temperature=0)
    assert found.choices[0].text == expected("abc", 4)
    both = client.completions.create(
        model="tiny", prompt=[TOKENS.encode("abc"), TOKENS.encode("x")], max_tokens=4, temperature=0
    )
    assert [c.text for c in both.choices] == [expected("abc", 4), expected("x", 4)]


def test_a_stop_text_ends_the_answer_before_it(running, expected):
    whole = expected(LONG, 20)
    stop = whole[9:12]
    found = running.client().completions.create(
        model="tiny", prompt=LONG, max_tokens=20, temperature=0, stop=[stop, "never said"]
    )
    assert found.choices[0].text == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    stream = running.client().completions.create(
        model="tiny", prompt=LONG, max_tokens=20, temperature=0, stop=stop, stream=True
    )
    assert "".join(c.choices[0].text for c in stream) == whole[: whole.index(stop)]


def test_a_seed_gives_the_same_answer_again(running):
    def text(seed: int) -> str:
        made = running.client().completions.create(
            model="tiny", prompt="s", max_tokens=8, seed=seed, temperature=1.2
        )
        return made.choices[0].text

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_models_health_and_metrics(running):
    assert [model.id for model in running.client().models.list()] == ["tiny"]
    assert httpx.get(f"{running.url}/health", timeout=PATIENCE).status_code == 200
    before = running.metric("braze_generated_tokens_total")
    running.client().completions.create(model="tiny", prompt="m", max_tokens=5)
    assert running.metric("braze_generated_tokens_total") == before + 5
    assert running.metric("braze_blocks") == 200
    assert running.metric("braze_time_to_first_token_seconds_count") > 0
    assert running.metric('braze_steps_total{mode="none"}') > 0


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (dict(prompt="x", logprobs=21), "logprobs"),
        (dict(prompt="x", logit_bias={"x": 1.0}), "logit_bias"),
        (dict(prompt="x", logit_bias={"5": 101}), "token 5 is not in -100..100"),
        (dict(prompt="x", logit_bias={"500": 1.0}), "token 500"),
        (dict(prompt="x", presence_penalty=3), "presence_penalty"),
        (dict(prompt="x", best_of=2, n=3), "best_of=2"),
        (dict(prompt="x", best_of=2, stream=True), "best_of"),
        (dict(prompt="x", suffix="y"), "suffix"),
        (dict(prompt="x", temperature=-1.0), "temperature"),
        (dict(prompt="x", max_tokens=0), "max_tokens"),
        (dict(prompt="x" * 100), "100 tokens"),
        (dict(prompt=""), "empty"),
        (dict(prompt=[500]), "token 500"),
        (dict(prompt="x", no_such_field=1), "no_such_field"),
        (dict(prompt=["x"] * 40, n=2), "40 prompts"),
        (dict(), "prompt"),
    ],
)
def test_what_is_not_served_is_a_bad_request_that_names_it(running, body, word):
    found = httpx.post(f"{running.url}/v1/completions", json={"model": "tiny", **body}, timeout=PATIENCE)
    assert found.status_code == 400
    assert word in found.json()["error"]["message"]


def test_another_model_is_not_found(running):
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        running.client().completions.create(model="gpt-9", prompt="x")


def test_images_are_refused(running):
    parts = [{"type": "image_url", "image_url": {"url": "http://nowhere/x.png"}}]
    with pytest.raises(openai.BadRequestError, match="other parts than text"):
        running.client().chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])


@pytest.mark.parametrize("words", [dict(request_seconds=-1.0), dict(most_bytes=0), dict(most_requests=0)])
def test_a_server_refuses_limits_that_mean_nothing(words):
    with pytest.raises(UserError, match="BZ7411"):
        make_app(engine(tiny()), ByteTokens(VOCAB), ServerOptions(**words))


def test_the_model_is_retrieved_by_its_name(running):
    assert running.client().models.retrieve("tiny").id == "tiny"
    for name in ("gpt-9", "owner/tiny"):
        with pytest.raises(openai.NotFoundError, match=name):
            running.client().models.retrieve(name)


@pytest.mark.parametrize(
    "words",
    [
        dict(service_tier="auto"), dict(safety_identifier="u"), dict(prompt_cache_key="k"), dict(tool_choice="none"),
        dict(parallel_tool_calls=True), dict(modalities=["text"]), dict(response_format={"type": "text"}), dict(user="u"),
    ],
    ids=str,
)  # fmt: skip
def test_words_that_change_no_answer_are_taken(running, words):
    asked = dict(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, temperature=0)
    found, plain = (running.client().chat.completions.create(**asked, **more) for more in (words, {}))
    assert found.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize(
    "words",
    [
        dict(tools=[{"type": "function", "function": {"name": "f"}}]), dict(tool_choice="required"), dict(functions=[{"name": "f"}]),
        dict(modalities=["text", "audio"]), dict(reasoning_effort="low"), dict(verbosity="low"),
        dict(web_search_options={}), dict(response_format={"type": "json_object"}),
    ],
    ids=str,
)  # fmt: skip
def test_words_that_would_change_an_answer_are_refused_by_name(running, words):
    with pytest.raises(openai.BadRequestError, match=f"not served here: {next(iter(words))}"):
        running.client().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], **words
        )


def test_options_of_a_stream_are_for_streams(running):
    client = running.client()
    asked = dict(model="tiny", prompt="x", max_tokens=3, stream_options={"include_usage": True})
    with pytest.raises(openai.BadRequestError, match="stream_options"):
        client.completions.create(**asked)
    url, body = f"{running.url}/v1/completions", {**asked, "stream": True}
    lines = [line for line in httpx.post(url, json=body, timeout=PATIENCE).text.splitlines() if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "kind", "word"),
    [
        (b"{bad", "application/json", "not JSON"),
        (b"[]", "application/json", "JSON object"),
        (b'{"prompt": "x"}', "text/plain", "content-type: application/json"),
        (b"", "application/json", "JSON object"),
    ],
)
def test_a_body_that_is_no_object_is_told_so(running, body, kind, word):
    url = f"{running.url}/v1/completions"
    found = httpx.post(url, content=body, headers={"content-type": kind}, timeout=PATIENCE)
    assert (found.status_code, found.json()["error"]["param"]) == (400, None)
    assert word in found.json()["error"]["message"]
