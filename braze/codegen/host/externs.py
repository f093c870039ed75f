"""Extern calls as Python text: arguments, results, and what keeps a result's layout as planned."""

from __future__ import annotations

from collections.abc import Callable

import torch

from braze.codegen.host.homes import Home, Homes
from braze.codegen.host.text import constant_text, dtype_text, identifier, tuple_text
from braze.loops.ir import BufferKind, BufferView, ExternCall, MadeSize
from braze.runtime.operators.purity import named
from braze.symbolic.expr import ZERO, Expr


class Views:
    """Tensors that the host needs for extern calls and outputs.

    Views of arena slots are made once per arena (and layout, where sizes are symbolic); views of
    constants once per data pointer; others at each call.
    """

    def __init__(self, homes: Homes) -> None:
        self.homes = homes
        self.of_arena: dict[str, str] = {}  # variable -> expression, made once per arena
        self.of_constants: dict[str, tuple[str, str]] = {}  # variable -> (constant, expression)
        self.of_layouts: dict[str, str] = {}  # layout -> the function that makes a view in it
        self._names: dict[BufferView, str] = {}

    def in_layout(self, view: BufferView) -> tuple[str, str]:
        """A Python expression for a tensor, and the layout (a tuple's text) in which an operator is to see it; "" where it lies so."""
        buffer = self.homes.buffers[view.buffer]
        static = all(e.is_constant for e in (*view.sizes, *view.strides, view.offset))
        if (
            not static
            or self.homes.of(view.buffer) is Home.ARENA
            or self.homes.is_whole(view)
            or view.dtype is not buffer.dtype
        ):
            return self.text(view), ""
        layout = f"({tuple_text(view.sizes)}, {tuple_text(view.strides)}, {view.offset})"
        return identifier(view.buffer), layout

    def read(self, view: BufferView) -> str:
        """As :meth:`text`, for an operator that only reads: no tensor of PyTorch's that is known as a view of the other."""
        if self.homes.buffers[view.buffer].kind is BufferKind.CONSTANT:
            return self.text(view)
        name, layout = self.in_layout(view)
        if not layout:
            return name
        return f"{self.of_layouts.setdefault(layout, f'view_{len(self.of_layouts)}')}({name})"

    def text(self, view: BufferView) -> str:
        """A Python expression for the view as a tensor."""
        home = self.homes.of(view.buffer)
        if home is Home.ARENA:
            return self._arena(view)
        name = identifier(view.buffer)
        if self.homes.is_whole(view):
            return name
        made = strided(name, view, self.homes)
        static = all(e.is_constant for e in (*view.sizes, *view.strides, view.offset))
        if self.homes.buffers[view.buffer].kind is BufferKind.CONSTANT and static:
            variable = self._names.setdefault(view, f"{name}_v{len(self.of_constants)}")
            self.of_constants[variable] = name, made
            return variable
        return made

    def _arena(self, view: BufferView) -> str:
        place = self.homes.offset(view.buffer)
        item = view.dtype.itemsize
        inside = view.offset * self.homes.buffers[view.buffer].dtype.itemsize
        if isinstance(place, Expr):
            offset = str((place + inside) // item)
        else:
            offset = f"layout.offsets[{place}] // {item}" + ("" if inside is ZERO else f" + {inside // item}")
        made = (
            f"as_strided(arena.typed({dtype_text(view.dtype)}), {tuple_text(view.sizes)}, "
            f"{tuple_text(view.strides)}, {offset})"
        )
        if self.homes.is_late(view):
            return made
        variable = self._names.setdefault(view, f"{identifier(view.buffer)}_a{len(self._names)}")
        self.of_arena[variable] = made
        return variable


def strided(name: str, view: BufferView, homes: Homes) -> str:
    """``as_strided`` on a tensor variable."""
    base = name
    if view.dtype is not homes.buffers[view.buffer].dtype:
        base = f"{name}.view({dtype_text(view.dtype)})"
    place = "" if view.offset.value == 0 else f", {name}.storage_offset() + {view.offset}"
    return f"as_strided({base}, {tuple_text(view.sizes)}, {tuple_text(view.strides)}{place})"


def scalar_arguments(call: ExternCall) -> frozenset[int | str]:
    """Positions and names of the arguments that take a number where the call has one in memory."""
    if not any(isinstance(a, BufferView) and not a.sizes for a in call.given):
        return frozenset()
    numbers = [(i, a.name) for i, a in enumerate(named(call.target)._schema.arguments) if is_number(a)]
    return frozenset(key for pair in numbers for key in pair)


def is_number(argument: torch.Argument) -> bool:
    """Whether an operator's argument is a Python number (or none)."""
    return str(argument.type).removeprefix("Optional[").removesuffix("]") in ("number", "float", "int")


def argument_text(value: object, tensor: Callable[[BufferView], str], number: bool = False) -> str:
    """One argument of an extern call; ``number``: it takes a Python number, that may lie in memory."""
    if isinstance(value, BufferView):
        return f"{tensor(value)}.item()" if number else tensor(value)
    if isinstance(value, Expr):
        return str(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(argument_text(v, tensor) for v in value)}]"
    return constant_text(value)


def drops_nothing(call: ExternCall) -> bool:
    """Whether an operator that may drop elements is told to drop none: then it draws no random numbers."""
    for i, argument in enumerate(named(call.out_variant or call.target)._schema.arguments):
        if argument.name == "dropout_p":
            told = call.args[i] if i < len(call.args) else argument.default_value
            told = dict(call.kwargs).get(argument.name, told)
            return isinstance(told, (int, float)) and told == 0
    return False


def only_reads(call: ExternCall) -> bool:
    """Whether a call is of an operator of ATen's that writes to nothing that it is given, and keeps none of it."""
    return call.target.startswith("aten.") and not call.mutates and not call.aliases


#: operator -> which of its results is bytes for its backward, or for another operator, alone, of whose number fakes say nothing
OPAQUE = {"braze.mkldnn_rnn_layer.default": 3, "braze.convolution_weight.default": 0}


#: operators of tensors alone that see these in other layouts than they lie in
PRODUCTS = ("aten.mm.out", "aten.addmm.out", "aten.bmm.out", "aten.baddbmm.out")


def product_layouts(call: ExternCall, views: Views) -> tuple[str, ...]:
    """The layouts in which a matrix product sees what it is given, "None" where it lies so; nothing where all do, or the call is no such."""
    if (
        call.out_variant not in PRODUCTS
        or not all(isinstance(a, BufferView) for a in call.given)
        or call.kwargs
    ):
        return ()
    layouts = tuple(views.in_layout(a)[1] or "None" for a in call.args)
    return layouts if any(text != "None" for text in layouts) else ()


def extern_lines(
    call: ExternCall,
    function: str,
    views: Views,
    bind: Callable[[str], str],
    unread: frozenset[str],
    laid: bool,
) -> list[str]:
    """The statements of one extern call; of results that nobody reads the layout does not matter, and some are None.

    ``bind``: a layout that is told beforehand -> the variable that is it. ``laid``: the function knows the layouts of its arguments.
    """
    kinds = scalar_arguments(call)
    tensor = (
        (lambda view: views.in_layout(view)[0]) if laid else views.read if only_reads(call) else views.text
    )
    args = [argument_text(a, tensor, i in kinds) for i, a in enumerate(call.args)]
    args += [f"{k}={argument_text(v, tensor, k in kinds)}" for k, v in call.kwargs]
    if call.out_variant:
        names = out_names(call.out_variant)
        for name, buffer in zip(names, call.outputs, strict=True):
            args.append(f"{name}={views.text(views.homes.buffers[buffer].whole())}")
        return [f"{function}({', '.join(args)})"]
    text = f"{function}({', '.join(args)})"
    made = [line for m in call.makes for line in _made(m, call)]
    if not any(call.outputs):
        number = [m for m in call.makes if m.dim < 0]
        return [f"{identifier(number[0].symbol.name)} = int({text})"] if number else [text]
    targets = [identifier(o) if o else "_" for o in call.outputs]
    many = returns_several(call.target) or len(targets) > 1
    lines = [f"{tuple_text(tuple(targets)) if many else targets[0]} = {text}"]
    opaque = call.outputs[OPAQUE[call.target]] if call.target in OPAQUE else None
    read = [o for o in call.outputs if o and o not in unread and o != opaque]
    return lines + made + [line for o in read for line in _layout(o, views.homes, bind)]


def _made(made: MadeSize, call: ExternCall) -> list[str]:
    """The statement that reads a size symbol off a result."""
    if made.dim < 0:
        return []
    return [f"{identifier(made.symbol.name)} = {identifier(call.outputs[made.output])}.size({made.dim})"]


def _layout(buffer: str, homes: Homes, bind: Callable[[str], str]) -> list[str]:
    """A result whose strides or type are not the planned ones is copied into them; one of other sizes ends the call."""
    b = homes.buffers[buffer]
    name, strides, dtype = identifier(buffer), tuple_text(b.strides), dtype_text(b.dtype)
    sizes = tuple_text(b.sizes)
    if all(e.is_constant for e in (*b.sizes, *b.strides)):
        return [f"{name} = {bind(f'{sizes}, {strides}, {dtype}')}({name})"]
    differs = f"{name}.dtype is not {dtype}"
    if b.sizes:
        differs = f"{name}.shape != {sizes} or {name}.stride() != {strides} or {differs}"
    return [f"if {differs}:", f"    {name} = relayout({name}, {sizes}, {strides}, {dtype})"]


def out_names(target: str) -> list[str]:
    """The names of an overload's ``out=`` arguments."""
    return [a.name for a in named(target)._schema.arguments if a.is_out]


def returns_several(target: str) -> bool:
    """Whether an operator returns a tuple or a list of tensors."""
    returns = named(target)._schema.returns
    return len(returns) != 1 or str(returns[0].type).startswith(("List", "Tensor[]"))
