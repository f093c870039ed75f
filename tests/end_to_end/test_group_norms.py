"""Group norm of pictures whose channels lie beside each other: as near to float64 as eager, and no lane looks its group up."""

import pytest
import torch
import torch.nn.functional as F

import braze

SHAPES = [((2, 64, 6, 5), 8), ((2, 12, 16, 16), 6), ((1, 40, 8, 8), 4), ((3, 8, 7, 7), 8), ((2, 64, 4, 4), 1), ((2, 48, 3, 3), 3), ((4, 8, 1, 1), 2)]  # fmt: skip


def normalized(groups):
    def program(x, weight, bias):
        return F.silu(F.group_norm(x, groups, weight, bias))

    return program


def inputs(shape, form=torch.channels_last, dtype=torch.float32):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2 + 3).to(dtype).contiguous(memory_format=form)
    return x, torch.randn(shape[1]).to(dtype), torch.randn(shape[1]).to(dtype)


def with_gradients(call, given, upstream):
    given = [v.clone().requires_grad_() for v in given]
    result = call(*given)
    return result.detach(), *torch.autograd.grad(result, given, upstream.to(result.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_values_and_gradients_are_as_near_as_eagers(shape, groups, form, dtype):
    given = inputs(shape, form, dtype)
    upstream = torch.randn(shape).contiguous(memory_format=form)
    program = normalized(groups)
    exact = with_gradients(program, [v.double() for v in given], upstream.to(dtype))
    eager = with_gradients(program, given, upstream)
    ours = with_gradients(braze.compile(program, options={"verify": 2}), given, upstream)
    for got, theirs, right in zip(ours, eager, exact, strict=True):
        assert got.dtype is theirs.dtype
        room = torch.finfo(dtype).eps * right.abs().max()
        assert (got - right).abs().max() <= 2 * (theirs - right).abs().max() + 4 * room


@pytest.mark.parametrize("masked", [(True, False, False), (True, True, False), (False, True, True)])
def test_each_gradient_alone(masked):
    """Eager dies of a picture in channels-last that needs none."""
    given, program = inputs((2, 12, 8, 8)), normalized(3)
    found = []
    for call, lay in ((program, torch.Tensor.contiguous), (braze.compile(program), torch.Tensor.clone)):
        mine = [lay(v).double().requires_grad_(m) for v, m in zip(given, masked, strict=True)]
        found.append(torch.autograd.grad(call(*mine).square().sum(), [v for v in mine if v.requires_grad]))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("each", [2, 8, 10])
def test_vectors_read_statistics_of_all_channels(each, tmp_path, monkeypatch):
    """Neither half of a step divides a channel by the channels of a group."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    given = inputs((2, 4 * each, 16, 16))
    with_gradients(braze.compile(normalized(4)), given, torch.randn(given[0].shape))
    texts = [file.read_text() for file in sorted(tmp_path.glob("*_schedule.txt"))]
    assert len(texts) == 2
    for text in texts:
        assert "_by_" in text and f"//{each}" not in text


@pytest.mark.parametrize("taken", [(1,), (2,), (1, 2)])
def test_one_statistic_alone_has_no_gradient(taken):
    """PyTorch makes a gradient of the mean and the deviation where both are in the loss."""

    def program(x):
        return torch.native_group_norm(x, None, None, 2, 4, 9, 2, 1e-5)

    found = []
    for call in (program, braze.compile(program)):
        torch.manual_seed(0)
        x = torch.randn(2, 4, 9, dtype=torch.float64, requires_grad=True)
        results = call(x)
        loss = sum(results[i].sum() for i in taken)
        found.append(torch.autograd.grad(loss, x, allow_unused=True)[0])
    theirs, ours = found
    assert (ours is None) is (theirs is None) is (len(taken) == 1)
    if theirs is not None:
        torch.testing.assert_close(ours, theirs)
