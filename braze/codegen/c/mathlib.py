"""The C library that kernels call: one short function per section, instantiated for a number of lanes.

The sections stand in the C files beside this one, behind ``//@ name``. A section's name is the C function's without its lanes:
section ``bz_exp_f32`` defines ``bz_exp_f32x16`` where ``@W@`` is 16, and ``@H@`` 8. ``@p(x) = a, b, c@`` stands for the lines that compute the
polynomial a·x² + b·x + c as ``p``. Only sections that a kernel's text mentions, and those that they mention, enter a
translation unit (``prelude.assemble``).
"""

from __future__ import annotations

import re
from pathlib import Path

from braze.loops.scalars import SCALARS

#: what the capital words in remainders.h are, by representation
_WORDS: dict[str, dict[str, str]] = {
    "f32": {
        "PICK": "bz_sel_f32x@W@", "ANY": "bz_anyx@W@", "ZERO": "0.0f", "ONE": "1.0f", "HALF": "0.5f", "EXACT": "0x1p22f",
        "MOST": "0x1.fffffep127f", "FMOD": "fmodf", "R": "f32", "I": "i32",
    },
    "f64": {
        "PICK": "bz_pick_f64x@W@", "ANY": "bz_anywidex@W@", "ZERO": "0.0", "ONE": "1.0", "HALF": "0.5", "EXACT": "0x1p51",
        "MOST": "0x1.fffffffffffffp1023", "FMOD": "fmod", "R": "f64", "I": "i64",
    },
}  # fmt: skip

_ROUNDING = {"floor": 9, "ceil": 10, "trunc": 11, "rint": 8}


def _rounding() -> str:
    """floor, ceil, trunc and round-half-even by the rounding instructions, else by the compiler's builtin."""
    out = []
    for name, mode in _ROUNDING.items():
        shown = "round" if name == "rint" else name
        for rep, suffix, c in (("f32", "ps", "f"), ("f64", "pd", "")):
            wide, half = (16, 8) if rep == "f32" else (8, 4)
            t = f"{rep}x@W@"
            out.append(f"""
//@ bz_{shown}_{rep}
static inline {t} bz_{shown}_{rep}x@W@({t} x) {{
#if @W@ == {wide} && defined(__AVX512F__)
  return ({t})__builtin_ia32_rndscale{suffix}_mask(x, {mode}, x, -1, 4);
#elif @W@ == {half} && defined(__AVX__)
  return ({t})__builtin_ia32_round{suffix}256(x, {mode});
#else
  {t} r;
  for (int l = 0; l < @W@; ++l) r[l] = __builtin_{name}{c}(x[l]);
  return r;
#endif
}}""")
    return "\n".join(out)


#: (name, representation) of functions done lane by lane through the C library -> their argument count
_LIBM = {(op.value, rep): row.arity for op, row in SCALARS.items() for rep in row.library}

#: before functions that are built without AVX: while the upper halves of the registers are in use, each of their
#: instructions waits for the one before (25 to 75 times the time on a Sapphire Rapids)
_CLEAN = """
#ifdef __AVX__
  __builtin_ia32_vzeroupper();
#endif"""


def _lanes(name: str, result: str, args: str, count: int, before: str = "") -> str:
    """A function that calls scalar ``name`` on each lane."""
    t, a = f"{result}x@W@", f"{args}x@W@"
    params = ", ".join(f"{a} {p}" for p in "abc"[:count])
    called = ", ".join(f"{p}[l]" for p in "abc"[:count])
    return f"({params}) {{\n  {t} r;{before}\n  for (int l = 0; l < @W@; ++l) r[l] = {name}({called});\n  return r;\n}}"


def _libm() -> str:
    """Vector functions without an own polynomial, and the scalar declarations that they need."""
    out = []
    for (name, rep), count in _LIBM.items():
        body = _lanes(name + ("f" if rep == "f32" else ""), rep, rep, count, _CLEAN)
        out.append(
            f"//@ bz_{name}_{rep}\nstatic __attribute__((noinline)) {rep}x@W@ bz_{name}_{rep}x@W@{body}"
        )
    for rep in ("i32", "i64"):
        for name in ("floordiv", "truncdiv", "remainder", "fmod", "pow"):
            body = _lanes(f"bz_{name}_s", rep, rep, 2)
            out.append(f"//@ bz_{name}_{rep}\nstatic {rep}x@W@ bz_{name}_{rep}x@W@{body}")
        for name in ("floordiv", "remainder"):  # by a literal, of which the compiler makes a multiplication
            scalar = "int64_t" if rep == "i64" else "int32_t"
            out.append(
                f"//@ bz_{name}by_{rep}\nstatic inline __attribute__((always_inline)) {rep}x@W@ bz_{name}by_{rep}x@W@({rep}x@W@ a, {scalar} b) {{\n"
                f"  {rep}x@W@ r;\n  for (int l = 0; l < @W@; ++l) r[l] = bz_{name}by_s(a[l], b);\n  return r;\n}}"
            )
        for name in ("uniform", "normal"):
            body = _lanes(f"bz_{name}_s", "f32", rep, 2, _CLEAN)
            out.append(f"//@ bz_{name}_{rep}\nstatic f32x@W@ bz_{name}_{rep}x@W@{body}")
    return "\n".join(out)


def text_of(name: str) -> str:
    """One of the C files."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _horner(match: re.Match[str]) -> str:
    """The lines that compute a polynomial; of ``far ? a : b`` the first one where ``far``."""
    to, x, far, numbers = match.groups()
    lists = [re.split(r",\s*", part.strip()) for part in numbers.split(":")]
    t = "f32x@W@" if lists[0][0].endswith("f") else "f64x@W@"
    values = [f"bz_splat_{t}({a})" for a in lists[0]]
    if far:
        others = [f"bz_splat_{t}({b})" for b in lists[1]]
        values = [f"bz_pick_{t}(far, {a}, {b})" for a, b in zip(values, others, strict=True)]
    lines = [f"{t} {to} = {values[0]};", *[f"{to} = bz_fma_{t}({to}, {x}, {value});" for value in values[1:]]]
    return "\n  ".join(lines)


def _remainders(rep: str) -> str:
    """The sections about remainders for a representation."""
    words = _WORDS[rep]
    found = re.sub(
        r"\b(PICK|ANY|ZERO|ONE|HALF|EXACT|MOST|FMOD)\b", lambda m: words[m[1]], text_of("remainders.h")
    )
    return re.sub(
        r"\bRx|(?<=_)R(?=x|$)|\bIx",
        lambda m: m[0].replace("R", words["R"]).replace("I", words["I"]),
        found,
        flags=re.M,
    )


def _sections() -> dict[str, str]:
    """All of them, by name."""
    texts = [
        *map(text_of, ("float32.h", "float64.h", "integers.h")),
        *map(_remainders, _WORDS),
        _rounding(),
        _libm(),
    ]
    found: dict[str, str] = {}
    for text in texts:
        text = re.sub(r"@(\w)\((\w)\) = (far \?)?([^@]+)@", _horner, text).replace("@clean@", _CLEAN)
        _, *parts = re.split(r"^//@ (\w+)$", text, flags=re.M)
        found |= {name: body.strip("\n") for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return found


#: section name -> C text with @W@ for the number of lanes, @H@ for half of it
SECTIONS: dict[str, str] = _sections()

#: scalar functions of libm that sections and kernels may call, with their number of arguments
LIBM_SCALARS: dict[str, int] = {
    **{name: count for (name, _), count in _LIBM.items()}, "sin": 1, "cos": 1, "log": 1, "fmod": 2, "floor": 1, "ceil": 1, "trunc": 1, "rint": 1, "sqrt": 1, "fabs": 1, "fma": 3,
    "copysign": 2, "pow": 2,
}  # fmt: skip
