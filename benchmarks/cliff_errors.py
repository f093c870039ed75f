"""Calls of the programs among which cliffs are looked for, and how far their results are from float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.run import Row

if TYPE_CHECKING:
    import torch

    from benchmarks.cliff_cases import Case

#: an error this many times eager's, and beyond some roundings, is told
WRONG, ROUNDINGS = 4.0, 8.0
#: draws of other numbers that decide whether that was more than chance: of few numbers that cancel one error is 4 times another in 8 draws of 100
DRAWS = 8

Call = Callable[[], list[Any]]
#: the errors of ours and of eager's, and above what it is told; a text where types differ; of whole numbers none
Found = tuple[float, float, float] | str | None


def call_of(
    case: Case, fn: Callable[..., Any], rows: int, device: str, seed: int = 0, like: Sequence[torch.Tensor] = ()
) -> Call:  # fmt: skip
    """A call of no arguments: a forward, or a forward and its backward, whose tensors it gives.

    ``like``: results of such a call; then all is computed in float64, of the same inputs and of gradients rounded as those of these results.
    """
    import torch

    from benchmarks.cliff_cases import Draw

    inputs = [_double(x) if like else x for x in case.make(rows, Draw(device, 2 * seed))]
    run = _widened(fn) if like else fn
    if not case.grad:

        def forward() -> list[Any]:
            with torch.no_grad():
                return _tensors(run(*inputs))

        return forward
    wanted = [x.requires_grad_() for x in inputs if _is_smooth(x)]
    gradients: list[torch.Tensor] = []

    def step() -> list[Any]:
        found = [x for x in _tensors(run(*inputs)) if x.requires_grad]
        if not gradients:
            # others than the inputs' numbers, of which some gradients are 0
            draw = Draw(device, 2 * seed + 1)
            kinds = [x.dtype for x in (like or found)[: len(found)]]
            drawn = [draw.f32(*x.shape, dtype=kind) for x, kind in zip(found, kinds, strict=True)]
            gradients.extend(_double(x) if like else x for x in drawn)
        grads = torch.autograd.grad(found, wanted, gradients, allow_unused=True)
        return [x.detach() for x in found] + [x for x in grads if x is not None]

    return step


def checked(
    case: Case, rows: int, device: str, results: dict[str, list[Any]], again: Callable[[int], dict[str, list[Any]]]
) -> Row:  # fmt: skip
    """Errors of ours and of eager's against float64, and the share of whole numbers that are not eager's.

    ``again``: a seed -> the results of other numbers. What is further from float64 than eager's is looked at there, too: it is ``wrong``
    where most draws say so, else ``seldom``, which may be chance.
    """
    row: Row = {}
    found = _compared(case, rows, device, results, 0, row)
    for each in found:
        if isinstance(each, tuple):
            row["error"] = max(row.get("error", 0.0), each[0])
            row["eager_error"] = max(row.get("eager_error", 0.0), each[1])
    whole = [
        (ours != eager).double().mean().item() if ours.numel() else 0.0
        for ours, eager, each in zip(results["braze"], results["eager"], found, strict=True)
        if each is None
    ]
    if whole:
        row["differ"] = max(whole)
    doubtful = [k for k, each in enumerate(found) if _is_further(each)]
    if not doubtful:
        return row
    others = [_compared(case, rows, device, again(seed), seed, {}) for seed in range(1, DRAWS + 1)]
    told: dict[str, list[str]] = {}
    for k in doubtful:
        times = 1 + sum(_is_further(each[k]) for each in others)
        what = found[k]
        text = f"error {what[0]:.2e} where eager's is {what[1]:.2e}" if isinstance(what, tuple) else what
        kind = "wrong" if 2 * times > DRAWS + 1 else "seldom"
        told.setdefault(kind, []).append(f"{text} in {times} of {DRAWS + 1} draws")
    return row | {kind: "; ".join(texts) for kind, texts in told.items()}


def _compared(
    case: Case, rows: int, device: str, results: dict[str, list[Any]], seed: int, row: Row
) -> list[Found]:
    """What is found of each result; ``row`` is told where there is no float64."""
    import torch

    try:
        exact = call_of(case, case.fn, rows, device, seed, like=results["eager"])()
    except (RuntimeError, NotImplementedError) as failure:  # some operators have no float64
        row["unchecked"] = str(failure)[:120]
        exact = results["eager"]
    found: list[Found] = []
    for ours, eager, true in zip(results["braze"], results["eager"], exact, strict=True):
        if ours.dtype != eager.dtype or ours.shape != eager.shape:
            found.append(f"{ours.dtype} {list(ours.shape)} where eager has {eager.dtype} {list(eager.shape)}")
        elif not _is_smooth(ours):
            found.append(None)
        else:
            # without float64 it is not known what eager's own roundings, on its way through shorter types, come to
            kind = torch.bfloat16 if exact is results["eager"] else ours.dtype
            rounding = ROUNDINGS * torch.finfo(kind).eps
            least = _error(eager, true)
            found.append((_error(ours, true), least, WRONG * least + rounding))
    return found


def _is_further(found: Found) -> bool:
    if not isinstance(found, tuple):
        return found is not None
    ours, least, most = found
    # where eager has other numbers without end than float64, as of a mask at a bound that is a rounding away, nothing is further away
    return not math.isnan(least) and (ours > most or math.isnan(ours))


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square of the differences, relative to the results' own; of those that are finite in both."""
    import torch

    found, exact = (torch.view_as_real(x) if x.is_complex() else x for x in (found, exact))
    found, exact = found.double(), exact.double()
    finite = exact.isfinite()
    if not torch.equal(found[~finite].nan_to_num(7.0), exact[~finite].nan_to_num(7.0)):
        return math.nan
    size = exact[finite].square().mean().sqrt()
    return (
        float((found - exact)[finite].square().mean().sqrt() / size.clamp_min(1e-300))
        if finite.any()
        else 0.0
    )


def _widened(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A program in which what is asked for in shorter types is made in float64, too: else its roundings, which eager shares, would be taken for exact."""
    import torch
    from torch.overrides import TorchFunctionMode

    double = torch.Tensor.double
    made = dict.fromkeys((torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16), double)
    types = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
    types[torch.complex64] = torch.complex128

    def wide(value: Any) -> Any:
        return types.get(value, value) if isinstance(value, torch.dtype) else value

    class Widened(TorchFunctionMode):
        def __torch_function__(self, fn: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {name: wide(value) for name, value in (kwargs or {}).items()}
            return made.get(fn, fn)(*map(wide, args), **given)

    def run(*inputs: Any) -> Any:
        with Widened():
            return fn(*inputs)

    return run


def _tensors(found: Any) -> list[Any]:
    if isinstance(found, (tuple, list)):
        return [x for item in found for x in _tensors(item)]
    return [] if found is None else [found]


def _is_smooth(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _double(x: torch.Tensor) -> torch.Tensor:
    import torch

    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x
