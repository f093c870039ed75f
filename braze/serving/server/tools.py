"""Tools that a chat may call: what a request says of them, and calls taken out of the text that a model writes.

A call is JSON between two marks, as Hermes-like chat templates teach it (Qwen's): what stands between them and is none stays text.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

from braze.serving.server.tokens import CALLS, overlap

BEGIN, END = CALLS, "</tool_call>"


class Call(NamedTuple):
    """A call of a tool: ``arguments`` as JSON; ``number``: of the answer's calls."""

    number: int
    name: str
    arguments: str

    def told(self) -> dict[str, Any]:
        """As the protocol has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


class CallReader:
    """Takes calls out of an answer's text, which comes in parts. ``several``: more than one call is given."""

    def __init__(self, several: bool = True) -> None:
        self.several = several
        self.count = 0
        self._held = ""
        #: nothing but space has come since a call
        self._after = False

    def add(self, text: str, last: bool = False) -> tuple[str, list[Call]]:
        """The text beside calls and the calls that a part of an answer brings to their ends; ``last``: nothing comes after it."""
        self._held += text
        said = ""
        calls: list[Call] = []
        while True:
            begin = self._held.find(BEGIN)
            if begin < 0:
                kept = 0 if last else overlap(self._held, BEGIN)
                cut = len(self._held) - kept
                said, self._held = said + self._between(self._held[:cut]), self._held[cut:]
                return said, calls
            end = self._held.find(END, begin)
            if end < 0 and not last:
                said, self._held = said + self._between(self._held[:begin]), self._held[begin:]
                return said, calls
            stop = end if end >= 0 else len(self._held)
            body, whole = self._held[begin + len(BEGIN) : stop], self._held[begin : stop + len(END)]
            said, self._held = said + self._between(self._held[:begin]), self._held[begin + len(whole) :]
            call = self._call(body)
            self._after = call is not None
            if call is None:
                said += whole
            elif self.several or not call.number:
                calls.append(call)

    def _between(self, text: str) -> str:
        """Text beside calls, without the space that parts it from one before it."""
        if self._after:
            text = text.lstrip()
            self._after = not text
        return text

    def _call(self, body: str) -> Call | None:
        try:
            found = json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            return None
        if not isinstance(arguments := found.get("arguments", {}), dict):
            return None
        try:
            # a number beyond all floats is read as infinite, which is no JSON; half of a surrogate pair cannot be sent
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            f"{found['name']}{text}".encode()
        except (ValueError, RecursionError):
            return None
        call = Call(self.count, found["name"], text)
        self.count += 1
        return call


def _refuse(constant: str) -> None:
    """NaN and infinities are no JSON."""
    raise ValueError(constant)


def checked(tools: list[Any]) -> list[Any]:
    """Tools of a request. Raises ValueError for what is none."""
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a tool is {'type': 'function', 'function': {'name': ...}}")
    return tools


def read_arguments(calls: Any) -> Any:
    """Calls of an earlier answer for a template, which takes their arguments as objects and not as text."""
    if not isinstance(calls, list):
        return calls
    return [_with_object(call) for call in calls]


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
