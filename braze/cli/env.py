"""``braze env``: what a bug report should say of the machine."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import braze
from braze import native
from braze.capture.dispatch.untested import examined
from braze.graph.private import torch_import
from braze.runtime.gpu.device_costs import costs_of, kept
from braze.runtime.libraries import build, cache, sweep
from braze.support.device_costs import H200
from braze.support.errors import BrazeError
from braze.target import cpu_target


def run(arguments: argparse.Namespace) -> int:
    """Print one fact a line."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts():
        table.add_row(Text(name, style="bold"), Text(value))
    Console(soft_wrap=True, highlight=False).print(table)
    return 0


def facts() -> list[tuple[str, str]]:
    """(name, value) of everything that changes what braze does here."""
    target = cpu_target()
    return [
        ("braze", braze.__version__),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("torch", torch.__version__),
        ("triton", _version("triton")),
        ("system", platform.platform()),
        ("processor", f"{target.arch}, {target.cores} cores, {', '.join(target.features)}"),
        ("threads", str(torch.get_num_threads())),
        ("gpu", _gpus()),
        ("gpu costs", _costs()),
        ("native core", _native()),
        ("compiler", _compiler()),
        ("cache", _cache()),
        *_assumptions(),
        *((name, value) for name, value in sorted(os.environ.items()) if name.startswith("BRAZE_")),
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _gpus() -> str:
    if not torch.cuda.is_available():
        return "none"
    names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return ", ".join(f"{gpu.name} (sm_{gpu.major}{gpu.minor})" for gpu in names)


def _costs() -> str:
    """What choices on each GPU are made by."""
    if not torch.cuda.is_available():
        return f"those of an H200, where one is compiled for: {H200.said()}"
    told = []
    for i in range(torch.cuda.device_count()):
        costs = costs_of(i)
        how = "measured" if kept(i) is not None else "an H200's, since it cannot be measured now"
        told.append(f"{costs.said()} ({how})")
    return "; ".join(told)


def _native() -> str:
    if not native.native_available:
        return "pure Python stand-in (slower calls)"
    return f"built; frame hook {'available' if native.hook_available() else 'not available'}"


def _compiler() -> str:
    try:
        return f"{' '.join(build.compiler())} ({build.compiler_id()})"
    except BrazeError as error:
        return f"none: {error.what}"


def _assumptions() -> list[tuple[str, str]]:
    """What braze takes for granted of PyTorch's private parts, tried here and now."""
    whether = "tested" if torch_import.tested() else "not tested"
    tried = list(examined())
    wrong = [(name, f"NOT SO: {fault}; {otherwise}") for name, fault, otherwise in tried if fault]
    names = ", ".join(name for name, fault, _ in tried if not fault)
    return [("assumptions", f"{whether} with PyTorch {torch.__version__}; so: {names}"), *wrong]


def _cache() -> str:
    folder = cache.folder()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    most = f" of at most {limit / 1e9:g} GB" if (limit := sweep.limit()) else ""
    return f"{folder} ({len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB{most})"
