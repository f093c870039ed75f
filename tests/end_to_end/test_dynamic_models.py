"""Models over many shapes: two or three captures, right at each shape, whichever way sizes became symbols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.cli.torchvision_ops import make_torchvision_importable
from braze.support import trace
from braze.support.errors import UserError

make_torchvision_importable()
transformers = pytest.importorskip("transformers")

ENCODER = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=128
)
DECODER = dict(ENCODER, num_key_value_heads=1, head_dim=16, max_position_embeddings=128)
T5 = dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=128)
GPT2 = dict(n_embd=32, n_layer=2, n_head=2, vocab_size=128, n_positions=128, bos_token_id=0, eos_token_id=0)
RESNET = dict(depths=[1, 1], hidden_sizes=[16, 32], embedding_size=16, layer_type="basic")

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", ENCODER),
    "gpt2": ("GPT2Model", "GPT2Config", {**GPT2, "use_cache": False}),
    "llama": ("LlamaModel", "LlamaConfig", {**DECODER, "use_cache": False}),
    "t5": ("T5EncoderModel", "T5Config", T5),
    "resnet": ("ResNetModel", "ResNetConfig", RESNET),
}
SHAPES = [(2, 11), (3, 11), (2, 7), (5, 16), (4, 9), (7, 33), (2, 64), (6, 5), (3, 17), (2, 11)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    with torch.no_grad():
        yield
    braze.reset()


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    model, config, fields = MODELS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**fields))
    return made.eval()


def inputs(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    if name == "resnet":
        return {"pixel_values": torch.rand(batch, 3, 32, 32 + length)}
    ids = torch.randint(128, (batch, length))
    if name == "bert":
        mask = torch.arange(length)[None, :].lt(torch.randint(1, length + 1, (batch, 1)))
        return {"input_ids": ids, "attention_mask": mask.long()}
    return {"input_ids": ids}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, True) for name in MODELS), ("bert", None), ("gpt2", None)]
)
def test_one_model_many_shapes(name: str, dynamic: bool | None) -> None:
    model = make(name)
    compiled = braze.compile(model, dynamic=dynamic, fullgraph=True)
    with trace.collect() as events:
        for batch, length in SHAPES:
            words = inputs(name, batch, length)
            expected, got = model(**words)[0], compiled(**words)[0]
            torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)
    captures = sum(kind == "capture" for kind, _ in events)
    assert captures <= (1 if dynamic else 3)


@pytest.mark.parametrize("name", MODELS)
def test_one_model_trains_on_many_shapes(name: str) -> None:
    """Loss and all gradients; one capture."""
    eager, ours = make(name).double(), make(name).double()
    compiled = braze.compile(ours, dynamic=True, fullgraph=True)
    with torch.enable_grad(), trace.collect() as events:
        for batch, length in SHAPES[:5]:
            words = inputs(name, batch, length)
            words = {k: v.double() if v.is_floating_point() else v for k, v in words.items()}
            for model in (eager, compiled):
                model.zero_grad()
                model(**words)[0].tanh().square().mean().backward()
            for have, want in zip(ours.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(have.grad, want.grad)
    assert sum(kind == "capture" for kind, _ in events) == 1
    assert not [p for kind, p in events if kind == "fallback" and str(p).startswith("the graph of")]


def test_named_sizes_take_one_capture() -> None:
    model = make("bert")
    shapes = {"input_ids": ("B", "S<=64"), "attention_mask": ("B", "S<=64")}
    compiled = braze.compile(model, shapes=shapes, fullgraph=True)
    with trace.collect() as events:
        for batch, length in SHAPES:
            words = inputs("bert", batch, length)
            torch.testing.assert_close(compiled(**words)[0], model(**words)[0], atol=2e-4, rtol=2e-4)
        with pytest.raises(UserError, match=r"(?s)BZ0021.*input_ids is 65.*S<=64"):
            compiled(**inputs("bert", 2, 65))
    assert sum(kind == "capture" for kind, _ in events) == 1


SWIN = dict(embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, patch_size=2, image_size=32)
PICTURES = [(2, 48, 64), (3, 48, 64), (2, 41, 47), (4, 41, 47), (3, 73, 79)]


def swin() -> nn.Module:
    """Sizes are padded to windows, cut, shifted and halved; some layers keep what their first call told them."""
    torch.manual_seed(0)
    return transformers.SwinModel(transformers.SwinConfig(**SWIN)).eval()


def test_windows_of_pictures_of_any_size() -> None:
    model, compiled = swin(), braze.compile(swin(), dynamic=True, fullgraph=True)
    with trace.collect() as events:
        for batch, height, width in PICTURES:
            picture = torch.rand(batch, 3, height, width)
            expected, got = model(picture)[0], compiled(picture)[0]
            torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)
    # which stages pad is decided by what the sizes are multiples of
    assert sum(kind == "capture" for kind, _ in events) == 2


def test_windows_are_captured_with_few_questions() -> None:
    """In SymPy the sizes of one stage are quotients of those of the last, and each view asks of products of them."""
    compiled = braze.compile(swin(), dynamic=True, fullgraph=True, backend="eager")
    before = trace.snapshot()[0]["size_questions"]
    compiled(torch.rand(2, 3, 64, 80))
    assert trace.snapshot()[0]["size_questions"] - before < 85
