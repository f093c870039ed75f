"""Random programs of views, writes, copies and operators on arguments that may share memory.

``python -m tests.end_to_end.random_writes 2000`` runs that many, other ones each time, and prints what fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import braze
from tests.end_to_end.writes import hold_to_eager, numbers

Tensor = torch.Tensor
Step = tuple[str, int, int, int]


@torch.library.custom_op("random_writes::mix", mutates_args={"out"})
def mix(out: Tensor, x: Tensor, k: float) -> Tensor:
    """Writes before it reads: shows memory that should not be shared."""
    out.mul_(0.5)
    out.add_(x.sum() * k)
    return out * 2


@mix.register_fake
def _(out: Tensor, x: Tensor, k: float) -> Tensor:
    return torch.empty_like(out)


def _rows(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[0] > 0


VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "transpose": lambda x, k: x.transpose(0, -1) if x.dim() else x.view(()),
    "slice": lambda x, k: x[k % 3 :] if x.dim() else x.view(()),
    "head": lambda x, k: x[: 1 + k] if x.dim() else x.view(()),
    "step": lambda x, k: x[..., :: 1 + k % 2] if x.dim() else x.view(()),
    "select": lambda x, k: x.select(k % x.dim(), 0) if x.dim() and x.shape[k % x.dim()] else x.view(x.shape),
    "unsqueeze": lambda x, k: x.unsqueeze(k % (x.dim() + 1)),
    "squeeze": lambda x, k: x.squeeze(),
    "diagonal": lambda x, k: x.diagonal(k % 2) if x.dim() >= 2 else x.detach(),
    "flatten": lambda x, k: x.flatten() if x.dim() else x.view(()),
    "view": lambda x, k: x.view(-1) if x.is_contiguous() else x.view(x.shape),
    "expand": lambda x, k: x.expand(2, *x.shape) if x.dim() < 3 else x.view(x.shape),
    "detach": lambda x, k: x.detach(),
    "data": lambda x, k: x.data,
    "alias": lambda x, k: x.view_as(x),
    "chunk": lambda x, k: x.chunk(2, -1)[k % 2] if x.dim() and x.shape[-1] > 1 else x.view(x.shape),
    "unbind": lambda x, k: x.unbind(0)[-1] if _rows(x) else x.view(x.shape),
    "unfold": lambda x, k: x.unfold(0, 2, 1 + k % 2) if x.dim() == 1 and x.shape[0] >= 2 else x.view(x.shape),
    "strided": lambda x, k: (
        x.as_strided((2,), (1,)) if x.is_contiguous() and x.numel() >= 4 else x.view(x.shape)
    ),
}
WRITES: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "add_": lambda x, y, k: x.add_(k + 1),
    "mul_": lambda x, y, k: x.mul_(1.5),
    "sub_of_sum": lambda x, y, k: x.sub_(y.sum()),
    "mul_by": lambda x, y, k: x.mul_(y) if x.shape == y.shape else x.mul_(2),
    "copy_": lambda x, y, k: x.copy_(y) if x.shape == y.shape else x.copy_(y.sum()),
    "fill_": lambda x, y, k: x.fill_(k),
    "zero_": lambda x, y, k: x.zero_(),
    "exp_": lambda x, y, k: x.sigmoid_(),
    "setitem": lambda x, y, k: x.__setitem__(0, k) if _rows(x) else None,
    "set_rows": lambda x, y, k: x.__setitem__((slice(None, None, 2),), y.sum()) if x.dim() else None,
    "set_index": lambda x, y, k: x.__setitem__(torch.tensor([0, 0]), y.sum()) if _rows(x) else None,
    "masked": lambda x, y, k: x.masked_fill_(x > 0, k),
    "index_add": lambda x, y, k: (
        x.index_add_(0, torch.tensor([0, 0]), torch.ones(2, *x.shape[1:], dtype=x.dtype))
        if _rows(x)
        else None
    ),
    "out": lambda x, y, k: torch.mul(x, 2, out=x),
    "no_grad": lambda x, y, k: _without_grad(x, k),
    "data": lambda x, y, k: x.data.mul_(0.5),
    "detached": lambda x, y, k: x.detach().add_(1),
    "foreach": lambda x, y, k: torch._foreach_add_([x, y], 0.5),
    "custom": lambda x, y, k: mix(x.detach(), y.detach() * 1, float(k)),
}
PURE: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "add": lambda x, y, k: x + y.sum(),
    "mul": lambda x, y, k: x * y if x.shape == y.shape else x * 2,
    "clone": lambda x, y, k: x.clone(),
    "sin": lambda x, y, k: x.sin(),
    "sum": lambda x, y, k: x.sum(0) if x.dim() else x.exp(),
    "contiguous": lambda x, y, k: x.contiguous(),
    "reshape": lambda x, y, k: x.reshape(-1),
    "new": lambda x, y, k: torch.zeros(2, 3, dtype=torch.float64),
    "like": lambda x, y, k: torch.ones_like(x),
    "cat": lambda x, y, k: torch.cat([x.flatten(), y.flatten()]),
    "custom": lambda x, y, k: mix(x.detach().clone(), x.detach() * 1, float(k)),
}


def _without_grad(x: Tensor, k: int) -> None:
    with torch.no_grad():
        x.mul_(k)


def run(steps: Sequence[Step], outputs: Sequence[int], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The program."""
    pool = list(inputs)
    for kind, a, b, k in steps:
        x, y = pool[a % len(pool)], pool[b % len(pool)]
        if kind.startswith("view "):
            pool.append(VIEWS[kind[5:]](x, k))
        elif kind.startswith("write "):
            WRITES[kind[6:]](x, y, k)
        else:
            pool.append(PURE[kind](x, y, k))
    return tuple(pool[i % len(pool)] for i in outputs)


kinds = [
    *(f"view {name}" for name in VIEWS),
    *(f"write {name}" for name in WRITES),
    *(f"write {name}" for name in WRITES),
    *PURE,
]
numbers_of = st.integers(0, 12)
steps_of = st.lists(
    st.tuples(st.sampled_from(kinds), numbers_of, numbers_of, st.integers(0, 3)), min_size=1, max_size=10
)
outputs_of = st.lists(numbers_of, min_size=1, max_size=4)

#: how the arguments lie in memory
PLACES: dict[str, Callable[[], Sequence[Tensor]]] = {
    "apart": lambda: (numbers(3, 4), numbers(4, seed=1)),
    "transposed": lambda: (numbers(4, 3).t(), numbers(2, 3, 2, seed=1)),
    "windows": lambda: (numbers(3, 8)[:, 1:7:2], numbers(4, 3, seed=1)[:, 1]),
    "halves": lambda: numbers(8).split(4),
    "overlapping": lambda: _windows(numbers(10), slice(0, 6), slice(3, 9)),
    "inside": lambda: _windows(numbers(12).view(3, 4), slice(None), 1),
    "columns": lambda: numbers(4, 2).unbind(1),
    "turned": lambda: (lambda b: (b, b.t()))(numbers(3, 3)),
    "three": lambda: _windows(numbers(9), slice(0, 4), slice(2, 6), slice(5, 9)),
}


def _windows(base: Tensor, *indices: Any) -> tuple[Tensor, ...]:
    return tuple(base[i] for i in indices)


def holds(
    steps: Sequence[Step], outputs: Sequence[int], place: str, grad: bool, backend: str = "aot_eager"
) -> None:
    """The program, compiled, leaves behind what it does in eager; at a second call too."""
    if grad and place not in ("apart", "transposed", "windows"):
        grad = False
    braze.reset()
    compiled = braze.compile(lambda *xs: run(steps, outputs, *xs), backend=backend, options={"verify": 2})
    apart = any(step[0] == "write foreach" for step in steps)  # compiled, it writes tensor by tensor
    for _ in range(2):
        hold_to_eager(compiled, lambda *xs: run(steps, outputs, *xs), PLACES[place], grad, may_succeed=apart)


def main(count: int, start: int, backend: str) -> None:
    """Run ``count`` random programs."""

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=True,
        print_blob=False,
    )
    @given(steps_of, outputs_of, st.sampled_from(sorted(PLACES)), st.booleans())
    def program(steps: list[Step], outputs: list[int], place: str, grad: bool) -> None:
        holds(steps, outputs, place, grad, backend)

    program()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
        sys.argv[3] if len(sys.argv) > 3 else "aot_eager",
    )
