"""Fakes keep what tracing must know of a tensor, and the memo gives what PyTorch would."""

from __future__ import annotations

import pytest
import torch

from braze.graph.fakes import fakes
from braze.graph.rules.memo import Memo
from braze.support.errors import Unsupported
from tests import processes


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(5)[2:],
        lambda: torch.randn(1).expand(4, 4),
        lambda: torch.tensor(1.0, dtype=torch.float64),
        lambda: torch.empty(0, 3, dtype=torch.int8),
        lambda: torch.nn.Parameter(torch.randn(2)),
        lambda: torch.randn(2, requires_grad=True),
    ],
)
def test_a_fake_has_the_metadata_of_the_tensor(make):
    real = make()
    mode = fakes.new_mode()
    fake = mode.fake(real)
    assert fakes.spec_of(fake) == fakes.spec_of(real)
    assert isinstance(fake, torch.nn.Parameter) == isinstance(real, torch.nn.Parameter)


def test_views_of_one_storage_stay_so():
    real = torch.randn(6)
    mode = fakes.new_mode()
    a, b = mode.fake(real[1:3]), mode.fake(real)
    assert shares(a, b)
    assert a.storage_offset() == 1
    assert not shares(a, mode.fake(torch.randn(6)))


def test_an_input_with_a_grad_fn_gets_one():
    real = torch.randn(3, requires_grad=True) * 2
    fake = fakes.new_mode().fake(real)
    assert fake.requires_grad and not fake.is_leaf


@pytest.mark.parametrize("cut", [slice(0, 2), slice(3, 3), slice(1, 4, 2)])
def test_a_result_of_autograd_with_gaps_keeps_its_strides(cut):
    real = torch.randn(5, 5, 5, requires_grad=True)[:, cut]
    fake = fakes.new_mode().fake(real)
    assert fake.stride() == real.stride() and fake.storage_offset() == real.storage_offset()
    assert fake.requires_grad and not fake.is_leaf


def test_subclasses_and_foreign_fakes_are_refused():
    class Mine(torch.Tensor):
        pass

    mode = fakes.new_mode()
    with pytest.raises(Unsupported, match="BZ2002"):
        mode.fake(torch.randn(2).as_subclass(Mine))
    with pytest.raises(Unsupported, match="BZ2003"):
        mode.fake(torch.eye(2).to_sparse())
    with pytest.raises(Unsupported, match="BZ2019"):
        mode.fake(fakes.new_mode().fake(torch.randn(2)))


CALLS = [
    (torch.nn.functional.linear, lambda: (torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)), {}),
    (torch.Tensor.view, lambda: (torch.randn(2, 6), 3, 4), {}),
    (torch.Tensor.t, lambda: (torch.randn(2, 6),), {}),
    (torch.chunk, lambda: (torch.randn(2, 6), 3, -1), {}),
    (torch.max, lambda: (torch.randn(2, 6), 1), {}),
    (torch.Tensor.contiguous, lambda: (torch.randn(2, 6),), {}),
    (torch.Tensor.contiguous, lambda: (torch.randn(2, 6).t(),), {}),
    (torch.Tensor.to, lambda: (torch.randn(2), torch.float32), {}),
    (torch.Tensor.to, lambda: (torch.randn(2),), {"dtype": torch.bfloat16}),
    (torch.Tensor.__getitem__, lambda: (torch.randn(4, 5), (slice(1, None, 2), None, ...)), {}),
    (torch.Tensor.add_, lambda: (torch.randn(2), 1), {}),
    (torch.Tensor.view, lambda: (torch.randn(4), torch.int32), {}),
    (torch.nn.functional.dropout, lambda: (torch.randn(4),), {"training": False}),
]


@pytest.mark.parametrize(("func", "make", "kwargs"), CALLS)
def test_a_memo_hit_gives_what_the_call_gives(func, make, kwargs):
    """The second call, answered by the memo, has the metadata and the aliasing of eager."""
    real = make()
    expected = func(*real, **kwargs)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    for _ in range(2):
        mode = fakes.new_mode()
        args = tuple(mode.fake(a) if isinstance(a, torch.Tensor) else a for a in real)
        with torch.no_grad(), mode:
            got = mode.call(func, args, kwargs)
        got = got if isinstance(got, (tuple, list)) else (got,)
        assert len(got) == len(expected)
        for have, want in zip(got, expected, strict=True):
            assert (have.shape, have.stride(), have.dtype) == (want.shape, want.stride(), want.dtype)
            assert have.storage_offset() == want.storage_offset()
            for i, argument in enumerate(real):
                if isinstance(argument, torch.Tensor):
                    assert (want is argument) == (have is args[i])
                    assert shares(want, argument) == shares(have, args[i])
        if func is torch.Tensor.add_:
            assert args[0]._version == 1


def test_constants_of_other_types_are_other_calls():
    mode = fakes.new_mode()
    x = mode.fake(torch.zeros(2, dtype=torch.int64))
    with torch.no_grad(), mode:
        for value in (1, 1.0, True, 1j):
            want = (torch.zeros(2, dtype=torch.int64) * value).dtype
            assert mode.call(torch.mul, (x, value), {}).dtype == want


def test_autocast_and_default_dtype_are_part_of_the_key():
    mode = fakes.new_mode()
    x, w = mode.fake(torch.randn(2, 3)), mode.fake(torch.randn(4, 3))
    with torch.no_grad(), mode:
        assert mode.call(torch.nn.functional.linear, (x, w), {}).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert mode.call(torch.nn.functional.linear, (x, w), {}).dtype == torch.bfloat16
        assert mode.call(torch.zeros, (2,), {}).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert mode.call(torch.zeros, (2,), {}).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_calls_with_an_effect_are_run_each_time():
    for _ in range(2):
        mode = fakes.new_mode()
        x = mode.fake(torch.randn(3))
        with mode:
            mode.call(torch.Tensor.requires_grad_, (x,), {})
            assert x.requires_grad
            y = mode.fake(torch.randn(3))
            mode.call(torch.Tensor.requires_grad.__set__, (y, True), {})
            assert y.requires_grad


def test_the_memo_serves_inference_mode_too():
    with torch.inference_mode():
        mode = fakes.new_mode()
        x = mode.fake(torch.randn(3))
        with mode:
            for _ in range(2):
                y = mode.call(torch.exp, (x,), {})
                assert y.is_inference() and y.shape == (3,)
                assert mode.call(torch.Tensor.add_, (y, 1), {}) is y


def test_grad_reaches_results_of_remembered_operators():
    mode = fakes.new_mode()
    w = mode.fake(torch.nn.Parameter(torch.randn(3)))
    with mode:
        for _ in range(2):
            y = mode.call(torch.exp, (w,), {})
            assert y.requires_grad and y.grad_fn is not None


def test_a_value_that_python_may_read_is_not_forgotten():
    mode = fakes.new_mode()
    with mode:
        for _ in range(2):
            assert (torch.tensor(3) + 4).item() == 7


def test_the_memo_keeps_below_its_limit():
    memo = Memo()
    mode = fakes.new_mode()
    x = mode.fake(torch.randn(2))
    key = memo.key(mode.dispatch, torch.exp, (x,), {}, ())
    memo.store(mode.dispatch, key, (x,), {}, x, mutates=False)
    assert memo.recall(mode.dispatch, key, (x,), {}) is x


def run_alone(code: str) -> str:
    done = processes.run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_first_operator_does_not_import_dynamo_and_a_later_compile_works():
    out = run_alone(
        "import sys, torch\n"
        "from braze.graph.fakes import fakes\n"
        "m = fakes.new_mode(); x = m.fake(torch.randn(3, 4))\n"
        "with m: y = torch.softmax(x + 1, -1); z = torch.nn.functional.layer_norm(x, [4])\n"
        "with m: y[0] = 4; n = torch.tensor(2); z[n.item()] = n\n"
        "print([n for n in sys.modules if n.startswith('torch._dynamo.') and n != 'torch._dynamo.config'])\n"
        "f = torch.compile(lambda x: torch.nn.functional.softplus(x) + 1, backend='eager')\n"
        "print(f(torch.zeros(1)).shape[0], 'torch._dynamo.eval_frame' in sys.modules)\n"
    )
    assert out == "[]\n1 True"
