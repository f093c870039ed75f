"""Functions that generated Triton kernels call, as text: only those a kernel uses are put before it.

Polynomials are Cephes' (S. Moshier, Methods and Programs for Mathematical Functions, 1989), single precision.
"""

from __future__ import annotations

import re


def _one_instruction(name: str, instruction: str, otherwise: str, comment: str) -> str:
    """A function of floats that NVIDIA's GPUs have an instruction for, and Triton another text."""
    return f"""
@triton.jit
def {name}(x):
    # {comment}
    if bz_bare:
        y = tl.inline_asm_elementwise("{instruction} $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = tl.{otherwise}(x)
    return y
"""


FUNCTIONS: dict[str, str] = {
    "bz_div": """
@triton.jit
def bz_div(a, b):
    # the plain operator is an approximation in single precision
    if a.dtype == tl.float32:
        q = tl.div_rn(a, b)
    else:
        q = a / b
    return q
""",
    "bz_mean": """
@triton.jit
def bz_mean(total, count):
    return bz_div(total, tl.zeros_like(total) + count)
""",
    "bz_words": """
@triton.jit
def bz_words(seed, place):
    # Philox-4x32-10, the words of tl.randint4x: a product of 64 bits is one instruction, its halves by themselves are two
    key = bz_long(seed).to(tl.uint64)
    k0, k1 = (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)
    c0 = place.to(tl.uint32)
    c1 = c0 * 0
    c2, c3 = c1, c1
    if place.dtype.primitive_bitwidth > 32:
        c1 = (place >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        a, b = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (b >> 32).to(tl.uint32) ^ c1 ^ k0, b.to(tl.uint32)
        c2, c3 = (a >> 32).to(tl.uint32) ^ c3 ^ k1, a.to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3
""",
    "bz_word": """
@triton.jit
def bz_word(seed, place):
    # one call gives the words of four places
    a, b, c, d = bz_words(seed, place >> 2)
    word = place & 3
    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))
""",
    "bz_4_words": """
@triton.jit
def bz_4_words(seed, fours, shape: tl.constexpr):
    a, b, c, d = bz_words(seed, fours)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), shape)
""",
    "bz_8_words": """
@triton.jit
def bz_8_words(seed, eights, shape: tl.constexpr):
    # a thread that stores eight elements side by side draws them itself: words of fours would have to pass between threads
    a, b, c, d = bz_words(seed, eights * 2)
    e, f, g, h = bz_words(seed, eights * 2 + 1)
    return tl.reshape(tl.join(tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h))), shape)
""",
    "bz_uniform": """
@triton.jit
def bz_uniform(word):
    # 31 bits of it; the largest is less than 1 when it is rounded
    x = word.to(tl.int32, bitcast=True)
    return (x ^ (x >> 31)).to(tl.float32) * 4.6566127342e-10
""",
    "bz_is_among": """
@triton.jit
def bz_is_among(word, begin, end):
    # begin is few - 2^31 and end 2 * few - 2^31: whether word ^ (word >> 31) is one of so few numbers from 0 on
    return tl.add(word.to(tl.int32, bitcast=True), begin, sanitize_overflow=False) < end
""",
    "bz_long": """
@triton.jit
def bz_long(number):
    # sizes are counted in 32 bits while they fit
    return tl.full([], 0, tl.int64) + number
""",
    "bz_fetch": """
@triton.jit
def bz_fetch(places):
    # the lines there are brought into the cache that all multiprocessors share
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )
""",
    "bz_rows": """
@triton.jit
def bz_rows(at, left, long: tl.constexpr, rows: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
    # rows that lie one behind the other, read in whole vectors and handed on through shared memory: threads have rows each, whose ends are nobody's
    f = tl.arange(0, block)
    if left >= rows * long:
        x = tl.load(at + f, mask=f < rows * long, other=0)
    else:
        x = tl.load(at + f, mask=f < left, other=0)
    # numbers as the kernel has them: who lays out what is stored along columns leaves alone what others have made use of
    column, row = tl.arange(0, width)[:, None], tl.arange(0, rows)[None, :]
    places = row * long + tl.minimum(column, long - 1)
    return tl.reshape(tl.gather(x, tl.reshape(places, [width * rows]), 0), [width, rows])
""",
    "bz_again": """
@triton.jit
def bz_again(x, held: tl.constexpr):
    # who sees that it is the same number keeps what was made of it, in twice the registers
    if held:
        if x.dtype.primitive_bitwidth == 16:
            y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
        else:
            y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)
    else:
        y = x
    return y
""",
    "bz_neg": """
@triton.jit
def bz_neg(x):
    # Triton may write -x as 0 - x, which has another sign where x is 0
    return x * -1.0
""",
    "bz_shl": """
@triton.jit
def bz_shl(a, b, bits: tl.constexpr):
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, tl.zeros_like(b)), tl.zeros_like(a))
""",
    "bz_shr": """
@triton.jit
def bz_shr(a, b, bits: tl.constexpr):
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a >> tl.where(inside, b, tl.zeros_like(b)), (a >> (bits - 1)) >> 1)
""",
    "bz_trunc": """
@triton.jit
def bz_trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    "bz_floordiv": """
@triton.jit
def bz_floordiv(a, b):
    r = libdevice.fmod(a, b)
    q = bz_div(a - r, b)
    q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1.0, q)
    near = tl.floor(q)
    near = tl.where(q - near > 0.5, near + 1.0, near)
    return tl.where(b == 0, bz_div(a, b), tl.where(q == 0, bz_div(a, b) * 0.0, near))
""",
    "bz_remainder": """
@triton.jit
def bz_remainder(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)
""",
    "bz_int_floordiv": """
@triton.jit
def bz_int_floordiv(a, b):
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)
""",
    "bz_int_remainder": """
@triton.jit
def bz_int_remainder(a, b):
    r = a % b
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)
""",
    "bz_sign": """
@triton.jit
def bz_sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(x.dtype)
""",
    "bz_round": """
@triton.jit
def bz_round(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    near = tl.where(up, low + 1.0, low)
    return tl.where(rest == 0.0, x, tl.where(near == 0.0, x * 0.0, near))
""",
    "bz_tanh": """
@triton.jit
def bz_tanh(x):
    a = tl.abs(x)
    z = x * x
    p = -5.70498872745e-3
    p = p * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    small = p * z * x + x
    large = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return tl.where(x == 0.0, x, tl.where(a < 0.625, small, tl.where(x < 0, -large, large)))
""",
    "bz_coarse_div": """
@triton.jit
def bz_coarse_div(a, b):
    # b is one number for many: its reciprocal is, too. What has none in single precision is scaled by 2^64 either way
    large = tl.where(tl.abs(b) > 1e30, 5.421010862427522e-20, 1.0)
    scale = tl.where(tl.abs(b) < 1e-30, 1.8446744073709552e19, large)
    return (a * scale) * (1.0 / (b * scale))
""",
    "bz_bare": """
# whether instructions may be written as NVIDIA's GPUs have them
bz_bare: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret and triton.runtime.driver.active.get_current_target().backend == "cuda")
""",
    "bz_program": """
@triton.jit
def bz_program():
    # of a program that is known to be one of few a compiler counts places in 16 bits, two at once, and the assembler of CUDA 12.8 takes a 1 for 0 where of two it drops one
    program = tl.program_id(0)
    if bz_bare:
        program = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [program], dtype=tl.int32, is_pure=True, pack=1)
    return program
""",
    "bz_power": _one_instruction(
        "bz_power",
        "ex2.approx.ftz.f32",
        "exp2",
        "a power of 2, or 0 where it would be denormal: one instruction, four with those",
    ),
    "bz_root": _one_instruction(
        "bz_root",
        "rsqrt.approx.ftz.f32",
        "rsqrt",
        "the reciprocal root of what is not denormal: one instruction, four of other numbers",
    ),
    "bz_part": """
@triton.jit
def bz_part(x):
    # 1 / (1 + exp(x)): powers of 2 and reciprocal roots take one instruction each, exp and quotients five
    r = bz_root(1.0 + bz_power(x * 1.4426950408889634))
    return r * r
""",
    "bz_coarse_sigmoid": """
@triton.jit
def bz_coarse_sigmoid(x):
    return bz_part(x * -1.0)
""",
    "bz_coarse_tanh": """
@triton.jit
def bz_coarse_tanh(x):
    z = x * x
    small = x * ((z * 0.13333334 - 0.33333334) * z + 1.0)
    return tl.where(tl.abs(x) < 0.1, small, 1.0 - 2.0 * bz_part(2.0 * x))
""",
    "bz_coarse_erf": """
@triton.jit
def bz_coarse_erf(x):
    # 1 - erf is a power of 2 of a polynomial, of the sign of x. It is fitted on 0.2 to 4 so that the distance of erf is at most 2e-7 and falls with (1 - erf)^(1/4):
    # GELU's 1 + erf is as good, rounded to half, as by erf in single precision
    a = tl.minimum(tl.abs(x), 4.0, propagate_nan=tl.PropagateNan.ALL)
    p = -3.775635559577495e-05
    p = p * a + 3.1885305361356586e-05
    p = p * a + 0.003434688551351428
    p = p * a - 0.030899913981556892
    p = p * a + 0.14989715814590454
    p = p * a + 0.9180452227592468
    p = p * a + 1.627944827079773
    large = (1.0 - bz_power(p * a * -1.0)).to(tl.int32, bitcast=True)
    large = (large | (x.to(tl.int32, bitcast=True) & -2147483648)).to(tl.float32, bitcast=True)
    z = x * x
    small = x * ((z * 0.11283792 - 0.37612639) * z + 1.1283792)
    return tl.where(tl.abs(x) < 0.2, small, large)
""",
    "bz_below": """
@triton.jit
def bz_below(x):
    # exp(x) as a summand beside 1: what is denormal does not count
    if x.dtype == tl.float32:
        y = bz_power(x * 1.4426950408889634)
    else:
        y = tl.exp(x)
    return y
""",
    "bz_exp": """
@triton.jit
def bz_exp(x):
    # a GPU has powers of 2: what x * log2(e) loses to rounding is put back
    t = x * 1.4426950408889634
    lost = tl.fma(x, tl.full(x.shape, 1.4426950408889634, x.dtype), bz_neg(t))
    y = tl.exp2(t)
    return tl.where(tl.abs(lost) < 1.0, y * (1.0 + lost * 0.6931471805599453), y)
""",
    "bz_expm1": """
@triton.jit
def bz_expm1(x):
    # Kahan's correction: (u - 1) * x / log(u)
    u = tl.exp(x)
    near = (u - 1.0) * x / tl.log(u)
    return tl.where(u == 1.0, x, tl.where((u - 1.0 == -1.0) | (tl.abs(x) > 40.0), u - 1.0, near))
""",
    "bz_log1p": """
@triton.jit
def bz_log1p(x):
    # Kahan's correction: log(u) * x / (u - 1)
    u = 1.0 + x
    near = tl.log(u) * (x / (u - 1.0))
    return tl.where(u == 1.0, x, tl.where(u == float("inf"), u, near))
""",
    "bz_max": """
@triton.jit
def bz_max(a, b):
    # a GPU has one instruction for floats, in which nan wins
    if a.dtype.is_floating():
        best = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        best = tl.where(a > b, a, b)
    return best
""",
    "bz_min": """
@triton.jit
def bz_min(a, b):
    # a GPU has one instruction for floats, in which nan wins
    if a.dtype.is_floating():
        best = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        best = tl.where(a < b, a, b)
    return best
""",
    "bz_rescale": """
@triton.jit
def bz_rescale(total, old, new):
    return tl.where(old == new, total, total * bz_below(old - new))
""",
    "bz_prod": """
@triton.jit
def bz_prod(a, b):
    return a * b
""",
    "bz_two_sums": """
@triton.jit
def bz_two_sums(a, b, c, d):
    return a + c, b + d
""",
    "bz_argmax": """
@triton.jit
def bz_argmax(v, i, w, j):
    vn = v != v
    wn = w != w
    first = tl.where(vn | wn, vn & (~wn | (i < j)), (v > w) | ((v == w) & (i < j)))
    return tl.where(first, v, w), tl.where(first, i, j)
""",
    "bz_argmin": """
@triton.jit
def bz_argmin(v, i, w, j):
    vn = v != v
    wn = w != w
    first = tl.where(vn | wn, vn & (~wn | (i < j)), (v < w) | ((v == w) & (i < j)))
    return tl.where(first, v, w), tl.where(first, i, j)
""",
}


def used(text: str) -> str:
    """The definitions of every ``bz_*`` function that ``text`` calls, callees first."""
    wanted: list[str] = []

    def need(name: str) -> None:
        if name in wanted or name not in FUNCTIONS:
            return
        body = FUNCTIONS[name]
        for callee in re.findall(r"\bbz_\w+", body.split(":", 1)[1]):
            need(callee)
        wanted.append(name)

    for name in re.findall(r"\bbz_\w+", text):
        need(name)
    return "\n".join(FUNCTIONS[n] for n in wanted)
