"""Fake tensors: tensors with metadata and no data, on which graphs are recorded and traced.

``new_mode()`` makes a :class:`FakeMode`; ``with mode:`` sends tensor calls through it. Two memos keep it fast:
``mode.call(func, args, kwargs)`` remembers what a torch function does to metadata, and the dispatch mode itself
remembers the same for ATen operators. Both remember how results share storage with arguments too, so views stay views.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.fakes import floats_of_c, kernels, torch_composites
from braze.graph.fakes.as_in_eager import as_in_eager
from braze.graph.fakes.fake_dispatch import OPERATORS, Dispatch, holds_unbacked
from braze.graph.fakes.missing_kernels import are_asked
from braze.graph.nodes.specs import SymbolSpec, TensorSpec
from braze.graph.private import torch_compat, torch_import, torch_symbols
from braze.graph.rules import past_dispatcher
from braze.graph.rules.memo import ALONE, MISS, Memo, OfTrace
from braze.graph.sizes.decided_floats import DecidedFloats
from braze.graph.sizes.known_sizes import Ground, WantsPlainSizes
from braze.graph.sizes.shape_guards import python_text, relations
from braze.support.errors import Unsupported
from braze.support.nested import every

torch_import.postpone_dynamo()

#: types whose metadata says all; other subclasses carry behaviour that a fake would lose
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, torch.nn.parameter.UninitializedBuffer})

#: calls of torch functions, and those of which it was asked besides whether eager refuses them
_functions, ACCEPTED = Memo(), Memo()
#: what C++ says where it takes no symbols
NO_SYMBOLS = ("Cannot call ", "expected to contain only concrete integers")


class FakeMode:
    """One trace's fakes: a FakeTensorMode, and a ShapeEnv where sizes may be symbolic."""

    def __init__(self, dynamic: bool = False, scalars: bool = False, shapes: bool = False) -> None:
        torch_compat.settle_device_guard()
        #: which of what only data tell may be symbols: numbers read out of tensors, sizes of results
        self.scalars, self.shapes = scalars, shapes
        env = torch_symbols.symbolic_environment(scalars, shapes) if dynamic else None
        self.dispatch = Dispatch(shape_env=env, allow_non_fake_inputs=False)
        self.dispatch.owner = self
        self.dispatch.symbolic_memos = {}
        self.dispatch.cache_enabled = False  # PyTorch's memo: ours is asked before
        self.env = env
        #: name of each symbolic float of the program -> its hint
        self.floats: dict[str, float] = {}
        #: name in expressions -> its hint
        self.symbols: dict[str, SymbolSpec] = {}
        #: what is decided by these
        self.decided = DecidedFloats(self.floats, self.symbols)
        #: what is known of sizes, where they may be symbols
        self.ground: Ground
        if env is not None:
            self.ground = Ground(env)
            self.ground.decided = self.decided
        #: the symbols of ints, which guards bind as they are; those of sizes are bound where specs name them
        self.ints: set[str] = set()
        #: sizes whose rows the program says are independent
        self.batches: list[torch.SymInt] = []
        #: those that nodes compute, with the floats that they are computed from
        self._derived: dict[str, frozenset[str]] = {}
        #: those read out of tensors, or computed from such
        self.read_floats: set[str] = set()
        #: whether views are to be views for autograd too, where nothing requires grad yet
        self.exact_views = False
        self._storages: dict[int, tuple[FakeTensor, torch.Tensor]] = {}

    def release(self) -> None:
        """Let go of the real tensors: fakes, which live as long as what is compiled from them, keep this mode."""
        self._storages.clear()
        self.dispatch.symbolic_memos.clear()

    def __enter__(self) -> FakeMode:
        self.dispatch.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.dispatch.__exit__(*exc)

    # -- making fakes ------------------------------------------------------------------------

    def fake(
        self,
        tensor: torch.Tensor,
        *,
        symbolic_dims: set[int] | None = None,
        source: str = "",
        given: dict[int, Any] | None = None,
    ) -> torch.Tensor:
        """A fake with the tensor's metadata. Tensors that share a storage get fakes that share one.

        ``given``: symbols that sizes are to be, by dimension; ``symbolic_dims`` holds these dimensions too.
        """
        with torch_compat.disable_functions(), torch_compat.outside_modes():
            if isinstance(tensor, FakeTensor):
                if tensor.fake_mode is self.dispatch:
                    return tensor
                raise Unsupported(
                    "BZ2019", "a fake tensor of another trace", why="it has no data to compute with"
                )
            require_plain(tensor)
            # may refuse: before sizes get symbols
            has_history = tensor.requires_grad and not _is_leaf(tensor)
            sizes, strides = tuple(tensor.shape), tensor.stride()
            offset: Any = tensor.storage_offset()
            if symbolic_dims and self.env is not None:
                sizes, strides = self._symbolic(sizes, strides, symbolic_dims, source, given or {})
                meta = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
            else:
                meta = self._meta(tensor, sizes, strides, offset)
            fake = torch_compat.assemble_fake(self.dispatch, meta, tensor.device, tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter):
                fake._is_param = True
            elif isinstance(tensor, torch.nn.Buffer):
                fake.__dict__.update(_is_buffer=True, persistent=getattr(tensor, "persistent", True))
            if not symbolic_dims:
                self._storages.setdefault(torch_compat.storage_key(tensor), (fake, tensor))
        if has_history:
            result = self._non_leaf(fake)
            result.__dict__["_history"] = result.grad_fn
            return result
        return fake

    def become_dynamic(self) -> Any:
        """The ShapeEnv, made now where the mode was static so far."""
        if self.env is None:
            self.env = torch_symbols.symbolic_environment(self.scalars, self.shapes)
            torch_symbols.give_environment(self.dispatch, self.env)
            self.ground = Ground(self.env)
            self.ground.decided = self.decided
        return self.env

    def unknown(self, kind: type, bounds: tuple[int, int] | None = None) -> Any:
        """An int or float that only a call of the graph tells, and between which bounds an int will lie."""
        env = self.become_dynamic()
        self.scalars = True
        made = torch_symbols.make_unbacked(env, kind, bounds)
        if kind is float:
            self.read_floats.add(self.name_of(made))
        return made

    def let_read(self) -> None:
        """Passes over the graph may read numbers out of tensors, whatever the program was allowed."""
        self.dispatch.allow_scalar_outputs = True

    def bounded_symbol(
        self, value: int, source: str, low: int | None, high: int | None, *, unbacked: bool = False
    ) -> torch.SymInt | int:
        """A size of which bounds are promised; ``unbacked``: as if only the data told, 0 and 1 are no special cases."""
        env = self.become_dynamic()
        if unbacked:
            made: Any = torch_symbols.make_unbacked_size(env, low, high)
        else:
            made = torch_symbols.make_bounded_symbol(env, value, source, low, high)
        if isinstance(made, torch.SymInt):
            name = str(made.node.expr)
            self.symbols.setdefault(name, SymbolSpec(name, value))
        return made

    def symbol(self, value: int, source: str = "") -> torch.SymInt | int:
        """A symbolic int with this hint; a plain int where the mode is static, or below 2."""
        made = self._extent(value, source)
        if isinstance(made, torch.SymInt):
            self.ints.add(str(made.node.expr))
        return made

    def float_symbol(self, value: float, source: str) -> torch.SymFloat | float:
        """A symbolic float with this hint; the float itself where the mode is static, or it is not finite or zero (of either sign)."""
        if self.env is None or not math.isfinite(value) or value == 0:
            return value
        made = torch_symbols.make_float_symbol(self.env, value, source or f"float{len(self.floats)}")
        self.floats[str(made.node.expr)] = value
        return made

    def depends_on_floats(self, value: torch.SymInt | torch.SymFloat) -> bool:
        """Whether a number is computed from a float of the program's."""
        return any(str(s) in self.floats for s in value.node.expr.free_symbols)

    @staticmethod
    def name_of(value: torch.SymInt | torch.SymFloat) -> str:
        """The symbol that a number was made as, whatever it was found to be since."""
        return torch_symbols.made_as(value)

    def derived_float(self, value: float, sources: Iterable[torch.SymFloat | torch.SymInt]) -> torch.SymFloat:
        """A symbol for what a node computes from other symbolic floats, or from sizes and integers."""
        made = torch_symbols.make_float_symbol(self.env, value, f"float{len(self.floats)}")
        name = self.name_of(made)
        self.floats[name] = value
        names = {str(symbol) for s in sources for symbol in s.node._expr.free_symbols}
        self._derived[name] = frozenset().union(*(self._derived.get(n, frozenset({n})) for n in names))
        return made

    def settled_floats(self) -> set[str]:
        """The symbolic floats on whose values something was decided: they must be what they were."""
        if not self.floats or self.env is None:
            return set()
        seen: set[str] = set()
        for expr in (*(g.expr for g in self.env.guards), *self.env.replacements):
            seen.update(str(s) for s in expr.free_symbols)
        settled = seen & self.floats.keys()
        return settled.union(*(self._derived.get(name, ()) for name in settled))

    def settled_numbers(self) -> list[tuple[str, tuple[str, ...]]]:
        """(Python expression, names in it) for each size and integer of which a float was made that something was decided on."""
        settled = self.settled_floats() & self.symbols.keys()
        if self.env is None or not settled:
            return []
        found: set[tuple[str, tuple[str, ...]]] = set()
        for symbol in self.env.var_to_range:  # one that was found to be another since is told by that alone
            if str(symbol) in settled:
                expr = self.env.replace(symbol)
                names = tuple(sorted(str(s) for s in expr.free_symbols))
                if names:
                    found.add((f"({python_text(expr)} == {self.symbols[str(symbol)].hint})", names))
        return sorted(found)

    def settled_float(self, value: torch.SymFloat) -> torch.SymFloat | float:
        """The float that it must be, where something was decided on it."""
        name = self.name_of(value)
        return self.floats[name] if name in self.settled_floats() else value

    def _extent(self, value: int, source: str) -> torch.SymInt | int:
        """A symbol for an int or a size."""
        if self.env is None:
            return value
        made = torch_symbols.make_symbol(self.env, value, source or f"int{len(self.symbols)}")
        if isinstance(made, torch.SymInt):
            name = str(made.node.expr)
            self.symbols.setdefault(name, SymbolSpec(name, value))
        return made

    def shape_relations(self) -> list[tuple[str, tuple[str, ...]]]:
        """(Python expression, names in it) for each thing the trace assumed of the symbols."""
        if self.env is None:
            return []
        return relations(self.env, self.ints, self.floats, bound=self.symbols) + self.settled_numbers()

    # -- running -----------------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func(*args, **kwargs)`` for a torch function on fakes, by memo where its metadata is known.

        The result is what the call would give: fresh fakes, views of the arguments' fakes, or an
        argument itself. A call that writes to a tensor is always run. Enter the mode first.
        """
        key, found = self.recall(func, args, kwargs, _functions)
        return found if found is not MISS else self.compute(key, func, args, kwargs, _functions)

    def recall(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], memo: Memo) -> tuple[Any, Any]:
        """(key, result) of a call as the memo knows it, or MISS; the key is None where nothing is to be remembered."""
        if kernels.above():
            return None, MISS
        # else each reading of a fake looks for a ``__torch_function__``; a default device is a mode, and is asked
        with torch_compat.disable_overrides():
            key = memo.key(self.dispatch, func, args, kwargs, torch_compat.function_state())
            if key is None or (torch.is_grad_enabled() and _any_requires_grad(args, kwargs)):
                return None, MISS
            recipe = memo.recipe(self.dispatch, key)
            if recipe is None:
                return key, MISS
            found = memo.made(self.dispatch, recipe, args, kwargs)
            # whether a view of what requires grad does so too is autograd's to say
            if recipe[0] in ALONE or not (self.exact_views or _any_requires_grad(args, kwargs)):
                return key, found
            return (key, found) if not _views(found, args, kwargs) else (None, MISS)

    def compute(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], memo: Memo) -> Any:
        """The result of a call that the memo did not know; it is told, if there is a key."""
        if key is None and kernels.above():
            with kernels.refusing():
                return self._call(func, args, kwargs)
        if key is None:
            return self._call(func, args, kwargs)
        before = self.dispatch.writes
        result = (
            self._call(func, args, kwargs) if type(key) is OfTrace else self._direct(key, func, args, kwargs)
        )
        if self.env is not None and self.env.pending_fresh_unbacked_symbols:
            return result  # another trace may not be allowed such symbols
        effect = self.dispatch.writes != before or _has_effect(func, result)
        if memo is not ACCEPTED or are_asked():
            memo.store(self.dispatch, key, args, kwargs, result, mutates=effect)
        return result

    def _direct(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with static sizes, past the dispatcher where that is known to be the same."""
        _, (_, inference, _, autocast), *_ = key
        if not inference and not autocast:
            found = past_dispatcher.result_of(self.dispatch, func, args, kwargs)
            if found is not MISS and not (
                (self.exact_views or _any_requires_grad(args, kwargs)) and _views(found, args, kwargs)
            ):
                return found
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call itself; where C++ would make numbers of symbolic sizes, by way of Python's composites."""
        by_python = self.env is not None and (
            torch_symbols.COMPOSITES_FIX_SIZES
            or ((self.scalars or self.shapes) and holds_unbacked((*args, *kwargs.values())))
        )
        if not by_python:
            self._in_cpp(self.env is not None)
            try:
                return as_in_eager(func, args, func(*args, **kwargs))
            except WantsPlainSizes:  # upsampling
                pass
            except RuntimeError as error:  # the LSTM, upsampling to a given size
                if self.env is None or not any(text in str(error) for text in NO_SYMBOLS):
                    raise
            finally:
                self._in_cpp(False)
        with torch_composites.composites_in_python():
            return as_in_eager(func, args, func(*args, **kwargs))

    def _in_cpp(self, whether: bool) -> None:
        """Whether a composite in C++ may be at work, which is stopped where it asks for plain sizes."""
        self.dispatch.in_cpp = whether
        if torch_symbols.COMPOSITES_TAKE_NUMBERS and self.env is not None:
            self.ground.in_cpp = whether

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``func(*args, **kwargs)`` for an ATen operator on fakes; a memo hit skips the dispatcher."""
        if self.floats:
            args, kwargs = floats_of_c.with_numbers(func, args, kwargs, self.floats)
        if not func._schema.is_mutable:
            key = OPERATORS.key(self.dispatch, func, args, kwargs, torch.get_default_dtype())
            if key is not None:
                found = OPERATORS.recall(self.dispatch, key, args, kwargs)
                if found is not MISS:
                    return found
        return func(*args, **kwargs)

    # -- parts -------------------------------------------------------------------------------

    def _meta(self, tensor: torch.Tensor, sizes: Any, strides: Any, offset: int) -> torch.Tensor:
        """A meta tensor; over the storage of an earlier fake if the real tensors share theirs."""
        shared = self._storages.get(torch_compat.storage_key(tensor))
        needed = tensor.untyped_storage().nbytes()
        if shared is None:
            meta = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
            if not offset and meta.untyped_storage().nbytes() == needed:
                return meta
        else:
            meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        storage = shared[0].untyped_storage() if shared is not None else meta.untyped_storage()
        if storage.nbytes() < needed:
            storage.resize_(needed)
        return torch.empty(0, dtype=tensor.dtype, device="meta").set_(storage, offset, sizes, strides)

    def _symbolic(
        self,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        dims: set[int],
        source: str,
        given: dict[int, Any],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Sizes with symbols at ``dims``, and strides that follow from them where the real ones do."""
        named = tuple(
            given[d] if d in given else self._extent(n, f"{source or 'x'}.size({d})") if d in dims else n
            for d, n in enumerate(sizes)
        )
        made: list[Any] = [None] * len(sizes)
        for d in sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d], -d)):
            made[d] = strides[d]
            for e in range(len(sizes)):
                if made[e] is not None and e != d and sizes[e] * strides[e] == strides[d]:
                    made[d] = named[e] * made[e]
                    break
        return named, tuple(made)

    def _non_leaf(self, fake: FakeTensor) -> torch.Tensor:
        """A copy of the fake with a grad_fn, for an input that autograd has produced."""
        with self, torch.enable_grad(), torch_compat.disable_functions():
            if self.env is not None:
                return same(fake)  # a clone closes gaps, and to compare strides would guard them
            copy = fake.clone()
            # a window with gaps, which a clone closes, or without elements, of which it keeps the strides, is no view of the clone's either:
            # of a view that was written in inference mode nobody can be told the history
            alike = copy.stride() == fake.stride() and _memory(copy) == _memory(fake)
            return copy if fake.numel() and alike else same(fake)


def _memory(fake: torch.Tensor) -> tuple[Any, Any]:
    """How a fake lies in its memory: where it begins, and how large that is."""
    return fake.storage_offset(), fake.untyped_storage().nbytes()


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Whether nothing made a tensor that requires grad. Of some views nobody may ask any more."""
    try:
        return tensor.is_leaf
    except RuntimeError as error:
        raise Unsupported("BZ2029", "a view that autograd has given up", why=str(error)) from error


def same(fake: torch.Tensor) -> Any:
    """The result of an operation on a fake: of its sizes and strides, whatever they are, and as far into memory of its own."""
    with torch_compat.outside_modes():
        memory = torch.empty(
            fake.untyped_storage().nbytes() // fake.dtype.itemsize, dtype=fake.dtype, device="meta"
        )
        meta = torch.empty(0, dtype=fake.dtype, device="meta")
        meta.set_(memory.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
        device = torch_compat.device_of_fake(fake)
        made = torch_compat.assemble_fake(fake.fake_mode, meta, device, False)  # type: ignore[attr-defined]
    return _Given.apply(fake, [made])


class _Given(torch.autograd.Function):
    """The one tensor in a list, as what became of another."""

    @staticmethod
    def forward(ctx: Any, fake: torch.Tensor, made: list[Any]) -> Any:
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def was_given_history(fake: torch.Tensor) -> bool:
    """Whether an input's fake has another history by now than it came with: something was written to it in place.

    Nothing gets one in inference mode, where the history of a view that was written to cannot even be asked for.
    """
    return not torch.is_inference_mode_enabled() and fake.grad_fn is not fake.__dict__.get("_history")


def new_mode(dynamic: bool = False, *, scalars: bool = False, shapes: bool = False) -> FakeMode:
    """A fresh FakeMode; ``dynamic``: with a ShapeEnv for symbolic sizes.

    ``scalars`` and ``shapes``: numbers read out of tensors, and sizes that only the data tell, may be symbols.
    """
    return FakeMode(dynamic, scalars, shapes)


@contextlib.contextmanager
def on_fakes(mode: FakeMode) -> Iterator[None]:
    """Operators called inside run on fakes, below autograd and autocast."""
    with (
        mode,
        torch_compat.disable_functions(),
        torch_compat.BelowAutograd(),
        torch_compat.disable_autocast(),
    ):
        yield


def mode_of(values: Any) -> FakeMode | None:
    """The FakeMode of the first of these values that is one of our fakes."""
    for value in values:
        if isinstance(value, FakeTensor) and isinstance(value.fake_mode, Dispatch):
            return value.fake_mode.owner
    return None


def mode_of_graph(graph: torch.fx.Graph, given: Iterable[Any] = ()) -> FakeMode | None:
    """The FakeMode of a graph: of what it is given, or of what it computes, where it is given numbers alone."""
    return mode_of(given) or mode_of(n.meta.get("val") for n in graph.nodes)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """A tensor's metadata as data; symbolic sizes as expressions over symbol names."""
    with torch_compat.disable_functions():
        return TensorSpec(
            dtype=tensor.dtype,
            device=tensor.device,
            sizes=tuple(map(text_of, tensor.shape)),
            strides=tuple(map(text_of, tensor.stride())),
            offset=text_of(tensor.storage_offset()),
            requires_grad=tensor.requires_grad,
            is_parameter=isinstance(tensor, torch.nn.Parameter),
            layout=tensor.layout,
        )


def sizes_tell_strides(values: Iterable[Any]) -> bool:
    """Whether each symbol in a stride is also in a size, so that code finds out what it is."""
    sizes: set[Any] = set()
    strides: set[Any] = set()
    for value in values:
        if isinstance(value, torch.Tensor):
            sizes |= _symbols(value.shape)
            strides |= _symbols(value.stride())
        else:
            sizes |= _symbols((value,))
    return strides <= sizes


def _symbols(extents: Iterable[Any]) -> set[Any]:
    return {s for n in extents if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}


def text_of(size: Any) -> int | str:
    """A size as data: an int, or a formula over the names of symbols."""
    if type(size) is int:
        return size
    known = size.node.maybe_as_int()
    if known is not None:
        return known
    text = str(size.node.expr)
    if "(" not in text:
        return text
    return python_text(size.node.expr)


def require_plain(tensor: torch.Tensor) -> None:
    """Raise Unsupported (BZ2002, BZ2003) for a tensor that no fake stands for: integers require grad where floats that do were written to them."""
    if type(tensor) not in PLAIN:
        raise Unsupported(
            "BZ2002",
            f"a tensor subclass: {type(tensor).__name__}",
            why="braze traces plain tensors, parameters and buffers only",
        )
    if torch_compat.is_of_transform(tensor):
        raise Unsupported("BZ2003", "a tensor of a function's transform", why="it has no memory of its own")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized " if tensor.is_quantized else "nested " if tensor.is_nested else ""
        what = f"a {kind}tensor" if kind else f"a tensor of layout {tensor.layout}"
        raise Unsupported("BZ2003", what, why="braze compiles dense tensors only")
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(
            "BZ2003", "a lazily conjugated or negated tensor", hints=["call .resolve_conj().resolve_neg()"]
        )
    if torch_compat.is_of_zeros(tensor):
        raise Unsupported("BZ2003", "a tensor of zeros that has no memory", hints=["call .clone()"])
    if tensor.requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
        raise Unsupported(
            "BZ2003", f"a tensor of {tensor.dtype} that requires grad", why="its type has no derivatives"
        )


def _views(result: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a result has a new tensor over the memory of an argument."""
    given = every(torch.Tensor, (args, kwargs))
    known = {torch_compat.storage_key(t) for t in given}
    return any(
        torch_compat.storage_key(t) in known and all(t is not each for each in given)
        for t in every(torch.Tensor, result)
    )


def _any_requires_grad(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a tensor among the arguments does, in tuples and lists too: a loop, since each call of a trace is asked."""
    for values in (args, kwargs.values()) if kwargs else (args,):
        for value in values:
            kind = type(value)
            if kind is FakeTensor or isinstance(value, torch.Tensor):
                if value.requires_grad:
                    return True
            elif kind is not int and isinstance(value, (list, tuple)) and _any_requires_grad(value, {}):
                return True
    return False


def _has_effect(func: Any, result: Any) -> bool:
    """Whether a call may have done something to an argument that no operator shows: ``requires_grad_``, ``data = ``."""
    name = getattr(func, "__name__", "_")
    return result is None or (name.endswith("_") and not name.endswith("__"))
