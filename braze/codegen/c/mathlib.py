"""The C library that kernels call: one short function per section, instantiated for a number of lanes.

A section's name is the C function's without its lanes: section ``bz_exp_f32`` defines ``bz_exp_f32x16``
where ``@W@`` is 16. Only sections that a kernel's text mentions, and those that they mention, enter a
translation unit (``prelude.assemble``).

Coefficients are minimax fits made for this file (weighted least squares to equal ripple, in double).
Bounds on errors are tested against float64 in tests/codegen/test_c_math.py.
"""

from __future__ import annotations

import re

from braze.codegen.c import doubles, elementary
from braze.loops.scalars import SCALARS

_VECTOR_F32 = r"""
//@ bz_fma_f32
static inline f32x@W@ bz_fma_f32x@W@(f32x@W@ a, f32x@W@ b, f32x@W@ c) {
#if @W@ == 16 && defined(__AVX512F__)
  return (f32x16)__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
#elif @W@ == 8 && defined(__FMA__)
  return (f32x8)__builtin_ia32_vfmaddps256(a, b, c);
#elif @W@ == 4 && defined(__FMA__)
  return (f32x4)__builtin_ia32_vfmaddps(a, b, c);
#else
  f32x@W@ r;
  for (int l = 0; l < @W@; ++l) r[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return r;
#endif
}
//@ bz_min_f32
/* a < b ? a : b, so b where either is nan */
static inline f32x@W@ bz_min_f32x@W@(f32x@W@ a, f32x@W@ b) {
#if @W@ == 16 && defined(__AVX512F__)
  return (f32x16)__builtin_ia32_minps512_mask(a, b, b, -1, 4);
#elif @W@ == 8 && defined(__AVX__)
  return (f32x8)__builtin_ia32_minps256(a, b);
#else
  return bz_sel_f32x@W@(a < b, a, b);
#endif
}
//@ bz_max_f32
/* a > b ? a : b, so b where either is nan */
static inline f32x@W@ bz_max_f32x@W@(f32x@W@ a, f32x@W@ b) {
#if @W@ == 16 && defined(__AVX512F__)
  return (f32x16)__builtin_ia32_maxps512_mask(a, b, b, -1, 4);
#elif @W@ == 8 && defined(__AVX__)
  return (f32x8)__builtin_ia32_maxps256(a, b);
#else
  return bz_sel_f32x@W@(a > b, a, b);
#endif
}
//@ bz_sqrt_f32
static inline f32x@W@ bz_sqrt_f32x@W@(f32x@W@ x) {
#if defined(__clang__)
  return __builtin_elementwise_sqrt(x);
#elif @W@ == 16 && defined(__AVX512F__)
  return (f32x16)__builtin_ia32_sqrtps512_mask(x, x, -1, 4);
#elif @W@ == 8 && defined(__AVX__)
  return (f32x8)__builtin_ia32_sqrtps256(x);
#else
  f32x@W@ r;
  for (int l = 0; l < @W@; ++l) r[l] = __builtin_sqrtf(x[l]);
  return r;
#endif
}
//@ bz_exp_f32
static inline f32x@W@ bz_exp_f32x@W@(f32x@W@ x) {
  x = bz_min_f32x@W@(bz_splat_f32x@W@(89.0f), bz_max_f32x@W@(bz_splat_f32x@W@(-104.0f), x));
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
  return bz_ldexp_f32x@W@(p, t, n);
}
//@ bz_ldexp_f32
/* p * 2^n, where t = n + 1.5 * 2^23 holds n in its low bits; -151 <= n <= 129 */
static inline f32x@W@ bz_ldexp_f32x@W@(f32x@W@ p, f32x@W@ t, f32x@W@ n) {
#if @W@ == 16 && defined(__AVX512F__)
  return (f32x16)__builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#elif @W@ == 8 && defined(__AVX512VL__)
  return (f32x8)__builtin_ia32_scalefps256_mask(p, n, p, -1);
#else
  const i32x@W@ k = (i32x@W@)t - 0x4b400000, h = k >> 1;
  return p * (f32x@W@)((h + 127) << 23) * (f32x@W@)((k - h + 127) << 23);
#endif
}
//@ bz_expm1_f32
static inline f32x@W@ bz_expm1_f32x@W@(f32x@W@ v) {
  f32x@W@ x = bz_min_f32x@W@(bz_splat_f32x@W@(88.9f), bz_max_f32x@W@(bz_splat_f32x@W@(-40.0f), v));
  const f32x@W@ t = bz_fma_f32x@W@(x, bz_splat_f32x@W@(0x1.715476p+0f), bz_splat_f32x@W@(0x1.8p23f));
  const f32x@W@ n = t - 0x1.8p23f;
  f32x@W@ r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.62e4p-1f), x);
  r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.7f7d1cp-20f), r);
  f32x@W@ p = bz_splat_f32x@W@(0x1.a0333cp-13f);
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.6d78dap-10f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.11118ep-7f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.5554aap-5f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.555554p-3f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.0p-1f));
  p = bz_fma_f32x@W@(p * r, r, r);
  /* 2^(n-1), so that n = 128 stays finite */
  const f32x@W@ s = (f32x@W@)(((i32x@W@)t - 0x4b400000 + 126) << 23);
  const f32x@W@ y = bz_fma_f32x@W@(p, s, s - 0.5f) * 2.0f;
  return bz_sel_f32x@W@(n == 0.0f, bz_sel_f32x@W@(v == 0.0f, v, p), y);
}
//@ bz_exp2_f32
static inline f32x@W@ bz_exp2_f32x@W@(f32x@W@ x) {
  x = bz_min_f32x@W@(bz_splat_f32x@W@(129.0f), bz_max_f32x@W@(bz_splat_f32x@W@(-151.0f), x));
  const f32x@W@ t = x + 0x1.8p23f;
  const f32x@W@ n = t - 0x1.8p23f;
  const f32x@W@ d = x - n;
  const f32x@W@ r = d * 0x1.62e43p-1f;
  const f32x@W@ low = bz_fma_f32x@W@(d, bz_splat_f32x@W@(0x1.62e43p-1f), -r);
  const f32x@W@ rest = bz_fma_f32x@W@(d, bz_splat_f32x@W@(-0x1.05c61p-29f), low);
  f32x@W@ p = bz_splat_f32x@W@(0x1.6a1a6ap-10f);
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.123fc8p-7f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.555916p-5f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.55548ap-3f));
  p = bz_fma_f32x@W@(p, r, bz_splat_f32x@W@(0x1.fffffcp-2f));
  p = (bz_fma_f32x@W@(p * r, r, rest) + r) + 1.0f;
  return bz_ldexp_f32x@W@(p, t, n);
}
//@ bz_logpart_f32
/* r = log(1 + f) for sqrt(1/2) - 1 <= f < sqrt(2) - 1, plus e*ln2 */
static inline f32x@W@ bz_logpart_f32x@W@(f32x@W@ f, f32x@W@ e) {
  const f32x@W@ s = f * f;
  f32x@W@ p = bz_splat_f32x@W@(0x1.1456bap-4f);
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(-0x1.de3bd6p-4f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(0x1.e6f0b6p-4f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(-0x1.fc2216p-4f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(0x1.233764p-3f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(-0x1.555c4cp-3f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(0x1.99a4b6p-3f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(-0x1.000006p-2f));
  p = bz_fma_f32x@W@(p, f, bz_splat_f32x@W@(0x1.555548p-2f));
  f32x@W@ r = bz_fma_f32x@W@(p * f, s, e * 0x1.7f7d1cp-20f);
  r = bz_fma_f32x@W@(s, bz_splat_f32x@W@(-0.5f), r);
  return bz_fma_f32x@W@(e, bz_splat_f32x@W@(0x1.62e4p-1f), r + f);
}
//@ bz_log_f32
static inline f32x@W@ bz_log_f32x@W@(f32x@W@ x) {
  const i32x@W@ tiny = x < 0x1p-126f;
  const i32x@W@ b = (i32x@W@)bz_sel_f32x@W@(tiny, x * 0x1p23f, x);
  const i32x@W@ k = (b - 0x3f3504f3) >> 23;
  const f32x@W@ f = (f32x@W@)(b - (k << 23)) - 1.0f;
  const f32x@W@ e = __builtin_convertvector(k - (tiny & 23), f32x@W@);
  f32x@W@ r = bz_logpart_f32x@W@(f, e);
  r = bz_sel_f32x@W@(x > 0x1.fffffep127f, x, r);
  r = bz_sel_f32x@W@(x == 0.0f, bz_splat_f32x@W@(-__builtin_inff()), r);
  return bz_sel_f32x@W@(x >= 0.0f, r, bz_splat_f32x@W@(__builtin_nanf("")));
}
//@ bz_log2_f32
static inline f32x@W@ bz_log2_f32x@W@(f32x@W@ x) {
  const i32x@W@ tiny = x < 0x1p-126f;
  const i32x@W@ b = (i32x@W@)bz_sel_f32x@W@(tiny, x * 0x1p23f, x);
  const i32x@W@ k = (b - 0x3f3504f3) >> 23;
  const f32x@W@ f = (f32x@W@)(b - (k << 23)) - 1.0f;
  const f32x@W@ e = __builtin_convertvector(k - (tiny & 23), f32x@W@);
  const f32x@W@ g = bz_logpart_f32x@W@(f, (f32x@W@){});
  f32x@W@ r = bz_fma_f32x@W@(g, bz_splat_f32x@W@(0x1.715476p+0f), g * 0x1.4ae0cp-26f) + e;
  r = bz_sel_f32x@W@(x > 0x1.fffffep127f, x, r);
  r = bz_sel_f32x@W@(x == 0.0f, bz_splat_f32x@W@(-__builtin_inff()), r);
  return bz_sel_f32x@W@(x >= 0.0f, r, bz_splat_f32x@W@(__builtin_nanf("")));
}
//@ bz_log1p_f32
static inline f32x@W@ bz_log1p_f32x@W@(f32x@W@ x) {
  const f32x@W@ u = 1.0f + x;
  const i32x@W@ b = (i32x@W@)u;
  const i32x@W@ near = (x > -0.29f) & (x < 0.41f);
  const i32x@W@ k = ~near & ((b - 0x3f3504f3) >> 23);
  const f32x@W@ f = bz_sel_f32x@W@(near, x, (f32x@W@)(b - (k << 23)) - 1.0f);
  /* what 1 + x lost */
  const f32x@W@ c = bz_sel_f32x@W@(near | (x > 0x1p25f), (f32x@W@){}, bz_sel_f32x@W@(x > 1.0f, 1.0f - (u - x), x - (u - 1.0f)) / u);
  f32x@W@ r = bz_logpart_f32x@W@(f, __builtin_convertvector(k, f32x@W@)) + c;
  r = bz_sel_f32x@W@((x > 0x1.fffffep127f) | (x == 0.0f), x, r);
  r = bz_sel_f32x@W@(x == -1.0f, bz_splat_f32x@W@(-__builtin_inff()), r);
  return bz_sel_f32x@W@(x >= -1.0f, r, bz_splat_f32x@W@(__builtin_nanf("")));
}
//@ bz_copysign_f32
static inline f32x@W@ bz_copysign_f32x@W@(f32x@W@ x, f32x@W@ s) {
  return (f32x@W@)(((i32x@W@)x & 0x7fffffff) | ((i32x@W@)s & (int)0x80000000));
}
//@ bz_abs_f32
static inline f32x@W@ bz_abs_f32x@W@(f32x@W@ x) { return (f32x@W@)((i32x@W@)x & 0x7fffffff); }
//@ bz_tanh_f32
static inline f32x@W@ bz_tanh_f32x@W@(f32x@W@ x) {
  const f32x@W@ s = x * x;
  f32x@W@ p = bz_splat_f32x@W@(0x1.18e1a2p-9f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.0bf4ecp-7f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.638b54p-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.b9ee9p-5f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.111066p-3f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.555554p-2f));
  p = bz_fma_f32x@W@(p * s, x, x);
  const f32x@W@ a = bz_abs_f32x@W@(x);
  const f32x@W@ e = bz_exp_f32x@W@(a + a);
  const f32x@W@ y = bz_copysign_f32x@W@(1.0f - 2.0f / (e + 1.0f), x);
  return bz_sel_f32x@W@((a < 0.625f) & (x != 0.0f), p, bz_sel_f32x@W@(x == 0.0f, x, y));
}
//@ bz_sigmoid_f32
static inline f32x@W@ bz_sigmoid_f32x@W@(f32x@W@ x) { return 1.0f / (1.0f + bz_exp_f32x@W@(-x)); }
//@ bz_erf_f32
/* Sixteen lanes: erf(x)/x by a polynomial for each quarter of 0 to 4, whose numbers lie in registers, around places where its value is
   a float but for 2^-33. Fewer lanes: two polynomials, of which one is the logarithm of what is left to 1. */
static inline f32x@W@ bz_erf_f32x@W@(f32x@W@ x) {
#if @W@ == 16 && defined(__AVX512F__)
  const f32x16 c = {
    0x1.000f8p-3f, 0x1.7f082p-2f, 0x1.3f27fp-1f, 0x1.c09efp-1f, 0x1.1f0c3p+0f, 0x1.6037bp+0f,
    0x1.a0c95p+0f, 0x1.df3f3p+0f, 0x1.0f54p+1f, 0x1.2fb7p+1f, 0x1.501b1p+1f, 0x1.6f142p+1f,
    0x1.90f68p+1f, 0x1.b0bd3p+1f, 0x1.d0749p+1f, 0x1.f046bp+1f};
  const f32x16 k0 = {
    0x1.1f5decp+0f, 0x1.13f09cp+0f, 0x1.fedfdp-1f, 0x1.ca884cp-1f, 0x1.951d28p-1f, 0x1.60e65ap-1f,
    0x1.33c7dep-1f, 0x1.0f472ap-1f, 0x1.e1c30ap-2f, 0x1.af389p-2f, 0x1.85e49p-2f, 0x1.650cd2p-2f,
    0x1.46e3d8p-2f, 0x1.2ee384p-2f, 0x1.1a34acp-2f, 0x1.081c6cp-2f};
  const f32x16 k1 = {
    -0x1.7da6b6p-4f, -0x1.091d1cp-2f, -0x1.7e4fc2p-2f, -0x1.b2ac38p-2f, -0x1.ad7ddap-2f,
    -0x1.827eap-2f, -0x1.47fb3ap-2f, -0x1.0f43e8p-2f, -0x1.ba5aap-3f, -0x1.67fac2p-3f, -0x1.28138cp-3f,
    -0x1.f19488p-4f, -0x1.a15568p-4f, -0x1.6659fp-4f, -0x1.37177cp-4f, -0x1.107a8cp-4f};
  const f32x16 k2 = {
    -0x1.7669d8p-2f, -0x1.27d59ep-2f, -0x1.543cdcp-3f, -0x1.40f4fcp-5f, 0x1.b31a78p-5f, 0x1.ab7c96p-4f,
    0x1.df7aaap-4f, 0x1.b8af04p-4f, 0x1.6dadc4p-4f, 0x1.1ed752p-4f, 0x1.b9a8f8p-5f, 0x1.5888a6p-5f,
    0x1.09f226p-5f, 0x1.a7c946p-6f, 0x1.56e6ccp-6f, 0x1.191b32p-6f};
  const f32x16 k3 = {
    0x1.c5c068p-5f, 0x1.2458a6p-3f, 0x1.6713aap-3f, 0x1.360ap-3f, 0x1.8dd73p-4f, 0x1.3e5c4ep-5f,
    -0x1.c7b17ap-10f, -0x1.5afb88p-6f, -0x1.ae5b5p-6f, -0x1.83ee14p-6f, -0x1.31ff42p-6f,
    -0x1.cec1b6p-7f, -0x1.4f9438p-7f, -0x1.f3abb2p-8f, -0x1.79abeap-8f, -0x1.21f4f8p-8f};
  const f32x16 k4 = {
    0x1.b28a4ep-4f, 0x1.01c438p-4f, 0x1.341bfep-9f, -0x1.6d35a4p-5f, -0x1.ee59d2p-5f, -0x1.9cc35p-5f,
    -0x1.e3bb3ep-6f, -0x1.76f4eep-7f, -0x1.22fe3ep-12f, 0x1.1dc1a2p-8f, 0x1.4a5f9ep-8f, 0x1.1624bcp-8f,
    0x1.9668c4p-9f, 0x1.22aa98p-9f, 0x1.9ebc32p-10f, 0x1.2b2bbap-10f};
  const f32x16 k5 = {
    -0x1.3e637ap-6f, -0x1.7a6bc6p-5f, -0x1.7c8a1p-5f, -0x1.a2ed98p-6f, -0x1.71e076p-11f,
    0x1.d6b7d8p-7f, 0x1.150752p-6f, 0x1.8b348ap-7f, 0x1.84506p-8f, 0x1.b96084p-10f, -0x1.3e9f78p-12f,
    -0x1.c4c608p-11f, -0x1.ab54f6p-11f, -0x1.417f02p-11f, -0x1.c05ef4p-12f, -0x1.338e5p-12f};
  const f32x16 a = bz_abs_f32x16(x), t = bz_min_f32x16(bz_splat_f32x16(0x1.fffffep+1f), a);
  const i32x16 n = (i32x16)bz_fma_f32x16(t - 0.125f, bz_splat_f32x16(4.0f), bz_splat_f32x16(0x1.8p23f));
  const f32x16 r = t - bz_pick_f32x16(c, n);
  f32x16 p = bz_pick_f32x16(k5, n);
  p = bz_fma_f32x16(p, r, bz_pick_f32x16(k4, n));
  p = bz_fma_f32x16(p, r, bz_pick_f32x16(k3, n));
  p = bz_fma_f32x16(p, r, bz_pick_f32x16(k2, n));
  p = bz_fma_f32x16(p, r, bz_pick_f32x16(k1, n));
  const f32x16 y = bz_fma_f32x16(t, bz_pick_f32x16(k0, n), t * (p * r));
  return bz_copysign_f32x16(bz_min_f32x16(bz_splat_f32x16(1.0f), y), x);
#else
  const f32x@W@ s = x * x;
  f32x@W@ p = bz_splat_f32x@W@(0x1.5cd4ap-14f);
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.aa3f2ap-11f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.54c7f4p-8f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.b80e9p-6f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.ce2e0ap-4f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(-0x1.812742p-2f));
  p = bz_fma_f32x@W@(p, s, bz_splat_f32x@W@(0x1.06eba8p-3f));
  p = bz_fma_f32x@W@(p, x, x);
  const f32x@W@ a = bz_abs_f32x@W@(x);
  const f32x@W@ t = bz_min_f32x@W@(bz_splat_f32x@W@(4.0f), a);
  f32x@W@ q = bz_splat_f32x@W@(0x1.78dfc8p-17f);
  q = bz_fma_f32x@W@(q, t, bz_splat_f32x@W@(-0x1.527d14p-12f));
  q = bz_fma_f32x@W@(q, t, bz_splat_f32x@W@(0x1.dd6d2ap-9f));
  q = bz_fma_f32x@W@(q, t, bz_splat_f32x@W@(-0x1.855172p-6f));
  q = bz_fma_f32x@W@(q, t, bz_splat_f32x@W@(0x1.b3257ap-4f));
  q = bz_fma_f32x@W@(q, t, bz_splat_f32x@W@(0x1.45328cp-1f));
  q = bz_fma_f32x@W@(q, t, bz_splat_f32x@W@(0x1.0778dcp-3f));
  q = bz_fma_f32x@W@(q, t, t);
  const f32x@W@ y = bz_copysign_f32x@W@(1.0f - bz_exp_f32x@W@(-q), x);
  return bz_sel_f32x@W@(a < 0.927734375f, p, y);
#endif
}
//@ bz_pick_f32
/* the lanes of a table by the low four bits of n */
#if @W@ == 16 && defined(__AVX512F__)
#ifdef __clang__
static inline f32x16 bz_pick_f32x16(f32x16 table, i32x16 n) { return (f32x16)__builtin_ia32_permvarsf512(table, n); }
#else
static inline f32x16 bz_pick_f32x16(f32x16 table, i32x16 n) { return __builtin_shuffle(table, n); }
#endif
#endif
//@ bz_sincos_f32
/* sin(x + q*pi/2) where 2-bit q counts quarter turns; |x| is below 2^16 */
static inline f32x@W@ bz_sincos_f32x@W@(f32x@W@ x, int q) {
  const f32x@W@ t = bz_fma_f32x@W@(x, bz_splat_f32x@W@(0x1.45f306p-1f), bz_splat_f32x@W@(0x1.8p23f));
  const f32x@W@ n = t - 0x1.8p23f;
  f32x@W@ r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.921fb6p+0f), x);
  r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(0x1.777a5cp-25f), r);
  r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(0x1.ee59dap-50f), r);
  const i32x@W@ k = (i32x@W@)t + q;
  const f32x@W@ s = r * r;
  f32x@W@ a = bz_splat_f32x@W@(0x1.6cbeeep-19f);
  a = bz_fma_f32x@W@(a, s, bz_splat_f32x@W@(-0x1.a00f34p-13f));
  a = bz_fma_f32x@W@(a, s, bz_splat_f32x@W@(0x1.111108p-7f));
  a = bz_fma_f32x@W@(a, s, bz_splat_f32x@W@(-0x1.555556p-3f));
  a = bz_fma_f32x@W@(a * s, r, r);
  f32x@W@ b = bz_splat_f32x@W@(-0x1.2417f6p-22f);
  b = bz_fma_f32x@W@(b, s, bz_splat_f32x@W@(0x1.a010c6p-16f));
  b = bz_fma_f32x@W@(b, s, bz_splat_f32x@W@(-0x1.6c16b8p-10f));
  b = bz_fma_f32x@W@(b, s, bz_splat_f32x@W@(0x1.555556p-5f));
  b = bz_fma_f32x@W@(b * s, s, bz_fma_f32x@W@(s, bz_splat_f32x@W@(-0.5f), bz_splat_f32x@W@(1.0f)));
  const f32x@W@ v = bz_sel_f32x@W@((k & 1) != 0, b, bz_sel_f32x@W@(x == 0.0f, x, a));
  return (f32x@W@)((i32x@W@)v ^ ((k & 2) << 30));
}
//@ bz_sin_f32
static inline f32x@W@ bz_sin_f32x@W@(f32x@W@ x) {
  f32x@W@ r = bz_sincos_f32x@W@(x, 0);
  const i32x@W@ far = ~(bz_abs_f32x@W@(x) < 0x1p16f);
  if (__builtin_expect(bz_anyx@W@(far), 0))
    for (int l = 0; l < @W@; ++l) if (far[l]) r[l] = sinf(x[l]);
  return r;
}
//@ bz_cos_f32
static inline f32x@W@ bz_cos_f32x@W@(f32x@W@ x) {
  f32x@W@ r = bz_sincos_f32x@W@(x, 1);
  const i32x@W@ far = ~(bz_abs_f32x@W@(x) < 0x1p16f);
  if (__builtin_expect(bz_anyx@W@(far), 0))
    for (int l = 0; l < @W@; ++l) if (far[l]) r[l] = cosf(x[l]);
  return r;
}
//@ bz_hsum_f32
static inline float bz_hsum_f32x@W@(f32x@W@ v) {
  for (int h = @W@ / 2; h; h /= 2)
    for (int l = 0; l < h; ++l) v[l] += v[l + h];
  return v[0];
}
//@ bz_any
static inline int bz_anyx@W@(i32x@W@ m) {
#if @W@ == 16 && defined(__AVX512DQ__)
  return (unsigned short)__builtin_ia32_cvtd2mask512(m) != 0;
#else
  int r = 0;
  for (int l = 0; l < @W@; ++l) r |= m[l];
  return r != 0;
#endif
}
"""

_INTEGER = r"""
//@ bz_floordiv_s
static inline int64_t bz_floordiv_s(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return -a;
  const int64_t q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
//@ bz_remainder_s
static inline int64_t bz_remainder_s(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t r = a % b;
  return r && (r < 0) != (b < 0) ? r + b : r;
}
//@ bz_truncdiv_s
static inline int64_t bz_truncdiv_s(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }
//@ bz_fmod_s
static inline int64_t bz_fmod_s(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
//@ bz_pow_s
static inline int64_t bz_pow_s(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  int64_t r = 1;
  for (; b; b >>= 1, a *= a) if (b & 1) r *= a;
  return r;
}
//@ bz_max_s
static inline int64_t bz_max_s(int64_t a, int64_t b) { return a > b ? a : b; }
//@ bz_min_s
static inline int64_t bz_min_s(int64_t a, int64_t b) { return a < b ? a : b; }
//@ bz_check_s
static inline int64_t bz_check_s(int64_t i, int64_t n, int64_t *status) {
  if (__builtin_expect((uint64_t)i < (uint64_t)n, 1)) return i;
  *status = 1;
  return 0;
}
//@ bz_half_s
static inline float bz_half_s(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, body = h & 0x7fff;
  union { uint32_t u; float f; } v;
  if (body >= 0x7c00) v.u = sign | 0x7f800000 | (body << 13);
  else { v.u = body << 13; v.f *= 0x1p112f; v.u |= sign; }
  return v.f;
}
//@ bz_tohalf_s
static inline uint16_t bz_tohalf_s(float x) {
  union { float f; uint32_t u; } v = {x};
  const uint32_t sign = v.u >> 16 & 0x8000;
  v.u &= 0x7fffffff;
  if (v.u > 0x7f800000) return sign | 0x7e00 | (v.u >> 13 & 0x3ff);
  if (v.u >= 0x477ff000) return sign | 0x7c00;
  if (v.u < 0x38800000) { v.f += 0.5f; return sign | (v.u - 0x3f000000); }
  return sign | ((v.u - 0x38000000 + 0xfff + (v.u >> 13 & 1)) >> 13);
}
//@ bz_bf16_s
static inline float bz_bf16_s(uint16_t h) {
  union { uint32_t u; float f; } v = {(uint32_t)h << 16};
  return v.f;
}
//@ bz_tobf16_s
static inline uint16_t bz_tobf16_s(float x) {
  union { float f; uint32_t u; } v = {x};
  if (x != x) return v.u >> 16 | 0x40;
  return (v.u + 0x7fff + (v.u >> 16 & 1)) >> 16;
}
//@ bz_philox_s
typedef struct { uint32_t v[4]; } bz_philox_t;
static inline bz_philox_t bz_philox_s(uint64_t seed, uint64_t offset) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  bz_philox_t c = {{(uint32_t)offset, (uint32_t)(offset >> 32), 0, 0}};
  for (int i = 0; i < 10; ++i) {
    const uint64_t a = (uint64_t)0xD2511F53u * c.v[0], b = (uint64_t)0xCD9E8D57u * c.v[2];
    c = (bz_philox_t){{(uint32_t)(b >> 32) ^ c.v[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.v[3] ^ k1, (uint32_t)a}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}
//@ bz_uniform_s
static inline float bz_uniform_s(int64_t seed, int64_t offset) {
  return (float)(bz_philox_s(seed, offset).v[0] >> 8) * 0x1p-24f;
}
//@ bz_words
typedef uint32_t bz_u32x@W@ __attribute__((vector_size(@W@ * 4)));
typedef uint64_t bz_u64h@W@ __attribute__((vector_size(@W@ * 4)));
/* the even lanes times m, in full */
static inline bz_u64h@W@ bz_times_wordsx@W@(bz_u64h@W@ x, uint32_t m) {
#if @W@ == 16 && defined(__AVX512F__) && !defined(__clang__)
  return (bz_u64h@W@)__builtin_ia32_pmuludq512_mask((i32x16)x, (i32x16)((bz_u64h@W@){} + m), (long long __attribute__((vector_size(64)))){}, -1);
#elif @W@ == 8 && defined(__AVX2__) && !defined(__clang__)
  return (bz_u64h@W@)__builtin_ia32_pmuludq256((i32x8)x, (i32x8)((bz_u64h@W@){} + m));
#else
  return (x & 0xffffffffu) * m;
#endif
}
/* as bz_philox_s, the first word of each lane */
static __attribute__((noinline)) f32x@W@ bz_wordsx@W@(uint64_t seed, bz_u32x@W@ c0, bz_u32x@W@ c1) {
  bz_u32x@W@ c2 = {}, c3 = {};
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  const bz_u64h@W@ low = (bz_u64h@W@){} + 0xffffffffu;
  for (int i = 0; i < 10; ++i) {
    const bz_u64h@W@ x = (bz_u64h@W@)c0, y = (bz_u64h@W@)c2;
    const bz_u64h@W@ a = bz_times_wordsx@W@(x, 0xD2511F53u), A = bz_times_wordsx@W@(x >> 32, 0xD2511F53u);
    const bz_u64h@W@ b = bz_times_wordsx@W@(y, 0xCD9E8D57u), B = bz_times_wordsx@W@(y >> 32, 0xCD9E8D57u);
    c0 = (bz_u32x@W@)((b >> 32) | (B & ~low)) ^ c1 ^ k0;
    c1 = (bz_u32x@W@)((b & low) | (B << 32));
    c2 = (bz_u32x@W@)((a >> 32) | (A & ~low)) ^ c3 ^ k1;
    c3 = (bz_u32x@W@)((a & low) | (A << 32));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return __builtin_convertvector((i32x@W@)(c0 >> 8), f32x@W@) * 0x1p-24f;
}
//@ bz_uniforms_i32
static inline f32x@W@ bz_uniforms_i32x@W@(int64_t seed, i32x@W@ offset) {
  return bz_wordsx@W@((uint64_t)seed, (bz_u32x@W@)offset, (bz_u32x@W@){});
}
//@ bz_uniforms_i64
static inline f32x@W@ bz_uniforms_i64x@W@(int64_t seed, i64x@W@ offset) {
  return bz_wordsx@W@((uint64_t)seed, __builtin_convertvector(offset, bz_u32x@W@), __builtin_convertvector(offset >> 32, bz_u32x@W@));
}
//@ bz_normal_s
static inline float bz_normal_s(int64_t seed, int64_t offset) {
  const bz_philox_t c = bz_philox_s(seed, offset);
  const float u = ((float)(c.v[0] >> 8) + 1.0f) * 0x1p-24f, w = (float)(c.v[1] >> 8) * 0x1p-24f;
  return sqrtf(-2.0f * logf(u)) * cosf(6.283185307179586f * w);
}
"""

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
    for name in ("uniform", "normal"):
        out.append(
            f"//@ bz_{name}_i64\nstatic f32x@W@ bz_{name}_i64x@W@{_lanes(f'bz_{name}_s', 'f32', 'i64', 2, _CLEAN)}"
        )
        out.append(
            f"//@ bz_{name}_i32\nstatic f32x@W@ bz_{name}_i32x@W@{_lanes(f'bz_{name}_s', 'f32', 'i32', 2, _CLEAN)}"
        )
    return "\n".join(out)


_VECTOR_F64 = r"""
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
//@ bz_abs_f64
static inline f64x@W@ bz_abs_f64x@W@(f64x@W@ x) { return (f64x@W@)((i64x@W@)x & 0x7fffffffffffffffL); }
//@ bz_copysign_f64
static inline f64x@W@ bz_copysign_f64x@W@(f64x@W@ x, f64x@W@ s) {
  const i64x@W@ top = (i64x@W@){} + (-0x7fffffffffffffffL - 1);
  return (f64x@W@)(((i64x@W@)x & ~top) | ((i64x@W@)s & top));
}
//@ bz_sigmoid_f64
static inline f64x@W@ bz_sigmoid_f64x@W@(f64x@W@ x) { return 1.0 / (1.0 + bz_exp_f64x@W@(-x)); }
"""


def _parse(text: str) -> dict[str, str]:
    parts = re.split(r"^//@ (\w+)$", text, flags=re.M)
    return {name: body.strip("\n") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


#: section name -> C text with @W@ for the number of lanes
SECTIONS: dict[str, str] = _parse(
    "\n".join(
        (_VECTOR_F32, elementary.TEXT, _VECTOR_F64, doubles.text(_CLEAN), _INTEGER, _rounding(), _libm())
    )
)

#: scalar functions of libm that sections and kernels may call, with their number of arguments
LIBM_SCALARS: dict[str, int] = {
    **{name: count for (name, _), count in _LIBM.items()}, "sin": 1, "cos": 1, "log": 1, "fmod": 2, "floor": 1, "ceil": 1, "trunc": 1, "rint": 1, "sqrt": 1, "fabs": 1, "fma": 3,
    "copysign": 2,
}  # fmt: skip
