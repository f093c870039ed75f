"""A process that builds Triton kernels: a line of JSON for each on standard input, a line for each on standard output.

It imports neither PyTorch, which takes seconds to load and would open the GPU, nor braze: Triton builds a kernel here as for its
first launch, for a GPU that another process has, and keeps it on disk, where that process finds it. It ends with its input. Parts of Triton are imported as a request needs them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def load_module(path: Path) -> ModuleType:
    """The Python module of a kernel text. Triton reads the source back from its file, so there is one."""
    module_name = f"braze_triton_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


class Elsewhere:
    """What Triton asks of a driver while it builds."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        """The GPU that is built for."""
        return self.target

    def get_current_device(self) -> int:
        """One for all."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Nothing is launched."""
        return 0


class WithoutTorch:
    """A finder of modules that finds no PyTorch: some of Triton's releases import it, if they can, with their first kernel."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Nothing; an error for PyTorch."""
        if name == "torch":
            raise ModuleNotFoundError("kernels are built without PyTorch", name=name)


#: the constant of kernels that wait by themselves for what is ahead of them on the stream: 1 where they are launched so that they begin sooner
EARLY = "EARLY"
#: the constants that tell of the kernels ahead and behind, which there are none of where a kernel is interpreted
IN_TURN = frozenset({EARLY, "LETS"})
#: the constant of kernels that keep a part of their rows in registers: how many of them a thread has at most; none are counted where a kernel is interpreted
HELD = "HELD"
#: the constant of kernels that assert that an index exists: 1 where they do
ASSERTS = "ASSERTS"
#: the constants that are 0 where a kernel is interpreted
ON_GPUS = IN_TURN | {HELD}


def asked(
    constants: Sequence[tuple[str, int]], contracts: bool = True, interpreted: bool = False
) -> dict[str, int]:
    """What Triton is asked for beside warps and stages: of a build and of a launch the same, or it would not find what was built. Its interpreter knows no GPU."""
    told = dict(constants)
    asks: dict[str, int] = {}
    if not interpreted and _is_for_nvidia():
        # NVIDIA's functions of floats would take denormal numbers for zeros
        asks["enable_reflect_ftz"] = False
    if not interpreted and not contracts:
        asks["enable_fp_fusion"] = False
    if told.get(EARLY):
        asks["launch_pdl"] = True
    if told.get(HELD):
        asks["maxnreg"] = told[HELD]
    if told.get(ASSERTS):
        asks |= {"debug": True, "sanitize_overflow": False}  # nothing but what the kernel itself asserts
    return asks


def _is_for_nvidia() -> bool:
    """Whether kernels are built for a GPU of NVIDIA's."""
    from triton.runtime.driver import driver

    try:
        return bool(driver.active.get_current_target().backend == "cuda")
    except RuntimeError:  # there is no driver, and no launch
        return False


def build(
    path: str,
    name: str,
    dtypes: Sequence[str],
    numbers: Sequence[int],
    constants: Sequence[tuple[str, int]],
    warps: int,
    stages: int,
    contracts: bool = True,
    apart: int = 0,
) -> Any:
    """Build a kernel for buffers of these types (Triton's: "*bf16") and sizes of the kind of these numbers; ``apart``: bits of the buffers that 16 does not divide."""
    from triton.runtime.jit import MockTensor

    class Apart(MockTensor):  # type: ignore[misc]
        @staticmethod
        def data_ptr() -> int:
            return 1

    function = getattr(load_module(Path(path)), name)
    kinds = (Apart if apart >> i & 1 else MockTensor for i in range(len(dtypes)))
    given = [*(kind(dtype.removeprefix("*")) for kind, dtype in zip(kinds, dtypes, strict=True)), *numbers]
    asks = asked(constants, contracts)
    return function.warmup(*given, grid=(1,), num_warps=warps, num_stages=stages, **asks, **dict(constants))


def tell_key(key: str) -> None:
    """Have Triton take the key of what it keeps as given, as its own pools of processes do."""
    from triton.runtime import cache

    cache.triton_key = lambda: key


def _read_triton() -> None:
    """What a process's first kernel pays for: Triton reads its own libraries, half a gigabyte, for the key of what it keeps."""
    import triton.compiler.code_generator
    from triton.runtime import cache

    read = getattr(cache, "triton_key", None) or getattr(triton.compiler.compiler, "triton_key", None)
    if read is not None:
        read()


def end_with(parent: int) -> None:
    """End this process with the one that has started it, also in the middle of a build (Linux; elsewhere it ends after that)."""
    if sys.platform != "linux":
        return
    import ctypes
    import os
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended before
        sys.exit(0)


def keep_within(most: int) -> None:
    """Let this process, and each that it starts, have so many bytes of memory at most, in addresses: a build that wants more fails, and takes none from others."""
    try:
        import resource
    except ImportError:  # no such bound on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(parent: str, most: str, backend: str, capability: str, warp: str, key: str = "") -> None:
    """Build what standard input asks for, one after the other, as long as ``parent`` lives, in so many bytes at most; ``key``: of what Triton keeps, where that is known."""
    answers, sys.stdout = sys.stdout, sys.stderr
    end_with(int(parent))
    keep_within(int(most))
    sys.meta_path.insert(0, WithoutTorch())  # type: ignore[arg-type]
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    arch = int(capability) if capability.isdigit() else capability
    driver.set_active(Elsewhere(GPUTarget(backend, arch, int(warp))))
    if key:
        tell_key(key)
    else:
        _read_triton()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        try:
            build(*json.loads(line))
            said = ""
        except Exception as error:  # of Triton's compiler, of any kind: the process that asked builds it itself then, and tells
            said = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
