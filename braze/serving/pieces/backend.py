"""A captured graph compiled for serving: its pieces compiled and recorded, at one of three borders.

``split="graph"`` cuts the graph at its splitting operators, and compiles and records each piece. ``split="schedule"`` compiles the graph
whole, and cuts what has been fused. ``split="capture"`` compiles it whole, and breaks the recording.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from braze.cudagraphs.plan import Plan
from braze.runtime.boxed import boxed
from braze.serving.pieces.breakable import BreakableWrapper
from braze.serving.pieces.compiler import BrazeAdaptor
from braze.serving.pieces.manager import CompilerManager
from braze.serving.pieces.piecewise import PiecewiseBackend, PiecewiseCompileInterpreter
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.specialise import ranges_of
from braze.serving.pieces.split import SplitItem, split_graph
from braze.serving.pieces.stitch import Bridge, Places, fresh_outputs, moving_inputs, stitched
from braze.serving.pieces.wrapper import CUDAGraphWrapper
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import get_forward_context
from braze.support.errors import UserError


class ServingBackend:
    """A backend of ``braze.compile`` for one model (what vLLM and ATOM call ``VllmBackend``).

    ``config``: a ``CompilationConfig``. ``compiler``: in place of the one that it names. ``pools``: memory that recordings share with others.
    ``capture_sizes``: what ``"cudagraph_capture_sizes"`` among its ``compile_sizes`` stands for, by default the sizes that it lists.
    ``model``: for the cache's key. ``own_outputs``: what a step that replays returns is copied out of the recordings' memory; without, it
    is valid until the next step. ``whole``: the graph is compiled in one piece, and nothing is recorded. ``background``: sizes and ranges are compiled while what serves any size serves.

    After a compile: ``items``, the pieces; ``backends``, what they were compiled to, by number; ``wrappers``, who records them.
    """

    def __init__(
        self,
        config: Any,
        *,
        compiler: Any = None,
        pools: GraphPools | None = None,
        capture_sizes: Sequence[int] | None = None,
        model: nn.Module | None = None,
        name: str = "",
        own_outputs: bool = True,
        background: bool = False,
        disable_cache: bool = False,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        self.config, self.model, self.name = config, model, name
        self.pools = pools or GraphPools(config.pool)
        self.own_outputs, self.background = own_outputs, background
        self.capture_sizes = capture_sizes
        self.manager = CompilerManager(config, compiler, disable_cache=disable_cache)
        self.records = (
            not whole
            and bool(config.use_cudagraph)
            and config.cudagraph_mode.requires_piecewise_compilation()
        )
        self.items: list[SplitItem] = []
        self.backends: dict[int, PiecewiseBackend] = {}
        self.wrappers: list[CUDAGraphWrapper] = []
        self.interpreter: PiecewiseCompileInterpreter | None = None

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a captured graph."""
        _refuse_gradients(gm)
        functions = [*gm.meta.get("functions", ()), *_forward(self.model)]
        self.manager.initialize_cache(
            model=self.model, functions=functions, inputs=_inputs(gm), name=self.name
        )
        with torch.no_grad():
            match "whole" if self.whole else self.config.split:
                case "whole":
                    call = self.manager.compile(gm, example_inputs)
                case "graph":
                    call = self._by_graph(gm)
                case "schedule":
                    call = self._by_schedule(gm, example_inputs)
                case _:
                    call = self._by_capture(gm, example_inputs)
        return self._around(gm, call)

    def explain_miss(self) -> str:
        """Why nothing was on disk for this model, by the factors of the cache's key."""
        return self.manager.explain_miss()

    def wait(self) -> None:
        """Until sizes that are compiled in the background are."""
        if self.interpreter is not None:
            self.interpreter.wait()

    # -- three borders

    def _by_graph(self, gm: GraphModule) -> Callable[..., Any]:
        """Cut the graph, compile each piece."""
        split, self.items = split_graph(gm, self.config.splitting_ops or ())
        sizes = self._sizes()
        self.interpreter = PiecewiseCompileInterpreter(
            self.items, self.manager, sizes=sizes, ranges=ranges_of(self.config.compile_ranges_endpoints)
        )
        self.backends = self.interpreter.run()
        self.interpreter.compile_sizes(background=self.background)
        self._dump(split)
        runnables = {item.submod_name: self._piece(item) for item in self.items}
        return stitched(split, runnables)

    def _piece(self, item: SplitItem) -> Callable[..., Any]:
        """What is called for a piece."""
        name = f"{self.name or 'model'}.{item.submod_name}"
        if item.is_splitting_graph:
            bridge = Bridge(item.graph.forward, fresh_outputs(item.graph) if self.records else (), name)
            self.pools.keep(bridge.places)
            return bridge
        backend = self.backends[item.graph_id]
        if not self.records:
            return backend
        wrapper = CUDAGraphWrapper(backend, CUDAGraphMode.PIECEWISE, pools=self.pools, name=name)
        self.wrappers.append(wrapper)
        return wrapper

    def _by_schedule(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the graph whole, and record the parts between what cannot be, after fusion."""
        if not isinstance(self.manager.compiler, BrazeAdaptor):
            raise UserError(
                "BZ7212",
                f'split="schedule" with the compiler {self.manager.compiler.name!r}',
                why="what has been fused can be cut by braze's own compiler alone",
                hints=['split="graph" or split="capture"'],
            )
        operators = tuple(self.config.splitting_ops or ())
        options = (
            {"cudagraphs": True, "cudagraph_launches": 1, "splitting_ops": operators} if self.records else {}
        )
        compiler = BrazeAdaptor(self._part if self.records else None, options)
        manager = CompilerManager(self.config, compiler, disable_cache=True)
        return manager.compile(gm, example_inputs)

    def _part(self, call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
        """A part of a schedule, recorded as the context says. What is no parameter of the model may lie elsewhere at each call."""
        wrapper = CUDAGraphWrapper(
            lambda *inputs: call(list(inputs)),
            CUDAGraphMode.PIECEWISE,
            pools=self.pools,
            copied=[i for i in plan.tensors if i not in plan.constants and i not in plan.fixed],
            fixed=[i for i in plan.tensors if i in plan.fixed],
            name=plan.name,
        )
        self.wrappers.append(wrapper)

        @boxed
        def part(inputs: Sequence[Any]) -> Sequence[Any]:
            return wrapper(*inputs)  # type: ignore[no-any-return]

        return part

    def _by_capture(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the graph whole, and break its recording."""
        call = self.manager.compile(gm, example_inputs)
        if not self.records:
            return call
        wrapper = BreakableWrapper(
            call,
            CUDAGraphMode.PIECEWISE,
            self.config.splitting_ops or (),
            pools=self.pools,
            name=self.name or "model",
        )
        self.wrappers.append(wrapper)
        return wrapper

    # -- around all of it

    def _around(self, gm: GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with its inputs copied where the configuration says so, and its outputs where they would not last."""
        if not self.records:
            return call
        places, moving = Places(self.name or "model"), []
        if self.config.cudagraph_copy_inputs:
            moving = moving_inputs(gm)
            self.pools.keep(places)
        fresh = fresh_outputs(gm) if self.own_outputs else []
        if not moving and not fresh:
            return call

        def around(*inputs: Any) -> Any:
            if moving:
                inputs = tuple(places.moved(inputs, moving))
            outputs = call(*inputs)
            if not fresh or get_forward_context().cudagraph_runtime_mode is not CUDAGraphMode.PIECEWISE:
                return outputs
            kept = list(outputs)
            for i in fresh:
                kept[i] = kept[i].clone()
            return kept

        return around

    def _sizes(self) -> tuple[int, ...]:
        """The single sizes that pieces are compiled for."""
        found: list[int] = []
        for size in self.config.compile_sizes or ():
            if isinstance(size, int):
                found.append(size)
                continue
            listed = self.capture_sizes
            if listed is None and isinstance(self.config.cudagraph_capture_sizes, tuple):
                listed = self.config.cudagraph_capture_sizes
            if listed is None:
                raise UserError(
                    "BZ7213",
                    "compile_sizes names 'cudagraph_capture_sizes', and these are not known yet",
                    hints=["list cudagraph_capture_sizes, or pass capture_sizes= to the backend"],
                )
            found += listed
        return tuple(sorted({n for n in found if n >= 2}))

    def _dump(self, split: GraphModule) -> None:
        """Leave the split graph and its pieces as text where the configuration says."""
        folder = self.config.dump_folder(_rank())
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        texts = [split.print_readable(print_output=False)]
        for item in self.items:
            kind = "runs as it is" if item.is_splitting_graph else "compiled"
            texts.append(f"# {item.submod_name}: {kind}\n{item.graph.print_readable(print_output=False)}")
        name = f"{self.name}_computation_graph.py" if self.name else "computation_graph.py"
        (folder / name).write_text("\n\n".join(texts))


#: the name that ATOM and vLLM have for it
VllmBackend = ServingBackend


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _inputs(gm: GraphModule) -> list[Any]:
    return [
        f"{n.name} {getattr(n.meta.get('val'), 'dtype', '')}" for n in gm.graph.find_nodes(op="placeholder")
    ]


def _forward(model: nn.Module | None) -> list[Any]:
    """The function that was captured, where the model tells."""
    return [inspect.unwrap(type(model).forward)] if model is not None else []


def _refuse_gradients(gm: GraphModule) -> None:
    """Pieces are compiled for inference."""
    if torch.is_grad_enabled() and any(
        isinstance(v := n.meta.get("val"), torch.Tensor) and v.requires_grad for n in gm.graph.nodes
    ):
        raise UserError(
            "BZ7214",
            "a model is compiled for serving where gradients are recorded",
            why="pieces and their recordings compute no gradients",
            hints=["call it under torch.inference_mode() or torch.no_grad()"],
        )
