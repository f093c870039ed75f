"""The OpenAI protocol: what requests may say, and what answers look like."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from braze.serving.engine.sampling import SamplingParams
from braze.support.errors import UserError

#: what an error says at most
_LONGEST = 2000
#: texts that end an answer: how many, and of how many characters, at most
_STOPS, _STOP = 64, 1024


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a surrogate pair") from None
    return text


#: numbers and words as JSON has them: no booleans or texts in place of numbers
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True), AfterValidator(_unicode)]
Stop = Annotated[Text, Field(min_length=1, max_length=_STOP)]


def _prompt(given: Any) -> Any:
    """A text, tokens, or a list of either, and nothing else; told at the first that is not, however long the list."""
    if isinstance(given, str):
        return _unicode(given)
    if not isinstance(given, list):
        raise ValueError("a prompt is a text, tokens, or a list of either")
    if given and isinstance(given[0], (str, list)):
        for part in given:
            if type(part) is not type(given[0]):
                raise ValueError("prompts are all texts, or all tokens")
            _unicode(part) if isinstance(part, str) else _whole(part)
    else:
        _whole(given)
    return given


def _whole(tokens: list[Any]) -> None:
    for token in tokens:
        if type(token) is not int:
            raise ValueError(f"a token is a whole number, not {type(token).__name__}")


class StreamOptions(BaseModel):
    """Whether the last chunk of a stream tells the number of tokens."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class _Sampled(BaseModel):
    """What both kinds of requests say. Fields of the protocol that would change the answer and are not served are
    refused; those that would not are taken."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    #: -1 and 0: all tokens
    top_k: Whole | None = Field(default=None, ge=-1)
    n: Whole | None = Field(default=None, ge=1, le=64)
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=_STOPS)] | None = None
    seed: Whole | None = None
    ignore_eos: Flag | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    # what changes no answer here
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: Flag | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for requests with stream=true")
        return self

    @property
    def copies(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    def unserved(self) -> list[str]:
        """Fields with values that are not served."""
        names = ("presence_penalty", "frequency_penalty", "logit_bias")
        return [name for name in names if getattr(self, name)] + self._others()

    def _others(self) -> list[str]:
        """Those of the one kind of request."""
        return []

    def stops(self) -> list[str]:
        """The texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def limit(self) -> int | None:
        """Tokens at most, if the request says."""
        raise NotImplementedError

    def params(self, room: int) -> SamplingParams:
        """How tokens are drawn; ``room``: tokens at most, where the request does not say."""
        if unserved := self.unserved():
            raise UserError("BZ7505", f"not served here: {', '.join(unserved)}", hints=("leave it out",))
        return SamplingParams(
            max_tokens=self.limit() or room,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
        )


class CompletionRequest(_Sampled):
    """``POST /v1/completions``."""

    prompt: Annotated[Any, AfterValidator(_prompt)]
    max_tokens: Whole | None = Field(default=16, ge=1)
    echo: Flag | None = None
    best_of: Whole | None = None
    logprobs: Whole | None = None
    suffix: str | None = None

    def limit(self) -> int | None:
        """As it says."""
        return self.max_tokens

    def _others(self) -> list[str]:
        asked = {
            "echo": self.echo,
            "logprobs": self.logprobs is not None,
            "suffix": self.suffix,
            "best_of": self.best_of not in (None, self.copies),
        }
        return [name for name, value in asked.items() if value]

    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or tokens."""
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            return [given]
        return list(given)


class Message(BaseModel):
    """One turn of a conversation; parts of text are joined."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """For the template. Raises BZ7505 for parts that are no text."""
        content = self.content
        if isinstance(content, list):
            if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
                raise UserError("BZ7505", "messages with other parts than text are not served")
            content = "".join(part["text"] for part in content)
        return {**(self.model_extra or {}), "role": self.role, "content": content or ""}


class ChatRequest(_Sampled):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: Whole | None = Field(default=None, ge=1)
    max_completion_tokens: Whole | None = Field(default=None, ge=1)
    logprobs: Flag | None = None
    top_logprobs: Whole | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    #: of no effect without tools
    parallel_tool_calls: Flag | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None

    def limit(self) -> int | None:
        """As it says."""
        return self.max_completion_tokens or self.max_tokens

    def _others(self) -> list[str]:
        harmless = {
            "response_format": (self.response_format or {"type": "text"}).get("type") == "text",
            "tool_choice": self.tool_choice in (None, "none", "auto"),
            "function_call": self.function_call in (None, "none", "auto"),
            "modalities": self.modalities in (None, [], ["text"]),
            # named, even where it is empty
            "web_search_options": self.web_search_options is None,
        }
        names = (
            "logprobs", "top_logprobs", "tools", "functions", "audio", "prediction", "reasoning_effort", "verbosity",
        )  # fmt: skip
        return [name for name in names if getattr(self, name)] + [
            name for name, may in harmless.items() if not may
        ]


class Answer:
    """Builds the parts of one answer. ``chat``: in the form of the chat protocol; ``counted``: its stream ends with the number of tokens."""

    def __init__(self, model: str, chat: bool, counted: bool = False) -> None:
        self.chat, self.model, self.counted = chat, model, counted
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def whole(self, texts: list[tuple[str, str]], usage: dict[str, int]) -> dict[str, Any]:
        """The answer at once, of (text, why it ended) of each choice."""
        choices = []
        for i, (text, reason) in enumerate(texts):
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            choices.append({"index": i, **said, "logprobs": None, "finish_reason": reason})
        return {
            **self._head("chat.completion" if self.chat else "text_completion"),
            "choices": choices,
            "usage": usage,
        }

    def chunk(self, index: int, text: str, reason: str | None, first: bool = False) -> dict[str, Any]:
        """A part of a streamed choice."""
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        said = {"delta": delta} if self.chat else {"text": text}
        choice = {"index": index, **said, "logprobs": None, "finish_reason": reason}
        # where the last chunk tells the number of tokens, all others say that they do not
        counted = {"usage": None} if self.counted else {}
        return {**self._head(self._kind()), "choices": [choice], **counted}

    def last(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that tells the number of tokens."""
        return {**self._head(self._kind()), "choices": [], "usage": usage}

    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(prompts: int, generated: int) -> dict[str, int]:
    """Numbers of tokens."""
    return {"prompt_tokens": prompts, "completion_tokens": generated, "total_tokens": prompts + generated}


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as the protocol has it; ``param``: the field at fault. What a request said may be in it, and need not be text that can be sent."""
    told, field = (text and text[:_LONGEST].encode(errors="replace").decode() for text in (message, param))
    return {"error": {"message": told, "type": kind, "param": field, "code": code}}
