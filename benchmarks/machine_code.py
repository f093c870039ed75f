"""What the kernels of models take of a GPU: registers, spilled bytes and shared memory, without a GPU.

``python -m benchmarks machine_code --models bert,resnet --archs sm_90``. Each model is captured as on a processor, its graphs are scheduled for a
GPU, and Triton and its assembler make machine code of every kernel. Inference alone, in ``--dtype``: autograd asks for the
GPU when it differentiates.
"""

from __future__ import annotations

import argparse
import operator
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

import braze
from benchmarks import report, zoo
from braze import pipeline
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.graph.fakes import fakes
from braze.graph.private import torch_compat
from braze.options import Options
from braze.runtime.triton.triton_worker import Elsewhere, asked, load_module
from braze.support.errors import BrazeError
from braze.target import Target, cuda_target

#: multiprocessors of GPUs, as their makers tell
CORES = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}


def target_of(arch: str) -> Target:
    """A GPU of an architecture."""
    if arch.startswith("gfx"):
        return Target("cuda", arch, (), 16, CORES[arch])
    number = arch.removeprefix("sm_")
    return cuda_target((int(number[:-1]), int(number[-1])), CORES[arch])


def compile_offline(text: KernelText, folder: Path, arch: str = "sm_90") -> dict[str, Any]:
    """Compile a kernel as it is launched to machine code of an architecture without a GPU: Triton's stages by name, and its bytes of ``shared`` memory.

    Raises Triton's own CompilationError where the text is not valid.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.driver import driver

    launch = text.launch
    assert launch is not None
    amd = arch.startswith("gfx")
    on = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    driver.set_active(Elsewhere(on))
    path = folder / f"kernel_{len(list(folder.iterdir()))}.py"
    path.write_text(text.source)
    function = getattr(load_module(path), text.name)
    names = list(function.arg_names)
    blocks = dict(launch.constants)
    kinds = [*launch.dtypes, *("i32" for _ in text.sizes), *("constexpr" for _ in blocks)]
    signature = dict(zip(names, kinds, strict=True))
    constexprs = {(names.index(b),): v for b, v in blocks.items()}
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(len(launch.dtypes))}  # as most tensors are
    built = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=constexprs, attrs=aligned),
        target=on,
        options={
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            **asked(launch.constants, launch.contracts),
        },
    )
    return {**built.asm, "shared": built.metadata.shared}


def resources(built: dict[str, Any], folder: Path) -> tuple[int, int]:
    """(registers of a thread, its bytes of stack: spilled ones) of a kernel's machine code."""
    if "amdgcn" in built:
        found = [
            re.search(rf"{name}:\s*(\d+)", built["amdgcn"])
            for name in (".vgpr_count", ".private_segment_fixed_size")
        ]
    else:
        import triton.backends.nvidia

        dump = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
        path = folder / "kernel.cubin"
        path.write_bytes(built["cubin"])
        told = subprocess.run([dump, "-res-usage", path], capture_output=True, text=True, check=True).stdout
        found = [re.search(rf"{name}:(\d+)", told) for name in ("REG", "STACK")]
    return tuple(int(match[1]) for match in found if match)  # type: ignore[return-value]


# -- from models to kernels -------------------------------------------------------------------------


class _OnGpu(fx.Interpreter):
    """Runs a captured graph on fakes of a GPU; tensors that it makes itself are made there."""

    def run_node(self, n: fx.Node) -> Any:
        if n.kwargs.get("device") is not None:
            n.kwargs = {**n.kwargs, "device": torch.device("cuda:0")}
        n.meta["val"] = found = super().run_node(n)
        return found


def spelled(gm: fx.GraphModule) -> None:
    """Indexing and ``contiguous`` by operators: the methods ask for the device, which is not there."""
    aten = torch.ops.aten
    for node in gm.graph.find_nodes(op="call_method", target="contiguous"):
        node.op, node.target = "call_function", aten.contiguous.default
    for node in gm.graph.find_nodes(op="call_function", target=operator.getitem):
        base, index = node.args
        if not isinstance(base.meta.get("val"), torch.Tensor):
            continue
        items = index if isinstance(index, tuple) else (index,)
        taken, dim, tensors = base, 0, False
        with gm.graph.inserting_before(node):
            for item in items:
                if item is Ellipsis:
                    dim += base.meta["val"].dim() - sum(x is not None and x is not Ellipsis for x in items)
                elif item is None:
                    taken, dim = gm.graph.call_function(aten.unsqueeze.default, (taken, dim)), dim + 1
                elif isinstance(item, slice):
                    if item != slice(None):
                        ends = (
                            item.start or 0,
                            sys.maxsize if item.stop is None else item.stop,
                            item.step or 1,
                        )
                        taken = gm.graph.call_function(aten.slice.Tensor, (taken, dim, *ends))
                    dim += 1
                elif isinstance(item, int) and not isinstance(item, bool):
                    taken = gm.graph.call_function(aten.select.int, (taken, dim, item))
                else:
                    tensors = True
            if tensors:
                if not all(isinstance(x, fx.Node) or x == slice(None) for x in items):
                    continue
                places = [x if isinstance(x, fx.Node) else None for x in items]
                taken = gm.graph.call_function(aten.index.Tensor, (base, places))
            elif taken is base:
                taken = gm.graph.call_function(aten.alias.default, (base,))
        node.replace_all_uses_with(taken)
        gm.graph.erase_node(node)
    gm.recompile()


def moved(gm: fx.GraphModule, examples: Sequence[Any]) -> list[Any]:
    """Fakes of a GPU like a graph's examples, with which its nodes are described anew."""
    mode = fakes.new_mode()
    made: list[Any] = []
    for x in examples:
        if not isinstance(x, torch.Tensor):
            made.append(x)
            continue
        meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        made.append(torch_compat.assemble_fake(mode.dispatch, meta, torch.device("cuda:0"), x.requires_grad))
    spelled(gm)
    with mode:
        _OnGpu(gm).run(*made)
    return made


def kernels_of(
    gm: fx.GraphModule, examples: Sequence[Any], ctx: CompileContext
) -> Iterator[tuple[str, KernelText]]:
    """The kernels of a captured graph for a GPU."""
    _, plan = pipeline.scheduled(pipeline.partition_graph(gm, moved(gm, examples), ctx), ctx)
    for text in pipeline.generate_code(plan, ctx).kernels:
        if text.language == "triton":
            yield ctx.name, text


def rows_of(model: str, archs: Sequence[str], dtype: torch.dtype) -> Iterator[report.Row]:
    """A row for each kernel of a model on each architecture."""
    module, inputs = zoo.find(model).make()
    module = module.to(dtype)
    inputs = {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }
    graphs: list[tuple[fx.GraphModule, list[Any]]] = []

    def taken(gm: fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append((gm, examples))
        return gm.forward

    with torch.no_grad():
        braze.compile(module, backend=taken)(**inputs)
        for arch in archs:
            for number, (gm, examples) in enumerate(graphs):
                ctx = CompileContext(Options(), target_of(arch), f"graph{number}")
                found = (
                    dict(model=model, arch=arch, dtype=str(dtype), **row)
                    for row in _rows(gm, examples, ctx, arch)
                )
                yield from found


def _rows(
    gm: fx.GraphModule, examples: Sequence[Any], ctx: CompileContext, arch: str
) -> Iterator[report.Row]:
    try:
        texts = list(kernels_of(gm, examples, ctx))
    except (BrazeError, RuntimeError) as error:  # a graph that names its device in another way
        yield {"graph": ctx.name, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        return
    with tempfile.TemporaryDirectory() as folder:
        for graph, text in texts:
            built = compile_offline(text, Path(folder), arch)
            registers, spilled = resources(built, Path(folder))
            assert text.launch is not None
            taken = dict(
                registers=registers, spilled=spilled, shared=built["shared"], warps=text.launch.num_warps
            )
            yield {"graph": graph, "kernel": text.name, **taken}


def main(argv: Sequence[str]) -> int:
    """Print a line for each kernel that spills, one for each model, and keep all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks machine_code", description=__doc__)
    parser.add_argument("--models", required=True)
    parser.add_argument("--archs", default="sm_90", help=f"of {', '.join(CORES)}")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out")
    arguments = parser.parse_args(argv)
    rows: list[report.Row] = []
    for model in arguments.models.split(","):
        found = list(rows_of(model, arguments.archs.split(","), getattr(torch, arguments.dtype)))
        rows += found
        for row in found:
            if row.get("spilled") or "error" in row:
                print(row)
        most = max((row["registers"] for row in found if "registers" in row), default=0)
        print(
            f"{model}: {len(found)} kernels, {sum(bool(r.get('spilled')) for r in found)} spill, {most} registers at most",
            flush=True,
        )
    path = report.place("machine_code", arguments.out)
    report.write("machine_code", rows, ["machine_code", *argv], path)
    print(path)
    return 0
