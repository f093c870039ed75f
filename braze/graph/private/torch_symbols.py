"""PyTorch's symbolic numbers: environments, the symbols in them, and what is known and assumed of those."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import operator
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from braze.graph.private.torch_checks import assumption, unknown
from braze.graph.private.torch_import import DYNAMO, VERSION, LazyDynamo, stand_ins
from braze.symbolic.names import is_told_by_data

#: numbers that are symbols
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: before 2.12, composite operators in C++ (matmul among them) ask for plain sizes, which fixes symbolic ones
COMPOSITES_FIX_SIZES = VERSION < (2, 12)
#: since 2.14 some of them (upsampling) take symbolic sizes for numbers without asking for sizes
COMPOSITES_TAKE_NUMBERS = VERSION >= (2, 14)


def symbolic_environment(scalars: bool = False, shapes: bool = False) -> Any:
    """A ShapeEnv (imports SymPy). What only data tell may be symbols: numbers read out of tensors, and sizes of results."""
    if not symbolic_sizes.holds():
        raise unknown(f"{symbolic_sizes.name}: {symbolic_sizes.fault()}")
    if not os.environ.get("TORCH_TRACE"):
        # the handler takes itself away on its first record, but the text of that record imports Inductor
        logging.getLogger("torch.__trace").handlers.clear()
    _pooled_sizes_without_cases()
    _bits_of_negative_numbers()
    env = _symbolic_shapes().ShapeEnv(allow_scalar_outputs=scalars, allow_dynamic_output_shape_ops=shapes)
    # for its logs it asks where in PyTorch a guard arose, and imports torch.export to tell (half a second)
    env._get_user_frame = lambda: None
    env._make_data_dependent_error = _undecided  # whose text PyTorch makes of that frame
    return env


def _undecided(expr: Any, /, *args: Any, **kwargs: Any) -> Exception:
    """The error at a decision by what only the data tell."""
    text = f"Could not guard on data-dependent expression {expr}"
    return _symbolic_shapes().GuardOnDataDependentSymNode(expr, text)  # type: ignore[no-any-return]


@functools.cache
def _pooled_sizes_without_cases() -> None:
    """Before 2.12, sizes of pooling are divided with an ``if`` on the remainder, which never changes the result."""
    if VERSION < (2, 12):
        importlib.import_module("torch._meta_registrations").__dict__["div_rtn"] = operator.floordiv


@functools.cache
def _bits_of_negative_numbers() -> None:
    """PyTorch takes ``a & b`` for no less than 0 where one is unbounded below, though both may be negative; or it fails on them."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis, ValueRanges

    plain = SymPyValueRangeAnalysis.bitwise_and

    def bitwise_and(a: Any, b: Any) -> Any:
        a, b = ValueRanges.wrap(a), ValueRanges.wrap(b)
        if a.is_bool or b.is_bool or min(a.lower, b.lower) != -int_oo or max(a.lower, b.lower) >= 0:
            return plain(a, b)
        return ValueRanges(-int_oo, max(a.upper, b.upper))

    SymPyValueRangeAnalysis.bitwise_and = staticmethod(bitwise_and)  # type: ignore[method-assign]


@functools.cache
def _symbolic_shapes() -> Any:
    """PyTorch's module of that name, imported past its two uses of Dynamo: a base class, and names of files for logs."""
    name = "torch.fx.experimental.symbolic_shapes"
    postponed = isinstance(sys.modules.get(DYNAMO), LazyDynamo)
    if not postponed:
        module = importlib.import_module(name)
    else:
        with stand_ins():
            module = importlib.import_module(name)
            # what the first ShapeEnv would import
            importlib.import_module("torch.fx.experimental.validator")
    if postponed and hasattr(module, "uninteresting_files"):
        # of files that a size guard's stack trace need not show
        module.uninteresting_files = set  # type: ignore[attr-defined]
    return module


@functools.cache
def _source_class() -> Any:
    """A torch Source that is only a name; ``name`` is a property or a method by the version of PyTorch."""
    from torch._guards import Source  # imports SymPy, as do the next

    def text(self: Any) -> str:
        return self.text

    def start(self: Any, name: str) -> None:
        self.text = name

    parts: dict[str, Any] = {
        "__init__": start,
        "__str__": text,
        "__hash__": lambda self: hash(self.text),
        "__eq__": lambda self, other: getattr(other, "text", None) == self.text,
        "_name_template": property(text),
    }
    if callable(Source.__dict__["name"]):
        parts["name"] = text
    return type("NamedSource", (Source,), parts)


def make_symbol(env: Any, value: int, name: str) -> torch.SymInt | int:
    """A symbolic int of ``env`` with hint ``value``; 0, 1 and negative ones stay plain ints: symbols are sizes."""
    if value < 0:
        return value
    source = _source_class()(name)
    symbol = env.create_symbol(value, source, _symbolic_shapes().DimDynamic.DYNAMIC, None)
    return env.create_symintnode(symbol, hint=value, source=source)


def is_unbacked(value: Any) -> bool:
    """Whether a symbolic number depends on something that only the data tell."""
    node = value.node
    if node.maybe_as_int() is not None:
        return False
    return any(map(is_unbacked_symbol, node.expr.free_symbols))


def made_as(value: Any) -> str:
    """The symbol that a number was made as, whatever it was found to be since."""
    return str(value.node._expr)


def is_unbacked_symbol(symbol: Any) -> bool:
    """Whether a symbol of a ShapeEnv stands for what only the data tell: by PyTorch's naming of symbols."""
    return is_told_by_data(str(symbol)) or str(symbol).startswith("zuf")


def some_value(size: torch.SymInt) -> int:
    """A number that a size may be, as good as any: what only the data tell is taken to be as great as it can, within reason."""
    env, expr = size.node.shape_env, size.node.expr
    known = hints(env)
    values = {}
    for symbol in expr.free_symbols:
        bounds = env.var_to_range.get(symbol)
        upper = bounds.upper if bounds is not None else None
        top = int(upper) if upper is not None and upper.is_Integer else 8191
        values[symbol] = known[symbol] if symbol in known else max(min(top, 8191), 0)
    return int(expr.xreplace(values))


def fresh_symbols(env: Any) -> set[Any]:
    """The unbacked symbols made since this was last asked."""
    found = set(env.pending_fresh_unbacked_symbols)
    env.pending_fresh_unbacked_symbols.clear()
    return found


def runtime_checks(env: Any) -> list[Any]:
    """What was assumed of unbacked symbols, as SymPy conditions in the order of the assumption."""
    return [check.expr for checks in env.deferred_runtime_asserts.values() for check in checks]


def make_unbacked_size(env: Any, low: int | None, high: int | None) -> torch.SymInt:
    """A size of which nothing is known but bounds, 0 and 1 included."""
    made = env.create_unbacked_symint()
    env.pending_fresh_unbacked_symbols.clear()
    env._constrain_range_for_size(made.node.expr, low or 0, high)
    return made  # type: ignore[no-any-return]


def make_unbacked(env: Any, kind: type, bounds: tuple[int, int] | None = None) -> Any:
    """An int or a float that only the data tell; an int may be known to lie within bounds, these included."""
    made = env.create_unbacked_symint() if kind is int else env.create_unbacked_symfloat()
    env.pending_fresh_unbacked_symbols.clear()
    if bounds is not None:
        from torch.utils._sympy.value_ranges import ValueRanges

        env.var_to_range[made.node.expr] = ValueRanges(*bounds)
    return made


def expect_true(condition: torch.SymBool) -> bool:
    """Take a condition for granted from here on; False where it is known not to hold."""
    return _symbolic_shapes().expect_true(condition)  # type: ignore[no-any-return]


def is_condition(expr: Any) -> bool:
    """Whether a SymPy expression is true or false rather than a number."""
    return bool(expr.is_Boolean or expr.is_Relational)


def bool_of(env: Any, condition: Any) -> torch.SymBool:
    """A condition on symbols as a value."""
    node = _symbolic_shapes().SymNode(condition, env, bool, None)
    return torch.SymBool(node)


def call_a_size(number: torch.SymInt) -> None:
    """Let questions whether an unbacked number is 0 or 1 be answered as for sizes."""
    _symbolic_shapes()._advise_is_size(number)


def first_name(env: Any, symbol: Any) -> Any:
    """The symbol as which one was first made, of which it is another name."""
    while symbol in env.unbacked_renamings:
        symbol = env.unbacked_renamings[symbol]
    return symbol


def rename_unbacked(env: Any, made: Any, known: Any) -> None:
    """Let one unbacked symbol be known as another."""
    env._rename_unbacked_to(made, known)


@contextlib.contextmanager
def size_oblivious(env: Any) -> Iterator[None]:
    """Inside, a size that only the data tell is neither 0 nor 1 where that must be known: shapes are the same for those.

    For what PyTorch and the stages ask of sizes; the answer to a question of the program's own is to be checked.
    """
    if env is None:
        yield
        return
    evaluate = env.evaluate_expr

    def evaluating(expr: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(expr, *args, **kwargs)
        except RuntimeError as error:
            if not is_undecided(error):
                raise
            for symbol in expr.free_symbols:
                if is_unbacked_symbol(symbol) and bool(env.var_to_range[symbol].lower >= 0):
                    env.size_like.add(symbol)
            words = {**dict(zip(("hint", "fx_node"), args, strict=False)), **kwargs, "size_oblivious": True}
            return evaluate(expr, **words)

    env.evaluate_expr = evaluating
    try:
        yield
    finally:
        env.evaluate_expr = evaluate


def is_undecided(error: BaseException) -> bool:
    """Whether PyTorch raised it since a decision needs a number that only the data tell."""
    # where it is not, nothing can have raised it
    loaded = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    return loaded is not None and isinstance(error, loaded.GuardOnDataDependentSymNode)


def give_environment(mode: FakeTensorMode, env: Any) -> None:
    """Let a mode that was made for static sizes have symbolic ones from now on."""
    mode.shape_env = env
    mode.static_shapes = False


def make_bounded_symbol(
    env: Any, value: int, name: str, low: int | None, high: int | None
) -> torch.SymInt | int:
    """A size of ``env`` between bounds."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    source = _source_class()(name)
    symbol = env.create_symbol(value, source, _symbolic_shapes().DimDynamic.DYNAMIC, None)
    if not symbol.free_symbols:
        return int(symbol)
    env.var_to_range[symbol] = ValueRanges(max(low or 0, 2), int_oo if high is None else high)
    return env.create_symintnode(symbol, hint=value, source=source)


def watch_specialisation(env: Any, seen: Any) -> None:
    """Call ``seen(symbol, value, condition)`` whenever a condition fixes what a symbol is."""
    evaluate, replace = env.evaluate_expr, env._set_replacement
    asked: list[Any] = []

    def evaluating(expr: Any, /, *args: Any, **kwargs: Any) -> Any:
        asked.append(expr)
        try:
            return evaluate(expr, *args, **kwargs)
        finally:
            asked.pop()

    def replacing(symbol: Any, value: Any, *args: Any) -> None:
        seen(symbol, value, asked[-1] if asked else None)
        replace(symbol, value, *args)

    env.evaluate_expr, env._set_replacement = evaluating, replacing


@functools.cache
def sympy_words() -> Any:
    """The classes that size expressions are written in (imports SymPy)."""
    sympy, own = map(importlib.import_module, ("sympy", "torch.utils._sympy.functions"))
    names = ("Integer", "Add", "Mul", "true", "false"), ("FloorDiv", "Mod", "PythonMod", "Max", "Min")
    return SimpleNamespace(**{n: getattr(m, n) for m, each in zip((sympy, own), names) for n in each})


def hints(env: Any) -> dict[Any, Any]:
    """symbol -> the number that it stood for while tracing, as SymPy objects."""
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val


def is_settled(condition: Any) -> bool:
    """Whether a condition on sizes holds by what was guarded before; nothing is asked of these sizes."""
    return bool(_symbolic_shapes().statically_known_true(condition))


def make_float_symbol(env: Any, value: float, name: str) -> torch.SymFloat:
    """A symbolic float of ``env`` with hint ``value``."""
    source = _source_class()(name)
    symbol = env.create_unspecified_symbol(value, source, _symbolic_shapes().DimDynamic.DYNAMIC)
    return env.create_symfloatnode(symbol, hint=value, source=source)


#: functions of symbolic floats that have no public name, by their names in expressions
SYMBOLIC_MATH = {
    f"OpaqueUnaryFn_{name}": getattr(torch, f"_sym_{name}")
    for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")
    if hasattr(torch, f"_sym_{name}")
}


@assumption("symbolic sizes", "sizes are never symbols: each is compiled on its own")
def symbolic_sizes() -> None:
    """A size is made, computed with, compared and bounded, and its condition can be read."""
    env = symbolic_environment()
    seen: list[Any] = []
    watch_specialisation(env, lambda symbol, value, condition: seen.append(int(value)))
    size, other = make_bounded_symbol(env, 6, "s", 2, 64), make_symbol(env, 7, "t")
    twice: Any = size * 2 + other  # type: ignore[operator]
    (symbol,) = size.node.expr.free_symbols  # type: ignore[union-attr]
    facts = (
        hints(env)[symbol],
        int(env.var_to_range[symbol].upper),
        some_value(twice),
        is_unbacked(size),
        bool(size > 5),
    )
    if facts != (6, 64, 19, False, True) or not env.guards:
        raise AssertionError(f"a size is known as {facts}")
    if not is_unbacked(make_unbacked(env, int)):
        raise AssertionError("what only data tell is taken for known")
    if not (other == 7) or set(seen) != {7}:
        raise AssertionError(f"of sizes that a program fixes, {seen} were seen")
