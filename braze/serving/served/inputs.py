"""The inputs of a served model: which arguments and fields of the metadata vary with the batch, staged into buffers that stay.

An argument that does not vary has a buffer of its own size. What is no tensor goes through as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch

from braze.options import near
from braze.serving.policy.fields import refuse
from braze.serving.step.context import AttentionMetaData
from braze.serving.step.slots import LAST, Extent, PaddingPolicy, Slot, StaticBuffers, check_slot
from braze.support.errors import UserError

#: how the fields of the metadata are padded: requests of padding have no tokens, and tokens of padding no slot in the cache
OF_METADATA = {
    "cu_seqlens_q": Slot(pad=LAST, unit="requests", extra=1),
    "seq_lens": Slot(unit="requests"),
    "block_tables": Slot(unit="requests"),
    "slot_mapping": Slot(pad=-1),
}
_ARGUMENT = Slot(policy=PaddingPolicy.ZERO)


class Inputs:
    """The arguments of ``forward``, by name.

    ``dynamic``: argument -> its dimension of tokens; by default the first one of every tensor. ``slots``: argument or field of the metadata ->
    its slot. ``limits``: the largest step.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        dynamic: Mapping[str, int] | None,
        slots: Mapping[str, Slot],
        limits: Extent,
    ) -> None:
        parameters = inspect.signature(forward).parameters.values()
        self._positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        known = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        for name in _checked(dynamic, slots):
            if name not in known and len(known) == len(parameters):
                raise UserError(
                    "BZ7103", f"dynamic= names {name!r}, which is no argument", hints=[near(str(name), known)]
                )
        self.dynamic = None if dynamic is None else frozenset(dynamic)
        #: what has a slot by name, and the arguments that there may be
        self._named, self._known = tuple(slots), known
        self.slots = {
            **OF_METADATA,
            **{name: Slot(dim, policy=PaddingPolicy.ZERO) for name, dim in (dynamic or {}).items()},
            **slots,
        }
        self.buffers = StaticBuffers({}, limits)
        self._fixed: dict[str, torch.Tensor] = {}
        #: arguments that the model writes to
        self.written: set[str] = set()

    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """The sizes that vary by name, as ``braze.compile(shapes=)`` takes them; empty where nobody has said which vary."""
        found = {}
        for name in self.dynamic or ():
            slot = self.slots[name]
            if slot.dim < 0:
                return {}
            size = slot.unit if not slot.extra else f"{slot.unit}_{slot.extra}"
            found[name] = (*[None] * slot.dim, size, ...)
        return found

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments by name; further positional ones by their places."""
        values = dict(zip(self._positional, args, strict=False))
        for i in range(len(self._positional), len(args)):
            values[f"*{i}"] = args[i]
        for name, value in kwargs.items():
            if name in values:
                raise TypeError(f"got multiple values for argument {name!r}")
            values[name] = value
        return values

    def refuse_unknown(self, values: Mapping[str, Any], metadata: Any) -> None:
        """BZ7103 for a slot of neither an argument nor a field of the metadata: nothing would be padded as it says."""
        fields = [name for name, _ in _fields(metadata, None)]
        known = {*self._known, *values, *map(str, fields)}
        for name in self._named:
            if name not in known:
                raise UserError(
                    "BZ7103",
                    f"slots= names {name!r}, which is neither an argument nor a field of the attention's metadata",
                    hints=[near(name, known)],
                )

    def call(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as they are passed, always in the same order and form."""
        rest = dict(values)
        args = []
        for name in self._positional:
            if name not in rest:
                break
            args.append(rest.pop(name))
        args += [rest.pop(name) for name in tuple(rest) if name[0] == "*"]
        return tuple(args), {name: rest[name] for name in sorted(rest)}

    def tokens(self, values: Mapping[str, Any]) -> int:
        """How many tokens a call has; UserError (BZ7308) where its arguments do not agree, or none varies."""
        found = {
            name: value.shape[self._dim(name, value)]
            for name, value in values.items()
            if self._varies(name, value) and self._slot(name).unit == "tokens"
        }
        if not found:
            raise UserError(
                "BZ7308",
                "a call has no argument that varies with its tokens",
                hints=['name one: braze.serve(model, dynamic={"input_ids": 0})'],
            )
        if len(set(found.values())) > 1:
            raise UserError(
                "BZ7308",
                f"the arguments of a call have different numbers of tokens: {found}",
                hints=["dynamic= says which dimension of which argument counts tokens"],
            )
        return next(iter(found.values()))

    def stage(
        self,
        values: Mapping[str, Any],
        metadata: Any,
        real: Extent,
        padded: Extent,
        longest: int | None = None,
    ) -> tuple[dict[str, Any], Any]:
        """The arguments and the metadata with views of buffers in place of tensors, of padded sizes.

        ``longest``: the bound of a request's tokens that the metadata is to say, where that is recorded too.
        """
        tensors, fields = self._declared(values, metadata)
        for name in self._fixed.keys() & values.keys():
            self._fixed[name].copy_(values[name])
        views = self.buffers.stage({**tensors, **fields}, real, padded)
        return self._replaced(values, metadata, tensors, fields, views, longest)

    def dummies(
        self, values: Mapping[str, Any], metadata: Any, size: Extent, longest: int | None = None
    ) -> tuple[dict[str, Any], Any]:
        """Arguments and metadata of a size, made like those of a call, that reach nothing: no token has a slot in the cache."""
        tensors, fields = self._declared(values, metadata)
        self.buffers.reset()
        views = {name: self.buffers.view(name, size) for name in (*tensors, *fields)}
        return self._replaced(values, metadata, tensors, fields, views, longest)

    @contextlib.contextmanager
    def watched(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        """A block in which the model runs on buffers: those that it writes to are found out, so that :meth:`give_back` knows them."""
        before = {name: x._version for name, x in arguments.items() if isinstance(x, torch.Tensor)}
        yield
        found = {name for name, version in before.items() if arguments[name]._version != version}
        for name in found - self._fixed.keys():
            self.buffers.written(name)
        self.written |= found

    def give_back(self, values: Mapping[str, Any], held: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write to the caller's arguments what the model has written to the buffers in their place, or to ``held``."""
        for name in self.written & values.keys():
            target = values[name]
            source = held[name] if held is not None else self._held(name, target)
            if source.data_ptr() != target.data_ptr():
                target.copy_(source)

    def _held(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """The buffer of an argument, as many rows of it as the argument has."""
        fixed = self._fixed.get(name)
        return self.buffers.rows(name, like) if fixed is None else fixed

    def poison(self, real: Extent) -> None:
        """Spoil the tails that may hold anything."""
        self.buffers.poison(real)

    def varying(self, name: str, value: torch.Tensor) -> tuple[int, ...]:
        """The dimensions of an argument that vary with the batch."""
        return (self._dim(name, value) % value.dim(),) if self._varies(name, value) else ()

    def _dim(self, name: str, value: torch.Tensor) -> int:
        """The dimension of an argument that varies; UserError (BZ7308) where it has none such."""
        dim = self._slot(name).dim
        if not -value.dim() <= dim < value.dim():
            raise UserError(
                "BZ7308",
                f"argument {name!r} has no dimension {dim}: it is {tuple(value.shape)}",
                hints=["dynamic= says which dimension of which argument counts tokens"],
            )
        return dim

    def _slot(self, name: str) -> Slot:
        return self.slots.get(name, _ARGUMENT)

    def _varies(self, name: str, value: Any) -> bool:
        """Whether an argument is staged with the size of the batch."""
        if not isinstance(value, torch.Tensor):
            return False
        if self.dynamic is None:
            return value.dim() > 0
        return name in self.dynamic or name in self.slots

    def _declared(
        self, values: Mapping[str, Any], metadata: Any
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The arguments that vary and the fields of the metadata that have slots; all tensors have their buffers after it."""
        tensors = {name: value for name, value in values.items() if self._varies(name, value)}
        fields = {
            _FIELD + name: value
            for name, value in _fields(metadata, self.slots)
            if isinstance(value, torch.Tensor)
        }
        for name, value in tensors.items():
            if not self.buffers.has(name):
                self.buffers.declare(name, self._slot(name), value)
        for name, value in fields.items():
            if not self.buffers.has(name):
                self.buffers.declare(name, self.slots[name.removeprefix(_FIELD)], value)
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and name not in tensors:
                self._hold(name, value)
        return tensors, fields

    def _hold(self, name: str, value: torch.Tensor) -> None:
        """Give a tensor that does not vary a buffer of its own size, and hold it to that."""
        there = self._fixed.get(name)
        if there is None:
            with torch.inference_mode(False):  # whose writes are counted
                self._fixed[name] = torch.empty_like(value, requires_grad=False).copy_(value)
        elif there.shape != value.shape or there.dtype != value.dtype:
            raise UserError(
                "BZ7305",
                f"argument {name!r} is {value.dtype} of {tuple(value.shape)}, and was {there.dtype} of {tuple(there.shape)}",
                hints=["dynamic= names the arguments that vary with the batch"],
            )

    def _replaced(
        self,
        values: Mapping[str, Any],
        metadata: Any,
        tensors: Mapping[str, Any],
        fields: Mapping[str, Any],
        views: Mapping[str, torch.Tensor],
        longest: int | None,
    ) -> tuple[dict[str, Any], Any]:
        """Arguments and metadata with buffers in place of tensors."""
        arguments = {**values, **{name: views[name] for name in tensors}}
        arguments.update((name, self._fixed[name]) for name in self._fixed.keys() & values.keys())
        changes: dict[str, Any] = {name.removeprefix(_FIELD): views[name] for name in fields}
        if longest is not None and isinstance(metadata, AttentionMetaData):
            changes["max_seqlen_q"] = longest
        return arguments, _with_fields(metadata, changes)


def _checked(dynamic: Any, slots: Any) -> tuple[str, ...]:
    """The arguments that ``dynamic`` names; BZ7103 for dimensions that are no numbers, and slots that are none."""
    if dynamic is not None and not isinstance(dynamic, Mapping):
        raise refuse("dynamic", dynamic, "a dict, as {'input_ids': 0}")
    if not isinstance(slots, Mapping):
        raise refuse("slots", slots, "a dict, as {'slot_mapping': Slot(pad=-1)}")
    for name, dim in (dynamic or {}).items():
        if type(dim) is not int:
            raise refuse(f"dynamic[{name!r}]", dim, "the number of a dimension")
    for name, slot in slots.items():
        if not isinstance(slot, Slot):
            raise refuse(f"slots[{name!r}]", slot, "a Slot")
        check_slot(name, slot)
    return tuple(dynamic or ())


def unlike(values: Mapping[str, Any], example: Mapping[str, Any]) -> str:
    """In what a call differs from the one that recordings were made like, which hold all but tensors as it was; empty: in nothing."""
    for name in values.keys() | example.keys():
        if name not in values or name not in example:
            return (
                f"argument {name!r} is {'missing' if name in example else 'given'}, unlike in the recordings"
            )
        now, then = values[name], example[name]
        if isinstance(now, torch.Tensor) and isinstance(then, torch.Tensor):
            continue
        plain = isinstance(now, PLAIN) and type(now) is type(then)
        if not (now == then if plain else now is then):
            return f"argument {name!r} is not as in the recordings: {_shown(now)}, not {_shown(then)}"
    return ""


#: values that are compared by what they are
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"


#: what tells a field of the metadata from an argument of the same name
_FIELD = "attn_metadata."


def _fields(metadata: Any, wanted: Container[str] | None) -> list[tuple[str, Any]]:
    """The wanted fields of metadata (None: all), which is a dataclass or a dict; nothing else has any."""
    if isinstance(metadata, Mapping):
        return [(name, value) for name, value in metadata.items() if wanted is None or name in wanted]
    known = getattr(type(metadata), "__dataclass_fields__", ())
    return [(name, getattr(metadata, name)) for name in known if wanted is None or name in wanted]


def _with_fields(metadata: Any, changes: Mapping[str, Any]) -> Any:
    """The metadata with views in place of some fields."""
    if not changes:
        return metadata
    if isinstance(metadata, Mapping):
        return {**metadata, **changes}
    return dataclasses.replace(metadata, **changes)
