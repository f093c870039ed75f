"""What eager would say to a call that cannot work: the call is made on real tensors of the same metadata.

Meta functions do not check everything that kernels check, and word their errors in their own way. A program that
catches such an error is to see the one that eager raises.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from braze.graph.operators import OPERATORS
from braze.graph.torch_compat import disable_functions, outside_modes
from braze.graph.torch_symbols import is_unbacked
from braze.runtime.purity import added_kernels
from braze.support.layouts import span
from braze.support.nested import leaves

#: reductions without an identity, whose meta functions let tensors without elements pass
WITHOUT_IDENTITY = frozenset(["max", "min", "median", "nanmedian", "mode", "cummax", "cummin"])
#: products, and a loss that is one loop over one type, whose meta functions do not compare dtypes
OF_ONE_TYPE = frozenset(
    [
        "linear", "mm", "bmm", "matmul", "addmm", "baddbmm", "addmv", "mv", "dot", "__matmul__",
        "__rmatmul__", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "bilinear", "binary_cross_entropy",
    ]
)  # fmt: skip
#: divisions that raise where integers are divided by zero
DIVISIONS = frozenset(
    [
        "floordiv", "ifloordiv", "mod", "imod", "__floordiv__", "__mod__", "__rfloordiv__", "__rmod__",
        "divide", "divide_",
    ]
    + [each for name, known in OPERATORS.items() if known.divides for each in (name, f"{name}_")]
)  # fmt: skip
#: differences, which refuse Python's truth values as operands; as factors (``alpha``) sums do, too
DIFFERENCES = frozenset(
    ["sub", "sub_", "subtract", "subtract_", "_foreach_sub", "_foreach_sub_", "rsub", "isub"]
    + ["__sub__", "__rsub__", "__isub__"]
)
#: kernels of reductions refuse more dimensions
MOST_DIMS = 64
#: nothing larger is made only to hear an error
LIMIT = 1 << 26


_INF, _LOWEST = math.inf, -math.inf
_NUMBERS = frozenset([int, float])
_TRUTHS = (bool, torch.SymBool)


def is_doubtful(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether meta functions may let a call pass that eager refuses."""
    if _has_number_beyond(args, kwargs, name in DIVISIONS):
        return True
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if first is not None and first.dim() > MOST_DIMS:
        return True
    if name.startswith("as_strided"):  # symbolic sizes are taken for sizes
        sizes = args[1] if len(args) > 1 else kwargs.get("size", ())
        return any(size < 0 for size in sizes)
    if isinstance(kwargs.get("alpha"), _TRUTHS) or (
        name in DIFFERENCES and any(isinstance(v, _TRUTHS) for v in (*args, *kwargs.values()))
    ):
        return True
    if name in WITHOUT_IDENTITY:
        return first is not None and _is_empty(first)
    if name not in OF_ONE_TYPE or torch.is_autocast_enabled("cpu"):
        return False
    return several_types((*args, *kwargs.values()))


def several_types(given: Iterable[Any]) -> bool:
    return len({v.dtype for v in given if isinstance(v, torch.Tensor)}) > 1


class Hearing(TorchDispatchMode):
    """Inside, what eager's kernels say to several types of tensors is raised, where meta functions let them pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if several_types((*args, *named.values())):
            refused = eager_error(func, args, named)
            if refused is not None:
                raise refused
        return func(*args, **named)


def _has_number_beyond(args: tuple[Any, ...], kwargs: dict[str, Any], divides: bool) -> bool:
    """Whether a number has no place in the type of a tensor, or in the type asked for: some kernels refuse it, others wrap it.

    Wrapped, it may be the zero that integers are divided by; of a division, zeros count too.
    """
    given = (*args, *kwargs.values()) if kwargs else args
    least, most = _INF, _LOWEST  # of the finite numbers for which some type has no place
    for value in given:
        if type(value) in _NUMBERS and not 1e-30 <= value <= 6 and _LOWEST < value < _INF:
            if divides and value == 0:
                return True
            if value < least:
                least = value
            if value > most:
                most = value
    if least > most:
        return False
    for value in given:
        if isinstance(value, torch.Tensor):
            low, high = _limits(value.dtype)
        elif type(value) is torch.dtype:
            low, high = _limits(value)
        else:
            continue
        if least < low or most > high:
            return True
    return False


@functools.cache  # by the types of elements, of which there are few
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    if dtype is torch.bool or dtype.is_complex:
        return -math.inf, math.inf
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def may_refuse_out(
    call: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether ``out=`` is of a type to which a kernel may not cast its result; ``call`` makes calls on fakes.

    Metadata are computed for any type. Kernels of few operators refuse the cast, and only trying tells of which; a call that
    zeros alone make fail counts too.
    """
    if not args:
        return False
    plain = {k: v for k, v in kwargs.items() if k != "out"}
    try:
        natural = call(func, args, plain)
    except Exception:
        return False  # an operator that has no other form, or a call that fails anyway
    if _dtypes(natural) == _dtypes(kwargs["out"]):
        return False
    return eager_error(func, args, kwargs) is not None


def _dtypes(result: Any) -> list[Any]:
    """The types of a tensor, or of those of a tuple."""
    return [t.dtype for t in ((result,) if isinstance(result, torch.Tensor) else result)]


def _is_empty(tensor: torch.Tensor) -> bool:
    """Whether a size is known to be 0; nothing is asked of symbols."""
    return any(type(n) is int and n == 0 for n in tensor.shape)


def eager_error(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """The exception that a call raises on real tensors; None where it works, or cannot be tried here."""
    found = tried(func, args, kwargs)
    return found if isinstance(found, Exception) else None


def tried(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | bool:
    """The exception that a call raises on real tensors of zeros, or True where it works; False where it cannot be tried here."""
    if getattr(func, "namespace", "aten") not in ("aten", "prims") or added_kernels():
        return False  # an operator or a kernel of the user's may have effects
    with disable_functions(), outside_modes():
        try:
            real = [real_like(v) for v in args]
            named = {k: real_like(v) for k, v in kwargs.items()}
        except _CannotTry:
            return False
        error = heard(func, real, named)
    return True if error is None else error


def heard(func: Any, args: Iterable[Any], kwargs: dict[str, Any], history: bool = False) -> Exception | None:
    """The exception that a call of real tensors raises, if any."""
    grad = torch.set_grad_enabled(history)
    with grad, disable_functions(), outside_modes(), torch.random.fork_rng(devices=[]):
        try:
            func(*args, **kwargs)
        except Exception as error:
            return error.with_traceback(None)
    return None


def numbers_told(error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.SymInt]:
    """The sizes and numbers that may change from call to call and that an error's text may tell, as sums or products too."""
    if not any(map(str.isdigit, str(error))):
        return []
    given = leaves((*args, *kwargs.values()))
    extents = [
        n for x in given if isinstance(x, torch.Tensor) for n in (*x.shape, *x.stride(), x.storage_offset())
    ]
    return [n for n in (*given, *extents) if isinstance(n, torch.SymInt) and not is_unbacked(n)]


class _CannotTry(Exception):
    """A tensor that is not made for real: of another device, or too large."""


def extents(numbers: Any) -> tuple[int, ...]:
    """Sizes or strides as the numbers that they have in this trace."""
    found = tuple(n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers)
    if not all(type(n) is int for n in found):
        raise _CannotTry
    return found


def real_like(value: Any) -> Any:
    """A real tensor of zeros with a fake's metadata; lists and tuples likewise."""
    if isinstance(value, FakeTensor):
        sizes, strides = extents(value.shape), extents(value.stride())
        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise _CannotTry
        if span(sizes, strides) * value.itemsize > LIMIT:
            raise _CannotTry
        return torch.empty_strided(sizes, strides, dtype=value.dtype).zero_()
    if isinstance(value, torch.SymInt):
        return extents((value,))[0]
    if isinstance(value, torch.SymBool):  # which of the two it is makes no difference to what refuses them
        return True
    if isinstance(value, torch.Tensor | torch.SymFloat):
        raise _CannotTry
    if type(value) in (list, tuple):
        return type(value)([real_like(v) for v in value])
    return value
