/* Functions of float32: sections as mathlib.py says. The elementary ones are minimax polynomials on a reduced argument,
   odd ones in the square of it; what the reduction rounds off is carried along where it would show. Errors are stated in
   loops/scalars.py and tested against float64 in tests/codegen/test_c_math.py. */
/* Coefficients are minimax fits made for this file (weighted least squares to equal ripple, in double). */
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
//@ bz_fmaf_s
/* GCC makes one instruction of -fma(a, b, c), -(a * b) - c, whose zero may have the other sign */
static inline __attribute__((always_inline)) float bz_fmaf_s(float a, float b, float c) {
  float r = __builtin_fmaf(a, b, c);
  BZ_OF_ANYWHERE(r);
  return r;
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
static inline f32x@W@ bz_exp_f32x@W@(f32x@W@ v) {
  const f32x@W@ x = bz_min_f32x@W@(bz_splat_f32x@W@(89.0f), bz_max_f32x@W@(bz_splat_f32x@W@(-104.0f), v));
  const f32x@W@ t = bz_fma_f32x@W@(x, bz_splat_f32x@W@(0x1.715476p+0f), bz_splat_f32x@W@(0x1.8p23f));
  const f32x@W@ n = t - 0x1.8p23f;
  f32x@W@ r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.62e4p-1f), x);
  r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.7f7d1cp-20f), r);
  @p(r) = 0x1.6a1a6ap-10f, 0x1.123fc8p-7f, 0x1.555916p-5f, 0x1.55548ap-3f, 0x1.fffffcp-2f@
  p = bz_fma_f32x@W@(p * r, r, r) + 1.0f;
  return bz_ldexpfrom_f32x@W@(v, -104.0f, p, t, n);
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
//@ bz_ldexpfrom_f32
/* bz_ldexp where x is not below what has a result, else 0 (a softmax's masked numbers): a result that underflows takes a processor a hundred cycles */
static inline f32x@W@ bz_ldexpfrom_f32x@W@(f32x@W@ x, float least, f32x@W@ p, f32x@W@ t, f32x@W@ n) {
#if @W@ == 16 && defined(__AVX512F__)
  return (f32x16)__builtin_ia32_scalefps512_mask(p, n, (f32x16){}, __builtin_ia32_cmpps512_mask(x, bz_splat_f32x16(least), 21, -1, 4), 4);
#elif @W@ == 8 && defined(__AVX512VL__)
  return (f32x8)__builtin_ia32_scalefps256_mask(p, n, (f32x8){}, __builtin_ia32_cmpps256_mask(x, bz_splat_f32x8(least), 21, -1));
#else
  return bz_ldexp_f32x@W@((f32x@W@)((i32x@W@)p & ~(x < least)), t, n);
#endif
}
//@ bz_expm1_f32
static inline f32x@W@ bz_expm1_f32x@W@(f32x@W@ v) {
  f32x@W@ x = bz_min_f32x@W@(bz_splat_f32x@W@(88.9f), bz_max_f32x@W@(bz_splat_f32x@W@(-40.0f), v));
  const f32x@W@ t = bz_fma_f32x@W@(x, bz_splat_f32x@W@(0x1.715476p+0f), bz_splat_f32x@W@(0x1.8p23f));
  const f32x@W@ n = t - 0x1.8p23f;
  f32x@W@ r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.62e4p-1f), x);
  r = bz_fma_f32x@W@(n, bz_splat_f32x@W@(-0x1.7f7d1cp-20f), r);
  @p(r) = 0x1.a0333cp-13f, 0x1.6d78dap-10f, 0x1.11118ep-7f, 0x1.5554aap-5f, 0x1.555554p-3f, 0x1.0p-1f@
  p = bz_fma_f32x@W@(p * r, r, r);
  /* 2^(n-1), so that n = 128 stays finite */
  const f32x@W@ s = (f32x@W@)(((i32x@W@)t - 0x4b400000 + 126) << 23);
  const f32x@W@ y = bz_fma_f32x@W@(p, s, s - 0.5f) * 2.0f;
  return bz_sel_f32x@W@(n == 0.0f, bz_sel_f32x@W@(v == 0.0f, v, p), y);
}
//@ bz_exp2_f32
static inline f32x@W@ bz_exp2_f32x@W@(f32x@W@ v) {
  const f32x@W@ x = bz_min_f32x@W@(bz_splat_f32x@W@(129.0f), bz_max_f32x@W@(bz_splat_f32x@W@(-151.0f), v));
  const f32x@W@ t = x + 0x1.8p23f;
  const f32x@W@ n = t - 0x1.8p23f;
  const f32x@W@ d = x - n;
  const f32x@W@ r = d * 0x1.62e43p-1f;
  const f32x@W@ low = bz_fma_f32x@W@(d, bz_splat_f32x@W@(0x1.62e43p-1f), -r);
  const f32x@W@ rest = bz_fma_f32x@W@(d, bz_splat_f32x@W@(-0x1.05c61p-29f), low);
  @p(r) = 0x1.6a1a6ap-10f, 0x1.123fc8p-7f, 0x1.555916p-5f, 0x1.55548ap-3f, 0x1.fffffcp-2f@
  p = (bz_fma_f32x@W@(p * r, r, rest) + r) + 1.0f;
  return bz_ldexpfrom_f32x@W@(v, -151.0f, p, t, n);
}
//@ bz_logpart_f32
/* r = log(1 + f) for sqrt(1/2) - 1 <= f < sqrt(2) - 1, plus e*ln2 */
static inline f32x@W@ bz_logpart_f32x@W@(f32x@W@ f, f32x@W@ e) {
  const f32x@W@ s = f * f;
  @p(f) = 0x1.1456bap-4f, -0x1.de3bd6p-4f, 0x1.e6f0b6p-4f, -0x1.fc2216p-4f, 0x1.233764p-3f, -0x1.555c4cp-3f,
    0x1.99a4b6p-3f, -0x1.000006p-2f, 0x1.555548p-2f@
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
  @p(s) = 0x1.18e1a2p-9f, -0x1.0bf4ecp-7f, 0x1.638b54p-6f, -0x1.b9ee9p-5f, 0x1.111066p-3f, -0x1.555554p-2f@
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
   a float but for 2^-33. Fewer lanes: two polynomials, of which one is the binary logarithm of what is left to 1. */
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
  const f32x@W@ a = bz_abs_f32x@W@(x), h = bz_min_f32x@W@(bz_splat_f32x@W@(4.0f), a);
  @q(h) = 0x1.2a4994p-12f, -0x1.20e6b2p-8f, 0x1.074848p-5f, -0x1.336482p-3f, -0x1.d6920ep-1f, -0x1.a082fcp+0f,
    -0x1.0c82c6p-12f@
  /* -2^q: what q's whole part adds to t's low bits is an exponent, and a nan's, which is none, is multiplied by another */
  const f32x@W@ t = q + 0x1.8000fep23f, r = q - (t - 0x1.8000fep23f);
  @e(r) = -0x1.4447b8p-13f, -0x1.5f096p-10f, -0x1.3b2a28p-7f, -0x1.c6af7ap-5f, -0x1.ebfbep-3f, -0x1.62e43p-1f, -1.0f@
  const f32x@W@ y = bz_copysign_f32x@W@(bz_fma_f32x@W@(e, (f32x@W@)((i32x@W@)t << 23), bz_splat_f32x@W@(1.0f)), x);
  const f32x@W@ s = x * x;
  @p(s) = 0x1.5cd4ap-14f, -0x1.aa3f2ap-11f, 0x1.54c7f4p-8f, -0x1.b80e9p-6f, 0x1.ce2e0ap-4f, -0x1.812742p-2f,
    0x1.06eba8p-3f@
  p = bz_fma_f32x@W@(p, x, x);
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
  @a(s) = 0x1.6cbeeep-19f, -0x1.a00f34p-13f, 0x1.111108p-7f, -0x1.555556p-3f@
  a = bz_fma_f32x@W@(a * s, r, r);
  @b(s) = -0x1.2417f6p-22f, 0x1.a010c6p-16f, -0x1.6c16b8p-10f, 0x1.555556p-5f@
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
  @p(s) = 0x1.1ec6b6p-8f, 0x1.82868cp-14f, 0x1.62f0d2p-7f, 0x1.5cba46p-6f, 0x1.bada4ap-5f, 0x1.110d9cp-3f,
    0x1.55556p-2f@
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
  @p(s) = -0x1.d4984ap-10f, 0x1.64c1cep-7f, -0x1.fdfc1cp-6f, 0x1.da5ed4p-5f, -0x1.58155ep-4f, 0x1.c08f64p-4f,
    -0x1.2420b6p-3f, 0x1.9991e6p-3f, -0x1.55553ep-2f@
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
  @p(s) = 0x1.347faep-5f, 0x1.d5c63ap-7f, 0x1.04cabp-5f, 0x1.6ca7fap-5f, 0x1.3338aap-4f, 0x1.55554cp-3f@
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
  @p(r) = 0x1.6a1a6ap-10f, 0x1.123fc8p-7f, 0x1.555916p-5f, 0x1.55548ap-3f, 0x1.fffffcp-2f@
  p = bz_fma_f32x@W@(p * r, r, r) + 1.0f;
  return bz_ldexp_f32x@W@(p, t - 1.0f, n - 1.0f);
}
//@ bz_sinh_f32
static inline f32x@W@ bz_sinh_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x), s = a * a, h = bz_exphalf_f32x@W@(a);
  @p(s) = 0x1.756c1ep-19f, 0x1.a022bcp-13f, 0x1.1110ep-7f, 0x1.555556p-3f@
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
  @p(s) = 0x1.2f523ep-7f, -0x1.487e0ep-6f, 0x1.ec11ecp-6f, -0x1.6d7ebcp-5f, 0x1.33323ap-4f, -0x1.555554p-3f@
  p = bz_fma_f32x@W@(p * s, a, a);
  return bz_copysign_f32x@W@(bz_sel_f32x@W@(a < 0.5f, p, bz_logroot_f32x@W@(a, 1.0f)), x);
}
//@ bz_acosh_f32
static inline f32x@W@ bz_acosh_f32x@W@(f32x@W@ x) {
  const f32x@W@ d = x - 1.0f;
  @p(d) = -0x1.b177dcp-12f, 0x1.cd6e44p-10f, -0x1.6b969p-8f, 0x1.3324f6p-6f, -0x1.555536p-4f@
  const f32x@W@ root = bz_sqrt_f32x@W@(d + d);
  p = bz_fma_f32x@W@(p * d, root, root);
  return bz_sel_f32x@W@(d < 0.5f, p, bz_logroot_f32x@W@(x, -1.0f));
}
//@ bz_atanh_f32
static inline f32x@W@ bz_atanh_f32x@W@(f32x@W@ x) {
  const f32x@W@ a = bz_abs_f32x@W@(x), s = a * a;
  @p(s) = 0x1.7b2a7cp-3f, 0x1.15de1cp-6f, 0x1.af1522p-4f, 0x1.bfab12p-4f, 0x1.24d1bap-3f, 0x1.99979ep-3f,
    0x1.555558p-2f@
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
  @p(q) = 0x1.d2ce56p-16f, -0x1.827c6p-12f, -0x1.4b5fbep-10f, 0x1.4e112ep-10f, 0x1.1b6804p-7f, -0x1.079028p-7f,
    -0x1.bc143p-5f, 0x1.4ffad6p-3f, -0x1.5407fcp-3f, -0x1.7bf5f4p-4f, 0x1.1ba038p-2f@
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
  @p(s) = 0x1.5cd4ap-14f, -0x1.aa3f2ap-11f, 0x1.54c7f4p-8f, -0x1.b80e9p-6f, 0x1.ce2e0ap-4f, -0x1.812742p-2f,
    0x1.06eba8p-3f@
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
//@ bz_powpart_f64
/* 2^(y log2(m 2^e)) for m = 1 + f between sqrt(1/2) and sqrt(2), in doubles: of a float's power 2^-28 is left */
static inline f64x@W@ bz_powpart_f64x@W@(f64x@W@ f, f64x@W@ e, f64x@W@ y) {
  const f64x@W@ s = f / (f + 2.0), z = s * s;
  @p(z) = 0x1.5ce7d124e607fp-2, 0x1.a58d8f890fdc3p-2, 0x1.27777fdaec34cp-1, 0x1.ec709d12e09efp-1, 0x1.71547652bede4p+1@
  const f64x@W@ v = bz_within_f64x@W@(y * bz_fma_f64x@W@(s, p, e), -200.0, 200.0);
  const f64x@W@ t = v + 0x1.8p52, r = v - (t - 0x1.8p52);
  @q(r) = 0x1.41d3488e044eep-13, 0x1.5f4569cdd8273p-10, 0x1.3b2dbba07786ap-7, 0x1.c6aed4bb7202cp-5,
    0x1.ebfbdadce1ff4p-3, 0x1.62e430c7e7155p-1, 0x1.00000002613e3p+0@
  return q * (f64x@W@)(((i64x@W@)t - 0x4338000000000000L + 1023) << 52);
}
//@ bz_powhalves_f32
/* the same for floats, of which half fill a register as doubles */
static inline f32x@W@ bz_powhalves_f32x@W@(f32x@W@ f, f32x@W@ e, f32x@W@ y) {
  const union { f32x@W@ all; f32x@H@ half[2]; } a = {f}, b = {e}, c = {y};
  union { f32x@W@ all; f32x@H@ half[2]; } r;
  for (int h = 0; h < 2; ++h)
    r.half[h] = __builtin_convertvector(bz_powpart_f64x@H@(
      __builtin_convertvector(a.half[h], f64x@H@), __builtin_convertvector(b.half[h], f64x@H@), __builtin_convertvector(c.half[h], f64x@H@)), f32x@H@);
  return r.all;
}
//@ bz_pow_f32
static inline f32x@W@ bz_pow_f32x@W@(f32x@W@ x, f32x@W@ y) {
  const f32x@W@ a = bz_abs_f32x@W@(x), b = bz_abs_f32x@W@(y), most = bz_splat_f32x@W@(0x1.fffffep127f);
  const i32x@W@ tiny = a < 0x1p-126f;
  const i32x@W@ bits = (i32x@W@)bz_sel_f32x@W@(tiny, a * 0x1p23f, a), k = (bits - 0x3f3504f3) >> 23;
  f32x@W@ r = bz_powhalves_f32x@W@((f32x@W@)(bits - (k << 23)) - 1.0f, __builtin_convertvector(k - (tiny & 23), f32x@W@), y);
  /* zero and infinity */
  const f32x@W@ ends = bz_sel_f32x@W@((a < 1.0f) == (y < 0.0f), bz_splat_f32x@W@(__builtin_inff()), (f32x@W@){});
  r = bz_sel_f32x@W@((a == 0.0f) | (a > most), ends, r);
  /* of negative numbers only whole powers; odd ones are negative */
  const f32x@W@ half = y * 0.5f;
  const i32x@W@ whole = (bz_round_f32x@W@(y) == y) & (y == y), odd = whole & (bz_round_f32x@W@(half) != half);
  r = (f32x@W@)((i32x@W@)r ^ (odd & (i32x@W@)x & (int)0x80000000));
  const i32x@W@ none = ((x < 0.0f) & (a <= most) & ~whole) | (x != x) | (y != y);
  r = bz_sel_f32x@W@(none, bz_splat_f32x@W@(__builtin_nanf("")), r);
  return bz_sel_f32x@W@((x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (b > most)), bz_splat_f32x@W@(1.0f), r);
}
