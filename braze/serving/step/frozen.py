"""What a recorded region reads of the forward context is frozen: Python does not run again when the recording is replayed.

While a region is recorded, ``get_forward_context()`` gives a view that notes each value that is read, with the line that read it. A field
that is another at each step (``per_step()``) is refused at once: BZ7301. All others are compared before a replay: BZ7302 where a step has
another value than the one that is in the recording. A tensor's value is where it lies and its sizes, for its elements are read anew.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from braze.support.errors import Origin, UserError

#: fields of the context that the recording is kept by: they are the same at each replay
_KEYS = ("cudagraph_runtime_mode", "batch_descriptor")
_HERE = str(Path(__file__).parent)


def per_step(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass's field whose value is another at each step, and which a recorded region therefore must not read."""
    return dataclasses.field(default=default, metadata={"per_step": True})


class Reads:
    """What a region has read: each value by its path in the context, with the line that read it first."""

    def __init__(self) -> None:
        #: by the context's field, then by path: how to read it, what it was, and the line
        self._read: dict[str, dict[str, tuple[Callable[[Any], Any], Any, Origin]]] = {}
        #: mappings that have been compared, by the context's field
        self._compared: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.paths())

    def paths(self) -> tuple[str, ...]:
        """What was read, as ``attn_metadata.slot_mapping``."""
        return tuple(path for field in self._read.values() for path in field)

    def note(self, field: str, path: str, get: Callable[[Any], Any], value: Any) -> None:
        """A value was read in a field of the context; ``get`` reads it of another context."""
        found = self._read.setdefault(field, {})
        if path not in found:
            found[path] = get, _print(value), reader()

    def check(self, context: Any, *, anew: bool = False) -> None:
        """Refuse (BZ7302) a step whose context has other values than those in the recording.

        A mapping that is the object which was compared before (the caches of all layers) is not looked into again, unless ``anew``.
        """
        for field, read in self._read.items():
            root = getattr(context, field, None)
            mapping = isinstance(root, Mapping)
            if mapping and not anew and self._compared.get(field) is root:
                continue
            for path, (get, then, origin) in read.items():
                _compare(path, get, then, origin, context)
            if mapping:
                self._compared[field] = root


def _field_of(path: str) -> str:
    """The context's field that a path begins with."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _compare(path: str, get: Callable[[Any], Any], then: Any, origin: Origin, context: Any) -> None:
    """Refuse a value that is another than the one that is in the recording."""
    try:
        now = _print(get(context))
    except (AttributeError, KeyError, TypeError):
        now = "nothing"
    if now != then:
        raise UserError(
            "BZ7302",
            f"a recording has read {path} of the forward context, which is another now: {_words(now)}, then {_words(then)}",
            why="Python does not run again when a recording is replayed: what it read is frozen",
            hints=_HINTS,
            origin=origin,
        )


_HINTS = (
    "read it in an operator that splits the graph (splitting_ops, mark_splitting_op): it runs at each step",
    "keep tensors in buffers that stay (StaticBuffers), and make numbers bounds that do not change",
)


def view(context: Any, reads: Reads) -> Any:
    """The context as a recorded region sees it."""
    return _Record(context, reads, "", lambda found: found)


class _Record:
    """A dataclass that notes which of its fields are read."""

    __slots__ = ("_get", "_path", "_reads", "_value")

    def __init__(self, value: Any, reads: Reads, path: str, get: Callable[[Any], Any]) -> None:
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_reads", reads)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_get", get)

    @property  # type: ignore[misc]  # isinstance() of the view is that of the value
    def __class__(self) -> Any:
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        if not self._path and name in _KEYS:
            return value
        path = f"{self._path}.{name}" if self._path else name
        fields = getattr(type(self._value), "__dataclass_fields__", {})
        if name in fields and fields[name].metadata.get("per_step"):
            raise UserError(
                "BZ7301",
                f"a recorded region reads {path} of the forward context, which is another at each step",
                why="Python does not run again when the recording is replayed: this step's value would hold for all",
                hints=_HINTS,
                origin=reader(),
            )
        get = self._get
        return _seen(value, self._reads, path, lambda context: getattr(get(context), name))

    def __setattr__(self, name: str, value: Any) -> None:
        path = f"{self._path}.{name}" if self._path else name
        raise UserError(
            "BZ7303",
            f"a recorded region writes {path} of the forward context",
            why="Python does not run again when the recording is replayed: it would be written in this step alone",
            hints=("write it before the model is called, or in an operator that splits the graph",),
            origin=reader(),
        )


class _Mapping(Mapping[Any, Any]):
    """A mapping that notes which of its items are read."""

    def __init__(self, value: Mapping[Any, Any], reads: Reads, path: str, get: Callable[[Any], Any]) -> None:
        self._value, self._reads, self._path, self._get = value, reads, path, get

    @property  # type: ignore[misc]  # isinstance() of the view is that of the value
    def __class__(self) -> Any:
        return type(self._value)

    def __getitem__(self, key: Any) -> Any:
        get = self._get
        return _seen(
            self._value[key], self._reads, f"{self._path}[{key!r}]", lambda context: get(context)[key]
        )

    def __contains__(self, key: Any) -> bool:
        get = self._get
        self._reads.note(
            _field_of(self._path),
            f"{key!r} in {self._path}",
            lambda context: key in get(context),
            key in self._value,
        )
        return key in self._value

    def __iter__(self) -> Iterator[Any]:
        self._keys()
        return iter(self._value)

    def __len__(self) -> int:
        self._keys()
        return len(self._value)

    def _keys(self) -> None:
        get = self._get
        self._reads.note(
            _field_of(self._path),
            f"the keys of {self._path}",
            lambda context: tuple(get(context)),
            tuple(self._value),
        )


def _seen(value: Any, reads: Reads, path: str, get: Callable[[Any], Any]) -> Any:
    """A value as the region gets it: what has parts as a view, else noted."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _Record(value, reads, path, get)
    if isinstance(value, Mapping):
        return _Mapping(value, reads, path, get)
    if not (callable(value) and hasattr(value, "__self__")):  # methods are no values
        reads.note(_field_of(path), path, get, value)
    return value


def _print(value: Any) -> Any:
    """What of a value must stay the same: address and layout of a tensor, numbers and words themselves, else which object it is."""
    if hasattr(value, "data_ptr"):
        return "tensor", value.data_ptr(), tuple(value.shape), tuple(value.stride()), str(value.dtype)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_print(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return type(value), value
    return "object", _Same(value)


class _Same:
    """An object, equal to itself alone; kept, so that no other has its place."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _words(found: Any) -> str:
    """A fingerprint in words."""
    if not isinstance(found, tuple):
        return str(found)
    if found[0] == "tensor":
        return f"a tensor at {found[1]:#x} with sizes {found[2]}"
    return f"another {type(found[1].value).__name__}" if found[0] == "object" else repr(found[1])


def reader() -> Origin:
    """The line that reads the context: the innermost outside of this room."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    linecache.checkcache(frame.f_code.co_filename)
    return Origin(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)
