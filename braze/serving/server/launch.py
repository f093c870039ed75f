"""From a model's folder to a server that listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import uvicorn

from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.engine.compiled import compile_decoder
from braze.serving.engine.engine import Engine
from braze.serving.engine.loading import load_model, model_folder
from braze.serving.engine.recordings import recorder_of
from braze.serving.engine.runner import ModelRunner, RunnerOptions
from braze.serving.engine.scheduler import Limits
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.server.app import ServerOptions, make_app
from braze.serving.server.tokens import tokens_of
from braze.support.record import record


@record
class LaunchOptions:
    """What ``braze serve`` is told. ``blocks``: of the cache; 0: as many as memory holds. ``device`` and ``dtype``: empty for the
    GPU where there is one, and the type of the weights."""

    device: str = ""
    dtype: str = ""
    max_model_len: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    blocks: int = 0
    memory_share: float = 0.9
    mode: str = "FULL_AND_PIECEWISE"
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    drafts: int = 0
    enforce_eager: bool = False
    #: steps begin before the tokens of the ones before them are known; None: on a GPU
    overlap: bool | None = None
    #: requests that begin alike share blocks of the cache
    share_prefixes: bool = True
    #: record on a device that is simulated on the processor: slow, to see what a GPU would do
    simulated: bool = False
    #: run the model as it is, not compiled
    plain: bool = False


def make_engine(folder: Path, options: LaunchOptions, progress: bool = False) -> Engine:
    """An engine whose model is loaded, whose cache is there, and whose steps are recorded."""
    device = torch.device(options.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    dtype = getattr(torch, options.dtype) if options.dtype else None
    model = load_model(folder, device, dtype, drafting=options.drafts > 0)
    longest = model.config.max_position
    limits = Limits(
        options.max_num_seqs,
        options.max_num_batched_tokens,
        min(options.max_model_len or longest, longest),
        options.block_size,
        share_prefixes=options.share_prefixes,
    )
    simulated = options.simulated and device.type == "cpu"
    recorder = SimulatedGraphs(str(device)) if simulated else recorder_of(model)
    mode = CUDAGraphMode[options.mode] if recorder is not None else CUDAGraphMode.NONE
    pieces = None if options.plain else compile_decoder(model, mode)
    if options.plain:
        mode = mode.without_piecewise()
    runner = ModelRunner(
        model,
        limits,
        RunnerOptions(
            mode, options.sizes, options.drafts, options.enforce_eager, options.memory_share, options.overlap
        ),
        graphs=recorder,
        piecewise=pieces,
        compiled=pieces,
    )
    runner.allocate_cache(options.blocks or None)
    runner.warm_up()
    runner.capture_cudagraph(progress)
    return Engine(runner)


def run_server(
    model: str, options: LaunchOptions, server: ServerOptions, host: str, port: int, **uvicorn_options: Any
) -> None:
    """Load a model of a path or a name, record, and serve until a signal; requests that are being served may end before that."""
    folder = model_folder(model)
    engine = make_engine(folder, options, progress=True)
    app = make_app(engine, tokens_of(folder, engine.runner.model.config.vocab), server)
    uvicorn.run(
        app, host=host, port=port, timeout_graceful_shutdown=int(server.shutdown_seconds), **uvicorn_options
    )
