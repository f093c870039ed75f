/* Functions of float64: sections as mathlib.py says. Polynomials are near-minimax fits (Chebyshev, in 60 digits) on a
   reduced argument; what the reduction rounds off is carried along. Arguments outside of what a function's reduction can do (angles past
   2^16, powers of numbers that are not positive and normal, quotients past 2^52) go to C's library, lane by lane. Errors are stated in
   loops/scalars.py and tested against 40 digits in tests/codegen/test_c_doubles.py. */
//@ bz_sqrt_f64
static inline f64x@W@ bz_sqrt_f64x@W@(f64x@W@ x) {
#if defined(__clang__)
  return __builtin_elementwise_sqrt(x);
#elif @W@ == 8 && defined(__AVX512F__)
  return (f64x8)__builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
#elif @W@ == 4 && defined(__AVX__)
  return (f64x4)__builtin_ia32_sqrtpd256(x);
#else
  f64x@W@ r;
  for (int l = 0; l < @W@; ++l) r[l] = __builtin_sqrt(x[l]);
  return r;
#endif
}
//@ bz_fma_f64
static inline f64x@W@ bz_fma_f64x@W@(f64x@W@ a, f64x@W@ b, f64x@W@ c) {
#if @W@ == 8 && defined(__AVX512F__)
  return (f64x8)__builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#elif @W@ == 4 && defined(__FMA__)
  return (f64x4)__builtin_ia32_vfmaddpd256(a, b, c);
#else
  f64x@W@ r;
  for (int l = 0; l < @W@; ++l) r[l] = __builtin_fma(a[l], b[l], c[l]);
  return r;
#endif
}
//@ bz_fma_s
/* as bz_fmaf_s */
static inline __attribute__((always_inline)) double bz_fma_s(double a, double b, double c) {
  double r = __builtin_fma(a, b, c);
  BZ_OF_ANYWHERE(r);
  return r;
}
//@ bz_abs_f64
static inline f64x@W@ bz_abs_f64x@W@(f64x@W@ x) { return (f64x@W@)((i64x@W@)x & 0x7fffffffffffffffL); }
//@ bz_copysign_f64
static inline f64x@W@ bz_copysign_f64x@W@(f64x@W@ x, f64x@W@ s) {
  const i64x@W@ top = (i64x@W@){} + (-0x7fffffffffffffffL - 1);
  return (f64x@W@)(((i64x@W@)x & ~top) | ((i64x@W@)s & top));
}
//@ bz_sigmoid_f64
static inline f64x@W@ bz_sigmoid_f64x@W@(f64x@W@ x) { return 1.0 / (1.0 + bz_exp_f64x@W@(-x)); }

//@ bz_pick_f64
/* a where a lane of m is -1, b where it is 0 */
static inline f64x@W@ bz_pick_f64x@W@(i64x@W@ m, f64x@W@ a, f64x@W@ b) {
  return (f64x@W@)((m & (i64x@W@)a) | (~m & (i64x@W@)b));
}
//@ bz_anywide
static inline int bz_anywidex@W@(i64x@W@ m) {
#if @W@ == 8 && defined(__AVX512DQ__)
  return (unsigned char)__builtin_ia32_cvtq2mask512((long long __attribute__((vector_size(64))))m) != 0;
#else
  int64_t r = 0;
  for (int l = 0; l < @W@; ++l) r |= m[l];
  return r != 0;
#endif
}
//@ bz_within_f64
/* low <= x <= high; nan stays */
static inline f64x@W@ bz_within_f64x@W@(f64x@W@ x, double low, double high) {
  x = bz_pick_f64x@W@(x < low, bz_splat_f64x@W@(low), x);
  return bz_pick_f64x@W@(x > high, bz_splat_f64x@W@(high), x);
}
//@ bz_ldexp_f64
/* p * 2^n, where t = n + 1.5 * 2^52 holds n in its low bits; |n| <= 1100 */
static inline f64x@W@ bz_ldexp_f64x@W@(f64x@W@ p, f64x@W@ t, f64x@W@ n) {
#if @W@ == 8 && defined(__AVX512F__)
  return (f64x8)__builtin_ia32_scalefpd512_mask(p, n, p, -1, 4);
#else
  /* half of n first: both factors are normal, and only the last product rounds */
  const f64x@W@ u = n * 0.5 + 0x1.8p52;
  const i64x@W@ k = (i64x@W@)t - 0x4338000000000000L, h = (i64x@W@)u - 0x4338000000000000L;
  return p * (f64x@W@)((h + 1023) << 52) * (f64x@W@)((k - h + 1023) << 52);
#endif
}
//@ bz_ldexpfrom_f64
/* bz_ldexp where x is not below what has a result, else 0, as of floats */
static inline f64x@W@ bz_ldexpfrom_f64x@W@(f64x@W@ x, double least, f64x@W@ p, f64x@W@ t, f64x@W@ n) {
#if @W@ == 8 && defined(__AVX512F__)
  return (f64x8)__builtin_ia32_scalefpd512_mask(p, n, (f64x8){}, __builtin_ia32_cmppd512_mask(x, bz_splat_f64x8(least), 21, -1, 4), 4);
#else
  return bz_ldexp_f64x@W@((f64x@W@)((i64x@W@)p & ~(x < least)), t, n);
#endif
}
//@ bz_exppart_f64
/* exp(r) - 1 for |r| <= ln(2)/2, c being what r lacks */
static inline f64x@W@ bz_exppart_f64x@W@(f64x@W@ r, f64x@W@ c) {
  @p(r) = 0x1.1f735f2a2a59fp-29, 0x1.af4e8a50136f6p-26, 0x1.27e4db3835435p-22, 0x1.71de01e432ef7p-19,
    0x1.a01a01a6e67fap-16, 0x1.a01a01ac006dfp-13, 0x1.6c16c16c162bap-10, 0x1.11111111100afp-7, 0x1.5555555555556p-5,
    0x1.5555555555557p-3, 0x1.0p-1@
  return bz_fma_f64x@W@(p * r, r, c) + r;
}
//@ bz_exp_f64
static inline f64x@W@ bz_exp_f64x@W@(f64x@W@ v) {
  const f64x@W@ x = bz_within_f64x@W@(v, -746.0, 710.0);
  const f64x@W@ t = bz_fma_f64x@W@(x, bz_splat_f64x@W@(0x1.71547652b82fep+0), bz_splat_f64x@W@(0x1.8p52));
  const f64x@W@ n = t - 0x1.8p52;
  f64x@W@ r = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.62e42fefa38p-1), x);
  r = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.ef35793c7673p-45), r);
  return bz_ldexpfrom_f64x@W@(v, -746.0, bz_exppart_f64x@W@(r, (f64x@W@){}) + 1.0, t, n);
}
//@ bz_expm1_f64
static inline f64x@W@ bz_expm1_f64x@W@(f64x@W@ v) {
  const f64x@W@ x = bz_within_f64x@W@(v, -60.0, 709.9);
  const f64x@W@ t = bz_fma_f64x@W@(x, bz_splat_f64x@W@(0x1.71547652b82fep+0), bz_splat_f64x@W@(0x1.8p52));
  const f64x@W@ n = t - 0x1.8p52;
  const f64x@W@ a = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.62e42fefa38p-1), x);
  const f64x@W@ r = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.ef35793c7673p-45), a);
  const f64x@W@ c = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.ef35793c7673p-45), a - r);
  const f64x@W@ p = bz_exppart_f64x@W@(r, c);
  /* 2^(n-1), so that n = 1024 stays finite */
  const f64x@W@ s = (f64x@W@)(((i64x@W@)t - 0x4338000000000000L + 1022) << 52);
  const f64x@W@ y = bz_fma_f64x@W@(p, s, s - 0.5) * 2.0;
  return bz_pick_f64x@W@(n == 0.0, bz_pick_f64x@W@(v == 0.0, v, p), bz_pick_f64x@W@(v > 709.85, v * 0x1p1023, y));
}
//@ bz_tanh_f64
static inline f64x@W@ bz_tanh_f64x@W@(f64x@W@ x) {
  const f64x@W@ a = bz_within_f64x@W@(bz_abs_f64x@W@(x), 0.0, 20.0), e = bz_expm1_f64x@W@(a + a);
  return bz_pick_f64x@W@(x != x, x, bz_copysign_f64x@W@(e / (e + 2.0), x));
}
//@ bz_logpart_f64
/* log(1 + f) + c for sqrt(1/2) - 1 <= f < sqrt(2) - 1, plus e*ln2 */
static inline f64x@W@ bz_logpart_f64x@W@(f64x@W@ f, f64x@W@ e, f64x@W@ c) {
  const f64x@W@ s = f / (f + 2.0), z = s * s, h = f * f * 0.5;
  @p(z) = 0x1.2b5f68a50d903p-3, 0x1.39fdcceb4bb45p-3, 0x1.7462b91b8df65p-3, 0x1.c71c62d5e53ep-3, 0x1.2492492dfd86cp-2,
    0x1.9999999995273p-2, 0x1.5555555555558p-1@
  f64x@W@ low = bz_fma_f64x@W@(e, bz_splat_f64x@W@(0x1.ef35793c7673p-45), c);
  low = bz_fma_f64x@W@(s, bz_fma_f64x@W@(p, z, h), low);
  return bz_fma_f64x@W@(e, bz_splat_f64x@W@(0x1.62e42fefa38p-1), f - (h - low));
}
//@ bz_exponent_f64
/* the exponent of what lies between sqrt(1/2) and sqrt(2) times a power of two, as a number; b: its bits */
static inline f64x@W@ bz_exponent_f64x@W@(i64x@W@ b) {
  const i64x@W@ k = (b - 0x3fe6a09e667f3bcdL) >> 52;
  return (f64x@W@)(k + 0x4338000000000000L) - 0x1.8p52;
}
//@ bz_log_f64
static inline f64x@W@ bz_log_f64x@W@(f64x@W@ x) {
  const i64x@W@ tiny = x < 0x1p-1022;
  const i64x@W@ b = (i64x@W@)bz_pick_f64x@W@(tiny, x * 0x1p52, x);
  const i64x@W@ k = (b - 0x3fe6a09e667f3bcdL) >> 52;
  const f64x@W@ f = (f64x@W@)(b - (k << 52)) - 1.0;
  const f64x@W@ e = bz_exponent_f64x@W@(b) - (f64x@W@)(tiny & (i64x@W@)bz_splat_f64x@W@(52.0));
  f64x@W@ r = bz_logpart_f64x@W@(f, e, (f64x@W@){});
  r = bz_pick_f64x@W@(x > 0x1.fffffffffffffp1023, x, r);
  r = bz_pick_f64x@W@(x == 0.0, bz_splat_f64x@W@(-__builtin_inf()), r);
  return bz_pick_f64x@W@(x >= 0.0, r, bz_splat_f64x@W@(__builtin_nan("")));
}
//@ bz_log1p_f64
static inline f64x@W@ bz_log1p_f64x@W@(f64x@W@ x) {
  const f64x@W@ u = 1.0 + x;
  const i64x@W@ b = (i64x@W@)u;
  const i64x@W@ near = (x > -0.29) & (x < 0.41);
  const i64x@W@ k = ~near & ((b - 0x3fe6a09e667f3bcdL) >> 52);
  const f64x@W@ f = bz_pick_f64x@W@(near, x, (f64x@W@)(b - (k << 52)) - 1.0);
  const f64x@W@ e = (f64x@W@)(k + 0x4338000000000000L) - 0x1.8p52;
  /* what 1 + x lost */
  f64x@W@ c = bz_pick_f64x@W@(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u;
  c = bz_pick_f64x@W@(near | (x > 0x1p54), (f64x@W@){}, c);
  f64x@W@ r = bz_logpart_f64x@W@(f, e, c);
  r = bz_pick_f64x@W@((x > 0x1.fffffffffffffp1023) | (x == 0.0), x, r);
  r = bz_pick_f64x@W@(x == -1.0, bz_splat_f64x@W@(-__builtin_inf()), r);
  return bz_pick_f64x@W@(x >= -1.0, r, bz_splat_f64x@W@(__builtin_nan("")));
}
//@ bz_pownear_f64
/* x^y for normal positive x: the logarithm in two parts, of 65 bits */
static inline f64x@W@ bz_pownear_f64x@W@(f64x@W@ x, f64x@W@ y) {
  const i64x@W@ b = (i64x@W@)x, k = (b - 0x3fe6a09e667f3bcdL) >> 52;
  const f64x@W@ f = (f64x@W@)(b - (k << 52)) - 1.0, e = bz_exponent_f64x@W@(b);
  /* s = f / (2 + f) */
  const f64x@W@ d = f + 2.0, dl = f - (d - 2.0), s = f / d;
  const f64x@W@ sl = bz_fma_f64x@W@(-s, dl, bz_fma_f64x@W@(-s, d, f)) / d;
  const f64x@W@ z = s * s, zl = bz_fma_f64x@W@(s + s, sl, bz_fma_f64x@W@(s, s, -z));
  @p(z) = 0x1.e03a7acf07f85p-4, 0x1.df7ba1f4809c3p-4, 0x1.1118cd67251c5p-3, 0x1.3b1395b82701ep-3,
    0x1.745d177ad436ap-3, 0x1.c71c71c6ea5acp-3, 0x1.2492492492522p-2, 0x1.999999999999ap-2@
  /* q = 2/3 + z p, w = z q, log(1 + f) = 2 s + s w */
  const f64x@W@ zp = z * p, q = zp + 0x1.5555555555555p-1;
  const f64x@W@ ql = (zp - (q - 0x1.5555555555555p-1)) + 0x1.5555555555555p-55;
  const f64x@W@ w = z * q, wl = bz_fma_f64x@W@(z, ql, bz_fma_f64x@W@(zl, q, bz_fma_f64x@W@(z, q, -w)));
  const f64x@W@ v = s * w, vl = bz_fma_f64x@W@(s, wl, bz_fma_f64x@W@(sl, w, bz_fma_f64x@W@(s, w, -v)));
  const f64x@W@ s2 = s + s, g = s2 + v, gl = (v - (g - s2)) + (sl + sl + vl);
  /* and e ln 2, whose first part is exact */
  const f64x@W@ eh = e * 0x1.62e42fefa38p-1, h = eh + g, back = h - eh;
  const f64x@W@ hl = ((eh - (h - back)) + (g - back)) + bz_fma_f64x@W@(e, bz_splat_f64x@W@(0x1.ef35793c7673p-45), gl);
  const f64x@W@ m = y * h, ml = bz_fma_f64x@W@(y, hl, bz_fma_f64x@W@(y, h, -m));
  const f64x@W@ a = bz_within_f64x@W@(m, -746.0, 710.0);
  const f64x@W@ al = bz_pick_f64x@W@(a == m, ml, (f64x@W@){});
  const f64x@W@ t = bz_fma_f64x@W@(a, bz_splat_f64x@W@(0x1.71547652b82fep+0), bz_splat_f64x@W@(0x1.8p52)), n = t - 0x1.8p52;
  const f64x@W@ u = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.62e42fefa38p-1), a);
  const f64x@W@ r = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.ef35793c7673p-45), u);
  const f64x@W@ c = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.ef35793c7673p-45), u - r);
  const f64x@W@ o = bz_exppart_f64x@W@(r, c);
  return bz_ldexp_f64x@W@(bz_fma_f64x@W@(o + 1.0, al, o) + 1.0, t, n);
}
//@ bz_pow_f64
static inline f64x@W@ bz_pow_f64x@W@(f64x@W@ x, f64x@W@ y) {
  f64x@W@ r = bz_pownear_f64x@W@(x, y);
  const i64x@W@ near = (x >= 0x1p-1022) & (x <= 0x1.fffffffffffffp1023) & (bz_abs_f64x@W@(y) < 0x1p500);
  if (__builtin_expect(bz_anywidex@W@(~near), 0)) r = bz_powfar_f64x@W@(x, y, r, near);
  return r;
}
//@ bz_powfar_f64
static __attribute__((noinline)) f64x@W@ bz_powfar_f64x@W@(f64x@W@ x, f64x@W@ y, f64x@W@ r, i64x@W@ near) {@clean@
  for (int l = 0; l < @W@; ++l) if (!near[l]) r[l] = pow(x[l], y[l]);
  return r;
}
//@ bz_sincos_f64
/* sin(x + q*pi/2) where 2-bit q counts quarter turns; |x| is below 2^16 */
static inline f64x@W@ bz_sincos_f64x@W@(f64x@W@ x, int q) {
  const f64x@W@ t = bz_fma_f64x@W@(x, bz_splat_f64x@W@(0x1.45f306dc9c883p-1), bz_splat_f64x@W@(0x1.8p52));
  const f64x@W@ n = t - 0x1.8p52;
  /* the first difference is exact; what the second rounds off, and the rest of pi/2, is kept */
  const f64x@W@ a = bz_fma_f64x@W@(n, bz_splat_f64x@W@(-0x1.921fb54442d18p+0), x);
  const f64x@W@ m = n * 0x1.1a62633145c07p-54, r = a - m, back = a - r;
  f64x@W@ c = (back - m) + ((a - back) - r);
  c = c - bz_fma_f64x@W@(n, bz_splat_f64x@W@(0x1.1a62633145c07p-54), -m);
  c = bz_fma_f64x@W@(n, bz_splat_f64x@W@(0x1.f1976b7ed8fbcp-110), c);
  const i64x@W@ k = (i64x@W@)t + q;
  const f64x@W@ z = r * r;
  @u(z) = 0x1.5e0a4fb47ace3p-33, -0x1.ae6008d0f052p-26, 0x1.71de37946eb45p-19, -0x1.a01a019e820acp-13,
    0x1.1111111110babp-7, -0x1.5555555555555p-3@
  @v(z) = -0x1.907cd8f26aa3fp-37, 0x1.1eeb67d014ecep-29, -0x1.27e4fa16cc1bcp-22, 0x1.a01a019f4ddfdp-16,
    -0x1.6c16c16c16963p-10, 0x1.5555555555555p-5@
  const f64x@W@ sine = bz_fma_f64x@W@(z * r, u, bz_fma_f64x@W@(z, c * -0.5, c)) + r;
  const f64x@W@ h = z * 0.5, one = 1.0 - h;
  const f64x@W@ cosine = one + (((1.0 - one) - h) + bz_fma_f64x@W@(z * z, v, -(r * c)));
  const f64x@W@ w = bz_pick_f64x@W@((k & 1) != 0, cosine, bz_pick_f64x@W@(x == 0.0, x, sine));
  return (f64x@W@)((i64x@W@)w ^ ((k & 2) << 62));
}
//@ bz_sin_f64
static inline f64x@W@ bz_sin_f64x@W@(f64x@W@ x) {
  f64x@W@ r = bz_sincos_f64x@W@(x, 0);
  const i64x@W@ near = bz_abs_f64x@W@(x) < 0x1p16;
  if (__builtin_expect(bz_anywidex@W@(~near), 0)) r = bz_sinfar_f64x@W@(x, r, near);
  return r;
}
//@ bz_sinfar_f64
static __attribute__((noinline)) f64x@W@ bz_sinfar_f64x@W@(f64x@W@ x, f64x@W@ r, i64x@W@ near) {@clean@
  for (int l = 0; l < @W@; ++l) if (!near[l]) r[l] = sin(x[l]);
  return r;
}
//@ bz_cos_f64
static inline f64x@W@ bz_cos_f64x@W@(f64x@W@ x) {
  f64x@W@ r = bz_sincos_f64x@W@(x, 1);
  const i64x@W@ near = bz_abs_f64x@W@(x) < 0x1p16;
  if (__builtin_expect(bz_anywidex@W@(~near), 0)) r = bz_cosfar_f64x@W@(x, r, near);
  return r;
}
//@ bz_cosfar_f64
static __attribute__((noinline)) f64x@W@ bz_cosfar_f64x@W@(f64x@W@ x, f64x@W@ r, i64x@W@ near) {@clean@
  for (int l = 0; l < @W@; ++l) if (!near[l]) r[l] = cos(x[l]);
  return r;
}
//@ bz_erf_f64
static inline f64x@W@ bz_erf_f64x@W@(f64x@W@ x) {
  const f64x@W@ z = x * x, a = bz_within_f64x@W@(bz_abs_f64x@W@(x), 0.0, 6.0);
  @p(z) = -0x1.ed4953915434bp-31, 0x1.e9471c97e1d0fp-27, -0x1.5e391357a355fp-23, 0x1.b9cd433a3b0ddp-20,
    -0x1.f4d0fc968dfd7p-17, 0x1.f9a31a4f510fep-14, -0x1.c02db3b337bdp-11, 0x1.565bcd0d40e35p-8, -0x1.b82ce31283688p-6,
    0x1.ce2f21a042b1ap-4, -0x1.812746b0379e6p-2, 0x1.20dd750429b6dp+0@
  /* -log(1 - erf) by two polynomials around 1.4 and 4 */
  const i64x@W@ far = a > 2.0;
  const f64x@W@ t = bz_pick_f64x@W@(far, (a - 4.0) * 0.5, (a - 1.4) * 0x1.aaaaaaaaaaaabp+0);
  @q(t) = far ? 0x1.f650c9400ace2p-31, -0x1.b44ff8c6d3f6p-29, 0x1.72596da554585p-28, -0x1.83eeb5709fe03p-27,
    0x1.907e29eb486a4p-26, -0x1.f188388d4425bp-28, -0x1.a979bdb5b887p-23, 0x1.506bead7f89dap-20,
    -0x1.7c4e79f145bdep-18, 0x1.752e192f61c04p-16, -0x1.5102d14d55e5fp-14, 0x1.2013a99d90487p-12,
    -0x1.da6b952cfbef5p-11, 0x1.7dc9f019be1dap-9, -0x1.3136a8ae72399p-7, 0x1.f12cc36fb1c65p-6, 0x1.f26754402b254p+1,
    0x1.07906645f5acap+4, 0x1.1fcdf0a1a2e35p+4
    : 0x1.6a56d44d16fa8p-50, 0x1.37f113e3ae3edp-48, -0x1.a7109d6abb163p-44, 0x1.82164239f239dp-41,
    -0x1.d0810ef385572p-39, 0x1.02c7cc863b6bp-37, 0x1.c76eadfcd53bep-35, -0x1.bf29605ff08cp-31, 0x1.b3a666d1f5bb3p-28,
    -0x1.1dcd74c0c7123p-25, 0x1.75d6077854f12p-24, 0x1.2387ab4c8e76p-21, -0x1.6938bb21e74e8p-17,
    0x1.c5c842bc8f45dp-14, -0x1.c51c40a93d265p-11, 0x1.916a2bea65272p-8, 0x1.4611c269e092bp-2, 0x1.ffa715f7ba01p+0,
    0x1.8571084b50dd5p+1@
  const f64x@W@ y = bz_copysign_f64x@W@(1.0 - bz_exp_f64x@W@(-q), x);
  return bz_pick_f64x@W@(a < 0.82, p * x, bz_pick_f64x@W@(x != x, x, y));
}
