"""The fields of a compilation's configuration: what each means, takes and defaults to, and what depends on it.

A row is all there is of a field: the configuration, its environment variables, ``explain()`` and the docs' table are made of rows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from braze.options import make_options, near, told
from braze.serving.policy import levels, modes
from braze.support.errors import UserError
from braze.support.record import record

#: what every environment variable of these fields begins with
PREFIX = "BRAZE_SERVING_"
#: a whole number as a text: no size has more digits
_NUMBER = re.compile(r"\s*[0-9]{1,18}\s*")
#: a name of a library or an operator
_NAME = r"[A-Za-z_]\w*"
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@record
class Field:
    """One field. ``read`` takes what was given (also the words of an environment variable) to the value, or raises BZ7103.

    ``compiled``: another value makes other compiled code, so that it is a part of the cache's key.
    """

    name: str
    default: Any
    read: Callable[[str, Any], Any]
    help: str
    compiled: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()


def refuse(name: str, value: Any, wanted: str) -> UserError:
    """The error for a value that a field does not take."""
    return UserError("BZ7103", f"{name}= does not take {told(value)}", hints=[f"it takes {wanted}"])


def switch(name: str, value: Any) -> bool:
    """True or False."""
    words = {"1": True, "true": True, "0": False, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise refuse(name, value, "True or False")
    return value


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number above 0, or from ``least`` on."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise refuse(
            name, value, "a whole number above 0" if least == 1 else f"a whole number from {least} on"
        )
    return _bounded(name, value)


def _bounded(name: str, value: int) -> int:
    """A number that a machine can count to."""
    if value.bit_length() > 63:
        raise refuse(name, value, "a whole number of at most 63 bits")
    return value


def optional_whole(name: str, value: Any) -> int | None:
    """A whole number above 0, or None."""
    return None if value is None else whole(name, value)


def items(value: Any) -> Any:
    """The items of a list that may be written with commas, in brackets or without; an empty one is for its reader to refuse."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    return [word.strip() for word in text.split(",")] if text else []


def wholes(name: str, value: Any) -> tuple[int, ...]:
    """Whole numbers above 0, each once, as they were given."""
    listed = items(value)
    if not isinstance(listed, (list, tuple)):
        raise refuse(name, value, "a list of whole numbers above 0")
    return tuple(dict.fromkeys(whole(name, size) for size in listed))


def distinct(name: str, value: Any) -> tuple[Any, ...]:
    """Values that recordings are kept by, each once."""
    if not isinstance(value, (list, tuple)):
        raise refuse(name, value, "a list of values that can be hashed")
    try:
        return tuple(dict.fromkeys(value))
    except TypeError as error:
        raise refuse(name, value, "a list of values that can be hashed") from error


def capture_sizes(name: str, value: Any) -> tuple[int, ...] | str | None:
    """A list of sizes, ``"traffic:<file>"``, or None and ``"auto"`` for the pattern."""
    if value is None or (isinstance(value, str) and value == "auto"):
        return None
    if isinstance(value, str) and value.startswith("traffic:"):
        if not value.partition(":")[2]:
            raise refuse(name, value, "a file's path after traffic:")
        return value
    if isinstance(value, str) and not re.fullmatch(r"[\[\]\d\s,]+", value):
        raise refuse(name, value, "a list of sizes, 'auto', or 'traffic:<file>'")
    return wholes(name, value)


def pattern_sizes(name: str, value: Any) -> tuple[int, ...]:
    """One size, the largest of the pattern, or several, the sizes themselves."""
    found = wholes(name, [value] if type(value) is int else value)
    if not found:
        raise refuse(name, value, "the largest size of the pattern, or a list of sizes")
    return found


def compile_sizes(name: str, value: Any) -> tuple[int | str, ...] | None:
    """Sizes, and the word ``"cudagraph_capture_sizes"`` for all that are captured."""
    if value is None:
        return None
    word = "cudagraph_capture_sizes"
    listed = items(value)
    if not isinstance(listed, (list, tuple)):
        raise refuse(name, value, f"a list of sizes, of which one may be {word!r}")
    for size in listed:
        if isinstance(size, str) and size != word and not _NUMBER.fullmatch(size):
            raise UserError("BZ7103", f"{name}= does not take {told(size)}", hints=[near(size, [word])])
    words = (size if isinstance(size, str) and size == word else whole(name, size) for size in listed)
    return tuple(dict.fromkeys(words))


def operators(name: str, value: Any) -> tuple[str, ...] | None:
    """Operators as ``"library::name"`` or ``"library.name"``, with an overload or without; kept with ``::``."""
    if value is None:
        return None
    listed = items(value)
    if not isinstance(listed, (list, tuple)):
        raise refuse(name, value, "a list of operators' names")
    found = []
    for op in listed:
        match = (
            re.fullmatch(rf"({_NAME})(?:::|\.)({_NAME}(?:\.{_NAME})?)", op) if isinstance(op, str) else None
        )
        if match is None:
            raise refuse(name, op, "names of operators, as 'mylib::attention' or 'mylib.attention'")
        found.append(f"{match[1]}::{match[2]}")
    return tuple(dict.fromkeys(found))


def custom_ops(name: str, value: Any) -> tuple[str, ...]:
    """``"all"`` or ``"none"`` at most once, and ``"+name"`` or ``"-name"`` each at most once."""
    listed = items(value)
    if not isinstance(listed, (list, tuple)) or not all(isinstance(word, str) for word in listed):
        raise refuse(name, value, "a list of 'all' or 'none', '+name' and '-name'")
    for word in listed:
        if word not in ("all", "none") and not re.fullmatch(rf"[+-]{_NAME}(::{_NAME})?", word):
            raise refuse(name, word, "'all', 'none', '+name' or '-name'")
    names = [word.lstrip("+-") if word[0] in "+-" else "all or none" for word in listed]
    twice = sorted({word for word in names if names.count(word) > 1})
    if twice:
        raise UserError("BZ7102", f"{name}= says two things of {twice[0]}", hints=["name each once"])
    return tuple(listed)


def one_of(*known: str) -> Callable[[str, Any], str]:
    """A word among some."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            hint = near(value, known) if isinstance(value, str) else f"known: {', '.join(known)}"
            raise UserError("BZ7103", f"{name}= does not take {told(value)}", hints=[hint])
        return value

    return read


def compile_options(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    """Options of ``braze.compile``, as a dict; kept as sorted pairs."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise refuse(name, value, "a JSON object") from error
    if not isinstance(value, Mapping):
        raise refuse(name, value, "a dict of options of braze.compile")
    taken = {"cudagraphs", "cudagraph_sizes", "cudagraph_memory", "outputs", "fullgraph"} & set(value)
    if taken:
        word = min(taken)
        raise UserError(
            "BZ7102",
            f"{name}[{word!r}] is decided by other fields",
            hints=["graphs are what cudagraph_mode, cudagraph_capture_sizes, memory_budget and pool say"],
        )
    make_options(options=value)  # refuses what braze.compile does not know, with its near miss
    return tuple(sorted(value.items()))


def folder(name: str, value: Any) -> str:
    """A path, or the empty string."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or "\0" in path:
        raise refuse(name, value, "a path")
    return path


def number_of_bytes(name: str, value: Any) -> int | None:
    """Bytes, as a number or as ``"2GiB"``; None for no limit."""
    if value is None:
        return None
    match = (
        re.fullmatch(r"\s*([0-9]{1,18}(\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", value)
        if isinstance(value, str)
        else None
    )
    unit = _UNITS.get(match[3].upper(), 0) if match else 0
    if match and unit and not (match[2] and unit == 1):  # there is no part of a byte
        value = int(float(match[1]) * unit)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refuse(name, value, "bytes above 0, as 2147483648 or '2GiB' (KiB, MiB, GiB)")
    return _bounded(name, value)


def verification(name: str, value: Any) -> float:
    """The share of replays that are verified: ``"off"``, ``"always"``, ``"sample:1/256"``, or the share."""
    words = {"off": 0.0, "always": 1.0}
    if isinstance(value, str) and value in words:
        return words[value]
    match = re.fullmatch(r"sample:([0-9]{1,18})/([0-9]{1,18})", value) if isinstance(value, str) else None
    if match and int(match[2]):
        value = int(match[1]) / int(match[2])
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise refuse(name, value, "'off', 'always', or 'sample:1/256'")
    return float(value)


def _level(name: str, value: Any) -> Any:
    return levels.parse(value).level


def _mode(name: str, value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise refuse(name, value, "a mode's name, or {'decode': ..., 'mixed': ...}") from error
    return None if value is None else modes.parse(value)


FIELDS: tuple[Field, ...] = (
    Field(
        "level",
        levels.CompilationLevel.NO_COMPILATION,
        _level,
        "how much of the compiler: 0 to 3, a name, or a preset O0 to O3",
        True,
    ),
    Field("use_cudagraph", True, switch, "whether anything is recorded as device graphs"),
    Field(
        "cudagraph_mode", None, _mode, "which steps are recorded, and how; None: none, or what the level says"
    ),
    Field(
        "cudagraph_capture_sizes",
        None,
        capture_sizes,
        "the sizes that are captured: a list, 'traffic:<file>', or None for cuda_graph_sizes",
    ),
    Field(
        "cuda_graph_sizes",
        (512,),
        pattern_sizes,
        "one size: a pattern up to it (1, 2, 4, 8, 16, 32, 48...); several: the sizes",
    ),
    Field(
        "max_cudagraph_capture_size",
        None,
        optional_whole,
        "the largest size that is captured; None: no limit",
    ),
    Field("splitting_ops", None, operators, "operators that split the graph into pieces", True),
    Field(
        "split",
        "graph",
        one_of("graph", "schedule", "capture"),
        "where it is split: the graph, the schedule after fusion, or the recording",
        True,
    ),
    Field(
        "cudagraph_copy_inputs",
        False,
        switch,
        "copy the inputs of pieces into buffers that keep their addresses",
    ),
    Field(
        "use_inductor",
        True,
        switch,
        "kernels of this compiler; else eager's operators, split and recorded alike",
        True,
    ),
    Field(
        "compile_sizes",
        None,
        compile_sizes,
        "sizes that each piece is compiled for, beside the general one; 'cudagraph_capture_sizes': all that are captured",
        True,
    ),
    Field(
        "compile_ranges_endpoints",
        (),
        wholes,
        "ends of the ranges of sizes that each piece is compiled for",
        True,
    ),
    Field(
        "inductor_compile_config",
        (),
        compile_options,
        "further options of braze.compile for the pieces",
        True,
    ),
    Field(
        "custom_ops",
        (),
        custom_ops,
        "which custom operators are called as such: 'all', 'none', '+name', '-name'",
        True,
    ),
    Field("debug_dump_path", "", folder, "a folder for graphs and code of every stage, a subfolder a rank"),
    Field("cache_dir", "", folder, "the folder of compiled code; empty: the user's cache"),
    Field(
        "pool", "per_tier", one_of("per_tier", "shared"), "memory of recordings: a pool for each size, or one"
    ),
    Field(
        "capture",
        "eager",
        one_of("eager", "lazy"),
        "when sizes are captured: before the first step, or in idle steps, those most used first",
    ),
    Field(
        "memory_budget",
        None,
        number_of_bytes,
        "what all recordings may hold, in bytes or as '2GiB'; None: no limit",
    ),
    Field(
        "verify",
        0.0,
        verification,
        "the share of replays that are compared with eager: 'off', 'always', 'sample:1/256'",
    ),
)

BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}
