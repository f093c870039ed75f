"""What compiled pieces depend on, by name: factors, whose digest is the key under which they are kept.

Complete: configuration, model, every source file that was traced, the environment, settings of PyTorch, versions, the device, the compiler. And
nothing more: no address, rank, port, folder or time, so that the hosts and ranks of one deployment share a cache. When a key is new, the factors
of the nearest one that is known tell what changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from braze.runtime.libraries.cache import CacheKey, DiskCache, key, why
from braze.serving.pieces.compiler import CompilerInterface

#: variables that change what is compiled, by braze, Triton, the C compiler or PyTorch
ENVIRONMENT = (
    "BRAZE_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",
    "BRAZE_CAPTURE_SCALAR_OUTPUTS",
    "BRAZE_PURE",
    "BRAZE_VERIFY",
    "CC",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_INTERPRET",
    "TRITON_PTXAS_PATH",
)
#: keys that are remembered for one model, to explain a miss by
REMEMBERED = 16

Factors = dict[str, str]


def factors_of(
    config: Any,
    compiler: CompilerInterface,
    *,
    model: nn.Module | None = None,
    functions: Iterable[FunctionType] = (),
    inputs: Iterable[Any] = (),
    environ: Mapping[str, str] | None = None,
) -> Factors:
    """All that a model's compiled pieces depend on, by name.

    ``config``: a ``CompilationConfig``. ``model``: its class, submodules, parameters and buffers count, not what these hold. ``functions``: those that
    were traced; the files that they stand in count, by module. ``inputs``: of the graph, in order: a drafter is not its target.
    """
    environ = os.environ if environ is None else environ
    found: Factors = {f"config.{name}": repr(value) for name, value in config.factors()}
    found |= {f"environment.{name}": environ.get(name, "") for name in ENVIRONMENT}
    found |= _versions() | _settings()
    found |= {f"source.{name}": digest for name, digest in sources_of(functions).items()}
    found["compiler"] = compiler.name
    found["compiler.hash"] = compiler.compute_hash(config)
    if model is not None:
        found["model"] = f"{type(model).__module__}.{type(model).__qualname__}"
        found["model.structure"] = _digest(_parts(model))
    found["model.inputs"] = _digest([str(i) for i in inputs])
    return found


def sources_of(functions: Iterable[FunctionType]) -> dict[str, str]:
    """Module (or name of a file that is none) -> SHA-256 of each file that the functions stand in, in whatever order they come."""
    files: dict[str, dict[str, str]] = {}
    found: dict[str, str] = {}
    for function in functions:
        path = function.__code__.co_filename
        module = getattr(function, "__module__", None)
        name = module if isinstance(module, str) and module != "__main__" else Path(path).name
        if path in files.get(name, ()):
            continue
        try:
            files.setdefault(name, {})[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:  # made by exec: the code itself
            found[f"{name}.{function.__qualname__}"] = _digest(_code(function.__code__))
    for name, held in files.items():
        # a module has one file, but for functions that say they are of another's (functools.wraps)
        digests = sorted(held.values())
        if digests:
            found[name] = digests[0] if len(digests) == 1 else _digest(digests)
    return found


def _code(code: CodeType) -> list[str]:
    return [
        code.co_code.hex(),
        repr(code.co_names),
        repr([c for c in code.co_consts if not hasattr(c, "co_code")]),
    ]


def _parts(model: nn.Module) -> list[str]:
    parts = [
        f"{name} {type(part).__module__}.{type(part).__qualname__}" for name, part in model.named_modules()
    ]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.device.type}")
    return parts


def _versions() -> Factors:
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = ""
    found = {
        "version.python": sys.version,
        "version.torch": f"{torch.__version__} {torch.version.git_version}",
        "version.cuda": str(torch.version.cuda),
        "version.triton": triton,
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        found["device"] = f"{facts.name} {facts.major}.{facts.minor}"
    return found


def _settings() -> Factors:
    return {
        "setting.default_dtype": str(torch.get_default_dtype()),
        "setting.deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "setting.matmul_precision": torch.get_float32_matmul_precision(),
        "setting.threads": str(torch.get_num_threads()),
    }


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def key_of(factors: Factors) -> CacheKey:
    """The key that factors come to."""
    return key("serving", **factors)


# -- keys that are known ----------------------------------------------------------------------------


class KnownKeys:
    """The factors of keys that were used for one model, on disk: what a miss is explained by."""

    def __init__(self, cache: DiskCache, model: str) -> None:
        self.cache = cache
        self.places = [key("serving_keys", model=model, number=n) for n in range(REMEMBERED)]

    def read(self) -> list[Factors]:
        """The factors of each."""
        found = []
        for place in self.places:
            data = self.cache.get(place, "json")
            if data is not None:
                found.append(json.loads(data))
        return found

    def add(self, factors: Factors) -> None:
        """Remember these, in place of the first where all places are taken."""
        data = json.dumps(factors, sort_keys=True).encode()
        held = [self.cache.get(place, "json") for place in self.places]
        if data in held:
            return
        free = held.index(None) if None in held else int(hashlib.sha256(data).hexdigest(), 16) % REMEMBERED
        self.cache.put(self.places[free], data, "json")


def explain(factors: Factors, known: list[Factors]) -> str:
    """Which factors differ from those of the nearest key that is known."""
    if not known:
        return "nothing was compiled for this model before"
    if factors in known:
        return "nothing: this key was used before"
    nearest = min(known, key=lambda old: sum(old.get(n) != factors.get(n) for n in {*old, *factors}))
    return why(key_of(nearest), key_of(factors))
