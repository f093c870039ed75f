"""Tangent, inverse and hyperbolic functions, log10, erfc and hypot of float32 as vectors: sections as in ``mathlib.py``.

Each is a minimax polynomial on a reduced argument, odd ones in the square of it; what the reduction rounds off is carried
along where it would show. Errors are stated in ``loops/scalars.py`` and tested against float64 in
tests/codegen/test_c_math.py.
"""

from __future__ import annotations

TEXT = r"""
//@ bz_tannear_f32
/* |x| is below 2^16 */
static inline f32x@W@ bz_tannear_f32x@W@(f32x@W@ x) {
  const f32x@W@ t = bz_fma_f32x@W@(x, bz_splat_f32x@W@(0x1.45f306p-1f), bz_splat_f32x@W@(0x1.8p23f));
  const f32x@W@ n = t - 0x1.8p23f;
  /* the first difference is exact; what the second rounds off, and the rest of pi/2, is kept */
  const f32x@W@ d = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.921fb6p+0f), x);
  const f32x@W@ m = n * 0x1.777a5cp-25f, r = d + m, b = r - d;
  f32x@W@ low = bz_fma_f32x@W@(n, bz_splat_f32x@W@(0x1.777a5cp-25f), -m);
  low = bz_fma_f32x@W@(n, bz_splat_f32x@W@(0x1.ee59dap-50f), low) + ((d - (r - b)) + (m - b));
  const f32x@W@ s = r * r;
  f32x@W@ p = bz_splat_f32x@W@(0x1.1ec6b6p-8f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.82868cp-14f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.62f0d2p-7f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.5cba46p-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.bada4ap-5f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.110d9cp-3f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.55556p-2f));
  p = bz_fma_f32x@W@(p * s, r, bz_fma_f32x@W@(low, s, low)) + r;
  const i32x@W@ odd = ((i32x@W@)t & 1) != 0;
  return bz_sel_f32x@W@(odd, -1.0f / p, bz_sel_f32x@W@(x == 0.0f, x, p));
}
//@ bz_tan_f32
static inline f32x@W@ bz_tan_f32x@W@(f32x@W@ x) {
  f32x@W@ r = bz_tannear_f32x@W@(x);
  const i32x@W@ far = ~(bz_abs_f32x@W@(x) < 0x1p16f);
  if (__builtin_expect(bz_anyx@W@(far), 0))
    for (int l = 0; l < @W@; ++l) if (far[l]) r[l] = tanf(x[l]);
  return r;
}
//@ bz_atanpart_f32
/* atan(t) for 0 <= t <= 1 */
static inline f32x@W@ bz_atanpart_f32x@W@(f32x@W@ t) {
  const f32x@W@ s = t * t;
  f32x@W@ p = bz_splat_f32x@W@(-0x1.d4984ap-10f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.64c1cep-7f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.fdfc1cp-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.da5ed4p-5f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.58155ep-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.c08f64p-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.2420b6p-3f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.9991e6p-3f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.55553ep-2f));
  return bz_fma_f32x@W@(p * s, t, t);
}
//@ bz_atan_f32
static inline f32x@W@ bz_atan_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x);
  const i32x@W@ steep = a > 1.0f;
  const f32x@W@ p = bz_atanpart_f32x@W@(bz_sel_f32x@W@(steep, 1.0f / a, a));
  return bz_copysign_f32x@W@(bz_sel_f32x@W@(steep, 0x1.921fb6p+0f - (p + 0x1.777a5cp-25f), p), x);
}
//@ bz_atan2_f32
static inline f32x@W@ bz_atan2_f32x@W@(f32x@W@ y, f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(y), b = bz_abs_f32x@W@(x);
  const i32x@W@ steep = a > b;
  const f32x@W@ high = bz_sel_f32x@W@(steep, a, b), low = bz_sel_f32x@W@(steep, b, a);
  /* 0 over 0 is 0 here, and infinite over infinite 1 */
  f32x@W@ t = bz_sel_f32x@W@(low == high, bz_sel_f32x@W@(high == 0.0f, high, bz_splat_f32x@W@(1.0f)), low / high);
  f32x@W@ p = bz_atanpart_f32x@W@(t);
  p = bz_sel_f32x@W@(steep, 0x1.921fb6p+0f - (p + 0x1.777a5cp-25f), p);
  p = bz_sel_f32x@W@((i32x@W@)x < 0, 0x1.921fb6p+1f - (p + 0x1.777a5cp-24f), p);
  return bz_sel_f32x@W@((x != x) | (y != y), x + y, bz_copysign_f32x@W@(p, y));
}
//@ bz_asinpart_f32
/* asin(t) - t for 0 <= t <= 1/2, of t and its square */
static inline f32x@W@ bz_asinpart_f32x@W@(f32x@W@ t, f32x@W@ s) {
  f32x@W@ p = bz_splat_f32x@W@(0x1.347faep-5f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.d5c63ap-7f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.04cabp-5f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.6ca7fap-5f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.3338aap-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.55554cp-3f));
  return p * s * t;
}
//@ bz_asin_f32
/* past 1/2 by half the angle: pi/2 - 2 * asin(sqrt((1 - x) / 2)) */
static inline f32x@W@ bz_asin_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x);
  const i32x@W@ steep = a > 0.5f;
  const f32x@W@ s = bz_sel_f32x@W@(steep, bz_fma_f32x@W@(a, bz_splat_f32x@W@(-0.5f), bz_splat_f32x@W@(0.5f)), a * a);
  const f32x@W@ t = bz_sel_f32x@W@(steep, bz_sqrt_f32x@W@(s), a), p = bz_asinpart_f32x@W@(t, s);
  const f32x@W@ far = (0x1.921fb6p+0f - (t + t)) - (p + p + 0x1.777a5cp-25f);
  return bz_copysign_f32x@W@(bz_sel_f32x@W@(steep, far, t + p), x);
}
//@ bz_acos_f32
static inline f32x@W@ bz_acos_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x);
  const i32x@W@ steep = a > 0.5f;
  const f32x@W@ s = bz_sel_f32x@W@(steep, bz_fma_f32x@W@(a, bz_splat_f32x@W@(-0.5f), bz_splat_f32x@W@(0.5f)), a * a);
  const f32x@W@ t = bz_sel_f32x@W@(steep, bz_sqrt_f32x@W@(s), a), p = t + bz_asinpart_f32x@W@(t, s);
  const f32x@W@ far = bz_sel_f32x@W@(x < 0.0f, 0x1.921fb6p+1f - (p + p + 0x1.777a5cp-24f), p + p);
  return bz_sel_f32x@W@(steep, far, 0x1.921fb6p+0f - (bz_copysign_f32x@W@(p, x) + 0x1.777a5cp-25f));
}
//@ bz_exphalf_f32
/* exp(x) / 2 for x >= 0, infinite only where that is */
static inline f32x@W@ bz_exphalf_f32x@W@(f32x@W@ x) {
  x = bz_min_f32x@W@(bz_splat_f32x@W@(90.0f), x);
  const f32x@W@ t = bz_fma_f32x@W@(x, bz_splat_f32x@W@(0x1.715476p+0f), bz_splat_f32x@W@(0x1.8p23f));
  const f32x@W@ n = t - 0x1.8p23f;
  f32x@W@ r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.62e4p-1f), x);
  r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.7f7d1cp-20f), r);
  f32x@W@ p = bz_splat_f32x@W@(0x1.6a1a6ap-10f);
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.123fc8p-7f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.555916p-5f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.55548ap-3f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.fffffcp-2f));
  p = bz_fma_f32x@W@(p * r, r, r) + 1.0f;
  return bz_ldexp_f32x@W@(p, t - 1.0f, n - 1.0f);
}
//@ bz_sinh_f32
static inline f32x@W@ bz_sinh_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x), s = a * a, h = bz_exphalf_f32x@W@(a);
  f32x@W@ p = bz_splat_f32x@W@(0x1.756c1ep-19f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.a022bcp-13f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.1110ep-7f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.555556p-3f));
  p = bz_fma_f32x@W@(p * s, a, a);
  const f32x@W@ y = bz_sel_f32x@W@(a < 1.0f, p, h - 0.25f / h);
  return bz_sel_f32x@W@(x != x, x, bz_copysign_f32x@W@(y, x));
}
//@ bz_cosh_f32
static inline f32x@W@ bz_cosh_f32x@W@(f32x@W@ x) {
  const f32x@W@ h = bz_exphalf_f32x@W@(bz_abs_f32x@W@(x));
  return bz_sel_f32x@W@(x != x, x, h + 0.25f / h);
}
//@ bz_logroot_f32
/* log(a + sqrt(a * a + one)) where one is 1 or -1, and what that is at least 1/2 of; past 2^26 one does not count */
static inline f32x@W@ bz_logroot_f32x@W@(f32x@W@ a, float one) {
  const f32x@W@ s = a * a, q = s + one;
  /* what the square, the sum, the root and the sum of both round off */
  const f32x@W@ rest = bz_fma_f32x@W@(a, a, -s) + bz_sel_f32x@W@(s > 1.0f, one - (q - s), s - (q - one));
  const f32x@W@ w = bz_sqrt_f32x@W@(q);
  const f32x@W@ wrest = 0.5f * (bz_fma_f32x@W@(-w, w, q) + rest) / w;
  const i32x@W@ large = a > 0x1p26f;
  const f32x@W@ y = bz_sel_f32x@W@(large, a, a + w);
  const f32x@W@ yrest = bz_sel_f32x@W@(a > w, w - (y - a), a - (y - w)) + wrest;
  const i32x@W@ b = (i32x@W@)y;
  const i32x@W@ k = (b - 0x3f3504f3) >> 23;
  const f32x@W@ f = (f32x@W@)(b - (k << 23)) - 1.0f;
  const f32x@W@ e = __builtin_convertvector(k - large, f32x@W@);
  const f32x@W@ r = bz_logpart_f32x@W@(f, e) + bz_sel_f32x@W@(large, (f32x@W@){}, yrest / y);
  return bz_sel_f32x@W@(a < __builtin_inff(), r, a);
}
//@ bz_asinh_f32
static inline f32x@W@ bz_asinh_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x), s = a * a;
  f32x@W@ p = bz_splat_f32x@W@(0x1.2f523ep-7f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.487e0ep-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.ec11ecp-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.6d7ebcp-5f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.33323ap-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.555554p-3f));
  p = bz_fma_f32x@W@(p * s, a, a);
  return bz_copysign_f32x@W@(bz_sel_f32x@W@(a < 0.5f, p, bz_logroot_f32x@W@(a, 1.0f)), x);
}
//@ bz_acosh_f32
static inline f32x@W@ bz_acosh_f32x@W@(f32x@W@ x) {
  const f32x@W@ d = x - 1.0f;
  f32x@W@ p = bz_splat_f32x@W@(-0x1.b177dcp-12f);
  p = bz_fma_f32x@W@(p, d, bz_splat_f32x@W@(0x1.cd6e44p-10f));
  p = bz_fma_f32x@W@(p, d, bz_splat_f32x@W@(-0x1.6b969p-8f));
  p = bz_fma_f32x@W@(p, d, bz_splat_f32x@W@(0x1.3324f6p-6f));
  p = bz_fma_f32x@W@(p, d, bz_splat_f32x@W@(-0x1.555536p-4f));
  const f32x@W@ root = bz_sqrt_f32x@W@(d + d);
  p = bz_fma_f32x@W@(p * d, root, root);
  return bz_sel_f32x@W@(d < 0.5f, p, bz_logroot_f32x@W@(x, -1.0f));
}
//@ bz_atanh_f32
static inline f32x@W@ bz_atanh_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x), s = a * a;
  f32x@W@ p = bz_splat_f32x@W@(0x1.7b2a7cp-3f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.15de1cp-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.af1522p-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.bfab12p-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.24d1bap-3f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.99979ep-3f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.555558p-2f));
  p = bz_fma_f32x@W@(p * s, a, a);
  const f32x@W@ y = 0.5f * bz_log_f32x@W@((1.0f + a) / (1.0f - a));
  return bz_copysign_f32x@W@(bz_sel_f32x@W@(a < 0.5f, p, y), x);
}
//@ bz_log10_f32
static inline f32x@W@ bz_log10_f32x@W@(f32x@W@ x) {
  const i32x@W@ tiny = x < 0x1p-126f;
  const i32x@W@ b = (i32x@W@)bz_sel_f32x@W@(tiny, x * 0x1p23f, x);
  const i32x@W@ k = (b - 0x3f3504f3) >> 23;
  const f32x@W@ f = (f32x@W@)(b - (k << 23)) - 1.0f;
  const f32x@W@ e = __builtin_convertvector(k - (tiny & 23), f32x@W@);
  const f32x@W@ g = bz_logpart_f32x@W@(f, (f32x@W@){});
  f32x@W@ r = bz_fma_f32x@W@(g, bz_splat_f32x@W@(-0x1.5b235ep-27f), e * 0x1.3509f8p-18f);
  r = bz_fma_f32x@W@(g, bz_splat_f32x@W@(0x1.bcb7b2p-2f), r);
  r = bz_fma_f32x@W@(e, bz_splat_f32x@W@(0x1.344p-2f), r);
  r = bz_sel_f32x@W@(x > 0x1.fffffep127f, x, r);
  r = bz_sel_f32x@W@(x == 0.0f, bz_splat_f32x@W@(-__builtin_inff()), r);
  return bz_sel_f32x@W@(x >= 0.0f, r, bz_splat_f32x@W@(__builtin_nanf("")));
}
//@ bz_erfcfar_f32
/* exp(-a * a) times one plus a polynomial in q = (a - 2) / (a + 2), over 1 + 2 * a; both quotients corrected */
static inline f32x@W@ bz_erfcfar_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_min_f32x@W@(bz_splat_f32x@W@(10.1f), x);
  const f32x@W@ r = 1.0f / (a + 2.0f);
  f32x@W@ q = (a - 2.0f) * r;
  q = bz_fma_f32x@W@(r, bz_fma_f32x@W@(-q, a, bz_fma_f32x@W@(q + 1.0f, bz_splat_f32x@W@(-2.0f), a)), q);
  f32x@W@ p = bz_splat_f32x@W@(0x1.d2ce56p-16f);
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(-0x1.827c6p-12f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(-0x1.4b5fbep-10f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(0x1.4e112ep-10f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(0x1.1b6804p-7f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(-0x1.079028p-7f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(-0x1.bc143p-5f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(0x1.4ffad6p-3f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(-0x1.5407fcp-3f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(-0x1.7bf5f4p-4f));
  p = bz_fma_f32x@W@(p, q, bz_splat_f32x@W@(0x1.1ba038p-2f));
  const f32x@W@ d = 1.0f / bz_fma_f32x@W@(a, bz_splat_f32x@W@(2.0f), bz_splat_f32x@W@(1.0f));
  f32x@W@ y = bz_fma_f32x@W@(p, d, d);
  const f32x@W@ h = p + 1.0f;
  y = bz_fma_f32x@W@(d, (bz_fma_f32x@W@(y * -2.0f, a, h) - y) + (p - (h - 1.0f)), y);
  const f32x@W@ s = a * a, rest = bz_fma_f32x@W@(a, a, -s);
  return bz_exp_f32x@W@(-s) * bz_fma_f32x@W@(-rest, y, y);
}
//@ bz_erfc_f32
static inline f32x@W@ bz_erfc_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x), s = x * x, y = bz_erfcfar_f32x@W@(a);
  f32x@W@ p = bz_splat_f32x@W@(0x1.5cd4ap-14f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.aa3f2ap-11f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.54c7f4p-8f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.b80e9p-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.ce2e0ap-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.812742p-2f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.06eba8p-3f));
  p = 1.0f - bz_fma_f32x@W@(p, x, x);
  return bz_sel_f32x@W@(a < 0.46f, p, bz_sel_f32x@W@(x != x, x, bz_sel_f32x@W@(x < 0.0f, 2.0f - y, y)));
}
//@ bz_hypot_f32
/* scaled where squares would overflow or vanish; what squares, sum and root round off is added after */
static inline f32x@W@ bz_hypot_f32x@W@(f32x@W@ x, f32x@W@ y) {
  const f32x@W@ a = bz_abs_f32x@W@(x), b = bz_abs_f32x@W@(y);
  const f32x@W@ top = bz_sel_f32x@W@(a > b, a, b);
  const f32x@W@ one = bz_splat_f32x@W@(1.0f);
  const f32x@W@ down = bz_sel_f32x@W@(top > 0x1p60f, bz_splat_f32x@W@(0x1p-70f), bz_sel_f32x@W@(top < 0x1p-40f, bz_splat_f32x@W@(0x1p80f), one));
  const f32x@W@ up = bz_sel_f32x@W@(top > 0x1p60f, bz_splat_f32x@W@(0x1p70f), bz_sel_f32x@W@(top < 0x1p-40f, bz_splat_f32x@W@(0x1p-80f), one));
  const f32x@W@ h = top * down, l = bz_sel_f32x@W@(a > b, b, a) * down;
  const f32x@W@ q = h * h, s = bz_fma_f32x@W@(l, l, q);
  const f32x@W@ rest = bz_fma_f32x@W@(h, h, -q) + bz_fma_f32x@W@(l, l, q - s);
  const f32x@W@ w = bz_sqrt_f32x@W@(s);
  const f32x@W@ r = (w + 0.5f * (bz_fma_f32x@W@(-w, w, s) + rest) / w) * up;
  const f32x@W@ inf = bz_splat_f32x@W@(__builtin_inff());
  const f32x@W@ known = bz_sel_f32x@W@((x != x) | (y != y), x + y, bz_sel_f32x@W@(top == 0.0f, top, r));
  return bz_sel_f32x@W@((a == inf) | (b == inf), inf, known);
}
"""
