"""A small tracer, and the comparison with eager that lowering tests share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from braze.context import CompileContext
from braze.loops.ir import BufferKind, LoopProgram
from braze.loops.verify import verify
from braze.lower import lower_graph
from braze.options import Options
from braze.target import Target, cpu_target
from tests.loops.interpret import interpret


class _Tracer(TorchDispatchMode):
    """Writes every ATen call on fakes into a graph."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        super().__init__()
        self.graph = graph
        self.nodes: dict[int, torch.fx.Node] = {}
        self.keep: list[Any] = []

    def note(self, tensor: Any, node: torch.fx.Node) -> None:
        self.nodes[id(tensor)] = node
        self.keep.append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not any(isinstance(t, torch.Tensor) for t in _flat(out)):
            return out
        node = self.graph.call_function(func, *tree_map(self.node_of, (args, kwargs)))
        node.meta["val"] = out
        if isinstance(out, (tuple, list)):
            for k, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    part = self.graph.call_function(_getitem, (node, k))
                    part.meta["val"] = item
                    self.note(item, part)
        else:
            self.note(out, node)
        return out

    def node_of(self, a: Any) -> Any:
        return self.nodes[id(a)] if isinstance(a, torch.Tensor) else a


def _getitem(value: Any, key: Any) -> Any:
    return value[key]


def _flat(out: Any) -> list[Any]:
    return [x for part in out for x in _flat(part)] if isinstance(out, (tuple, list)) else [out]


def trace_graph(
    fn: Callable[..., Any], inputs: Sequence[Any], dynamic: Sequence[tuple[int, int]] = ()
) -> torch.fx.GraphModule:
    """The ATen graph of ``fn``; ``dynamic`` lists (input, dim) pairs whose size is symbolic."""
    import operator

    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    graph = torch.fx.Graph()
    tracer = _Tracer(graph)
    fakes = []
    for k, value in enumerate(inputs):
        dims = [d for i, d in dynamic if i == k]
        context = None
        if dynamic:
            context = StatelessSymbolicContext(
                dynamic_sizes=[
                    DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(value.dim())
                ]
            )
        fake = mode.from_tensor(value, symbolic_context=context) if dynamic else mode.from_tensor(value)
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = fake
        tracer.note(fake, node)
        fakes.append(fake)
    with torch.no_grad(), enable_python_dispatcher(), mode, tracer:
        out = fn(*fakes)
    graph.output(tree_map(tracer.node_of, tuple(_flat(out))))
    for node in graph.nodes:
        if node.target is _getitem:
            node.target = operator.getitem
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def lowered(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    constants: Sequence[int] = (),
    dynamic: Sequence[tuple[int, int]] = (),
    target: Target | None = None,
    **options: Any,
) -> LoopProgram:
    """The verified loop program of ``fn`` at these inputs; ``constants`` are the parameters among them."""
    gm = trace_graph(fn, inputs, dynamic)
    kinds = [BufferKind.CONSTANT if k in constants else BufferKind.INPUT for k in range(len(inputs))]
    program = lower_graph(gm, kinds, CompileContext(Options(**options), target or cpu_target(), "test"))
    verify(program)
    return program


def externs(program: LoopProgram) -> list[str]:
    """The operators that run through ATen."""
    return [step.target for step in program.steps if hasattr(step, "target")]


def check(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    allow: Sequence[str] = (),
    exact: bool = False,
    constants: Sequence[int] = (),
    dynamic: Sequence[tuple[int, int]] = (),
    at: Sequence[torch.Tensor] | None = None,
    room: float = 4,
    target: Target | None = None,
) -> LoopProgram:
    """Lower ``fn``, interpret it, and hold it against eager in values, types, shapes and strides.

    The result may be no further from the float64 result than eager is, beyond rounding. ``allow`` names the
    extern calls that are expected; ``at``: other inputs for the same (dynamic) program; ``room``: rounding steps granted.
    """
    program = lowered(fn, inputs, constants, dynamic, target)
    assert sorted(externs(program)) == sorted(allow)
    inputs = tuple(inputs if at is None else at)
    torch.manual_seed(0)
    with torch.no_grad():
        eager = _flat(fn(*inputs))
    torch.manual_seed(0)
    ours = interpret(program, inputs)
    assert len(ours) == len(eager)
    reference = eager if exact else _flat(_in_double(fn, inputs))
    for a, e, r in zip(ours, eager, reference, strict=True):
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        if e.numel():
            strides = [(x, y) for n, x, y in zip(e.shape, a.stride(), e.stride(), strict=True) if n > 1]
            assert all(x == y for x, y in strides), (a.stride(), e.stride())
        assert_close(a, e, r, exact, room)
    return program


def _in_double(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Any:
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    with torch.no_grad():
        return fn(*wide)


def assert_close(
    ours: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, exact: bool, room: float = 4
) -> None:
    if exact or not ours.is_floating_point():
        assert torch.equal(ours.isnan(), eager.isnan()) and torch.equal(
            ours.nan_to_num(0.0) if ours.is_floating_point() else ours,
            eager.nan_to_num(0.0) if eager.is_floating_point() else eager,
        ), (ours, eager)
        return
    assert torch.equal(ours.isnan(), eager.isnan()), (ours, eager)
    assert torch.equal(ours.isinf(), eager.isinf()), (ours, eager)
    finite = eager.isfinite()
    eps = torch.finfo(ours.dtype).eps
    a, e, r = (t.double()[finite] for t in (ours, eager, reference))
    error = (a - r).abs()
    bound = (e - r).abs() + room * eps * r.abs() + 4 * torch.finfo(ours.dtype).tiny
    scale = room * eps * r.abs().median() if r.numel() else torch.tensor(0.0)
    assert bool((error <= bound + scale).all()), (
        f"ours is {float((error - bound).max()):.3g} further from float64 than eager"
    )


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -2.5, 3.5, 1e-30, 1e30]


@pytest.fixture
def special() -> torch.Tensor:
    """Every special value once."""
    return torch.tensor(SPECIAL)
