"""Real models on a GPU: one graph, Triton kernels, and answers no further from float64 than eager's."""

from __future__ import annotations

import copy

import pytest
import torch

import braze
from braze.support import trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def bert():
    """BERT-base with random weights, 8 sentences of 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4))
    return model, {
        "input_ids": torch.randint(0, 30000, (8, 128)),
        "attention_mask": torch.ones(8, 128).long(),
    }


def resnet(act="relu"):
    """ResNet-50 with random weights, 8 pictures. Norms that multiply by a number just below 1, as fresh ones do, turn each sum of two
    bfloat16 numbers that lies between two others down, where its exact value is: 16 blocks lose 1%, which eager's earlier rounding hides."""
    from transformers import ResNetConfig, ResNetModel

    model = ResNetModel(ResNetConfig(hidden_act=act))
    for name, values in model.state_dict().items():
        if name.endswith(("running_var", "normalization.weight")):
            values.uniform_(0.8, 1.2)
    return model, {"pixel_values": torch.randn(8, 3, 224, 224)}


def last(output):
    """The tensor that is compared."""
    return output.last_hidden_state


@pytest.mark.parametrize("make", [bert, resnet])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_model_is_right_and_in_one_graph(make, dtype):
    """Compiled bf16 and fp32 are as near to float64 as eager is, from kernels that braze wrote."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, inputs = make()
    model = model.eval()
    inputs = {k: v.cuda() for k, v in inputs.items()}
    exact_inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    run_inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        model = model.cuda().to(dtype)
        exact = last(copy.deepcopy(model).double()(**exact_inputs))
        eager = last(model(**run_inputs))
        with trace.collect() as events:
            compiled = braze.compile(model, fullgraph=True)
            ours = last(compiled(**run_inputs))
            again = last(compiled(**run_inputs))
    assert ours.dtype == eager.dtype
    assert ours.stride() == eager.stride()
    theirs = (eager.double() - exact).norm() / exact.norm()
    mine = (ours.double() - exact).norm() / exact.norm()
    assert mine <= theirs * 1.05 + 1e-7, (float(mine), float(theirs))
    assert torch.equal(ours, again)
    captures = [p for k, p in events if k == "capture"]
    assert len(captures) == 1


@pytest.mark.parametrize("shape", [(64, 1000), (8, 40000), (3, 1), (4096, 768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows(shape, dtype):
    """Softmax and layer norm, persistent and looped, after a pointwise producer."""

    def f(x, y, w):
        z = x + torch.nn.functional.gelu(y)
        return (
            torch.softmax(z, -1),
            torch.nn.functional.layer_norm(z, z.shape[-1:], w),
            z.amax(-1),
            z.argmax(-1),
        )

    torch.manual_seed(0)
    x, y, w = (torch.randn(s, device="cuda", dtype=dtype) for s in (shape, shape, shape[-1:]))
    with torch.no_grad():
        found = zip(
            braze.compile(f, fullgraph=True)(x, y, w),
            f(x, y, w),
            f(x.double(), y.double(), w.double()),
            strict=True,
        )
        for ours, eager, exact in found:
            assert ours.dtype == eager.dtype
            if eager.dtype.is_floating_point:
                theirs = (eager.double() - exact).norm()
                assert (ours.double() - exact).norm() <= theirs * 1.05 + 1e-7 * exact.norm()
            else:
                assert (ours == eager).float().mean() > 0.99  # equal maxima may round apart
