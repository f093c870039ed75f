"""PyTorch's operators one by one, at three sizes: what a compiled call of each takes, beside eager's.

The operators and their arguments are those of PyTorch's own tables (OpInfo), whose samples are drawn larger until they have about as many
elements as wanted. Calls without gradients, in the processor's time on one thread, eager and compiled in turn: on a loaded machine
the least of some blocks says more than their mean. A mean over operators hides cliffs, so the table lists those that are slower than eager.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table

from benchmarks.run import Failed, Row, Team

SIZES = (16, 16_384, 4_000_000)
DTYPES = ("float32", "bfloat16", "float64", "int64")
#: under this a compiled call is slower than eager's
SLOW = 0.97
#: what has no meaning here: other devices, and what is as long as its caller likes
LEFT_OUT = ("jiterator", "torch.ops.aten._", "torch._scaled_mm", "sparse", "to_sparse", "empty", "new_empty")
#: lengths of a side that the tables' samples are drawn with: three fifths more each
SIDES = tuple(dict.fromkeys(round(1.6**k) + 1 for k in range(33)))
SAMPLES, SECONDS = 8, 60


def names(words: Sequence[str] = ()) -> list[str]:
    """The operators of PyTorch's tables in order, those with one of some words in their names."""
    found = dict.fromkeys(name for name, _ in _table() if not name.startswith(LEFT_OUT))
    return [name for name in found if not words or any(word in name for word in words)]


def _table() -> Iterator[tuple[str, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        yield f"{op.name}.{op.variant_test_name}".rstrip("."), op


def tensors(value: Any) -> Iterator[Any]:
    """The tensors of nested arguments."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def sample(name: str, dtype: str, elements: int) -> Any:
    """The operator, and its sample of about so many elements; None where none can be made."""
    import torch

    op = next(op for known, op in _table() if known == name)
    kind = getattr(torch, dtype)
    if kind not in op.supported_dtypes("cpu"):
        return None
    best, most = None, 0
    for side in SIDES:
        found, more = _drawn(op, kind, side, 4 * elements + 64)
        for drawn in found:
            count = _count(drawn)
            if most < count <= 4 * elements and _works(op, drawn):
                best, most = drawn, count
        if most >= elements / 2 or not (found or more):
            break
    if most < elements / 8:
        found, _ = _drawn(op, kind, SIDES[3], elements)
        best = next(filter(None, (_repeated(op, drawn, elements) for drawn in found)), None)
    return (op.op, best) if best is not None else None


def _given(drawn: Any) -> list[Any]:
    return list(tensors((drawn.input, drawn.args, drawn.kwargs)))


def _count(drawn: Any) -> int:
    return sum(t.numel() for t in _given(drawn))


def _works(op: Any, drawn: Any) -> bool:
    """Whether eager can make the call, of dense tensors."""
    import torch

    if any(t.layout is not torch.strided for t in _given(drawn)):
        return False
    try:
        op.op(drawn.input, *drawn.args, **drawn.kwargs)
    except Exception:
        return False
    return True


def _repeated(op: Any, drawn: Any, elements: int) -> Any:
    """A sample of the tables' own size with its input, or all tensors of as many rows, repeated along the first dim."""
    import torch

    x = drawn.input
    if not isinstance(x, torch.Tensor) or not x.dim() or not x.numel():
        return None

    def more(value: Any, alone: bool, times: int) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(more(item, alone, times) for item in value)
        if isinstance(value, dict):
            return {key: more(item, alone, times) for key, item in value.items()}
        fits = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == x.shape[0]
        return torch.cat([value] * times) if value is x or (fits and not alone) else value

    for alone in (True, False):
        held = x.numel() if alone else _count(drawn)
        times = max(1, elements // held)
        larger = type(drawn)(more(x, alone, times), args=more(drawn.args, alone, times), kwargs=more(drawn.kwargs, alone, times))  # fmt: skip
        if elements / 8 <= _count(larger) <= 4 * elements + 64 and _works(op, larger):
            return larger
    return None


class _TooLarge(Exception):
    pass


def _drawn(op: Any, kind: Any, side: int, most: int) -> tuple[list[Any], bool]:
    """The first samples of an operator, drawn with sides of this length where the tables say S, M or L; and whether larger ones may be had."""
    import torch
    from torch.testing._internal import opinfo

    def make(*shape: Any, **words: Any) -> Any:
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape
        if math.prod(dims) > most:
            raise _TooLarge
        return torch.testing.make_tensor(*shape, **words)

    modules = [sys.modules["torch.testing._internal.common_methods_invocations"]]
    modules += [
        importlib.import_module(m.name)
        for m in pkgutil.walk_packages(opinfo.__path__, opinfo.__name__ + ".")
        if m.name in sys.modules
    ]
    changed = {"XS": max(1, side // 2), "S": side, "M": side, "L": side, "make_tensor": make}
    kept = [(m, name, getattr(m, name)) for m in modules for name in changed if hasattr(m, name)]
    found: list[Any] = []
    try:
        for module, what, _ in kept:
            setattr(module, what, changed[what])
        torch.manual_seed(0)
        made = iter(op.sample_inputs_func(op, "cpu", kind, False))
        while len(found) < SAMPLES and (drawn := next(made, None)) is not None:
            found.append(drawn)
    except _TooLarge:
        return found, False
    except Exception:  # a few samples exist at the tables' own lengths alone
        pass
    finally:
        for module, what, value in kept:
            setattr(module, what, value)
    return found, True


def measure(name: str, dtype: str, elements: int, rounds: int) -> Row:
    """Microseconds of a call, eager and compiled; nothing of an operator without such a sample."""
    import torch

    import braze

    torch.set_num_threads(1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(SECONDS)
        try:
            found = sample(name, dtype, elements)
            if found is None:
                return {}
            function, drawn = found
            args, kwargs = (drawn.input, *drawn.args), drawn.kwargs

            def call(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            braze.reset()
            eager, ours = in_turn([call, braze.compile(call)], args, kwargs, rounds)
        finally:
            signal.alarm(0)
    shapes = [list(t.shape) for t in tensors((args, kwargs))]
    return {
        "eager_us": round(eager * 1e6, 3), "braze_us": round(ours * 1e6, 3),
        "speed": round(eager / ours, 3), "shapes": shapes,
    }  # fmt: skip


def _late(signum: int, frame: object) -> None:
    raise TimeoutError(f"not measured within {SECONDS} s")


def in_turn(
    calls: Sequence[Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> list[float]:
    """Seconds of the processor's time that a call of each takes: the least of some blocks of some 10 ms."""

    def block(call: Callable[..., Any], count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            call(*args, **kwargs)
        return (time.process_time() - start) / count

    for call in calls:
        call(*args, **kwargs)
    counts = [max(1, min(5000, int(0.01 / max(block(call, 2), 1e-7)))) for call in calls]
    spent = [[block(call, n) for call, n in zip(calls, counts, strict=True)] for _ in range(rounds)]
    return [min(turns) for turns in zip(*spent, strict=True)]


def run_operators(
    sizes: Sequence[int],
    dtypes: Sequence[str],
    words: Sequence[str],
    rounds: int,
    limit: float,
    say: Callable[[str], None],
) -> list[Row]:
    """Each operator at each size and type; one whose process ends is measured by none after it."""
    start, rows = time.monotonic(), []
    team = Team(("braze",))
    try:
        for dtype in dtypes:
            for elements in sizes:
                for name in names(words):
                    if limit and time.monotonic() - start > limit:
                        return rows
                    row: Row = {"operator": name, "dtype": dtype, "elements": elements}
                    try:
                        found = team.child("braze").ask(
                            "operator", name=name, dtype=dtype, elements=elements, rounds=rounds
                        )
                    except Failed as failure:
                        found = {"failed": str(failure)[:300]}
                    if found:
                        rows.append(row | found)
                        say(f"{name} {dtype} {elements}: {found.get('speed', found.get('failed'))}")
    finally:
        team.stop()
    return rows


def operators_table(rows: Sequence[Row]) -> Table:
    """For each type and size: how many operators, their mean, and those that are slower than eager, worst first."""
    table = Table(title="One call without gradients, x eager in the processor's time", title_justify="left")
    for column in ("type", "elements", "operators", "geometric mean", f"under {SLOW}", "slowest (us: eager, braze)"):  # fmt: skip
        table.add_column(column)
    for dtype, elements in dict.fromkeys((r["dtype"], r["elements"]) for r in rows):
        here = [r for r in rows if (r["dtype"], r["elements"]) == (dtype, elements) and "speed" in r]
        slow = sorted((r for r in here if r["speed"] < SLOW), key=lambda r: r["speed"])
        mean = math.exp(statistics.fmean(math.log(r["speed"]) for r in here)) if here else math.nan
        worst = [
            f"{r['speed']:.2f} {r['operator']} ({r['eager_us']:.1f}, {r['braze_us']:.1f})" for r in slow[:40]
        ]
        table.add_row(dtype, f"{elements:,}", str(len(here)), f"{mean:.2f}", str(len(slow)), "\n".join(worst))
    return table
