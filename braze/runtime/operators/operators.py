"""ATen operators by name, through the cheapest public binding."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from braze import native
from braze.native.torch_state import function_modes
from braze.runtime.operators import convolutions, wide_products
from braze.runtime.operators.purity import is_of_the_program, named

aten = torch.ops.aten


def _as_strided_scatter(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """It counts from the start of the storage, which an intermediate shares with all else in the arena."""
    return torch.ops.aten.as_strided_scatter.default(x.clone(), *args)


def copy_in_its_strides(x: torch.Tensor) -> torch.Tensor:
    """The elements of ``x`` in memory of their own, with what lies between them; repeated elements are spread, as by ATen."""
    reach = [(n - 1, stride) for n, stride in zip(x.shape, x.stride(), strict=True)]
    if any(n and not stride for n, stride in reach):
        return x.clone()
    span = sum(n * stride for n, stride in reach) + 1 if x.numel() else 0
    return x.as_strided((span,), (1,), x.storage_offset()).clone().as_strided(x.shape, x.stride(), 0)


def _scatter_into(view: Any, scatter: Any) -> Any:
    """A scatter into a part: ATen copies all of the storage for it, which for an intermediate is the whole arena."""

    def call(x: torch.Tensor, src: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = copy_in_its_strides(x)
        part = view(made, *args, **kwargs)
        if part.shape != src.shape:
            return scatter(x, src, *args, **kwargs)  # type: ignore[no-any-return]  # it tells what is wrong
        part.copy_(src)
        return made

    return call


def _refuse_singular(info: torch.Tensor, of: str, *, is_matrix: bool) -> None:
    """LAPACK's word on one matrix is one number, which takes a fifth to read of what ATen takes to ask whether any is not 0; ATen tells what is wrong."""
    if not is_matrix or function_modes() or info.item():
        torch._linalg_check_errors(info, of, is_matrix=is_matrix)


#: operators by overload whose binding in ``torch`` takes the schema's arguments and comes to that overload: half the cost of a call through ``torch.ops``
_BOUND = {
    "default": """_adaptive_avg_pool2d _adaptive_avg_pool3d _chunk_cat _conj _conj_physical _embedding_bag
        _embedding_bag_forward_only _fft_c2c _fft_c2r _fft_r2c _histogramdd_bin_edges _histogramdd_from_bin_cts
        _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex
        _linalg_svd _native_batch_norm_legit _trilinear _unsafe_masked_index _unsafe_masked_index_put_accumulate abs
        alias_copy angle as_strided_copy bincount cat cholesky cholesky_inverse cholesky_solve clone complex
        constant_pad_nd cos cummax cummin cumprod cumsum deg2rad diagonal_copy digamma dot embedding erfinv exp floor_divide gather
        geqrf grid_sampler_2d grid_sampler_3d hash_tensor histc i0 igamma igammac index_add index_copy
        index_reduce index_select isneginf isposinf kthvalue lgamma logaddexp2 logcumsumexp lu_unpack masked_scatter
        median mode mv mvlgamma nanmedian native_batch_norm native_group_norm neg nextafter nonzero ormqr permute_copy
        polar polygamma put rad2deg reciprocal renorm scatter_add sgn sin sinc sort split_with_sizes_copy sqrt
        squeeze_copy t_copy take tanh topk trace triangular_solve unfold_copy unsqueeze_copy vdot""",
    "out": "_addmm_activation cumprod cumsum dot logcumsumexp mv",
    "dim": "max median min nanmedian",
    "stable": "sort",
    "Tensor": "add bucketize div fmod frexp ldexp mul remainder searchsorted sub",
    "Tensor_Tensor": "isin linspace logspace pow",
    "Tensor_Scalar": "pow",
    "decimals": "round",
    "src": "scatter",
    "two": "scatter_reduce",
    "int": "transpose_copy unbind_copy",
    "low": "randint",
    "self": "where",
}
#: the same of functions of layers, of linear algebra and special ones, and of methods
_LAYERS = {
    "default": """_upsample_bilinear2d_aa _upsample_nearest_exact1d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d
        avg_pool3d fractional_max_pool2d fractional_max_pool3d im2col max_pool2d_with_indices max_pool3d_with_indices
        max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d scaled_dot_product_attention upsample_bicubic2d upsample_bilinear2d upsample_linear1d
        upsample_nearest1d upsample_trilinear3d""",
    "out": """avg_pool2d im2col reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d""",
}
_LINALG = {
    "default": """linalg_cholesky_ex linalg_cross linalg_eig linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex
        linalg_ldl_solve linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr
        linalg_solve_triangular linalg_vector_norm""",
    "atol_rtol_tensor": "linalg_pinv",
}
_SPECIAL = {
    "default": """special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_entr special_erfcx special_hermite_polynomial_h
        special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l
        special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta""",
}
#: (not ``index_put_``, whose binding takes no places that are left out)
_METHODS = {
    "default": "as_strided detach diagonal index_add_ permute scatter_add_ t unsqueeze view",
    "int": "select transpose",
}


def _shims() -> dict[str, Any]:
    """Operators that the C core calls past the dispatcher, where these tensors let it; convolution's binding takes half the time of the others'."""
    ops = {target: named(target) for target in native.SHIMS}
    bound = {"aten.convolution.default": torch.convolution}
    return {target: native.shim(op._schema, bound.get(target, op)) for target, op in ops.items()}


def _bindings() -> dict[str, Any]:
    places = (
        (torch, _BOUND),
        (torch._C._nn, _LAYERS),
        (torch._C._linalg, _LINALG),  # type: ignore[attr-defined]
        (torch._C._special, _SPECIAL),  # type: ignore[attr-defined]
        (torch.Tensor, _METHODS),
    )
    return {
        f"aten.{name}.{overload}": getattr(place, name)
        for place, rows in places
        for overload, names in rows.items()
        for name in names.split()
        if hasattr(place, name)
    }


#: operators -> what is called for them
_DIRECT = {
    **_bindings(),
    **_shims(),
    "aten.mm.default": torch.mm,
    "aten.mm.out": native.out_product("mm", torch.mm),
    "aten.addmm.default": torch.addmm,
    "aten.addmm.out": native.out_product("addmm", torch.addmm),
    "aten.bmm.default": torch.bmm,
    "aten.bmm.out": native.out_product("bmm", torch.bmm),
    "aten.baddbmm.default": torch.baddbmm,
    "aten.baddbmm.out": native.out_product("baddbmm", torch.baddbmm),
    "braze.packed_convolution.default": convolutions.ONEDNN,
    "braze.wide_product.out": wide_products.into,
    "aten._linalg_check_errors.default": _refuse_singular,
    "aten.as_strided_scatter.default": _as_strided_scatter,
    "aten.slice_scatter.default": _scatter_into(aten.slice.Tensor, aten.slice_scatter.default),
    "aten.select_scatter.default": _scatter_into(aten.select.int, aten.select_scatter.default),
    "aten.diagonal_scatter.default": _scatter_into(aten.diagonal.default, aten.diagonal_scatter.default),
}


#: what runs an operator of ours, and what works out how for tensors of one layout
Kernels = Callable[..., Any]
_kernels: dict[str, tuple[Kernels, Callable[..., Kernels] | None]] = {}


def runs_on_gpu(target: str, kernels: Kernels, worked_out: Callable[..., Kernels] | None) -> None:
    """Note what an operator of ours runs on a GPU: host modules call it past the dispatcher, which takes as long as some launches.

    ``worked_out``: arguments -> ``kernels`` for all that are laid out as these, with nothing more to work out.
    """
    _kernels[target] = kernels, worked_out


def can_be_worked_out(target: str) -> bool:
    """Whether a call of an operator is quicker where its tensors are laid out alike each time (``operator_once``)."""
    return target in _kernels and _kernels[target][1] is not None


def _straight(kernels: Kernels, op: Kernels) -> Kernels:
    def call(*args: Any, **kwargs: Any) -> Any:
        """By the dispatcher where a mode of the program's wants to see operators, or tensors are elsewhere: kernels are interpreted on a processor."""
        return (kernels if args[0].is_cuda and not function_modes() else op)(*args, **kwargs)

    return call


def operator(target: str) -> Any:
    """The callable of ``"aten.mm.out"``."""
    found = _DIRECT.get(target)
    if found is not None:
        return named(target) if target in native.SHIMS and is_of_the_program(named(target)) else found
    return _straight(_kernels[target][0], named(target)) if target in _kernels else named(target)


def product(target: str, layouts: tuple[native.ViewLayout | None, ...]) -> Any:
    """A matrix product by ``out=`` that sees its arguments in these layouts, which they do not lie in."""
    name = target.split(".")[1]
    return native.out_product(name, getattr(torch, name), layouts)


def operator_once(target: str) -> Any:
    """The same for one call of a host module whose tensors are laid out alike each time: how it runs is worked out at the first."""
    op = named(target)
    worked_out = _kernels[target][1]
    assert worked_out is not None
    kernels: Kernels | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernels
        if not args[0].is_cuda or function_modes():
            return op(*args, **kwargs)
        if kernels is None:
            kernels = worked_out(*args, **kwargs)
        return kernels(*args, **kwargs)

    return call


@cache
def onednn_linear() -> Any:
    """oneDNN's linear layer in float32, called as (x, weight, bias, "none", [], ""); None where PyTorch has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return operator("mkldnn._linear_pointwise.default")
    except AttributeError:
        return None
