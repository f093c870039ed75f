"""Metadata of results without FakeTensorMode, for the operators that models use most.

The first operator that goes through FakeTensorMode imports SymPy and PyTorch's Python meta functions, most of a
second. Some operators have meta kernels in C++ (``operators.py``): they run on plain meta tensors over the fakes' storages. Those of
``RULES`` have a small function here. Everything else, and every call that fails here, goes the usual way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.operators.operators import functional_form, name_of, operator_facts
from braze.graph.private import torch_compat, torch_symbols
from braze.graph.rules.elementwise import elementwise, has_rule
from braze.graph.rules.layout_rules import LAYOUTS_OF_GPU
from braze.graph.rules.memo import MISS, fakes_in
from braze.graph.rules.rules import CPU_ONLY, FACTORIES, GPU_ONLY, RULES
from braze.graph.rules.view_rules import VIEWS
from braze.graph.sizes.extents import Extent, Geometry, Undecided, extent
from braze.graph.sizes.known_sizes import Ground
from braze.support.nested import leaves

aten = torch.ops.aten


CPU = torch.device("cpu")


@functools.cache
def is_direct(func: Any) -> bool:
    """Whether an operator's own meta kernel is asked."""
    known = operator_facts(func)
    return known is not None and known.meta


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether PyTorch defines an operator by others alone (and it has no rule here, but perhaps for a GPU)."""
    if func.namespace != "aten" or is_direct(func) or (func in RULES and func not in GPU_ONLY):
        return False
    return torch_compat.has_composite_kernel(func)


def has_rule_on_gpu(func: Any, args: Any) -> bool:
    """Whether an operator that PyTorch defines by others has a rule here for where these fakes lie."""
    return func in GPU_ONLY and bool(args) and torch_compat.device_of_fake(args[0]).type != "cpu"


def result_of(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The fakes that ``func`` gives on these fakes, or MISS."""
    if func in FACTORIES:
        return _factory(mode, func, args, kwargs)
    if func._schema.is_mutable:
        return _written(mode, func, args, kwargs)
    rule = RULES.get(func)
    if rule is None and not (has_rule(func) or is_direct(func) or func is aten._to_copy.default):
        return MISS
    device = _common_device(func, args, kwargs)
    if device is None:
        return MISS
    rule = _rule_on(device, func, rule)
    if "device" in kwargs:
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    return _applied(mode, rule or func, args, kwargs, device)


def _rule_on(device: torch.device, func: Any, rule: Any) -> Any:
    """The rule of an operator on a device: a GPU has its own for some, and what is elementwise one that is made for it."""
    if device.type != "cpu":
        rule = LAYOUTS_OF_GPU.get(func, rule)
    return _elementwise(func, device) if rule is None and has_rule(func) else rule


def symbolic_result_of(mode: Any, func: Any, args: Any, kwargs: dict[str, Any], ground: Ground) -> Any:
    """As ``result_of`` for symbolic sizes, by rules that hold for all sizes, or MISS.

    Where a rule needs to know what not all sizes share, it is asked once, and a guard keeps the answer. Where symbols say no
    more than at which place of their memory operands begin, nothing has to be asked: what is new does not hang on that.
    """
    if not _gives_views(func) and _is_known_but_for_places(args, kwargs):
        found = result_of(mode, func, args, kwargs)
        if found is not MISS:
            return found
    target = None
    if func._schema.is_mutable:
        functional, target = _functional_form(func), args[0] if args else None
        if functional is None or functional in (_FILL, _COPY) or type(target) is not FakeTensor:
            return MISS
        func = functional
    rule = VIEWS.get(func) or RULES.get(func) or FACTORIES.get(func)
    if rule is None and not has_rule(func):
        return MISS
    device = _common_device(func, args, kwargs)
    if device is None or (func in FACTORIES and not _plain_factory(kwargs)):
        return MISS
    rule = _rule_on(device, func, rule)
    call = functools.partial(_by_rule, mode, rule, args, kwargs, target, device, ground)
    try:
        return call()
    except Undecided:
        pass
    except _FAILURES:
        return MISS  # the usual way raises what the user should see
    ground.asking = True
    try:
        return call()
    except (Undecided, *_FAILURES):
        return MISS
    finally:
        ground.asking = False


@functools.cache
def _gives_views(func: Any) -> bool:
    """Whether results may see the memory of arguments that are not written."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _is_known_but_for_places(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether no number of a call is a symbol, but for where in their memory its tensors begin."""
    given = leaves((*args, *kwargs.values()))
    if any(isinstance(value, torch_symbols.SYMBOLIC) for value in given):
        return False
    extents = (each for value in given if type(value) is FakeTensor for each in (value.shape, value.stride()))
    return all(type(n) is int for each in extents for n in each)


_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)


def _by_rule(
    mode: Any, rule: Any, args: Any, kwargs: dict[str, Any], target: Any, device: Any, ground: Ground
) -> Any:
    """The result of a rule on symbolic sizes; for an operator that writes, its target."""
    ground.refresh()
    options = {
        k: _geometry(v, ground) for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")
    }
    result = rule(*_geometry(tuple(args), ground), **options)
    if result is NotImplemented:
        return MISS
    if target is not None:
        same = result.shape == _geometry(target, ground).shape
        return target if same and torch.can_cast(result.dtype, target.dtype) else MISS
    with torch_compat.outside_modes():
        return _symbolic_fakes(mode, result, device)


def _common_device(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The one device of a call, as far as rules know it."""
    fakes = fakes_in(args, kwargs)
    if not fakes:
        return CPU if func in FACTORIES else None
    device = torch_compat.device_of_fake(fakes[0])
    if any(torch_compat.device_of_fake(f) != device for f in fakes):
        return None
    if func in (GPU_ONLY if device.type == "cpu" else CPU_ONLY):
        return None
    wanted = kwargs.get("device")
    if wanted is not None and (device.type != "cpu" or torch.device(wanted) != device):
        return None
    return device


def _plain_factory(options: dict[str, Any]) -> bool:
    """Whether a new tensor is a dense one in the CPU's ordinary memory."""
    wanted = options.get("device") or torch.get_default_device()
    return (
        torch.device(wanted) == CPU
        and options.get("layout") in (None, torch.strided)
        and not options.get("pin_memory")
    )


def _geometry(value: Any, ground: Ground) -> Any:
    """A call's argument as rules with symbolic sizes take it."""
    if isinstance(value, FakeTensor):
        made = Geometry(
            value.dtype,
            [extent(n, ground) for n in value.shape],
            [extent(n, ground) for n in value.stride()],
            value,
        )
        made.offset = extent(value.storage_offset(), ground)
        return made
    if type(value) is torch.SymInt:
        return extent(value, ground)
    if type(value) in (tuple, list, torch.Size):
        return [_geometry(v, ground) for v in value]
    return value


def _symbolic_fakes(mode: Any, value: Any, device: torch.device) -> Any:
    """Fakes for what a rule gave, and None for what nobody asked for."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return torch_compat.assemble_fake(mode, value, device, False)
    if type(value) is Geometry:
        shape, strides, offset = map(_sizes, (value.shape, value.strides, (value.offset,)))
        if value.source is not None:
            meta = torch_compat.strided_view(value.source, shape, strides, offset[0])
        else:
            nbytes = value.numel() * value.element_size()
            meta = torch_compat.told(
                shape, strides, 0, value.dtype, nbytes.size if type(nbytes) is Extent else nbytes
            )
        return torch_compat.assemble_fake(mode, meta, device, False)
    made = [_symbolic_fakes(mode, v, device) for v in value]
    return made if isinstance(value, list) else tuple(made)


def _sizes(values: Any) -> tuple[Any, ...]:
    return tuple([n.size if type(n) is Extent else n for n in values])


def _written(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The target of an elementwise in-place operator, where the operator is right for it."""
    functional = _functional_form(func)
    target = args[0] if args else None
    fakes = fakes_in(args, {})
    if functional is None or type(target) is not FakeTensor or any(f.constant is not None for f in fakes):
        return MISS
    if any(s == 0 and n > 1 for n, s in zip(target.shape, target.stride(), strict=True)):
        return MISS
    if functional is _FILL:
        return target if len(fakes) == 1 else MISS
    if functional is _COPY:
        fits = len(fakes) == 2 and target.dim() >= fakes[1].dim()
        fits = fits and all(
            n in (1, m) for n, m in zip(reversed(fakes[1].shape), reversed(target.shape), strict=False)
        )
        return target if fits else MISS
    result = result_of(mode, functional, args, kwargs)
    if result is MISS or result.shape != target.shape or not torch.can_cast(result.dtype, target.dtype):
        return MISS
    return target


_FILL, _COPY = "fill", "copy"


@functools.cache
def _functional_form(func: Any) -> Any:
    if func in (aten.zero_.default, aten.fill_.Scalar):
        return _FILL
    if func is aten.copy_.default:
        return _COPY
    if func.namespace != "aten" or not name_of(func).endswith("_"):
        return None
    found = functional_form(func)
    return found if found is not None and has_rule(found) else None


def _factory(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A new tensor on the CPU."""
    if not _plain_factory(kwargs):
        return MISS
    options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
    return _applied(mode, FACTORIES[func], args, options, CPU)


#: by identity: of each fake its plain meta tensor, and of that the fake
Pairs = dict[int, Any]


def _applied(mode: Any, function: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """What a function gives on plain meta tensors over the fakes' storages, as fakes, or MISS.

    By kernels in C++, as in eager: PyTorch's in Python, which calls on symbolic sizes go by, give dims of one element other strides before 2.12.
    """
    pairs: Pairs = {}
    try:
        with torch_compat.outside_modes(), torch_compat.BelowAutograd(), torch_compat.cpp_dispatcher():
            plain = _on_meta(tuple(args), pairs)
            result = function(*plain, **{k: _on_meta(v, pairs) for k, v in kwargs.items()})
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return MISS  # the usual way raises what the user should see
    return MISS if result is NotImplemented else _as_fakes(mode, result, device, pairs)


def _on_meta(value: Any, pairs: Pairs) -> Any:
    """A plain meta tensor over the same storage for each fake."""
    if isinstance(value, FakeTensor):
        made = pairs.get(id(value))
        if made is None:
            made = pairs[id(value)] = _plain(value)
            pairs[id(made)] = value
        return made
    if type(value) in (tuple, list):
        return type(value)(_on_meta(v, pairs) for v in value)
    return value


def _plain(fake: FakeTensor) -> torch.Tensor:
    """The meta tensor of a fake. One that begins at a place that is a symbol has memory of its own."""
    offset = fake.storage_offset()
    if type(offset) is not int:
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
    made = torch_compat.empty_like_inference(fake)
    return made.set_(fake.untyped_storage(), offset, fake.shape, fake.stride())  # type: ignore[call-overload,no-any-return]


def _as_fakes(mode: Any, value: Any, device: torch.device, pairs: Pairs) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) in pairs:
            return pairs[id(value)]
        with torch_compat.outside_modes():
            return torch_compat.assemble_fake(mode, value, device, False)
    if isinstance(value, (tuple, list)):
        made = [_as_fakes(mode, v, device, pairs) for v in value]
        return made if isinstance(value, list) else tuple(made)
    return value


def _elementwise(func: Any, device: torch.device) -> Any:
    """The rule of an operator that is one loop over elements."""
    casts_first = device.type == "cpu"
    return lambda *args, **kwargs: elementwise(func, args, kwargs, casts_first)


def is_lazy(value: Any) -> bool:
    """Whether a tensor is conjugated or negated when it is read, as its views are."""
    return type(value) is FakeTensor and (value.is_conj() or value.is_neg())


def on_meta(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a function gives whose kernels for the meta device are in C++: run on plain meta tensors, or MISS.

    These do not know of what is conjugated or negated when it is read.
    """
    if any(map(is_lazy, args[:1])):
        return MISS
    device = _common_device(func, args, kwargs)
    return MISS if device is None else _applied(mode, func, args, kwargs, device)
