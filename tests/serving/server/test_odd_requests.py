"""No request, however odd, ends the engine or another's request: it is refused in the protocol's words, or served."""

from __future__ import annotations

import json
import math

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braze.serving.engine.sampling import SamplingParams
from tests.serving.cases import share
from tests.serving.server.conftest import PATIENCE, VOCAB, serving, soon

#: one for all: a client takes longer to be made than a request to be answered
CLIENT = httpx.Client(timeout=PATIENCE, verify=False)
HUGE = 10**30
NUMBERS = (
    0,
    1,
    -1,
    0.0,
    -0.0,
    0.5,
    1e-30,
    5e-324,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    HUGE,
    -HUGE,
    2**63,
    2**64,
    True,
    None,
    "1",
    [],
    {},
)
TEXTS = ("", "a", "é", "\ud800", "x\udfff", "\0", "<1", "a" * 5000, "😀")


def post(url: str, body: object, path: str = "completions") -> httpx.Response:
    """As json.dumps writes it: NaN and Infinity as Python's parser takes them, half a surrogate pair as an escape."""
    text = body if isinstance(body, str) else json.dumps(body)
    head = {"content-type": "application/json"}
    return CLIENT.post(f"{url}/v1/{path}", content=text, headers=head)


def check(found: httpx.Response) -> None:
    """Served, or refused with an error as the protocol has it."""
    if found.status_code == 200:
        assert "error" not in found.text or "data:" not in found.text
        return
    assert found.status_code == 400, (found.status_code, found.text)
    error = found.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"]


def alive(running) -> bool:
    """Whether the next one is answered."""
    found = post(running.url, dict(prompt="x", max_tokens=2, temperature=0))
    return found.status_code == 200 and found.json()["usage"]["completion_tokens"] == 2


FIELDS = {
    name: NUMBERS
    for name in ("seed", "temperature", "top_p", "top_k", "max_tokens", "n", "best_of", "logprobs", "presence_penalty", "frequency_penalty", "stream", "echo")
} | {
    "logit_bias": ({}, {"0": 1}, {"-1": 5}, {str(HUGE): 100}, {"x": 1}, {"1": math.nan}, [], 1),
    "stop": (*TEXTS, [], ["", "a"], ["a"] * 65, ["a", "ab", "b", "<"], [None], 5, ["\ud800"]),
    "prompt": (*TEXTS, [], [[]], [""], [0], [VOCAB], [-1], [HUGE], [1.5], [True], [None], [[0], []], [[0], [VOCAB]], ["a", 1], [[1], "a"], [1] * 500, [[[1]]], None, 7),
    "tools": ([], [5], [{}], {}, "x", [{"type": "function", "function": {"name": "\ud800"}}]), "tool_choice": ("auto", "x", {}, 5), "top_logprobs": NUMBERS,
    "suffix": ("", "x"), "user": (5, "\ud800"), "stream_options": ({}, {"include_usage": 1}, {"x": 1}, 3),
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_each_field_takes_anything(running, field):
    for value in FIELDS[field]:
        body = {"prompt": "x", "max_tokens": 3, **{field: value}}
        check(post(running.url, body))
        if field not in ("stream", "n"):
            check(post(running.url, body | {"stream": True}))
        if field not in ("prompt", "logprobs", "best_of", "echo", "suffix"):
            del body["prompt"]
            check(
                post(running.url, body | {"messages": [{"role": "user", "content": "y"}]}, "chat/completions")
            )
    assert alive(running)


def test_a_field_of_another_kind_is_named_without_what_checks_it(running):
    error = post(running.url, {"prompt": "x", "stop": 5}).json()["error"]
    assert error["param"] == "stop"
    assert error["code"] == "BZ7511"
    assert (
        error["message"] == "BZ7511: stop: Input should be a valid string; stop: Input should be a valid list"
    )


@pytest.mark.parametrize(
    "messages",
    [
        [], [{}], [{"role": "user"}], [{"role": 5, "content": "x"}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "text", "text": 3}]}],
        [{"role": "\ud800", "content": "x"}], [{"role": "user", "content": "\udc00"}], [{"role": "user", "content": "x" * 200}], [{"role": "user", "content": None, "tool_calls": [1]}],
        "hello", None,
    ],
)  # fmt: skip
def test_conversations_may_be_anything(running, messages):
    check(post(running.url, {"messages": messages, "max_tokens": 2}, "chat/completions"))
    assert alive(running)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", '"x"', "{", "nonsense", '{"prompt": "x", "seed": 1' + "0" * 5000 + "}", '{"prompt": "x", "temperature": 1e999}',
        "[" * 100_000, '{"\\ud800": 1, "prompt": "x"}', '{"prompt": "x", "prompt": [1], "max_tokens": 1}', "\x00",
    ],
)  # fmt: skip
def test_bodies_may_be_anything(running, text):
    check(post(running.url, text))
    assert alive(running)


def test_other_addresses_and_methods_are_refused_in_the_protocols_words(running):
    for found, status in (
        (httpx.get(f"{running.url}/v1/nothing", timeout=PATIENCE), 404),
        (httpx.get(f"{running.url}/v1/completions", timeout=PATIENCE), 405),
    ):
        error = found.json()["error"]
        assert (found.status_code, error["type"], error["code"]) == (
            status,
            "invalid_request_error",
            "BZ7510",
        )
        assert "/v1/chat/completions" in error["message"] or "takes POST" in error["message"]
    assert found.headers["allow"] == "POST"


def test_a_field_that_is_not_known_is_told_with_the_nearest_that_is(running):
    error = post(running.url, {"prompt": "x", "max_tokns": 5, "temperatur": 0}).json()["error"]
    assert (error["code"], error["param"]) == ("BZ7505", "max_tokns")
    assert (
        "did you mean 'max_tokens'?" in error["message"] and "did you mean 'temperature'?" in error["message"]
    )
    unlike = post(running.url, {"prompt": "x", "stream": True, "stream_options": {"x": 1}}).json()["error"]
    assert (unlike["code"], unlike["param"]) == ("BZ7505", "stream_options")


def test_a_prompt_that_is_too_long_is_told_with_the_option_that_allows_it(running):
    error = post(running.url, {"prompt": [1] * 500}).json()["error"]
    assert error["code"] == "BZ7406"
    assert "500 tokens" in error["message"] and "--max-model-len" in error["message"]


def test_another_model_by_no_text_at_all_is_not_found(running):
    found = post(running.url, dict(prompt="x", model="\ud800"))
    assert found.status_code == 404
    assert found.json()["error"]["code"] == "BZ7506"


def test_a_request_has_so_many_bytes_at_most():
    with serving(most_bytes=1000) as found:
        long = json.dumps(dict(prompt="x" * 2000)).encode()
        told = post(found.url, long.decode())
        parts = httpx.post(
            f"{found.url}/v1/completions",
            content=iter([long[:900], long[900:]]),
            headers={"content-type": "application/json"},
            timeout=PATIENCE,
        )
        for answer in (told, parts):
            assert answer.status_code == 413
            assert "1000 bytes" in answer.json()["error"]["message"]
        assert alive(found)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(TEXTS + NUMBERS[:16]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=share(2), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.dictionaries(st.sampled_from(sorted(set(FIELDS) - {"max_tokens"})), ANY, max_size=5),
    prompt=st.sampled_from(["x", [1, 2], ["a", "b"]]),
)
def test_requests_may_say_anything(running, body, prompt):
    check(post(running.url, {"prompt": prompt, **body, "max_tokens": 2}))
    assert alive(running)


def test_a_seed_of_64_bits_is_served_by_either_sign_and_its_copies_differ(running):
    """The last copy's seed once was one more than 64 bits hold, which ended the engine."""
    for seed in (-(2**63), -1, 2**63 - 1, 2**64 - 1):
        body = dict(prompt="s", max_tokens=8, seed=seed, temperature=2.0, n=3)
        texts = [[c["text"] for c in post(running.url, body).json()["choices"]] for _ in range(2)]
        assert texts[0] == texts[1]
        assert len(set(texts[0])) == 3


def test_the_request_for_whose_sake_a_step_raises_ends_and_no_other():
    """Its neighbours are computed again, and have the tokens that they have without it; one sent a token before does not get it twice."""
    with serving() as found:
        plain = found.engine.generate([[5, 6], [7]], SamplingParams(20, ignore_eos=True))
        launch = found.engine.runner.launch

        def poisoned(works, *before):
            if any(99 in work.request.prompt and work.request.generated == 4 for work in works):
                raise RuntimeError("for one request's sake")
            return launch(works, *before)

        found.engine.runner.launch = poisoned
        got: list[list[int]] = [[], [], []]
        ends: list[object] = [None] * 3

        def sender(i: int):
            def deliver(delta):
                got[i] += delta.tokens
                ends[i] = delta.error or delta.ended or ends[i]

            return deliver

        loop = found.server.loop
        ready = [
            loop.submit(p, SamplingParams(20, ignore_eos=True), sender(i))
            for i, p in enumerate(([5, 6], [99, 3], [7]))
        ]
        assert len(ready) == 3
        assert soon(lambda: None not in ends)
        assert got[0] == plain[0] and got[2] == plain[1]
        assert "for one request's sake" in str(ends[1]) and len(got[1]) == 4
        assert found.settled()
        assert alive(found)


def test_steps_that_raise_only_for_several_together_end_them():
    """Each alone is well, so that nobody is to blame, and nobody waits for ever."""
    with serving() as found:
        launch = found.engine.runner.launch

        def poisoned(works, *before):
            if len(works) > 1:
                raise RuntimeError("two are too many")
            return launch(works, *before)

        found.engine.runner.launch = poisoned
        answer = post(found.url, dict(prompt=["a", "b"], max_tokens=20))
        assert answer.status_code == 500
        assert "two are too many" in answer.json()["error"]["message"]
        assert found.settled()
        assert alive(found)


def test_what_cannot_be_added_or_told_ends_alone(monkeypatch):
    with serving() as found:
        add = found.engine.add

        def failing(prompt, params):
            if prompt == (1, 2, 3):
                raise ZeroDivisionError("while it was added")
            return add(prompt, params)

        monkeypatch.setattr(found.engine, "add", failing)
        answer = post(found.url, dict(prompt=[1, 2, 3]))
        assert answer.status_code == 500
        assert "BZ7508" in answer.text and "while it was added" in answer.text

        def deaf(delta):
            raise OSError("nobody listens")

        found.server.loop.submit((1,), SamplingParams(50), deaf)
        assert alive(found)
        assert found.settled()
