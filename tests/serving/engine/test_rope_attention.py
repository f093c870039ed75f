"""Attention from the merged projection: the reference against its parts, the kernels against float64."""

from __future__ import annotations

import pytest
import torch

from braze.serving.engine.attention import operators, reference
from braze.serving.step.context import forward_context
from braze.support.errors import UserError
from tests.codegen.triton_bench import computed_bounds
from tests.serving.engine.batches import Batch, batch, dense
from tests.serving.engine.test_attention import SHAPES, case, metadata

kernels = pytest.importorskip("braze.serving.engine.attention.triton_rope")

#: heads, heads of the cache, dim, norms
HEADS = {
    "one head": (1, 1, 16, True),
    "groups": (4, 2, 32, True),
    "odd groups": (6, 2, 40, True),
    "no norms": (4, 2, 16, False),
}
EPS, SCALE = 1e-6, 0.3


@pytest.fixture(autouse=True)
def forms_anew():
    """What a launch is built with is worked out again, here by other functions."""
    kernels.decode_launch.cache_clear()
    yield
    kernels.decode_launch.cache_clear()


class Layer:
    """A step's projection, and a cache that holds what came before it."""

    def __init__(
        self,
        b: Batch,
        heads: str | tuple[int, int, int, bool],
        page: int,
        blocks: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.many, self.shared, self.dim, norms = HEADS[heads] if isinstance(heads, str) else heads
        rows = self.many + 2 * self.shared
        self.qkv = torch.randn(b.tokens + 2, rows * self.dim, dtype=dtype)
        lengths = [n for n in b.seq_lens.tolist()]
        spans = zip(b.cu_seqlens.tolist(), b.cu_seqlens.tolist()[1:], lengths, strict=False)
        places = [length - (end - begin) + i for begin, end, length in spans for i in range(end - begin)]
        self.positions = torch.tensor(places + [0, 0])
        angles = torch.randn(max(64, *lengths), self.dim // 2, dtype=torch.float64)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.weights = tuple(torch.rand(self.dim, dtype=dtype) + 0.5 if norms else None for _ in range(2))
        self.keys = torch.randn(blocks, page, self.shared, self.dim, dtype=dtype)
        self.values = torch.randn(blocks, page, self.shared, self.dim, dtype=dtype)
        self.arrivals = torch.zeros(16, dtype=torch.int32)

    def to(self, device: str) -> Layer:
        """The same in another device's memory."""
        found = object.__new__(Layer)
        found.__dict__.update(
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in vars(self).items()}
        )
        found.weights = tuple(w if w is None else w.to(device) for w in self.weights)
        return found

    def double(self) -> Layer:
        found = object.__new__(Layer)
        kept = {
            k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
            for k, v in vars(self).items()
        }
        found.__dict__.update(kept, weights=tuple(w if w is None else w.double() for w in self.weights))
        return found

    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return self.qkv, self.positions, self.cos, self.sin, *self.weights, self.keys, self.values

    def empty(self) -> torch.Tensor:
        return torch.full((len(self.qkv), self.many, self.dim), 7.0, dtype=self.qkv.dtype)

    def exact(self, b: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(output, keys, values) in float64 by the reference's parts."""
        wide = self.double()
        wide.keys, wide.values = wide.keys.clone(), wide.values.clone()
        out = wide.empty()
        reference.rope_attention(*wide.tensors(), out, *b.metadata, b.slots, SCALE, EPS)
        return out[: b.tokens], wide.keys, wide.values


def test_the_reference_is_norms_rotation_the_write_and_attention():
    b, page, blocks = case("prompts, chunks and decodes")
    layer = Layer(b, "groups", page, blocks, torch.float64)
    rows = layer.qkv.view(-1, 8, 32)
    want = []
    for part, weight in ((rows[:, :4], layer.weights[0]), (rows[:, 4:6], layer.weights[1])):
        x = torch.nn.functional.rms_norm(part, (32,), weight, EPS)
        a, c = x[..., :16], x[..., 16:]
        cos, sin = layer.cos[layer.positions][:, None], layer.sin[layer.positions][:, None]
        want.append(torch.cat((a * cos - c * sin, c * cos + a * sin), -1)[: b.tokens])
    out, keys, values = layer.exact(b)
    torch.testing.assert_close(keys.flatten(0, 1)[b.slots], want[1], rtol=1e-6, atol=1e-6)
    assert torch.equal(values.flatten(0, 1)[b.slots], rows[: b.tokens, 6:])
    torch.testing.assert_close(out, dense(b, want[0], keys, values, SCALE), rtol=1e-6, atol=1e-6)


#: each shape with one kind of heads, each kind of heads with two shapes: the interpreter takes its time
PAIRS = [(shape, "odd groups") for shape in SHAPES]
PAIRS += [
    (shape, h)
    for h in HEADS
    for shape in ("two tokens each, as drafts are verified", "a chunk behind a prefix")
]


def close(found: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=3e-5, atol=5e-6)


@computed_bounds
@pytest.mark.parametrize("splits", ["split", "whole", "long"])
@pytest.mark.parametrize(("shape", "heads"), dict.fromkeys(PAIRS))
def test_the_kernels_give_what_the_reference_gives(shape, heads, splits, monkeypatch):
    """Output and both caches, by one kernel with keys shared among programs or not, and by the two of longer steps."""
    b, page, blocks = case(shape)
    longest = int(b.cu_seqlens.diff().max())
    monkeypatch.setattr(kernels, "_MOST_ROWS", 0 if splits == "long" else 64)
    monkeypatch.setattr(kernels, "splits_of", lambda *_: 4 if splits == "split" else 1)
    monkeypatch.setattr(kernels, "decode_form", small_blocks(kernels.decode_form))
    layer = Layer(b, heads, page, blocks)
    exact = layer.exact(b)
    out = layer.empty()
    kernels.rope_attention(
        *layer.tensors(),
        out,
        layer.arrivals if splits == "split" else None,
        *b.metadata,
        b.slots,
        SCALE,
        EPS,
        longest,
    )
    close(out[: b.tokens], exact[0])
    assert (out[b.tokens :] == 7).all(), "rows of padding are left alone"
    close(layer.keys, exact[1])
    close(layer.values, exact[2])
    assert not layer.arrivals.any(), "the next layer counts from zero"


@computed_bounds
@pytest.mark.parametrize(("whole", "parts"), [(16, 4), (64, 1), (64, 2)])
@pytest.mark.parametrize(
    ("shape", "heads"),
    [
        ("one token", "groups"),
        ("one token of a long request", "one head"),
        ("decode at the borders of blocks", "odd groups"),
        ("decode with padded requests", "groups"),
        ("decode with padded requests", "no norms"),
    ],
)
def test_few_keys_are_taken_at_once_by_a_program_for_each_head(shape, heads, whole, parts, monkeypatch):
    """And more of them, in the same step, in splits."""
    b, page, blocks = case(shape)
    monkeypatch.setattr(kernels, "splits_of", lambda *_: 16)
    monkeypatch.setattr(kernels, "keys_at_once", lambda *_: {"WHOLE": whole, "PARTS": parts})
    monkeypatch.setattr(kernels, "decode_form", small_blocks(kernels.decode_form))
    layer = Layer(b, heads, page, blocks)
    exact = layer.exact(b)
    out = layer.empty()
    kernels.rope_attention(*layer.tensors(), out, layer.arrivals, *b.metadata, b.slots, SCALE, EPS, 1)
    close(out[: b.tokens], exact[0])
    assert (out[b.tokens :] == 7).all(), "rows of padding are left alone"
    close(layer.keys, exact[1])
    close(layer.values, exact[2])
    assert not layer.arrivals.any(), "the next layer counts from zero"


def test_heads_have_programs_of_their_own_where_registers_are_left_for_longer_requests():
    def keys(requests=1, heads=32, shared=8, splits=32, dim=64, tokens=1):
        return kernels.keys_at_once(requests, heads, shared, splits, dim, tokens, 2, 132)["WHOLE"]

    assert keys() == 256 and keys(heads=16, dim=128) in (128, 256)
    assert keys(tokens=2) == 0, "drafts are rows enough for tensor cores"
    assert keys(splits=2) == 0, "each head of a group needs a program"
    assert keys(requests=2) == 0, "longer requests have 512 programs"
    assert keys(requests=8, heads=16, splits=4, dim=128) == 0, "heads fill the device"


def small_blocks(plain):
    """Few keys a block, so that short requests have several splits."""
    return lambda *arguments: plain(*arguments) | {"BLOCK_N": 16}


@computed_bounds
@pytest.mark.parametrize("longest", [2, 32])
def test_slots_of_minus_one_write_nothing(longest):
    """Steps of padding, as recordings are made of."""
    b, page, blocks = case("two tokens each, as drafts are verified")
    layer = Layer(b, "groups", page, blocks)
    before = layer.keys.clone(), layer.values.clone()
    out = layer.empty()
    kernels.rope_attention(
        *layer.tensors(), out, None, *b.metadata, torch.full_like(b.slots, -1), SCALE, EPS, longest
    )
    assert torch.equal(layer.keys, before[0])
    assert torch.equal(layer.values, before[1])


@computed_bounds
def test_half_precision_stays_near_float64():
    b, page, blocks = case("decode at the borders of blocks")
    layer = Layer(b, "groups", page, blocks, torch.float16)
    exact, _, _ = layer.exact(b)
    plain, found = layer.empty(), layer.empty()
    kernels.rope_attention(*layer.tensors(), found, layer.arrivals, *b.metadata, b.slots, SCALE, EPS, 1)
    reference.rope_attention(*layer.tensors(), plain, *b.metadata, b.slots, SCALE, EPS)
    error, allowed = ((x[: b.tokens] - exact).abs().max() for x in (found, plain))
    assert error <= 1.5 * allowed + 1e-3


def test_the_operator_uses_its_layers_cache():
    b, page, blocks = case("a chunk behind a prefix")
    layer = Layer(b, "groups", page, blocks)
    exact, _, _ = layer.exact(b)
    caches = {"layer_3": operators.KVCache(layer.keys, layer.values)}
    out = layer.empty()
    arguments = *layer.tensors()[:6], out
    with forward_context(metadata(b), kv_cache_data=caches):
        torch.ops.braze.rope_attention_with_output(*arguments, 3, SCALE, EPS)
        close(out[: b.tokens], exact)
        with pytest.raises(UserError) as error:
            torch.ops.braze.rope_attention_with_output(*arguments, 4, SCALE, EPS)
    assert error.value.code == "BZ7401"
    with forward_context(None):
        torch.ops.braze.rope_attention_with_output(*arguments, 3, SCALE, EPS)
    assert not out.any()


@computed_bounds
def test_a_step_of_nothing_does_nothing():
    b = batch([1], [1], 4, 2)
    layer = Layer(b, "groups", 4, 2)
    nobody = b.cu_seqlens[:1], b.seq_lens[:0], b.block_tables[:0]
    kernels.rope_attention(*layer.tensors(), out := layer.empty(), None, *nobody, b.slots, SCALE, EPS, 1)
    kernels.rope_attention(*layer.tensors(), out[:0], None, *b.metadata, b.slots, SCALE, EPS, 1)
    assert (out == 7).all()


class Compiler:
    """In Triton's place: writes down what is built, and what is launched of that."""

    arg_names = (*(f"argument {i}" for i in range(26)), "HEADS", "PAGE")

    def __init__(self):
        self.built: list[dict] = []
        self.launched: list[tuple] = []

    def __getitem__(self, grid):
        def build(*arguments, **form):
            self.built.append(form)
            return Built(self, len(self.built))

        return build


class Built:
    def __init__(self, compiler, number):
        self.compiler, self.number = compiler, number

    def __getitem__(self, grid):
        return lambda *arguments: self.compiler.launched.append((self.number, grid, arguments))


def test_a_launch_of_what_is_built_does_not_ask_triton_again(monkeypatch):
    """But for another form, other whole numbers, other types, and memory that lies oddly: for each of these Triton builds apart."""
    compiler = Compiler()
    monkeypatch.setattr(kernels, "rope_decode_kernel", compiler)
    monkeypatch.setattr(kernels, "_built", {})
    x, half = torch.zeros(64), torch.zeros(64, dtype=torch.float16)
    form, other = (dict(HEADS=4, PAGE=16, num_warps=n) for n in (4, 8))

    def launch(tensor=x, number=7, scale=0.5, form=form, grid=(1, 2, 3)):
        arguments = (tensor, *[x] * 15, scale, 1e-6, number, *range(7))
        kernels._decode(grid, arguments, form)
        return arguments

    launch()
    again = launch(x.clone(), scale=0.25, grid=(9, 2, 1))
    assert len(compiler.built) == 1
    ((number, grid, given),) = compiler.launched
    assert (number, grid) == (1, (9, 2, 1))
    assert all(a is b for a, b in zip(given, (*again, 4, 16), strict=True))
    for words in ({"form": other}, {"number": 8}, {"tensor": half}, {"tensor": x[1:]}, {"tensor": x[1:]}):
        before = len(compiler.built)
        launch(**words)
        assert (len(compiler.built), len(compiler.launched)) == (before + 1, 1)
    launch(form=other), launch(number=8), launch(half), launch()
    assert [number for number, *_ in compiler.launched] == [1, 2, 3, 4, 1]


def test_what_is_kept_of_built_kernels_is_bounded(monkeypatch):
    compiler = Compiler()
    monkeypatch.setattr(kernels, "rope_decode_kernel", compiler)
    monkeypatch.setattr(kernels, "_built", {})
    monkeypatch.setattr(kernels, "_MOST_BUILT", 4)
    x, form = torch.zeros(64), dict(HEADS=4, PAGE=16)
    for number in (*range(9), 8):
        kernels._decode((1, 1, 1), (*[x] * 16, 0.5, 1e-6, number, *range(7)), form)
        assert len(kernels._built) <= 4
    assert (len(compiler.built), len(compiler.launched)) == (9, 1)
