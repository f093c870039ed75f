"""Operators of an engine's own, registered without the cost that ``torch.library.custom_op`` adds to each call, and marks on
those at which graphs are split.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from braze.graph.private.torch_compat import is_dispatch_key
from braze.runtime.operators.purity import note_custom
from braze.support import log
from braze.support.errors import UserError
from braze.support.record import record

#: where operators go that are given no library
NAMESPACE = "braze"


@record
class _Registration:
    """What an operator was registered with; its implementations by dispatch key."""

    schema: str
    tags: tuple[torch.Tag, ...]
    functions: dict[str, Callable[..., Any]]
    fakes: list[Callable[..., Any]]


_lock = threading.RLock()
_known: dict[str, _Registration] = {}
#: an operator lives as long as the library that defines it
_libraries: dict[str, torch.library.Library] = {}
_marked: set[str] = set()


def direct_register_custom_op(
    op_name: str,
    op_func: Callable[..., Any],
    mutates_args: Sequence[str] | None = None,
    fake_impl: Callable[..., Any] | None = None,
    target_lib: torch.library.Library | None = None,
    dispatch_key: str = "CUDA",
    tags: Iterable[torch.Tag] = (),
) -> OpOverload:
    """Make ``op_func`` the operator ``torch.ops.<namespace>.<op_name>``, and return it.

    The schema is read off the function's annotations; ``mutates_args`` names the arguments that it writes. ``fake_impl`` takes
    the same arguments and gives tensors of the result's shapes and dtypes without data; an operator that returns nothing needs none.
    ``target_lib``: the library, and with it the namespace (braze's own by default). ``dispatch_key``: which device's
    tensors the function is for, "CUDA" by default; the operator may be registered again with another key and the function for
    that. ``tags``: of PyTorch, such as ``torch.Tag.cudagraph_unsafe`` for what no recording may hold.

    The same registration twice changes nothing. UserError (BZ7201) where an operator of that name has another function for the
    key, another schema or other tags, or stands in the namespace already; (BZ7202) where no schema can be read.
    """
    namespace = target_lib.ns if target_lib is not None else NAMESPACE
    name = f"{namespace}::{op_name}"
    _check_words(name, op_func, mutates_args, dispatch_key)
    schema = _schema(name, op_func, list(mutates_args or ()))
    if fake_impl is None and schema.endswith("-> ()"):
        fake_impl = _nothing
    kept = tuple(tags)
    with _lock:
        known = _known.get(name)
        if known is None:
            _refuse_foreign(name)
            known = _known[name] = _Registration(schema, kept, {}, [])
            note_custom(name)
            _library(target_lib).define(op_name + schema, tags=kept)
        _add(name, known, schema, kept, dispatch_key, op_func, target_lib)
        if fake_impl is not None and not known.fakes:
            known.fakes.append(fake_impl)
            torch.library.register_fake(name, fake_impl, lib=_library(target_lib))
        return _overload(name)


def on_every_device(function: Callable[..., Any], *written: str) -> OpOverload:
    """A function as the operator of its name on every device, which writes these arguments."""
    key = "CompositeExplicitAutograd"
    return direct_register_custom_op(function.__name__, function, mutates_args=written, dispatch_key=key)


def _check_words(name: str, function: Any, written: Any, key: str) -> None:
    """UserError (BZ7202) for words that PyTorch would refuse half-way, or take for others."""
    wrong = ""
    if not name.partition("::")[2].isidentifier():
        wrong = "op_name is to be an identifier; target_lib= says the namespace"
    elif not callable(function):
        wrong = f"op_func is to be a function, not {type(function).__name__}"
    elif isinstance(written, str):
        wrong = f"mutates_args is to be a list of names: [{written!r}]"
    elif not is_dispatch_key(key):
        wrong = f"dispatch_key={key!r} is no key of PyTorch's, such as 'CPU' or 'CUDA'"
    if wrong:
        raise UserError("BZ7202", f"{name} cannot be registered", why=wrong)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """The result of an operator that only writes."""


def _schema(name: str, function: Callable[..., Any], written: list[str]) -> str:
    """``(Tensor x, Tensor(a1!) out) -> ()``."""
    try:
        return torch.library.infer_schema(function, mutates_args=written)
    except (ValueError, TypeError, NameError) as error:
        raise UserError(
            "BZ7202",
            f"no schema can be read off the function of {name}",
            why=str(error).partition("\n")[0],
            hints=[
                "annotate each parameter and the result: torch.Tensor, int, float, bool, str, Optional and List of these",
                "mutates_args names parameters",
            ],
        ) from error


def _refuse_foreign(name: str) -> None:
    """Who else registered this name would be silently replaced, or would silently replace us."""
    namespace, _, op_name = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), op_name):
        raise UserError(
            "BZ7201",
            f"operator {name} exists already, and was not registered here",
            hints=["choose another name, or pass target_lib= with a namespace of your own"],
        )


def _add(
    name: str,
    known: _Registration,
    schema: str,
    tags: tuple[torch.Tag, ...],
    key: str,
    function: Callable[..., Any],
    given: torch.library.Library | None,
) -> None:
    """One more implementation of an operator, unless it is there."""
    before = known.functions.get(key)
    differs = ""
    if known.schema != schema:
        differs = f"schema {known.schema}, not {schema}"
    elif known.tags != tags:
        differs = f"tags {known.tags}, not {tags}"
    elif before is not None and before is not function:
        differs = f"another function for {key}"
    if differs:
        raise UserError(
            "BZ7201",
            f"operator {name} is registered with {differs}",
            why="graphs that were compiled with the first would run the second",
            hints=["choose another name", "register the same function: once is enough for a process"],
        )
    if before is None:
        known.functions[key] = function
        _library(given).impl(name.partition("::")[2], function, key)


def _library(given: torch.library.Library | None) -> torch.library.Library:
    """The library to register in, kept alive."""
    if given is not None:
        return _libraries.setdefault(f"{given.ns} {id(given)}", given)
    if NAMESPACE not in _libraries:
        _libraries[NAMESPACE] = torch.library.Library(NAMESPACE, "FRAGMENT")
    return _libraries[NAMESPACE]


def _overload(name: str) -> OpOverload:
    namespace, _, op_name = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op_name).default  # type: ignore[no-any-return]


# -- where graphs are split -------------------------------------------------------------------------


def mark_splitting_op(op: Any) -> Any:
    """Let graphs be split at an operator wherever they are split, also where no configuration names it; returns the operator.

    ``op``: ``torch.ops.ns.name``, one of its overloads (then that overload alone), or the name as ``"ns::name"``, ``"ns.name"`` or
    ``"ns.name.overload"``. A decorator of what :func:`direct_register_custom_op` returns, too.
    """
    _marked.add(spelled(op))
    return op


def marks() -> tuple[str, ...]:
    """All operators that were marked."""
    return tuple(sorted(_marked))


def tell_of_unknown(names: Iterable[str]) -> None:
    """Say once of each name that no operator has it, so that no graph is split there (BZ7218)."""
    for name in names:
        namespace, _, rest = name.partition("::")
        op, _, way = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), op, None)
        if packet is None or (way and not hasattr(packet, way)):
            text = (
                f"BZ7218: splitting_ops names {name}, and there is no such operator: nothing is split there"
            )
            log.warn_once(("BZ7218", name), text, "serving")


def is_marked(target: Any) -> bool:
    """Whether a node's target was marked."""
    return bool(_marked) and not _marked.isdisjoint(names_of(target))


def names_of(target: Any) -> tuple[str, ...]:
    """The names by which an operator is known, ``ns::name`` and ``ns::name.overload``; none for what is no operator."""
    if isinstance(target, OpOverload):
        name, _, way = target.name().partition(".")
        return name, f"{name}.{way or 'default'}"
    if isinstance(target, OpOverloadPacket):
        return (spelled(target),)
    return ()


def spelled(name: Any) -> str:
    """An operator's name in one spelling: ``ns::name`` or ``ns::name.overload``. UserError (BZ7203) for what is no name."""
    if isinstance(name, OpOverload):
        return names_of(name)[1]
    if isinstance(name, OpOverloadPacket):
        name = str(name)
    if isinstance(name, str):
        namespace, colons, rest = name.partition("::")
        if not colons:
            namespace, _, rest = name.partition(".")
        if namespace and rest and rest.count(".") <= 1 and "::" not in rest:
            return f"{namespace}::{rest}"
    raise UserError(
        "BZ7203",
        f"{name!r} names no operator",
        why='an operator is named "ns::name", "ns.name" or "ns.name.overload", or is torch.ops.ns.name itself',
        hints=['splitting_ops=["braze::unified_attention_with_output"]'],
    )
