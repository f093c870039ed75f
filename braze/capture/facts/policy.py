"""Which C callables may run while tracing, by purity class. Anything else is a graph break.

BLIND looks at nothing but the values it is given; CALLS may look into objects and call back into Python; the rest is unknown.
"""

from __future__ import annotations

import _collections
import _functools
import _heapq
import _operator
import _struct
import abc
import binascii
import bisect
import builtins
import cmath
import collections
import decimal
import functools
import inspect
import itertools
import math
import os
import re
import struct
import sys
import types
import typing
import unicodedata
import zlib
from enum import Enum, auto
from typing import Any

import torch

from braze.capture.facts.values import BY_INDEX, DICT_WALKS, SEQUENCE_WALKS, SET_WALK, UNTIL, words

#: all of its classes are iterators
ITERTOOLS = frozenset(v for v in vars(itertools).values() if isinstance(v, type))


class Purity(Enum):
    """What a C callable does besides giving a result."""

    BLIND = auto()
    CALLS = auto()


B, C = Purity.BLIND, Purity.CALLS

_BUILTINS = words(
    """abs all any ascii bin chr divmod format hash hex isinstance issubclass len max min oct ord pow
    repr round sorted sum callable iter next"""
)

#: functions known by identity
FUNCTIONS: dict[Any, Purity] = {getattr(builtins, name): C for name in _BUILTINS}
FUNCTIONS |= {value: B for value in vars(math).values() if isinstance(value, types.BuiltinFunctionType)}
FUNCTIONS |= {value: C for value in vars(_operator).values() if isinstance(value, types.BuiltinFunctionType)}
FUNCTIONS |= {
    functools.reduce: C,
    itertools.tee: C,
    os.fspath: C,
    _functools.cmp_to_key: C,
    sys.intern: B,
    sys.getsizeof: B,
    _collections._count_elements: C,
    struct.calcsize: B,
    _struct.pack: C,
    _struct.unpack: C,
    bisect.bisect_left: C,
    bisect.bisect_right: C,
    bisect.insort_left: C,
    bisect.insort_right: C,
    str.maketrans: C,
    bytes.maketrans: B,
}
#: modules all of whose functions tell something of numbers, bytes or text that they are given
_OF_VALUES = (cmath, binascii, zlib, unicodedata)
FUNCTIONS |= {
    value: B
    for module in _OF_VALUES
    for value in vars(module).values()
    if isinstance(value, types.BuiltinFunctionType) and not value.__name__.endswith("obj")
}
FUNCTIONS |= {value: C for value in vars(_heapq).values() if isinstance(value, types.BuiltinFunctionType)}
#: functions of PyTorch that tell a setting which other guards see, or that never changes; those that a version lacks are left out
_GUARDED = words(
    """_log_api_usage_once _get_tracing_state _is_tracing _is_torch_function_mode_enabled
    _is_torch_function_all_disabled _is_torch_function_enabled _get_privateuse1_backend_name
    _cuda_getDeviceCount _len_torch_function_stack _len_torch_dispatch_stack _get_cpu_capability
    _get_default_device is_grad_enabled get_default_dtype is_autocast_enabled get_autocast_dtype
    is_autocast_cache_enabled _is_autocast_available _get_deterministic_algorithms
    _are_functorch_transforms_active _get_custom_class_python_wrapper is_inference_mode_enabled
    _accelerator_getAccelerator _is_any_autocast_enabled get_autocast_gpu_dtype get_autocast_cpu_dtype"""
)
#: others, whose answer is guarded where the program asks for it
_ASKED = words(
    """_get_cudnn_enabled _get_mkldnn_enabled get_num_threads _get_flash_sdp_enabled _get_mem_efficient_sdp_enabled
    _get_math_sdp_enabled _get_cudnn_sdp_enabled is_anomaly_enabled _get_cublas_allow_tf32 _get_float32_matmul_precision
    _get_warnAlways _get_deterministic_fill_uninitialized_memory _get_deterministic_algorithms_warn_only
    _get_cudnn_benchmark _get_cudnn_deterministic _get_cudnn_allow_tf32 _get_cudnn_depthwise_kernel
    _get_fp32_precision_getter _cuda_get_cudnn_benchmark_limit _get_overrideable_sdp_enabled _get_sdp_priority_order
    is_anomaly_check_nan_enabled _cuda_getDevice _cuda_isInBadFork _accelerator_getDeviceIndex"""
)
SETTINGS = frozenset(vars(home)[n] for home in (torch._C, torch) for n in _ASKED if n in vars(home))
#: what depends on its arguments alone
_TOLD = words("promote_types can_cast result_type maybe_current_level peek_interpreter_stack")
for _home in (torch._C, torch, torch._C._functorch):
    FUNCTIONS |= {
        vars(_home)[name]: B
        for name in (*_GUARDED, *_ASKED, *_TOLD)
        if name in vars(_home) and isinstance(vars(_home)[name], types.BuiltinFunctionType)
    }

#: classes in C that may be called to make an instance
CLASSES = frozenset(
    {
        list, dict, tuple, set, frozenset, int, float, str, bool, bytes, bytearray, complex, slice, range,
        enumerate, zip, reversed, map, filter, object, property, staticmethod, classmethod,
        collections.OrderedDict, collections.defaultdict, collections.deque, types.SimpleNamespace,
        types.MethodType, types.MappingProxyType, types.CellType, types.GenericAlias,
        torch.finfo, torch.iinfo, torch.Size, torch.device, memoryview, decimal.Decimal,
        *ITERTOOLS,
        functools.partial, _operator.attrgetter, _operator.itemgetter, _operator.methodcaller,
    }
)  # fmt: skip
#: functions written in Python that read only what is fixed (signatures, annotations): run, not interpreted
NATIVE_FUNCTIONS: frozenset[Any] = frozenset(
    {
        inspect.signature, inspect.getfullargspec, inspect.isfunction, inspect.ismethod, inspect.isclass,
        re.compile, re.match, re.search, re.fullmatch, re.sub, re.split, re.findall,
        inspect.unwrap, typing.get_type_hints, abc.ABCMeta.register,
        abc.ABCMeta.__instancecheck__, abc.ABCMeta.__subclasscheck__,
    }
)  # fmt: skip

#: types all of whose methods are allowed on instances of the interpreter's
METHODS_OF = frozenset(
    {
        list, dict, tuple, set, frozenset, str, int, float, bool, bytes, complex, slice, range, bytearray,
        collections.OrderedDict, collections.defaultdict, collections.deque, types.MappingProxyType,
        *SEQUENCE_WALKS, *DICT_WALKS, SET_WALK, type({}.keys()), type({}.values()), type({}.items()), zip, enumerate, map, filter, reversed,
        re.Pattern, re.Match, types.GeneratorType, type(None), type(NotImplemented), type(...),
        torch.Size, torch.device, torch.dtype, torch.finfo, torch.iinfo, types.FunctionType, types.MethodType, types.CodeType,
        types.BuiltinFunctionType, types.MethodDescriptorType, types.GenericAlias,
        decimal.Decimal, property, types.CellType, types.SimpleNamespace, _functools.partial, BaseException, Exception,
        *ITERTOOLS,
        type(iter(collections.OrderedDict())), type(iter(collections.deque())), BY_INDEX, UNTIL,
        torch.SymInt, torch.SymFloat, torch.SymBool, inspect.Signature, inspect.Parameter,
    }
)  # fmt: skip

#: modules whose functions touch the clock, chance or the world
IMPURE_MODULES = {
    "time": ("BZ1017", "reads the clock"),
    "random": ("BZ1017", "draws a random number outside torch"),
    "_random": ("BZ1017", "draws a random number outside torch"),
    "_thread": ("BZ1007", "works with threads"),
    "posix": ("BZ1007", "talks to the operating system"),
    "io": ("BZ1007", "does input or output"),
    "_io": ("BZ1007", "does input or output"),
    "_socket": ("BZ1007", "does input or output"),
}

#: where PyTorch's built-in functions on tensors live
_HOMES = words("_VariableFunctions _nn _fft _linalg _special _sparse _nested")
OPERATIONS = frozenset(
    value
    for home in (getattr(torch._C, name) for name in _HOMES)
    for value in (getattr(home, name, None) for name in dir(home) if not hasattr(object, name))
    if isinstance(value, types.BuiltinFunctionType)
)


# -- whether C code may come back to Python: through its arguments, or through what the object of a method holds


#: code of our own that C code starts, not to be interpreted
OURS: set[types.CodeType] = {torch.Tensor.__hash__.__code__}
#: types whose instances run no Python code, and hold nothing that does
SIMPLE = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        type(None),
        range,
        torch.dtype,
        torch.device,
        torch.Size,
        type,
        types.ModuleType,
    }
)


def may_call_back(args: Any, kwargs: dict[str, Any] | None, depth: int = 4) -> bool:
    """Whether C code given these could run Python code or compute with tensors; so may what lies deeper than is looked."""
    for value in args:
        kind = type(value)
        if kind in SIMPLE:
            continue
        if kind is slice:
            value, kind = (value.start, value.stop, value.step), tuple
        if depth and kind in (list, tuple):
            if may_call_back(value, None, depth - 1):
                return True
            continue
        return True
    return kwargs is not None and may_call_back(kwargs.values(), None, depth)


def is_found_by_c(container: Any, key: Any) -> bool:
    """Whether a key is looked up in a dict by C alone, which compares it with no object of the program's. All that the dict holds need not be looked into for it."""
    return type(container) is dict and type(key) in SIMPLE and SIMPLE.issuperset(map(type, container))


#: which hand on what a container holds, or put it elsewhere, and do not look into it
HANDING: frozenset[Any] = frozenset(
    {
        next, iter, list, tuple, dict, collections.deque, reversed, enumerate, zip, map, filter, isinstance, issubclass,
        callable, len, slice, functools.partial, dict.get, _operator.getitem, _operator.setitem, _operator.delitem,
        *ITERTOOLS,
    }
)  # fmt: skip
#: which call what they are given
_ASKED_TO_CALL: frozenset[Any] = frozenset(
    {
        map, filter, sorted, min, max, list.sort, functools.reduce, _operator.call, *ITERTOOLS,
        bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right,
    }
)  # fmt: skip


def calls_what_it_is_given(function: Any) -> bool:
    """Whether a function of C calls its arguments, as ``map``, and the method ``sort`` of a list its key."""
    if type(function) is types.BuiltinFunctionType and function.__name__ == "sort":
        return True
    return function in _ASKED_TO_CALL


#: methods of containers that compare or write what is inside
LOOKING = frozenset(
    words(
        "count index remove sort __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ __str__ __hash__"
    )
)
#: whose ``__next__`` calls functions and iterators that they hold
ASKING = frozenset(
    {
        map,
        filter,
        zip,
        enumerate,
        BY_INDEX,
        UNTIL,
        *ITERTOOLS,
    }
)


def looks_inside(owner: Any, name: str) -> bool:
    """Whether a method in C may run Python code of what its object holds, whatever its arguments are."""
    if type(owner) in ASKING or (type(owner) is slice and may_call_back((owner,), None)):
        return True
    if name not in LOOKING:
        return False
    base = next(
        (b for b in (dict, list, tuple, set, frozenset, collections.deque) if isinstance(owner, b)), None
    )
    if base is None:
        return False
    values = (*dict.keys(owner), *dict.values(owner)) if base is dict else base.__iter__(owner)
    return any(type(v) not in SIMPLE for v in values)
