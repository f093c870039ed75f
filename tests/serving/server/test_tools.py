"""Calls of tools are taken out of what a model writes, however it comes in parts, and told as OpenAI's are."""

from __future__ import annotations

import json
from itertools import pairwise

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from braze.serving.server.tokens import FileTokens
from braze.serving.server.tools import CallReader
from tests.serving.server.conftest import PATIENCE, VOCAB, serving

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "sum", "arguments": {"a": 1, "b": "é<2"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "now"}</tool_call>'


def read(parts: list[str], several: bool = True) -> tuple[str, list[tuple[int, str, object]]]:
    reader, said, calls = CallReader(several), "", []
    for i, part in enumerate(parts):
        text, found = reader.add(part, last=i == len(parts) - 1)
        said += text
        calls += [(call.number, call.name, json.loads(call.arguments)) for call in found]
    return said, calls


SUM, NOW = (0, "sum", {"a": 1, "b": "é<2"}), (1, "now", {})


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("just text, 1 < 2 <tool", "just text, 1 < 2 <tool", []),
        (CALL, "", [SUM]),
        (f"Let me see.\n{CALL}\n{OTHER}\n", "Let me see.\n", [SUM, NOW]),
        (f"{CALL}\n and more", "and more", [SUM]),
        (CALL.removesuffix("</tool_call>"), "", [SUM]),
        ("<tool_call>{not json}</tool_call>", "<tool_call>{not json}</tool_call>", []),
        ("<tool_call>[1]</tool_call> x", "<tool_call>[1]</tool_call> x", []),
        ('<tool_call>{"name": "a", "arguments": 3}</tool_call>', '<tool_call>{"name": "a", "arguments": 3}</tool_call>', []),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}', '<tool_call>{"name": "a", "arguments": {"x": NaN}}', []),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}', '<tool_call>{"name": "a", "arguments": {"x": 1e999}}', []),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', '<tool_call>{"name": "\\ud800"}</tool_call>', []),
        ("<tool_call>" * 3, "<tool_call>" * 3, []),
    ],
)  # fmt: skip
@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 120), max_size=12))
def test_calls_are_found_wherever_a_text_is_cut(text, said, calls, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert read([text[a:b] for a, b in pairwise(edges)]) == (said, calls)


def test_where_calls_are_not_to_be_parallel_the_first_is_given():
    assert read([f"{CALL}{OTHER}"], several=False) == ("", [SUM])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A token a byte of ASCII, and a template that teaches calls."""
    made = tmp_path_factory.mktemp("tokens")
    alphabet = sorted(
        pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (c not in "ĠĊ" and ord(c) >= 127, c)
    )[:VOCAB]
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return FileTokens(made)


def test_tools_are_not_served_where_marks_of_calls_are_no_text(tokens, tmp_path):
    """A special token is left out of what an answer says, so that its calls would never be found."""
    assert tokens.calls
    marked = tokens._tokenizer.from_str(tokens._tokenizer.to_str())
    marked.add_special_tokens(["<tool_call>", "</tool_call>"])
    marked.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    assert not FileTokens(tmp_path).calls


@pytest.fixture(scope="module")
def says(tokens):
    """A server whose model writes a given text; what it was asked is in ``prompts``."""
    with serving(tokens, limits=dict(max_model_len=256)) as running:
        launch, script = running.engine.runner.launch, []

        def launched(works, before=None):
            flight = launch(works, before)
            drawn = [[script[work.request.generated]] if work.samples else [] for work in works]
            flight.wait = lambda: drawn
            return flight

        def write(text: str):
            script[:] = tokens.encode(text, special=False)
            return running.client().chat.completions

        write.url = running.url
        running.engine.runner.launch = launched
        yield write


def asked(text: str, tokens: FileTokens, **more):
    return dict(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=len(tokens.encode(text)), temperature=0, tools=TOOLS, stop="\n\n\n", **more
    )  # fmt: skip


WRITTEN = 'Well.\n<tool_call>{"name": "sum", "arguments": {"a": [1, 2]}}</tool_call>\n' + OTHER + "\n\n\n"


def test_an_answer_tells_the_calls_in_it(says, tokens):
    choice = says(WRITTEN).create(**asked(WRITTEN, tokens)).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Well.\n", "tool_calls")
    calls = choice.message.tool_calls
    assert [(c.type, c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("function", "sum", {"a": [1, 2]}), ("function", "now", {}),
    ]  # fmt: skip
    assert len({call.id for call in calls}) == 2
    only = says(WRITTEN).create(**asked(WRITTEN, tokens, parallel_tool_calls=False)).choices[0]
    assert [call.function.name for call in only.message.tool_calls] == ["sum"]


def test_a_stream_tells_each_call_when_it_is_whole(says, tokens):
    chunks = [c.choices[0] for c in says(WRITTEN).create(**asked(WRITTEN, tokens, stream=True))]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Well.\n"
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [(c.index, c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        (0, "sum", {"a": [1, 2]}), (1, "now", {}),
    ]  # fmt: skip
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert chunks[0].delta.role == "assistant"


def test_without_tools_nothing_is_taken_out(says, tokens):
    for more in (dict(tools=openai.NOT_GIVEN), dict(tool_choice="none")):
        words = asked(WRITTEN, tokens) | more
        choice = says(WRITTEN).create(**words).choices[0]
        assert choice.message.content == WRITTEN.removesuffix("\n\n\n")
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")


def test_an_answer_that_is_cut_short_says_so(says, tokens):
    words = asked(WRITTEN, tokens) | dict(max_tokens=30)
    choice = says(WRITTEN).create(**words).choices[0]
    assert (choice.message.content, choice.finish_reason) == (WRITTEN[:30], "length")


def test_templates_get_tools_and_what_was_called_before(tokens):
    """Arguments as objects, JSON as it is and not as in web pages."""
    messages = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "sum", "arguments": {"a": "<e>"}}}],
        }
    ]
    text = tokens._tokenizer.decode(tokens.chat(messages, TOOLS))
    assert text.startswith('sum;[assistant]<tool_call>{"name": "sum", "arguments": {"a": "<e>"}}')


def test_arguments_of_earlier_calls_are_read_from_their_text(says, tokens):
    call = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    found = says("3\n\n\n").create(**asked("3\n\n\n", tokens) | dict(messages=messages))
    prompt = '[user]Hi[assistant]<tool_call>{"name": "sum", "arguments": {"a": 1}}</tool_call>[tool]3'
    assert found.usage.prompt_tokens == len(f"sum;{prompt}")
    assert found.choices[0].message.content == "3"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (dict(tool_choice="required"), "not served here: tool_choice"),
        (dict(tool_choice={"type": "function", "function": {"name": "sum"}}), "not served here: tool_choice"),
        (dict(tools=[{"type": "function"}]), "tools.*a tool is"),
        (dict(tools=[5]), "tools.*a tool is"),
    ],
)
def test_what_is_no_tool_or_must_be_called_is_refused(says, tokens, more, told):
    with pytest.raises(openai.BadRequestError, match=told):
        says("x").create(**asked("x", tokens) | more)


def test_a_tool_whose_name_is_no_unicode_is_refused(says):
    tools = [{"type": "function", "function": {"name": "\ud800"}}]
    body = json.dumps(dict(messages=[{"role": "user", "content": "Hi"}], tools=tools))
    head = {"content-type": "application/json"}
    found = httpx.post(f"{says.url}/v1/chat/completions", content=body, headers=head, timeout=PATIENCE)
    assert found.status_code == 400
    assert "no Unicode" in found.json()["error"]["message"]


def test_a_model_that_knows_no_tools_refuses_them(running):
    with pytest.raises(openai.BadRequestError, match="not served here: tools"):
        running.client().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], tools=TOOLS
        )
