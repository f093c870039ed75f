"""Functions of tensors through every stage for a GPU, their Triton kernels run in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import fx

from braze import pipeline
from braze.aot.facts.records import Partition
from braze.codegen import triton as triton_code
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.graph.fakes import fakes
from braze.graph.private import torch_compat
from braze.loops.ir import BufferKind, BufferView, ExternCall
from braze.options import Options
from braze.runtime.triton.triton_build import Job
from braze.runtime.triton.triton_load import load
from braze.schedule.facts.records import Schedule
from braze.target import cuda_target

DTYPES = {name: getattr(torch, name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64")}
DTYPES |= {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
DTYPES |= {"u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}


DTYPES |= {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}


def _version(package: str) -> tuple[int, ...]:
    return tuple(map(int, version(package).split(".")[:2]))


#: of kernels whose loops end at a number that they compute Triton 3.6's interpreter makes an int of it as NumPy 2.5 no longer does
UNBOUND = _version("triton") < (3, 7) and _version("numpy") >= (2, 5)
UNBOUND_REASON = "this Triton's interpreter does not go with this NumPy"
computed_bounds = pytest.mark.skipif(UNBOUND, reason=UNBOUND_REASON)


def context(cores: int = 132, **options: object) -> CompileContext:
    """A compile for a Hopper GPU of so many multiprocessors."""
    return CompileContext(Options(verify=2, **options), cuda_target((9, 0), cores), "g")  # type: ignore[arg-type]


class Values(fx.Interpreter):
    """Notes what each node gives, as a capture does."""

    def run_node(self, n: fx.Node) -> object:
        found = super().run_node(n)
        n.meta.setdefault("val", found)
        return found


def captured(fn, ctx: CompileContext, *inputs: torch.Tensor) -> Partition:
    """A function's partition for a GPU, from tensors on the CPU."""
    graph = fx.symbolic_trace(fn)
    mode = fakes.new_mode()
    examples = []
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    with torch.no_grad():
        for node, x in zip(places, inputs, strict=True):
            meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            fake = torch_compat.assemble_fake(mode.dispatch, meta, torch.device("cuda:0"), False)
            node.meta["val"] = fake
            examples.append(fake)
        with mode:
            Values(graph).run(*examples)
        return pipeline.partition_graph(graph, examples, ctx)


def planned(fn, *inputs: torch.Tensor, cores: int = 132, **options: object) -> Schedule:
    """The schedule of a function for a GPU, from tensors on the CPU."""
    ctx = context(cores, **options)
    partition = captured(fn, ctx, *inputs)
    with torch.no_grad():
        return pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)


def weighing(plan: Schedule, places: Sequence[int]) -> Schedule:
    """The schedule with the inputs at these places as a model's weights."""
    names = {plan.program.inputs[i] for i in places}
    buffers = tuple(
        replace(b, kind=BufferKind.CONSTANT) if b.name in names else b for b in plan.program.buffers
    )
    return replace(plan, program=replace(plan.program, buffers=buffers))


def interpreted(
    fn, folder: Path, *inputs: torch.Tensor, cores: int = 132, **options: object
) -> tuple[Schedule, list[torch.Tensor]]:
    """The schedule, and what its kernels make of the inputs. Fails where the function needs a call of ATen."""
    plan = planned(fn, *inputs, cores=cores, **options)
    texts = triton_code.generate(plan, context(cores, **options))
    return plan, run(plan, folder, *inputs, cores=cores, texts=texts)


def run(
    plan: Schedule,
    folder: Path,
    *inputs: torch.Tensor,
    cores: int = 132,
    texts: Sequence[KernelText] | None = None,
) -> list[torch.Tensor]:
    """The results of a schedule of kernels, and of calls of ``CALLED`` alone. ``texts``: kernels in place of its own."""
    calls = {g.name: g.call for g in plan.groups if isinstance(g.call, ExternCall)}
    assert all(getattr(c, "target", "") in CALLED for c in calls.values()), list(calls)
    program = plan.program
    memory = dict(zip(program.inputs, inputs, strict=True))
    for b in program.buffers:
        if b.kind not in (BufferKind.INPUT, BufferKind.CONSTANT):
            sizes, strides = [e.value for e in b.sizes], [e.value for e in b.strides]
            made = torch.empty_strided(sizes, strides, dtype=DTYPES[b.dtype.label])
            _bytes(made).fill_(77)  # what is read before it is written is seen
            memory[b.name] = made
    made_here = triton_code.generate(plan, context(cores)) if texts is None else texts
    by_name = {text.name: text for text in made_here}
    for group in plan.groups:
        if group.name in calls:
            _call(calls[group.name], memory)
            continue
        text = by_name[group.name]
        path = folder / f"{text.name}_{hash(text.source)}.py"  # a module is loaded once a path
        path.write_text(text.source)
        launch = launcher(path, text)
        launch(*(_bytes(memory[b]) for b in text.args))
    return [_viewed(memory, o) for o in program.outputs if o is not None]  # None: an input has it


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Floats of eight bits as what they are to kernels."""
    return x.view(torch.uint8) if x.dtype.is_floating_point and x.element_size() == 1 else x


def launcher(path: Path, text: KernelText) -> Callable[..., None]:
    """What launches the kernel of a file."""
    if UNBOUND and "\n    left = " in text.source:  # a walk that ends where the last part of a row does
        pytest.skip(UNBOUND_REASON)
    return load(Job(str(path), text.name, (), (), text.launch.constants, 1, 1), text.sizes, text.launch.grid)


#: what kernels may stand around
CALLED = ("braze.groups.default", "braze.table_sums.default", "aten.mm.default", "aten.addmm.default")


def _call(call: ExternCall, memory: dict[str, torch.Tensor]) -> None:
    """Run a call of ATen on the kernels' memory."""
    namespace, name, variant = call.target.split(".")
    args = [_viewed(memory, a) if isinstance(a, BufferView) else a for a in call.args]
    found = getattr(getattr(getattr(torch.ops, namespace), name), variant)(*args, **dict(call.kwargs))
    for out, made in zip(call.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        assert memory[out].dtype is made.dtype and memory[out].shape == made.shape
        memory[out].copy_(made)


def _viewed(memory: dict[str, torch.Tensor], o: BufferView) -> torch.Tensor:
    sizes, strides = [e.value for e in o.sizes], [e.value for e in o.strides]
    of = memory[o.buffer]
    return torch.as_strided(of, sizes, strides, of.storage_offset() + (o.offset.value or 0))


def forms(plan: Schedule) -> list[str]:
    """The form of each kernel, in order, with the kinds of split ones."""
    from braze.schedule.gpu.kernels import plan_kernel

    buffers = {b.name: b for b in plan.program.buffers}
    return [plan_kernel(m, buffers).form.value for g in plan.groups for m in g.each]
