"""Whether numbers are as good as eager's: near eager's own, or no further from the float64 result than rounding takes one.

How far rounding takes a program is found by running it in float64 with each intermediate result rounded up or down at random, as
a float type of the program would hold it: sums that cancel, steps and poles then have room where they need it, and only there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.tensors import units
from tests.fuzz.tensors.asked import (
    absolute,
    beside_infinities,
    in_backward,
    in_digits,
    in_vectors,
    is_float,
    lost_beside,
    lost_in,
    mass_of,
    put,
    sizes_of,
    tensors,
)

Tensor = torch.Tensor

#: operators that add up: they may be as far off as the sum of what they add is large, however small their result
SUMS = frozenset(
    """sum mean nansum trace mm bmm addmm baddbmm dot mv convolution var var_mean std std_mean cumsum
    index_put index_put_ _index_put_impl_ index_add index_add_ scatter_add scatter_add_""".split()
)
#: operators whose eager kernels give a zero one sign in vectors and the other in what is left of them; of zeros of both signs along
#: a dim (`max.dim`, `aminmax`) eager gives the first, and ours any: its vectors look for the greatest number, whose place they find apart
SIGNLESS = frozenset(
    """softshrink maximum minimum fmax fmin clamp.Tensor clamp_.Tensor clamp_min.Tensor clamp_max.Tensor
    amax amin aminmax max min max.dim min.dim""".split()
)
#: products of matrices, whose sum of a single product begins with 0 in some kernels: it has no sign there where the product is -0
PRODUCTS = frozenset(["mm", "bmm"])
#: operators that eager's kernels compute with constants of single precision, such as a sixth, in doubles too
SINGLE = frozenset(["hardsigmoid_backward"])
#: sums that are kept in their type on the way
INTO_MEMORY = frozenset(n for n in SUMS if "index_" in n or "scatter" in n) | {"scatter_reduce"}
#: operators that move numbers or turn their signs: what these were added up from comes along
MOVES = frozenset(
    """clone _unsafe_view neg flip roll slice_backward select_backward diagonal_backward
    constant_pad_nd""".split()
)
#: derivatives that eager's kernels take otherwise in vectors than in what is left of them, where the argument is no number
BY_PLACE = frozenset(
    """elu_backward hardtanh_backward hardshrink_backward softshrink_backward hardswish_backward
    logit_backward""".split()
)
#: operators whose parts cancel: they are rounded part by part
BY_PARTS = frozenset(
    """silu_backward gelu_backward mish_backward gelu _softmax_backward_data _log_softmax
    _log_softmax_backward_data logsumexp logaddexp logaddexp2 native_group_norm_backward native_layer_norm_backward
    native_batch_norm_backward""".split()
)
#: comparisons that rounding decides where numbers are near each other: which of two is equal to a third no noise tells, it makes none so
EQUALS = frozenset("eq eq_ ne ne_".split())
#: functions with poles at 0 and the whole numbers below it, and which argument they are of: to one of them a number may be rounded
POLES = {"polygamma": 1, "digamma": 0, "lgamma": 0}
#: operators of many steps inside, means taken off among them: they are as near as the exact result of a rounded argument
STABLE = frozenset(
    "var var_mean std std_mean native_layer_norm native_batch_norm native_group_norm batch_norm _native_batch_norm_legit".split()
)
#: norms that take off a mean of their own, and where their slopes are given: of few numbers, far from nothing and near each other, the
#: mean is as far off as they are large, which rounding of the argument does not show (a norm of two numbers is 1 and -1)
MEANS = {
    "native_layer_norm": 2,
    "native_group_norm": 1,
    "native_batch_norm": 1,
    "_native_batch_norm_legit": 1,
}
#: sums of all numbers along some dims, turned: each is as far off as these are long, however small it is
TRANSFORMS = frozenset("_fft_r2c _fft_c2r _fft_c2c".split())
#: squares of larger numbers than this cannot be added up, in doubles and in what kernels compute smaller types in: what is
#: made of the sum is 0 or no number, by place
HUGE = {True: 1e150, False: 1e18}
#: their sums are no number in eager where differences overflow, or infinite, even negative, by the order of the numbers
SPREADS = frozenset("var var_mean std std_mean".split())
#: float64 runs with random rounding, in pairs: what one rounds up the other rounds down, so that what has either sign by rounding
#: has both; in the last pair equal numbers are rounded alike, so that a choice among them stays eager's
SAMPLES = 8
ALIKE = 2
#: after so many of them it is looked whether there is room enough already, as there is mostly
LOOKS = (0, 1, 2, 4, SAMPLES)
#: further looks at more numbers than ``MANY``: of millions there is one where all of the first throws cancel, and two whose functions
#: are so near that a kernel which is off by two units, as a GPU's are, has the other one first
MORE_LOOKS, MANY = (14, 20), 10_000
#: how many times further than any of them is too far
ROOM = 4.0


def adds_up(name: str, args: Any) -> bool:
    """Whether an operator adds numbers up."""
    return name in SUMS or (name == "scatter_reduce" and args[4] in ("sum", "mean"))


def length_of(func: Any, made: Tensor, args: Any) -> Tensor:
    """How long the numbers are of which a transform makes each, as it is scaled."""
    given, dims = args[0].detach(), args[1]
    one = torch.zeros([given.shape[d] if d in dims else 1 for d in range(given.dim())], dtype=given.dtype)
    one.flatten()[:1] = 1
    lengths = torch.linalg.vector_norm(given, dim=dims, keepdim=True) * func(one, *args[1:]).abs().max()
    return lengths.expand(made.shape)


class RandomRounding(TorchDispatchMode):
    """Rounds what operations make to the numbers of ``dtype``, up or down at random; views stay views.

    Unless it ``rounds``, what eager's kernels leave open is all that it changes: signs of zeros, numbers made of what overflows, sums that
    cancel to nothing or nearly so.
    """

    def __init__(self, dtype: torch.dtype, seed: int, rounds: bool = True) -> None:
        super().__init__()
        self.rounds, self.seed, self.dtype = rounds, seed, dtype
        self.eps = torch.finfo(dtype).eps
        # float64 has room for everything that float64 makes: what has a place in float32 is taken for exact there
        self.exact = torch.float32 if dtype is torch.float64 else dtype
        self.generator = torch.Generator().manual_seed(seed // 2)
        self.odd, self.last = bool(seed % 2), seed == SAMPLES - 1
        self.alike = SAMPLES - ALIKE <= seed < SAMPLES
        # what may leave its type on the way does here, and is this; in other runs it is only off. `fmax` and `fmin` pass one of these over
        self.left = {0: torch.nan, 4: torch.inf, 6: -torch.inf}.get(seed)
        # halves are added up in float32
        self.widest = torch.float64 if dtype is torch.float64 else torch.float32
        self.huge = HUGE[dtype is torch.float64]
        #: whether parts of a norm's gradient are computed
        self.of_norm = False
        self.overflown = (torch.nan, torch.inf, 0.0, -torch.inf)[seed % 4]

    def zeros(self, like: Tensor) -> Tensor:
        """Zeros of one sign, of both in turn or at random, by the pair of runs, whose other run has the opposite: differences of such have either, too."""
        negative = torch.full(like.shape, self.odd)
        if self.seed // 2 == 1:
            negative ^= (torch.arange(like.numel()) % 2).bool().view(like.shape)
        elif self.seed // 2 == 2:
            negative ^= torch.rand(like.shape, generator=self.generator) < 0.5
        return torch.where(negative, -0.0, 0.0).to(like.dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._efficientzerotensor.default:
            func = (
                torch.ops.aten.zeros.default
            )  # PyTorch dies where one without memory meets this mode (300017543)
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:  # there PyTorch hands over whole what it makes of others
                return func.decompose(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        overflows, place, unrounded = False, 1 if name.endswith("_norm_backward") else 0, args
        if name in STABLE or place:
            given = args[place]
            huge = (given.abs() > self.huge) & given.isfinite()
            overflows = bool(huge.any())
            given = given.masked_fill(huge, self.huge) if overflows else given
            args = (*args[:place], given if place else self.rounded(given), *args[place + 1 :])
        if name in BY_PARTS and func in decomposition_table:
            before, self.of_norm = self.of_norm, bool(place)
            try:
                with self:
                    made = decomposition_table[func](*args, **kwargs)
            finally:
                self.of_norm = before
            if name == "gelu" and self.odd:  # eager doubles before it halves
                beyond = args[0].detach() > torch.finfo(self.widest).max / 2
                put(made.detach(), made.detach().masked_fill(beyond, torch.inf))
            if name == "_softmax_backward_data" and self.rounds:
                self.either(made.detach(), *args[:3])
            return made
        open_ = self.near(args[0], args[1]) if name in EQUALS and self.rounds and self.odd else None
        made = in_vectors(func, args, kwargs, self.odd) if name in BY_PLACE else func(*args, **kwargs)
        if func.is_view or name in MOVES:
            if isinstance(made, Tensor) and "mass" in args[0].__dict__:
                made.__dict__["mass"] = sizes_of(func(args[0].__dict__["mass"], *args[1:], **kwargs))
            return made
        if name == "convolution" and self.odd:
            beside_infinities(made, args, (torch.inf, -torch.inf, 0.0, 0.0)[self.seed // 2])
        if open_ is not None:
            put(made.detach(), made.detach().masked_fill(open_, name.startswith("eq")))
        if name in POLES and self.rounds and self.odd:
            at = args[POLES[name]].detach()
            pole = (at < 0.5) & self.near(at, at.round())
            put(made.detach(), made.detach().masked_fill(pole, torch.inf))
        if name == "pow" and self.rounds and self.odd and is_float(args[1]):
            base, whole = unrounded[0], args[1].detach().round()
            open_ = (torch.as_tensor(base) < 0) & self.near(args[1], whole)
            put(made.detach(), torch.where(open_, torch.pow(base, whole).detach(), made.detach()))
        sums = adds_up(name, args)
        if sums and is_float(made) and not (args[0].is_floating_point() or args[0].is_complex()):
            args = (args[0].double(), *args[1:])  # integers that are added up as floats
        mass = func(*absolute(args), **kwargs) if sums else made
        if name in TRANSFORMS:
            mass = length_of(func, made, args)
        if name == "add" and isinstance(made, Tensor) and made.is_floating_point():
            mass = made.__dict__["mass"] = sum(map(mass_of, args[:2])) + torch.zeros_like(made)
        for value, size in zip(tensors(made), tensors(mass), strict=True):
            if value.is_complex() and not value.is_conj():  # each part is a sum of products of parts
                size = size.detach().abs()[..., None].expand(*size.shape, 2)
                self.round(torch.view_as_real(value.detach()), size, self.rounds)
            # in floats of one byte nobody computes: they are moved
            if value.is_floating_point() and value.numel() and value.itemsize > 1:
                lost = lost_in(args) | lost_in([mass_of(a) for a in args[:2]]) if name == "add" else None
                if sums and name not in STABLE:
                    lost = lost_beside(func, args, kwargs, size.detach())
                    if not self.of_norm:
                        whole = units.are_whole(name, args, kwargs, size.detach(), self.eps)
                        size = size.masked_fill(whole, 0.0)
                eps = torch.finfo(torch.float32).eps if name in SINGLE else 0.0
                # gradients may be divided before they are added, as those of a norm by the numbers in a row
                if (name == "div" and in_backward()) or (name == "sum" and self.of_norm):
                    eps = self.eps
                if name in STABLE:  # eager adds up one number after the other, in doubles as in smaller types
                    eps = torch.finfo(torch.float64).eps * args[0].numel() ** 0.5
                steps = (args[0].numel() / value.numel()) ** 0.5 if name == "prod" else 1.0
                self.round(value.detach(), size.detach().abs(), sums, lost, eps, steps)
                if (name == "prod" or (sums and name not in STABLE)) and self.left is not None:
                    beyond = self.beyond(func, args, kwargs, sums)
                    # an infinite product of small numbers is none where these make a zero first, and a sum where others leave the type below it
                    infinite = torch.nan if self.seed else 0.0
                    other = torch.where(value.detach().isfinite(), self.left, infinite)
                    put(value.detach(), torch.where(beyond, other, value.detach()))
                if overflows and not self.rounds:
                    put(value.detach(), torch.full_like(value, self.overflown))
                elif overflows and (not self.odd or (self.last and name in SPREADS)):
                    left = 0.0 if self.seed % 4 and name not in SPREADS else torch.nan
                    put(value.detach(), torch.full_like(value, torch.inf if self.odd else left))
                elif overflows and self.seed == 1 and name.endswith("_mean") and value is made[1]:
                    put(value.detach(), torch.zeros_like(value))  # of a sum that cancels
                if is_signless(func, name, args):
                    put(
                        value.detach(),
                        torch.where(value.detach() == 0, self.zeros(value.detach()), value.detach()),
                    )
        if name in ("native_layer_norm", "native_group_norm"):
            self.unsettle(name, made[0], args)
        if (
            name in MEANS and self.seed % 3 != 1
        ):  # of a row of equal numbers, too, whose mean may be another one, or what is left nothing
            self.move(name, made, args)
        if name in ("var_mean", "std_mean") and self.odd and is_float(made[1]):
            self.cancel(made[1].detach(), func(*unrounded, **kwargs)[1].detach(), mass[1].detach())
        return made

    def near(self, one: Any, other: Any) -> Tensor:
        """Where a number that was rounded may be another one."""
        a, b = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (one, other))
        inexact = [x.to(self.exact).double() != x for x in (a, b)]
        return (inexact[0] | inexact[1]) & ((a - b).abs() <= 4 * self.eps * b.abs().clamp(max=1e300))

    def rounded(self, value: Tensor) -> Tensor:
        """A tensor each of whose numbers is two off in the type, up or down: where it was rounded before, that cancels one at most."""
        if value.dtype is not torch.float64 or not self.rounds:
            return value
        # less leaves no room where all numbers are the same
        return value + value * self.noise(value).sign() * 2 * self.eps

    def noise(self, value: Tensor) -> Tensor:
        """A number from -1 to 1 for each of a tensor's, which may depend on these alone; in further looks from 1 to 2 and its negative."""
        shape, places = value.shape, None
        if self.alike:
            kinds, places = value.unique(return_inverse=True)
            shape = kinds.shape
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        drawn = -drawn if self.odd else drawn
        drawn = drawn + drawn.sign() if self.seed >= SAMPLES else drawn
        return drawn if places is None else drawn[places]

    def unsettle(self, name: str, made: Tensor, args: Any) -> None:
        """A number that is its row's mean, but for rounding: the norm is what eager's kernels leave of it, of either sign, or 0."""
        bias = args[3 if name == "native_layer_norm" else 2]
        if bias is not None or not made.numel():
            return
        # of a group norm the group is a row
        row = args[1] if name == "native_layer_norm" else (made[0].numel() // args[6],)
        given, dims = args[0].detach().reshape(-1, *row), tuple(range(-len(row), 0))
        eps = torch.finfo(self.widest).eps
        means = (given - given.mean(dims, keepdim=True)).abs() <= eps * given.abs().amax(dims, keepdim=True)
        if means.any():
            left = (-eps / 4, 0.0, eps / 8)[self.seed % 3]
            put(made.detach(), made.detach().masked_fill(means.reshape(made.shape), left))

    def either(self, made: Tensor, tangent: Tensor, softmax: Tensor, dim: int) -> None:
        """In place, zeros of either sign where a softmax is 0 and the mean of the tangents is theirs, but for rounding."""
        weighed = (tangent * softmax).detach()
        off = (tangent.detach() - weighed.sum(dim, True)).abs()
        near = (softmax.detach() == 0) & (off <= ROOM * self.eps * weighed.abs().sum(dim, True))
        put(made, torch.where(near, self.zeros(made), made))

    def cancel(self, mean: Tensor, unrounded: Tensor, size: Tensor) -> None:
        """In place, nothing for a mean of numbers that cancel but for rounding: eager's, made one number after the other, keeps some of it."""
        nothing = unrounded.abs() <= torch.finfo(self.widest).eps * size
        put(mean, mean.masked_fill(nothing & (size > 0), 0.0))

    def move(self, name: str, made: Any, args: Any) -> None:
        """In place, a norm whose mean is off by half a unit in the type that kernels add up in."""
        y, mean, root = (value.detach() for value in made[:3])
        if not (self.rounds and mean.numel() and y.numel()):
            return
        eps = torch.finfo(self.widest).eps / 2
        off = self.noise(mean).sign() * mean * root * eps
        slope, channels = args[MEANS[name]], (1, -1, *(1 for _ in y.shape[2:]))
        if name != "native_layer_norm":
            off = off.repeat_interleave(y.shape[1] // off.shape[-1], -1).reshape(
                -1, y.shape[1], *channels[2:]
            )
            slope = None if slope is None else slope.detach().reshape(channels)
        near = y + off * (1.0 if slope is None else slope.detach())
        put(y, torch.where(near.isfinite(), near, y))

    def beyond(self, func: Any, args: Any, kwargs: Any, sums: bool) -> Tensor:
        """Where numbers, added or multiplied in another order, may leave the type on the way: there is nothing to go by."""
        # what is added to memory is rounded there each time
        info = torch.finfo(
            self.dtype if func._schema.name.removeprefix("aten::") in INTO_MEMORY else self.widest
        )
        sizes = absolute([a.nan_to_num(0.0, 0.0, 0.0) if is_float(a) else a for a in args])
        if sums:
            if func._schema.name == "aten::scatter_reduce":  # a mean is added up before it is divided
                sizes[4] = "sum"
            largest = tensors(func(*sizes, **kwargs))[0]
            if func._schema.name == "aten::mean":  # of what is added up before it is divided
                largest = largest * (args[0].numel() / max(largest.numel(), 1))
            if func._schema.name == "aten::nansum":
                return largest > info.max
            # what is no number makes none, in any order
            missing = tensors(func(*[a.isnan().double() if is_float(a) else a for a in args], **kwargs))[0]
            return (largest > info.max) & (missing == 0)
        large, small = (
            func(*[f(a) if is_float(a) else a for a in sizes], **kwargs)
            for f in (lambda a: a.clamp(min=1), lambda a: a.masked_fill(a == 0, 1).clamp(max=1))
        )
        return (large > info.max) | (small < info.tiny)

    def round(
        self,
        value: Tensor,
        size: Tensor,
        sums: bool,
        lost: Tensor | None = None,
        least: float = 0.0,
        steps: float = 1.0,
    ) -> None:
        """In place, where a number, or what it is the sum of, has no exact place in the type, or float64 has ``lost`` some of it.

        ``least``: how far off it is even where it is exact; ``steps``: as many times further as a number is on average that is rounded
        on the way too, once for each factor.
        """
        if not (self.rounds or sums):
            return
        if sums:  # of numbers whose sizes have no sum, nothing may be left
            size = torch.where(size.isinf(), torch.finfo(size.dtype).max, size)
        # what a program rounds by itself, by a cast, has one: but few numbers that it makes there are so short
        exact = self.exact if value.dtype is torch.float64 else torch.bfloat16
        own = self.eps if self.rounds else 0.0
        eps = max(own, torch.finfo(value.dtype).eps, torch.finfo(self.widest).eps * steps, least)
        inexact = size.to(exact).double() != size
        if least:
            inexact |= size != 0
        if lost is not None:
            inexact |= lost
        if sums:  # of huge and of small numbers: the small ones are lost; on the way to a number of 24 digits some have more
            inexact |= (size * eps > 0.125) | (in_digits(size, 16) != size)
        inexact &= size.isfinite() & value.isfinite()
        if not self.rounds:
            inexact &= value.abs() <= eps * size
        if inexact.any():
            noise = self.noise(value)
            # less would be rounded away; and a sum of many, even of equal numbers, may be off by more than one unit
            if sums or value.dtype is not torch.float64 or eps <= torch.finfo(torch.float64).eps:
                noise = (noise.sign() + noise) / 2
            near = value + noise * eps * size
            if sums and self.odd:  # what cancels but for rounding may be nothing at all
                near = near.masked_fill(near.abs() <= eps * size, 0.0)
            inexact &= near.isfinite()  # the largest number of all stays one
            put(value, torch.where(inexact, near, value))  # x + 0.0 has no sign


def is_signless(func: Any, name: str, args: Any) -> bool:
    """Whether eager's kernels leave the sign of a zero open: by place, or by the size of a matrix."""
    if name in PRODUCTS:
        return args[-1].shape[-2] == 1 if isinstance(args[-1], Tensor) else False
    return str(func).removeprefix("aten.").removesuffix(".default") in SIGNLESS


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Equal to eager's but for a few units in the last place of the largest."""
    if torch.equal(ours, theirs):
        return bool((ours.signbit() == theirs.signbit()).all()) if ours.is_floating_point() else True
    if not ours.is_floating_point() or ours.shape != theirs.shape:
        return False
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return False
    a, b = ours.double().nan_to_num(0.0), theirs.double().nan_to_num(0.0)
    infinite = b.isinf()
    if not torch.equal(a[infinite], b[infinite]) or a[~infinite].isinf().any():
        return False
    zero = (a == 0) & (b == 0) & ~ours.isnan()
    if not torch.equal(a[zero].signbit(), b[zero].signbit()):
        return False
    near = torch.finfo(ours.dtype).eps
    return bool(((a - b).abs()[~infinite] <= 2 * near * b.abs()[~infinite]).all())


def verdict(
    ours: Tensor,
    theirs: Tensor,
    exact: Tensor | None,
    rounded: list[Tensor],
    signs: bool = True,
    dtype: torch.dtype = torch.float64,
    in_parts: bool = False,
) -> str:
    """What is wrong with our numbers; nothing, if they are as good as eager's.

    ``signs``: those of zeros count. ``dtype``: what numbers on the way were rounded to, which may be a smaller type than theirs.
    ``in_parts``: they are complex numbers, of which a part is rounded as the whole is: whether products are fused with sums hangs on where
    an element lies (of ``x / x`` the imaginary part is 0 or not).
    """
    if not ours.is_floating_point():
        return shown(ours, theirs, None, ours != theirs)
    if exact is None:
        exact, rounded = theirs.double(), []
    room = torch.zeros(exact.shape, dtype=torch.float64)
    wild = torch.zeros(exact.shape, dtype=torch.bool)
    most = torch.finfo(ours.dtype).max
    for sample in [theirs.double(), *rounded]:
        odd = (sample.isnan() != exact.isnan()) | (sample.isinf() & (sample != exact))
        odd |= (exact.abs() >= most) & ~exact.isnan()
        wild |= odd
        room = torch.maximum(room, torch.where(odd, 0.0, sample - exact).abs().nan_to_num(0.0))
    eps = torch.finfo(ours.dtype).eps
    if bool(
        (room > 64 * eps * exact.abs().nan_to_num(0.0, 0.0, 0.0)).any()
    ):  # of one number all throws may cancel
        eps = max(eps, torch.finfo(dtype).eps)
    size = exact.abs().nan_to_num(0.0, 0.0, 0.0)
    size = size.amax(-1, keepdim=True) if in_parts else size
    room = ROOM * room + 4 * eps * size + torch.finfo(ours.dtype).smallest_normal
    off = (ours.double() - exact).abs()
    bad = torch.where(exact.isfinite(), ~(off <= room), ~matches(ours.double(), exact))
    bad &= ~matches(ours, theirs) & ~wild
    zeros = (ours == 0) & (theirs == 0) & (exact == 0) & (exact.signbit() == theirs.signbit())
    for sample in rounded:
        zeros &= (sample == 0) & (sample.signbit() == theirs.signbit())
    if signs:
        bad |= zeros & (ours.signbit() != theirs.signbit())
    return shown(ours, theirs, exact, bad) if bad.any() else ""


def as_wholes(parts: Tensor) -> Tensor:
    """The parts of complex numbers, both of them no number where one is not finite.

    Of a sum of two, eager multiplies the second by one: what is not finite in one of its parts is no number in the other then. Which of two
    gradients is the second, those tell that came first.
    """
    odd = ~parts.isfinite().all(-1, keepdim=True)
    return torch.where(odd, torch.nan, parts)


def decided(ours: Tensor, theirs: Tensor, rounded: list[Tensor]) -> str:
    """What is wrong with bools and whole numbers that follow from numbers rounded in fewer places than eager's.

    Where rounding at random decides in more than one way, so may we.
    """
    bad = ours != theirs
    for sample in rounded:
        bad &= sample == theirs.double()
    return shown(ours, theirs, None, bad) if rounded and bad.any() else ""


def settled(ours: Tensor, theirs: Tensor, chosen: list[Tensor]) -> str:
    """What is wrong with bools and whole numbers, but where those differ that follow from eager's open choices, made in several ways."""
    bad = ours != theirs
    for other in chosen[1:]:
        bad &= other == chosen[0]
    return shown(ours, theirs, None, bad) if bad.any() else ""


def matches(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def shown(ours: Tensor, theirs: Tensor, exact: Tensor | None, bad: Tensor) -> str:
    """Some of the places that differ."""
    places = bad.nonzero()
    lines = []
    for place in places[:4].tolist():
        at = tuple(place)
        line = f"at {place}: {ours[at].item()}, eager {theirs[at].item()}"
        lines.append(line if exact is None else f"{line}, float64 {exact[at].item()}")
    return f"{len(places)} of {ours.numel()}; " + "; ".join(lines)


def smallest(dtypes: list[torch.dtype]) -> torch.dtype:
    """The float type that rounds most."""
    floats = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


class Samples:
    """A program's numbers in float64, and in float64 rounded at random, or (not ``rounds``) with nothing but eager's open choices made.

    Of the rounded runs there are as many as somebody has asked for: each gives more room, none takes any.
    """

    def __init__(self, run: Callable[[], dict[str, Any]], dtype: torch.dtype, rounds: bool = True) -> None:
        self.run, self.dtype, self.rounds = run, dtype, rounds
        self.exact = self.made()
        self.rounded: list[dict[str, Any]] = []

    def first(self, count: int = SAMPLES) -> list[dict[str, Any]]:
        """The first of the rounded runs."""
        while len(self.rounded) < count:
            with RandomRounding(self.dtype, len(self.rounded), self.rounds):
                self.rounded.append(self.made())
        return self.rounded[:count]

    def made(self) -> dict[str, Any]:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self.run()
        finally:
            torch.set_default_dtype(default)
