/* Remainders of floats: sections as mathlib.py says, for f32 and f64; R and I are the types, capital words what mathlib.py has for each. */
//@ bz_fmod_R
/* the quotient's whole part is at most one away, and then the sum with it exact */
static inline Rx@W@ bz_fmod_Rx@W@(Rx@W@ x, Rx@W@ y) {
  const Rx@W@ a = bz_abs_Rx@W@(x), b = bz_abs_Rx@W@(y), d = a / b;
  Rx@W@ r = bz_fma_Rx@W@(-bz_trunc_Rx@W@(d), b, a);
  r = PICK(r < ZERO, r + b, r);
  r = bz_copysign_Rx@W@(PICK(r >= b, r - b, r), x);
  const Ix@W@ near = (d < EXACT) & (b <= MOST) & (b > ZERO);
  if (__builtin_expect(ANY(~near), 0)) r = bz_fmodfar_Rx@W@(x, y, r, near);
  return r;
}
//@ bz_fmodfar_R
static __attribute__((noinline)) Rx@W@ bz_fmodfar_Rx@W@(Rx@W@ x, Rx@W@ y, Rx@W@ r, Ix@W@ near) {@clean@
  for (int l = 0; l < @W@; ++l) if (!near[l]) r[l] = FMOD(x[l], y[l]);
  return r;
}
//@ bz_remainder_R
static inline Rx@W@ bz_remainder_Rx@W@(Rx@W@ x, Rx@W@ y) {
  const Rx@W@ m = bz_fmod_Rx@W@(x, y);
  return PICK((m != ZERO) & ((y < ZERO) ^ (m < ZERO)), m + y, m);
}
//@ bz_floordiv_R
static inline Rx@W@ bz_floordiv_Rx@W@(Rx@W@ x, Rx@W@ y) {
  const Rx@W@ m = bz_fmod_Rx@W@(x, y), q = x / y;
  Rx@W@ d = (x - m) / y;
  d = PICK((m != ZERO) & ((y < ZERO) ^ (m < ZERO)), d - ONE, d);
  const Rx@W@ f = bz_floor_Rx@W@(d);
  d = PICK(d == ZERO, bz_copysign_Rx@W@((Rx@W@){}, q), PICK(d - f > HALF, f + ONE, f));
  return PICK(y == ZERO, q, d);
}
