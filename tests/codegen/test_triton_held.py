"""Rows of which a part stays in registers from one walk to the next; in Triton's interpreter."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.schedule.facts.records import GroupKind
from braze.schedule.forms import shifted
from braze.schedule.gpu import kernels
from braze.schedule.gpu.held import DOWN_CUTS, HeldCut
from braze.symbolic.expr import Symbol
from braze.target import Target
from tests.codegen.held_offline import WIDTHS
from tests.codegen.machine_code import REGISTERS, SHARED
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_forms import INF, NAN, check, numbers, small
from tests.codegen.test_triton_vectors import plan_of
from tests.codegen.triton_bench import context, planned
from tests.codegen.triton_groups import buffer, softmax_group

__all__ = ["small"]


@pytest.fixture
def held(small, monkeypatch):
    """Programs of one warp, which hold two tiles of 256 numbers of 32 bits, and walk the rest of their rows."""
    monkeypatch.setattr(kernels, "cuts_of", lambda *told, **how: [HeldCut(1, 64, 16, 1 << 20)])
    monkeypatch.setattr(kernels, "SHORT", range(0))
    monkeypatch.setattr(kernels, "CACHED_FLOATS", 0)


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * w


FUNCTIONS = {
    "log softmax": lambda x: torch.log_softmax(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
    "several": lambda x: (x.sum(1), x.amax(1), (x > 3).any(1), x - x.exp().sum(1, keepdim=True)),
    "three walks": lambda x: x - x.amax(1, keepdim=True) - (x - x.amax(1, keepdim=True)).abs().sum(1, keepdim=True),
}  # fmt: skip


#: whole tiles and others, rows that begin at vectors and anywhere
LENGTHS = (512, 700, 265, 1031)
MORE = (256, 768, 1024, 521)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("name", "length"),
    [*itertools.product(FUNCTIONS, LENGTHS), *itertools.product(("log softmax", "softmax"), MORE)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_held_in_part_give_what_rows_give_that_are_read_again(name, dtype, length, tmp_path):
    """Rows of a tile and more, whole ones and others, that begin at vectors and anywhere; of numbers that are not finite, too."""
    x = numbers(7, length, dtype=dtype)
    x[1, 0], x[1, -1], x[3], x[5, 2], x[6, 255] = INF, INF, -INF, NAN, -INF
    check(FUNCTIONS[name], tmp_path, x, cores=1, digits=8e-3 if dtype is torch.float16 else 1e-5)
    plan = plan_of(FUNCTIONS[name], x, cores=1)
    tiles = 4 if dtype is torch.float16 else 2
    assert plan.held == min(tiles, (length - (plan.vector - 1)) // 256) > 0


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("length", [256, 300, 777, 1024])
@pytest.mark.parametrize("shift", [0, 1000])
def test_the_mean_and_variance_of_rows_held_in_part(length, shift, tmp_path):
    """Far from zero as near it: each lane's numbers are summed about one of them."""
    x, w, b = numbers(5, length) + shift, numbers(length, seed=1), numbers(length, seed=2)
    fn = lambda x, w, b: F.layer_norm(x, (length,), w, b)
    check(fn, tmp_path, x, w, b, cores=1, digits=1e-5 if shift == 0 else 2e-3)
    assert plan_of(fn, x, w, b, cores=1).held == min(2, length // 256)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("length", [263, 519, 777, 1031])
@pytest.mark.parametrize(("dtype", "shift"), [(torch.float32, 0), (torch.float32, 1000), (torch.float16, 0)])
def test_the_mean_and_variance_of_rows_that_begin_anywhere(length, dtype, shift, tmp_path):
    """What lies ahead of a row's first vector and behind its last one is taken about the mean; a row with what is not finite has neither."""
    x = numbers(9, length, dtype=dtype) + shift
    x[2, 0], x[4, -1], x[6, length // 2] = NAN, INF, -INF
    fn = lambda x: torch.var_mean(x, 1, keepdim=True)[0] * 2 + (x - torch.var_mean(x, 1, keepdim=True)[1])
    digits = 8e-3 if dtype is torch.float16 else 1e-5 if shift == 0 else 2e-3
    check(fn, tmp_path, x, cores=1, digits=digits)
    plan = plan_of(fn, x, cores=1)
    assert plan.begin is not None and plan.held > 0


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("length", [519, 777])
@pytest.mark.parametrize(("dtype", "weight"), [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.float16, torch.float32)])  # fmt: skip
def test_what_rows_share_that_begin_anywhere_is_read_in_whole_vectors(
    length, dtype, weight, tmp_path, monkeypatch
):
    """A kernel before lays it out for each place where a row may begin; numbers that are not finite stay in their columns."""
    monkeypatch.setattr(shifted, "LEAST_ROWS", 9)
    x, w, b = (
        numbers(9, length, dtype=dtype),
        numbers(length + 3, seed=1, dtype=weight)[1:-2],
        numbers(length, seed=2, dtype=weight),
    )
    w[0], w[300], b[length - 1], b[8] = NAN, INF, -INF, NAN
    fn = lambda x, w, b: ((x - x.float().mean(1, keepdim=True)) * w + b).to(x.dtype)
    check(fn, tmp_path, x, w, b, cores=1, digits=8e-3 if dtype is torch.float16 else 1e-5)
    before, after = generate(planned(fn, x, w, b, cores=1), context(1))
    assert before.source.count("tl.store(") == 2
    assert "(head * " in after.source and not re.search(r"in_ptr\d \+ \(r0\)", after.source)


@pytest.mark.usefixtures("held")
def test_what_few_rows_share_or_such_as_begin_at_vectors_is_read_where_it_is(monkeypatch):
    fn = lambda x, w: (x - x.mean(1, keepdim=True)) * w
    monkeypatch.setattr(shifted, "LEAST_ROWS", 9)
    for rows, length in ((8, 777), (9, 776)):
        assert (
            len(generate(planned(fn, torch.empty(rows, length), torch.empty(length), cores=1), context(1)))
            == 1
        )


@pytest.mark.usefixtures("held")
def test_a_row_of_zeros_and_one_of_equal_numbers_have_no_variance(tmp_path):
    x = torch.stack([torch.zeros(600), torch.full((600,), 3.5), torch.full((600,), -1e4)])
    fn = lambda x: x - torch.var_mean(x, 1, keepdim=True)[0] - torch.var_mean(x, 1, keepdim=True)[1]
    check(fn, tmp_path, x, cores=1)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("length", [512, 700])
def test_what_several_rows_share_is_not_held(length, tmp_path):
    """A weight along the row is read once, and by every program."""
    x, w = numbers(4, length), numbers(length, seed=1)
    check(rms_norm, tmp_path, x, w, cores=1)
    (text,) = generate(planned(rms_norm, x, w, cores=1), context(1))
    assert text.source.count("= bz_again(") == plan_of(rms_norm, x, w, cores=1).held


@pytest.mark.usefixtures("held")
def test_two_rows_are_held_side_by_side(tmp_path):
    """As a softmax's gradient reads the result and what comes back; a tile less of each finds room."""
    fn = lambda g, y: (g - (g * y).sum(1, keepdim=True)) * y
    g, y = numbers(4, 900), torch.softmax(numbers(4, 900, seed=1), 1)
    check(fn, tmp_path, g, y, cores=1)
    assert plan_of(fn, g, y, cores=1).held == 1


@pytest.mark.usefixtures("held")
def test_a_part_of_a_row_between_others(tmp_path):
    wide = numbers(4, 803)
    wide[:, 0], wide[:, -1] = NAN, INF
    check(lambda x: x - x.exp().sum(1, keepdim=True), tmp_path, wide[:, 1:-1], cores=1)


@pytest.mark.usefixtures("held")
def test_a_held_number_is_read_once_and_stored_from_registers():
    x = torch.empty(64, 777)
    (text,) = generate(planned(FUNCTIONS["log softmax"], x, cores=1), context(1))
    first, second = text.source.split("tl.log(")
    # edges, the walked tiles, the last vectors, two held tiles; edges, the last vectors, the walked tiles
    assert (first.count("tl.load("), second.count("tl.load("), second.count("= bz_again(")) == (5, 3, 2)


@pytest.mark.usefixtures("held")
def test_what_is_never_held():
    """What only one walk reads, or is drawn, or comes as bytes or doubles, or has places counted along it."""

    def tiles(fn, *inputs, **options):
        return plan_of(fn, *inputs, cores=1, **options).held

    x = torch.empty(64, 777)
    assert tiles(lambda x: torch.logsumexp(x, 1), x) == 0
    assert tiles(lambda x: x.argmax(1, keepdim=True) + x, x) == 0
    assert tiles(lambda x: x / x.sum(1, keepdim=True), x.to(torch.float64)) == 0
    assert tiles(lambda x: (x > 0) & (x > 0).any(1, keepdim=True), x.to(torch.int8)) == 0
    assert tiles(lambda x: F.dropout(x, 0.5, True) - x.sum(1, keepdim=True), x) == 0
    assert tiles(FUNCTIONS["softmax"], x) == 2


@pytest.mark.usefixtures("held")
def test_other_gpus_get_no_words_of_nvidias():
    """Registers are counted, and the move that hides a value is written, for NVIDIA's compiler alone."""
    schedule = planned(FUNCTIONS["softmax"], torch.empty(64, 700), cores=1)
    told = []
    for target in (context(1).target, Target("cuda", "gfx942")):
        (text,) = generate(schedule, replace(context(1), target=target))
        told.append(dict(text.launch.constants)["HELD"])
    assert told == [64, 0]


def test_how_rows_are_held():
    """Of 16 bits by two programs side by side, while the rest of both is in the cache; else by one. Twice the registers for two values a place."""

    def cut(fn, *shapes, dtype=torch.bfloat16):
        plan = plan_of(fn, *(torch.empty(s, dtype=dtype, device="meta") for s in shapes))
        return plan.held and (plan.held, plan.row.block, plan.warps, plan.registers, plan.unrolled)

    log, norm = FUNCTIONS["log softmax"], lambda x: F.layer_norm(x, (x.shape[1],))
    back = lambda g, y: ((g.float() - (g.float() * y.float()).sum(1, keepdim=True)) * y.float()).to(g.dtype)
    assert cut(log, (8192, 50257)) == cut(FUNCTIONS["softmax"], (8192, 65536)) == (5, 4096, 16, 64, 2)
    assert cut(log, (8192, 50257), dtype=torch.float32) == (4, 8192, 32, 64, 2)
    assert cut(log, (8192, 100_000)) == cut(norm, (2048, 131_072)) == (6, 8192, 32, 64, 2)
    # of a norm's row little is held while the rest stays in the cache
    assert cut(norm, (8192, 20_000)) == cut(norm, (4096, 32768)) == (2, 4096, 16, 64, 2)
    assert cut(norm, (4096, 40_960)) == cut(norm, (2048, 65536)) == (2, 8192, 32, 64, 2)
    assert cut(norm, (2048, 32768), dtype=torch.float32) == (1, 8192, 32, 64, 2)
    assert cut(norm, (2048, 49152), dtype=torch.float32) == (2, 8192, 32, 64, 2)
    assert cut(norm, (2048, 80_000)) == cut(norm, (2048, 50_257)) == (6, 8192, 32, 64, 2)
    assert cut(back, (4096, 50257), (4096, 50257)) == (6, 4096, 16, 128, 2)
    # nearly all of it is still in the cache where its program is alone on a multiprocessor
    assert cut(FUNCTIONS["softmax"], (512, 131_072)) == 0
    # shorter rows of floats are in the cache, too
    assert cut(log, (8192, 32768), dtype=torch.float32) == cut(log, (8192, 21845), dtype=torch.float32) == 0
    # hardly anything of it could be held
    assert cut(log, (4096, 1 << 20), dtype=torch.float32) == 0


@pytest.mark.slow
def test_held_rows_stay_in_registers():
    """Compiled to sm_90 machine code: nothing is spilled, and as many programs fit a multiprocessor as are to share it."""
    printed = [s for s in offline("tests.codegen.held_offline").splitlines() if s.startswith("cut ")]
    assert len(printed) == 7 + len(WIDTHS) and all(" 0 bytes of stack" in line for line in printed)
    told = [re.search(r"backward of (\d+)\]: (\d+) registers, .* (\d+) shared", line) for line in printed]
    norms = {int(found[1]): (int(found[2]), int(found[3])) for found in told if found}
    for width in WIDTHS:
        (registers, shared), cut = norms[width], DOWN_CUTS[width]
        assert registers * 32 * cut.warps * cut.programs <= REGISTERS and shared * cut.programs <= SHARED, (
            width
        )


def test_rows_of_any_number_are_held_and_rows_of_any_length_are_walked():
    size = Symbol("s0", 2, 4096)
    held = []
    for rows, width in ((size, 20000), (64, size)):
        shapes = {
            "x": (rows, width),
            "e": (rows, width),
            "out": (rows, width),
            "top": (rows,),
            "total": (rows,),
        }
        buffers = {name: buffer(name, shape) for name, shape in shapes.items()}
        plan = kernels.plan_kernel(softmax_group(rows, width, GroupKind.LOOPED), buffers)
        held.append((plan.sizes, plan.held))
    assert held == [((size,), 2), ((size,), 0)]
