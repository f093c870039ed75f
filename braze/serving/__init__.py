"""Serving: models under piecewise compilation and CUDA graphs, and an engine that drives them.

Six rooms, lowest first: policy, step, pieces, served, engine, server. Imports api, backends, pipeline, graph_calls,
cudagraphs, capture, aot, codegen, graph and base; nothing but the command line imports it.
Names are fetched when first used, so that the import costs nothing and imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: where each public name stands
_PLACES = {
    "AttentionCGSupport": "policy.modes",
    "AttentionMetaData": "step.context",
    "BatchDescriptor": "policy.dispatch",
    "BreakableWrapper": "pieces.breakable",
    "CUDAGraphEntry": "pieces.wrapper",
    "CUDAGraphMode": "policy.modes",
    "CUDAGraphWrapper": "pieces.wrapper",
    "CompilationConfig": "policy.config",
    "CompilationLevel": "policy.levels",
    "CompiledOnce": "pieces.once",
    "CompilerInterface": "pieces.compiler",
    "CompilerManager": "pieces.manager",
    "ConcreteSizeEntry": "pieces.piecewise",
    "Config": "policy.engine_config",
    "Context": "step.context",
    "DPMetadata": "step.context",
    "Decision": "policy.dispatch",
    "Dispatcher": "policy.dispatch",
    "Engine": "engine.engine",
    "ForwardContext": "step.context",
    "GraphPools": "pieces.pools",
    "InductorAdaptor": "pieces.compiler",
    "Limits": "engine.scheduler",
    "ModelRunner": "engine.runner",
    "NgramDrafter": "engine.drafter",
    "PaddingPolicy": "step.slots",
    "PiecewiseBackend": "pieces.piecewise",
    "PiecewiseCompileInterpreter": "pieces.piecewise",
    "RunnerOptions": "engine.runner",
    "SamplingParams": "engine.sampling",
    "Scheduler": "engine.scheduler",
    "ServedModel": "served.model",
    "ServingBackend": "pieces.backend",
    "Slot": "step.slots",
    "SpecDecodeMetadata": "step.context",
    "SplitItem": "pieces.split",
    "StaticBuffers": "step.slots",
    "VllmBackend": "pieces.backend",
    "clear_all_graphs": "pieces.wrapper",
    "compile_decoder": "engine.compiled",
    "compiled_forward": "pieces.decorator",
    "direct_register_custom_op": "pieces.custom_ops",
    "forward_context": "served.batch",
    "get_forward_context": "step.context",
    "load_model": "engine.loading",
    "mark_splitting_op": "pieces.custom_ops",
    "per_step": "step.frozen",
    "recorder_of": "engine.recordings",
    "recorded_reads": "step.context",
    "reset_forward_context": "step.context",
    "serve": "served.serve",
    "set_forward_context": "step.context",
    "split_graph": "pieces.split",
    "support_torch_compile": "pieces.decorator",
    "write_random": "engine.loading",
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        # with both named Python says which name is the nearest
        raise AttributeError(
            f"module 'braze.serving' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    value = getattr(importlib.import_module(f"braze.serving.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(_PLACES)
