"""Operators that run through ATen: those meant to, and every one without a lowering."""

from __future__ import annotations

from typing import Any

import torch

from braze.graph.operators.functional_ops import Functional, original_of
from braze.graph.operators.operators import written_parameters
from braze.loops.ir import DType, MadeSize, views_in
from braze.lower.values.lazy import Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.runtime.operators.purity import is_of_the_program
from braze.support import trace
from braze.support.errors import Unsupported
from braze.support.log import warn_once
from braze.support.nested import every
from braze.symbolic.expr import Expr, contiguous_strides

#: operators for which ATen's kernel is the intended way: `braze.explain` counts their calls, no warning names them
INTENDED = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_convolution", "matmul", "dot", "mv", "einsum",
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math_for_mha", "_scaled_mm", "cat",
        "native_dropout", "bernoulli", "rand", "randn", "randint", "rand_like", "randn_like", "randint_like",
        "randperm", "multinomial", "normal", "uniform", "exponential", "sort", "topk", "empty", "empty_like", "empty_strided",
        "_assert_async", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_bilinear2d", "upsample_bicubic2d",
        "upsample_linear1d", "upsample_trilinear3d", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "cumsum", "cumprod", "linear_cross_entropy", "cut_product", "wide_product", "subgraphs", "random_subgraphs", "subgraph_gradients", "flex_attention", "flex_attention_gradients",
        # gradients
        "convolution_backward", "embedding_dense_backward", "_embedding_bag_backward", "_ctc_loss_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
        "avg_pool2d_backward", "avg_pool3d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
        "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward",
        "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
        "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward",
        "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
        "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
        "grid_sampler_2d_backward", "grid_sampler_3d_backward", "col2im", "im2col", "masked_scatter_backward",
        "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
        "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward",
        "scatter", "scatter_add", "scatter_reduce", "index_add", "index_put", "index_copy", "masked_scatter", "put", "take",
        "running_product_gradient", "unfold_backward", "_pdist_backward", "_cdist_backward",
    }
)  # fmt: skip

#: operator -> the overload that writes its single result into given memory
OUT_VARIANTS = {
    "aten.mm.default": "aten.mm.out",
    "aten.addmm.default": "aten.addmm.out",
    "aten.bmm.default": "aten.bmm.out",
    "aten.baddbmm.default": "aten.baddbmm.out",
    "aten._addmm_activation.default": "aten._addmm_activation.out",
    "braze.wide_product.default": "braze.wide_product.out",
}


def call_extern(
    g: ProgramBuilder, target: Any, args: Any, kwargs: dict[str, Any], *, as_it_is: bool = False
) -> Any:
    """Append a call of an ATen (or custom) operator, ``as_it_is``: of that overload; returns its results as values in memory."""
    schema = target._schema
    plain_args = tuple(argument(g, a) for a in args)
    plain_kwargs = tuple((name, argument(g, a)) for name, a in kwargs.items())
    mutates: list[str] = []
    aliases: list[str] = []
    read = [*plain_args, *(a for _, a in plain_kwargs)]
    if _holds_arguments(g.val):
        aliases = [v.buffer for v in views_in(tuple(read))]
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        names = {a.name: v for a, v in zip(schema.arguments, plain_args, strict=False)} | dict(plain_kwargs)
        for _, a in written_parameters(target):
            mutates += [v.buffer for v in views_in(names.get(a.name))]
        if any(r.alias_info is not None for r in schema.returns):
            aliases = [v.buffer for v in views_in(tuple(read))]
    outputs: list[str] = []
    made: list[MadeSize] = []
    result = _results(g, g.val, outputs, made)
    name = target_name(target)
    trace.emit("aten", name)
    g.call(
        name,
        plain_args,
        tuple(outputs),
        kwargs=plain_kwargs,
        device=device_of(g) if any(outputs) or not mutates else g.buffers[mutates[0]].device,
        mutates=tuple(dict.fromkeys(mutates)),
        # a kernel that the program has registered for the operator is none for the overload that writes
        out_variant="" if as_it_is or is_of_the_program(target) else OUT_VARIANTS.get(name, ""),
        aliases=tuple(dict.fromkeys(aliases)),
        makes=tuple(made),
    )
    return result


def call_into(
    g: ProgramBuilder, target: Any, args: tuple[Any, ...], sizes: tuple[Expr, ...], dtype: DType, device: str
) -> Any:
    """Append a call of an operator with one contiguous result of such sizes, which need not be the node's own."""
    name = target_name(target)
    trace.emit("aten", name)
    given = tuple(argument(g, a) for a in args)
    out = g.new_buffer(dtype, sizes, contiguous_strides(sizes), device)
    g.call(name, given, (out,), device=device, out_variant=OUT_VARIANTS.get(name, ""))
    return g.lazy(out)


def _holds_arguments(result: Any) -> bool:
    """Whether a result is made of other tensors: a sparse one keeps its indices and values, and no schema says so."""
    return any(v.layout is not torch.strided for v in every(torch.Tensor, result))


def call_on_copies(g: ProgramBuilder, functional: Functional, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a custom operator that writes, each argument that it writes being a fresh buffer."""
    made = g.val if isinstance(g.val, (tuple, list)) else (g.val,)
    laid_out = iter(made[functional.results :])

    def copy(x: Any) -> Any:
        return g.lazy(g.copy(x, tuple(g.symbols.exprs(next(laid_out).stride()))).buffer)

    given, named, copies = functional.with_copies(args, kwargs, copy)
    g.val, g.op_name = tuple(made[: functional.results]), functional.original.__name__.partition(".")[0]
    own = call_extern(g, functional.original, given, named, as_it_is=True)
    everything = (*own, *copies)
    return everything[0] if len(everything) == 1 else everything or None


def fall_back(g: ProgramBuilder, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator that has no lowering through ATen, and say so once."""
    functional = original_of(target)
    if functional is not None and all(v.dtype.is_computable for v in every(Lazy, (args, kwargs))):
        return call_on_copies(g, functional, args, kwargs)
    if g.op_name not in INTENDED and not (
        torch.Tag.dynamic_output_shape in target.tags and _sized_by_data(g)
    ):
        name = target_name(target)
        trace.emit("fallback", name)
        trace.count("fallbacks")
        warn_once(
            ("fallback", name),
            f"BZ3001: {name} has no lowering for this call and runs through ATen"
            + (f"; first seen at {g.origin}" if g.origin is not None else ""),
            "fallbacks",
        )
    return call_extern(g, target, args, kwargs)


def _sized_by_data(g: ProgramBuilder) -> bool:
    """Whether the sizes of a result are for its kernel to tell."""
    return any(g.symbols.found(n) is not None for v in every(torch.Tensor, g.val) for n in v.shape)


def target_name(target: Any) -> str:
    """``aten.mm.default``."""
    return f"{target.namespace}.{target.__name__}"


def device_of(g: ProgramBuilder) -> str:
    """The device of the node's first tensor result."""
    val = g.val
    while isinstance(val, (tuple, list)) and val:
        val = next((v for v in val if v is not None), None)
    return str(val.device) if isinstance(val, torch.Tensor) else "cpu"


def argument(g: ProgramBuilder, a: Any) -> Any:
    """A graph argument as data: a window on a buffer, a size, or a plain constant."""
    if isinstance(a, Lazy):
        return g.realize(a)
    if isinstance(a, Expr):
        return a if a.value is None else a.value
    if isinstance(a, (list, tuple)):
        return tuple(argument(g, item) for item in a)
    return a


def _results(g: ProgramBuilder, val: Any, outputs: list[str], made: list[MadeSize]) -> Any:
    if isinstance(val, torch.Tensor):
        for dim, size in enumerate(val.shape):
            symbol = g.symbols.found(size)
            if symbol is not None and symbol not in g.known_sizes:
                g.known_sizes.add(symbol)
                made.append(MadeSize(symbol, len(outputs), dim))
        name = g.new_buffer(
            g.dtype_of(val.dtype), g.symbols.exprs(val.shape), g.symbols.exprs(val.stride()), str(val.device)
        )
        outputs.append(name)
        return g.lazy(name)
    if isinstance(val, (tuple, list)):
        return tuple([_results(g, v, outputs, made) for v in val])
    if val is None:
        outputs.append("")
        return None
    if isinstance(val, (torch.SymInt, int)):
        outputs.append("")
        return g.symbols.expr(val)
    raise Unsupported(
        "BZ3003",
        f"{g.op_name} returns a {type(val).__name__}",
        why="only tensors and sizes are values of a loop program",
    )
