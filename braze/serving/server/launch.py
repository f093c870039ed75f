"""From a model's folder to a server that listens."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import torch
import uvicorn

from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.engine.compiled import compile_decoder
from braze.serving.engine.engine import Engine
from braze.serving.engine.loading import load_model, model_folder
from braze.serving.engine.models.config import DTYPES
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.ranges import Range, refuse_others, whole
from braze.serving.engine.recordings import recorder_of
from braze.serving.engine.runner import RANGES, ModelRunner, RunnerOptions
from braze.serving.engine.scheduler import LIMITS, Limits
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.config import contradiction
from braze.serving.policy.fields import number_of_bytes
from braze.serving.policy.modes import CUDAGraphMode, parse
from braze.serving.policy.sizes import DOUBLING, asked_for, refuse_unwritable
from braze.serving.server.app import ServerOptions, make_app
from braze.serving.server.tokens import tokens_of
from braze.support.errors import UserError
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
    sizes: tuple[int, ...] | str = "auto"
    drafts: int = 0
    enforce_eager: bool = False
    #: "eager": all sizes are recorded before serving; "lazy": those that steps ask for, while nothing runs
    capture: str = "eager"
    #: what all recordings may hold, in bytes or as "2GiB"; None: no limit
    memory_budget: int | str | None = None
    #: steps begin before the tokens of the ones before them are known; None: on a GPU
    overlap: bool | None = None
    #: requests that begin alike share blocks of the cache
    share_prefixes: bool = True
    #: record on a device that is simulated on the processor: slow, to see what a GPU would do
    simulated: bool = False
    #: run the model as it is, not compiled
    plain: bool = False


#: the engine's, and two that may be left open
_RANGES = {
    **{name: LIMITS[name] for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")},
    **{name: RANGES[name] for name in ("memory_share", "drafts", "capture", "sizes")},
    "max_model_len": whole(0),
    "blocks": whole(0),
    "dtype": Range((str,), lambda x: not x or x in DTYPES, f"one of {', '.join(DTYPES)}"),
}


def make_engine(folder: Path, options: LaunchOptions, progress: bool = False) -> Engine:
    """An engine whose model is loaded, whose cache is there, and whose steps are recorded."""
    refuse_others("BZ7411", "limits of an engine that mean nothing", options, _RANGES)
    mode, budget = parse(options.mode), number_of_bytes("memory_budget", options.memory_budget)
    if budget is not None and (options.enforce_eager or not mode):
        nothing = "enforce_eager" if options.enforce_eager else "cudagraph_mode=NONE"
        raise contradiction("memory_budget", nothing, "nothing is recorded: leave it out")
    if options.plain and mode and not mode.without_piecewise():
        hint = "leave one of them out, or take FULL_DECODE_ONLY"
        raise contradiction(f"cudagraph_mode={mode.name}", "a model that is not compiled", hint)
    asked_for(options.sizes, DOUBLING)  # a file that cannot be read is told of before a model is
    device, dtype = _device(options.device), DTYPES[options.dtype] if options.dtype else None
    model = load_model(folder, device, dtype, drafting=options.drafts > 0)
    runner = _runner(model, options, mode, budget)
    runner.allocate_cache(options.blocks or None)
    runner.warm_up()
    runner.capture_cudagraph(progress)
    return Engine(runner)


def _runner(model: Decoder, options: LaunchOptions, wanted: CUDAGraphMode, budget: int | None) -> ModelRunner:
    """What runs the model's steps, with its recorder and its pieces."""
    device = next(model.parameters()).device
    simulated = options.simulated and device.type == "cpu"
    recorder = SimulatedGraphs(str(device)) if simulated else recorder_of(model)
    pools = GraphPools()
    # without a recorder the runner says that nothing is recorded
    mode = wanted if recorder is not None else CUDAGraphMode.NONE
    pieces = None if options.plain else compile_decoder(model, mode, pools=pools)
    limits = Limits(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len or model.config.max_position,
        block_size=options.block_size,
        share_prefixes=options.share_prefixes,
    )
    runs = RunnerOptions(
        cudagraph_mode=wanted.without_piecewise() if options.plain else wanted,
        sizes=options.sizes,
        drafts=options.drafts,
        enforce_eager=options.enforce_eager,
        memory_share=options.memory_share,
        overlap=options.overlap,
        capture=options.capture,
        memory_budget=budget,
    )
    return ModelRunner(model, limits, runs, graphs=recorder, piecewise=pieces, compiled=pieces, pools=pools)


def run_server(
    model: str, options: LaunchOptions, server: ServerOptions, host: str, port: int, **uvicorn_options: Any
) -> None:
    """Load a model of a path or a name, record, and serve until a signal; requests that are being served may end before that."""
    if server.traffic:  # that it cannot be written is to be known before a model is loaded
        refuse_unwritable(server.traffic)
    with _address(host, port) as listening:
        folder = model_folder(model)
        engine = make_engine(folder, options, progress=True)
        app = make_app(engine, tokens_of(folder, engine.runner.model.config.vocab), server)
        seconds = int(server.shutdown_seconds)
        config = uvicorn.Config(
            app, host=host, port=port, timeout_graceful_shutdown=seconds, **uvicorn_options
        )
        print(f"braze serve: {server.name} at {_url(listening)}/v1", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _url(listening: socket.socket) -> str:
    """Where a client of this machine finds it; the port is the one that was chosen where 0 was asked for."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _device(name: str) -> torch.device:
    """The device of that name, which is there; by default the GPU where there is one."""
    if not name:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            "BZ7412",
            f"a model cannot be served on the device {name!r}",
            why=why,
            hints=("cpu, or cuda:0 where there is a GPU and PyTorch was built for it",),
        ) from error
    return device


def _address(host: str, port: int) -> socket.socket:
    """A socket that has the address: that it is taken is to be known before a model is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
        except BaseException:
            found.close()
            raise
    except (OSError, OverflowError) as error:
        raise UserError(
            "BZ7509",
            f"nothing can listen on {host}, port {port}",
            why=str(error),
            hints=("another --port, or --host",),
        ) from error
    return found
