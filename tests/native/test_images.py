"""Tensors that a program has found in dictionaries are compared word by word; every change is seen all the same."""

import ctypes
import dataclasses
import os
import subprocess
import sys
import types

import pytest
import torch

from braze import native
from braze.native import GuardProgram, calibrate, layout, tensor_meta, torch_state

core = pytest.importorskip("braze.native._native")
pytestmark = pytest.mark.skipif(not native.native_available, reason="needs the C extension")


def function(*args):
    return args


class Holder:
    """An object with a tensor."""


def held(tensor):
    """A program that guards a holder's tensor, walked until it is sealed; the holder."""
    holder = Holder()
    holder.t = tensor
    program = GuardProgram([(-1, "local", 0), (0, "dict", "t")], [(1, "tensor", tensor_meta(tensor))], [1])
    for _ in range(4):
        assert program.match(function, (holder,))[0] is tensor
    return program, holder


def test_words_are_known_on_the_versions_we_know():
    native.bind_torch()
    sample = torch.empty(3, 4)
    assert core._same_image(sample, torch.empty(3, 4), 0)


@pytest.mark.parametrize(
    "sample", torch_state.samples(), ids=lambda t: f"{t.dtype}{tuple(t.shape)}".replace("torch.", "")
)
def test_every_sample_is_compared_by_words(sample):
    program, _ = held(sample)
    whole, _, tensors = program.sealed()
    assert whole and tensors == (sample.dim() <= layout.INLINE)


def transposed(t):
    with torch.no_grad():
        t.t_()


def resized(t):
    t.requires_grad_(False).resize_(5, 5)


def set_to_another(t):
    with torch.no_grad():
        t.set_(torch.empty(7))


def one_more_dimension(t):
    t.data = t.data.unsqueeze(-1)


def six_dimensions(t):
    t.data = t.data.reshape(4, 4, 1, 1, 1, 1)


def swapped(t):
    torch.utils.swap_tensors(t, torch.nn.Parameter(torch.empty(4, 4, dtype=torch.float64)))


class Special(torch.nn.Parameter):
    """A class that a parameter can be given."""


def another_class(t):
    t.__class__ = Special


CHANGES = {
    "transposed, same storage": lambda t: setattr(t, "data", t.data.t()),
    "transposed in place": transposed,
    "another type": lambda t: setattr(t, "data", t.data.double()),
    "half": lambda t: setattr(t, "data", t.data.to(torch.bfloat16)),
    "resized": resized,
    "set": set_to_another,
    "one more dimension": one_more_dimension,
    "six dimensions": six_dimensions,
    "requires_grad": lambda t: t.requires_grad_(not t.requires_grad),
    "class": another_class,
    "swapped": swapped,
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_seen(name, grad):
    parameter = torch.nn.Parameter(torch.empty(4, 4), requires_grad=grad)
    program, holder = held(parameter)
    assert program.sealed()[2] == 1
    before = torch_state.metadata(parameter)
    CHANGES[name](parameter)
    assert torch_state.metadata(parameter) != before
    for _ in range(3):
        assert program.match(function, (holder,)) is None
    holder.t = torch.nn.Parameter(torch.empty(4, 4), requires_grad=grad)
    assert program.match(function, (holder,))[0] is holder.t


@pytest.mark.parametrize("sealed", [True, False])
def test_a_view_that_requires_gradients_by_its_base_is_told_from_others(sealed):
    """Nothing of the view's own changes as its base is marked."""
    whole = torch.empty(5, 4)
    part = whole[1:]
    program, holder = held(part if sealed else torch.empty(4, 4))
    whole.requires_grad_()
    assert part.requires_grad
    holder.t = part
    for _ in range(3):
        assert program.match(function, (holder,)) is None
    whole.requires_grad_(False)
    for _ in range(3):
        assert program.match(function, (holder,))[0] is part


def test_a_leaf_is_told_from_a_view_of_what_requires_no_gradients():
    whole, holder = torch.empty(5, 4), Holder()
    holder.t = whole[1:]
    program = GuardProgram(
        [(-1, "local", 0), (0, "dict", "t")],
        [(1, "tensor", tensor_meta(torch.empty(4, 4, requires_grad=True)))],
        [1],
    )
    for _ in range(3):
        assert program.match(function, (holder,)) is None
    whole.requires_grad_()
    for _ in range(3):
        assert program.match(function, (holder,))[0] is holder.t


KINDS = {
    "weight": lambda: torch.nn.Parameter(torch.empty(4, 4)),
    "frozen": lambda: torch.nn.Parameter(torch.empty(4, 4)).requires_grad_(False),
    "buffer": lambda: torch.empty(4, 4),
    "bias": lambda: torch.nn.Parameter(torch.empty(4)),
    "counter": lambda: torch.zeros((), dtype=torch.int64),
    "strided": lambda: torch.empty(2, 3, 4, 5).permute(3, 1, 0, 2),
}


def many(each):
    """A program that guards ``each`` tensors of each kind, mixed; their holder; the tensors."""
    holder, tensors = Holder(), [make() for _ in range(each) for make in KINDS.values()]
    holder.__dict__.update((f"t{i}", t) for i, t in enumerate(tensors))
    nodes = [(-1, "local", 0), *((0, "dict", f"t{i}") for i in range(len(tensors)))]
    checks = [(i + 1, "tensor", tensor_meta(t)) for i, t in enumerate(tensors)]
    program = GuardProgram(nodes, checks, list(range(len(tensors), 0, -1)))
    return program, holder, tensors


def assert_found(program, holder, tensors):
    found = program.match(function, (holder,))
    assert len(found) == len(tensors)
    assert all(a is b for a, b in zip(reversed(found), tensors, strict=True))


@pytest.mark.parametrize("each", [1, 3, 20])
def test_many_tensors_come_in_their_order(each):
    program, holder, tensors = many(each)
    for _ in range(8):
        assert_found(program, holder, tensors)
    assert program.sealed()[::2] == (True, len(tensors))


def another_grad(t):
    t.requires_grad_(not t.requires_grad)


def another_size(t):
    t.data = torch.empty(7, dtype=t.dtype)


def another_kind(t):
    t.data = t.data.to(torch.float16)


@pytest.mark.parametrize("change", [another_grad, another_size, another_kind, another_class])
def test_each_of_many_is_compared_in_both_directions(change):
    for i in range(0, 6 * 20, 5):
        program, holder, tensors = many(20)
        for _ in range(4 + i % 2):
            assert_found(program, holder, tensors)
        assert program.sealed()[::2] == (True, len(tensors))
        counts = [sys.getrefcount(t) for t in tensors]
        if change is another_grad and not tensors[i].is_floating_point():
            continue
        if change is another_class and type(tensors[i]) is not torch.nn.Parameter:
            continue
        change(tensors[i])
        assert program.match(function, (holder,)) is None
        assert [sys.getrefcount(t) for t in tensors] == counts
        new = list(KINDS.values())[i % len(KINDS)]()
        setattr(holder, f"t{i}", new)
        assert_found(program, holder, [*tensors[:i], new, *tensors[i + 1 :]])


def test_new_values_of_the_same_kind_are_no_change():
    parameter = torch.nn.Parameter(torch.empty(4, 4))
    program, holder = held(parameter)
    for _ in range(10):
        parameter.data = torch.rand(4, 4)
        parameter.grad = torch.ones(4, 4)
        with torch.no_grad():
            parameter.add_(1)
        assert program.match(function, (holder,))[0] is parameter
        assert program.sealed()[0]


def test_a_frozen_tensor_that_gets_a_history():
    for tensor in (torch.zeros(3), torch.zeros(3, requires_grad=True).requires_grad_(False)):
        program, holder = held(tensor)
        assert program.sealed()[2] == 1
        tensor.add_(torch.ones(3, requires_grad=True))
        assert tensor.requires_grad
        assert program.match(function, (holder,)) is None


def test_a_conjugated_or_negated_view_put_in_its_place():
    tensor = torch.zeros(3, dtype=torch.complex64)
    program, holder = held(tensor)
    tensor.data = torch.zeros(3, dtype=torch.complex64).conj()
    assert tensor.is_conj()
    assert program.match(function, (holder,)) is None


def test_a_tensor_that_changes_all_the_time_is_asked_in_the_ordinary_way():
    parameter = torch.nn.Parameter(torch.empty(4, 4))
    program, holder = held(parameter)
    for _ in range(40):
        parameter.requires_grad_(False)
        assert program.match(function, (holder,)) is None
        parameter.requires_grad_(True)
        for _ in range(3):
            assert program.match(function, (holder,)) is not None
    for _ in range(3000):
        assert program.match(function, (holder,)) is not None
    assert program.sealed()[0] and program.sealed()[2] == 0
    parameter.requires_grad_(False)
    assert program.match(function, (holder,)) is None


def test_tensors_are_not_kept():
    tensor = torch.zeros(3)
    program, _ = held(tensor)
    assert sys.getrefcount(tensor) == 3
    del program
    assert sys.getrefcount(tensor) == 3


def test_without_a_layout_calls_are_made():
    native.bind_torch()
    try:
        core._configure_layout()
        program, holder = held(torch.nn.Parameter(torch.empty(4, 4)))
        assert program.sealed()[0] and program.sealed()[2] == 0
        holder.t.requires_grad_(False)
        assert program.match(function, (holder,)) is None
    finally:
        calibrate.calibrate()


WRONG = (("strides", "sizes"), ("sizes", "strides"), ("dtype", "ndim"), ("requires_grad", "grad_fn"))


@pytest.mark.parametrize(("field", "other"), WRONG)
def test_a_wrong_layout_is_refused(monkeypatch, field, other):
    find = layout.find

    def wrong(*args):
        found = find(*args)
        return dataclasses.replace(found, **{field: getattr(found, other)})

    monkeypatch.setattr(layout, "find", wrong)
    try:
        calibrate.calibrate()
        assert core._same_image(torch.empty(2), torch.empty(2), 0) is None
    finally:
        monkeypatch.undo()
        calibrate.calibrate()
    assert core._same_image(torch.empty(2), torch.empty(2), 0) is not None


def test_what_is_kept_of_views_is_read_while_they_live(monkeypatch):
    """Were they begun as other tensors are, no word would tell them apart. What is left of one that has ended says anything."""
    native.bind_torch()
    autograd = layout.find(0, lambda tensor: core._raw_meta(tensor)[:2]).autograd
    assert layout._beginning_of_own(autograd) is not None

    class NoView(torch.Tensor):
        def __getitem__(self, key):
            return torch.empty(2).requires_grad_()

    like = types.SimpleNamespace(empty=lambda *sizes: torch.empty(*sizes).as_subclass(NoView), nn=torch.nn)
    monkeypatch.setattr(torch_state, "torch", lambda: like)
    assert layout._beginning_of_own(autograd) is None


def test_nothing_past_a_tensor_is_looked_at(monkeypatch):
    """Where its block is smaller than the words that are looked at: as if the allocator had rounded nothing up."""
    native.bind_torch()
    samples, read, usable = layout._samples(), [], layout._usable_size()
    ends = {tensor._cdata: tensor._cdata + usable(tensor._cdata) - 8 for tensor in samples}
    word, text = layout.word, ctypes.string_at
    monkeypatch.setattr(layout, "_samples", lambda: samples)
    monkeypatch.setattr(layout, "_usable_size", lambda: lambda at: ends.get(at, at + usable(at)) - at)
    monkeypatch.setattr(layout, "word", lambda at: (read.append((at, 8)), word(at))[1])
    monkeypatch.setattr(ctypes, "string_at", lambda at, size: (read.append((at, size)), text(at, size))[1])
    found = layout.find(0, lambda tensor: core._raw_meta(tensor)[:2])
    assert found is not None
    for begin, end in ends.items():
        spans = [(at, at + size) for at, size in read if begin <= at < end + 8]
        assert spans
        assert all(stop <= end for _, stop in spans)


def test_what_fails_is_asked_first_and_nothing_is_lost():
    """Several arguments, each of which is the one that does not fit at some time."""
    good = [torch.empty(n) for n in range(1, 9)]
    nodes = [(-1, "local", i) for i in range(8)]
    program = GuardProgram(nodes, [(i, "tensor", tensor_meta(t)) for i, t in enumerate(good)], list(range(8)))
    for _ in range(4):
        assert program.match(function, good) is not None
    for wrong in (5, 2, 7, 7, 0, 3, 1, 6, 4):
        args = [torch.empty(n + 10 * (i == wrong)) for i, n in enumerate(range(1, 9))]
        assert program.match(function, args) is None
        found = program.match(function, good)
        assert all(a is b for a, b in zip(found, good, strict=True))


def test_images_are_found_in_every_calibration():
    """Whatever the memory held in which the samples were made."""
    kept = []
    for size in range(100):
        kept.append(bytearray(b"\xff" * (100 + size)) if size % 3 else torch.empty(size))
        if size % 5 == 0:
            kept.clear()
        calibrate.calibrate()
        assert core._same_image(torch.empty(2), torch.empty(2), 0) is not None


def test_words_are_known_under_an_allocator_that_fills_what_is_freed():
    program = "import torch; from braze import native; native.bind_torch(); print(native._native._same_image(torch.empty(3, 4), torch.empty(3, 4), 0))"
    poisoned = os.environ | {"MALLOC_PERTURB_": "128", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=poisoned, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "True"
