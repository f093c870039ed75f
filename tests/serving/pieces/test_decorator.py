"""A decorated class compiles its instances as their configuration says, and is in every other way the class that it was."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze.serving.pieces.custom_ops import direct_register_custom_op
from braze.serving.pieces.decorator import compiled_forward, dims_of, support_torch_compile
from braze.serving.policy.config import CompilationConfig
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.engine_config import Config
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import forward_context
from braze.support import trace
from braze.support.errors import CaptureError, UserError
from tests.helpers import logged


def give(x: torch.Tensor) -> torch.Tensor:
    return x * 2


GIVE = direct_register_custom_op("d_give", give, fake_impl=torch.empty_like, dispatch_key="CPU")


class Plain(nn.Module):
    def __init__(self, config=None, width: int = 8):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, *, scale: float = 1.0):
        y = GIVE(self.a(x).relu())
        if bias is not None:
            y = y + bias
        return self.b(y) * scale


def decorated(base=Plain, **words):
    return support_torch_compile(type(base.__name__, (base,), {"forward": base.forward}), **words)


def configured(level=3, **words):
    words = (
        {"splitting_ops": ("braze::d_give",), "cudagraph_mode": "PIECEWISE", **words} if level == 3 else words
    )
    return CompilationConfig(level=level, **words)


@pytest.fixture(autouse=True)
def serving(tmp_path, monkeypatch):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    with torch.inference_mode():
        yield


def captures(call):
    before = trace.COUNTERS["captures"]
    call()
    return trace.COUNTERS["captures"] - before


def passed_on(function):
    """As decorators do: the signature is the function's, the arguments are any."""

    @functools.wraps(function)
    def inner(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    return inner


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_forward_that_hides_its_arguments_is_called_as_it_was_called(level):
    class Wrapped(Plain):
        forward = passed_on(Plain.forward)

    support_torch_compile(Wrapped)
    model = Wrapped(configured(level))
    plain = Plain()
    plain.load_state_dict(model.state_dict())
    for n in (3, 5, 1, 4):
        x, bias = torch.randn(n, 8), torch.randn(n, 8)
        for args, kwargs in [
            ((x,), {}),
            ((x, bias), {}),
            ((), dict(bias=bias, x=x)),
            ((x,), dict(scale=2.0)),
        ]:
            torch.testing.assert_close(model(*args, **kwargs), plain(*args, **kwargs))
    for args, kwargs in [((), {}), ((x, bias, 1.0), {}), ((x,), {"x": x}), ((x,), {"a b": 1})]:
        with pytest.raises(TypeError):
            model(*args, **kwargs)
    if level >= 2:
        call = compiled_forward(model).call
        assert call.captured() == 8  # of four forms, each for one row and for more
        assert call.dropped_guards()
        call.reset()
        assert call.captured() == 0


def test_a_decorated_class_below_a_decorated_class_is_compiled():
    class Below(decorated()):
        pass

    below = support_torch_compile(Below)(configured(2))
    x = torch.randn(3, 8)
    torch.testing.assert_close(below(x), below.b(GIVE(below.a(x).relu())))
    assert compiled_forward(below).call.captured() == 1


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_each_level_gives_what_the_class_gives(level):
    model = decorated()(configured(level))
    assert model.do_not_compile == (level == 0)
    for n in (5, 3, 8, 2, 1, 5):
        x = torch.randn(n, 8)
        torch.testing.assert_close(model(x), Plain.forward(model, x))


class Seen(TorchDispatchMode):
    """Writes down the operators that run below it."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", [2, 3])
def test_modes_other_tracers_and_a_stance_get_the_class_as_it_is(level):
    """What was compiled would hide its operators from a mode, and read memory that fakes do not have."""
    model, x = decorated()(configured(level)), torch.randn(4, 8)
    model(x)
    with logged() as said:
        with Seen() as seen:
            model(x)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert isinstance(model(mode.from_tensor(x)), FakeTensor)
        assert "aten::relu" in {node.kind() for node in torch.jit.trace(model, x).inlined_graph.nodes()}
        model.a = nn.Identity()  # to a graph a change that it was not captured for
        with braze.set_stance("force_eager"):
            torch.testing.assert_close(model(x), model.b(x.relu() * 2))
    assert {"relu", "d_give"} <= set(seen.names)
    assert not [text for text in said if "BZ7217" in text]


@pytest.mark.parametrize("level", [2, 3])
def test_one_capture_serves_all_sizes_from_two_on(level):
    model = decorated()(configured(level))
    assert captures(lambda: [model(torch.randn(n, 8)) for n in (5, 3, 64, 2, 7)]) == 1
    assert captures(lambda: [model(torch.randn(n, 8)) for n in (1, 1, 9)]) == 1
    assert compiled_forward(model).call.captured() == 2


def test_level_one_keeps_its_guards():
    model = decorated()(configured(1))
    assert captures(lambda: [model(torch.randn(4, 8)), model(torch.randn(4, 8).double().float())]) == 1
    assert captures(lambda: model(torch.randn(4, 8), scale=2.0)) == 1


def test_level_zero_is_the_module_as_it_is():
    model = decorated()(configured(0))
    assert captures(lambda: model(torch.randn(4, 8))) == 0
    assert compiled_forward(model) is None


def test_the_configuration_is_found_among_the_constructors_arguments():
    for given in (configured(2), Config(compilation_config=configured(2))):
        assert not decorated()(given).do_not_compile
        assert not decorated()(config=given).do_not_compile
        assert not decorated(config=given)().do_not_compile
    assert decorated()().do_not_compile


def test_a_dict_is_no_configuration():
    """It would be ignored, and the model run as it is."""
    for make in (lambda d: decorated(config=d), lambda d: decorated()(d), lambda d: decorated()(config=d)):
        with pytest.raises(UserError, match=r"BZ7103.*level.*\n.*CompilationConfig"):
            make({"level": 3})
    assert decorated()({"width": 8}).do_not_compile  # the model's own
    assert not decorated(config=configured(2))({"level": 3}).do_not_compile


def test_enable_if_decides_by_the_configuration():
    cls = decorated(enable_if=lambda config: config.level < 3)
    assert not cls(configured(2)).do_not_compile
    assert cls(configured(3)).do_not_compile


def test_do_not_compile_switches_it_off_at_any_time():
    model = decorated()(configured(2))
    model(torch.randn(4, 8))
    model.do_not_compile = True
    x = torch.randn(4, 8)
    torch.testing.assert_close(model(x), Plain.forward(model, x), rtol=0, atol=0)
    assert compiled_forward(model) is None


def test_optional_and_named_arguments_come_through():
    model = decorated(dynamic_arg_dims={"x": 0, "bias": -2})(configured(2))
    for n in (4, 6):
        x, bias = torch.randn(n, 8), torch.randn(n, 8)
        torch.testing.assert_close(model(x, bias=bias, scale=1.0), Plain.forward(model, x, bias))


# -- guards -----------------------------------------------------------------------------------------


def test_dropped_guards_are_listed():
    model = decorated()(configured(2))
    model(torch.randn(4, 8))
    listed = "\n".join(compiled_forward(model).call.dropped_guards())
    assert "scale" in listed
    assert "float32" in listed


def test_what_was_taken_for_granted_is_checked_where_asked():
    model = decorated(evaluate_guards=True)(configured(2))
    x = torch.randn(4, 8)
    for n in (4, 9):
        model(torch.randn(n, 8))
    with pytest.raises(UserError, match=r"BZ7217.*scale"):
        model(x, scale=3.0)
    torch.testing.assert_close(model(x), Plain.forward(model, x))


def test_without_the_check_the_first_calls_word_holds_and_that_is_told_once():
    model = decorated()(configured(2))
    x = torch.randn(4, 8)
    model(x)
    with logged() as said:
        for _ in range(3):
            torch.testing.assert_close(model(x, scale=3.0), Plain.forward(model, x))
    assert sum("BZ7217" in text and "scale" in text for text in said) == 1


class Beside(nn.Module):
    """Two arguments that kernels read, and a table that they read rows of."""

    def __init__(self, config=None):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        return (x * 2 + y).relu() + self.table.sum(0) * self.table[1]


def turned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, down the columns."""
    return x.t().contiguous().t()


OTHERS = {
    "fewer rows": lambda m, x, y: (x, y[:1]),
    "turned": lambda m, x, y: (x, turned(y)),
    "larger numbers": lambda m, x, y: (x.double(), y),
    "smaller numbers": lambda m, x, y: (x, y.to(torch.int8)),
    "fewer dimensions": lambda m, x, y: (x, y[0]),
    "strided": lambda m, x, y: (x, torch.stack([y, y], -1)[..., 0]),
    "a turned parameter": lambda m, x, y: setattr(m.table, "data", turned(m.table.data)) or (x, y),
    "a larger parameter": lambda m, x, y: setattr(m.table, "data", torch.randn(9, 8)) or (x, y),
    "a parameter of another type": lambda m, x, y: m.double() and (x, y),
}


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("other", OTHERS)
def test_tensors_that_lie_otherwise_are_never_read_as_if_they_did_not(other, level):
    """Kernels would read memory that is not theirs. Such a call runs as it is, which is told once; others go on."""
    model = decorated(Beside)(configured(level))
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    model(x, y)
    args = OTHERS[other](model, x, y)
    with logged() as said:
        for _ in range(2):
            assert model(*args).equal(Beside.forward(model, *args))
    assert sum("BZ7217" in text and "runs as it is" in text for text in said) == 1


def test_a_call_with_rows_that_do_not_fit_is_the_models_own_error():
    model = decorated(Beside)(configured(2))
    model(torch.randn(4, 8), torch.randn(4, 8))
    with pytest.raises(RuntimeError, match="must match the size"):
        model(torch.randn(4, 8), torch.randn(3, 8))
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    torch.testing.assert_close(model(x, y), Beside.forward(model, x, y))


def test_one_tensor_twice_is_not_taken_for_granted():
    model = decorated(Beside)(configured(2))
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    model(x, x)
    torch.testing.assert_close(model(x, y), Beside.forward(model, x, y))


def test_an_engines_sizes_are_those_that_are_compiled_for():
    """O3 compiles for what is captured, which the engine's limits and drafter decide."""
    compilation = CompilationConfig(
        level="O3", splitting_ops=("braze::d_give",), cudagraph_capture_sizes=[2, 4]
    )
    config = Config(compilation_config=compilation, num_speculative_tokens=2)
    for model in (decorated()(config), decorated(config=config)()):
        model(torch.randn(4, 8))
        pieces = compiled_forward(model).backend.backends.values()
        assert {n for piece in pieces for n in piece.concrete_size_entries} == {2, 4, 6, 12}


def test_parameters_are_those_of_now():
    model = decorated()(configured(3))
    x = torch.randn(4, 8)
    model(x)
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    torch.testing.assert_close(model(x), Plain.forward(model, x))
    model.a.weight = nn.Parameter(torch.randn(8, 8))
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(model(x), Plain.forward(model, x))


# -- refusals ---------------------------------------------------------------------------------------


class Writes(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("cache", torch.zeros(8))
        self.count = 0

    def forward(self, x: torch.Tensor):
        raise NotImplementedError


def in_place(self, x: torch.Tensor):
    self.inner.cache.add_(x.sum(0))  # the line
    return x + self.inner.cache


def assigns(self, x: torch.Tensor):
    self.inner.cache = self.inner.cache + x.sum(0)  # the line
    return x + self.inner.cache


def counts(self, x: torch.Tensor):
    self.count += 1
    return x + self.count


@pytest.mark.parametrize(
    ("forward", "said"),
    [(in_place, "writes to inner.cache"), (assigns, "assigns inner.cache"), (counts, "assigns count")],
)
def test_a_forward_that_writes_is_refused_with_name_and_line(forward, said):
    cls = support_torch_compile(type("W", (Writes,), {"forward": forward}))
    model = cls(configured(2))
    with pytest.raises(UserError, match="BZ7216") as caught:
        model(torch.ones(4, 8))
    assert said in str(caught.value)
    if forward is not counts:
        assert "# the line" in str(caught.value)
    assert torch.equal(model.inner.cache, torch.zeros(8))
    assert model.count == 0


def test_a_cache_that_is_named_may_be_written():
    cls = support_torch_compile(type("W", (Writes,), {"forward": in_place}), mutable_buffers=("inner.cache",))
    model = cls(configured(2))
    for k in (1, 2, 3):
        torch.testing.assert_close(model(torch.ones(4, 8)), torch.full((4, 8), 1.0 + 4 * k))


def test_dimensions_that_are_none_are_refused():
    class Bare(nn.Module):
        def forward(self, x):
            return x

    with pytest.raises(UserError, match="BZ7215"):
        support_torch_compile(Bare)
    with pytest.raises(UserError, match="BZ7215"):
        support_torch_compile(Bare, dynamic_arg_dims={"y": 0})
    assert dims_of(Bare, {"x": {0: "b", -1: "s"}}) == {"x": {0: "b", -1: "s"}}
    assert dims_of(Plain, None) == {"x": {0: "num_tokens"}, "bias": {0: "num_tokens"}}


@pytest.mark.parametrize("level", [1, 2, 3])
def test_whatever_fails_code_and_class_are_as_they_were(level):
    """Before anything is captured, while it is, and after; with a call that cannot be in between."""
    module = decorated()(configured(level))
    forward = type(module).__braze_plan__.forward

    def now():
        return (
            forward.__code__,
            type(module).forward,
            type(module).forward.__code__,
            dict(module.__dict__["_modules"]),
        )

    before = now()
    for x in (torch.ones(3), torch.ones(2, 3), torch.ones(5, 8), None, torch.ones(5, 3), torch.ones(6, 8)):
        with contextlib.suppress(Exception), torch.no_grad():
            module(x)
        assert now() == before
    with torch.no_grad():
        torch.testing.assert_close(module(torch.ones(4, 8)), forward(module, torch.ones(4, 8)))


def test_a_graph_break_is_an_error_and_the_next_call_is_as_the_first():
    class Breaks(nn.Module):
        def __init__(self, config=None):
            super().__init__()
            self.broken = True

        def forward(self, x: torch.Tensor):
            if self.broken:
                braze.graph_break()
            return x + 1

    model = support_torch_compile(Breaks)(configured(2))
    with pytest.raises(CaptureError):
        model(torch.ones(4))
    model.broken = False
    assert torch.equal(model(torch.ones(4)), torch.full((4,), 2.0))


# -- still the class --------------------------------------------------------------------------------


def test_hooks_copies_and_pickles_are_as_ever():
    model = decorated()(configured(2))
    x, seen = torch.randn(4, 8), []
    model(x)
    model.register_forward_hook(lambda *a: seen.append(1))
    model(x)
    assert seen == [1]
    twin = copy.deepcopy(model)
    assert compiled_forward(twin) is not compiled_forward(model)
    torch.testing.assert_close(twin(x), model(x))
    assert list(model.state_dict()) == list(Plain().state_dict())


class Pickled(Plain):
    forward = Plain.forward


support_torch_compile(Pickled)


def test_a_compiled_module_is_pickled_without_what_was_compiled():
    model, x = Pickled(configured(2)), torch.randn(4, 8)
    expected = model(x)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), expected)


def test_decorating_twice_is_decorating_once():
    cls = decorated()
    assert support_torch_compile(cls) is cls


def test_a_subclass_that_is_not_decorated_runs_as_it_is():
    class Sub(decorated()):
        def forward(self, x: torch.Tensor):
            return super().forward(x) + 1

    model, x = Sub(configured(2)), torch.randn(4, 8)
    assert captures(lambda: model(x)) == 0
    torch.testing.assert_close(model(x), Plain.forward(model, x) + 1)


def test_inside_another_compile_it_is_a_part_of_that():
    model = decorated()(configured(2))
    outer = braze.compile(lambda x: model(x) + 1, fullgraph=True)
    x = torch.randn(4, 8)
    torch.testing.assert_close(outer(x), Plain.forward(model, x) + 1)
    assert "_braze_compiled_forward" not in model.__dict__


def test_instances_do_not_share_what_was_compiled_and_go_when_nobody_holds_them():
    cls = decorated()
    one, two = cls(configured(2)), cls(configured(2), 4)
    torch.testing.assert_close(one(torch.ones(3, 8)), Plain.forward(one, torch.ones(3, 8)))
    torch.testing.assert_close(two(torch.ones(3, 4)), Plain.forward(two, torch.ones(3, 4)))
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_threads_capture_once():
    model = decorated()(configured(2))
    xs = [torch.randn(n, 8) for n in (2, 3, 4, 5)]
    wrong = []

    def work(x):
        with torch.inference_mode():
            for _ in range(10):
                if not torch.allclose(model(x), Plain.forward(model, x), atol=1e-5):
                    wrong.append(x)

    def run():
        threads = [threading.Thread(target=work, args=(x,)) for x in xs]
        [t.start() for t in threads]
        [t.join() for t in threads]

    assert captures(run) == 1
    assert not wrong


def test_pieces_are_recorded_as_the_step_says(simulated):
    model = decorated()(configured(3))
    buffer = torch.randn(8, 8)
    for _ in range(3):
        buffer.copy_(torch.randn(8, 8))
        with forward_context(
            cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE, batch_descriptor=BatchDescriptor(4)
        ):
            torch.testing.assert_close(model(buffer[:4]), Plain.forward(model, buffer[:4]))
    backend = compiled_forward(model).backend
    assert backend.wrappers
    assert all(w.captured() == (BatchDescriptor(4),) for w in backend.wrappers)


def test_recorded_pieces_have_the_weights_of_now(simulated):
    model, buffer = decorated()(configured(3)).requires_grad_(False), torch.randn(8, 8)
    for turn in range(6):
        if turn == 2:
            model.a.weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)
        if turn == 4:
            model.load_state_dict(
                {k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True
            )
        buffer.copy_(torch.randn(8, 8))
        with forward_context(
            cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE, batch_descriptor=BatchDescriptor(4)
        ):
            torch.testing.assert_close(model(buffer[:4]), Plain.forward(model, buffer[:4]))
    assert all(w.captured() == (BatchDescriptor(4),) for w in compiled_forward(model).backend.wrappers)
