"""The text of a load of lanes that lie anywhere in memory, by the processor's own instruction."""

from __future__ import annotations

_LONG = "long long __attribute__((vector_size(64)))"
#: a small element, out of the low bits of a lane of 32: its value in the representation; @W@ lanes of @B@ bits in all
_CUT = {
    "bf16": "(f32x@W@)(g << 16)",
    "f16": "bz_widen_f16x@W@((u16x@W@)__builtin_ia32_pmovdw@B@_mask(g, (i16x@W@){}, -1))",
    "i16": "(g << 16) >> 16",
    "i8": "(g << 24) >> 24",
    "u8": "g & 0xff",
    "bool": "(g & 0xff) != 0",
}


def gather(storage: str, c: str, rep: str, w: int, raw: str, masked: bool) -> str:
    """``bz_at``: lane l is p[k[l]]; ``bz_atm``: where the mask holds, else 0 without a look at memory.

    ``c``: the type of an element, ``rep`` the representation, ``raw`` the vector of elements. Small elements are cut out of the
    four bytes around them that begin at a multiple of four: no other page than theirs is read.
    """
    each = [f"((const {c} *)p)[k[{lane}]]" for lane in range(w)]
    if masked:
        each = [f"BZ_WHERE({c}, m[{lane}], {text})" for lane, text in enumerate(each)]
    used = f"__builtin_ia32_cvtd2mask{32 * w}(m)" if masked else "-1"
    name, offset = ("gatherdiv", _LONG) if w == 8 else ("gathersiv", "i32x16")
    if storage in _CUT:
        size, shift = (2 if c.endswith("16_t") else 1), "(b & 3) << 3"
        narrow = f"__builtin_convertvector({shift}, i32x8)" if w == 8 else f"({shift})"
        cut = _CUT[storage].replace("@W@", str(w)).replace("@B@", str(32 * w))
        quick = [
            "const int o = (int)((int64_t)p & 3);",
            f"const {'i64x8' if w == 8 else 'i32x16'} b = k * {size} + o;",
            f"const i32x{w} r = (i32x{w})__builtin_ia32_{name}16si((i32x{w}){{}}, (const char *)p - o, ({offset})(b >> 2), {used}, 4);",
            f"const i32x{w} g = r >> {narrow};",
            f"return {cut};",
        ]
    elif rep.endswith("64"):
        of, t = ("df", "f64x8") if rep == "f64" else ("di", _LONG)
        quick = [f"return ({rep}x8)__builtin_ia32_gatherdiv8{of}(({t}){{}}, p, ({offset})k, {used}, 8);"]
    else:
        of = "sf" if rep == "f32" else "si"
        quick = [
            f"return ({rep}x{w})__builtin_ia32_{name}16{of}(({rep}x{w}){{}}, p, ({offset})k, {used}, 4);"
        ]
    lines = "\n".join(f"  {line}" for line in quick)
    return (
        f"static inline {'i32' if rep == 'b' else rep}x{w} bz_{'atm' if masked else 'at'}_{storage}x{w}"
        f"(const void *p, {'i64x8' if w == 8 else 'i32x16'} k{f', i32x{w} m' if masked else ''}) {{\n"
        f"#if defined(__AVX512DQ__) && defined(__AVX512VL__) && !defined(__clang__)\n{lines}\n"
        f"#else\n  return bz_widen_{storage}x{w}(({raw}){{{', '.join(each)}}});\n#endif\n}}"
    )
