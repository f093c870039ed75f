/* of what -O2 does beyond -O1 the two passes after which a polynomial's numbers are operands in memory, not loads of their own */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("gcse", "rerun-cse-after-loop")
#endif
typedef unsigned char uint8_t; typedef signed char int8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t;
extern void (*bz_team)(void (*)(void *), void *, unsigned, unsigned);
extern int (*bz_thread)(void);
extern int (*bz_threads)(void);
/* a number in a register of which the compiler is not told where it is from */
#if defined(__x86_64__)
#define BZ_OF_ANYWHERE(r) __asm__("" : "+x"(r))
#elif defined(__aarch64__)
#define BZ_OF_ANYWHERE(r) __asm__("" : "+w"(r))
#else
#define BZ_OF_ANYWHERE(r)
#endif
/* what lies at x where the mask m is all ones, else a 0 that lies elsewhere, without a branch */
static const int64_t bz_nothing;
#define BZ_WHERE(c, m, x) (*(const c *)((int64_t)&bz_nothing + (((int64_t)&(x) - (int64_t)&bz_nothing) & (int64_t)(m))))
void *malloc(unsigned long);
void *aligned_alloc(unsigned long, unsigned long);
void free(void *);
typedef void bz_body(void **, const int64_t *, int64_t, int64_t, int64_t);
typedef struct { bz_body *body; void **b; const int64_t *s; int64_t tasks, threads; } bz_job;
static void bz_share(void *p) {
  const bz_job *j = (const bz_job *)p;
  const int64_t t = bz_thread();
  if (t >= j->threads) return;
  const int64_t each = j->tasks / j->threads, more = j->tasks % j->threads;
  const int64_t lo = t * each + (t < more ? t : more);
  j->body(j->b, j->s, lo, lo + each + (t < more), t);
}
/* tasks in contiguous shares; one thread per 64 KiB of work, and the whole team or none */
static inline void bz_run(bz_body *body, void **b, const int64_t *s, int64_t tasks, int64_t work) {
  int64_t n = work >> 16;
  if (n > tasks) n = tasks;
  if (n > 1) { const int64_t all = bz_threads(); if (n > all) n = all; }
  if (n > 1) { bz_job j = {body, b, s, tasks, n}; bz_team(bz_share, &j, 0, 0); }
  else if (tasks > 0) body(b, s, 0, tasks, 0);
}
typedef struct { int64_t next, end, apart[6]; } bz_range;
typedef struct { bz_body *body; void **b; const int64_t *s; int64_t threads; bz_range *of; } bz_pool;
static void bz_take(void *p) {
  const bz_pool *j = (const bz_pool *)p;
  const int64_t t = bz_thread();
  int64_t i;
  if (t >= j->threads) return;
  for (int64_t n = 0; n < j->threads; ++n) {
    bz_range *r = j->of + (t + n) % j->threads;
    while (__atomic_load_n(&r->next, __ATOMIC_RELAXED) < r->end && (i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED)) < r->end)
      j->body(j->b, j->s, i, i + 1, 0);
  }
}
#define BZ_RANGES 64
/* costly tasks: each thread takes those of its share, beside each other in memory, then what is left of the others' */
static inline void bz_run_free(bz_body *body, void **b, const int64_t *s, int64_t tasks, int64_t work) {
  int64_t n = work >> 16;
  if (n > tasks) n = tasks;
  if (n > BZ_RANGES) n = BZ_RANGES;
  if (n > 1) { const int64_t all = bz_threads(); if (n > all) n = all; }
  if (n > 1) {
    bz_range of[BZ_RANGES];
    const int64_t each = tasks / n, more = tasks % n;
    for (int64_t t = 0; t < n; ++t) {
      of[t].next = t * each + (t < more ? t : more);
      of[t].end = of[t].next + each + (t < more);
    }
    bz_pool j = {body, b, s, n, of};
    bz_team(bz_take, &j, 0, 0);
  } else if (tasks > 0) body(b, s, 0, tasks, 0);
}
#ifdef __clang__
#define BZ_MIX(a, b, index, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BZ_MIX(a, b, index, ...) __builtin_shuffle(a, b, (index){__VA_ARGS__})
#endif
/* scratch memory that the next call finds again: fresh pages cost more than what is done in them */
static int64_t *bz_kept;
static inline void *bz_borrow(int64_t bytes) {
  int64_t *p = __atomic_exchange_n(&bz_kept, (int64_t *)0, __ATOMIC_ACQ_REL);
  if (p && *p < bytes) { free(p); p = 0; }
  if (!p) { p = (int64_t *)aligned_alloc(64, ((unsigned long)bytes + 127) / 64 * 64); *p = bytes; }
  return p + 8;
}
static inline void bz_return(void *q) {
  int64_t *const p = __atomic_exchange_n(&bz_kept, (int64_t *)q - 8, __ATOMIC_ACQ_REL);
  if (p) free(p);
}
/* n bytes that lie apart from those they go to, or at the same place; of a count that the compiler knows a few moves */
typedef char bz_bytes __attribute__((vector_size(32), aligned(1), may_alias));
typedef char bz_fewer __attribute__((vector_size(16), aligned(1), may_alias));
#define BZ_PIECE(t, b) if (n & b) { typedef t piece __attribute__((aligned(1), may_alias)); *(piece *)to = *(const piece *)from; to += b; from += b; }
static inline void bz_copy(void *p, const void *q, int64_t n) {
  char *to = (char *)p;
  const char *from = (const char *)q;
  if (n >= 32) {
    int64_t k = 0;
    for (; k + 32 <= n; k += 32) *(bz_bytes *)(to + k) = *(const bz_bytes *)(from + k);
    if (n & 31) *(bz_bytes *)(to + n - 32) = *(const bz_bytes *)(from + n - 32);
    return;
  }
  BZ_PIECE(bz_fewer, 16) BZ_PIECE(int64_t, 8) BZ_PIECE(int32_t, 4) BZ_PIECE(int16_t, 2) BZ_PIECE(int8_t, 1)
}
static inline int64_t bz_fdiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static inline int64_t bz_mod(int64_t a, int64_t b) { const int64_t r = a % b; return r < 0 ? r + b : r; }
