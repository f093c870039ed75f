"""The OpenAI protocol: what requests may say, and what answers look like."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from braze.serving.engine.sampling import MOST_LOGPROBS, SamplingParams
from braze.serving.server.tools import Call, checked, read_arguments
from braze.support.errors import UserError

#: what an error says at most
_LONGEST = 2000
#: texts that end an answer: how many, and of how many characters, at most
_STOPS, _STOP = 64, 1024
#: tokens whose logits a request changes, at most, and digits of one
_BIASES, _DIGITS = 1024, 12


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
Penalty = Annotated[Number, Field(ge=-2, le=2)]
#: how many of the likeliest tokens are told beside one
Likeliest = Annotated[Whole, Field(ge=0, le=MOST_LOGPROBS)]


def _bias(given: dict[str, float]) -> dict[str, float]:
    for token, more in given.items():
        if not (token.isascii() and token.isdigit()) or len(token) > _DIGITS:
            raise ValueError(f"a token is a whole number, not {token[:_DIGITS]!r}")
        if not -100 <= more <= 100:
            raise ValueError(f"the bias of token {token} is not in -100..100")
    return given


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
    #: padding against who measures a stream's parts; there is none
    include_obfuscation: bool | None = None


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
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Number], Field(max_length=_BIASES), AfterValidator(_bias)] | None = None
    # what changes no answer here
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: Flag | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for requests with stream=true")
        return self

    @property
    def answers(self) -> int:
        """Answers to each prompt that are given."""
        return self.n or 1

    @property
    def copies(self) -> int:
        """Answers to each prompt that are generated."""
        return self.answers

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens are told beside each, with log-probabilities; None: none are told."""
        raise NotImplementedError

    @property
    def echoes(self) -> bool:
        """Whether an answer begins with its prompt."""
        return False

    def unserved(self) -> list[str]:
        """Fields with values that are not served."""
        raise NotImplementedError

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
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=tuple((int(token), more) for token, more in (self.logit_bias or {}).items()),
            # the best are known by theirs
            logprobs=0 if self.likeliest is None and self.copies > self.answers else self.likeliest,
            prompt_logprobs=self.likeliest if self.echoes else None,
        )


class CompletionRequest(_Sampled):
    """``POST /v1/completions``."""

    prompt: Annotated[Any, AfterValidator(_prompt)]
    #: none: for the prompt alone, which is echoed
    max_tokens: Whole | None = Field(default=16, ge=0)
    echo: Flag | None = None
    best_of: Whole | None = Field(default=None, ge=1, le=64)
    logprobs: Likeliest | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.best_of is not None and self.best_of < self.answers:
            raise ValueError(f"best_of={self.best_of} is less than n={self.answers}")
        if self.copies > self.answers and self.stream:
            raise ValueError("which answers are best is known at their ends: best_of is not for streams")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens=0 is for requests with echo=true")
        return self

    @property
    def copies(self) -> int:
        """As many as the best are chosen from."""
        return self.best_of or self.answers

    @property
    def likeliest(self) -> int | None:
        """As it says."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """As it says."""
        return bool(self.echo)

    def limit(self) -> int | None:
        """As it says; one that is not told, where there are to be none."""
        return self.max_tokens if self.max_tokens is None else max(self.max_tokens, 1)

    def unserved(self) -> list[str]:
        """Fields with values that are not served."""
        return ["suffix"] if self.suffix else []

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
        more = dict(self.model_extra or {})
        if "tool_calls" in more:
            more["tool_calls"] = read_arguments(more["tool_calls"])
        return {**more, "role": self.role, "content": content or ""}


class ChatRequest(_Sampled):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: Whole | None = Field(default=None, ge=1)
    max_completion_tokens: Whole | None = Field(default=None, ge=1)
    logprobs: Flag | None = None
    top_logprobs: Likeliest | None = None
    tools: Annotated[list[Any], AfterValidator(checked)] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    #: False: the first call alone is given
    parallel_tool_calls: Flag | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _tells(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is for requests with logprobs=true")
        return self

    @property
    def likeliest(self) -> int | None:
        """As it says."""
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def callable(self) -> list[Any]:
        """The tools that may be called."""
        return [] if self.tool_choice == "none" else self.tools or []

    def limit(self) -> int | None:
        """As it says."""
        return self.max_completion_tokens or self.max_tokens

    def unserved(self) -> list[str]:
        """Fields with values that are not served."""
        harmless = {
            "response_format": (self.response_format or {"type": "text"}).get("type") == "text",
            # one that must be is not certain to be
            "tool_choice": self.tool_choice in (None, "none", "auto"),
            "function_call": self.function_call in (None, "none", "auto"),
            "modalities": self.modalities in (None, [], ["text"]),
            # named, even where it is empty
            "web_search_options": self.web_search_options is None,
        }
        names = (
            "functions", "audio", "prediction", "moderation", "reasoning_effort", "verbosity",
        )  # fmt: skip
        return [name for name in names if getattr(self, name)] + [
            name for name, may in harmless.items() if not may
        ]


class Choice(NamedTuple):
    """One answer to a prompt: its text, why it ended, its tokens' log-probabilities as the protocol has them, and calls of tools."""

    text: str
    reason: str | None
    logprobs: dict[str, Any] | None = None
    calls: Sequence[Call] = ()


class Answer:
    """Builds the parts of one answer. ``chat``: in the form of the chat protocol; ``counted``: its stream ends with the number of tokens."""

    def __init__(self, model: str, chat: bool, counted: bool = False) -> None:
        self.chat, self.model, self.counted = chat, model, counted
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def whole(self, choices: list[Choice], usage: dict[str, int]) -> dict[str, Any]:
        """The answer at once."""
        found = []
        for i, (text, reason, logprobs, calls) in enumerate(choices):
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if calls:
                message |= {"content": text or None, "tool_calls": [call.told() for call in calls]}
            said = {"message": message} if self.chat else {"text": text}
            found.append({"index": i, **said, "logprobs": logprobs, "finish_reason": reason})
        return {
            **self._head("chat.completion" if self.chat else "text_completion"),
            "choices": found,
            "usage": usage,
        }

    def chunk(self, index: int, part: Choice, first: bool = False) -> dict[str, Any]:
        """A part of a streamed choice."""
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if part.text or not part.calls:
            delta["content"] = part.text
        if part.calls:
            delta["tool_calls"] = [{"index": call.number, **call.told()} for call in part.calls]
        said = {"delta": delta} if self.chat else {"text": part.text}
        choice = {"index": index, **said, "logprobs": part.logprobs, "finish_reason": part.reason}
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
