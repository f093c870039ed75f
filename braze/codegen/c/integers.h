/* Integers, half types and random numbers: sections as mathlib.py says. */
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
//@ bz_floordivby_s
static inline __attribute__((always_inline)) int64_t bz_floordivby_s(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - (a < q * b);
}
//@ bz_remainderby_s
static inline __attribute__((always_inline)) int64_t bz_remainderby_s(int64_t a, int64_t b) {
  const int64_t r = a % b;
  return r < 0 ? r + b : r;
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
