"""Trace a torch-level graph to ATen operators: its nodes are run one by one, on fakes, under the mode that records them."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from braze.aot.facts import unbacked
from braze.aot.facts.ways import Ways
from braze.aot.passes import softmax_products
from braze.aot.passes.attention import ATTENTION, with_heads_as_batches, with_readable_mask
from braze.aot.passes.stacked import drops_between, layer_by_layer
from braze.aot.trace import control_flow
from braze.aot.trace.recorder import Recorder
from braze.aot.trace.structural import IN_TRAINING, STRUCTURAL, read_parts
from braze.aot.trace.unread import FAILURES, call_for_its_error, unread
from braze.graph.calls import flex
from braze.graph.calls.control_flow import OPERATORS, is_differentiable
from braze.graph.calls.transforms import TRANSFORMS
from braze.graph.fakes import kernels, torch_composites
from braze.graph.fakes.as_in_eager import as_in_eager, stand_in
from braze.graph.fakes.fakes import FakeMode, mode_of_graph, new_mode
from braze.graph.nodes.captured import Late
from braze.graph.private import torch_compat
from braze.graph.private.torch_settings import way_back
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.support import interrupts
from braze.support.errors import BrazeError, Origin, Unsupported
from braze.support.nested import every
from braze.support.record import record

#: (recorder, (node or value, fake or value) per output) -> nodes to output besides: may record more
AfterForward = Callable[[Recorder, list[tuple[Any, Any]]], list[torch.fx.Node | None]]


@record
class Traced:
    """An ATen graph, and what stands in its output: (node or value, fake or value) per user output.

    ``extras`` are nodes that a joint trace wants output besides, or None for a gradient that is zero. ``made``: names of
    size symbols that are the last outputs: views among the others are rebuilt by them.
    """

    module: torch.fx.GraphModule
    mode: FakeMode
    outputs: list[tuple[Any, Any]]
    extras: Sequence[torch.fx.Node | None]
    made: tuple[str, ...]
    ways: Ways


def trace(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    decompositions: Mapping[OpOverload, Callable[..., Any]],
    after_forward: AfterForward | None = None,
    eager_random: bool = False,
) -> Traced:
    """The ATen graph of a captured graph; its placeholders are the captured ones, in order.

    With ``after_forward`` autograd watches the trace; what that function returns is ``Traced.extras``. ``eager_random``:
    random numbers are eager's, drawn by the operators that eager calls.
    """
    mode = mode_of_graph(gm.graph, example_inputs) or new_mode()
    rules = {**STRUCTURAL, **(IN_TRAINING if after_forward is not None else {}), **decompositions}
    recorder = Recorder(mode, rules, differentiable=after_forward is not None)
    recorder.fuses_attention = after_forward is not None and not eager_random
    env: dict[torch.fx.Node, Any] = {}
    inputs = iter(example_inputs)
    watched = after_forward is not None or bool(gm.meta.get("uses_autograd"))
    level = contextlib.nullcontext() if watched else torch_compat.BelowAutograd()
    # above autograd composites are taken apart before the recorder sees them: in C++ many would fix symbolic sizes
    symbolic = watched and mode.env is not None
    python = torch_composites.python_composites() if symbolic else contextlib.nullcontext()
    ambient = _ambient_state_restored()
    with (
        interrupts.deferring,
        contextlib.closing(recorder),
        ambient,
        mode,
        torch_compat.disable_functions(),
        kernels.refusing(),
        level,
        python,
    ):
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                env[node] = recorder.input(node, next(inputs))
        recorder.symbols.find(list(recorder.graph.nodes))  # numbers and sizes of the inputs stand for them
        outputs = _flat_outputs(run_graph(gm, env, recorder), recorder.origin)
        made: list[Any] = []
        if mode.env is not None:
            given = recorder.graph.find_nodes(op="placeholder")
            made = unbacked.sizes_of_views((n.meta["val"] for n in given), outputs)
        if made and after_forward is not None:
            raise Unsupported(
                "BZ2024", "views of sizes that only the data tell leave a graph that is differentiated"
            )
        pairs = [(recorder.argument(value), value) for value in (*outputs, *made)]
        extras = after_forward(recorder, pairs) if after_forward is not None else []
    recorder.graph.output(tuple(node for node, _ in pairs))
    module = Late(recorder.graph, recorder.constants)
    return Traced(module, mode, pairs, extras, tuple(str(n.node.expr) for n in made), recorder.ways)


# -- running the captured graph ------------------------------------------------------------------


def run_graph(gm: torch.fx.GraphModule, env: dict[torch.fx.Node, Any], recorder: Recorder) -> Any:
    """What a captured graph gives, whose placeholders have their values in ``env``."""
    attentions = softmax_products.find(gm.graph, recorder.fuses_attention) if not recorder.kernels else {}
    between = {node for match in attentions.values() for node in match.between}
    nobody_reads, default = unread(gm.graph), torch.get_default_dtype()
    try:
        for node in gm.graph.nodes:
            if node in between:
                continue
            recorder.begin(node)
            interrupts.point()
            if node.op == "output":
                return _values(node.args[0], env)
            if node in attentions:
                env[node] = _attention(attentions[node], env, recorder)
            elif node.op != "placeholder":
                if node in nobody_reads:
                    call_for_its_error(node, _values(node.args, env), _values(node.kwargs, env), recorder)
                env[node] = _run(node, gm, env, recorder)
                if torch.get_default_dtype() is not default:
                    _refuse_default(node, env, recorder)
    except BaseException:
        control_flow.leave_inference(gm, env, recorder)
        raise
    return ()


def _refuse_default(node: torch.fx.Node, env: dict[Any, Any], recorder: Recorder) -> None:
    """An operation that takes its type from a default that the graph itself has set: operators of ATen's ask for that of the call."""
    given = _values(node.args, env), _values(node.kwargs, env)
    of_floats, made = (
        any(is_differentiable(t.dtype) for t in every(torch.Tensor, values)) for values in (given, env[node])
    )
    if made and not of_floats and not every(torch.dtype, given):
        raise Unsupported(
            "BZ2033",
            f"{node.target} takes its type from a default that the function has set",
            hints=["give it a dtype, or set the default outside of the compiled function"],
            origin=recorder.origin,
        )


def _attention(match: softmax_products.Match, env: dict[Any, Any], recorder: Recorder) -> Any:
    """The value of a product that ends an attention."""
    with recorder:
        return softmax_products.call(match, env, recorder.constant_masks, recorder.fuses_attention)


def _run(node: torch.fx.Node, gm: torch.fx.GraphModule, env: dict[Any, Any], recorder: Recorder) -> Any:
    """The value of one captured node."""
    try:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(gm)
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                return recorder.attribute(value)
            return value
        args, kwargs = _values(node.args, env), _values(node.kwargs, env)
        if isinstance(node.meta.get("val"), torch.SymFloat) and node.op == "call_function":
            return recorder.computed(node.target, args, node.meta["val"])
        if node.target in TRANSFORMS or node.target in flex.TARGETS:
            control_flow.refuse_choices(node, args)
        if node.target in OPERATORS:
            return control_flow.run(node, args, recorder, run_graph)
        if (
            node.target is flex.attention
            and (whole := control_flow.attention(node, args, recorder)) is not None
        ):
            return whole
        if node.target is unbacked.CHECK:
            return unbacked.check(recorder.symbols, recorder.graph, node, env)
        value = _called(node, gm, args, kwargs, recorder)
        unbacked.settle(recorder.mode.env, node.meta.get("val"), value, recorder.symbols)
        return value
    except BrazeError:
        raise
    except FAILURES as error:
        if torch_compat.is_out_of_memory(error):
            raise
        raise Unsupported(
            "BZ2007",
            f"tracing {node.target} to ATen failed",
            why=f"{type(error).__name__}: {error}",
            origin=recorder.origin,
        ) from error


def _called(
    node: torch.fx.Node, gm: torch.fx.GraphModule, args: Any, kwargs: dict[str, Any], recorder: Recorder
) -> Any:
    if node.target is getattr and args[1:] == ("data",) and type(args[0]) is FakeTensor:
        return recorder.without_version(args[0])
    # attention casts its operands itself, and no more
    recorder.casting = () if node.target in flex.TARGETS else torch_compat.casting_devices()
    args, kwargs = recorder.floats_of_c.marked(node.target, args, kwargs)
    with recorder:
        if (found := read_parts(node, args, kwargs)) is not None:
            parts, together = found
            if together is not None:
                recorder.ways.note_parts(parts, args[0], *together)
            return parts
        if node.op == "call_function":
            if node.target is ATTENTION and recorder.fuses_attention:
                args, kwargs = with_readable_mask(args, kwargs, recorder.constant_masks)
                if (turned := with_heads_as_batches(args, kwargs)) is not None:
                    made = ATTENTION(**turned).transpose(0, 1)
                    want = node.meta["val"]
                    return made if made.stride() == want.stride() else softmax_products.laid_out(made, want)
            if drops_between(node.target, args):
                return layer_by_layer(node.target, args)  # type: ignore[arg-type]
            return as_in_eager(node.target, args, stand_in(node.target)(*args, **kwargs))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return gm.get_submodule(str(node.target))(*args, **kwargs)


def _values(part: Any, env: dict[Any, Any]) -> Any:
    """An FX argument with nodes replaced by their values."""
    kind = type(part)
    if kind is torch.fx.Node:
        return env[part]
    if isinstance(part, (tuple, list)):
        made = [_values(p, env) for p in part]
        return made if isinstance(part, list) else tuple(made)
    if isinstance(part, dict):
        return {key: _values(value, env) for key, value in part.items()}
    if kind is slice:
        return slice(_values(part.start, env), _values(part.stop, env), _values(part.step, env))
    return part


def _flat_outputs(result: Any, origin: Origin | None) -> list[Any]:
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    plain = (torch.Tensor, int, float, bool, complex, str, *SYMBOLIC, type(None))
    for value in values:
        if not isinstance(value, plain):
            raise Unsupported("BZ2020", f"an output of type {type(value).__name__}", origin=origin)
    return values


@contextlib.contextmanager
def _ambient_state_restored() -> Iterator[None]:
    """Put settings back, whatever the graph's nodes set."""
    set_back = way_back()
    try:
        yield
    finally:
        set_back()
