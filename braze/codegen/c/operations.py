"""The C of one scalar operation on values that are already emitted."""

from __future__ import annotations

from typing import Protocol

from braze.codegen.c.prelude import SCALAR, STORAGE, rep_vector
from braze.loops.dtypes import HALVES
from braze.loops.ir import DType, Node, Op
from braze.loops.ranges import Ranges
from braze.loops.scalars import SCALARS, TESTS
from braze.support.errors import InternalError
from braze.support.record import record


@record
class Value:
    """A C name (or literal) that holds a value: its representation, whether lanes differ, its scope's depth."""

    text: str
    rep: str
    varying: bool
    depth: int


class Representations(Ranges):
    """In which representation each node's value is held."""

    def rep(self, node: Node) -> str:
        """The node's own, but that 64-bit integers which fit are computed in 32 bits."""
        return "i32" if self.is_narrow(node) else STORAGE[node.dtype.label][1]


class Writer(Protocol):
    """The kernel that is being written (``body.py``), as far as single operations need it."""

    lanes: int
    ranges: Representations

    def splat(self, v: Value) -> Value:
        """The value in each lane."""

    def convert(self, v: Value, rep: str) -> Value:
        """Between i32 and i64 (a narrowed value met by a wide one)."""


def expression(body: Writer, node: Node, args: list[Value], varying: bool) -> tuple[str, str]:
    """(representation, C text) of an operation on known arguments."""
    op = node.op
    rep = body.ranges.rep(node)
    if (
        op is Op.CAST
        and node.dtype in HALVES
        and args[0].rep == rep
        and body.ranges.holds(node.dtype, node.args[0])
    ):
        return rep, args[0].text
    if op is Op.CAST:
        return rep, _cast(body, args[0], node.args[0].dtype, node.dtype, rep, varying)
    if op is Op.BITCAST:
        return rep, _bitcast(body, args[0], node.args[0].dtype, node.dtype, varying)
    if op is Op.WHERE:
        return rep, _where(body, args, rep, varying)
    if op is Op.RANDOM and node.attr == "uniform" and varying and not args[0].varying:
        t = f"{args[1].rep}x{body.lanes}"
        return "f32", f"bz_uniforms_{t}({args[0].text}, {args[1].text})"
    if op is Op.RANDOM:
        both = "i64" if any(a.rep == "i64" for a in args) else "i32"
        t = f"{both}x{body.lanes}" if varying else "s"
        return "f32", f"bz_{node.attr}_{t}({', '.join(_arg(body, a, both, varying) for a in args)})"
    if op in TESTS:
        return "b", _test(body, op, args, varying)
    within = rep
    if rep in ("i32", "i64"):
        within = "i64" if any(a.rep == "i64" for a in args) else rep
    text = _by_constant(body, node, args, within, varying) or _written(body, op, args, within, varying)
    if within != rep:
        t = rep_vector(rep, body.lanes)
        text = f"__builtin_convertvector({text}, {t})" if varying else f"({SCALAR[rep]})({text})"
    return rep, _rounded(body, text, node.dtype, varying)


def _arg(body: Writer, v: Value, rep: str, varying: bool) -> str:
    v = body.convert(v, rep)
    return body.splat(v).text if varying else v.text


def _by_constant(body: Writer, node: Node, args: list[Value], rep: str, varying: bool) -> str:
    """Whole numbers divided by one that is known, without a division; empty where that is something else."""
    if (
        node.op not in (Op.REMAINDER, Op.FLOORDIV)
        or rep not in ("i32", "i64")
        or node.args[1].op is not Op.CONST
    ):
        return ""
    by = node.args[1].attr
    if not 0 < by < 1 << 31:
        return ""
    value = _arg(body, args[0], rep, varying)
    if by & (by - 1) == 0:
        return f"{value} & {by - 1}" if node.op is Op.REMAINDER else f"{value} >> {by.bit_length() - 1}"
    t = f"{rep}x{body.lanes}" if varying else "s"
    return f"bz_{node.op.value}by_{t}({value}, {by})"


def templates(op: Op, rep: str) -> tuple[str, str] | None:
    """The C of an operation on vectors of a representation and on single numbers, empty where that is lane 0 of the former."""
    text = SCALARS[op].text
    kind = {"f32": "c", "f64": "c", "b": "c_mask"}.get(rep, "c_int")
    if kind not in text:
        return None
    vector = text[kind]
    return vector, text.get(f"{kind}_1", "" if "{t}" in vector else vector)


def _written(body: Writer, op: Op, args: list[Value], rep: str, varying: bool) -> str:
    found = templates(op, rep)
    if found is None:
        raise InternalError("BZ9064", f"no C for {op.value} on {rep}")
    vector, scalar = found
    texts = [_arg(body, a, rep, varying) for a in args]
    t = f"{rep}x{body.lanes}"
    fields = _FIELDS.get(rep, {}) | {"t": t, "s": SCALAR[rep], "i": f"i{rep[1:]}x{body.lanes}"}
    if varying or scalar:
        return (vector if varying else scalar).format(**dict(zip("abc", texts, strict=False)), **fields)
    splats = [f"bz_splat_{t}({text})" for text in texts]
    return f"({vector.format(**dict(zip('abc', splats, strict=False)), **fields)})[0]"


_FIELDS = {
    "f32": {"f": "f", "one": "1.0f", "zero": "0.0f", "most": "0x1.fffffep127f"},
    "f64": {"f": "", "one": "1.0", "zero": "0.0", "most": "0x1.fffffffffffffp1023"},
}


def _test(body: Writer, op: Op, args: list[Value], varying: bool) -> str:
    rep = "i64" if any(a.rep == "i64" for a in args) else args[0].rep
    text = _written(body, op, args, rep, varying)
    return f"bz_mask_{rep}x{body.lanes}({text})" if varying and rep != "b" else text


def _where(body: Writer, args: list[Value], rep: str, varying: bool) -> str:
    cond = args[0]
    x, y = (_arg(body, a, rep, varying) for a in args[1:])
    if not varying:
        return f"{cond.text} ? {x} : {y}"
    return f"bz_sel_{rep}x{body.lanes}({body.splat(cond).text}, {x}, {y})"


def _cast(body: Writer, v: Value, source: DType, to: DType, rep: str, varying: bool) -> str:
    w = body.lanes
    if to is DType.BOOL:
        if v.rep == "b":
            return v.text
        zero = {"f32": "0.0f", "f64": "0.0"}.get(v.rep, "0")
        return f"bz_mask_{v.rep}x{w}({v.text} != {zero})" if varying else f"{v.text} != {zero}"
    if source.is_float and to.is_integer:
        return _rounded(body, _truncated(body, v, to, rep, varying), to, varying)
    if not varying:
        return _rounded(body, f"({SCALAR[rep]}){v.text}", to, varying) if source is not to else v.text
    if v.rep == "b":
        if rep == "i32":
            return f"{v.text} & 1"
        if rep == "f32":
            return f"(f32x{w})({v.text} & 0x3f800000)"
        return f"__builtin_convertvector({v.text} & 1, {rep}x{w})"
    text = v.text
    if v.rep != rep:
        text = f"__builtin_convertvector({v.text}, {rep}x{w})"
    if _holds(source, to):
        return text
    return _rounded(body, text, to, varying)


def _truncated(body: Writer, v: Value, to: DType, rep: str, varying: bool) -> str:
    """A float as an integer of a representation; bytes take the low bits of a long one, as eager's do."""
    through = "i64" if to is DType.U8 and v.rep == "f64" else rep
    if not varying:
        text = f"bz_to{through}_{v.rep}s({v.text})"
        return text if through == rep else f"({SCALAR[rep]}){text}"
    text = f"bz_to{through}_{v.rep}x{body.lanes}({v.text})"
    return text if through == rep else f"__builtin_convertvector({text}, {rep}x{body.lanes})"


def _bitcast(body: Writer, v: Value, source: DType, to: DType, varying: bool) -> str:
    src, dst = source.label, to.label
    if varying:
        w = body.lanes
        raw = {"f16": "i16", "bf16": "i16"}.get(src, src), {"f16": "u16", "bf16": "u16"}.get(dst, dst)
        return f"bz_widen_{dst}x{w}(({raw[1]}x{w})bz_narrow_{src}x{w}({v.text}))"
    a, b = STORAGE[src][0], STORAGE[dst][0]
    return scalar_load(dst, f"((union {{ {a} from; {b} to; }}){{{scalar_store(src, v.text)}}}).to")


def _rounded(body: Writer, text: str, dtype: DType, varying: bool) -> str:
    """A result brought into its type's values: half types round, small integers wrap."""
    label = dtype.label
    if label in ("bf16", "f16"):
        if varying:
            return f"bz_round_{label}x{body.lanes}({text})"
        return scalar_load(label, scalar_store(label, text))
    if label in ("u8", "i8", "i16"):
        if not varying:
            return f"({STORAGE[label][0]})({text})"
        if label == "u8":
            return f"({text}) & 255"
        shift = 24 if label == "i8" else 16
        return f"(({text}) << {shift}) >> {shift}"
    return text


def _holds(source: DType, to: DType) -> bool:
    """Whether every value of ``source`` is one of ``to``, so that no rounding or wrapping is due."""
    if source.is_float and to.is_float:
        return source is to or to in (DType.F32, DType.F64)
    return to in (DType.I32, DType.I64, DType.F32, DType.F64)


# -- one element in memory as a scalar value, and back

#: storage types that are not held as they lie -> what reads one, and what it is stored as
_FORMS = {
    "bool": ("{} != 0", "({}) & 1"),
    "bf16": ("bz_bf16_s({})", "bz_tobf16_s({})"),
    "f16": ("bz_half_s({})", "bz_tohalf_s({})"),
}
_AS_IT_LIES = "{}", "{}"


def scalar_load(storage: str, place: str) -> str:
    return _FORMS.get(storage, _AS_IT_LIES)[0].format(place)


def scalar_store(storage: str, text: str) -> str:
    return _FORMS.get(storage, _AS_IT_LIES)[1].format(text)


def assign(storage: str, place: str, text: str, how: str) -> str:
    if how == "+=":
        return f"{place} = {scalar_store(storage, f'{scalar_load(storage, place)} + {text}')};"
    return f"{place} = {scalar_store(storage, text)};"
