"""Building and loading: the team, several units, failures that say what to do."""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from braze.codegen import c as codegen
from braze.codegen.c.mathlib import SECTIONS
from braze.context import CompileContext
from braze.loops.ir import Buffer, BufferKind, DType, Op, Store
from braze.options import Options
from braze.runtime.libraries import build
from braze.schedule.facts.records import Group, GroupKind
from braze.support.errors import InternalError, Unsupported
from braze.symbolic.expr import ONE
from braze.target import Target, cpu_target
from tests.codegen.c_bench import Bench, axis, call, load, nest, op
from tests.helpers import threads

ARCH = cpu_target().arch


def pointwise(bench, n: int):
    i = axis("i0", n)
    step = nest([i], [Store("y", i.symbol, op(Op.EXP, load("x", DType.F32, i.symbol)))])
    return bench.kernel([step], {"x": torch.empty(1), "y": torch.empty(1)}, name=f"cpu_exp_{n}")


def test_kernels_use_the_team_of_libtorch(native_bench):
    """A parallel kernel loads no second OpenMP runtime, and obeys torch.set_num_threads."""
    n = 1 << 20
    text = pointwise(native_bench, n)
    before = runtimes()
    library = native_bench.library(text)
    x, y = torch.randn(n), torch.empty(n)
    call(library, text, {"x": x, "y": y}, {})
    torch.testing.assert_close(y, x.exp())
    assert runtimes() == before
    own = build.openmp()
    assert own is not None
    with threads(1):
        y.zero_()
        call(library, text, {"x": x, "y": y}, {})
        torch.testing.assert_close(y, x.exp())


def runtimes() -> set[str]:
    """OpenMP runtimes mapped into this process."""
    maps = Path("/proc/self/maps").read_text()
    return set(re.findall(r"/\S*/lib(?:g|i|)omp\S*", maps))


def test_the_threads_option_caps_the_team(native_bench):
    """threads=1 leaves no parallel region; threads=2 gives at most two shares."""
    n = 1 << 20
    i = axis("i0", n)
    step = nest([i], [Store("y", i.symbol, op(Op.EXP, load("x", DType.F32, i.symbol)))])
    buffers = {k: Buffer(k, DType.F32, (ONE,), (ONE,), "cpu", BufferKind.TEMPORARY) for k in "xy"}
    for count in (1, 2):
        group = Group(f"cpu_threads_{count}", GroupKind.POINTWISE, (step,), (i,))
        ctx = CompileContext(Options(threads=count), native_bench.target)
        text = codegen.kernel(group, buffers, ctx)
        assert f"{count}L << 16" in text.source
        x, y = torch.randn(n), torch.empty(n)
        call(native_bench.library(text), text, {"x": x, "y": y}, {})
        torch.testing.assert_close(y, x.exp())


def test_several_units_are_one_library(native_bench, tmp_path):
    """Kernels dealt to units find each other and the shared runtime."""
    kernels = [pointwise(native_bench, n) for n in (5, 1000, 1 << 18)]
    units = [codegen.assemble([k.source], runtime=not i) for i, k in enumerate(kernels)]
    path = tmp_path / "lib.so"
    path.write_bytes(build.build_c(units, ARCH))
    library = build.load(str(path))
    for k, n in zip(kernels, (5, 1000, 1 << 18), strict=True):
        x, y = torch.randn(n), torch.empty(n)
        call(library, k, {"x": x, "y": y}, {})
        torch.testing.assert_close(y, x.exp())
    assert not library.has("no_such_kernel")


def test_kernels_are_dealt_evenly():
    """Units of about equal length; few kernels stay together."""
    assert len(codegen.split(("x" * 100,) * 5, 8)) == 1
    dealt = codegen.split(tuple("x" * n for n in (9000, 8000, 1000, 2000, 5000)), 2)
    assert len(dealt) == 2 and sum(map(len, dealt)) == 5
    sizes = sorted(sum(map(len, unit)) for unit in dealt)
    assert sizes[1] < 1.3 * sizes[0]


def test_a_compile_error_shows_the_message_and_the_source(tmp_path, monkeypatch):
    """Generated text that does not compile is our error, with the file to look at."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    with pytest.raises(InternalError) as caught:
        build.build_c("void broken(void) { undeclared = 1; }", ARCH)
    assert caught.value.code == "BZ5003"
    assert "undeclared" in str(caught.value)
    assert list(tmp_path.glob("*failed_unit.c"))


def test_no_compiler_says_what_to_install(monkeypatch):
    """Without gcc, clang or cc."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    build.compiler.cache_clear()
    try:
        with pytest.raises(Unsupported) as caught:
            build.build_c("int x;", ARCH)
        assert caught.value.code == "BZ5001"
        assert any("install gcc" in hint for hint in caught.value.hints)
    finally:
        build.compiler.cache_clear()


def test_a_slow_unit_is_tried_again_with_less_optimisation(monkeypatch, tmp_path):
    """The first try is stopped at the time limit: it would outlast the test's own."""
    slow = tmp_path / "cc"
    slow.write_text('#!/bin/sh\ncase "$*" in *-O1*) exec sleep 600;; esac\nexec gcc "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(build, "TIMEOUT", 2.0)
    build.compiler.cache_clear()
    try:
        assert build.build_c("int x;", ARCH)[:4] == b"\x7fELF"
    finally:
        build.compiler.cache_clear()


def test_the_compiler_has_an_identity():
    """What the cache key holds of the compiler names it and changes with it."""
    assert build.compiler()[0] in build.compiler_id()


_OUTSIDE = """
double sin(double);
void *memset(void *, int, unsigned long);
void outside(double *y, int64_t *x, int64_t n) {
  y[0] = sin(y[0]);
  x[0] = (int64_t)((((unsigned __int128)x[0] << 64) + 1) / (unsigned __int128)x[1]);
  memset(x + 2, 0, n);
}
"""


@pytest.mark.parametrize("tells", [True, False])
def test_kernels_find_what_the_compiler_calls_of_its_own(tells, tmp_path, monkeypatch):
    """A division of 128 bits, the mathematics and the C library; also where the compiler does not say where its library lies."""
    plain = tmp_path / "cc"
    plain.write_text('#!/bin/sh\ncase "$*" in *-print-*) exit 1;; esac\nexec gcc "$@"\n')
    plain.chmod(0o755)
    if not tells:
        monkeypatch.setenv("CC", str(plain))
    build.compiler.cache_clear()
    try:
        path = tmp_path / "lib.so"
        units = [codegen.assemble([_OUTSIDE], runtime=True)]
        path.write_bytes(build.build_c(units, ARCH))
        linked = build.libraries(build.compiler(), units, ARCH)
        assert ("-nodefaultlibs" in linked) == (tells and sys.platform == "linux")
    finally:
        build.compiler.cache_clear()
    y, x = (ctypes.c_double * 1)(0.5), (ctypes.c_int64 * 4)(1, 5, 7, 9)
    ctypes.CDLL(str(path), mode=os.RTLD_NOW).outside(y, x, ctypes.c_int64(8))
    assert y[0] == math.sin(0.5)
    assert list(x) == [((1 << 64) + 1) // 5, 5, 0, 9]


def library_parts(lanes: int) -> list[str]:
    """What kernels may be written with."""
    return [name if name.endswith("_s") else f"{name}x{lanes}" for name in SECTIONS]


def compiled(text: str, folder: Path, *more: str) -> str:
    """What a compiler says to a text of which it keeps every function."""
    if "gcc" not in os.path.basename(os.path.realpath(build.compiler()[0])):
        pytest.skip("how another compiler keeps functions that nobody calls")
    source = folder / "all.c"
    source.write_text(text)
    kept = ("-fkeep-static-functions", "-fkeep-inline-functions", "-o", str(folder / "all.so"))
    flags = [flag for flag in build.flags(ARCH) if flag != "-w"]
    command = (*build.compiler(), *flags, *kept, str(source), *more)
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return said.stderr if said.returncode else ""


def test_what_kernels_call_is_declared(tmp_path):
    """Compilers since 2023 refuse a call of a function that nobody declared."""
    unit = codegen.assemble(library_parts(8))
    head, parts = unit.rsplit("int (*bz_threads)(void) = bz_one;", 1)
    assert parts.split() == library_parts(8)
    assert not compiled(head, tmp_path, "-c", "-Werror=implicit-function-declaration")


@pytest.mark.skipif(sys.platform != "linux", reason="the linker of Linux")
@pytest.mark.parametrize("lanes", [8, 16])
def test_the_mathematics_are_linked_where_they_are_called(lanes, tmp_path):
    """Of all that kernels may be written with, what is not linked with them calls no function of theirs."""
    texts = {name: codegen.assemble([f"/* {name} */"]) for name in library_parts(lanes)}
    apart = [
        name for name, text in texts.items() if "-lm" not in build.libraries(build.compiler(), [text], ARCH)
    ]
    assert len(texts) / 2 < len(apart) < len(texts)
    unit = codegen.assemble([f"/* {' '.join(apart)} */"])
    linked = build.libraries(build.compiler(), [unit], ARCH)
    assert "-lm" not in linked
    assert not compiled(unit, tmp_path, "-shared", "-nostartfiles", "-Wl,-z,defs", *linked, "-lc")


@pytest.mark.parametrize("target", ["x86-64-sse2", "aarch64"])
def test_targets_whose_instructions_round_nothing_have_the_mathematics(target):
    assert "-lm" in build.libraries(build.compiler(), ["int nothing;"], target)


@pytest.mark.parametrize("width", [16, 32])
def test_targets_without_wide_vectors(native_bench, width):
    """Plain SSE2, and AVX2 text built without its instructions: slower, and right."""
    plain = Bench(Target("cpu", "x86-64-sse2", (), width, 2), native_bench.folder)
    i = axis("i0", 1003)
    x = load("x", DType.F32, i.symbol)
    ops = (
        Op.EXP,
        Op.LOG,
        Op.TANH,
        Op.ERF,
        Op.SIN,
        Op.ROUND,
        Op.FLOOR,
        Op.SQRT,
        Op.SIGMOID,
        Op.EXPM1,
        Op.LOG1P,
    )
    steps = [nest([i], [Store(o.value, i.symbol, op(o, x)) for o in ops])]
    out = {o.value: torch.empty(1003) for o in ops}
    plain.check(steps, {"x": torch.randn(1003) * 3}, out, rtol=4e-7, atol=1e-44)
    half = op(Op.CAST, load("h", DType.F16, i.symbol), dtype=DType.F32)
    steps = [nest([i], [Store("y", i.symbol, op(Op.CAST, half, dtype=DType.BF16))])]
    plain.check(
        steps, {"h": torch.randn(1003).half()}, {"y": torch.empty(1003, dtype=torch.bfloat16)}, rtol=0
    )


_DEALT = """
static int64_t now, all, made;
static int thread(void) { return (int)now; }
static int threads(void) { return (int)all; }
static void team(void (*f)(void *), void *p, unsigned n, unsigned flags) { for (now = made - 1; now >= 0; --now) f(p); now = 0; }
static void note(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {
  int64_t *const order = (int64_t *)b[0];
  for (int64_t i = lo; i < hi; ++i) order[++order[0]] = i;
}
void deal(int64_t *order, int64_t tasks, int64_t wanted, int64_t came) {
  void *b[1] = {order};
  all = wanted; made = came;
  bz_team = team; bz_thread = thread; bz_threads = threads;
  bz_run_free(note, b, 0, tasks, (int64_t)1 << 40);
}
"""


def test_costly_tasks_are_done_once_each_by_as_many_threads_as_come(tmp_path):
    """A thread begins with a share of its own, tasks that lie beside each other, and then does what is left of the others'."""
    path = tmp_path / "lib.so"
    path.write_bytes(build.build_c([codegen.assemble([_DEALT], runtime=True)], ARCH))
    deal = ctypes.CDLL(str(path)).deal
    for tasks in (0, 1, 2, 7, 64, 100):
        for wanted in (1, 2, 3, 64, 200):
            for came in {1, (wanted + 1) // 2, wanted}:
                order = (ctypes.c_int64 * (tasks + 1))()
                deal(order, *map(ctypes.c_int64, (tasks, wanted, came)))
                assert order[0] == tasks
                assert sorted(order[1:]) == list(range(tasks))
                if wanted == 2 and tasks >= 2 and came == 2:
                    assert order[1] == -(-tasks // 2)
