"""A compiled nn.Module is the original in everything but its call."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import types
import weakref

import pytest
import torch
from torch import nn

import braze
from braze import native
from braze.api import GIVEN
from braze.module import CompiledModule
from braze.support.errors import UserError


class Net(nn.Module):
    """Two layers and a buffer."""

    registry: list[type] = []

    def __init_subclass__(cls, **kwargs):
        Net.registry.append(cls)
        super().__init_subclass__(**kwargs)

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.outer = nn.Linear(width, 2)
        self.register_buffer("scale", torch.full((2,), 2.0))

    def forward(self, x):
        return self.outer(self.inner(x)) * self.scale

    def twice(self, x):
        return self(x) * 2

    def like_me(self):
        return type(self)(self.width)


X = torch.arange(12.0).reshape(3, 4) / 12


class Counting:
    """A backend that counts its compiles and its calls. Pickles by name."""

    def __init__(self):
        self.compiles = self.calls = 0

    def __call__(self, gm, example_inputs):
        self.compiles += 1

        def call(*inputs):
            self.calls += 1
            return gm.forward(*inputs)

        return call


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def compiled(model, counting):
    return braze.compile(model, backend=counting)


def test_call_is_compiled(model, compiled, counting):
    assert torch.equal(compiled(X), model(X))
    assert counting.calls == 1


def test_is_an_instance_of_the_class(model, compiled):
    assert isinstance(compiled, Net)
    assert isinstance(compiled, nn.Module)
    assert compiled is not model
    assert type(compiled).__name__ == "Net"
    assert type(compiled).__qualname__ == type(model).__qualname__
    assert type(compiled).__module__ == type(model).__module__


def test_subclass_hooks_of_the_user_do_not_see_it(compiled):
    assert Net.registry == []


def test_state_dict_has_the_same_keys_and_tensors(model, compiled):
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert all(compiled.state_dict()[k].data_ptr() == v.data_ptr() for k, v in model.state_dict().items())


def test_load_state_dict_reaches_both(model, compiled):
    state = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    assert not compiled(X).eq(0).all()
    compiled.load_state_dict(state)
    assert model.outer.weight.eq(0).all()
    assert compiled(X).eq(0).all()


def test_names_of_parameters_buffers_and_modules_are_the_originals(model, compiled):
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert [n for n, _ in compiled.named_buffers()] == [n for n, _ in model.named_buffers()]
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in model.named_modules()]
    assert all(a is b for a, b in zip(compiled.parameters(), model.parameters()))
    assert compiled.get_submodule("inner.0") is model.inner[0]


def test_repr_is_the_originals(model, compiled):
    assert repr(compiled) == repr(model)


def test_attributes_written_on_either_side_are_seen_on_both(model, compiled):
    compiled.note = "a"
    assert model.note == "a"
    model.note = "b"
    assert compiled.note == "b"
    del model.note
    assert not hasattr(compiled, "note")


def test_replaced_submodule_is_used(model, compiled):
    compiled(X)
    model.outer = nn.Linear(4, 2)
    assert torch.equal(compiled(X), model(X))


def test_methods_that_call_the_module_use_the_compiled_call(model, compiled, counting):
    assert torch.equal(compiled.twice(X), model(X) * 2)
    assert counting.calls == 1


def test_a_bound_forward_behind_a_decorator_is_compiled(counting):
    """``model.forward = braze.compile(model.forward)``, where the decorator's function has no name for the module."""

    def told(function):
        @functools.wraps(function)
        def with_words(*args, **kwargs):
            kwargs.pop("old", None)
            return function(*args, **kwargs)

        return with_words

    class Told(Net):
        forward = told(Net.forward)

    model, other = Told().eval(), Told().eval()
    for each in (model, other):
        expected = each(X)
        each.forward = braze.compile(each.forward, backend=counting)
        assert torch.equal(each(X), expected)
        assert torch.equal(each(x=X, old=1), expected)
        each.scale.mul_(2)
        assert torch.equal(each(X), expected * 2)
    before = counting.calls
    assert before == 6
    model.eval()(X), other(X)
    assert counting.calls == before + 2


def test_a_new_module_of_its_type_is_a_plain_one(compiled):
    made = compiled.like_me()
    assert type(made) is Net
    assert not isinstance(made, CompiledModule)


def test_train_and_eval_reach_both_and_are_honoured(counting):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    compiled = braze.compile(model, backend=counting)
    assert torch.equal(compiled(X), model(X))
    assert compiled.train() is compiled
    assert model.training
    assert model[1].training
    torch.manual_seed(1)
    theirs = model(X)
    torch.manual_seed(1)
    assert torch.equal(compiled(X), theirs)
    assert theirs.eq(0).any()
    compiled.eval()
    assert not model.training


def test_to_converts_both(model, compiled):
    compiled(X)
    assert compiled.to(torch.float64) is compiled
    assert model.outer.weight.dtype is torch.float64
    assert compiled(X.double()).dtype is torch.float64
    assert torch.equal(compiled(X.double()), model(X.double()))


def test_hooks_run_on_either_side(model, compiled):
    seen = []
    before = model.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    assert torch.equal(compiled(X), model(X))
    after = compiled.register_forward_hook(lambda m, args, out: out * 3)
    assert torch.equal(compiled(X), model(X))
    before.remove()
    after.remove()
    assert torch.equal(compiled(X), model(X))
    assert seen == []


def test_hooks_of_submodules_run(model, compiled):
    expected = model(X)
    handle = model.outer.register_forward_hook(lambda m, args, out: out + 1)
    assert torch.equal(compiled(X), model(X))
    assert not torch.equal(compiled(X), expected)
    handle.remove()
    assert torch.equal(compiled(X), expected)


def test_deepcopy_is_a_compiled_copy_of_a_copy(model, compiled, counting):
    compiled(X)
    copied = copy.deepcopy(compiled)
    assert isinstance(copied, CompiledModule)
    assert torch.equal(copied(X), model(X))
    with torch.no_grad():
        copied.outer.weight.zero_()
    assert not model.outer.weight.eq(0).any()
    assert not torch.equal(copied(X), model(X))
    assert torch.equal(compiled(X), model(X))


def test_deepcopy_inside_a_larger_module_keeps_sharing(model, compiled):
    both = nn.ModuleList([compiled, compiled])
    copied = copy.deepcopy(both)
    assert copied[0] is copied[1]
    assert copied[0] is not compiled


def test_a_model_whose_forward_was_compiled_is_copied_with_a_forward_of_its_own(model):
    """As a method in its place is: the copy's calls compute with, and write to, the copy."""
    model.register_buffer("calls", torch.zeros(()))
    forward = model.forward

    def counted(self, x):
        self.calls.add_(1)
        return forward.__func__(self, x)

    model.forward = braze.compile(types.MethodType(counted, model), backend="eager", dynamic=False)
    model(X)
    copied, (alone, again) = copy.deepcopy(model), copy.deepcopy([model.forward] * 2)
    assert copied.forward.__self__ is copied and isinstance(copied.forward, native.Entry)
    assert alone is again and alone.__self__ not in (model, copied)
    assert vars(alone)[GIVEN][1] == vars(model.forward)[GIVEN][1], "as it was compiled"
    copied(X).sum().backward()
    assert (float(model.calls), float(copied.calls), float(alone.__self__.calls)) == (1, 2, 1)
    assert model.outer.weight.grad is None and copied.outer.weight.grad is not None


def test_a_copy_of_a_compiled_function_is_the_function():
    compiled = braze.compile(lambda x: x + 1, backend="eager")
    assert copy.deepcopy({"f": compiled})["f"] is compiled and copy.copy(compiled) is compiled
    sums = braze.compile(functools.partial(torch.add, X.clone()), backend="eager")
    copied = copy.deepcopy(sums)
    vars(sums)[GIVEN][0].args[0].zero_()
    assert torch.equal(copied(X), X + X) and torch.equal(sums(X), X)


def test_copy_shares_tensors_but_not_attributes(model, compiled):
    copied = copy.copy(compiled)
    assert isinstance(copied, CompiledModule)
    assert copied.outer.weight is model.outer.weight
    copied.note = 1
    assert not hasattr(model, "note")


def test_pickle_gives_an_equal_model_that_compiles_again(model):
    compiled = braze.compile(model, backend="eager")
    compiled(X)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert isinstance(loaded, Net)
    assert isinstance(loaded, CompiledModule)
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values()))
    assert torch.equal(loaded(X), model(X))


def test_torch_save_and_load(model):
    compiled = braze.compile(model, backend="eager")
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(X), model(X))


def test_settings_travel_with_copies(model):
    compiled = braze.compile(model, backend="eager", fullgraph=True, dynamic=False, options={"fusion": False})
    for other in (copy.deepcopy(compiled), copy.copy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert other.__compiled__.settings == compiled.__compiled__.settings


def test_compiling_a_compiled_module_compiles_the_original(model, compiled):
    again = braze.compile(compiled, backend="eager")
    assert again.__compiled__.original is model
    assert torch.equal(again(X), model(X))


def test_as_a_submodule_it_keeps_its_names(model, compiled, counting):
    outer = nn.Sequential()
    outer.add_module("net", compiled)
    assert list(outer.state_dict()) == [f"net.{k}" for k in model.state_dict()]
    assert torch.equal(outer(X), model(X))
    assert counting.calls == 1


def test_inside_a_compiled_module_it_is_one_graph(model, compiled):
    backend = Counting()
    outer = braze.compile(nn.Sequential(compiled, nn.ReLU()), backend=backend, fullgraph=True)
    assert torch.equal(outer(X), model(X).relu())
    assert backend.compiles == 1


def test_inside_a_compiled_function_it_is_of_the_class_that_the_original_has_by_now(model):
    """The forward of the class that it had when it was compiled, silently."""

    class Doubled(Net):
        def forward(self, x):
            assert type(self) is Doubled
            return super().forward(x) * 2

    compiled = braze.compile(model, backend="eager")
    outer = braze.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(outer(X), model(X) + 1)
    model.__class__ = Doubled
    assert torch.equal(compiled(X), model(X))
    assert torch.equal(outer(X), model(X) + 1)


def test_a_class_with_its_own_call_is_called_by_it():
    class Shouting(nn.Module):
        def __call__(self, x):
            return super().__call__(x) + 100

        def forward(self, x):
            return x * 2

    assert torch.equal(braze.compile(Shouting(), backend="eager")(X), X * 2 + 100)


def test_as_a_class_decorator_argument_it_is_refused():
    with pytest.raises(UserError) as refused:
        braze.compile(Net)
    assert refused.value.code == "BZ0005"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_with_what_to_do():
    with pytest.raises(UserError) as refused:
        braze.compile(torch.jit.script(nn.Linear(2, 2)))
    assert refused.value.code == "BZ0005"


def test_nothing_keeps_a_dropped_model_alive():
    model = Net().eval()
    seen = weakref.ref(model.outer.weight)
    compiled = braze.compile(model, backend="eager")
    compiled(X)
    del model, compiled
    gc.collect()
    assert seen() is None
