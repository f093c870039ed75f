"""The register-blocked inner loops of the GEMM template, as C text."""

from __future__ import annotations

#: products added up in one register, at most, before the sum moves to memory: sums of equally many round least
_CHAIN = 128
#: floats in a line of the cache
LINE = 16
#: floats of a panel from what is multiplied by to what is asked for: a second-level cache answers later than registers need the next rows. Half of that was
#: less under AVX-512, twice as much no more (`benchmarks/results/2026-12-01-products-panels-ahead.json` has this distance)
_NEAR = 48 * LINE


def micro_kernel(rows: int, vectors: int, w: int, by_columns: bool, asked: int) -> str:
    """C of ``c[rows][vectors*w] (+)= a[rows][k] @ b[k][vectors*w]``, results in registers over k.

    ``lda`` is from row to row of a, or, if a lies ``by_columns``, from column to column. With each place of the sum, so many lines are ``asked`` of memory,
    ``apart`` from each other, for what is done next; of the next place those ``step`` further. Rows of b are asked for ahead of their use, too: a panel is
    larger than the first cache, and the processor's own look ahead leaves a tenth of the time waiting. A request may lie behind the panel's end, where it faults nowhere.
    """
    if by_columns:
        pointers = [f"  const float *const a{r} = a + {r};" for r in range(rows)]
        element, kind = "a{}[i*lda]", "t"
    else:
        pointers = [f"  const float *const a{r} = a + {r}*lda;" for r in range(rows)]
        element, kind = "a{}[i]", "c"
    t, cells = f"f32x{w}", [(r, v) for r in range(rows) for v in range(vectors)]
    at = {(r, v): f"*({t}u *)(c + {(r * vectors + v) * w})" for r, v in cells}
    lines = [
        f"static __attribute__((noinline)) void bz_gemm{rows}{kind}{vectors}{f'a{asked}' if asked else ''}_{t}(",
        "    int64_t k, const float *a, int64_t lda, const float *b, float *c, int again"
        f"{', const float *next, int64_t step, int64_t apart' if asked else ''}) {{",
        *pointers,
        "  int64_t each = k;",
        f"  if (k > {_CHAIN}) {{ const int64_t parts = (k + {_CHAIN - 1}) / {_CHAIN}; each = (k + parts - 1) / parts; }}",
        "  for (int64_t i = 0; i < k; again = 1) {",
        "    const int64_t stop = i + each < k ? i + each : k;",
        f"    {t} " + ", ".join(f"s{r}_{v} = {{}}" for r, v in cells) + ";",
        f"    for (; i < stop; ++i, b += {vectors * w}{', next += step' if asked else ''}) {{",
        *(f"      __builtin_prefetch(next + {n}*apart, 0, 2);" for n in range(asked)),
        *(f"      __builtin_prefetch(b + {_NEAR + n});" for n in range(0, vectors * w, LINE)),
        *(f"      const {t} b{v} = *(const {t}u *)(b + {v * w});" for v in range(vectors)),
    ]
    for r in range(rows):
        lines.append(f"      const {t} x{r} = bz_splat_{t}({element.format(r)});")
        lines += [f"      s{r}_{v} = bz_fma_{t}(x{r}, b{v}, s{r}_{v});" for v in range(vectors)]
    lines += ["    }", "    if (again) {"]
    lines += [f"      {at[cell]} += s{cell[0]}_{cell[1]};" for cell in cells]
    lines += ["    } else {"]
    lines += [f"      {at[cell]} = s{cell[0]}_{cell[1]};" for cell in cells]
    return "\n".join([*lines, "    }", "  }", "}"])
