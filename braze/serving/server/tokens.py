"""Text to tokens and back, from a model's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from braze.support import log
from braze.support.errors import UserError

#: what a piece of a character is decoded to, until the rest of it comes
_BROKEN = "\ufffd"
#: tokens that wait for the rest of a character at most: what goes on longer is no text, and each further token would have all of them decoded again
_WAIT = 64
#: how a call of a tool begins in the templates whose calls are read
CALLS = "<tool_call>"
#: a byte as SentencePiece writes it
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def _byte_characters() -> dict[str, int]:
    """The character that byte-level tokenizers write for each byte: itself where it is printed, else the next beyond them."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


class TextTokens(Protocol):
    """What the server needs of a tokenizer."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; ``special``: with those that begin one."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""

    def piece(self, token: int) -> str:
        """What a token is in a text, special ones by their names."""

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that a token is, which need be no whole characters; None where that is not known."""

    #: whether a conversation may name tools, whose calls are written as ``tools`` reads them
    calls: bool

    def chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] = ()) -> list[int]:
        """The tokens of a conversation that the assistant is to go on with. Raises BZ7502 where there is no template."""


class FileTokens:
    """``tokenizer.json``, and the chat template of ``tokenizer_config.json`` or ``chat_template.jinja``."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises nothing narrower
            raise UserError(
                "BZ7404",
                f"the tokenizer in {folder} cannot be loaded",
                why=f"tokenizer.json: {error}",
                hints=("fetch it anew; without the file a token is taken for a byte",),
            ) from error
        self._template, self._names, source = _template(folder)
        self._pieces: dict[int, str] = {}
        # marks that are special tokens would be left out of an answer's text, and its calls not be found
        self.calls = "tools" in source and CALLS in source and CALLS in self.decode(self.encode(CALLS))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """As ``TextTokens`` says."""
        return self._tokenizer.encode(_written(text), add_special_tokens=special).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """As ``TextTokens`` says."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """As ``TextTokens`` says: what it adds behind itself, since decoders leave out a space that begins a text."""
        found = self._pieces.get(token)
        if found is None:
            once, twice = (self._tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2))
            found = self._pieces[token] = twice[len(once) :]
        return found

    def bytes_of(self, token: int) -> bytes | None:
        """As ``TextTokens`` says."""
        piece = self.piece(token)
        if _BROKEN not in piece:
            return piece.encode()
        written = self._tokenizer.id_to_token(token) or ""
        if _BYTE.fullmatch(written):  # one byte, as SentencePiece has it
            return bytes([int(written[3:5], 16)])
        found = [_BYTES.get(character) for character in written]
        return None if None in found else bytes(byte for byte in found if byte is not None)

    def chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] = ()) -> list[int]:
        """As ``TextTokens`` says; the template writes the special tokens."""
        if self._template is None:
            raise UserError("BZ7502", "this model has no chat template", hints=("use /v1/completions",))
        try:
            text = self._template.render(
                messages=messages, tools=list(tools) or None, add_generation_prompt=True, **self._names
            )
        except Exception as error:  # a template may do anything with what messages hold
            raise UserError(
                "BZ7502", "the chat template refuses this conversation", why=str(error)
            ) from error
        return self.encode(text, special=False)


class ByteTokens:
    """A token a byte, for models without a tokenizer: those with random weights. A conversation is its lines."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.calls = False

    def encode(self, text: str, special: bool = True) -> list[int]:
        """As ``TextTokens`` says; a small vocabulary takes the rest of a byte's division by its size."""
        return [byte % self.vocab for byte in _written(text).encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        """As ``TextTokens`` says; tokens beyond a byte's are written as numbers."""
        return "".join(chr(t) if 32 <= t < 127 else f"<{t}>" for t in tokens)

    def piece(self, token: int) -> str:
        """As ``TextTokens`` says."""
        return self.decode([token])

    def bytes_of(self, token: int) -> bytes | None:
        """As ``TextTokens`` says."""
        return self.piece(token).encode()

    def chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] = ()) -> list[int]:
        """As ``TextTokens`` says."""
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")


def _written(text: str) -> str:
    """A text that can be written as bytes. Raises BZ7502 for one with half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError("BZ7502", "a text that is no Unicode", why=str(error)) from None
    return text


def tokens_of(folder: Path, vocab: int) -> TextTokens:
    """The tokenizer of a model's folder; bytes where it has none, which is told of (BZ7503)."""
    if (folder / "tokenizer.json").exists():
        return FileTokens(folder)
    log.warn_once(
        ("tokenizer", str(folder)),
        f"BZ7503: {folder} has no tokenizer.json: a token is taken for a byte, as for models with random weights",
        "capture",
    )
    return ByteTokens(vocab)


class Detokenizer:
    """The text of tokens that come one after another; what is not a whole character yet waits for the next.

    ``stop``: texts that end it. What may be the beginning of one is held back until it is known. ``behind``: tokens that the text goes on from, which
    are none of it: decoders leave out a space that begins a text.
    """

    def __init__(self, tokens: TextTokens, stop: Sequence[str] = (), behind: Sequence[int] = ()) -> None:
        self._tokens, self._stop = tokens, tuple(stop)
        self._all = list(behind)
        #: tokens before ``_begin`` are out for good; the text of those up to ``_shown`` is known
        self._begin, self._shown = 0, len(self._all)
        self._given = len(self._all)
        self._held = ""
        #: characters that tokens have come to, with those that are held back
        self.length = 0
        self.stopped = False

    @property
    def begun(self) -> bool:
        """Whether there were tokens."""
        return len(self._all) > self._given

    def add(self, tokens: Sequence[int], last: bool = False) -> str:
        """The text that these add; ``last``: nothing comes after them, so nothing is held back."""
        waiting = len(self._all) - self._shown
        self._all += tokens
        before = self._tokens.decode(self._all[self._begin : self._shown])
        if before.endswith(_BROKEN):  # a piece of a character that nothing completes any more
            self._begin, before = self._shown, ""
        now = self._tokens.decode(self._all[self._begin :])
        if now.endswith(_BROKEN) and not last and waiting < _WAIT:
            return ""
        self._begin, self._shown = self._shown, len(self._all)
        return self._released(now[len(before) :], last)

    def _released(self, text: str, last: bool) -> str:
        self.length += len(text)
        text = self._held + text
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        kept = 0 if last else max((overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def overlap(text: str, stop: str) -> int:
    """How long the longest ending of ``text`` is that ``stop`` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def _template(folder: Path) -> tuple[Any, dict[str, Any], str]:
    """The compiled chat template, or None, the special tokens that it may name, and its text."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    source = config.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        source = (folder / "chat_template.jinja").read_text()
    if isinstance(source, list):  # several, by name
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        given = config.get(name)
        names[name] = given.get("content", "") if isinstance(given, dict) else given or ""
    if source is None:
        return None, names, ""
    # what transformers gives templates
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _as_json
    return environment.from_string(source), names, source


def _as_json(value: Any, ensure_ascii: bool = False, **words: Any) -> str:
    """JSON as it is, where Jinja's own is made for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **words)


def _refuse(message: str) -> None:
    """What templates call for conversations that they do not take."""
    raise TemplateError(message)
