"""The chosen experts of a mixture, as one operator: ``braze::chosen_experts``. Each expert computes the tokens that chose it, and no others.

On the processor expert after expert. On a GPU with grouped products the (token, expert) pairs are sorted by expert and multiplied by two launches, of
sizes that follow from the number of tokens alone, so that a recording holds them. Other GPUs compute all experts for all tokens.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from braze.serving.pieces.custom_ops import on_every_device


def chosen_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
) -> None:
    """Write the weighted sum of what each token's chosen experts make of it.

    ``x`` and ``output`` (tokens, width), ``gate_up`` (experts, 2 * inner, width), ``down`` (experts, width, inner); ``chosen`` int64 and ``weights`` float32
    (tokens, chosen), no expert twice for one token.
    """
    if not x.shape[0]:
        return
    if x.device.type == "cpu":
        output.copy_(one_by_one(x, gate_up, down, chosen, weights))
    elif grouped_here(x, gate_up):
        output.copy_(grouped(x, gate_up, down, chosen, weights))
    else:
        output.copy_(every_expert(x, gate_up, down, chosen, weights))


def one_by_one(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """One product for each expert that somebody chose; sums are float32, or float64 for such tokens."""
    wide = torch.promote_types(x.dtype, torch.float32)
    found = torch.zeros_like(x, dtype=wide)
    for expert in chosen.unique().tolist():
        token, place = (chosen == expert).nonzero(as_tuple=True)
        made = F.linear(_gated(F.linear(x[token], gate_up[expert])), down[expert])
        found.index_add_(0, token, made.to(wide) * weights[token, place, None].to(wide))
    return found.to(x.dtype)


def grouped(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Two grouped products over pairs sorted by expert. Nothing is read on the host."""
    pairs = chosen.flatten()
    order = pairs.argsort(stable=True)
    counts = torch.zeros(gate_up.shape[0], dtype=torch.int32, device=x.device)
    ends = counts.scatter_add_(0, pairs, torch.ones_like(pairs, dtype=torch.int32)).cumsum(
        0, dtype=torch.int32
    )
    rows = x[order // chosen.shape[1]]
    inner = _gated(F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends))
    made = F.grouped_mm(inner, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=x.device))
    each = made[back].view(*chosen.shape, -1)
    return (each.float() * weights[..., None]).sum(1).to(x.dtype)


def every_expert(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """All experts for all tokens, with weights of zero for those that were not chosen."""
    every = x.new_zeros(x.shape[0], gate_up.shape[0]).scatter(1, chosen, weights.to(x.dtype))
    inner = _gated(torch.einsum("tw,eiw->eti", x, gate_up))
    return torch.einsum("etw,te->tw", torch.einsum("eti,ewi->etw", inner, down), every)


def grouped_here(x: torch.Tensor, gate_up: torch.Tensor) -> bool:
    """Whether a GPU has grouped products of these that need not ask the host: bfloat16 on Hopper and later, rows of whole 16 bytes."""
    width, inner = gate_up.shape[2], gate_up.shape[1] // 2
    if x.dtype is not torch.bfloat16 or width % 8 or inner % 8 or not hasattr(F, "grouped_mm"):
        return False
    return torch.cuda.get_device_capability(x.device) >= (9, 0)


def _gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


#: the operator
CHOSEN_EXPERTS = on_every_device(chosen_experts, "output")
