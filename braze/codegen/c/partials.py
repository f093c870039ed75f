"""Loads and stores of some lanes of a vector: its first ones, where a row ends, or those of a mask. No other memory is touched.

AVX-512 has one instruction for each. AVX2 reads so numbers of four and eight bytes; smaller ones, and all that is written, go in pieces of a half, a
quarter and so on, which are as many as the count has bits: straight lines where the compiler knows the count. (Its masked stores are some
forty micro-operations on AMD's processors.) Element by element, through the stack, a rest of five takes longer than the row's other work.
"""

from __future__ import annotations

from collections.abc import Callable

#: what GCC's builtins for shorter vectors need beside; their type of sixteen bytes, neither signed nor unsigned ones
VL = " && defined(__AVX512VL__)"
_BW = " && defined(__AVX512BW__) && defined(__AVX512VL__)"
_LONG = "long long __attribute__((vector_size(64)))"
_WIDE = "long long __attribute__((vector_size(32)))"
BYTES = "char __attribute__((vector_size(16)))"
#: of memory's types and lanes: AVX-512's builtin, the vector's type there, what that needs beside AVX512F
_AT_ONCE = {
    ("float", 16): ("ups512", "f32x16", ""),
    ("float", 8): ("ups256", "f32x8", VL),
    ("double", 8): ("upd512", "f64x8", ""),
    ("int32_t", 16): ("dqusi512", "i32x16", ""),
    ("int32_t", 8): ("dqusi256", "i32x8", VL),
    ("int64_t", 8): ("dqudi512", _LONG, ""),
    ("int16_t", 16): ("dquhi256", "i16x16", _BW),
    ("uint16_t", 16): ("dquhi256", "i16x16", _BW),
    ("int16_t", 8): ("dquhi128", "i16x8", _BW),
    ("uint16_t", 8): ("dquhi128", "i16x8", _BW),
    ("int8_t", 16): ("dquqi128", BYTES, _BW),
    ("uint8_t", 16): ("dquqi128", BYTES, _BW),
}
#: AVX's loads under a mask, by bytes of an element and lanes: the builtin, its vector's type
_MASKED = {(4, 8): ("ps256", "f32x8"), (4, 4): ("ps", "f32x4"), (8, 4): ("pd256", "f64x4")}
_SIZE = {"float": 4, "double": 8, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "int64_t": 8}  # fmt: skip
#: bytes of the longest vector without AVX-512
_AVX_BYTES = 32
_WORD = "  typedef {c} word{bits} __attribute__((aligned(1), may_alias));"


def read_first(c: str, raw: str, w: int) -> str:
    """Lines that make ``v`` of the first ``n`` elements at ``p``, and zeros."""
    mask = f"bz_lanesx{w}(n)"
    return _by_processor(
        (c, w),
        "defined(__AVX512F__)",
        _at_once("load", c, raw, w, _first(w)),
        lambda: _under_mask(c, raw, w, mask) or _pieces_read(c, raw, w),
        f"  {raw} v = {{}};\n  for (int64_t l = 0; l < n; ++l) v[l] = ((const {c} *)p)[l];",
    )


def read_masked(c: str, raw: str, w: int) -> str:
    """Lines that make ``v`` of the elements at ``p`` where the mask ``m`` holds, and zeros."""
    loop = f"for (int l = 0; l < {w}; ++l) if (m[l]) v[l] = ((const {c} *)p)[l];"
    bits = {4: "", 8: "256"}.get(w, "")
    whole = (
        f"  {raw} v = {{}};\n  const int held = __builtin_ia32_movmskps{bits}((f32x{w})m);\n"
        f"  if (held == {(1 << w) - 1}) v = *(const {raw}u *)p;\n  else if (held) {loop}"
    )
    return _by_processor(
        (c, w),
        f"defined(__AVX512DQ__){'' if w == 16 else VL}",
        _at_once("load", c, raw, w, f"__builtin_ia32_cvtd2mask{'512' if w == 16 else '256'}(m)"),
        lambda: _under_mask(c, raw, w, "m") or whole,
        f"  {raw} v = {{}};\n  {loop}",
    )


def write_first(c: str, raw: str, w: int) -> str:
    """Lines that store the first ``n`` elements of ``v`` at ``p``."""
    return _by_processor(
        (c, w),
        "defined(__AVX512F__)",
        _at_once("store", c, raw, w, _first(w)),
        lambda: _pieces_written(c, raw, w),
        f"  for (int64_t l = 0; l < n; ++l) (({c} *)p)[l] = v[l];",
    )


def _by_processor(key: tuple[str, int], has: str, wide: str, avx: Callable[[], str], loop: str) -> str:
    """Lines for the instructions that there are."""
    lines = [f"#if {has}{_AT_ONCE[key][2]}", wide] if key in _AT_ONCE else []
    if _SIZE[key[0]] * key[1] <= _AVX_BYTES and key[1] in (4, 8):
        lines += [f"#{'elif' if lines else 'if'} defined(__AVX2__)", avx()]
    return "\n".join([*lines, "#else", loop, "#endif"]) if lines else loop


def _first(w: int) -> str:
    """A mask of the first n lanes."""
    return f"(uint{w}_t)((1u << n) - 1)"


def _at_once(what: str, c: str, raw: str, w: int, mask: str) -> str:
    if (c, w) not in _AT_ONCE:
        return ""
    name, t, _ = _AT_ONCE[c, w]
    if what == "store":
        return f"  __builtin_ia32_store{name}_mask(p, ({t})v, {mask});"
    return f"  const {raw} v = ({raw})__builtin_ia32_load{name}_mask(p, ({t}){{}}, {mask});"


def _under_mask(c: str, raw: str, w: int, mask: str) -> str:
    found = _MASKED.get((_SIZE[c], w))
    if found is None:
        return ""
    name, t = found
    lanes = mask if _SIZE[c] == 4 else f"({_WIDE})__builtin_convertvector({mask}, i64x{w})"
    return f"  const {raw} v = ({raw})__builtin_ia32_maskload{name}((const {t} *)p, {lanes});"


def _pieces_read(c: str, raw: str, w: int) -> str:
    """Elements of one or two bytes: pieces shifted to their place in a word of eight bytes, of which the vector has one or two."""
    size = _SIZE[c]
    lines = [_WORD.format(c=f"uint{b}_t", bits=b) for b in (8, 16, 32, 64) if 8 * size <= b <= 4 * size * w]
    lines += ["  const char *q = p;", "  uint64_t low = 0, t = 0;", "  int at = 0;"]
    half = w // 2
    if half * size == 8:
        lines.append(f"  if (n & {half}) {{ low = *(const word64 *)q; q += 8; }}")
        half //= 2
    while half:
        bits = 8 * size * half
        lines.append(
            f"  if (n & {half}) {{ t |= (uint64_t)*(const word{bits} *)q << at; q += {bits // 8}; at += {bits}; }}"
        )
        half //= 2
    made = {16: f"n & {w // 2} ? (i64x2){{low, t}} : (i64x2){{t, 0}}", 8: "t", 4: "(uint32_t)t"}[size * w]
    lines += [f"  {raw} v = ({raw})({made});", f"  if (n >= {w}) v = *(const {raw}u *)p;"]
    return "\n".join(lines)


def _pieces_written(c: str, raw: str, w: int) -> str:
    """Pieces from the front of the words of which the vector is made, the rest moved to the front."""
    size = _SIZE[c]
    words = max(1, size * w // 8)
    whole = {1: "t", 2: "(i64x2)v", 4: "(i64x4)v"}[words]
    lines = [_WORD.format(c=f"uint{b}_t", bits=b) for b in (8, 16, 32, 64) if 8 * size <= b <= 4 * size * w]
    lines += ["  char *q = p;", f"  if (n >= {w}) {{ *({raw}u *)p = v; return; }}"]
    if words == 1:
        lines.append(f"  uint64_t t0 = ({'uint64_t' if size * w == 8 else 'uint32_t'})v;")
    else:
        lines.append(f"  uint64_t {', '.join(f't{k} = ({whole})[{k}]' for k in range(words))};")
    half = w // 2
    while half:
        bits = 8 * size * half
        stored = "".join(f"*(word{min(bits, 64)} *)(q + {8 * k}) = t{k}; " for k in range(max(1, bits // 64)))
        step = bits // 64
        moved = "".join(f"t{k} = t{k + step}; " for k in range(step)) if step else f"t0 >>= {bits}; "
        rest = f"q += {bits // 8}; {moved}" if half > 1 else ""
        lines.append(f"  if (n & {half}) {{ {stored}{rest}}}")
        half //= 2
    return "\n".join(lines)
