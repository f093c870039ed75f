"""Every private name of PyTorch that braze touches, and how to do without Dynamo's import.

Making a ``FakeTensorMode`` and running the first operator in it imports ``torch._dynamo`` (about a second) for
a setting and for ``disable``. Here a stand-in takes the module's place until somebody uses it for anything
else; then it loads the real one, so a later ``torch.compile`` works as ever. For a version of PyTorch that was
not tested, nothing is replaced and the slow import happens.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.overrides
from torch._higher_order_ops.map import map as torch_map  # noqa: F401  (for capture)
from torch._higher_order_ops.scan import scan as torch_scan  # noqa: F401  (for capture)
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop  # noqa: F401  (for capture)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from braze.support.log import warn_once

TESTED = {(2, 11), (2, 12), (2, 13)}
DYNAMO = "torch._dynamo"

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

DisableTorchFunction = torch._C.DisableTorchFunction
BelowAutograd = torch._C._AutoDispatchBelowAutograd
make_subclass = torch.Tensor._make_subclass

_loading = threading.RLock()


class _LazyDynamo(ModuleType):
    """Stands for ``torch._dynamo`` until an attribute of it is wanted.

    ``disable`` is answered here, since PyTorch's meta functions ask for it on their first call; what it gave
    out is taken back when the real module comes.
    """

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        folder = os.path.join(os.path.dirname(torch.__file__), "_dynamo")
        self.__dict__.update(__file__=os.path.join(folder, "__init__.py"), __package__=DYNAMO, _given=[])
        self.__dict__["disable"] = self._disable

    def _disable(self, fn: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
        if fn is None or not recursive or "__dynamo_disable" in getattr(fn, "__dict__", ()):
            return self._real().disable(fn, recursive, **kwargs)
        self._given.append(fn)
        return fn

    def _real(self) -> Any:
        with _loading:
            if sys.modules.get(DYNAMO) is self:
                del sys.modules[DYNAMO]
                torch.__dict__.pop("_dynamo", None)
                for fn in self._given:
                    fn.__dict__.pop("__dynamo_disable", None)
                self.__dict__.pop("disable", None)
            return importlib.import_module(DYNAMO)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("__spec__", "__loader__", "config"):
            self.__dict__[name] = value
        else:
            setattr(self._real(), name, value)


def warn_of_untested_version() -> None:
    """Say once that this PyTorch is not one that the tests run on."""
    if VERSION not in TESTED:
        warn_once(
            ("torch version", VERSION),
            f"braze is tested with PyTorch 2.11 to 2.13, not {torch.__version__}: start-up is slower here; "
            "compare results with eager before you rely on them",
        )


def mute_fakes(when: Callable[[], bool]) -> None:
    """Keep PyTorch from logging errors of fake tensors while ``when()``: eager code raises its own, which users see."""
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not when())


def postpone_dynamo() -> bool:
    """Put the stand-in in place; whether it now stands there."""
    if VERSION not in TESTED:
        warn_of_untested_version()
        return False
    with _loading:
        there = sys.modules.get(DYNAMO)
        if there is not None:
            return isinstance(there, _LazyDynamo)
        stand_in = _LazyDynamo()
        sys.modules[DYNAMO] = stand_in
        # the settings are a module of their own that needs nothing of the package
        stand_in.__dict__["__path__"] = [os.path.dirname(stand_in.__dict__["__file__"])]
        try:
            importlib.import_module(f"{DYNAMO}.config")
        finally:
            del stand_in.__dict__["__path__"]
        return True


@functools.cache
def settle_device_guard() -> None:
    """Without a GPU, have PyTorch's stand-in for one belong to a thread that never ends.

    The first thread to enter a FakeTensorMode comes to own it, and every other thread goes on using it: after the
    end of its owner that is memory that was freed.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is None or torch.cuda.is_available():
        return
    if threading.current_thread() is threading.main_thread():
        ensure()
        return
    done = threading.Event()

    def stay() -> None:
        ensure()
        done.set()
        threading.Event().wait()

    threading.Thread(target=stay, name="braze device guard", daemon=True).start()
    done.wait()


@functools.cache
def disabling_wrapper() -> Any:
    """The code of the wrappers by which PyTorch keeps its own functions out of its compiler."""
    return torch._compile._disable_dynamo(outside_modes).__code__


def transforming() -> bool:
    """Whether a transform of torch.func is running, whose tensors may be wrappers, or a mode that sees every function."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    modes = torch._C._len_torch_function_stack()
    return any(type(torch._C._get_function_stack_at(i)).__name__ != "DeviceContext" for i in range(modes))


def watched() -> bool:
    """Whether transforms or modes are to see the calls of a program one by one."""
    # two default devices are not told from one and another mode by guards
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack() > 1
    return bool(modes) or transforming()


#: how function modes are entered and left
push_mode, pop_mode = torch.overrides._push_mode, torch.overrides._pop_mode


class functorch:
    """Where the transforms of torch.func call into their machinery, and how ``vmap`` reads its settings."""

    vmap_impl: Any = torch.func.vmap.__globals__["vmap_impl"]
    check_randomness: Any = vmap_impl.__globals__["_check_randomness_arg"]
    process_inputs: Any = vmap_impl.__globals__["_process_batched_inputs"]
    broadcast_dims: Any = pytree._broadcast_to_and_flatten
    grad_impl: Any = torch.func.vjp.__globals__["grad_impl"]
    grad_and_value_impl: Any = torch.func.vjp.__globals__["grad_and_value_impl"]


def without_wrappers(x: Any) -> Any:
    """What transforms that differentiate have wrapped; a batch stays one."""
    f = torch._C._functorch
    while isinstance(x, torch.Tensor) and f.is_gradtrackingtensor(x):
        x = f.get_unwrapped(x)
    return x


class RandomWatch(TorchDispatchMode):
    """Tells whether an operator drew random numbers while it was on."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drawn = self.drawn or torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        return func(*args, **(kwargs or {}))


def outside_modes() -> Any:
    """A context in which tensor calls reach the plain kernels, past every function and dispatch mode."""
    return torch._C._DisableTorchDispatch()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is short: Python's, a device's, or the CPU allocator's, which has no type."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def storage_key(tensor: torch.Tensor) -> int:
    """A number that two tensors share when they share a storage."""
    return tensor.untyped_storage()._cdata


#: inside it, composite operators that a meta function calls take sizes that are symbols
python_dispatcher = torch._C._EnablePythonDispatcher

#: before 2.12, composite operators in C++ (matmul among them) ask for plain sizes, which fixes symbolic ones
COMPOSITES_FIX_SIZES = VERSION < (2, 12)


def assemble_fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device, grad: bool) -> FakeTensor:
    """Wrap a meta tensor as ``FakeTensor(mode, meta, device)`` would, without its checks."""
    fake = make_subclass(FakeTensor, meta, grad, dispatch_device=True, device_for_backend_keys=device)
    torch._C._set_throw_on_mutable_data_ptr(fake)
    fake.__dict__.update(_state_of_fakes(mode, device))
    return fake  # type: ignore[return-value]


META = torch.device("meta")


class _Wrapper(torch.Tensor):
    """A class that may be made with sizes and a storage's size as told: any with this method may."""

    __torch_dispatch__ = FakeTensor.__torch_dispatch__  # type: ignore[assignment]


def told(shape: Any, strides: Any, offset: Any, dtype: torch.dtype, nbytes: Any) -> torch.Tensor:
    """A tensor on the meta device with a new storage of so many bytes; nothing is derived or checked."""
    return torch.Tensor._make_wrapper_subclass(
        _Wrapper, shape, strides=strides, storage_offset=offset, dtype=dtype, device=META, storage_size=nbytes
    )


def strided_view(fake: torch.Tensor, shape: Any, strides: Any, offset: Any) -> torch.Tensor:
    """A tensor over a fake's storage, by the kernel of the meta device, which takes symbolic sizes unchecked."""
    before = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        return torch.as_strided(fake, shape, strides, offset)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(before)


#: the device that a fake stands for: an attribute that 2.12 renamed
device_of_fake = operator.attrgetter(
    "_fake_device" if "_fake_device" in FakeTensor.__annotations__ else "fake_device"
)


def _state_of_fakes(mode: FakeTensorMode, device: torch.device) -> dict[str, Any]:
    """The instance attributes of a fresh fake on ``device``, read off one that PyTorch made."""
    known = mode.__dict__.setdefault("_braze_states", {})
    state = known.get(device)
    if state is None:
        meta = torch.empty_strided((), (), device="meta")
        state = known[device] = dict(FakeTensor(mode, meta, device).__dict__)
    return state


def has_composite_kernel(func: Any) -> bool:
    """Whether an operator overload is defined by other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def any_autocast() -> bool:
    """Whether autocast is on for any device."""
    return torch._C._is_any_autocast_enabled()


def disable_autocast() -> Any:
    """A context in which autocast casts nothing."""
    return torch._C._DisableAutocast()


def function_state() -> tuple[Any, ...]:
    """What, besides its arguments, decides the metadata an operator gives back."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._is_any_autocast_enabled() and autocast_state(),
    )


def autocast_state() -> tuple[Any, ...]:
    """(device type, enabled, dtype) for the devices that models use, and the cache flag."""
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    kinds = ("cpu", "cuda")
    return (*((kind, enabled(kind), dtype(kind)) for kind in kinds), torch.is_autocast_cache_enabled())


#: the C base of torch.Tensor, which owns most of its methods
TENSOR_BASE = torch._C.TensorBase


def disable_functions() -> Any:
    """A context in which no ``__torch_function__`` (mode or subclass) sees a call."""
    return torch._C.DisableTorchFunction()


def symbolic_environment(scalars: bool = False, shapes: bool = False) -> Any:
    """A ShapeEnv (imports SymPy). What only data tell may be symbols: numbers read out of tensors, and sizes of results."""
    if not os.environ.get("TORCH_TRACE"):
        # the handler takes itself away on its first record, but the text of that record imports Inductor
        logging.getLogger("torch.__trace").handlers.clear()
    _pooled_sizes_without_cases()
    env = _symbolic_shapes().ShapeEnv(allow_scalar_outputs=scalars, allow_dynamic_output_shape_ops=shapes)
    # for its logs it asks where in PyTorch a guard arose, and imports torch.export to tell (half a second)
    env._get_user_frame = lambda: None
    env._make_data_dependent_error = _undecided  # whose text PyTorch makes of that frame
    return env


def _undecided(expr: Any, *args: Any, **kwargs: Any) -> Exception:
    """The error at a decision by what only the data tell."""
    text = f"Could not guard on data-dependent expression {expr}"
    return _symbolic_shapes().GuardOnDataDependentSymNode(expr, text)  # type: ignore[no-any-return]


@functools.cache
def _pooled_sizes_without_cases() -> None:
    """Before 2.12, sizes of pooling are divided with an ``if`` on the remainder, which never changes the result."""
    if VERSION < (2, 12):
        importlib.import_module("torch._meta_registrations").__dict__["div_rtn"] = operator.floordiv


@functools.cache
def _symbolic_shapes() -> Any:
    """PyTorch's module of that name, imported past its two uses of Dynamo: a base class, and names of files for logs."""
    name = "torch.fx.experimental.symbolic_shapes"
    postponed = isinstance(sys.modules.get(DYNAMO), _LazyDynamo)
    if not postponed:
        module = importlib.import_module(name)
    else:
        with _stand_ins():
            module = importlib.import_module(name)
            # what the first ShapeEnv would import
            importlib.import_module("torch.fx.experimental.validator")
    if postponed and hasattr(module, "uninteresting_files"):
        # of files that a size guard's stack trace need not show
        module.uninteresting_files = set  # type: ignore[attr-defined]
    return module


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """For one import: the two names of Dynamo that the validator of size guards (off unless asked for) takes."""
    errors, utils = ModuleType(f"{DYNAMO}.exc"), ModuleType(f"{DYNAMO}.utils")
    errors.__dict__["TorchDynamoException"] = type("TorchDynamoException", (RuntimeError,), {})
    utils.__dict__["dynamo_timed"] = lambda *args, **kwargs: contextlib.nullcontext()
    sys.modules.update({module.__name__: module for module in (errors, utils)})
    try:
        yield
    finally:
        for module in (errors, utils):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


@functools.cache
def _source_class() -> Any:
    """A torch Source that is only a name; ``name`` is a property or a method by the version of PyTorch."""
    from torch._guards import Source

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


def is_unbacked_symbol(symbol: Any) -> bool:
    """Whether a symbol of a ShapeEnv stands for what only the data tell: by PyTorch's naming of symbols."""
    return str(symbol).startswith(("u", "zuf"))


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


def make_unbacked(env: Any, kind: type) -> Any:
    """An int or a float that only the data tell."""
    made = env.create_unbacked_symint() if kind is int else env.create_unbacked_symfloat()
    env.pending_fresh_unbacked_symbols.clear()
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

    def evaluating(expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(expr, *args, **kwargs)
        except RuntimeError as error:
            if type(error).__name__ != UNDECIDED:
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


#: what PyTorch raises where a decision needs a number that only the data tell
UNDECIDED = "GuardOnDataDependentSymNode"


def give_environment(mode: FakeTensorMode, env: Any) -> None:
    """Let a mode that was made for static sizes have symbolic ones from now on."""
    mode.shape_env = env
    mode.static_shapes = False


def make_bounded_symbol(
    env: Any, value: int, name: str, low: int | None, high: int | None, any_size: bool = False
) -> torch.SymInt | int:
    """A size of ``env`` between bounds; ``any_size``: 0 and 1 too."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    source, dynamic = _source_class()(name), _symbolic_shapes().DimDynamic.DYNAMIC
    if any_size:
        symbol = env.create_symbol(
            value, source, dynamic, None, positive=None, do_not_specialize_zero_one=True
        )
    else:
        symbol = env.create_symbol(value, source, dynamic, None)
        if not symbol.free_symbols:
            return int(symbol)
    least = max(low or 0, 0 if any_size else 2)
    env.var_to_range[symbol] = ValueRanges(least, int_oo if high is None else high)
    return env.create_symintnode(symbol, hint=value, source=source)


def watch_specialisation(env: Any, seen: Any) -> None:
    """Call ``seen(symbol, value, condition)`` whenever a condition fixes what a symbol is."""
    evaluate, replace = env.evaluate_expr, env._set_replacement
    asked: list[Any] = []

    def evaluating(expr: Any, *args: Any, **kwargs: Any) -> Any:
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


def ranges(env: Any) -> dict[Any, Any]:
    """symbol -> the values that it may take."""
    return env.var_to_range  # type: ignore[no-any-return]


def hints(env: Any) -> dict[Any, Any]:
    """symbol -> the number that it stood for while tracing, as SymPy objects."""
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val


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
