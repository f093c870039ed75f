"""Models whose layers were wrapped or replaced: adapters of peft, norms of weights, quantized layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import braze
from braze.inspect.explain import Explanation, observe
from tests.helpers import as_double, tensors
from tests.models.cases import DECODER, SIZES, Case, masked, tokens

LLAMA = Case("llama", "LlamaForCausalLM", DECODER, tokens)
BERT = Case("bert", "BertModel", SIZES, masked)
ALL, TWO = "all-linear", ["q_proj", "v_proj"]

#: name -> (the configuration's class in peft, its fields)
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("LoraConfig", dict(r=4, lora_alpha=8, target_modules=ALL, init_lora_weights=False)),
    "lora-dropout": ("LoraConfig", dict(r=4, lora_dropout=0.1, target_modules=TWO, init_lora_weights=False, use_rslora=True)),
    "dora": ("LoraConfig", dict(r=4, use_dora=True, target_modules=ALL, init_lora_weights=False)),
    "loha": ("LoHaConfig", dict(r=2, target_modules=TWO, init_weights=False)),
    "lokr": ("LoKrConfig", dict(r=2, target_modules=TWO, init_weights=False)),
    "ia3": ("IA3Config", dict(target_modules=[*TWO, "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False)),
    "oft": ("OFTConfig", dict(oft_block_size=4, r=0, target_modules=TWO, init_weights=False)),
    "vera": ("VeraConfig", dict(r=4, target_modules=["q_proj"], init_weights=False)),
    "prompt": ("PromptTuningConfig", dict(task_type="CAUSAL_LM", num_virtual_tokens=3)),
    "prefix": ("PrefixTuningConfig", dict(task_type="CAUSAL_LM", num_virtual_tokens=3)),
    "p-tuning": ("PromptEncoderConfig", dict(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=16)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh():
    with torch.no_grad():
        yield
    braze.reset()


def calls_of(compiled: Any, inputs: dict[str, Any]) -> tuple[Any, Explanation, Explanation]:
    """The result of a first call, and what was compiled for it and for a second one."""
    results: list[Any] = []
    first, again = (observe(lambda: results.append(compiled(**inputs)), "model") for _ in range(2))
    same(results[1], results[0])
    return results[0], first, again


def same(ours: Any, theirs: Any) -> None:
    pairs = list(zip(tensors(ours), tensors(theirs), strict=True))
    assert pairs
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def one_graph_like_eager(model: nn.Module, inputs: dict[str, Any]) -> None:
    expected = model(**inputs)
    got, first, again = calls_of(braze.compile(model, backend="eager"), inputs)
    same(got, expected)
    assert not first.breaks and len(first.graphs) == 1, [(b.code, b.reason, b.place) for b in first.breaks]
    assert not again.graphs


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_peft(name):
    peft = pytest.importorskip("peft")
    config, fields = ADAPTERS[name]
    torch.manual_seed(0)
    model = peft.get_peft_model(LLAMA.make(), getattr(peft, config)(**fields)).eval()
    one_graph_like_eager(model, LLAMA.inputs(2))


def test_switching_adapters_is_another_graph_and_merging_too():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=TWO, init_lora_weights=False)
    torch.manual_seed(0)
    model = peft.get_peft_model(LLAMA.make(), config).eval()
    model.add_adapter("other", config)
    compiled = braze.compile(model, backend="eager")
    inputs = LLAMA.inputs(2)
    seen = []

    def step() -> None:
        got, expected = compiled(**inputs), model(**inputs)
        same(got, expected)
        seen.append(tensors(got)[0].clone())

    step()
    model.set_adapter("other")
    step()
    with model.disable_adapter():
        step()
    model.merge_adapter()
    step()
    model.unmerge_adapter()
    model.set_adapter("default")
    step()
    torch.testing.assert_close(seen[0], seen[4])
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.testing.assert_close(seen[3], seen[1])


class Adapted(nn.Module):
    """A layer with a small one beside it, as people write it by hand."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base, self.scale, self.merged = base, 0.5, False
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) * 0.1)

    @property
    def delta(self) -> torch.Tensor:
        return self.up @ self.down * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.merged:
            return nn.functional.linear(x, self.base.weight + self.delta, self.base.bias)
        return self.base(x) + nn.functional.linear(nn.functional.linear(x, self.down), self.up) * self.scale


def replace(model: nn.Module, wrap: Any) -> nn.Module:
    """The model with each of its linear layers wrapped."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, wrap(child))
        else:
            replace(child, wrap)
    return model


def test_adapters_written_by_hand():
    model = replace(BERT.make(), Adapted)
    one_graph_like_eager(model, BERT.inputs(2))
    for module in model.modules():
        if isinstance(module, Adapted):
            module.merged = True
    one_graph_like_eager(model, BERT.inputs(3))


NORMS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "weight_norm-old": nn.utils.weight_norm,
    "spectral_norm-old": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_weights(name):
    model = replace(BERT.make(), NORMS[name]).eval()
    one_graph_like_eager(model, BERT.inputs(2))


def test_a_cached_parametrization_is_computed_once():
    model = replace(BERT.make(), parametrizations.weight_norm).eval()
    compiled = braze.compile(model, backend="eager")
    inputs = BERT.inputs(2)
    expected = model(**inputs)
    with parametrize.cached():
        same(compiled(**inputs), expected)
        same(compiled(**inputs), expected)
    same(compiled(**inputs), expected)


def test_a_norm_that_is_taken_off_is_another_graph():
    model = replace(BERT.make(), parametrizations.weight_norm).eval()
    compiled = braze.compile(model, backend="eager")
    inputs = BERT.inputs(2)
    same(compiled(**inputs), model(**inputs))
    for module in model.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    same(compiled(**inputs), model(**inputs))


@pytest.mark.parametrize("wrap", [Adapted, parametrizations.weight_norm], ids=["by-hand", "weight_norm"])
def test_through_kernels(wrap):
    model, inputs = replace(BERT.make(), wrap).eval(), BERT.inputs(2)
    theirs = tensors(model(**inputs))
    ours = tensors(braze.compile(model)(**inputs))
    exact = tensors(as_double(model)(**as_double(inputs)))
    for a, b, c in zip(ours, theirs, exact, strict=True):
        error, eager = (a.double() - c).square().mean().sqrt(), (b.double() - c).square().mean().sqrt()
        assert float(error) <= 1.5 * float(eager) + 8 * torch.finfo(b.dtype).eps * float(c.abs().max())


@pytest.mark.filterwarnings("ignore")
def test_layers_quantized_as_they_run():
    """Their packed weights are objects of C++, which no graph holds: right answers, each layer run between graphs."""
    quantize = pytest.importorskip("torch.ao.quantization").quantize_dynamic
    model = quantize(BERT.make(), {nn.Linear}, dtype=torch.qint8)
    inputs = BERT.inputs(2)
    expected = model(**inputs)
    got, first, again = calls_of(braze.compile(model, backend="eager"), inputs)
    same(got, expected)
    assert {b.code for b in first.breaks} <= {"BZ1013", "BZ1002"}
    assert not again.graphs
