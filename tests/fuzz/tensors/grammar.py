"""The statements that programs are made of: a row each, with places that the generator fills.

``{x}`` any tensor, ``{f}`` of floats, ``{g}`` of floats with a dim, ``{i}`` of integers, ``{b}`` of bools, ``{v}`` with a dim; ``{y}``
another whose shape goes with the one before, ``{s}`` one of its very shape; ``{d}`` a dim of the tensor before,
``{e}`` another dim of it, ``{D}`` the dim before again, ``{k}`` a small number, ``{p}`` a positive one, ``{c}`` a constant, ``{n}`` an integer that may change from call to
call, ``{T}`` a type, ``{F}`` a floating one, ``{J}`` a list of places along the dim before, ``{U}`` the same without a place twice,
``{0}`` the row's first tensor again.
Rows are tried in eager as a program is made: what eager refuses is not taken (but now and then as a last statement).
"""

from __future__ import annotations

VIEWS = """
{v}.transpose({d}, {d})
{x}.t()
{x}.mT
{v}.permute(*reversed(range({0}.dim())))
{v}.movedim({d}, {d})
{v}[1:]
{v}[:-1]
{v}[::2]
{v}[..., 1:]
{v}[..., ::2]
{v}[{k}:]
{v}[-{p}:]
{v}[:{p}]
{v}[{n}:]
{v}[-{n}:]
{v}[:{n}]
{v}[{n}]
{v}[..., {n}]
{v}[{k}]
{v}[..., -1]
{v}[None]
{v}[..., None, :]
{x}[...]
{v}.select({d}, {k})
{v}.select({d}, {n})
{v}.narrow({d}, {k}, {p})
{v}.narrow({d}, {n}, 1)
{v}.squeeze()
{v}.squeeze({d})
{x}.unsqueeze(0)
{x}.unsqueeze(-1)
{v}.unsqueeze({d})
{x}.expand(2, *{0}.shape)
{v}.expand({p}, *{0}.shape[1:])
{x}.expand_as({y})
{x}.view(-1)
{x}.view({0}.shape)
{v}.view(*{0}.shape, 1)
{v}.view({0}.shape[0], -1)
{x}.view(-1, {p})
{x}.reshape(-1)
{v}.reshape(*reversed({0}.shape))
{v}.flatten()
{v}.flatten(0, 1)
{v}.flatten(-2)
{v}.unflatten({d}, (-1, {p}))
{v}.unflatten({d}, (1, -1))
{v}.diagonal()
{v}.diagonal({k}, -2, -1)
{v}.unfold({d}, {p}, 1)
{v}.unfold({d}, 2, {p})
{v}.chunk(2, {d})[-1]
{v}.split({p}, {d})[0]
{v}.tensor_split(2, {d})[1]
{v}.unbind({d})[{k}]
{v}.as_strided(({p}, {p}), (1, 1))
{v}.as_strided(({p},), ({p},), {p})
{v}.as_strided({0}.shape, {0}.stride())
{x}.view_as({0})
{x}.detach()
{x}.data
{x}.contiguous()
{f}.to({F})
{x}.to({0}.dtype)
{x}.swapaxes(0, -1)
{v}.mT.mT
{v}.T
torch.broadcast_to({x}, {y}.shape)
torch.atleast_2d({x})
{f}.real
torch.channel_shuffle({g}, 2)
torch.ravel({x})
{v}.hsplit(2)[0]
torch.broadcast_tensors({x}, {y})[0]
{v}.expand(-1, *{0}.shape[1:])
{v}[tuple([0] * {0}.dim())]
{v}[{n}:, ..., :{p}]
"""

#: results that round nowhere, where their operands and they have an exact place in their type
EXACT = """
{x} + {y}
{x} - {y}
{x} * {y}
{x} + {c}
{c} - {x}
{x} * {c}
{x} * {n}
{x} + {n}
-{f}
{x}.abs()
torch.maximum({x}, {y})
torch.minimum({x}, {y})
torch.fmax({x}, {y})
torch.fmin({x}, {y})
{f}.relu()
F.relu6({f})
F.leaky_relu({f}, 0.25)
F.hardtanh({f})
F.threshold({f}, 0.5, -1.0)
{x}.clamp(-1, 2)
{x}.clamp(min={c})
{x}.clamp({y})
{x}.clip(max=1)
torch.where({b}, {x}, {y})
torch.where({b}, {x}, {c})
torch.where({b}, 1, {x})
{x}.masked_fill({b}, {c})
{x}.nan_to_num()
torch.lerp({f}, {s}, 0.5)
torch.addcmul({f}, {s}, {s}, value=2)
torch.cat([{v}, {0}], {d})
torch.cat([{x}, {s}])
torch.cat([{x}.reshape(-1), {x}.reshape(-1)])
torch.stack([{x}, {s}], -1)
torch.stack([{x}, {0}])
torch.hstack([{x}, {s}])
{v}.flip({d})
{v}.roll({k}, {d})
{v}.roll({n}, {d})
{v}.rot90()
{x}.repeat(2, *[1] * {0}.dim())
{x}.repeat({n}, *[1] * {0}.dim())
{v}.repeat_interleave(2, {d})
{v}.tile(2)
{v}.tril({k})
{v}.triu()
{v}.index_select({d}, torch.tensor({J}))
{v}[torch.tensor([0, -1])]
{v}[..., torch.tensor([0, 0])]
{v}[torch.tensor([[0], [-1]]), ..., None]
{v}[:, [0, 0]]
{v}.gather({d}, torch.zeros_like({0}, dtype=torch.int64))
torch.take_along_dim({v}, torch.zeros_like({0}, dtype=torch.int64), {d})
{x}.take(torch.tensor([0, -1]))
{x}.sum()
{v}.sum({d})
{v}.sum({d}, keepdim=True)
{v}.sum(dtype=torch.float64)
{v}.nansum({d})
{v}.amax({d})
{v}.amin({d}, keepdim=True)
{x}.amax()
{x}.max()
{v}.cumsum({d})
{v}.prod({d})
{v}.cumprod({d})
{v}.cummax({d}).values
{v}.max({d}).values
{v}.sort({d}).values
{v}.topk(1, {d}).values
{v}.contiguous().median({d}).values
{v}.diff()
{v}.trace()
{x}.clone()
{x}.clone(memory_format=torch.contiguous_format)
{x}.contiguous()
torch.zeros_like({x})
torch.ones_like({x})
torch.full_like({x}, {c})
torch.full(({p}, {p}), {c})
torch.full(({n},), 2.5)
torch.empty_like({x}).copy_({0})
torch.empty({x}.shape, dtype={0}.dtype).copy_({0})
torch.zeros({v}.shape[0], 3)
torch.zeros({p}, {p}, dtype={T})
torch.arange({n})
torch.arange({p}, dtype={F})
torch.eye({p})
torch.tensor(2.5)
torch.tensor({n})
torch.tensor([1, 2, 3])
torch.scalar_tensor({c})
torch.linspace(0, 1, 5)
{x}.new_zeros({p}, {p})
{x}.new_ones({0}.shape)
{x}.new_full(({p},), 3)
{x}.to({T})
{x}.double()
{x}.float()
{i}.bool()
{x}.type_as({x})
{i} // 3
{i} % 3
{i}.bitwise_not()
{i} & {i}
{i} | 3
{i} ^ {i}
{i} << 1
{i} >> 1
{b} & {b}
~{b}
{b}.logical_not()
{b} ^ {b}
{i}.sum({d})
{i}.float() * 0.5
F.pad({v}, (1, 0))
F.pad({v}, ({k}, {p}))
F.pad({v}, (0, 1, 2, 0), value={c})
F.pad({v}, (1, 1), mode="reflect")
F.pad({v}, (1, 2), mode="replicate")
F.pad({v}, (1, 1), mode="circular")
torch.constant_pad_nd({v}, (-1, 1))
F.max_pool1d({g}, 2)
F.max_pool2d({g}, 2, stride=1, padding=1)
F.one_hot({i}.abs() % 5)
torch.scatter({v}, {d}, torch.zeros_like({0}, dtype=torch.int64), {c})
{v}.index_add({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})))
{v}.scatter_add({d}, torch.zeros_like({0}, dtype=torch.int64), {0})
{v}.scatter_reduce({d}, torch.zeros_like({0}, dtype=torch.int64), {0}, "amax")
{v}.scatter_reduce({d}, torch.zeros_like({0}, dtype=torch.int64), {0}, "sum", include_self=False)
{v}.index_put((torch.tensor([0, 0]),), torch.tensor(1, dtype={0}.dtype), accumulate=True)
{v}.index_copy({d}, torch.tensor({U}), {0}.index_select({d}, torch.tensor({U})))
{v}.index_fill({d}, torch.tensor({J}), 2)
{v}.select_scatter({0}.select({d}, 0), {d}, -1)
{v}.slice_scatter({0}[:1], 0, 0, 1)
{v}.diagonal_scatter({0}.diagonal() * 2)
{v}.select_scatter({0}.select({d}, 0), {d}, -1).contiguous()
torch.meshgrid({v}.reshape(-1), {v}.reshape(-1), indexing="ij")[0]
torch.outer({v}.reshape(-1), {v}.reshape(-1))
{v}.kron({v})
{g} @ {g}.mT
{g}.matmul({g})
torch.einsum("ij,kj->ik", {g}, {g})
{g}.reshape(-1).dot({s}.reshape(-1))
F.conv1d({g}, {g})
F.conv2d({g}, {g}, padding=1)
F.embedding(torch.tensor([0, 0]), {g})
torch.tril_indices({p}, {p})[0]
{v}.unsqueeze({d}).sum({d})
{x}.square()
{x}.positive()
torch.add({x}, {y}, alpha=2)
torch.sub({x}, {y}, alpha={k})
torch.rsub({x}, {y})
torch.addmm({g}, {g}, {g})
torch.heaviside({f}, {s})
torch.copysign({f}, {y})
torch.ldexp({f}, torch.tensor({k}))
torch.vstack([{x}, {0}])
torch.block_diag({v}, {v})
torch.cartesian_prod({v}, {v})
torch.combinations({v})
torch.bucketize({f}, torch.tensor([-1.0, 0.0, 1.0]))
torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), {f})
torch.tensordot({g}, {g}, 1)
{v}.unfold({d}, 2, 1).sum(-1)
F.unfold({g}, 2)
F.interpolate({g}, scale_factor=2)
F.interpolate({g}, size=({p}, {p}))
F.pixel_shuffle({g}, 2)
F.glu({g}, {d}).abs() * 0 + 1
"""

#: results that round, or that no two libraries round alike
INEXACT = """
{f}.sin()
{f}.cos()
{f}.tanh()
{f}.exp()
{f}.sigmoid()
{f}.erf()
{f}.abs().sqrt()
({f}.abs() + 1).rsqrt()
{f}.abs().log()
{f}.log1p()
{f}.expm1()
{f}.atan()
{f}.sinh()
{f}.asinh()
{f}.exp2()
{f}.log2()
{f}.lgamma()
{f}.reciprocal()
{f} / {y}
{x} / {y}
{x} / {c}
{c} / {f}
{x} / 2
{f} ** 2
{f}.abs() ** 0.5
{f} ** {k}
2 ** {f}
{f}.pow({y})
torch.atan2({f}, {y})
torch.hypot({f}, {s})
torch.logaddexp({f}, {y})
torch.xlogy({f}, {y})
torch.sinc({f})
torch.special.entr({f})
F.silu({f})
F.gelu({f})
F.gelu({f}, approximate="tanh")
F.softplus({f})
F.mish({f})
F.elu({f})
F.selu({f})
F.celu({f})
F.hardswish({f})
F.hardsigmoid({f})
F.logsigmoid({f})
F.softsign({f})
F.tanhshrink({f})
F.glu({g}, {d})
{f}.mean()
{g}.mean({d})
{g}.mean({d}, keepdim=True)
{g}.double().mean(0)
{g}.var({d})
{g}.std({d})
{g}.std({d}, correction=0)
torch.var_mean({g}, {d})[0]
{g}.softmax({d})
{g}.log_softmax({d})
{g}.logsumexp({d})
{g}.logcumsumexp({d})
{g}.norm()
{g}.norm(dim={d})
torch.linalg.vector_norm({g}, 1, {d})
torch.linalg.vector_norm({g}, 3)
F.normalize({g}, dim={d})
F.cosine_similarity({g}, {s}, {d})
F.layer_norm({g}, {0}.shape[-1:])
F.layer_norm({g}, {0}.shape)
F.rms_norm({g}, {0}.shape[-1:])
F.group_norm({g}, 1)
F.batch_norm({g}, None, None, training=True)
F.instance_norm({g})
F.avg_pool1d({g}, 2)
F.avg_pool2d({g}, 2, padding=1)
F.adaptive_avg_pool1d({g}, 2)
F.adaptive_avg_pool2d({g}, 1)
F.lp_pool1d({g}, 2, 2)
F.local_response_norm({g}, 2)
F.interpolate({g}, scale_factor=2, mode="nearest")
F.interpolate({g}, size=3, mode="linear")
F.mse_loss({f}, {s})
F.l1_loss({f}, {s})
F.smooth_l1_loss({f}, {s})
F.huber_loss({f}, {s})
F.kl_div({f}, {s}, reduction="sum")
F.binary_cross_entropy_with_logits({f}, {s})
F.soft_margin_loss({f}, {s})
F.linear({g}, {g})
F.scaled_dot_product_attention({g}, {0}, {0})
F.conv1d({g}, {g}, padding=2)
F.conv_transpose1d({g}, {g})
F.conv2d({g}, {g}, stride=2, padding=1)
{g} @ {g}
torch.baddbmm({g}, {g}, {g})
torch.trapezoid({g}, dim={d})
torch.cov({g})
torch.cumulative_trapezoid({g})
torch.lerp({f}, {s}, 0.3)
torch.addcdiv({f}, {s}, {s})
{g}.cumsum({d}) * 0.1
{x}.float().prod()
{f} * 0.1
{f} + 1e-3
torch.nn.functional.cross_entropy({g}, {0}.softmax(-1))
torch.linalg.norm({g})
torch.dist({f}, {s})
torch.renorm({g}, 2, 0, 1.0)
torch.special.log_ndtr({f})
torch.special.erfcx({f})
torch.digamma({f})
torch.polygamma(1, {f})
torch.i0({f})
torch.erfinv({f})
torch.logit({f}, 1e-2)
torch.special.xlog1py({f}, {s})
torch.float_power({x}, 2)
torch.true_divide({x}, {y})
{f}.frexp().mantissa
{g}.nanmean({d})
torch.quantile({g}, 0.5)
torch.std_mean({g}, {d})[1]
F.pairwise_distance({g}, {s})
F.prelu({g}, torch.tensor([0.25]))
F.rrelu({f}, training=False)
F.softmin({g}, {d})
torch.nn.functional.embedding_bag(torch.tensor([[0, 0]]), {g})
"""

#: results with steps: their operands must have rounded nowhere
STEPS = """
{x} > {y}
{x} >= {c}
{x} == {y}
{x} != {c}
{x} <= {n}
{f}.isnan()
{f}.isfinite()
{f}.isinf()
{x}.sign()
{f}.signbit()
{f}.floor()
{f}.ceil()
{f}.round()
{f}.trunc()
{f}.frac()
{f} // 1
{f} % 2
{x} // 2
{x} % 3
{f}.remainder(-2)
{f}.fmod(2)
torch.div({x}, 2, rounding_mode="trunc")
torch.div({x}, 3, rounding_mode="floor")
{x}.bool()
{x}.logical_and({y})
{x}.argmax()
{v}.argmax({d})
{v}.argmin({d}, keepdim=True)
{v}.max({d}).indices
{v}.argsort({d}, stable=True)
{v}.sort({d}, stable=True).indices
{v}.cummin({d}).indices
{x}.any()
{v}.any({d})
{v}.all({d})
{x}.count_nonzero()
{x}.nan_to_num(0, 1, -1).clamp(-100, 100).to(torch.int64)
{x}.nan_to_num(0, 1, -1).clamp(0, 100).to(torch.uint8)
{x}.nan_to_num(0, 1, -1).clamp(0, 100).int()
torch.isclose({f}, {s})
torch.where({x} > 0, {0}, {y})
({x} > 0) & ({0} < 2)
{x}.masked_fill({0} > 1, {c})
F.hardshrink({f})
F.softshrink({f})
torch.isin({x}, torch.tensor([1, 2]))
{f}.sgn()
torch.nextafter({f}, {s})
torch.gcd({i}, {s})
torch.heaviside({f}, {s})
{f}.round(decimals=1)
F.one_hot({v}.argmax({d}), 40)
"""

#: writes; ``{w}`` is the tensor that is written
WRITES = """
{w}.add_({c})
{w}.add_({y})
{w}.sub_({y})
{w}.mul_({c})
{w}.mul_({y})
{w}.copy_({y})
{w}.copy_({c})
{w}.fill_({c})
{w}.fill_({n})
{w}.zero_()
{w}.neg_()
{w}.abs_()
{w}.clamp_(-1, 1)
{w}.relu_()
{w}.square_()
{w}[0] = {c}
{w}[{k}] = {y}
{w}[..., -1] = {c}
{w}[..., 0].add_({c})
{w}[1:] = {c}
{w}[:{p}] *= 2
{w}[::2] = {y}
{w}[{n}] = 1
{w}[{n}:] = 2
{w}[..., :{n}] += 1
{w}[...] = {y}
{w} += {y}
{w} *= {c}
{w} -= {n}
{w}.t().add_({c})
{w}.diagonal().fill_({c})
{w}.fill_diagonal_({c})
{w}.view(-1).add_(1)
{w}.view(-1)[0] = {c}
{w}.transpose(0, -1).mul_(2)
{w}.masked_fill_({b}, {c})
{w}[{b}] = {c}
{w}.index_fill_({d}, torch.tensor({J}), {k})
{w}.index_add_({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})).clone())
{w}.index_copy_({d}, torch.tensor({U}), {0}.index_select({d}, torch.tensor({U})).clone())
{w}[torch.tensor([0, 0])] = {c}
{w}[torch.tensor([0, -1])] += 1
{w}.index_put_((torch.tensor([0, 0]),), torch.tensor({k}).to({0}.dtype), accumulate=True)
{w}.scatter_({d}, torch.zeros_like({0}, dtype=torch.int64), {k})
{w}.scatter_add_({d}, torch.zeros_like({0}, dtype=torch.int64), {0}.clone())
{w}.put_(torch.tensor([0, -1]), torch.tensor([1, 2]).to({0}.dtype))
{w}.tril_()
{w}.data.add_(1)
{w}.detach().mul_(2)
{w}.copy_({0}.flip(0))
{w}.swapaxes_(0, -1)
{w}.transpose_(0, -1)
{w}.unsqueeze_(0)
{w}.squeeze_()
{w}.t_()
torch.add({x}, 1, out={w})
torch.mul({w}, 2, out={0})
torch._foreach_add_([{w}, {w}], 1)
{w}.set_({x})
{w}.resize_({p}, {p}).fill_(1)
{w}.select({d}, 0).copy_({0}.select({d}, -1).clone())
{w}.narrow({d}, 0, 1).zero_()
{w}.unsqueeze(0).squeeze().add_(1)
{w}.expand(2, *{0}.shape)[0].add_(1)
{w}.unfold(0, 1, 1).add_(1)
{w}.lerp_({s}, 0.5)
{w}.addcmul_({s}, {s})
{w}.clamp_min_({c})
{w}.logical_not_()
{w}.bitwise_xor_(3)
{w}.floor_divide_(2)
{w}.requires_grad_()
{w}.register_hook(lambda g: g * 2)
{w}.detach_()
{w}.nan_to_num_()
{w}.cumsum_(0)
{w}.pow_(2)
{w}.eq_(1)
{w}.gt_({y})
"""

#: writes that round
ROUGH_WRITES = """
{w}.exp_()
{w}.tanh_()
{w}.sigmoid_()
{w}.sin_()
{w}.div_(3)
{w}.div_({y})
{w} /= 2
{w}.mul_(0.1)
{w}.sub_({g}.mean())
{w}.copy_({f}.tanh().mean())
"""

#: of several results
PAIRS = """
{v}.unbind()
{v}.split(1)
{v}.chunk(2)
{v}.sort({d}, stable=True)
{v}.max({d})
{v}.aminmax(dim={d})
torch.var_mean({g}, {d})
torch.broadcast_tensors({x}, {y})
torch.frexp({f})
torch.meshgrid({v}.reshape(-1), {v}.reshape(-1), indexing="xy")
"""


def rows(text: str) -> list[str]:
    """The rows of a table."""
    return text.strip().split("\n")
