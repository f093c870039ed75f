"""Complete C sources from kernels: types, loads and stores, the thread team, and the library parts in use.

Representations. A value in a register is one of ``f32 f64 i32 i64 b``, as a scalar or as a vector of W
lanes (``f32x16``); ``b`` is a mask of 32-bit lanes, 0 or -1 (a scalar ``b`` is 0 or 1). Elements in memory
are of a storage type (``bf16``, ``u8``, ...); ``bz_load_bf16x16`` widens to the representation and
``bz_store_bf16x16`` narrows, rounding to nearest even.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

from braze.codegen.c.gathers import gather
from braze.codegen.c.mathlib import LIBM_SCALARS, SECTIONS, text_of
from braze.codegen.c.micro import micro_kernel
from braze.codegen.c.partials import BYTES, VL, read_first, read_masked, write_first
from braze.codegen.c.steps import every
from braze.codegen.c.turns import turn

#: storage label -> (C type of an element, representation)
STORAGE: dict[str, tuple[str, str]] = {
    "bool": ("uint8_t", "b"),
    "u8": ("uint8_t", "i32"),
    "i8": ("int8_t", "i32"),
    "i16": ("int16_t", "i32"),
    "i32": ("int32_t", "i32"),
    "i64": ("int64_t", "i64"),
    "f16": ("uint16_t", "f32"),
    "bf16": ("uint16_t", "f32"),
    "f32": ("float", "f32"),
    "f64": ("double", "f64"),
}
#: C type of a scalar in a representation
SCALAR = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t", "b": "int"}
#: bytes of a lane in a representation
REP_BYTES = {"f32": 4, "f64": 8, "i32": 4, "i64": 8, "b": 4}
_RAW = {
    "uint8_t": "u8", "int8_t": "i8", "int16_t": "i16", "uint16_t": "u16", "int32_t": "i32", "uint32_t": "u32", "int64_t": "i64",
    "float": "f32", "double": "f64",
}  # fmt: skip

#: in front of every translation unit
_BASE = text_of("base.h")

#: defined once per library; build.load points them at the OpenMP runtime that libtorch uses
RUNTIME = """\
static void bz_alone(void (*f)(void *), void *p, unsigned n, unsigned flags) { (void)n; (void)flags; f(p); }
static int bz_zero(void) { return 0; }
static int bz_one(void) { return 1; }
void (*bz_team)(void (*)(void *), void *, unsigned, unsigned) = bz_alone;
int (*bz_thread)(void) = bz_zero;
int (*bz_threads)(void) = bz_one;
"""

_WORD = re.compile(
    r"\b(bz_\w+?)x(\d+)\b|\b((?:f32|f64|i32|i64|u32|i16|u16|i8|u8)x(?:\d+))(u?)\b|\b(bz_\w+_(?:f32|f64)?s)\b"
)
_CALL = re.compile(r"\b([a-z][a-z0-9]*)\(")


def assemble(kernels: Iterable[str], *, runtime: bool = True) -> str:
    """One translation unit: the needed library parts, then the kernels (and ``runtime``'s definitions)."""
    text = "\n".join(kernels)
    types: dict[str, None] = {}
    parts: dict[str, str] = {}
    scalars: dict[str, None] = {}
    _need(text, types, parts, scalars)
    head = [
        _BASE,
        *(_typedef(t) for t in sorted(types, key=lambda name: (len(name), name))),
        *(_declare(s) for s in sorted(scalars)),
    ]
    return "\n".join([*head, *parts.values(), RUNTIME if runtime else "", text, ""])


def split(kernels: tuple[str, ...], units: int) -> tuple[tuple[str, ...], ...]:
    """Kernels dealt to at most ``units`` translation units of about equal length, each at least 6 KB."""
    units = max(1, min(units, sum(map(len, kernels)) // 6000))
    bins: list[list[str]] = [[] for _ in range(units)]
    weights = [0] * units
    for kernel in sorted(kernels, key=len, reverse=True):
        least = weights.index(min(weights))
        bins[least].append(kernel)
        weights[least] += len(kernel) + 500
    return tuple(tuple(b) for b in bins if b)


def _need(text: str, types: dict[str, None], parts: dict[str, str], scalars: dict[str, None]) -> None:
    """Collect what ``text`` mentions, dependencies first."""
    words, calls = _mentions(text)
    scalars.update(dict.fromkeys(calls))
    for name, lanes, vector, scalar in words:
        if vector:
            types[vector] = None
            continue
        key = scalar or f"{name}x{lanes}"
        if key in parts:
            continue
        body = _section(scalar or name, int(lanes) if lanes else 0)
        if body is None:
            continue
        parts[key] = ""
        _need(body, types, parts, scalars)
        # after its dependencies
        del parts[key]
        parts[key] = body


@cache
def _mentions(text: str) -> tuple[tuple[tuple[str, str, str, str], ...], tuple[str, ...]]:
    words = dict.fromkeys((m[1] or "", m[2] or "", m[3] or "", m[5] or "") for m in _WORD.finditer(text))
    calls = dict.fromkeys(m[1] for m in _CALL.finditer(text) if m[1] in _DECLARED)
    return tuple(words), tuple(calls)


_DECLARED = {n + suffix for n in LIBM_SCALARS for suffix in ("", "f")}


def _declare(name: str) -> str:
    base, c = (name, "double") if name in LIBM_SCALARS else (name[:-1], "float")
    return f"{c} {name}({', '.join([c] * LIBM_SCALARS[base])});"


@cache
def _typedef(name: str) -> str:
    rep, _, lanes = name.partition("x")
    c = {raw: c for c, raw in _RAW.items()}[rep]
    size = int(re.sub(r"\D", "", rep)) // 8 * int(lanes)
    return (
        f"typedef {c} {name} __attribute__((vector_size({size})));\n"
        f"typedef {c} {name}u __attribute__((vector_size({size}), aligned(1), may_alias));"
    )


@cache
def _section(name: str, lanes: int) -> str | None:
    """The text of one library function for a number of lanes."""
    text = SECTIONS.get(name)
    if text is not None:
        return text.replace("@W@", str(lanes)).replace("@H@", str(lanes // 2))
    w = lanes
    kind, _, what = name.removeprefix("bz_").rpartition("_")
    if kind == "splat":
        if what == "b":
            return f"static inline i32x{w} bz_splat_bx{w}(int x) {{ return (i32x{w}){{}} - x; }}"
        return f"static inline {what}x{w} bz_splat_{what}x{w}({SCALAR[what]} x) {{ return x - ({what}x{w}){{}}; }}"
    if kind == "sel":
        return _select(what, w)
    if kind in ("toi32", "toi64"):
        return _truncate(kind[2:], what, w) if w else _truncate_scalar(kind[2:], what[:-1])
    if kind == "turn":
        c = STORAGE[what][0]
        return turn(what, c, _RAW[c], w)
    if kind in ("check", "checkm"):
        return _check(what, w, kind == "checkm")
    if kind.startswith("rot") or kind == "back":
        order = ", ".join(str(w - 1 - l if kind == "back" else (l + int(kind[3:])) % w) for l in range(w))
        t, i = f"{what}x{w}", f"i{re.sub(r'[^0-9]', '', what)}x{w}"
        return (
            f"static inline {t} bz_{kind}_{t}({t} v) {{\n#ifdef __clang__\n  return __builtin_shufflevector(v, v, {order});"
            f"\n#else\n  return __builtin_shuffle(v, ({i}){{{order}}});\n#endif\n}}"
        )
    if kind in ("highest", "lowest") and what in ("f32", "f64"):
        return _extreme(kind, what, w)
    if kind.startswith("every"):
        return every(what, w, int(kind[5:]))
    shape = re.fullmatch(r"gemm(\d+)([ct])(\d+)(?:a(\d))?", kind)
    if shape is not None:
        return micro_kernel(int(shape[1]), int(shape[3]), w, shape[2] == "t", int(shape[4] or 0))
    if kind == "mask":
        wide = REP_BYTES[what] == 8
        body = f"__builtin_convertvector(m, i32x{w})" if wide else "m"
        return f"static inline i32x{w} bz_mask_{what}x{w}(i{64 if wide else 32}x{w} m) {{ return {body}; }}"
    if kind == "" and what == "lanes":
        return (
            f"static inline i32x{w} bz_lanesx{w}(int64_t n) "
            f"{{ return (i32x{w}){{{', '.join(map(str, range(w)))}}} < (int)n; }}"
        )
    if kind == "iota":
        return f"static const {what}x{w} bz_iota_{what}x{w} = {{{', '.join(map(str, range(w)))}}};"
    if what in STORAGE and kind in _MEMORY:
        return _MEMORY[kind](what, w)
    return None


def _select(what: str, w: int) -> str:
    """``m ? a : b`` by lanes."""
    if what == "b":
        return f"static inline i32x{w} bz_sel_bx{w}(i32x{w} m, i32x{w} a, i32x{w} b) {{ return (m & a) | (~m & b); }}"
    t, i = f"{what}x{w}", f"i{REP_BYTES[what] * 8}x{w}"
    mask = "m" if REP_BYTES[what] == 4 else f"__builtin_convertvector(m, {i})"
    return (
        f"static inline {t} bz_sel_{t}(i32x{w} m, {t} a, {t} b) {{\n  const {i} k = {mask};\n"
        f"  return ({t})((k & ({i})a) | (~k & ({i})b));\n}}"
    )


#: the instruction for the greater or smaller of two doubles, by lanes
_DOUBLES = {2: ("__SSE2__", "pd"), 4: ("__AVX__", "pd256"), 8: ("__AVX512F__", "pd512_mask")}


def _extreme(kind: str, what: str, w: int) -> str:
    """The greater (or smaller) of two lanes, of equals the second, and nan where one is nan.

    One instruction gives the second where either is nan; where it is the first, all bits are set, which is nan, too (as ATen's is).
    """
    t, i = f"{what}x{w}", f"i{REP_BYTES[what] * 8}x{w}"
    of, sign = ("max", ">") if kind == "highest" else ("min", "<")
    if what == "f32":
        body = f"  return ({t})(({i})bz_{of}_{t}(v, a) | (v != v));"
    else:
        body = f"  return bz_sel_{t}(bz_mask_{t}((v {sign} a) | (v != v)), v, a);"
    if what == "f64" and w in _DOUBLES:
        has, suffix = _DOUBLES[w]
        rest = ", a, -1, 4" if suffix.endswith("mask") else ""
        quick = f"  return ({t})(({i})__builtin_ia32_{of}{suffix}(v, a{rest}) | (v != v));"
        body = _where(f"if defined({has}) && !defined(__clang__)", quick, body)
    return f"static inline {t} bz_{kind}_{t}({t} v, {t} a) {{\n{body}\n}}"


def _check(what: str, w: int, masked: bool) -> str:
    """Indices, all looked at together: 0, and a status, for those out of range. ``masked``: lanes that are not in use are 0, whatever they hold."""
    t, c = f"{what}x{w}", SCALAR[what]
    bad = f"((v < 0) | (v >= ({c})n))"
    plain = (
        f"  int64_t any = 0;\n  for (int l = 0; l < {w}; ++l) any |= {bad}[l]{' & m[l]' if masked else ''};"
    )
    wide = {"i64x8": ("long long", "q", "256"), "i32x16": ("int", "d", "512")}.get(t)
    if wide is not None:
        number, letter, bits = wide
        every = f"__builtin_ia32_cvtd2mask{bits}(m)" if masked else "-1"
        quick = (
            f"  typedef {number} word __attribute__((vector_size(64)));\n  const int64_t any = "
            f"__builtin_ia32_ucmp{letter}512_mask((word)v, (word){{}} + ({number})n, 5, {every});"
        )
        plain = _where(f"if defined(__AVX512DQ__){VL} && !defined(__clang__)", quick, plain)
    if t in ("i64x4", "i32x8"):
        held = (f" & {'m' if what == 'i32' else f'__builtin_convertvector(m, {t})'}") if masked else ""
        quick = (
            "  typedef long long word __attribute__((vector_size(32)));\n"
            f"  const word out = (word)({bad}{held});\n  const int64_t any = !__builtin_ia32_ptestz256(out, out);"
        )
        plain = _where("if defined(__AVX2__) && !defined(__clang__)", quick, plain)
    used = f"  v &= {'m' if what == 'i32' else f'__builtin_convertvector(m, {t})'};\n" if masked else ""
    return (
        f"static inline {t} bz_check{'m' if masked else ''}_{t}({t} v, int64_t n, int64_t *status{f', i32x{w} m' if masked else ''}) {{\n"
        f"{plain}\n{used}  if (__builtin_expect(any != 0, 0)) {{ *status = 1; v &= ~{bad}; }}\n  return v;\n}}"
    )


def _where(condition: str, then: str, other: str) -> str:
    """Lines for compilers of which a condition of the preprocessor holds, and for others."""
    return f"#{condition}\n{then}\n#else\n{other}\n#endif"


def _truncate_scalar(to: str, source: str) -> str:
    """A float cut off to an integer. What that does not hold is undefined in C, which compilers make use of: it is what the
    processor's own instruction gives, and so eager."""
    c, bits = SCALAR[source], int(to[1:])
    limit = f"0x1p{bits - 1}{'f' if source == 'f32' else ''}"
    inside = f"  return x >= -{limit} && x < {limit} ? ({SCALAR[to]})x : ({SCALAR[to]})(1UL << {bits - 1});"
    body = _where("ifdef __x86_64__", inside, f"  return ({SCALAR[to]})x;")
    return f"static inline {SCALAR[to]} bz_to{to}_{source}s({c} x) {{\n{body}\n}}"


def _truncate(to: str, source: str, w: int) -> str:
    """The same by lanes."""
    t, i, bits = f"{source}x{w}", f"i{REP_BYTES[source] * 8}x{w}", int(to[1:])
    limit = f"0x1p{bits - 1}{'f' if source == 'f32' else ''}"
    inside = "k" if i == f"{to}x{w}" else f"__builtin_convertvector(k, {to}x{w})"
    cut = (
        f"  const {i} k = (x >= -{limit}) & (x < {limit});\n"
        f"  const {to}x{w} r = __builtin_convertvector(({t})(k & ({i})x), {to}x{w});\n"
        f"  return r | (~{inside} & ({SCALAR[to]})(1UL << {bits - 1}));"
    )
    body = _where("ifdef __x86_64__", cut, f"  return __builtin_convertvector(x, {to}x{w});")
    return f"static inline {to}x{w} bz_to{to}_{t}({t} x) {{\n{body}\n}}"


def raw_vector(storage: str, w: int) -> str:
    """The C type of a vector of elements as they lie in memory."""
    return f"{_RAW[STORAGE[storage][0]]}x{w}"


def rep_vector(rep: str, w: int) -> str:
    """The C type of a vector in a representation."""
    return f"{'i32' if rep == 'b' else rep}x{w}"


#: whole numbers of memory: the instructions that widen and narrow sixteen of them, and the vector's type there; that of AVX2's, which widen eight
_SMALL = {
    "u8": ("pmovzxbd", "pmovdb", BYTES, f"({BYTES})(i64x2){{(int64_t)x, 0}}"),
    "i8": ("pmovsxbd", "pmovdb", BYTES, f"({BYTES})(i64x2){{(int64_t)x, 0}}"),
    "i16": ("pmovsxwd", "pmovdw", "i16x16", "(i16x8)x"),
}
#: the two halves of eight numbers ``y`` of 0 to 65,535, packed to 16 bits each
_PACKED = (
    "__builtin_ia32_packusdw128((i32x4)__builtin_ia32_vextractf128_si256((i32x8)y, 0), "
    "(i32x4)__builtin_ia32_vextractf128_si256((i32x8)y, 1))"
)


def _widen(s: str, w: int) -> str:
    """Raw elements to the representation."""
    rep = rep_vector(STORAGE[s][1], w)
    head = f"static inline {rep} bz_widen_{s}x{w}({raw_vector(s, w)} x) "
    if s == "bool":
        plain = f"return __builtin_convertvector(x, i32x{w}) != 0;"
        wide = f"__builtin_ia32_pmovzxbd512_mask(({BYTES})x, (i32x16){{}}, -1)"
        eight = f"__builtin_ia32_pmovzxbd256({_SMALL['u8'][3]})"
        return head + _either(w, plain, f"return (i32x16){wide} != 0;", f"return (i32x8){eight} != 0;")
    if s == "bf16":
        return head + _either(
            w,
            f"return (f32x{w})(__builtin_convertvector(x, i32x{w}) << 16);",
            "return (f32x16)((i32x16)__builtin_ia32_pmovzxwd512_mask((i16x16)x, (i32x16){}, -1) << 16);",
            "return (f32x8)((i32x8)__builtin_ia32_pmovzxwd256((i16x8)x) << 16);",
        )
    if s == "f16":
        return head + _converted(
            w,
            f"f32x{w} r; for (int l = 0; l < {w}; ++l) r[l] = bz_half_s(x[l]); return r;",
            "return (f32x16)__builtin_ia32_vcvtph2ps512_mask((i16x16)x, (f32x16){}, -1, 4);",
            "return (f32x8)__builtin_ia32_vcvtph2ps256((i16x8)x);",
            "return (f32x4)__builtin_ia32_vcvtph2ps((i16x8)(i64x2){(int64_t)x, 0});",
        )
    if s in _SMALL:
        name, _, t, eight = _SMALL[s]
        return head + _either(
            w,
            f"return __builtin_convertvector(x, i32x{w});",
            f"return (i32x16)__builtin_ia32_{name}512_mask(({t})x, (i32x16){{}}, -1);",
            f"return (i32x8)__builtin_ia32_{name}256({eight});",
        )
    return head + "{ return x; }"


def _either(w: int, plain: str, sixteen: str, eight: str) -> str:
    """A body in general vectors, and for sixteen and eight lanes in gcc's builtins: it takes four instructions and more for what is one."""
    fast = {16: ("defined(__AVX512F__)", sixteen), 8: ("defined(__AVX2__) && !defined(__AVX512F__)", eight)}
    if w not in fast:
        return f"{{ {plain} }}" if "\n" not in plain else f"{{\n  {plain}\n}}"
    has, quick = fast[w]
    return f"{{\n{_where(f'if {has} && !defined(__clang__)', f'  {quick}', f'  {plain}')}\n}}"


def _converted(w: int, loop: str, sixteen: str, eight: str, four: str) -> str:
    """A body that converts half types by the processor's own instruction, where it has one."""
    fast = {
        16: ("if defined(__AVX512F__)", sixteen),
        8: ("if defined(__F16C__)", eight),
        4: ("if defined(__F16C__) && !defined(__clang__)", four),
    }
    if w not in fast:
        return f"{{ {loop} }}"
    condition, quick = fast[w]
    return f"{{\n{_where(condition, f'  {quick}', f'  {loop}')}\n}}"


def _narrow(s: str, w: int) -> str:
    """The representation to raw elements; floats round to nearest even, integers wrap."""
    rep, raw = rep_vector(STORAGE[s][1], w), raw_vector(s, w)
    head = f"static inline {raw} bz_narrow_{s}x{w}({rep} x) "
    if s == "bf16":
        return head + _either(
            w,
            f"const i32x{w} b = (i32x{w})x, r = (b + 0x7fff + ((b >> 16) & 1)) >> 16;\n"
            f"  return __builtin_convertvector(bz_sel_i32x{w}(x == x, r, (b >> 16) | 0x40), {raw});",
            "const i32x16 b = (i32x16)x, h = b >> 16, r = (b + 0x7fff + (h & 1)) >> 16;\n"
            "  const uint16_t nan = __builtin_ia32_cmpps512_mask(x, x, 3, -1, 4);\n"
            "  const i32x16 y = (i32x16)__builtin_ia32_pord512_mask(h, (i32x16){} + 0x40, r, nan);\n"
            "  return (u16x16)__builtin_ia32_pmovdw512_mask(y, (i16x16){}, -1);",
            "const u32x8 b = (u32x8)x, h = b >> 16, r = (b + 0x7fff + (h & 1)) >> 16;\n"
            f"  const i32x8 y = bz_sel_i32x8(x == x, (i32x8)r, (i32x8)(h | 0x40));\n  return (u16x8){_PACKED};",
        )
    if s == "f16":
        return head + _converted(
            w,
            f"u16x{w} r; for (int l = 0; l < {w}; ++l) r[l] = bz_tohalf_s(x[l]); return r;",
            "return (u16x16)__builtin_ia32_vcvtps2ph512_mask(x, 0, (i16x16){}, -1);",
            "return (u16x8)__builtin_ia32_vcvtps2ph256(x, 0);",
            "return (u16x4)((i64x2)__builtin_ia32_vcvtps2ph(x, 0))[0];",
        )
    if s in _SMALL or s == "bool":
        _, name, t, _ = _SMALL["u8" if s == "bool" else s]
        x = "x & 1" if s == "bool" else "x"
        bits = {"bool": "1", "i16": "0xffff"}.get(s, "0xff")
        bytes_ = f"__builtin_ia32_packuswb128((i16x8){_PACKED}, (i16x8){{}})"
        packed = f"({raw})((i64x2){bytes_})[0]" if s != "i16" else f"({raw}){_PACKED}"
        return head + _either(
            w,
            f"return __builtin_convertvector({x}, {raw});",
            f"return ({raw})__builtin_ia32_{name}512_mask({x}, ({t}){{}}, -1);",
            f"const i32x8 y = x & {bits};\n  return {packed};",
        )
    return head + "{ return x; }"


def _load(s: str, w: int) -> str:
    rep = rep_vector(STORAGE[s][1], w)
    return (
        f"static inline {rep} bz_load_{s}x{w}(const void *p) "
        f"{{ return bz_widen_{s}x{w}(*(const {raw_vector(s, w)}u *)p); }}"
    )


def _partial(s: str, w: int) -> str:
    """Loads of the first n elements; the other lanes are zero."""
    return _some(s, w, "loadn", "int64_t n", read_first)


def _masked(s: str, w: int) -> str:
    """Loads where the mask holds; the other lanes are zero and their memory is not touched."""
    return _some(s, w, "loadm", f"i32x{w} m", read_masked)


def _some(s: str, w: int, kind: str, which: str, read: Callable[[str, str, int], str]) -> str:
    rep, raw = rep_vector(STORAGE[s][1], w), raw_vector(s, w)
    head = f"static inline {rep} bz_{kind}_{s}x{w}(const void *p, {which})"
    return f"{head} {{\n{read(STORAGE[s][0], raw, w)}\n  return bz_widen_{s}x{w}(v);\n}}"


def _at(s: str, w: int, masked: bool = False) -> str:
    """Loads of lanes that lie anywhere."""
    return gather(s, *STORAGE[s], w, raw_vector(s, w), masked)


def _at_masked(s: str, w: int) -> str:
    """The same where the mask holds; the other lanes are zero and their memory is not touched."""
    return _at(s, w, True)


def _cut(s: str, w: int) -> str:
    """A representation of values that the storage type has: bfloat16 is half of it."""
    body = _either(
        w,
        f"return __builtin_convertvector((i32x{w})x >> 16, u16x{w});",
        "return (u16x16)__builtin_ia32_pmovdw512_mask((i32x16)x >> 16, (i16x16){}, -1);",
        f"const u32x8 y = (u32x8)x >> 16;\n  return (u16x8){_PACKED};",
    )
    return f"static inline {raw_vector(s, w)} bz_cut_{s}x{w}({rep_vector(STORAGE[s][1], w)} x) {body}"


def _store(s: str, w: int, kind: str = "store", narrow: str = "narrow") -> str:
    rep = rep_vector(STORAGE[s][1], w)
    return (
        f"static inline void bz_{kind}_{s}x{w}(void *p, {rep} v) "
        f"{{ *({raw_vector(s, w)}u *)p = bz_{narrow}_{s}x{w}(v); }}"
    )


def _storen(s: str, w: int, kind: str = "storen", narrow: str = "narrow") -> str:
    rep, raw = rep_vector(STORAGE[s][1], w), raw_vector(s, w)
    head = f"static inline void bz_{kind}_{s}x{w}(void *p, {rep} x, int64_t n)"
    return f"{head} {{\n  const {raw} v = bz_{narrow}_{s}x{w}(x);\n{write_first(STORAGE[s][0], raw, w)}\n}}"


def _put(s: str, w: int) -> str:
    """A store of values that the storage type has."""
    return _store(s, w, "put", "cut")


def _move(s: str, w: int) -> str:
    """A store of elements as they lay in memory."""
    raw = raw_vector(s, w)
    return f"static inline void bz_move_{s}x{w}(void *p, {raw} v) {{ *({raw}u *)p = v; }}"


def _first(s: str, w: int) -> str:
    """The first n elements as they lie in memory; the other lanes are zero."""
    raw = raw_vector(s, w)
    head = f"static inline {raw} bz_first_{s}x{w}(const void *p, int64_t n)"
    return f"{head} {{\n{read_first(STORAGE[s][0], raw, w)}\n  return v;\n}}"


def _moven(s: str, w: int) -> str:
    """A store of the first n of such elements."""
    raw = raw_vector(s, w)
    head = f"static inline void bz_moven_{s}x{w}(void *p, {raw} v, int64_t n)"
    return f"{head} {{\n{write_first(STORAGE[s][0], raw, w)}\n}}"


def _putn(s: str, w: int) -> str:
    return _storen(s, w, "putn", "cut")


def _round(s: str, w: int) -> str:
    """A representation rounded to the storage type."""
    rep = rep_vector(STORAGE[s][1], w)
    return (
        f"static inline {rep} bz_round_{s}x{w}({rep} x) {{ return bz_widen_{s}x{w}(bz_narrow_{s}x{w}(x)); }}"
    )


_MEMORY = {
    "widen": _widen, "narrow": _narrow, "load": _load, "loadn": _partial, "loadm": _masked, "store": _store,
    "storen": _storen, "round": _round, "at": _at, "atm": _at_masked, "cut": _cut, "put": _put, "putn": _putn, "move": _move,
    "moven": _moven, "first": _first,
}  # fmt: skip
