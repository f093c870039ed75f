"""Guard programs as the C walker takes them: verified, with plain words and numbers."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Sequence
from typing import Any

from braze.native import calibrate, walk
from braze.native.vocabulary import STATES, Check, Place, Step

_CHECKS = {check.value: check for check in Check}
_STEPS = {step.value: step for step in Step}
_ROOTLESS = (Place.LAST, Place.PROCESS)
#: steps whose keys name rows
_OF_ROWS = walk.BY_KEY | walk.OF_SEVERAL | {"part"}
#: types of the bounds of a slice
_BOUNDS = {int, type(None)}
#: parts of which one is made, as in native/src/guards.h
MOST_COMPUTED = 8
_THROUGH_PYTHON = (-1, 0, ())
#: checks with the types of what is surely right to expect of an object
_SURE = frozenset((check.value, kind) for check in Check for kind in check.sure)


def normalise(
    nodes: Sequence[Any], checks: Sequence[Any], inputs: Sequence[int], symbols: int
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]:
    """The program as tuples with plain words; ValueError or TypeError, naming the row, if malformed."""
    plain_nodes, plain_checks = _plain(nodes), _plain(checks)
    count = len(nodes)
    if plain_nodes and not _are_sound(plain_nodes):
        for index, (parent, step, key) in enumerate(plain_nodes):
            _verify_node(index, parent, step, key)
    if plain_checks:
        at, names, expected = zip(*plain_checks, strict=True)
        sure = map(_SURE.__contains__, zip(names, map(type, expected), strict=True))
        plain = map(operator.and_, sure, map(range(count).__contains__, at))
        for index in itertools.compress(range(len(at)), map(operator.not_, plain)):
            node, check, wanted = plain_checks[index]
            _verify_check(index, node, check, wanted, count, symbols)
    for node in inputs:
        if not 0 <= node < len(nodes):
            raise ValueError(f"input: no node {node}")
    return plain_nodes, plain_checks, tuple(inputs)


def _plain(rows: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([row if type(row[1]) is str else (row[0], walk.plain(row[1]), row[2]) for row in rows])


def _are_sound(nodes: tuple[Any, ...]) -> bool:
    """Whether :func:`_verify_node` finds no fault with any: by columns, which takes no bytecode per row."""
    parents, steps, keys = zip(*nodes, strict=True)
    if not all(map(operator.lt, parents, range(len(nodes)))) or min(parents) < -1:
        return False
    if not _OF_ROWS.isdisjoint(steps):
        return False
    # by identity: a class of the program's may hash by code
    kinds = set(zip(map((-1).__eq__, parents), steps, map(id, map(type, keys)), strict=True))
    return all(
        step in _STEPS
        and root is _STEPS[step].root
        and (_STEPS[step].key is None or kind == id(_STEPS[step].key))
        for root, step, kind in kinds
    )


def _verify_node(index: int, parent: int, step: str, key: Any) -> None:
    if step not in _STEPS:
        raise ValueError(f"node {index}: unknown step {step!r}")
    if not -1 <= parent < index:
        raise ValueError(f"node {index}: parent {parent} does not come before it")
    if (parent < 0) != _STEPS[step].root:
        raise ValueError(f"node {index}: step {step!r} {'needs a' if parent < 0 else 'takes no'} parent")
    if step in walk.BY_KEY and not (type(key) is int and 0 <= key < index):
        raise ValueError(f"node {index}: the node of its key, {key!r}, does not come before it")
    if step == "part" and not (type(key) is tuple and len(key) == 2 and {*map(type, key)} <= _BOUNDS):
        raise ValueError(f"node {index}: {key!r} are no bounds of a slice")
    if step in walk.OF_SEVERAL:
        _verify_parts(index, parent, step, key)
    wanted = _STEPS[step].key
    if wanted is not None and type(key) is not wanted:
        raise TypeError(f"node {index}: step {step!r} takes a key of type {wanted.__name__}, not {key!r}")


def _verify_parts(index: int, parent: int, step: str, key: Any) -> None:
    """A program over ints, or what stands between texts or in a tuple, and their nodes, of which the parent is the first."""
    made, nodes = key if type(key) is tuple and len(key) == 2 else (None, ())
    rows = type(nodes) is tuple and 0 < len(nodes) <= MOST_COMPUTED and nodes[0] == parent
    if not (rows and all(type(n) is int and 0 <= n < index for n in nodes)):
        raise ValueError(f"node {index}: the nodes of its parts, {nodes!r}, do not come before it")
    if step == "computed":
        if getattr(made, "code", None) is None:
            raise ValueError(f"node {index}: {made!r} is no program")
        return
    kind = str if step == "joined" else tuple
    if type(made) is not tuple or len(made) != len(nodes) + 1 or {*map(type, made)} != {kind}:
        raise ValueError(f"node {index}: {made!r} is not what stands around its parts")


def _verify_check(index: int, node: int, check: str, expected: Any, count: int, symbols: int) -> None:
    if check not in _CHECKS:
        raise ValueError(f"check {index}: unknown check {check!r}")
    where = f"check {index} ({check})"
    if not (node == -1 if _CHECKS[check].place in _ROOTLESS else 0 <= node < count):
        raise ValueError(f"{where}: no node {node}")
    if check in ("int", "float") and not 0 <= expected[1] < symbols:
        raise ValueError(f"{where}: no symbol {expected[1]}")
    if check in ("alias", "distinct"):
        others = (expected,) if check == "alias" else expected
        if not isinstance(others, tuple) or not all(0 <= other < count for other in others):
            raise ValueError(f"{where}: takes nodes, not {expected!r}")
    if check == "equal" and not comparable(expected):
        raise TypeError(f"{where}: {type(expected).__name__} is not a constant; use 'is' or 'type'")
    if check == "type" and not isinstance(expected, type):
        raise TypeError(f"{where}: takes a class, not {expected!r}")
    if check == "referent" and not isinstance(expected, weakref.ReferenceType):
        raise TypeError(f"{where}: takes a weak reference, not {expected!r}")
    if _CHECKS[check].sure == {tuple} and type(expected) is not tuple:
        raise TypeError(f"{where}: takes a tuple, not {expected!r}")
    if check == "tensor" and (type(expected) is not tuple or len(expected) != 7):
        raise TypeError(f"{where}: takes (type, dtype, device, sizes, strides, requires_grad, keys)")


def comparable(value: Any) -> bool:
    """Whether the ``equal`` check can compare this by value."""
    if isinstance(value, tuple):
        return all(map(comparable, value))
    return type(value) in Check.EQUAL.sure or walk.is_numpy_number(value)


def tensor_spec(expected: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """``(type, dtype, device type, index, sizes, strides, requires_grad, keys)`` in numbers; None: not natively."""
    facts = calibrate.facts()
    python_type, dtype, device, sizes, strides, requires_grad, keys = expected
    device_type = calibrate.DEVICE_TYPES.get(device.type)
    if facts is None or device_type is None or (keys is not None and not facts.keys):
        return None
    if requires_grad is not None and not facts.requires_grad:
        return None
    if strides is not None and len(strides) != len(sizes):
        return None
    index = -1 if device.index is None or device.type in ("cpu", "meta") else device.index
    grad = -1 if requires_grad is None else int(requires_grad)
    shape = tuple(sizes), None if strides is None else tuple(strides)
    return python_type, facts.dtype_number(dtype), device_type, index, *shape, grad, keys


def state_spec(check: str, expected: Any) -> tuple[int, int, tuple[Any, ...]]:
    """``(number of the state or -1, expected value, autocast rows)`` in numbers."""
    facts = calibrate.facts()
    if facts is None or check not in facts.states:
        return _THROUGH_PYTHON
    kind = STATES[check]
    if check == "default_dtype":
        return kind, facts.dtype_number(expected), ()
    if check == "default_device":
        return (kind, 0, ()) if expected is None else _THROUGH_PYTHON
    if check != "autocast":
        return kind, int(expected), ()
    rows = expected[:-1] if isinstance(expected[-1], bool) else expected
    if not all(row[0] in calibrate.DEVICE_TYPES for row in rows):
        return _THROUGH_PYTHON
    cache = int(expected[-1]) if isinstance(expected[-1], bool) else -1
    numbers = tuple(
        (calibrate.DEVICE_TYPES[name], int(on), facts.dtype_number(dtype)) for name, on, dtype in rows
    )
    return kind, cache, numbers
