"""Guards, and what met them, as text: for logs, dumps, and the explanation of a miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from braze.capture.facts.records import (
    Capture,
    Check,
    Guard,
    IdentityKey,
    Source,
    Step,
    computed_text,
    joined_text,
    part_text,
)
from braze.capture.facts.resume import STATE_NAMES
from braze.capture.facts.values import held
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.native import torch_state, walk
from braze.support.errors import Origin

#: where an nn.Module keeps what reads as an attribute
MODULE_TABLES = frozenset({"_modules", "_parameters", "_buffers"})
NO_NAMES: Mapping[Source, str] = {}


_LATE, _LOCAL = {Check.RANGE: 9, Check.ALIAS: 8, Check.DISTINCT: 8}, Step.LOCAL


def ranked(guards: Iterable[Guard]) -> list[Guard]:
    """Guards in the order they are checked: global state, then what the arguments are and lead to, then the rest."""
    known: dict[Source, int] = {}

    def of(source: Source) -> int:
        """The rank of what lies below a source."""
        found = known.get(source)
        if found is None:
            above = source.parent
            found = known[source] = of(above) if above is not None else 2 if source.step is _LOCAL else 3
        return found

    rows: list[list[Guard]] = [[] for _ in range(10)]
    for guard in guards:
        source, rank = guard.source, _LATE.get(guard.check)
        if rank is None:
            above = source.parent if source is not None else None
            if above is not None:
                rank = known.get(above) or of(above)
            else:
                rank = 0 if source is None else 1 if source.step is _LOCAL else 3
        rows[rank].append(guard)
    return [guard for row in rows for guard in row]


def unwrapped(source: Source) -> Any:
    """A source's key as the walker wants it: the object itself, where the key wraps one."""
    key = source.key
    return key.value if type(key) is IdentityKey else key


def source_text(source: Source | None, code: Any = None, names: Mapping[Source, str] = NO_NAMES) -> str:
    """A source as the user would write it: ``self.layers[0].weight``. ``names``: what some are called."""
    if source is None:
        return "torch"
    if source in names:
        return names[source]
    key, parent = source.key, source.parent
    by_name = source.step is Step.ITEM or (source.step in (Step.ATTR, Step.DICT) and str(key).isidentifier())
    in_table = parent is not None and parent.step is Step.DICT and parent.key in MODULE_TABLES
    # a module's parts are written as its attributes
    whole = parent.parent if parent is not None and in_table and by_name else parent
    above = source_text(whole, code, names) if parent is not None else ""
    match source.step:
        case Step.LOCAL if code is not None and key < len(code.co_varnames):
            return code.co_varnames[key]
        case Step.GLOBAL:
            return str(key)
        case Step.CELL if code is not None:
            return code.co_freevars[key]
        case Step.ATTR | Step.DICT if by_name:
            return f"{above}.{key}"
        case Step.ITEM if parent is not None and parent.step is Step.LOCAL and code in STATE_NAMES:
            return STATE_NAMES[code][key]
        case Step.ITEM:
            return f"{above}.{key}" if in_table else f"{above}[{key!r}]"
        case Step.ITEM_AT:
            return f"{above}[{source_text(key, code, names)}]"
        case Step.HAS_AT:
            return f"({source_text(key, code, names)} in {above})"
        case Step.CLASS_HAS_AT:
            return f"hasattr(type({above}), {source_text(key, code, names)})"
        case Step.FORMATTED:
            return f"format({above}, {key!r})" if key else f"str({above})"
        case Step.JOINED | Step.TUPLE:
            return joined_text(key[0], (above, *(source_text(other, code, names) for other in key[1])))
        case Step.LENGTH:
            return f"len({above})"
        case Step.SIZE:
            return f"{above}.size({key})"
        case Step.MEMORY:
            return f"how {above} lies in its memory"
        case Step.COMPUTED:
            return computed_text(key[0], (above, *(source_text(other, code, names) for other in key[1])))
        case Step.TYPE:
            return f"type({above})"
        case Step.TENSOR_OF:
            return f"torch.from_numpy({above})"
        case Step.TENSOR_OF_NUMBERS:
            return f"torch.tensor({above})"
        case Step.PART:
            return f"{above}[{part_text(key)}]"
        case Step.NEGATIVE:
            return f"-{above}"
        case Step.KEY:
            return f"list({above})[{key}]"
        case Step.CONSTANT:
            value = unwrapped(source)
            return getattr(value, "__name__", None) or repr(value)
    return str(source) if not above else f"{above}.<{source.step.value} {key}>"


def guard_text(guard: Guard, code: Any = None, names: Mapping[Source, str] = NO_NAMES) -> str:
    """One guard as a line of English and Python."""
    at = source_text(guard.source, code, names)
    body = SAYS[guard.check](at, guard.expected, lambda source: source_text(source, code, names))
    return f"{body}    # {guard.origin}" if guard.origin is not None else body


#: what each kind of guard says, of the table
SAYS: dict[Check, Callable[[str, Any, Callable[[Source], str]], str]] = {
    check: eval(
        f'lambda at, expected, told: f"{check.says or check.value.replace("_", " ") + " is {expected}"}"'
    )
    for check in Check
}


def referent_text(reference: Any) -> str:
    """What a weak reference refers to."""
    found = reference()
    return named(found) if found is not None else "an object that has ended since"


def number_text(expected: Any) -> str:
    """What a value is compared with."""
    if isinstance(expected, SymbolSpec | FloatSpec):
        return f"is {'an int' if isinstance(expected, SymbolSpec) else 'a float'} ({expected.name})"
    return f"== {expected!r}"


def named(value: Any) -> str:
    """A short name of an object."""
    name = held(value, "__qualname__") or held(value, "__name__")
    return name if isinstance(name, str) else repr(value)[:80]


def spec_text(spec: TensorSpec) -> str:
    """``float32[2, s0] on cpu``."""
    dtype = str(spec.dtype).removeprefix("torch.")
    grad = ", requires grad" if spec.requires_grad else ""
    return f"{dtype}[{', '.join(map(str, spec.sizes))}] strides ({', '.join(map(str, spec.strides))}) on {spec.device}{grad}"


def spec_of_value(value: torch.Tensor) -> TensorSpec:
    """What a guard sees of a tensor."""
    _, dtype, device, sizes, strides, grad, _ = torch_state.metadata(value)
    return TensorSpec(dtype, device, sizes, strides, 0, grad)


def value_text(value: Any) -> str:
    """What a guard met, in one line; never runs a user's ``__repr__``."""
    if issubclass(type(value), torch.Tensor):
        return spec_text(spec_of_value(value))
    if issubclass(type(value), type) or (
        type(value).__module__ == "builtins" and not isinstance(value, dict | list | tuple | set)
    ):
        return named(value)
    if issubclass(type(value), torch.dtype | torch.device | walk.Missing):
        return repr(value)
    return f"a {named(type(value))}"


def guards_text(capture: Capture) -> str:
    """All guards, one per line, in the order they are checked."""
    return "\n".join(guard_text(g, capture.code) for g in ranked(capture.guards))


def place_text(origin: Origin | None) -> str:
    """`` (read at file:line: source)``, or nothing."""
    if origin is None:
        return ""
    line = origin.excerpt().splitlines()
    return f" (read at {origin}{': ' + line[0].strip() if line else ''})"
