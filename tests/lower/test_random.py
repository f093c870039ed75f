"""Random compositions of operators: whatever is fused, stored, viewed or copied, the answer is eager's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.loops.interpret import interpret
from tests.lower.conftest import _flat, lowered

Tensors = list[torch.Tensor]
Step = Callable[[Tensors], torch.Tensor]

UNARY = [
    torch.relu, torch.neg, torch.abs, torch.tanh, torch.sigmoid, torch.sin, torch.clone, lambda t: t * 0.5,
    lambda t: 1 - t, lambda t: t.clamp(-2, 2).exp(), lambda t: (t > 0) * t, lambda t: torch.where(t > 0.5, t, 0.25),
]  # fmt: skip
BINARY = [
    torch.add,
    torch.sub,
    lambda a, b: (a * b).clamp(-9, 9),
    torch.maximum,
    lambda a, b: torch.where(a > b, a, b * 2),
]


def unary(draw: st.DrawFn, k: int, x: torch.Tensor, values: Tensors) -> Step:
    op = draw(st.sampled_from(UNARY))
    return lambda v: op(v[k])


def binary(draw: st.DrawFn, k: int, x: torch.Tensor, values: Tensors) -> Step:
    def fits(y: torch.Tensor) -> bool:
        pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    j = draw(st.sampled_from([j for j, y in enumerate(values) if fits(y)]))
    op = draw(st.sampled_from(BINARY))
    return lambda v: op(v[k], v[j])


def reduction(draw: st.DrawFn, k: int, x: torch.Tensor, values: Tensors) -> Step:
    dims = [d for d in range(x.dim()) if draw(st.booleans())]
    keep = draw(st.booleans())
    name = draw(st.sampled_from(["sum", "mean", "amax", "var"]))
    if not dims or any(x.shape[d] == 0 for d in dims):
        return lambda v: v[k].sum(dims, keepdim=keep)
    if name == "var":
        return lambda v: v[k].var(dims, correction=0, keepdim=keep)
    return lambda v: getattr(v[k], name)(dims, keepdim=keep)


def reshape(draw: st.DrawFn, k: int, x: torch.Tensor, values: Tensors) -> Step:
    n = x.numel()
    shapes = [
        (-1,),
        (1, n),
        tuple(reversed(x.shape)),
        *((m, n // m) for m in (2, 3, 4, 6) if n and n % m == 0),
    ]
    shapes += [(m, 2, n // m // 2) for m in (2, 3) if n and n % (2 * m) == 0]
    shape = draw(st.sampled_from(shapes if n else [(n,), (3, 0)]))
    return lambda v: v[k].reshape(shape)


def permute(draw: st.DrawFn, k: int, x: torch.Tensor, values: Tensors) -> Step:
    order = draw(st.permutations(range(x.dim())))
    return lambda v: v[k].permute(order)


def along(draw: st.DrawFn, k: int, x: torch.Tensor, values: Tensors) -> Step:
    """Something along one dimension."""
    if not x.dim():
        return lambda v: v[k].unsqueeze(0)
    d = draw(st.integers(0, x.dim() - 1))
    n = x.shape[d]
    a, b, s = draw(st.integers(-n - 1, n)), draw(st.integers(-n - 1, n + 1)), draw(st.integers(1, 2))
    cut = (slice(None),) * d + (slice(a, b, s),)
    steps: list[Step] = [
        lambda v: v[k][cut],
        lambda v: v[k].unsqueeze(d),
        lambda v: v[k].flip(d),
        lambda v: torch.cat([v[k], v[k] * 2, v[k]], d),
        lambda v: torch.stack([v[k], -v[k]], d),
        lambda v: torch.constant_pad_nd(v[k], [0, 0] * (x.dim() - 1 - d) + [1, 2], 0.5),
        lambda v: v[k].cumsum(d),
        lambda v: v[k].squeeze(d),
        lambda v: v[k].unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:]),
        lambda v: torch.slice_scatter(v[k], v[k][(slice(None),) * d + (slice(0, 1),)] * 3, d, 0, 1),
    ]
    if n:
        i = draw(st.integers(-n, n - 1))
        steps += [
            lambda v: v[k].select(d, i),
            lambda v: v[k].argmax(d) * 0.5,
            lambda v: v[k].amax(d, keepdim=True) - v[k],
            lambda v: v[k].roll(i, d),
            lambda v: v[k].gather(d, v[k].argmax(d, keepdim=True)),
            lambda v: v[k].transpose(0, d)[torch.arange(n).flip(0)],
        ]
    return draw(st.sampled_from(steps))


KINDS = [unary, unary, binary, reduction, reshape, permute, along, along]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Tensors, list[Step], list[int]]:
    """Inputs, steps on the growing list of values, and which values are returned."""
    shape = draw(st.lists(st.integers(0, 4) | st.just(1), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64)]
    if draw(st.booleans()):
        inputs.append(
            torch.randn([*shape[:-1], 3 * shape[-1] + 1], generator=generator, dtype=torch.float64)[..., 1::3]
        )
    values, steps = list(inputs), []
    for _ in range(draw(st.integers(1, 9))):
        k = draw(st.integers(max(0, len(values) - 3), len(values) - 1))
        made = draw(st.sampled_from(KINDS))(draw, k, values[k], values)
        out = made(values)
        if out.numel() > 400 or out.dim() > 5 or not out.is_floating_point():
            continue
        steps.append(made)
        values.append(out)
    wanted = (
        draw(st.lists(st.integers(len(inputs), len(values) - 1), min_size=1, max_size=3)) if steps else [0]
    )
    return inputs, steps, wanted


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_any_composition(program: tuple[Tensors, list[Step], list[int]]) -> None:
    """In double precision, so that a wrong index cannot hide in rounding."""
    inputs, steps, wanted = program

    def fn(*given: torch.Tensor) -> Tensors:
        values = list(given)
        for made in steps:
            values.append(made(values))
        return [values[k] for k in wanted]

    lowered_program = lowered(fn, inputs)
    for ours, eager in zip(interpret(lowered_program, inputs), _flat(fn(*inputs)), strict=True):
        assert ours.dtype == eager.dtype
        assert ours.shape == eager.shape
        if eager.numel():
            assert [a for n, a in zip(eager.shape, ours.stride(), strict=True) if n > 1] == [
                a for n, a in zip(eager.shape, eager.stride(), strict=True) if n > 1
            ]
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9, equal_nan=True)
