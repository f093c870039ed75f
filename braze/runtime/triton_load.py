"""Load Triton kernels from their text, launch them, and compile them without a GPU."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
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


def load(
    path: Path,
    name: str,
    sizes: Sequence[str],
    grid: str,
    constants: Sequence[tuple[str, int]],
    num_warps: int,
    num_stages: int,
) -> Callable[..., None]:
    """The kernel ``name`` of the file ``path`` as a callable ``(*buffers, *sizes)`` that launches on the current stream. No launch of zero programs."""
    function = getattr(load_module(path), name)
    blocks = dict(constants)
    programs = eval(f"lambda {', '.join(sizes)}: {grid}", {"max": max, "min": min})
    return Launch(function, programs, len(sizes), blocks, num_warps, num_stages).launcher()


class Launch:
    """One kernel's launches. Triton's own path costs some 20 microseconds, so it is taken once a kind of arguments.

    Triton compiles a kernel apart for pointers that 16 does not divide and for each kind of int, so what its first
    launch gave is launched again only for aligned pointers and the very same sizes.
    """

    def __init__(
        self,
        function: Any,
        programs: Callable[..., int],
        sizes: int,
        blocks: dict[str, int],
        num_warps: int,
        num_stages: int,
    ) -> None:
        self.function = function
        self.programs = programs
        self.sizes = sizes
        self.blocks = blocks
        self.options = {"num_warps": num_warps, "num_stages": num_stages}
        self.known: dict[Any, tuple[Any, ...]] = {}

    def launcher(self) -> Callable[..., None]:
        """The function that host modules call."""
        return self.general if _interpreting() or not _known_convention() else self.fast()

    def general(self, *args: Any) -> Any:
        """A launch by Triton's own means; gives its compiled kernel back."""
        programs = self.programs(*args[len(args) - self.sizes :])
        if programs <= 0:
            return None
        return self.function[(programs,)](*args, **self.blocks, **self.options)

    def fast(self) -> Callable[..., None]:
        """A launch that calls the driver with what an earlier launch has found out."""
        import triton
        from triton.runtime import driver

        device_of, stream_of = driver.active.get_current_device, driver.active.get_current_stream
        runtime, known, general = triton.knobs.runtime, self.known, self.general
        sizes, blocks = self.sizes, tuple(self.blocks.values())

        def launch(*args: Any) -> None:
            device = device_of()
            tensors = args[: len(args) - sizes] if sizes else args
            numbers = args[len(args) - sizes :] if sizes else ()
            found = known.get((device, numbers))
            for tensor in tensors:
                if tensor.data_ptr() & 15:
                    found = None
                    break
            else:
                if found is None:
                    kernel = general(*args)
                    if kernel is not None:
                        programs = self.programs(*numbers)
                        known[device, numbers] = kernel.run, programs, kernel.function, kernel.packed_metadata
                    return
            hook = runtime.launch_enter_hook  # a chain, which may be empty
            if found is None or (hook is not None and getattr(hook, "calls", True)):
                general(*args)
                return
            run, programs, function, metadata = found
            stream = stream_of(device)
            run(programs, 1, 1, stream, function, metadata, None, None, None, *args, *blocks)

        return launch


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _known_convention() -> bool:
    """Whether this Triton's compiled kernels are called as :meth:`Launch.fast` calls them."""
    import triton

    return triton.__version__.startswith("3.6.")


def compile_offline(
    path: Path,
    name: str,
    dtypes: Sequence[str],
    sizes: Sequence[str],
    constants: Sequence[tuple[str, int]],
    num_warps: int,
    capability: int = 90,
) -> dict[str, Any]:
    """Compile a kernel to machine code of ``sm_<capability>`` without a GPU: Triton's stages by name.

    Raises Triton's own CompilationError where the text is not valid.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load_module(path), name)
    names = list(function.arg_names)
    blocks = dict(constants)
    kinds = [*dtypes, *("i32" for _ in sizes), *("constexpr" for _ in blocks)]
    signature = dict(zip(names, kinds, strict=True))
    constexprs = {(names.index(b),): v for b, v in blocks.items()}
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(len(dtypes))}  # as most tensors are
    built = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=constexprs, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps},
    )
    return dict(built.asm)
