"""``braze serve --model PATH --port 8000``: an OpenAI-compatible server of one model."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from braze.support.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``braze serve`` takes."""
    for adds in (_add_model, _add_limits, _add_recordings, _add_steps):
        adds(parser.add_argument)


def _add_model(add: Callable[..., Any]) -> None:
    """What is served, where, and on what."""
    add(
        "--model",
        required=True,
        help="a folder with config.json and *.safetensors, as save_pretrained writes it, or a name on Hugging Face's hub",
    )
    add("--name", default="", help="what clients call the model (default: the folder's name)")
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    add("--device", default="", help="cuda:0, cpu, ... (default: the GPU where there is one)")
    add(
        "--dtype",
        default="",
        choices=("float32", "bfloat16", "float16"),
        help="type of weights and cache (default: the one that config.json names)",
    )


def _add_limits(add: Callable[..., Any]) -> None:
    """What requests and steps, and the cache, may take."""
    add("--max-model-len", type=int, default=0, help="tokens of a request at most (default: the model's)")
    add("--max-num-seqs", type=int, default=64, help="requests of a step at most (default: 64)")
    add("--max-num-batched-tokens", type=int, default=2048, help="tokens of a step at most (default: 2048)")
    add("--blocks", type=int, default=0, help="blocks of the cache (default: as many as memory holds)")
    add(
        "--memory-share",
        type=float,
        default=0.9,
        help="share of the GPU's memory that may be used (default: 0.9)",
    )


def _add_recordings(add: Callable[..., Any]) -> None:
    """What is recorded, and when."""
    add(
        "--cudagraph-mode",
        default="FULL_AND_PIECEWISE",
        choices=("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
        help="what is recorded (default: FULL_AND_PIECEWISE)",
    )
    add(
        "--capture-sizes",
        default="auto",
        type=_sizes,
        help="sizes that are recorded, by commas: requests where all decode, tokens elsewhere; or traffic:FILE, those that pad what "
        "--write-traffic wrote least (default: 1, 2, 4... 512 as far as the limits go, and the largest batch)",
    )
    add(
        "--write-traffic", default="", metavar="FILE", help="write how large steps were to a file, at the end"
    )
    add(
        "--capture",
        default="eager",
        choices=("eager", "lazy"),
        help="eager: all sizes are recorded before serving; lazy: those that steps asked for most, while no request runs (default: eager)",
    )
    add(
        "--memory-budget",
        default=None,
        help="what all recordings may hold, in bytes or as 2GiB (default: no limit)",
    )


def _add_steps(add: Callable[..., Any]) -> None:
    """How steps run."""
    add("--no-compile", action="store_true", help="run the model as it is; pieces are not recorded then")
    add(
        "--drafts",
        type=int,
        default=0,
        help="tokens guessed ahead for each request, by the model's learned heads where it has some (default: 0)",
    )
    add(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="begin a step before the tokens of the last one are known (default: on a GPU)",
    )
    add(
        "--share-prefixes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="requests that begin alike share blocks of the cache (default: they do)",
    )
    add("--enforce-eager", action="store_true", help="record nothing")
    add("--request-seconds", type=float, default=600.0, help="a request's at most (default: 600)")


def _sizes(words: str) -> tuple[int, ...] | str:
    """Whole numbers above 0 by commas, ``auto``, or ``traffic:FILE``."""
    if words == "auto" or words.startswith("traffic:"):
        return words
    sizes = tuple(int(word) for word in words.split(","))
    if min(sizes) < 1:
        raise ValueError
    return sizes


def _name(model: str) -> str:
    """What clients call a model by default: the last part of its path or name."""
    return Path(model).resolve().name


_sizes.__name__ = "list of sizes"  # as argparse says it


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is a shell's for Ctrl-C where that came before anything was served."""
    try:
        _serve(arguments)
    except KeyboardInterrupt:
        print("braze serve: interrupted before it served", file=sys.stderr)
        return 130
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    try:
        launch = importlib.import_module("braze.serving.server.launch")
    except ModuleNotFoundError as error:
        raise UserError(
            "BZ7507", f"braze serve needs {error.name}", hints=("pip install 'braze[serve]'",)
        ) from error
    options = launch.LaunchOptions(
        device=arguments.device,
        dtype=arguments.dtype,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        blocks=arguments.blocks,
        memory_share=arguments.memory_share,
        mode=arguments.cudagraph_mode,
        sizes=arguments.capture_sizes,
        drafts=arguments.drafts,
        enforce_eager=arguments.enforce_eager,
        overlap=arguments.overlap,
        share_prefixes=arguments.share_prefixes,
        plain=arguments.no_compile,
        capture=arguments.capture,
        memory_budget=arguments.memory_budget,
    )
    server = launch.ServerOptions(
        name=arguments.name or _name(arguments.model),
        request_seconds=arguments.request_seconds,
        traffic=arguments.write_traffic,
    )
    launch.run_server(arguments.model, options, server, arguments.host, arguments.port)
