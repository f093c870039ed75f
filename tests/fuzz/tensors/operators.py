"""Programs of operators that the other machines do not call: rarer functions of torch, ``torch.nn.functional``, ``special``, ``linalg`` and ``fft``,
what is read and written at places, ``out=``, and operators in place.

Most rows bring their operands into a shape that the operator takes, so that eager refuses few of them. Sorts that are stable stand
here alone: the usual rows of them name their dim by its place, which PyTorch takes from no program. Eigenvalues are asked of
matrices that have each but once: else the gradient is one of any, as rounding inside the operator chooses (19200000208).
"""

from __future__ import annotations

from tests.fuzz.machine import Machine
from tests.fuzz.tensors import generate as ordinary
from tests.fuzz.tensors.check import check
from tests.fuzz.tensors.grammar import rows
from tests.fuzz.tensors.operators_rounded import INEXACT, ROUGH_WRITES
from tests.fuzz.tensors.operators_written import WRITES
from tests.fuzz.tensors.program import TensorProgram

VIEWS = """
torch.adjoint({v})
torch.moveaxis({v}, {d}, 0)
torch.swapdims({v}, {d}, {d})
{x}.reshape_as({0})
{v}.split_with_sizes([{0}.shape[0] - 1, 1])[1]
{v}.dsplit(1)[0]
{v}.unsafe_chunk(2)[0]
{v}.tensor_split([1, {p}], {d})[1]
{v}.tensor_split(({n},), {d})[0]
{v}.tensor_split({p}, {d})[0]
{v}.hsplit([1])[0]
{v}.diagonal({k}, {d}, {d})
{v}.unfold({d}, {n}, {p})
{v}.unfold({d}, 1, 2)
{v}.narrow({d}, -1, 1)
{v}.flatten({d}, {d})
{v}.squeeze(({d}, {d}))
{x}.as_strided({0}.shape, {0}.stride(), {0}.storage_offset())
{v}.expand(*[-1] * {0}.dim())
{x}.expand(2, 1, *{0}.shape)
{f}.view({0}.dtype)
{x}.resolve_neg()
{x}.resolve_conj()
torch.asarray({x})
{v}.select(0, {n})
{v}[{n}::{p}]
{v}[{n}:{p}]
{v}[:{n}:2]
{v}[::{p}]
{v}[slice({n}, None, 2)]
{v}.chunk({p}, {d})[0]
{v}.split({p})[-1]
{v}.unbind({d})[-1]
next(iter({v}))
list({v})[-1]
{v}.sum_to_size({0}.shape)
"""

EXACT = """
{x}.sum_to_size(1)
{v}.sum_to_size(1, *{0}.shape[1:])
torch.as_strided_copy({x}, (2,), (0,))
torch.as_strided_scatter({v}, {0}.flatten()[:2].clone(), (2,), (1,))
torch.t_copy({x})
torch.transpose_copy({v}, {d}, {d})
torch.squeeze_copy({v})
torch.unsqueeze_copy({x}, 0)
torch.detach_copy({x})
torch.alias_copy({x})
torch.split_copy({v}, 1)[0]
torch.split_with_sizes_copy({v}, [{0}.shape[0] - 1, 1])[0]
torch.unsafe_split({v}, 1)[0]
torch.bitwise_and({i}, {i})
torch.bitwise_or({i}, {y})
torch.bitwise_xor({b}, {b})
torch.bitwise_left_shift({i}, {p})
torch.bitwise_right_shift({i}, {p})
torch.bitwise_left_shift({i}, {0}.abs() % 8)
{i}.byte()
{i}.char()
{i}.short() - 1
torch.concat([{v}, {0}])
torch.row_stack([{v}, {0}])
torch.diag({v})
torch.diag({v}, {k})
torch.flipud({v})
torch.conj_physical({x})
torch.fix({i})
torch.ger({g}.flatten(), {g}.flatten())
torch.subtract({x}, {y})
torch.subtract({x}, {y}, alpha=2)
torch.multiply({x}, {y})
torch.clamp_max({x}, {k})
torch.clamp_max({x}, {y})
torch.clamp_min({x}, {y})
{x}.clamp(min={k}, max={n})
{x}.clamp({y}, {y})
{x}.clamp(min={s}, max={0} + 1)
{x}.clip({k}, None)
torch.triu_indices({p}, {p}, {k})
torch.tril_indices({p}, {p}, {k})[1]
torch.unique_consecutive({v})
torch.unravel_index(torch.tensor([0]), {v}.shape)[0]
torch.vander({g}.flatten()[:3])
torch.vander({i}.flatten()[:3], 3, True)
torch.cross({v}.flatten()[:3], {v}.flatten()[:3], dim=0)
torch.linalg.cross({v}.expand(3, *{0}.shape[1:]), {0}.expand(3, *{0}.shape[1:]), dim=0)
torch.linalg.vander({g}.flatten()[:3])
torch.linalg.vecdot({g}, {s})
torch.linalg.multi_dot([{g}, {0}.mT, {0}])
torch.chain_matmul({g}, {0}.mT)
torch.linalg.diagonal({v})
torch.vdot({g}.flatten(), {s}.flatten())
torch.addbmm({g}[0], {0}, {0}.mT @ {0} @ {0}.mT)
torch.addbmm({g}[0, :, :1], {0}, {0}.mT, beta=0.5, alpha=2)
torch.addmm({g}[:, 0], {0}, {0}.mT)
torch.addmm({g}[0, 0], {0}, {0}.mT, beta={k}, alpha=2)
torch.addmv({g}[:, 0], {g}, {0}[0])
torch.addr({g}, {0}[:, 0], {0}[0], alpha=0.5)
torch.baddbmm({g}[..., :1], {0}, {0}.mT, beta=0)
{g}.new_empty(0).sum()
{x}.new_tensor([1, 2])
{x}.new_empty({0}.shape).fill_({c})
{x}.new_empty_strided({0}.shape, {0}.stride()).fill_(2)
torch.empty_strided({v}.shape, {0}.stride(), dtype={0}.dtype).copy_({0})
torch.empty_permuted({v}.shape, tuple(reversed(range({0}.dim())))).fill_(1)
torch.full_like({x}, {n})
torch.full_like({x}, {c}, dtype={T})
torch.zeros_like({x}, dtype={T})
torch.ones_like({x}, memory_format=torch.contiguous_format)
torch.logspace(0, 2, 3)
torch.linspace({n}, {p}, 4)
torch.linspace(torch.tensor(0.0), torch.tensor(2.0), 5)
torch.linspace(0, 1, {p}, dtype={F})
torch.arange({n}, {n} + 5, 2)
torch.arange(5, {k}, -1)
torch.arange(0.5, 3, 0.5)
torch.arange(0, 4, 1.5, dtype={F})
torch.eye({p}, {n})
torch.eye({v}.shape[0], {p}, dtype={T})
torch.range(0, {p})
torch.hamming_window(4)
torch.hann_window({p}, False)
torch.bartlett_window(5)
torch.cumsum({v}, {d}, dtype=torch.float64)
torch.cumprod({i}, {d})
{b}.cumprod({d})
{b}.prod({d})
{b}.amax({d})
{b}.all() | {0}
{b}.max()
{b}.flip(0)
{b}.sort(dim={d}, stable=True).values
{b}.int().argmax({d})
{v}.aminmax(dim={d}).max
{v}.contiguous().nanmedian()
{v}.kthvalue(-1 % {0}.shape[0] + 1, 0).values
{v}.topk({n}, {d}).values
{v}.topk({p}, {d}, sorted=True).values.sum()
{v}.sort({d}, descending=True).values
{v}.repeat_interleave(torch.tensor([1] * {0}.shape[0]), 0)
{v}.repeat_interleave(torch.arange({0}.shape[0]), 0)
torch.repeat_interleave(torch.tensor([2, 0, 1]))
{x}.repeat_interleave({n})
{v}.tile({p}, 1)
{v}.rot90({k}, (0, -1))
{v}.roll(({k}, 1), (0, -1))
{v}.roll({k})
{v}.flip((0, -1))
{v}.diff(2, {d})
{v}.diff(dim={d}, prepend={0}.select({d}, 0).unsqueeze({d}))
torch.trapz({g}, dx=2)
{v}.index_fill({d}, torch.tensor({J}), {c})
{v}.index_fill({d}, torch.tensor({J}), torch.tensor(2))
{v}.index_select({d}, torch.tensor([], dtype=torch.int64))
{v}.index_select({d}, torch.tensor({J}, dtype=torch.int32))
{v}.index_reduce({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})), "prod")
{v}.index_reduce({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})), "amin", include_self=False)
{v}.index_put((torch.tensor({J}),), {0}[0])
{v}.index_put((torch.tensor([0, -1]), torch.tensor([0, 0])), {0}.flatten()[0], accumulate=True)
{v}.scatter({d}, torch.zeros_like({0}.narrow({D}, 0, 1), dtype=torch.int64), {0})
{v}.scatter({d}, torch.zeros_like({0}, dtype=torch.int64), 2, reduce="multiply")
{v}.scatter({d}, {0}.argsort(dim={D}, stable=True), {0})
{v}.gather({d}, {0}.argsort(dim={d}, stable=True))
{v}.gather({d}, {0}.argsort(dim={d}, stable=True).narrow({d}, 0, 1))
{v}.take_along_dim({0}.argsort(dim={d}, stable=True), {d})
{v}.scatter_add({d}, {0}.argsort(dim={d}, stable=True), {0})
{v}.scatter_reduce({d}, torch.zeros_like({0}, dtype=torch.int64), {0}, "prod", include_self=False)
{v}.scatter_reduce({d}, torch.zeros_like({0}, dtype=torch.int64), {0}, "amin", include_self=False)
{v}.scatter_reduce({d}, {0}.argsort(dim={d}, stable=True), {0}, "sum")
torch.take({x}, torch.tensor([[0], [-1]]))
{v}[{b}[0]]
{v}[torch.tensor([0, -1])[:, None], torch.tensor([0, 0, -1])]
{v}[..., torch.tensor([0, -1]), None]
{v}[[0, -1], ..., [0, 0]]
{v}[None, [0, 0], ..., None]
{v}[torch.tensor(0)]
{v}[torch.tensor(True)]
{v}[True]
{v}[torch.tensor([0, 0], dtype=torch.uint8)[:0].long()]
{x}.masked_scatter({b}, torch.arange({0}.numel()).to({0}.dtype))
{x}.masked_fill({0} > 1, torch.tensor(2).to({0}.dtype))
torch.where({b}, {x}, torch.tensor({c}))
torch.where({b}, {c}, {n})
torch.where({b}, torch.tensor(1), torch.tensor(2.5))
torch.block_diag({g}, {i})
torch.combinations({v}.flatten()[:3], 2, True)
torch.cartesian_prod({v}.flatten()[:2], {v}.flatten()[:3])
torch.histc({i}.float(), 4, -8, 8)
torch.bincount({i}.flatten().clamp(0, 4), minlength={p})
torch.bincount({i}.flatten().clamp(0, 4), {i}.flatten())
torch.nonzero_static({x}, size={p})
torch.searchsorted({v}.sort(-1).values, {0}, right=True)
torch.searchsorted(torch.tensor([0, 1, 2]), {n})
torch.searchsorted(torch.tensor([-1.0, 0.0, 2.0]), {x}, out_int32=True)
torch.searchsorted(torch.tensor([2.0, -1.0, 0.0]), {f}, sorter=torch.tensor([1, 2, 0]))
torch.bucketize({x}, torch.tensor([-1, 0, 2]))
torch.bucketize({n}, torch.tensor([-1, 0, 2]))
torch.isin({x}, {0}.flatten()[:1], invert=True)
torch.isposinf({x})
torch.isneginf({x})
torch.isreal({x})
torch.gcd({i}, torch.tensor(6))
torch.lcm({i}, torch.tensor(4))
torch.add({b}, {b})
torch.mul({b}, {i})
torch.clone({v}, memory_format=torch.preserve_format)
torch.segment_reduce({g}, "sum", lengths=torch.tensor([1, {0}.shape[0] - 1]))
torch.segment_reduce({g}, "max", lengths=torch.tensor([{0}.shape[0] - 1, 1]))
F.fold({g}.reshape(1, 2, -1), (1, {0}.numel() // 2 + 1), (1, 2))
F.fold(F.unfold({g}.reshape(1, 1, {0}.shape[0], -1), 2, padding=1), ({0}.shape[0], {0}.numel() // {0}.shape[0]), 2, padding=1)
F.unfold({g}.reshape(1, 1, {0}.shape[0], -1), (1, 2), dilation=(1, 2))
F.unfold({g}.reshape(1, 1, {0}.shape[0], -1), 2, stride=2, padding=1)
F.max_pool1d({g}.reshape(1, -1), {p}, 1)
F.max_pool2d({g}.reshape(1, {0}.shape[0], -1), 2, 1, 1, ceil_mode=True)
F.max_pool2d({g}.reshape(1, {0}.shape[0], -1), (1, 3), 2, (0, 1))
F.max_pool2d({g}.reshape(1, {0}.shape[0], -1), 3, 1, 1, dilation=2)
F.max_pool3d({g}.reshape(1, 1, {0}.shape[0], -1), (1, 2, 2), 1)
F.adaptive_max_pool2d({g}.reshape(1, {0}.shape[0], -1), (2, 3))
F.adaptive_max_pool1d({g}.reshape(1, -1), {p})
F.max_unpool1d(*F.max_pool1d({g}.reshape(1, -1), 2, return_indices=True), 2)
F.max_unpool2d(*F.max_pool2d({g}.reshape(1, {0}.shape[0], -1), 1, return_indices=True), 1)
F.pad({v}.reshape(1, {0}.shape[0], -1), (1, 0, 0, 1), mode="replicate")
F.pad({v}.reshape(1, 1, {0}.shape[0], -1), (0, 1, 1, 0), mode="circular")
F.pad({v}.reshape(1, 1, {0}.shape[0], -1), (0, 1, 1, 0), mode="reflect")
F.pad({v}, ({n}, 1))
F.pad({v}, (1, {n}), value={k})
F.pad({v}.reshape(-1), (-1, -1))
F.pixel_shuffle({v}.reshape(1, 4, 1, -1), 2)
F.pixel_unshuffle({v}.reshape(1, 1, 2, -1), 2)
F.upsample({g}.reshape(1, 1, -1), scale_factor=2)
F.interpolate({g}.reshape(1, 1, {0}.shape[0], -1), size=({p}, 3), mode="nearest-exact")
F.interpolate({g}.reshape(1, 1, -1), scale_factor=1.5, mode="nearest")
F.interpolate({g}.reshape(1, 1, -1), scale_factor=0.5, mode="nearest-exact")
F.interpolate({g}.reshape(1, 1, -1), size={v}.shape[0])
F.one_hot({i}.abs() % 3, 3)
F.one_hot({i}.clamp(0, 2))
F.conv1d({g}.reshape(1, 1, -1), {0}.flatten()[:2].reshape(1, 1, 2), padding={p})
F.conv1d({g}.reshape(1, 2, -1), {0}.flatten()[:2].reshape(2, 1, 1), groups=2)
F.conv2d({g}.reshape(1, 1, {0}.shape[0], -1), {0}.flatten()[:1].reshape(1, 1, 1, 1), {0}.flatten()[:1], stride=2)
F.conv2d({g}.reshape(1, 1, {0}.shape[0], -1), {0}.flatten()[:2].reshape(2, 1, 1, 1), dilation=2)
F.conv3d({g}.reshape(1, 1, 1, {0}.shape[0], -1), {0}.flatten()[:2].reshape(1, 1, 1, 1, 2), padding=(0, 0, 1))
F.conv_transpose1d({g}.reshape(1, 1, -1), {0}.flatten()[:2].reshape(1, 1, 2), stride=2, output_padding=1)
F.conv_transpose2d({g}.reshape(1, 1, {0}.shape[0], -1), {0}.flatten()[:2].reshape(1, 1, 1, 2), padding=(0, 1))
torch.conv_tbc({g}.reshape(-1, 1, 1), {0}.flatten()[:2].reshape(2, 1, 1), {0}.flatten()[:1])
F.embedding_bag(torch.tensor([0, 1, 0]), {g}.reshape({0}.shape[0], -1), torch.tensor([0, 2]), mode="sum")
F.embedding_bag(torch.tensor([[0, 1], [0, 0]]), {g}.reshape({0}.shape[0], -1), mode="max")
F.embedding_bag(torch.tensor([[0, 1], [0, 0]]), {g}.reshape({0}.shape[0], -1), mode="sum", per_sample_weights=torch.full((2, 2), 0.5).to({0}.dtype))
F.embedding({i}.abs() % {p}, torch.arange(12.0).view(4, 3))
F.embedding(torch.tensor([0, 1, 0]), {g}.reshape({0}.shape[0], -1), padding_idx=-1)
F.margin_ranking_loss({f}, {s}, torch.tensor(1.0), 0.5, reduction="none")
F.hinge_embedding_loss({f}, torch.tensor(-1.0), reduction="sum")
F.multi_margin_loss({g}.reshape(1, -1), torch.tensor([0]), reduction="sum")
F.threshold({i}, 1, -1)
F.hardtanh({f}, -0.5, {p})
F.relu6({i})
F.leaky_relu({f}, {n})
F.prelu({g}, {0}.flatten()[:1])
F.alpha_dropout({f}, 0.5, False)
F.feature_alpha_dropout({f}, 0.5, False)
F.dropout1d({g}.reshape(1, 1, -1), 0.5, False)
torch._foreach_abs([{f}, {s}])[1]
torch._foreach_sub([{f}, {s}], [{s}, {s}])[0]
torch._foreach_sub([{i}, {f}], 2)[1]
torch._foreach_minimum([{f}], [{s}])[0]
torch._foreach_clamp_max([{f}, {0}], 1.0)[1]
torch._foreach_clamp_min([{f}, {0}], [{0}, {s}])[1]
torch._foreach_addcmul([{f}], [{s}], [{s}], [2.0])[0]
torch._foreach_lerp([{f}], [{s}], 0.5)[0]
torch._foreach_max([{g}, {0}])[0]
torch._foreach_add([{f}, {0}], torch.tensor(2.0))[1]
torch._foreach_pow([{f}], 2)[0]
torch._foreach_norm([{f}], 1)[0]
torch._foreach_norm([{f}, {0}], inf)[1]
torch._foreach_sign([{f}])[0] * 0
torch._foreach_clone([{f}, {0}])[1] if hasattr(torch, "_foreach_clone") else {0} * 1
torch.view_as_real(torch.complex({f}, {s}))
torch.complex({f}, {s}).real
torch.complex({f}, {s}).imag + {0}
torch.complex({f}, {s}).conj().imag
torch.complex({f}, {s}).conj_physical() * 2
torch.complex({f}, {s}).mul(1j).real
torch.complex({f}, {s}).flip(0).imag
(-torch.complex({f}, {s})).conj().real
torch.complex({f}, {s}).sum().real
torch.fft.fftshift({v})
torch.fft.ifftshift({v}, {d})
torch.fft.fftfreq({p})
torch.fft.rfftfreq({p}, 0.5)
{f}.to(torch.float8_e4m3fn).to({0}.dtype)
{f}.to(torch.float8_e5m2).float()
({f}.clamp(-2, 2).to(torch.float8_e4m3fn).to({F}) * 2)
torch.cat([{f}.to(torch.float8_e5m2), {0}.to(torch.float8_e5m2)]).float()
{f}.to(torch.float8_e4m3fn).view(torch.uint8)
{f}.to(torch.bfloat16).view(torch.int16)
{i}.to(torch.int32).view(torch.float32).isnan()
torch.broadcast_shapes({x}.shape, {y}.shape) and {0} + {y}
"""

STEPS = """
torch.allclose({x}, {0}) + {0}
torch.equal({x}, {y}) * {x}
torch.ge({x}, {c})
torch.le({x}, {y})
torch.lt({x}, {n})
torch.not_equal({x}, {y})
torch.greater({x}, {0}.flatten()[0]) if {x}.numel() else {0} > 1
torch.logical_or({x}, {y})
torch.logical_xor({x}, {b})
{x}.isclose({s}, atol=0.5)
{f}.round(decimals={k})
{f}.fix()
{f}.fmod({y})
{f}.remainder({y})
{i}.fmod(3)
{i}.remainder({y})
{i} % {s}
{i} // {y}
{x}.floor_divide({c})
torch.div({i}, {y}, rounding_mode="trunc")
torch.div({f}, {y}, rounding_mode="floor")
{f}.to({T})
{f}.nan_to_num().clamp(-100, 100).char()
{v}.argmax({d}, keepdim=True)
{x}.argmin()
{v}.argsort(dim={d}, stable=True).argsort(dim={d}, stable=True)
{v}.topk(1, {d}, largest=False).values
{v}.contiguous().median({d}).values
{v}.max({d}).values - {0}.min({d}).values
{v}.cummax({d}).indices
torch.unique({v}, return_counts=True)[1]
torch.unique({x}, return_inverse=True)[1]
torch.unique_consecutive({v}, return_counts=True)[1]
torch.histogram({f}.float(), 4, range=(-2.0, 2.0))[0]
torch.histc({f}, {p})
torch.bucketize({f}, {v}.flatten().sort().values)
torch.isin({x}, {v}.flatten()[:2])
torch.nonzero({x}, as_tuple=True)[0]
torch.argwhere({x})
torch.where({x} > 0)[0]
{x}.count_nonzero({n})
torch.nextafter({f}, {y})
torch.signbit({i})
{f}.sign() * {0}
torch.heaviside({f}, torch.tensor(0.5).to({0}.dtype))
F.hardshrink({f}, 1.0)
F.softshrink({f}, 0.25)
F.threshold({f}, 1, 0.5)
F.gumbel_softmax({g}, hard=True).sum({d}) * 0 + 1
torch.fake_quantize_per_tensor_affine({f}, 0.5, 0, -8, 7)
torch.fake_quantize_per_channel_affine({g}, torch.full(({0}.shape[0],), 0.25), torch.zeros({0}.shape[0], dtype=torch.int32), 0, -8, 7)
"""

PAIRS = """
{v}.unsafe_chunk(2)
{v}.tensor_split([1, {p}], {d})
{v}.tensor_split({p}, {d})
{v}.split_with_sizes([1, {0}.shape[0] - 1])
{v}.contiguous().median({d})
{v}.mode({d})
{v}.kthvalue(1, {d})
{v}.cummax({d})
{v}.cummin({d})
torch.unique({v}, return_counts=True)
torch.unique_consecutive({v}, return_inverse=True)
torch.unbind_copy({v})
torch.split_copy({v}, 1)
torch.nonzero({x}, as_tuple=True)
torch.linalg.slogdet({g} @ {0}.mT)
torch.linalg.eigh({g} @ {0}.mT + torch.arange({0}.shape[-2]).diag() * 9)[:1] * 2
torch.linalg.inv_ex({g} @ {0}.mT + torch.eye({0}.shape[-2], dtype={0}.dtype))
torch.native_layer_norm({g}, {0}.shape[-1:], None, None, 1e-5)
torch.max_pool1d_with_indices({g}.reshape(1, -1), 2)
F.max_pool2d({g}.reshape(1, {0}.shape[0], -1), 2, 1, return_indices=True)
F.adaptive_max_pool1d({g}.reshape(1, -1), 2, return_indices=True)
torch.var_mean({g}, ({d}, {d}), correction=0)
torch.std_mean({g})
torch.histogram({f}.float(), 4, range=(-2.0, 2.0))
torch._foreach_exp([{f}, {s}])
torch._foreach_mul([{f}, {s}], {c})
torch.gradient({g})
torch.triu_indices({p}, {p})
torch.aminmax({v}, dim={d}, keepdim=True)
torch.where({x} > 0)
torch.tril_indices({p}, {p}, {k})
"""

#: family -> its rows of both tables, these twice as often as the usual ones
TABLES = {
    family: [usual, rows(text), rows(text)]
    for (family, usual), text in zip(
        ordinary.TABLES.items(), (VIEWS, EXACT, INEXACT, STEPS, WRITES, ROUGH_WRITES, PAIRS), strict=True
    )
}


def generate(seed: int) -> TensorProgram:
    """The program of a seed."""
    return ordinary.generate(seed, TABLES)


MACHINE = Machine(generate, check)
