"""PyTorch's table of operators (OpInfo), each compiled and compared with eager in all that a caller can see.

A *case* is one way to call an operator (function, in place, ``out=``) with one dtype and some samples. The samples are
called in one graph, so that a case costs one capture and at most one build.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

import braze
from braze.support import trace
from tests.seeds import seed

#: an operator by its name in the tables of known failures: ``nn.functional.pad.reflect``
OPS: dict[str, OpInfo] = {}
for _op in op_db:
    _name = f"{_op.name}.{_op.variant_test_name}" if _op.variant_test_name else _op.name
    OPS.setdefault(_name, _op)

#: what has no meaning here, and why
SKIPPED = {
    "jiterator": "compiles CUDA code",
    "torch.ops.aten._flash_attention_forward": "runs on GPUs alone",
    "torch.ops.aten._efficient_attention_forward": "runs on GPUs alone",
    "torch._scaled_mm": "float8, whose kernels are for GPUs",
    "nn.functional.batch_norm.without_cudnn": "runs on GPUs alone",
}

#: operators of which not even eager's values are the same twice, or that return memory as they found it
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"}  # fmt: skip

Call = tuple[tuple[Any, ...], dict[str, Any]]
#: an operator's name, the way to call it, a dtype
Case = tuple[str, str, torch.dtype]
Sample = TypeVar("Sample", SampleInput, ErrorInput)


def names() -> list[str]:
    """The operators that make sense on a CPU in inference."""
    return [name for name in OPS if not any(name.startswith(skipped) for skipped in SKIPPED)]


def dtypes(op: OpInfo, wanted: Sequence[torch.dtype]) -> list[torch.dtype]:
    """Those of ``wanted`` that the operator takes; one that it takes if it takes none of them."""
    supported = op.supported_dtypes("cpu")
    found = [dtype for dtype in wanted if dtype in supported]
    order = (torch.float32, torch.int64, torch.float64, torch.complex64, torch.bool, torch.uint8)
    return found or [dtype for dtype in order if dtype in supported][:1]


def variants(op: OpInfo) -> dict[str, Callable[..., Any]]:
    """The ways to call an operator."""
    found: dict[str, Callable[..., Any]] = {"function": op.op}
    if op.inplace_variant is not None:
        found["inplace"] = op.inplace_variant
    return found


def calls(op: OpInfo, dtype: torch.dtype, most: int, variant: str = "function") -> list[Call]:
    """At most ``most`` calls that eager can make, evenly from all samples: arguments and keywords."""
    samples = [s for s in samples_of(op, dtype, 30 * most) if fits(s, variant)]  # a few have thousands
    step = max(1, -(-len(samples) // most))
    chosen = [samples[i] for i in range(0, len(samples), step)]
    return [((s.input, *s.args), dict(s.kwargs)) for s in chosen]


def samples_of(op: OpInfo, dtype: torch.dtype, most: int, requires_grad: bool = False) -> list[SampleInput]:
    """The operator's first samples on the CPU, each drawn from the seed that PyTorch's tests take.

    ``OpInfo.sample_inputs`` gives the same, and looks through the source of every frame of the stack for a test case.
    """
    return drawn(lambda: op.sample_inputs_func(op, "cpu", dtype, requires_grad), most)


def bad_samples_of(op: OpInfo, most: int) -> list[ErrorInput]:
    """The operator's first bad samples, which ``OpInfo.error_inputs`` would look through the stack for, too."""
    return drawn(lambda: op.error_inputs_func(op, "cpu"), most)


def drawn(make: Callable[[], Iterable[Sample]], most: int) -> list[Sample]:
    """At most so many of a table's samples, each drawn from the table's own seed."""
    found: list[Sample] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed()
        made = iter(make())
        while len(found) < most:
            seed(SEED)
            if (sample := next(made, None)) is None:
                break
            found.append(sample)
    return found


def fits(sample: SampleInput, variant: str) -> bool:
    """Whether a sample can be called so, and has only dense tensors."""
    if variant == "inplace" and sample.broadcasts_input:
        return False
    return all(t.layout is torch.strided for t in leaves((sample.input, sample.args, sample.kwargs)))


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of nested containers, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in leaves(item)]
    return []


def program(fn: Callable[..., Any]) -> Callable[[Sequence[Call]], list[Any]]:
    """One function that makes all calls."""

    def run(calls: Sequence[Call]) -> list[Any]:
        return [fn(*args, **kwargs) for args, kwargs in calls]

    return run


def attempt(fn: Callable[..., Any], calls: Sequence[Call]) -> Any:
    """What the program returns, or the exception that it raises."""
    seed()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fn(calls)
        except Exception as error:
            return error


#: (ours, eager's, the exact result or None) -> in what the first differs
Judge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], str]


def differences(
    fn: Callable[..., Any],
    calls: list[Call],
    *,
    values: bool = True,
    judge: Judge | None = None,
    **words: Any,
) -> Iterator[str]:
    """All that tells compiled from eager, over two calls of the compiled program."""
    run = program(fn)
    given = copy.deepcopy(calls)
    eager = attempt(run, given)
    exact = attempt(run, as_double(calls)) if values else None
    judge = judge or real_difference
    compiled = braze.compile(run, options={"verify": 2, "fallback_random": True}, **words)
    for time in ("first", "second"):
        mine = copy.deepcopy(calls)
        ours = attempt(compiled, mine)
        if isinstance(eager, Exception) or isinstance(ours, Exception):
            if in_words(eager) != in_words(ours):
                yield f"{time} call: {said(ours)} where eager {said(eager)}"
            return
        found = list(compare(ours, eager, exact if not isinstance(exact, Exception) else None, values, judge))
        found += [f"arguments: {d}" for d in compare(mine, given, None, values, judge)]
        found += aliasing(ours, mine, eager, given)
        if found:
            yield f"{time} call: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else "")
            return


def said(outcome: Any) -> str:
    """An outcome in a line."""
    if isinstance(outcome, Exception):
        return f"raises {type(outcome).__name__}({str(outcome).strip().splitlines()[:1]})"
    return "returns"


def in_words(outcome: Any) -> Any:
    """An exception as the user reads it."""
    return (type(outcome), str(outcome)) if isinstance(outcome, Exception) else None


def as_double(value: Any) -> Any:
    """A deep copy in double precision, also of dtypes among the arguments."""
    wider = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
    if isinstance(value, torch.Tensor):
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.to(wide, copy=True) if value.is_complex() or value.is_floating_point() else value.clone()
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else wider.get(value, value)
    if isinstance(value, dict):
        return {k: as_double(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(as_double(v) for v in value)
    return copy.deepcopy(value)


def compare(
    ours: Any, theirs: Any, exact: Any, values: bool, judge: Judge | None = None, where: str = ""
) -> Iterator[str]:
    """In what two nested results differ."""
    if isinstance(theirs, torch.Tensor):
        if type(ours) is not type(theirs):
            yield f"{where} is a {type(ours).__name__}, not a {type(theirs).__name__}"
        elif what := tensor_difference(ours, theirs, exact, values, judge or real_difference):
            yield f"{where} {what}"
    elif type(ours) is not type(theirs):
        yield f"{where} is a {type(ours).__name__}, not a {type(theirs).__name__}"
    elif isinstance(theirs, (list, tuple, dict)):
        if len(ours) != len(theirs):
            yield f"{where} has {len(ours)} items, not {len(theirs)}"
            return
        keys = list(theirs) if isinstance(theirs, dict) else range(len(theirs))
        alike = type(exact) is type(theirs) and len(exact) == len(theirs)
        for key in keys:
            yield from compare(
                ours[key], theirs[key], exact[key] if alike else None, values, judge, f"{where}[{key}]"
            )
    elif isinstance(theirs, (int, float, complex, bool, str)) and values:
        if ours != theirs and not (ours != ours and theirs != theirs):
            yield f"{where} is {ours}, not {theirs}"


def tensor_difference(
    ours: torch.Tensor, theirs: torch.Tensor, exact: Any, values: bool, judge: Judge
) -> str:
    """In what two tensors differ; nothing where they do not."""
    for fact in ("dtype", "shape", "layout", "is_conj", "is_neg"):
        a, b = getattr(ours, fact), getattr(theirs, fact)
        if callable(a):
            a, b = a(), b()
        if a != b:
            return f"{fact} is {a}, not {b}"
    if theirs.layout is not torch.strided:
        return ""
    if strides(ours) != strides(theirs):
        return f"strides are {ours.stride()}, not {theirs.stride()}, of shape {tuple(theirs.shape)}"
    if not values or theirs.numel() == 0:
        return ""
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return "" if torch.equal(ours, theirs) else f"is {short(ours)}, not {short(theirs)}"
    if theirs.dtype.itemsize == 1:
        return "" if torch.equal(ours.float(), theirs.float()) else "differs"
    return judge(ours, theirs, exact if isinstance(exact, torch.Tensor) else None)


def real_difference(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None) -> str:
    """Whether special values differ, or ours is further from the exact result than eager's is, beyond rounding."""
    room = 16 * torch.finfo(theirs.dtype).eps
    if theirs.is_complex():
        ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
        exact = torch.view_as_real(exact.resolve_conj()) if exact is not None and exact.is_complex() else None
    if exact is None or exact.shape != theirs.shape or not exact.is_floating_point():
        exact = theirs
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return f"has nan elsewhere: {short(ours)}, not {short(theirs)}"
    if not torch.equal(ours.isinf() * ours.sign(), theirs.isinf() * theirs.sign()):
        return f"has inf elsewhere: {short(ours)}, not {short(theirs)}"
    finite = theirs.isfinite() & exact.isfinite()
    if not finite.any():
        return ""
    a, b, c = ours[finite].double(), theirs[finite].double(), exact[finite].double()
    allowed = 2 * float((b - c).abs().max()) + room * float(c.abs().max().clamp_min(1e-30))
    off = float((a - c).abs().max())
    if off <= allowed:
        return ""
    return (
        f"is off by {off:.3g}, eager by {float((b - c).abs().max()):.3g}: {short(ours)}, not {short(theirs)}"
    )


def strides(t: torch.Tensor) -> tuple[int, ...]:
    """The strides that mean something: of dims with more than one element, in a tensor that has any."""
    if t.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(t.shape, t.stride()) if size > 1)


def short(t: torch.Tensor) -> str:
    """The first few values."""
    return str(t.flatten()[:6].tolist())


def aliasing(ours: Any, mine: Any, theirs: Any, given: Any) -> list[str]:
    """Where results share memory with arguments or each other in one, and not in the other."""
    a, b = sharing(leaves(ours), leaves(mine)), sharing(leaves(theirs), leaves(given))
    return [f"result {i} shares memory so: {x}, not so: {y}" for i, (x, y) in enumerate(zip(a, b)) if x != y]


def sharing(results: list[torch.Tensor], arguments: list[torch.Tensor]) -> list[Any]:
    """For each result: the first tensor that shares its memory, whether it is that tensor, and where it begins."""
    seen: list[Any] = []
    known = list(arguments)
    for t in results:
        if t.layout is not torch.strided or t.numel() == 0:
            seen.append(None)
            continue
        pointer = t.untyped_storage().data_ptr()
        same = (k for k, other in enumerate(known) if memory(other) == pointer)
        first = next(same, None)
        seen.append(first if first is None else (first, t is known[first], t.storage_offset()))
        known.append(t)
    return seen


def memory(t: torch.Tensor) -> int:
    """Where a tensor's storage begins; -1 if it has none."""
    return t.untyped_storage().data_ptr() if t.layout is torch.strided and t.numel() else -1


def check(name: str, variant: str, dtype: torch.dtype, most: int) -> list[str]:
    """What differs for one operator."""
    op = OPS[name]
    made = calls(op, dtype, most, variant)
    return check_calls(variants(op)[variant], made, values=name not in UNDEFINED)


def check_calls(fn: Callable[..., Any], made: Sequence[Call], **words: Any) -> list[str]:
    """What differs in one program of these calls, as far as eager can make them.

    Where several do not pass together: which of them fail alone.
    """
    chosen = [call for call in made if not isinstance(attempt(program(fn), copy.deepcopy([call])), Exception)]
    if not chosen:
        return []
    braze.reset()
    together = list(differences(fn, chosen, **words))
    if not together or len(chosen) == 1:
        return together
    alone = []
    for k, call in enumerate(chosen):
        braze.reset()
        alone += [f"sample {k}: {what}" for what in differences(fn, [call], **words)]
    return alone or [f"together only: {what}" for what in together]


def check_together(cases: Sequence[Case], most: int) -> list[str]:
    """What differs for several operators, whose calls make one graph: a capture and a build for them all.

    For each alone where they do not pass together, or the graph breaks or runs as captured, so that it is not one.
    """
    if len(cases) == 1:
        return check(*cases[0], most)
    functions = [variants(OPS[name])[variant] for name, variant, _ in cases]

    def chosen_of(which: int, /, *args: Any, **kwargs: Any) -> Any:
        return functions[which](*args, **kwargs)

    made: list[Call] = []
    for which, (name, variant, dtype) in enumerate(cases):
        for args, kwargs in calls(OPS[name], dtype, most, variant):
            call = (which, *args), kwargs
            if not isinstance(attempt(program(chosen_of), copy.deepcopy([call])), Exception):
                made.append(call)
    with one_graph() as is_one:
        found = list(differences(chosen_of, made))
    if not found and is_one():
        return []
    alone = [
        f"{name} {variant} {dtype}: {what}"
        for name, variant, dtype in cases
        for what in check(name, variant, dtype, most)
    ]
    return alone or [f"together only: {what}" for what in found]


@contextlib.contextmanager
def one_graph() -> Iterator[Callable[[], bool]]:
    """Whether what is compiled in the block is a graph without a break, which does not run as captured."""
    braze.reset()
    with trace.collect() as events:
        yield (
            lambda: (
                not any(
                    kind == "break" or (kind == "fallback" and str(told).startswith("the graph of"))
                    for kind, told in events
                )
            )
        )


def check_errors(name: str, most: int) -> list[str]:
    """Where compiled code does not raise what eager raises for the operator's bad samples."""
    op = OPS[name]
    found = []
    for k, error in enumerate(bad_samples_of(op, most)):
        s = error.sample_input
        if any(t.layout is not torch.strided for t in leaves((s.input, s.args, s.kwargs))):
            continue
        braze.reset()
        run = program(op.op)
        chosen = [((s.input, *s.args), dict(s.kwargs))]
        eager = attempt(run, copy.deepcopy(chosen))
        ours = attempt(
            braze.compile(run, options={"verify": 2, "fallback_random": True}), copy.deepcopy(chosen)
        )
        if in_words(eager) != in_words(ours):
            found.append(f"bad sample {k}: {said(ours)} where eager {said(eager)}")
    return found
