"""Whatever a training loop does with an optimizer, a compiled one does as PyTorch's own."""

from __future__ import annotations

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import braze
from braze.optim import build as built
from braze.support import log, trace
from braze.support.errors import UserError
from tests.helpers import logged
from tests.optim.kinds import KINDS

CLASSES = [
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {}),
]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Pair:
    """The same training twice: by PyTorch, and compiled."""

    def __init__(self, cls=torch.optim.AdamW, build=None, **options):
        self.models = [model(), model()]
        build = build or (lambda m: cls(m.parameters(), **{"lr": 0.05, "foreach": False, **options}))
        self.optimizers = [build(m) for m in self.models]
        braze.compile_optimizer(self.optimizers[1])
        self.turn = 0

    def step(self, times=1, *, before=lambda m, o: None):
        for _ in range(times):
            self.turn += 1
            for m, o in zip(self.models, self.optimizers):
                o.zero_grad()
                x = torch.randn(4, 6, generator=torch.Generator().manual_seed(self.turn))
                m(x).square().sum().backward()
                before(m, o)
                o.step()

    def each(self, do):
        for m, o in zip(self.models, self.optimizers):
            do(m, o)

    def check(self):
        for p, q in zip(*(m.parameters() for m in self.models)):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def counted():
    """How often an optimizer's parameters were dealt to kernels, and kernels built."""
    counts = trace.snapshot()[0]
    return counts["optimizer_plans"], counts["kernels_built"]


@pytest.fixture(params=CLASSES, ids=["adamw", "adam", "momentum", "sgd"])
def pair(request):
    cls, options = request.param
    return Pair(cls, **options)


def test_it_is_the_same_object(pair):
    optimizer = pair.optimizers[1]
    before = type(pair.optimizers[0])
    assert isinstance(optimizer, before)
    assert type(optimizer).__name__ == before.__name__
    assert repr(optimizer) == repr(pair.optimizers[0])
    assert braze.compile_optimizer(optimizer) is optimizer


def test_learning_rate_and_the_rest_may_change_at_any_step(pair):
    def change(m, o):
        for group in o.param_groups:
            group["lr"] *= 0.5
            group["weight_decay"] = 0.3
            if "betas" in group:
                group["betas"] = (0.5, 0.9)
                group["eps"] = 1e-3
            elif group["momentum"]:
                group["momentum"] = 0.5
                group["dampening"] = 0.1

    pair.step(2)
    before = counted()
    pair.each(change)
    pair.step(2)
    pair.check()
    assert counted() == before, "numbers are no guards"


@pytest.mark.parametrize("first", [True, False])
def test_schedulers(first, recwarn):
    """A scheduler may be made before or after, and sees the steps."""
    pair = Pair()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in pair.models]
    if not first:
        braze.compile_optimizer(optimizers[1])
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=6) for o in optimizers]
    if first:
        braze.compile_optimizer(optimizers[1])
    pair.optimizers = optimizers
    for _ in range(5):
        pair.step()
        for s in schedulers:
            s.step()
    assert counted()[0] == 1, "the step is the compiled one"
    pair.check()
    assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


def test_several_groups_and_one_added_later():
    def build(m):
        return torch.optim.AdamW(
            [{"params": m[0].weight, "lr": 0.1}, {"params": [m[0].bias], "weight_decay": 0.5}]
        )

    pair = Pair(build=build)
    pair.step(2)
    pair.each(lambda m, o: o.add_param_group({"params": m[2].parameters(), "lr": 0.01, "amsgrad": True}))
    pair.step(2)
    pair.check()


def test_parameters_without_a_gradient_are_passed_over(pair):
    frozen = pair.models[0][0].weight.detach().clone()

    def drop(m, o):
        m[0].weight.grad = None

    pair.step(1, before=drop)
    assert torch.equal(pair.models[1][0].weight, frozen)
    assert pair.models[1][0].weight not in pair.optimizers[1].state
    pair.step(2)
    pair.step(1, before=drop)
    pair.check()


def test_no_gradients_at_all(pair):
    pair.each(lambda m, o: o.step())
    pair.each(lambda m, o: o.zero_grad(set_to_none=False))
    pair.step()
    pair.check()


@pytest.mark.parametrize("none", [True, False])
def test_zero_grad(pair, none):
    pair.step(2)
    pair.each(lambda m, o: o.zero_grad(set_to_none=none))
    grads = [p.grad for p in pair.models[1].parameters()]
    assert all(g is None if none else not g.any() for g in grads)
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("compiled_first", [True, False])
def test_state_dicts_are_interchangeable(pair, compiled_first):
    """Saved from one, loaded into the other, and on."""
    pair.step(3)
    a, b = pair.optimizers[::-1] if compiled_first else pair.optimizers
    stored = io.BytesIO()
    torch.save(a.state_dict(), stored)
    stored.seek(0)
    b.load_state_dict(torch.load(stored))
    pair.step(3)
    pair.check()
    theirs, ours = (o.state_dict() for o in pair.optimizers)
    assert theirs["param_groups"] == ours["param_groups"]
    assert {k: list(v) for k, v in theirs["state"].items()} == {k: list(v) for k, v in ours["state"].items()}


def test_state_replaced_by_hand(pair):
    pair.step(2)

    def replace(m, o):
        for state in o.state.values():
            for key, value in state.items():
                state[key] = value * 0.5 if key != "step" else value.clone()

    pair.each(replace)
    pair.step()
    pair.each(lambda m, o: o.state.clear())
    pair.step(2)
    pair.check()


def test_hooks_run_in_order():
    """Step hooks, also the global ones, before and after."""
    pair = Pair()
    notes = [[], []]
    handles = []
    for o, note in zip(pair.optimizers, notes):
        o.register_step_pre_hook(lambda o, args, kwargs, note=note: note.append(("pre", type(o).__name__)))
        o.register_step_post_hook(lambda o, args, kwargs, note=note: note.append(("post", len(o.state))))
    seen = []
    handles.append(register_optimizer_step_post_hook(lambda *a: seen.append(1)))
    pair.step(2)
    handles[0].remove()
    assert notes[0] == notes[1]
    assert len(notes[1]) == 4
    assert len(seen) == 4


def test_closure(pair):
    losses = []
    for m, o in zip(pair.models, pair.optimizers):

        def closure(m=m, o=o):
            o.zero_grad()
            loss = m(torch.ones(2, 6)).square().sum()
            loss.backward()
            return loss

        losses.append([o.step(closure).item() for _ in range(3)])
        with torch.no_grad():
            losses[-1].append(o.step(closure=closure).item())
    assert losses[0] == pytest.approx(losses[1])
    pair.check()


def test_data_replaced(pair):
    pair.step(2)

    def replace(m, o):
        m[0].weight.data = torch.full((5, 6), 0.5)
        m[2].weight.data = m[2].weight.data.t().contiguous().t()

    pair.each(replace)
    pair.step(2)
    pair.check()
    assert not torch.equal(pair.models[1][0].weight, torch.full((5, 6), 0.5))


def test_parameters_replaced_in_a_group_without_state():
    """There is no state that would be new."""
    old, new = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))
    optimizer = braze.compile_optimizer(torch.optim.SGD([old], lr=1.0))
    old.grad = new.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0]["params"][0] = new
    optimizer.step()
    assert old.tolist() == new.tolist() == [-1, -1, -1]


def test_model_moved_to_another_type(pair):
    pair.step(2)
    pair.each(lambda m, o: m.double())
    pair.turn += 1
    for m, o in zip(pair.models, pair.optimizers):
        o.state.clear()
        o.zero_grad()
        m(torch.ones(2, 6).double()).sum().backward()
        o.step()
    pair.check()


def test_copies_and_pickles_are_compiled_too(pair):
    pair.step(2)
    for again in (copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))):
        theirs, ours = (again((m, o)) for m, o in zip(pair.models, pair.optimizers))
        assert type(ours[1]) is type(pair.optimizers[1])
        other = object.__new__(Pair)
        other.models, other.optimizers, other.turn = [theirs[0], ours[0]], [theirs[1], ours[1]], 7
        other.step(2)
        other.check()
    pair.step(2)
    pair.check()


def test_autograd_sees_the_write():
    """A backward through saved values that the step has overwritten is an error, as in eager."""
    pair = Pair()
    for m, o in zip(pair.models, pair.optimizers):
        loss = m(torch.ones(2, 6)).sum()
        loss.backward(retain_graph=True)
        o.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_tensor_learning_rate():
    pair = Pair(lr=torch.tensor(0.05))
    pair.step(2)
    pair.each(lambda m, o: o.param_groups[0]["lr"].mul_(0.1))
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("fused", [None, True])
def test_default_dtype_float64(fused):
    torch.set_default_dtype(torch.float64)
    try:
        pair = Pair(fused=fused)
        pair.step(3)
    finally:
        torch.set_default_dtype(torch.float32)
    pair.check()
    steps = [next(iter(o.state.values()))["step"] for o in pair.optimizers]
    assert steps[0].dtype == steps[1].dtype == (torch.float32 if fused else torch.float64)
    assert steps[0] == steps[1] == 3


def test_a_state_is_collected_with_its_optimizer(pair):
    pair.step()
    m, o = pair.models.pop(), pair.optimizers.pop()
    held = [weakref.ref(o), weakref.ref(m[0].weight)]
    del m, o
    import gc

    gc.collect()
    assert [h() for h in held] == [None, None]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: torch.optim.RMSprop(p), "RMSprop"),
        (lambda p: torch.optim.SparseAdam(p), "SparseAdam"),
        (lambda p: p, "list"),
    ],
)
def test_other_optimizers_are_refused(make, text):
    with pytest.raises(UserError, match="BZ0030") as error:
        braze.compile_optimizer(make([nn.Parameter(torch.zeros(2))]))
    assert text in str(error.value)


def test_subclasses():
    """One that keeps the step is compiled; one that has its own is refused, and so is an object that has."""

    class Named(torch.optim.Adam):
        def describe(self):
            return "named"

    class Own(torch.optim.Adam):
        def step(self, closure=None):
            return super().step(closure)

    pair = Pair(Named)
    pair.step(2)
    pair.check()
    assert pair.optimizers[1].describe() == "named"
    with pytest.raises(UserError, match="BZ0030"):
        braze.compile_optimizer(Own(model().parameters()))
    replaced = torch.optim.Adam(model().parameters())
    replaced.step = lambda: None
    with pytest.raises(UserError, match="BZ0030"):
        braze.compile_optimizer(replaced)


def train_scaled(pair):
    """Four steps under scalers, one of them with a gradient that overflows; the scalers."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in pair.models]
    for turn in range(4):
        for m, o, s in zip(pair.models, pair.optimizers, scalers):
            o.zero_grad()
            s.scale(m(torch.ones(2, 6)).square().sum()).backward()
            if turn == 2:
                m[0].weight.grad[0, 0] = float("inf")
            s.step(o)
            s.update()
    pair.check()
    return scalers


def test_grad_scaler_of_a_plain_optimizer(pair):
    """The scaler unscales and skips by itself."""
    scalers = train_scaled(pair)
    assert scalers[0].get_scale() == scalers[1].get_scale()


def test_grad_scaler_of_a_fused_optimizer():
    """With fused=True the optimizer unscales and skips: gradients and counts of steps end as PyTorch's."""
    pair = Pair(foreach=None, fused=True)
    train_scaled(pair)
    for p, q in zip(*(m.parameters() for m in pair.models)):
        torch.testing.assert_close(p.grad, q.grad)
    steps = [next(iter(o.state.values()))["step"].item() for o in pair.optimizers]
    assert steps == [3.0, 3.0]


def test_a_scaled_gradient_in_another_order_of_dims():
    """The kernel is given a copy, which is divided too; as GradScaler does it, by two attributes.

    PyTorch's own takes the elements in the order in which they lie.
    """
    p = torch.nn.Parameter(torch.zeros(3, 4))
    optimizer = braze.compile_optimizer(torch.optim.SGD([p], lr=1.0, fused=True))
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    p.grad = torch.arange(12.0).view(4, 3).t()
    optimizer.step()
    wanted = torch.arange(12.0).view(4, 3).t() / 4
    assert torch.equal(p.grad, wanted) and torch.equal(p.detach(), -wanted)


def test_stepped_during_inference_mode_or_no_grad(pair):
    pair.step()
    with torch.no_grad():
        pair.each(lambda m, o: o.step())
    pair.check()


def test_says_once_what_it_leaves_to_pytorch():
    with logged() as said:
        pair = Pair(differentiable=False, capturable=False)
        pair.step()
        assert not said
        pair.each(lambda m, o: o.param_groups[0].update(differentiable=True))
        pair.step(3)
    pair.check()
    assert len([line for line in said if "BZ0031" in line]) == 1


def test_the_stance_force_eager():
    """PyTorch's own step, state and all, for as long as it is asked for."""
    pair = Pair()
    with braze.set_stance("force_eager"):
        pair.step(2)
        assert counted()[0] == 0
    pair.step(2)
    assert counted()[0] == 1
    pair.check()


def test_old_state_is_given_up_when_another_is_loaded(pair):
    """Not both are held at a time."""
    pair.step(2)
    optimizer = pair.optimizers[1]
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    held = [weakref.ref(t) for t in tensors]
    stored = copy.deepcopy(optimizer.state_dict())
    del tensors
    optimizer.load_state_dict(stored)
    assert not any(h() is not None for h in held)


def test_a_step_that_fails_half_way_leaves_nothing_undone():
    """An error from PyTorch's part of a group leaves no buffer without values behind."""
    odd, plain = nn.Parameter(torch.zeros(2, 4)[:, :2]), nn.Parameter(torch.zeros(3))
    optimizer = braze.compile_optimizer(torch.optim.SGD([odd, plain], lr=1.0, momentum=0.9))
    odd.grad, plain.grad = torch.ones(2, 2), torch.ones(3)
    optimizer.state[odd]["momentum_buffer"] = torch.ones(7)
    with pytest.raises(RuntimeError, match="size"):
        optimizer.step()
    assert "momentum_buffer" not in optimizer.state[plain]
    optimizer.state[odd].clear()
    optimizer.step()
    assert plain.tolist() == [-1.0, -1.0, -1.0]
    assert odd.tolist() == [[-1.0, -1.0]] * 2


SETTINGS = [
    (torch.optim.SGD, {"lr": None}),
    (torch.optim.SGD, {"lr": "0.1"}),
    (torch.optim.SGD, {"weight_decay": "0.1"}),
    (torch.optim.AdamW, {"lr": torch.tensor([0.1, 0.2])}),
    (torch.optim.AdamW, {"betas": (0.9,)}),
    (torch.optim.AdamW, {"betas": (1.0, 0.9)}),
    (torch.optim.AdamW, {"betas": (0.9, 1.5)}),
]


@pytest.mark.parametrize(("cls", "setting"), SETTINGS, ids=lambda x: str(x).replace("\n", ""))
def test_settings_that_have_no_step_raise_eagers_error(cls, setting):
    """And leave no memory without values behind for the next step."""
    messages = []
    pair = Pair(cls, **({"momentum": 0.9} if cls is torch.optim.SGD else {}))
    for m, o in zip(pair.models, pair.optimizers):
        (group,) = o.param_groups
        held = {key: group[key] for key in setting}
        group.update(setting)
        for p in m.parameters():
            p.grad = torch.ones_like(p)
        with pytest.raises(Exception) as error:
            o.step()
        messages.append((type(error.value), str(error.value)))
        group.update(held)
    assert messages[0] == messages[1]
    # what eager did before its error may differ from parameter to parameter
    for m, o in zip(pair.models, pair.optimizers):
        o.state.clear()
        torch.nn.init.ones_(m[0].weight), torch.nn.init.ones_(m[2].weight)
        torch.nn.init.zeros_(m[0].bias), torch.nn.init.zeros_(m[2].bias)
    pair.step(2)
    pair.check()


def test_a_step_refused_leaves_no_buffer_without_values():
    p = nn.Parameter(torch.ones(3))
    optimizer = braze.compile_optimizer(torch.optim.SGD([p], lr=1.0, momentum=0.9))
    p.grad = torch.ones(3)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(TypeError):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.state.clear()
    optimizer.step()
    assert p.tolist() == [0.0] * 3


def test_groups_taken_away(pair):
    """A group that is removed is let go of."""
    extra = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    for o, p in zip(pair.optimizers, extra):
        o.add_param_group({"params": [p]})
    pair.step()
    for o in pair.optimizers:
        o.param_groups.pop()
    pair.step(2)
    assert len(vars(pair.optimizers[1])["_braze_stepper"].plans) == 1
    pair.check()


def test_a_compiled_model_sees_the_new_weights():
    """Packed weights and values computed from parameters follow the step."""
    net = model()
    compiled = braze.compile(net)
    optimizer = braze.compile_optimizer(torch.optim.SGD(net.parameters(), lr=0.5))
    x = torch.randn(4, 6)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), net(x))
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()


def test_optimizers_of_two_threads():
    """Each thread trains a model of its own."""
    import threading

    pairs = [Pair() for _ in range(3)]
    threads = [threading.Thread(target=p.step, args=(5,)) for p in pairs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for p in pairs:
        p.check()


def test_kernels_are_dumped_and_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(built, "_made", {})
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    monkeypatch.setattr(log.logger("output_code"), "propagate", True)
    caplog.set_level("INFO", "braze.output_code")
    p = nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    braze.compile_optimizer(torch.optim.SGD([p], lr=0.1)).step()
    built.gpu_module(KINDS[3])
    dumped = {path.suffix: path.read_text() for path in tmp_path.glob("*_optimizer_*")}
    assert {".c", ".py"} == set(dumped)
    assert all(text in caplog.text for text in dumped.values())
