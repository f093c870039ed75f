"""A captured graph compiled for serving: its pieces compiled and recorded, at one of three borders.

``split="graph"`` cuts the graph at its splitting operators, and compiles and records each piece. ``split="schedule"`` compiles the graph
whole, and cuts what has been fused. ``split="capture"`` compiles it whole, and breaks the recording.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from braze.capture.archive.archived_values import NotArchived
from braze.cudagraphs.plan import Plan
from braze.runtime.call.boxed import boxed
from braze.runtime.libraries.cache import CacheKey, key
from braze.serving.pieces.breakable import BreakableWrapper
from braze.serving.pieces.cache_key import key_of
from braze.serving.pieces.compiler import BrazeAdaptor
from braze.serving.pieces.custom_ops import marks, tell_of_unknown
from braze.serving.pieces.handles import forward_by
from braze.serving.pieces.kept import DAMAGE, Part, Pieces, inputs_of, read_pieces, write_pieces
from braze.serving.pieces.manager import CompilerManager
from braze.serving.pieces.piecewise import PiecewiseBackend, PiecewiseCompileInterpreter
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.specialise import ranges_of
from braze.serving.pieces.split import SplitItem, split_graph
from braze.serving.pieces.stitch import Bridge, Places, fresh_outputs, moving_inputs, stitched
from braze.serving.pieces.wrapper import CUDAGraphWrapper
from braze.serving.policy.config import configuration
from braze.serving.policy.engine_config import Config
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import get_forward_context
from braze.support import trace
from braze.support.errors import BrazeError, UserError
from braze.support.log import logger

log = logger("cache")


class ServingBackend:
    """A backend of ``braze.compile`` for one model (what vLLM and ATOM call ``VllmBackend``).

    ``config``: a ``CompilationConfig``, or an engine's ``Config``. ``compiler``: in place of the one that it names. ``pools``: memory that recordings share with others.
    ``capture_sizes``: what ``"cudagraph_capture_sizes"`` among its ``compile_sizes`` stands for, by default the sizes that it lists.
    ``model``: for the cache's key. ``own_outputs``: what a step that replays returns is copied out of the recordings' memory; without, it
    is valid until the next step. ``whole``: the graph is compiled in one piece, and nothing is recorded. ``background``: sizes and ranges are compiled while what serves any size serves.

    ``mode``: what the rules have left of the configuration's.

    ``keeps``: a compiled model is kept on disk, so that another process neither captures nor lowers it (``keep_captures`` keeps the rest of its capture).

    After a compile: ``items``, the pieces; ``backends``, what they were compiled to, by number; ``wrappers``, who records them. Of pieces from disk there are
    ``wrappers`` alone.
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
        keeps: bool = False,
        mode: CUDAGraphMode | None = None,
    ) -> None:
        self.whole, self.keeps = whole, keeps
        if capture_sizes is None and isinstance(config, Config):
            capture_sizes = config.recorded_tokens()
        config = configuration(config)
        self.config, self.model, self.name = config, model, name
        self.pools = pools or GraphPools(config.pool)
        self.own_outputs, self.background = own_outputs, background
        self.capture_sizes = capture_sizes
        self.manager = CompilerManager(config, compiler, disable_cache=disable_cache)
        mode = config.cudagraph_mode if mode is None else mode
        self.records = not whole and mode.requires_piecewise_compilation()
        self.items: list[SplitItem] = []
        self.backends: dict[int, PiecewiseBackend] = {}
        self.wrappers: list[CUDAGraphWrapper] = []
        self.interpreter: PiecewiseCompileInterpreter | None = None
        #: what was compiled last, and by whom, until it is kept
        self._made: tuple[Pieces, list[str], CompilerManager] | None = None

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a captured graph."""
        _refuse_gradients(gm)
        self._settle(gm.meta.get("functions", ()), _inputs(gm))
        if self.config.sources["splitting_ops"].by_user and not self.whole:
            tell_of_unknown(self.config.splitting_ops or ())
        with torch.no_grad(), trace.dumping_to(self.config.dump_folder(_rank())):
            return self._whole(gm) if self._in_one() else self._by_graph(gm)

    def _in_one(self) -> bool:
        """Whether the graph is compiled in one piece."""
        return self.whole or self.config.split != "graph"

    def _cut_late(self) -> bool:
        """Whether what has been fused is cut."""
        return not self.whole and self.config.split == "schedule"

    def explain_miss(self) -> str:
        """Why nothing was on disk for this model, by the factors of the cache's key."""
        return self.manager.explain_miss()

    def wait(self) -> None:
        """Until sizes that are compiled in the background are."""
        if self.interpreter is not None:
            self.interpreter.wait()

    # -- on disk

    def keep_call(self, capture: str) -> None:
        """Keep what was compiled last on disk, under the digest of its capture; nothing where another process could not use it."""
        made, self._made = self._made, None
        if made is None or not self._may_keep():
            return
        pieces, inputs, manager = made
        try:
            data = write_pieces(pieces, manager, inputs)
        except NotArchived as why:
            trace.count("calls_not_kept")
            log.info("the pieces of %s are not kept: %s", self.name or "a model", why)
            return
        self.manager.cache.put(self._place(capture), data, "json")

    def kept_call(self, capture: str, functions: Sequence[Any]) -> Callable[..., Any] | None:
        """What was kept for the capture of this digest, in which ``functions`` were traced; None where that is nothing that can be used here."""
        if not self._may_keep():
            return None
        self._settle(functions, ())
        recorded = len(self.wrappers)
        data = self.manager.cache.get(self._place(capture), "json")
        if data is None:
            return None
        try:
            pieces = read_pieces(data, self._compiles())
            runs = {part.name: forward_by(part.graph) for part in pieces.parts if part.graph is not None}
            call = self._assembled(pieces, runs)
        except (*DAMAGE, BrazeError) as why:
            log.info("the kept pieces of %s are not used: %s", self.name or "a model", why)
            del self.wrappers[recorded:]
            return None
        self._settle(functions, inputs_of(data))
        trace.count("calls_loaded")
        return call

    def _may_keep(self) -> bool:
        """Whether pieces may be kept, or used: not those that are compiled beside serving, nor where somebody wants to see how they are made."""
        apart = self.background or self.manager.disabled
        seen = trace.dumping() or self.config.dump_folder(_rank()) is not None
        return self.keeps and not apart and not seen

    def _settle(self, functions: Sequence[Any], inputs: Sequence[str]) -> None:
        """Settle the cache's key."""
        self.manager.initialize_cache(
            model=self.model,
            functions=[*functions, *_forward(self.model)],
            inputs=inputs,
            name=self.name,
        )

    def _place(self, capture: str) -> CacheKey:
        """Where pieces are kept: by their capture, which says of the inputs what the key does not, and by all that they depend on beside it."""
        factors = {name: value for name, value in self.manager.factors.items() if name != "model.inputs"}
        borders = tuple(self.config.splitting_ops or ()), marks()
        sizes = self._sizes(), self.config.compile_ranges_endpoints
        return key(
            "calls",
            capture=capture,
            factors=key_of(factors).digest,
            borders=borders,
            sizes=sizes,
            whole=self.whole,
            recorded=self._cut_late() and self.records,
        )

    # -- three borders

    def _by_graph(self, gm: GraphModule) -> Callable[..., Any]:
        """Cut the graph, compile each piece."""
        split, self.items = split_graph(gm, self.config.splitting_ops or ())
        self._compile(self.manager)
        self._dump(split)
        parts = [
            Part(
                item.submod_name,
                item.graph_id,
                item.graph.graph if item.is_splitting_graph else None,
                self.backends.get(item.graph_id),
                tuple(fresh_outputs(item.graph)) if item.is_splitting_graph else (),
            )
            for item in self.items
        ]
        pieces = Pieces(split.graph, tuple(parts), tuple(moving_inputs(gm)), tuple(fresh_outputs(gm)))
        self._made = (pieces, _inputs(gm), self.manager) if self._may_keep() else None
        runs = {item.submod_name: item.graph.forward for item in self.items if item.is_splitting_graph}
        return self._assembled(pieces, runs, split)

    def _compile(self, manager: CompilerManager) -> None:
        """Compile the pieces, for any size and for those that are named."""
        self.interpreter = PiecewiseCompileInterpreter(
            self.items,
            manager,
            sizes=self._sizes(),
            ranges=ranges_of(self.config.compile_ranges_endpoints),
        )
        self.backends = self.interpreter.run()
        self.interpreter.compile_sizes(background=self.background)

    def _assembled(
        self, pieces: Pieces, runs: Mapping[str, Callable[..., Any]], owner: Any = None
    ) -> Callable[..., Any]:
        """The pieces in their order. ``runs``: what runs the splitting ones; ``owner``: holds the split graph's attributes."""
        if self._in_one():
            return self._around(self._one(pieces.parts[0], pieces.moving), pieces.moving, pieces.fresh)
        steady = _steady(pieces)
        runnables = {
            part.name: self._piece(part, runs.get(part.name), steady[part.name]) for part in pieces.parts
        }
        return self._around(stitched(pieces.graph, runnables, owner), pieces.moving, pieces.fresh)

    def _piece(self, part: Part, run: Callable[..., Any] | None, steady: Sequence[int]) -> Callable[..., Any]:
        """What is called for a piece; ``steady``: which of its inputs are none of the model's tensors."""
        name = f"{self.name or 'model'}.{part.name}"
        if part.sized is None:
            assert run is not None
            bridge = Bridge(run, part.fresh if self.records else (), name)
            self.pools.keep(bridge.places)
            return bridge
        if not self.records:
            return part.sized
        wrapper = CUDAGraphWrapper(
            part.sized, CUDAGraphMode.PIECEWISE, pools=self.pools, steady=steady, name=name
        )
        self.wrappers.append(wrapper)
        return wrapper

    def _compiles(self) -> CompilerManager:
        """Who compiles a graph, or loads it. Of one that is cut after fusion a manager of its own: its parts are recorded for that graph alone."""
        if not self._cut_late():
            return self.manager
        if not isinstance(self.manager.compiler, BrazeAdaptor):
            raise UserError(
                "BZ7212",
                f'split="schedule" with the compiler {self.manager.compiler.name!r}',
                why="what has been fused can be cut by braze's own compiler alone",
                hints=['split="graph" or split="capture"'],
            )
        operators = (*(self.config.splitting_ops or ()), *marks())
        options = (
            {"cudagraphs": True, "cudagraph_launches": 1, "splitting_ops": operators} if self.records else {}
        )
        compiler = BrazeAdaptor(self._part if self.records else None, options)
        return CompilerManager(self.config, compiler, disable_cache=True)

    def _part(self, call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
        """A part of a schedule, recorded as the context says. What is no parameter of the model may lie elsewhere at each call."""
        wrapper = CUDAGraphWrapper(
            lambda *inputs: call(list(inputs)),
            CUDAGraphMode.PIECEWISE,
            pools=self.pools,
            copied=[i for i in plan.tensors if i not in plan.constants and i not in plan.fixed],
            fixed=[i for i in plan.tensors if i in plan.fixed],
            steady=(),
            name=plan.name,
        )
        self.wrappers.append(wrapper)

        @boxed
        def part(inputs: Sequence[Any]) -> Sequence[Any]:
            return wrapper(*inputs)  # type: ignore[no-any-return]

        return part

    def _whole(self, gm: GraphModule) -> Callable[..., Any]:
        """Compile the graph whole; where something is recorded, that is cut after fusion, or the recording is broken."""
        manager = self._compiles()
        self.items = [SplitItem("whole", 0, False, gm)]
        self._compile(manager)
        self._dump(gm)
        sized = self.backends[0]
        moving, fresh = tuple(moving_inputs(gm)), tuple(fresh_outputs(gm))
        pieces = Pieces(Graph(), (Part("whole", 0, None, sized, ()),), moving, fresh)
        self._made = (pieces, _inputs(gm), manager) if self._may_keep() else None
        return self._assembled(pieces, {})

    def _one(self, part: Part, moving: Sequence[int]) -> Callable[..., Any]:
        """What is called for the one piece that there is; ``moving``: which of its inputs are none of the model's tensors."""
        if part.sized is None:
            raise ValueError("the whole is no compiled piece")
        alone = part.sized.where is None
        call = part.sized.compiled_graph_for_general_shape if alone else part.sized
        if not self.records or self._cut_late():
            return call
        wrapper = BreakableWrapper(
            call,
            CUDAGraphMode.PIECEWISE,
            self.config.splitting_ops or (),
            pools=self.pools,
            steady=moving,
            name=self.name or "model",
        )
        self.wrappers.append(wrapper)
        return wrapper

    # -- around all of it

    def _around(
        self, call: Callable[..., Any], moving: Sequence[int], fresh: Sequence[int]
    ) -> Callable[..., Any]:
        """The call with its inputs copied where the configuration says so, and its outputs where they would not last."""
        if not self.records:
            return call
        places = Places(self.name or "model")
        if self.config.cudagraph_copy_inputs:
            self.pools.keep(places)
        moving = moving if self.config.cudagraph_copy_inputs else ()
        fresh = fresh if self.own_outputs else ()
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
        """Leave the graph and its pieces as text where the configuration says, beside what the stages leave of each."""
        folder = self.config.dump_folder(_rank())
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        texts = [split.print_readable(print_output=False)]
        for item in self.items if not self._in_one() else ():
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


def _steady(pieces: Pieces) -> dict[str, list[int]]:
    """Of each piece the inputs that lie where they lay at each step: what the caller stages, and what other pieces leave."""
    given = pieces.graph.find_nodes(op="placeholder")
    owned = {node for i, node in enumerate(given) if i not in pieces.moving}
    return {
        str(node.target): [i for i, x in enumerate(node.args) if x not in owned]
        for node in pieces.graph.nodes
        if node.op == "call_module"
    }


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
