"""Why a call does not fit a variant, in the user's words: the guard, the value met, the line, how to avoid it."""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from braze.capture.facts.frame import position
from braze.capture.facts.records import Capture, Check, Guard, ShapeRelation, Source, Step
from braze.capture.facts.resume import STATE_NAMES
from braze.capture.guards.guard_text import guard_text, place_text, source_text, spec_of_value, value_text
from braze.capture.guards.tables import GuardTable
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.native import walk
from braze.native.walk import Missing
from braze.support.errors import Origin
from braze.support.record import record


@record
class Miss:
    """The guard that failed, and the value it met instead."""

    guard: Guard
    value: Any
    text: str  # all in one line
    what: str = ""  # the guard
    met: str = ""  # the value
    hints: tuple[str, ...] = ()

    @property
    def origin(self) -> Origin | None:
        """The user's line that first read the value."""
        return self.guard.origin


def explain_miss(
    capture: Capture, table: GuardTable, program: Any, function: Any, locals: Any
) -> Miss | None:
    """Which guard fails for these locals, with old and new value; None if all hold."""
    found = program.explain(function, locals)
    if found is None:
        return None
    index, value = found
    if index >= len(table.guards):
        gone = "an input of the graph cannot be read any more"
        return Miss(Guard(None, Check.IS, None), value, gone, gone, value_text(value))
    guard = table.guards[index]
    names = names_of_arguments(function, locals)
    if guard.check is Check.RANGE and not isinstance(value, walk.Missing):
        symbols = symbol_names(capture, names)
        relation = ShapeRelation(in_words(guard.expected.expression, symbols), guard.expected.symbols)
        what = relation.expression
        met = ", ".join(
            f"{symbols.get(name, name)} = {walk.float_of(v) if f'float_of({name})' in guard.expected.expression else v}"
            for name, v in zip(table.symbol_names, value, strict=False)
            if name in guard.expected.symbols
        )
        name = symbols.get(_fixed(guard.expected) or "", "").removeprefix("-")
    else:
        name = source_text(guard.source, capture.code, names)
        what = guard_text(Guard(guard.source, guard.check, guard.expected), capture.code, names)
        met = met_text(guard, value)
    origin = guard.origin or first_read(guard.source, function, locals)
    guard = Guard(guard.source, guard.check, guard.expected, origin)
    hints = advice(guard, value, name)
    return Miss(guard, value, f"{what}; now {met}{place_text(origin)}", what, met, hints)


#: a relation between a symbol and a number, as shape guards write it
_ONE_VALUE = re.compile(r"\(?(\w+) == \(?\d+\)*")


def _fixed(relation: ShapeRelation) -> str | None:
    """The symbol that a relation says the one value of, as where an item of a list is taken by it."""
    found = _ONE_VALUE.fullmatch(relation.expression)
    return found[1] if found is not None and found[1] in relation.symbols else None


def met_text(guard: Guard, value: Any) -> str:
    """What a guard met."""
    if guard.check is Check.LENGTH and hasattr(type(value), "__len__"):
        return f"length {len(value)}"
    if guard.check is Check.KEYS and isinstance(value, dict):
        return f"{list(dict.keys(value))!r}"[:200]
    if guard.check in (Check.ALIAS, Check.DISTINCT) and not isinstance(value, walk.Missing):
        return "another object" if guard.check is Check.ALIAS else "one object twice"
    if issubclass(type(value), walk.Missing) and is_over_array(guard.source):
        other = "may not" if guard.source.key == "writable" else "may"  # type: ignore[union-attr]
        return f"an array that {other} be written, or of which PyTorch makes no tensor"
    return value_text(value)


# -- names and lines as the user knows them ---------------------------------------------------------


def names_of_arguments(function: FunctionType, locals: Sequence[Any]) -> Mapping[Source, str]:
    """What a module's call has in ``*args`` and ``**kwargs``, by the names of its ``forward``."""
    forward = _forward(function, locals)
    if forward is None:
        return {}
    args, kwargs = Source(Step.LOCAL, 1), Source(Step.LOCAL, 2)
    names = {args: "args", kwargs: "kwargs"}
    own = forward.co_varnames[1 : forward.co_argcount]
    names.update({Source(Step.ITEM, i, args): name for i, name in enumerate(own)})
    names.update({Source(Step.ITEM, key, kwargs): key for key in locals[2]})
    return names


def _forward(function: FunctionType, locals: Sequence[Any]) -> CodeType | None:
    """The code of the ``forward`` behind a frame of ``nn.Module.__call__``."""
    if function.__module__ != torch.nn.Module.__module__ or function.__code__.co_varnames[:3] != (
        "self",
        "args",
        "kwargs",
    ):
        return None
    return getattr(getattr(type(locals[0]), "forward", None), "__code__", None)


def place_of(function: FunctionType, locals: Sequence[Any]) -> str:
    """file:line of the function that the user wrote."""
    code = _forward(function, locals) or function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def first_read(source: Source | None, function: FunctionType, locals: Sequence[Any]) -> Origin | None:
    """The line that first reads an argument."""
    if source is None:
        return None
    chain = [source]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    code: CodeType = function.__code__
    if chain[-1].step is not Step.LOCAL or code in STATE_NAMES:
        return None
    name = code.co_varnames[chain[-1].key] if chain[-1].key < len(code.co_varnames) else ""
    forward = _forward(function, locals)
    if forward is not None:
        names = names_of_arguments(function, locals)
        name, code = next((names[s] for s in chain if s in names), ""), forward
    for instruction in dis.get_instructions(code):
        read = instruction.argval
        if instruction.opname.startswith("LOAD_") and (
            name == read or (type(read) is tuple and name in read)
        ):
            return position(code, instruction.offset // 2)
    return None


# -- relations between sizes ------------------------------------------------------------------------


def symbol_names(capture: Capture, names: Mapping[Source, str]) -> dict[str, str]:
    """What each symbol is: ``s0`` -> ``x.shape[0]``."""
    found: dict[str, str] = {}
    for guard in capture.guards:
        if guard.check is Check.TENSOR:
            for i, size in enumerate(guard.expected.sizes):
                if isinstance(size, str) and size.isidentifier() and size not in found:
                    found[size] = f"{source_text(guard.source, capture.code, names)}.shape[{i}]"
        elif guard.check is Check.EQUAL and isinstance(guard.expected, SymbolSpec | FloatSpec):
            found.setdefault(guard.expected.name, source_text(guard.source, capture.code, names))
    for source, spec in zip(capture.inputs, capture.specs, strict=True):
        if isinstance(spec, SymbolSpec):
            found.setdefault(spec.name, source_text(source, capture.code, names))
    return found


def in_words(expression: str, symbols: Mapping[str, str]) -> str:
    """A relation with the user's expressions in place of symbols."""

    class Named(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            read = isinstance(node.func, ast.Name) and node.func.id in ("float_of", "int_of")
            return self.visit(node.args[0]) if read else self.generic_visit(node)  # type: ignore[no-any-return]

        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Name(symbols.get(node.id, node.id), node.ctx)

    return ast.unparse(Named().visit(ast.parse(expression, mode="eval")))


# -- how to avoid that it fails again: one sentence by the kind of guard and what it met


_EACH = "functions and classes that a number or a name chooses have a variant each: options={'recompile_limit': n} for as many as there are"


def advice(guard: Guard, value: Any, name: str) -> tuple[str, ...]:
    """What the user may do so that this guard no longer fails; ``name`` is the guarded thing as the user writes it."""
    match guard.check:
        case Check.TENSOR if isinstance(value, Missing) and is_over_array(guard.source):
            return (
                "arrays that may be written have a variant, those that may not another: array.copy() may",
            )
        case Check.TENSOR:
            return _tensor_advice(guard.expected, value, name)
        case Check.EQUAL if isinstance(guard.expected, SymbolSpec | FloatSpec):
            return (f"pass {name} as one type of number",)
        case Check.EQUAL if guard.source is not None and guard.source.step is Step.MEMORY:
            return ("each size of the memory that a part lies in has a variant: pass a clone of the part",)
        case Check.EQUAL if type(guard.expected) in (int, float):
            return (
                f"{name} is symbolic from now on, unless its value decides what is computed; "
                "else keep it constant or pass a tensor",
            )
        case Check.EQUAL if is_attribute(guard.source):
            return (f"set {name} once, before the first call",)
        case Check.EQUAL if type(guard.expected) is str:
            return (
                f"each value of {name} that is looked at, not handed on or written into other text, has a variant of its own: keep to a few",
            )
        case Check.EQUAL if isinstance(guard.expected, bool | None):
            return (f"each value of {name} has a variant of its own: keep to a few",)
        case Check.RANGE if name and ".shape[" not in name:
            return (
                f"each value of {name} that is compared with or chooses (anything but an item of a list or a layer) has a variant of its own: "
                f"keep to a few, or choose out of a list or a tensor, torch.tensor(rows)[{name}] or torch.stack(tensors)[{name}]; {_EACH}",
            )
        case Check.IS if guard.source is not None and guard.source.step is Step.ITEM_AT:
            return (_EACH,)
        case Check.KEYS | Check.HAS_KEY if name == "kwargs":
            return ("pass the same arguments by keyword each time",)
    return (guard.check.advice.format(name=name),)


def _tensor_advice(spec: TensorSpec, value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, torch.Tensor):
        return (f"pass a tensor as {name} each time",)
    now = spec_of_value(value)
    if now.dtype != spec.dtype or now.device != spec.device:
        return (f"pass {name} with one dtype and on one device",)
    if now.requires_grad != spec.requires_grad:
        return (f"{name} with and without requires_grad has a variant each: call under torch.no_grad()",)
    if len(now.sizes) != len(spec.sizes):
        return (f"pass {name} with one number of dimensions",)
    changed = [i for i, (a, b) in enumerate(zip(spec.sizes, now.sizes, strict=True)) if a != b]
    if any(now.sizes[i] in (0, 1) or spec.sizes[i] in (0, 1) for i in changed):
        return ("sizes 0 and 1 have a variant of their own, since such tensors broadcast: no way round",)
    if changed:
        which = "size " + ", ".join(map(str, changed)) + f" of {name}"
        return (f"{which} is symbolic from now on; dynamic=True makes it so at the first call",)
    if now.strides != spec.strides:
        return (f"pass {name} with one layout: {name}.contiguous()",)
    return (Check.TENSOR.advice.format(name=name),)


def is_over_array(source: Source | None) -> bool:
    """Whether a tensor is made of an array of numpy's."""
    return source is not None and source.step is Step.TENSOR_OF


def is_attribute(source: Source | None) -> bool:
    """Whether a value is read from an object's attributes rather than from arguments."""
    while source is not None:
        if source.step in (Step.ATTR, Step.DICT, Step.CLASS_ATTR):
            return True
        source = source.parent
    return False
