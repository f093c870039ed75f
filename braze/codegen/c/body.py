"""Emit scalar expressions as C statements, on vectors where lanes differ and on scalars where not.

A ``Body`` is a stack of scopes (C blocks). Each value is emitted once, into the outermost scope in
which everything that it depends on is known: what does not change in a loop leaves the loop.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from braze.codegen.c.expr import at_zero, indirect_symbols, to_c
from braze.codegen.c.offsets import offsets
from braze.codegen.c.operations import Representations, Value, assign, expression, scalar_load, scalar_store
from braze.codegen.c.prelude import SCALAR, STORAGE, raw_vector, rep_vector
from braze.codegen.c.scopes import Scope, Scopes
from braze.codegen.c.steps import MOST, mixed
from braze.loops.build import nodes_of
from braze.loops.ir import Buffer, DType, LoopNest, Node, Op, Store, StoreMode
from braze.loops.ranges import Varying
from braze.schedule.facts.passes import stride
from braze.support.errors import InternalError
from braze.symbolic.expr import Expr, Symbol

#: what is held in wider representations, but for bools, whose bytes may be any
MOVED = frozenset(("u8", "i8", "i16", "f16", "bf16"))


class Storage(dict[str, str]):
    """The label of each buffer's element type, looked up when it is asked for: a program has many buffers, a kernel few."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        super().__init__()
        self.buffers = buffers

    def __missing__(self, name: str) -> str:
        label = self[name] = self.buffers[name].dtype.stored.label
        return label


@dataclass(slots=True, eq=False)
class Body(Scopes):
    """Writes the inside of one kernel function.

    ``pointers`` maps a buffer to its C pointer; ``storage`` to its element type's label. ``forward`` maps
    (buffer, index) to a value that the group has stored there and that is still in a register.
    """

    lanes: int
    symbol: Symbol | None
    varying: Varying
    ranges: Representations
    storage: Storage
    #: whether lanes that lie anywhere are read by one instruction
    gathers: bool = False
    pointers: dict[str, str] = field(default_factory=dict)
    forward: dict[tuple[str, Expr], Value] = field(default_factory=dict)
    #: (name of a widened vector, what it was widened from) -> name of the vector as memory has it
    moved: dict[tuple[str, str], str] = field(default_factory=dict)
    #: loads that read a turned tile: node -> address of the row
    tiles: dict[Node, str] = field(default_factory=dict)
    #: buffers that some step loads
    reloaded: frozenset[str] = frozenset()
    #: row buffers kept in scratch: buffer -> (C pointer, index expression within the row)
    scratch: dict[str, tuple[str, Expr]] = field(default_factory=dict)
    #: buffer -> depth of the scope in which its last store stands (or the block that this is in): no load moves out of it
    _stored: dict[str, int] = field(default_factory=dict)
    _loads: dict[Node, frozenset[str]] = field(default_factory=dict)

    def close(self) -> None:
        """Write the innermost block into the one around it; what it alone knew is forgotten."""
        Scopes.close(self)
        depth = self.scope.depth
        self._stored = {name: min(stored, depth) for name, stored in self._stored.items()}
        self.forward = {k: v for k, v in self.forward.items() if v.depth <= depth}

    # -- values ---------------------------------------------------------------------------------

    def define(self, key: object, text: str, rep: str, varying: bool, depth: int) -> Value:
        """A new C variable that holds ``text``."""
        c = rep_vector(rep, self.lanes) if varying else SCALAR[rep]
        name = self.name()
        self.line(f"const {c} {name} = {text};", depth)
        value = Value(name, rep, varying, depth)
        if key is not None:
            self.scopes[depth].values[key] = value
        return value

    def index(self, e: Expr) -> str:
        """C text of an index expression, computed in the outermost scope that can."""
        if e.value is not None or isinstance(e, Symbol):
            return to_c(e, self.names())
        found = self.known(("index", e))
        if found is not None:
            return found.text
        depth = self.symbol_depth(e)
        name = self.name("x")
        self.line(f"const int64_t {name} = {to_c(e, self.names())};", depth)
        self.scopes[depth].values["index", e] = Value(name, "i64", False, depth)
        return name

    def value(self, node: Node) -> Value:
        """The value of a node, emitted if it is not yet."""
        found = self.known(node)
        if found is not None:
            return found
        # arguments first, so that deep trees do not become deep recursions
        for n in nodes_of(node, inside_masks=False):
            if self.known(n) is None:
                value = self._emit(n)
                self.scopes[value.depth].values[n] = value
        found = self.known(node)
        if found is None:
            raise InternalError("BZ9061", f"no value was emitted for {node.op.value}")
        return found

    def vector(self, node: Node, rep: str = "") -> Value:
        """The node's value as a vector in a representation."""
        return self.splat(self.convert(self.value(node), rep))

    def splat(self, v: Value) -> Value:
        if v.varying:
            return v
        key = ("splat", v.text, v.rep)
        found = self.known(key)
        if found is not None:
            return found
        return self.define(key, f"bz_splat_{v.rep}x{self.lanes}({v.text})", v.rep, True, v.depth)

    def convert(self, v: Value, rep: str) -> Value:
        """Between i32 and i64 (a narrowed value met by a wide one)."""
        if not rep or v.rep == rep:
            return v
        if v.varying:
            t = rep_vector(rep, self.lanes)
            return self.define(
                ("as", v.text, rep), f"__builtin_convertvector({v.text}, {t})", rep, True, v.depth
            )
        # C computes in the wider of its operands' types: of two that are narrow the result would leave 32 bits
        text = f"((int64_t)({v.text}))" if rep == "i64" else v.text
        return Value(text, rep, False, v.depth)

    def _emit(self, node: Node) -> Value:
        if node.op is Op.LOAD:
            return self._load(node)
        if node.op is Op.CONST:
            return Value(_literal(node, self.ranges.rep(node)), self.ranges.rep(node), False, 0)
        if node.op is Op.INDEX:
            return self._index_value(node)
        if node.op is Op.MASKED:
            return self._masked(node)
        if node.op is Op.REDUCED:
            raise InternalError("BZ9062", f"result {node.attr} of a reduction is not known here")
        args = [self.value(a) for a in node.args]
        varying = any(a.varying for a in args)
        depth = max((a.depth for a in args), default=0)
        if node.op is Op.CHECK_INDEX:
            return self._check(node, args[0])
        rep, text = expression(self, node, args, varying)
        if args and (args[0].text, args[0].rep, args[0].varying) == (text, rep, varying):
            return args[0]
        return self.define(None, text, rep, varying, depth)

    def _index_value(self, node: Node) -> Value:
        e: Expr = node.attr
        rep = self.ranges.rep(node)
        if self.symbol is None or self.symbol not in e.symbols():
            return Value(self.index(e), rep, False, self.symbol_depth(e))
        t, depth = rep_vector(rep, self.lanes), self.symbol_depth(e)
        step = stride(e, self.symbol)
        if step is not None:
            c = f"({SCALAR[rep]})"
            scaled = (
                "" if step == 1 else f" * {c}({to_c(step, self.names()) if isinstance(step, Expr) else step})"
            )
            base = self.index(at_zero(e, self.symbol))
            j = self.names()[self.symbol]
            text = f"({c}({base} + ({j}){scaled.replace(c, '')}) + bz_iota_{t}{scaled})"
            return self.define(None, text, rep, True, depth)
        name = self.name()
        self.line(f"{t} {name};", depth)
        self.line(f"for (int l = 0; l < {self.lanes}; ++l) {name}[l] = {to_c(e, self._lane_names())};", depth)
        return Value(name, rep, True, depth)

    def _lane_names(self, lane: str = "l") -> dict[Symbol, str]:
        """Symbols' C names in one lane."""
        names = self.names()
        if self.symbol is not None and self.symbol in names:
            names[self.symbol] = f"({names[self.symbol]} + {lane})"
        return names

    def _check(self, node: Node, arg: Value) -> Value:
        n = self.index(node.attr)
        rep = self.ranges.rep(node)
        depth = max(arg.depth, self.symbol_depth(node.attr), self._guard_depth())
        scope = self.scopes[depth]
        fits = rep == "i64" or (node.attr.value is not None and node.attr.value < 1 << 31)
        if arg.varying and fits:
            used = self._in_use(scope)
            kind, mask = ("checkm", f", {used}") if used else ("check", "")
            text = f"bz_{kind}_{rep}x{self.lanes}({self.convert(arg, rep).text}, {n}, status{mask})"
            found = self.define(None, text, rep, True, depth)
        elif arg.varying:
            found = Value(self.name(), rep, True, depth)
            self.line(f"{rep_vector(rep, self.lanes)} {found.text} = {{}};", depth)
            head = self._lanes_head(depth)
            self.line(f"{head} {found.text}[l] = bz_check_s({arg.text}[l], {n}, status);", depth)
        else:
            found = self.define(None, f"bz_check_s({arg.text}, {n}, status)", rep, False, depth)
        low = node.attr.bounds()[0]
        if low is None or low < 1:  # nothing lies at 0 that could be read instead
            self.line("if (__builtin_expect(*status != 0, 0)) return;", depth)
        return found

    def _guard_depth(self) -> int:
        """The outermost depth to which what may fail is hoisted: not out of the innermost condition on it."""
        return self.scope.guard

    def _load_depth(self, buffer: str) -> int:
        """The outermost depth to which a load of a buffer may be hoisted: not before what the kernel has stored there."""
        return max(self._guard_depth(), self._stored.get(buffer, 0))

    def _in_use(self, scope: Scope) -> str:
        """The mask of the lanes in use in a scope; empty where all are."""
        first = f"bz_lanesx{self.lanes}({scope.count})" if scope.count else ""
        return " & ".join(filter(None, (scope.mask, first)))

    def _lanes_head(self, depth: int = -1) -> str:
        """A loop over the lanes in use at a depth, with its guard."""
        scope = self.scopes[depth]
        count = scope.count or str(self.lanes)
        guard = f" if ({scope.mask}[l])" if scope.mask else ""
        return f"for (int l = 0; l < {count}; ++l){guard}"

    # -- memory ---------------------------------------------------------------------------------

    def _load(self, node: Node) -> Value:
        buffer, e = node.attr
        forwarded = self.forward.get((buffer, e))
        if forwarded is not None:
            return forwarded
        if buffer in self.scratch:
            return self._load_scratch(buffer)
        if node in self.tiles:
            storage = self.storage[buffer]
            text = f"bz_load_{storage}x{self.lanes}({self.tiles[node]})"
            return self.define(None, text, STORAGE[storage][1], True, self.scope.depth)
        if buffer not in self.pointers:
            raise InternalError("BZ9063", f"buffer {buffer} is read before it is written in its group")
        args = [self.value(a) for a in node.args]
        storage = self.storage[buffer]
        rep = STORAGE[storage][1]
        depth = max([self.symbol_depth(e), self._load_depth(buffer), *(a.depth for a in args)])
        in_lanes = (self.symbol is not None and self.symbol in e.symbols()) or any(a.varying for a in args)
        if not in_lanes:
            text = scalar_load(storage, f"{self.pointers[buffer]}[{self._place(e, args)}]")
            return self.define(None, text, rep, False, depth)
        return self._load_lanes(buffer, e, args, depth)

    def _place(self, e: Expr, args: Sequence[Value]) -> str:
        """C text of an index that is the same for all lanes."""
        return to_c(e, self._with_indirect(self.names(), e, args)) if args else self.index(e)

    def _stretch(self, buffer: str, e: Expr, args: Sequence[Value]) -> str | None:
        """The address of what a vector of neighbouring elements covers; None where lanes do not lie so."""
        if self.symbol is None or any(a.varying for a in args) or stride(e, self.symbol) != 1:
            return None
        at = self._place(at_zero(e, self.symbol), args)
        return f"{self.pointers[buffer]} + {f'({at})' if args else at} + {self.names()[self.symbol]}"

    def _load_lanes(self, buffer: str, e: Expr, args: Sequence[Value], depth: int) -> Value:
        storage, p, w = self.storage[buffer], self.pointers[buffer], self.lanes
        rep = STORAGE[storage][1]
        scope = self.scopes[depth]
        address = self._stretch(buffer, e, args)
        if address is not None:
            if scope.mask:
                text = f"bz_loadm_{storage}x{w}({address}, {self._in_use(scope)})"
            elif storage in MOVED:
                whole = f"*(const {raw_vector(storage, w)}u *)({address})"
                some = f"bz_first_{storage}x{w}({address}, {scope.count})"
                return self._widened(storage, some if scope.count else whole, depth)
            elif scope.count:
                text = f"bz_loadn_{storage}x{w}({address}, {scope.count})"
            else:
                text = f"bz_load_{storage}x{w}({address})"
            return self.define(None, text, rep, True, depth)
        found = None
        if self.gathers and any(a.varying for a in args):
            found = offsets(e, args, self.symbol, w, self.names())
        if found is not None:
            (start, lanes), used = found, self._in_use(scope)
            kind, mask = ("atm", f", {used}") if used else ("at", "")
            return self.define(
                None, f"bz_{kind}_{storage}x{w}({p} + ({start}), {lanes}{mask})", rep, True, depth
            )
        if not scope.count or scope.count.isdigit():
            lanes = self._lanes_apart(buffer, e, args, scope)
            if storage in MOVED:
                return self._widened(storage, lanes, depth)
            return self.define(None, f"bz_widen_{storage}x{w}({lanes})", rep, True, depth)
        names = self._with_indirect(self._lane_names(), e, args, lane="l")
        raw = self.name("g")
        c = STORAGE[storage][0]
        self.line(f"{c} {raw}[{w}] = {{}};", depth)
        self.line(f"{self._lanes_head(depth)} {raw}[l] = {p}[{to_c(e, names)}];", depth)
        return self.define(None, f"bz_load_{storage}x{w}({raw})", rep, True, depth)

    def _widened(self, storage: str, raw: str, depth: int) -> Value:
        """A vector that is widened from one as memory has it: what only moves is stored from that, and widened by nobody."""
        name = self.name("w")
        self.line(f"const {raw_vector(storage, self.lanes)} {name} = {raw};", depth)
        value = self.define(
            None, f"bz_widen_{storage}x{self.lanes}({name})", STORAGE[storage][1], True, depth
        )
        self.moved[value.text, storage] = name
        return value

    def _lanes_apart(self, buffer: str, e: Expr, args: Sequence[Value], scope: Scope) -> str:
        """C text of a vector whose lanes lie backwards, or anywhere, as memory has them; where a lane of the mask is 0, nothing is read of the buffer.

        Lanes are written side by side: stored one by one, and loaded as a vector, they would wait for each other in the processor.
        Those that read nothing find a 0 elsewhere: a branch for each would be foretold wrongly where the mask is anything.
        """
        storage, p, w = self.storage[buffer], self.pointers[buffer], self.lanes
        raw, mask = raw_vector(storage, w), scope.mask
        if not (mask or scope.count) and self.symbol is not None and not any(a.varying for a in args):
            step, j = stride(e, self.symbol), self.names()[self.symbol]
            if step == -1:
                at = self._place(at_zero(e, self.symbol), args)
                return f"bz_back_{raw}(*(const {raw}u *)({p} + ({at}) - ({j}) - {w - 1}))"
            if isinstance(step, int) and 1 < step <= MOST and mixed(raw):
                at = self._place(at_zero(e, self.symbol), args)
                return f"bz_every{step}_{raw}({p} + ({at}) + {step}*({j}))"
        each = [
            f"{p}[{to_c(e, self._with_indirect(self._lane_names(str(k)), e, args, lane=str(k)))}]"
            for k in range(int(scope.count or w))
        ]
        if mask:
            c = STORAGE[storage][0]
            each = [f"BZ_WHERE({c}, {mask}[{k}], {text})" for k, text in enumerate(each)]
        return f"({raw}){{{', '.join(each)}}}"

    def _with_indirect(
        self, names: dict[Symbol, str], e: Expr, args: Sequence[Value], *, lane: str = ""
    ) -> dict[Symbol, str]:
        for place, s in indirect_symbols(e):
            v = args[place]
            names[s] = f"(int64_t){v.text}[{lane}]" if v.varying and lane else f"(int64_t){v.text}"
            names[s] = f"({names[s]})"
        return names

    def _load_scratch(self, buffer: str) -> Value:
        pointer, at = self.scratch[buffer]
        storage = self.storage[buffer]
        depth = max(
            self.symbol_depth(at), self._stored[buffer], self.scope.depth if self.symbol is None else 0
        )
        if self.symbol is None:
            return self.define(
                None, scalar_load(storage, f"{pointer}[{self.index(at)}]"), STORAGE[storage][1], False, depth
            )
        address = f"{pointer} + {self._scratch_index(at)}"
        # whole vectors: scratch is padded
        return self.define(
            None, f"bz_load_{storage}x{self.lanes}({address})", STORAGE[storage][1], True, depth
        )

    def _scratch_index(self, at: Expr) -> str:
        assert self.symbol is not None
        if self.symbol in at.symbols():
            return f"{self.index(at_zero(at, self.symbol))} + {self.names()[self.symbol]}"
        # lanes are parallel points: each row position holds one vector
        return f"({self.index(at)})*{self.lanes}"

    def stores(self, stores: Sequence[Store], memory: Container[str]) -> None:
        """Emit the stores of one step: all values first, then the stores to buffers in ``memory``.

        Each value is forwarded to later loads of the same place.
        """
        found = [(*self._stored_value(s), [self.value(a) for a in s.args]) for s in stores]
        for s, (value, exact, args) in zip(stores, found, strict=True):
            self.forget(s.buffer)
            self._stored[s.buffer] = self.scope.depth
            if s.mode is StoreMode.PLAIN and not s.args:
                self.forward[s.buffer, s.index] = self._at_this_depth(value)
            if s.buffer in self.scratch:
                self._store_scratch(s.buffer, value)
            if s.buffer in memory:
                self._store_memory(s, value, exact, args)

    def _stored_value(self, store: Store) -> tuple[Value, bool]:
        """The value, and whether it is one of bfloat16's already, so that the store cuts and does not round."""
        node = self._as_stored(store)
        rounded = node.op is Op.CAST and node.dtype in (DType.BF16, DType.F16)
        if rounded and store.buffer not in self.reloaded and self.ranges.rep(node.args[0]) == "f32":
            # the store itself rounds, and nobody else needs the rounded value
            node = node.args[0]
        label = self.storage[store.buffer]
        exact = label == "bf16" and self.ranges.holds(DType.BF16, node)
        return self.convert(self.value(node), STORAGE[label][1]), exact

    def _as_stored(self, store: Store) -> Node:
        """The value in the buffer's own type."""
        label = self.storage[store.buffer]
        if store.value.dtype.label == label:
            return store.value
        dtype = next(d for d in DType if d.label == label)
        return Node(Op.CAST, dtype, (store.value,))

    def _at_this_depth(self, value: Value) -> Value:
        """The value as of the innermost scope: it is what the store left, valid while that scope lasts."""
        return Value(value.text, value.rep, value.varying, max(value.depth, self.scope.depth))

    def forget(self, buffer: str) -> None:
        """Drop values that were loaded from a buffer before it is written."""
        for scope in self.scopes:
            stale = [k for k in scope.values if isinstance(k, Node) and buffer in self._loaded_by(k)]
            for k in stale:
                del scope.values[k]

    def _loaded_by(self, node: Node) -> frozenset[str]:
        """The buffers that an expression loads from."""
        found = self._loads.get(node)
        if found is not None:
            return found
        for n in nodes_of(node, known=self._loads):
            found = frozenset().union(*(self._loads[a] for a in n.args))
            self._loads[n] = found | {n.attr[0]} if n.op is Op.LOAD else found
        return self._loads[node]

    def _store_scratch(self, buffer: str, value: Value) -> None:
        pointer, at = self.scratch[buffer]
        storage = self.storage[buffer]
        if self.symbol is None:
            self.line(f"{pointer}[{self.index(at)}] = {scalar_store(storage, value.text)};")
        else:
            v = self.splat(value)
            self.line(f"bz_store_{storage}x{self.lanes}({pointer} + {self._scratch_index(at)}, {v.text});")

    def _store_memory(self, store: Store, value: Value, exact: bool, args: Sequence[Value]) -> None:
        e, storage, p, w = store.index, self.storage[store.buffer], self.pointers[store.buffer], self.lanes
        in_lanes = (self.symbol is not None and self.symbol in e.symbols()) or any(a.varying for a in args)
        add = "+=" if store.mode is StoreMode.ADD else "="
        if not in_lanes and not (value.varying and store.mode is StoreMode.ADD):
            text = f"{value.text}[0]" if value.varying else value.text
            self.line(assign(storage, f"{p}[{self._place(e, args)}]", text, add))
            return
        address = self._stretch(store.buffer, e, args) if add == "=" else None
        if address is not None:
            v, how = self.splat(value), "put" if exact else "store"
            moved = self.moved.get((v.text, storage))
            if moved is not None and self.scope.count:
                self.line(f"bz_moven_{storage}x{w}({address}, {moved}, {self.scope.count});")
            elif moved is not None:
                self.line(f"bz_move_{storage}x{w}({address}, {moved});")
            elif self.scope.count:
                self.line(f"bz_{how}n_{storage}x{w}({address}, {v.text}, {self.scope.count});")
            else:
                self.line(f"bz_{how}_{storage}x{w}({address}, {v.text});")
            return
        names = self._with_indirect(self._lane_names(), e, args, lane="l")
        if value.varying and add == "=":  # all lanes are rounded at once
            raw = self.name("q")
            rounded = f"bz_{'cut' if exact else 'narrow'}_{storage}x{w}({value.text})"
            self.line(f"const {raw_vector(storage, w)} {raw} = {rounded};")
            self.line(f"{self._lanes_head()} {{ {p}[{to_c(e, names)}] = {raw}[l]; }}")
            return
        text = f"{value.text}[l]" if value.varying else value.text
        self.line(f"{self._lanes_head()} {{ {assign(storage, f'{p}[{to_c(e, names)}]', text, add)} }}")

    def only_copies(self, steps: Sequence[LoopNest]) -> bool:
        """Whether steps do nothing but copy neighbours along the vectors' axis, of one buffer to one other. (Of two stores one might write what the other reads.)"""
        stores = [s for step in steps for s in step.stores]
        if len(stores) != 1 or self.symbol is None:
            return False
        (store,) = stores
        value = store.value
        if store.mode is not StoreMode.PLAIN or store.args or value.op is not Op.LOAD or value.args:
            return False
        buffer, e = value.attr
        return (
            buffer != store.buffer
            and {buffer, store.buffer} <= self.pointers.keys()
            and self.storage[buffer] == self.storage[store.buffer]
            and stride(e, self.symbol) == stride(store.index, self.symbol) == 1
        )

    def copies(self, steps: Sequence[LoopNest], count: str) -> None:
        """What such steps do, of so many elements."""
        (store,) = (s for step in steps for s in step.stores)
        buffer, e = store.value.attr
        to, source = self._stretch(store.buffer, store.index, ()), self._stretch(buffer, e, ())
        self.line(f"bz_copy({to}, {source}, {count}*(int64_t)sizeof *{self.pointers[buffer]});")

    # -- guarded values -------------------------------------------------------------------------

    def _masked(self, node: Node) -> Value:
        """Evaluate the value where the condition holds; nothing is loaded where it does not."""
        cond, inner, other = node.args
        c, o = self.value(cond), self.value(other)
        rep = self.ranges.rep(node)
        varying = self.varying(node) or c.varying or o.varying or self._computes_lanes(inner)
        name = self.name()
        depth = self.scope.depth
        o = self.convert(o, rep)
        if varying:
            o = self.splat(o)
        self.line(f"{rep_vector(rep, self.lanes) if varying else SCALAR[rep]} {name} = {o.text};")
        if not c.varying:
            scope = self.open(f"if ({c.text}) ")
            scope.guard = scope.depth
            v = self.convert(self.value(inner), rep)
            v = self.splat(v) if varying else v
            self.line(f"{name} = {v.text};")
            self.close()
            return Value(name, rep, varying, depth)
        outer = self.scope.mask
        scope = self.open("")
        scope.guard = scope.depth
        if outer:
            both = self.name("m")
            self.line(f"const i32x{self.lanes} {both} = {outer} & {c.text};")
            scope.mask = both
        else:
            scope.mask = c.text
        v = self.splat(self._guarded_value(inner, rep, scope))
        self.line(f"{name} = bz_sel_{rep}x{self.lanes}({c.text}, {v.text}, {o.text});")
        self.close()
        return Value(name, rep, True, depth)

    def _guarded_value(self, inner: Node, rep: str, scope: Scope) -> Value:
        """The value under a mask; loads that do not depend on the lane need one lane that holds."""
        if not any(n.op is Op.LOAD and not self.varying(n) for n in nodes_of(inner)):
            return self.convert(self.value(inner), rep)
        count = f" & bz_lanesx{self.lanes}({scope.count})" if scope.count else ""
        name = self.name()
        self.line(f"{rep_vector(rep, self.lanes)} {name} = {{}};")
        inside = self.open(f"if (bz_anyx{self.lanes}({scope.mask}{count})) ")
        inside.guard = inside.depth
        v = self.splat(self.convert(self.value(inner), rep))
        self.line(f"{name} = {v.text};")
        self.close()
        return Value(name, rep, True, self.scope.depth)

    def _computes_lanes(self, node: Node) -> bool:
        """Whether forwarded values make a node differ by lane."""
        for n in nodes_of(node):
            if n.op is Op.LOAD:
                held = self.forward.get(n.attr)
                if (held is not None and held.varying) or n.attr[0] in self.scratch:
                    return True
            known = self.known(n)
            if known is not None and known.varying:
                return True
        return False


def _literal(node: Node, rep: str) -> str:
    v = node.attr
    if rep in ("f32", "f64"):
        f = "f" if rep == "f32" else ""
        v = float(v)
        if math.isnan(v):
            return f'__builtin_nan{f}("")'
        if math.isinf(v):
            return f"({'-' if v < 0 else ''}__builtin_inf{f}())"
        text = v.hex() + f
        return f"({text})" if text.startswith("-") else text
    if rep == "b":
        return "1" if v else "0"
    if v == -(2**63):
        return "(-0x7fffffffffffffffL - 1)"
    text = str(int(v)) + ("L" if rep == "i64" else "")
    return f"({text})" if v < 0 else text
