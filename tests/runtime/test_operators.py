"""Operators that are called by their bindings in ``torch`` do what ``torch.ops`` does, with the schema's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze.runtime.operators import operators
from braze.runtime.operators.purity import named
from tests.end_to_end import ops

X, PLACES = torch.randn(3, 8), torch.tensor([0, 2])
IMAGE = torch.rand(1, 2, 6, 6)
HEADS = torch.rand(1, 2, 6, 8)
POOL = ([2, 2], [2, 2], [0, 0])
#: operator -> arguments as generated code gives them
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "_addmm_activation": (X[0], X[:, :4] - 0.5, torch.randn(4, 8)),
    "bincount": (PLACES, None, 5),
    "detach": (X,),
    "cummax": (X, 1),
    "cummin": (X, 1),
    "cumprod": (X, 1),
    "cumsum": (X, 1),
    "dot": (X[0], X[1]),
    "grid_sampler_2d": (IMAGE, torch.rand(1, 3, 3, 2), 0, 0, False),
    "histc": (X, 4, -1.0, 1.0),
    "kthvalue": (X, 2, 1, True),
    "logcumsumexp": (X, 1),
    "mode": (X, 1, False),
    "mv": (X, X[0]),
    "nonzero": (X,),
    "sort": (X, 1, True),
    "topk": (X, 2, 1, True, True),
    "_embedding_bag": (X, PLACES, torch.tensor([0]), False, 0, False, None, False, -1),
    "median": (X, 1, True),
    "randint": (-9, 9, [30]),
    "scaled_dot_product_attention": (HEADS, HEADS[:, :1], HEADS[:, :1], None, 0.0, True),
    "bucketize": (X, X[0].sort()[0]),
    "searchsorted": (X[0].sort()[0], X),
    "avg_pool2d": (IMAGE, *POOL, False, True, None),
    "im2col": (IMAGE, [3, 3], [1, 1], [1, 1], [1, 1]),
    "max_pool2d_with_indices": (IMAGE, *POOL, [1, 1], False),
    "index_add_": (X, 0, PLACES, X[:2] * 2),
    "scatter_add_": (X, 0, PLACES.expand(8, 2).t(), X[:2] * 2),
    **{f"{kind}_pad1d": (IMAGE[0], (1, 2)) for kind in ("reflection", "replication")},
    **{f"{kind}_pad2d": (IMAGE, (1, 2, 0, 1)) for kind in ("reflection", "replication")},
    **{f"{kind}_pad3d": (IMAGE[None], (1, 2, 0, 1, 1, 0)) for kind in ("reflection", "replication")},
}
#: and what it gives by name
NAMED: dict[str, dict[str, Any]] = {
    "_addmm_activation": {"use_gelu": True},
    "scaled_dot_product_attention": {"scale": 0.5, "enable_gqa": True},
    "sort": {"stable": True, "dim": 1, "descending": True},
}
BOUND = sorted(operators._bindings())
#: what comes to an operator, where PyTorch's table has it by another name
REACHED_BY = {
    "_adaptive_avg_pool2d.default": "nn.functional.adaptive_avg_pool1d",
    "_conj.default": "fft.hfft",
    "_conj_physical.default": "fft.ihfft2",
    "_fft_c2c.default": "fft.fft2",
    "_fft_c2r.default": "fft.hfft",
    "_fft_r2c.default": "stft",
    "_linalg_check_errors.default": "linalg.cholesky",
    "_trilinear.default": "nn.functional.bilinear",
    "_upsample_nearest_exact1d.default": "nn.functional.interpolate.nearest-exact",
    "adaptive_max_pool2d.default": "nn.functional.adaptive_max_pool1d",
    "avg_pool2d.default": "nn.functional.avg_pool1d",
    "cat.default": "gradient",
    "clone.default": "cartesian_prod",
    "constant_pad_nd.default": "nn.functional.local_response_norm",
    "div.Tensor": "corrcoef",
    "gather.default": "quantile",
    "im2col.default": "nn.functional.unfold",
    "linalg_pinv.atol_rtol_tensor": "pinverse",
    "linalg_vector_norm.default": "nn.functional.normalize",
    "max_pool2d_with_indices.default": "nn.functional.max_pool1d",
    "max_unpool2d.default": "nn.functional.max_unpool1d",
    "neg.default": "nn.functional.softmin",
    "pow.Tensor_Scalar": "nn.functional.rms_norm",
    "reciprocal.default": "__rdiv__",
    "reflection_pad1d.default": "stft",
    "replication_pad1d.default": "nn.functional.pad.replicate",
    "replication_pad2d.default": "nn.functional.pad.replicate_negative",
    "sort.default": "quantile",
    "sqrt.default": "corrcoef",
    "where.self": "nn.functional.scaled_dot_product_attention",
}


def results(function: Any, target: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    _, name, overload = target.split(".")
    arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in ARGUMENTS[name]]
    kwargs = {} if (name, overload) == ("sort", "default") else NAMED.get(name, {})
    if overload == "out":
        kwargs = {**kwargs, "out": torch.empty_like(named(f"aten.{name}.default")(*arguments, **kwargs))}
    found = function(*(arguments[:1] if overload == "stable" else arguments), **kwargs)
    return tuple(found) if isinstance(found, tuple) else (found,)


class Seen(TorchDispatchMode):
    """The operators that are called; ``check(operator, arguments, keywords)`` is asked of each."""

    def __init__(self, check: Any = None) -> None:
        super().__init__()
        self.check, self.calls = check, []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        if self.check is not None:
            self.check(func, args, kwargs or {})
        return func(*args, **kwargs or {})


def by_name(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """All of an operator's arguments in its schema's order."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    return [given.get(a.name, a.default_value) for a in func._schema.arguments]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or (not isinstance(a, torch.Tensor) and type(a) is type(b) and a == b)


def candidates(name: str, overload: str) -> list[str]:
    """Operators of PyTorch's table that may come to one."""
    if known := REACHED_BY.get(f"{name}.{overload}"):
        return [known]
    return [op for op in ops.OPS if op.split(".")[-1] in name or name in op.replace(".", "_")]


BY_HAND = [t for t in BOUND if t.split(".")[1] in ARGUMENTS and t != "aten.median.default"]


@pytest.mark.parametrize("target", [t for t in BOUND if t not in BY_HAND])
@pytest.mark.filterwarnings("ignore")
def test_a_binding_comes_to_the_overload_it_stands_for_with_the_same_arguments(target: str) -> None:
    _, name, overload = target.split(".")
    function, asked = operators.operator(target), []

    def check(func: Any, args: Any, kwargs: Any) -> None:
        if func is named(target):
            with Seen() as inner:
                function(*args, **kwargs)
            asked.append((inner.calls, (func, args, kwargs)))

    for op in candidates(name, overload):
        for args, kwargs in ops.calls(ops.OPS[op], ops.dtypes(ops.OPS[op], (torch.float32,))[0], 3):
            with torch.no_grad(), Seen(check):
                ops.OPS[op].op(*args, **kwargs)
        if asked:
            break
    assert asked
    for calls, (func, args, kwargs) in asked:
        assert [call[0] for call in calls] == [func]
        assert same(by_name(*calls[0]), by_name(func, args, kwargs))


@pytest.mark.parametrize("target", BY_HAND)
def test_a_binding_gives_what_the_operator_gives(target: str) -> None:
    function = operators.operator(target)
    assert not isinstance(function, torch._ops.OpOverload)
    got, want = results(function, target), results(named(target), target)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, check_stride=True)


def test_all_bindings_are_there() -> None:
    tables = ("_BOUND", "_LAYERS", "_LINALG", "_SPECIAL", "_METHODS")
    rows = [getattr(operators, table) for table in tables]
    assert len(BOUND) == sum(len(names.split()) for row in rows for names in row.values())


class Somewhere:
    """What a tensor tells of its device."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda = is_cuda


def test_an_operator_of_ours_goes_past_the_dispatcher_on_a_gpu_unless_a_mode_watches() -> None:
    call = operators._straight(
        lambda *args, **words: ("kernels", words), lambda *args, **words: ("op", words)
    )
    assert call(Somewhere(True), 1, out=2) == ("kernels", {"out": 2})
    assert call(Somewhere(False), 1, out=2) == ("op", {"out": 2})
    with Seen():
        assert call(Somewhere(True), 1, out=2) == ("op", {"out": 2})


def test_what_an_operator_of_ours_runs_for_tensors_laid_out_alike_is_worked_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def worked_out(*args: Any, **words: Any) -> Any:
        asked.append(args)
        return lambda *args, **words: ("kernels", args[1:], words)

    monkeypatch.setattr(operators, "_kernels", {"aten.mul.out": (lambda *args, **words: None, worked_out)})
    call = operators.operator_once("aten.mul.out")
    first = Somewhere(True)
    assert call(first, 1, out=2) == call(Somewhere(True), 1, out=2) == ("kernels", (1,), {"out": 2})
    assert asked == [(first, 1)]
    x, out = torch.ones(2), torch.empty(2)
    assert call(x, x, out=out) is out, "by the dispatcher, off a GPU"


def test_lapacks_word_on_one_matrix_is_read_and_aten_tells_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = operators.operator("aten._linalg_check_errors.default")
    for info, one in (
        (torch.tensor(2, dtype=torch.int32), True),
        (torch.tensor([0, 3], dtype=torch.int32), False),
    ):
        told = []
        for run in (check, torch.ops.aten._linalg_check_errors.default):
            with pytest.raises(torch.linalg.LinAlgError) as caught:
                run(info, "linalg.inv", is_matrix=one)
            told.append(str(caught.value))
        assert told[0] == told[1]
    check(torch.zeros(2, dtype=torch.int32), "linalg.inv", is_matrix=False)
    monkeypatch.setattr(torch, "_linalg_check_errors", None)  # it would be called
    check(torch.zeros((), dtype=torch.int32), "linalg.inv", is_matrix=True)


@pytest.mark.parametrize("of", [torch.linalg.inv, torch.linalg.cholesky, lambda x: torch.linalg.solve(x, x)])
def test_singular_matrices_are_refused_as_in_eager(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = braze.compile(of)
    for x in (torch.eye(3), torch.stack((torch.eye(3), torch.eye(3) * 2))):
        assert torch.equal(compiled(x), of(x))
        x = x - x
        told = []
        for run in (compiled, of):
            with pytest.raises(torch.linalg.LinAlgError) as caught:
                run(x)
            told.append(str(caught.value))
        assert told[0] == told[1]
