"""Reductions in vector registers: neutral elements, how partial results combine, and across lanes."""

from __future__ import annotations

import math

from braze.codegen.c.body import Body
from braze.codegen.c.operations import Value
from braze.codegen.c.prelude import SCALAR, STORAGE, rep_vector
from braze.loops.dtypes import neutral
from braze.loops.ir import ReduceKind
from braze.schedule.cpu.phases import Fold


class Accumulator:
    """The running result of one fold: ``copies`` registers, so that their additions overlap."""

    def __init__(self, body: Body, fold: Fold, vector: bool, copies: int, index_rep: str) -> None:
        self.body = body
        self.fold = fold
        self.rep = STORAGE[fold.dtype.label][1]
        self.is_arg = fold.kind.finds_place
        self.index_rep = index_rep
        self.vector = vector
        w = body.lanes
        self.type = rep_vector(self.rep, w) if vector else SCALAR[self.rep]
        self.index_type = rep_vector(index_rep, w) if vector else SCALAR[index_rep]
        self.names = [body.name("a") for _ in range(copies)]
        self.total = ""

    def declare(self) -> None:
        """Start from the neutral element."""
        neutral = self.neutral()
        start = f"bz_splat_{self.rep}x{self.body.lanes}({neutral})" if self.vector else neutral
        for a in self.names:
            self.body.line(f"{self.type} {a} = {start};")
            if self.is_arg:
                zero = f"({self.index_type}){{}}" if self.vector else "0"
                # no index yet: any element, of the neutral value too, takes its place
                self.body.line(f"{self.index_type} {a}i = {zero} - 1;")

    def declare_total(self) -> None:
        """A second level of summation, for long rows: sums of blocks, and what their additions lost."""
        self.total = self.body.name("t")
        for name in (self.total, f"{self.total}e"):
            self.body.line(f"{self.type} {name} = {self._zero()};")

    def state(self) -> list[tuple[str, str]]:
        """What is carried on when a row is walked part by part: C types and names. Sums of a part are added to the total at its end."""
        if self.total:
            return [(self.type, self.total), (self.type, f"{self.total}e")]
        first = self.names[0]
        return [(self.type, first), *([(self.index_type, f"{first}i")] if self.is_arg else [])]

    def fold_total(self) -> None:
        """Add the block's sum to the total, keep the rounding error, and start again."""
        t, a, (s, b) = self.total, self.names[0], (self.body.name("s"), self.body.name("s"))
        self._merge_copies()
        self.body.open("")
        self.body.line(f"const {self.type} {s} = {t} + {a}, {b} = {s} - {t};")
        self.body.line(f"{t}e += ({t} - ({s} - {b})) + ({a} - {b});")
        self.body.line(f"{t} = {s};")
        self.body.close()
        self.body.line(" ".join(f"{name} = {self._zero()};" for name in self.names))

    def _merge_copies(self) -> None:
        """All copies into the first, two by two."""
        names = list(self.names)
        while len(names) > 1:
            half = (len(names) + 1) // 2
            for a, other in zip(names, names[half:], strict=False):
                self._merge(a, other)
            names = names[:half]

    def _take_error(self) -> None:
        """The total with what its additions lost; an infinite total stays as it is."""
        t, a = self.total, self.names[0]
        if self.vector:
            w = f"{self.rep}x{self.body.lanes}"
            lost = f"bz_sel_{w}(bz_mask_{w}({t}e == {t}e), {t}e, ({w}){{}})"
        else:
            lost = f"({t}e == {t}e ? {t}e : 0)"
        self.body.line(f"{a} = {t} + {lost};")

    def _zero(self) -> str:
        return f"({self.type}){{}}" if self.vector else "0"

    @property
    def is_float_sum(self) -> bool:
        return self.fold.kind is ReduceKind.SUM and self.rep in ("f32", "f64")

    def neutral(self) -> str:
        """What leaves the result as it is, as C text."""
        value = neutral(self.fold.kind, self.fold.dtype)
        if self.rep in ("f32", "f64"):
            f = "f" if self.rep == "f32" else ""
            infinity = f"__builtin_inf{f}()"
            return f"{float(value)}{f}" if math.isfinite(value) else f"({'-' * (value < 0)}{infinity})"
        suffix = "L" if self.rep == "i64" else ""
        # C has no constants below zero
        return f"({value + 1}{suffix} - 1)" if value < 0 else f"{value}{suffix}"

    def add(self, value: Value, index: Value | None, copy: int, active: str) -> None:
        """Combine one value; ``active``: a mask (C text) of the lanes in use, or ""."""
        a, v = self.names[copy], value.text
        w = self.body.lanes
        if self.is_arg:
            assert index is not None
            self._keep_better(a, v, index.text, active)
            return
        if active and self.vector:
            held = self.body.name("v")
            other = f"bz_splat_{self.rep}x{w}({self.neutral()})"
            self.body.line(f"const {self.type} {held} = bz_sel_{self.rep}x{w}({active}, {v}, {other});")
            v = held
        self.body.line(f"{a} = {self.combine(a, v)};")

    def _keep_better(self, a: str, v: str, vi: str, active: str = "") -> None:
        """Of an extreme and its place the kept one, or (v, vi)."""
        w, ai, better = self.body.lanes, f"{a}i", self.body.name("m")
        mask = f"i32x{w}" if self.vector else "int"
        self.body.line(f"const {mask} {better} = {self._better(v, vi, a, ai, active)};")
        if self.vector:
            self.body.line(f"{a} = bz_sel_{self.rep}x{w}({better}, {v}, {a});")
            self.body.line(f"{ai} = bz_sel_{self.index_rep}x{w}({better}, {vi}, {ai});")
        else:
            self.body.line(f"if ({better}) {{ {a} = {v}; {ai} = {vi}; }}")

    def _better(self, v: str, vi: str, a: str, ai: str, active: str) -> str:
        """Whether (v, vi) comes before (a, ai): nan first, then the extreme, then the lowest index."""
        sign = ">" if self.fold.kind is ReduceKind.ARGMAX else "<"
        r, ir = f"bz_mask_{self.rep}x{self.body.lanes}", f"bz_mask_{self.index_rep}x{self.body.lanes}"
        lower, none = self._m(ir, f"{vi} < {ai}"), self._m(ir, f"{ai} < 0")
        if self.rep == "b":
            both, no = ("&", "~") if self.vector else ("&&", "!")
            first = f"({v} {both} {no}{a})" if sign == ">" else f"({no}{v} {both} {a})"
            equal = f"~({v} ^ {a})" if self.vector else f"({v} == {a})"
        elif self.rep in ("f32", "f64"):
            first = self._m(r, f"({v} {sign} {a}) | (({v} != {v}) & ({a} == {a}))")
            equal = self._m(r, f"({v} == {a}) | (({v} != {v}) & ({a} != {a}))")
        else:
            first, equal = self._m(r, f"{v} {sign} {a}"), self._m(r, f"{v} == {a}")
        text = f"{first} | ({equal} & {lower}) | {none}"
        valid = f" & {self._m(ir, f'{vi} >= 0')}"
        return f"({text}){valid}" + (f" & ({active})" if active and self.vector else "")

    def _m(self, mask: str, text: str) -> str:
        return f"{mask}({text})" if self.vector else f"({text})"

    def combine(self, a: str, v: str) -> str:
        kind, rep, w = self.fold.kind, self.rep, self.body.lanes
        if rep == "b":
            return f"{a} | {v}" if kind in (ReduceKind.ANY, ReduceKind.MAX, ReduceKind.SUM) else f"{a} & {v}"
        if kind is ReduceKind.SUM:
            return f"{a} + {v}"
        if kind is ReduceKind.PROD:
            return f"{a} * {v}"
        if kind in (ReduceKind.ANY, ReduceKind.ALL):
            return f"{a} {'|' if kind is ReduceKind.ANY else '&'} {v}"
        sign = ">" if kind is ReduceKind.MAX else "<"
        if rep in ("f32", "f64") and self.vector:
            return f"bz_{'highest' if kind is ReduceKind.MAX else 'lowest'}_{rep}x{w}({v}, {a})"
        test = f"({v} {sign} {a})" + (f" | ({v} != {v})" if rep in ("f32", "f64") else "")
        if not self.vector:
            return f"{test} ? {v} : {a}"
        return f"bz_sel_{rep}x{w}(bz_mask_{rep}x{w}({test}), {v}, {a})"

    def finish(self, across_lanes: bool) -> Value:
        """The result: copies combined, and lanes too where the row lies along them."""
        body = self.body
        first = self.names[0]
        if self.total:
            self._take_error()
        else:
            self._merge_copies()
        if across_lanes and self.vector:
            half = body.lanes // 2
            while half:
                self._merge_rotated(first, half)
                half //= 2
        result, rep = (f"{first}i", self.index_rep) if self.is_arg else (first, self.rep)
        if across_lanes and self.vector:
            return body.define(
                None, f"{result}[0]" + (" & 1" if rep == "b" else ""), rep, False, body.scope.depth
            )
        return Value(result, rep, self.vector, body.scope.depth)

    def _merge(self, a: str, other: str) -> None:
        if self.is_arg:
            self._keep_better(a, other, f"{other}i")
        else:
            self.body.line(f"{a} = {self.combine(a, other)};")

    def _merge_rotated(self, a: str, by: int) -> None:
        w = self.body.lanes
        raw = "i32" if self.rep == "b" else self.rep
        r = self.body.name("h")
        self.body.line(f"const {self.type} {r} = bz_rot{by}_{raw}x{w}({a});")
        if self.is_arg:
            self.body.line(f"const {self.index_type} {r}i = bz_rot{by}_{self.index_rep}x{w}({a}i);")
        self._merge(a, r)
