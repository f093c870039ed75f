"""Calls on fakes with symbolic sizes are remembered within their trace, and a hit gives what the call would."""

import contextlib

import pytest
import torch

from braze.graph.fakes import fake_dispatch, fakes, torch_composites
from braze.graph.private import torch_symbols
from braze.graph.private.torch_compat import storage_key

CALLS = {
    "linear": lambda x, w: torch.nn.functional.linear(x, w),
    "view": lambda x, w: x.view(x.shape[0], x.shape[1], 2, 4),
    "transpose": lambda x, w: x.transpose(0, 1),
    "chunks": lambda x, w: x.split(4, dim=-1),
    "slice": lambda x, w: x[:, 1:],
    "new": lambda x, w: x.new_zeros(x.shape[0], 3),
    "ones": lambda x, w: torch.ones(x.shape[1], x.shape[0]),
    "expand": lambda x, w: w[:1].expand(x.shape[1], 8),
    "softmax": lambda x, w: (x @ x.transpose(1, 2)).softmax(-1),
    "argmax": lambda x, w: x.max(dim=1),
    "flipped": lambda x, w: x.flip(1),
    "double": lambda x, w: x.transpose(0, 1).to(torch.float64),
}


def composites():
    """Where C++ would make numbers of symbolic sizes, Python's composites, as ``FakeMode.call`` has it."""
    return (
        torch_composites.composites_in_python()
        if torch_symbols.COMPOSITES_FIX_SIZES
        else contextlib.nullcontext()
    )


def made(sizes=(5, 6, 8), dims=(0, 1)):
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(torch.randn(sizes), symbolic_dims=set(dims), source="x")
    w = mode.fake(torch.randn(8, 8))
    return mode, x, w


def described(value, among):
    if isinstance(value, torch.Tensor):
        place = [i for i, a in enumerate(among) if storage_key(a) == storage_key(value)]
        text = (
            *map(str, (value.shape, value.stride(), value.storage_offset())),
            str(value.untyped_storage().nbytes()) if not place else place,
        )
        return (type(value), value.dtype, value.device, value.is_contiguous(), value._is_view(), *text)
    if isinstance(value, tuple | list):
        return (len(value), *(described(v, [*among, *value[:i]]) for i, v in enumerate(value)))
    return (type(value), str(value))


@pytest.mark.parametrize("name", CALLS)
def test_a_hit_is_what_the_call_gives(name):
    mode, x, w = made()
    with mode, torch.no_grad(), composites():
        first = CALLS[name](x, w)
        guards = len(mode.env.guards)
        hits = fake_dispatch.OPERATORS.hits
        second = CALLS[name](x, w)
        assert fake_dispatch.OPERATORS.hits > hits
        assert len(mode.env.guards) == guards
        assert described(second, (x, w)) == described(first, (x, w))
        if isinstance(first, torch.Tensor) and storage_key(first) not in map(storage_key, (x, w)):
            assert storage_key(first) != storage_key(second)


def test_what_comes_after_a_hit_is_the_same_too():
    """A fake that a hit made is as good as one that the kernel made: reshaped, reduced, written, viewed."""
    mode, x, w = made()
    with mode, torch.no_grad(), composites():
        made_first, made_by_hit = (torch.nn.functional.linear(x, w).transpose(1, 2) for _ in range(2))
        for each in (made_first, made_by_hit):
            each.add_(1)
        for use in (
            lambda t: t.reshape(t.shape[0], -1),
            lambda t: t.contiguous().view(-1),
            lambda t: t.sum((0, 1)),
            lambda t: t[0, :, 1:],
            lambda t: t.is_contiguous(),
            lambda t: torch.empty_like(t),
        ):
            assert described(use(made_by_hit), ()) == described(use(made_first), ())


def test_one_trace_knows_nothing_of_another():
    """The same symbols name other sizes there, and guards are asked anew."""
    for sizes in ((5, 6, 8), (7, 3, 8)):
        mode, x, _ = made(sizes)
        with mode, torch.no_grad(), composites():
            y = torch.cat([x, x], 1)
            assert [n.node.hint for n in y.shape[:2]] == [sizes[0], 2 * sizes[1]]
            with pytest.raises(RuntimeError):
                torch.mm(x[0], x[0])
            assert mode.env.guards


def test_sizes_that_only_data_tell_are_new_at_each_call():
    mode = fakes.new_mode(dynamic=True, shapes=True)
    x = mode.fake(torch.randn(4, 3), symbolic_dims={0}, source="x")
    with mode:
        assert str((x + 1).nonzero().shape[0]) != str((x + 1).nonzero().shape[0])


def test_nothing_is_kept_when_the_trace_is_done():
    mode, x, _ = made()
    with mode, torch.no_grad(), composites():
        torch.exp(x)
    assert any(mode.dispatch.symbolic_memos.values())
    mode.release()
    assert not mode.dispatch.symbolic_memos
