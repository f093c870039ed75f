"""Modules, hooks, and PyTorch's global state inside captured code."""

from __future__ import annotations

import copy

import pytest
import torch
from captured import Run, check, same
from torch import nn

import braze
from braze.graph.nodes.facts import facts
from braze.support import trace

X = torch.arange(6.0).reshape(2, 3)


class Block(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.named = nn.ModuleDict({"act": nn.GELU(), "norm": nn.LayerNorm(width)})
        self.register_buffer("count", torch.zeros(()))
        self.drop = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x, *, scale: float = 1.0):
        for layer in self.layers:
            x = self.named["act"](layer(x)) + x
        x = self.drop(self.named["norm"](x)) * scale
        self.count += 1
        self.calls += 1
        self.last = x
        return x, self.count


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x)


def run_module(module, *args, calls=2, **kwargs):
    """A module through its forward, against a copy in eager; the state must agree at the end."""
    theirs, run = copy.deepcopy(module), Run(type(module).__call__)
    for _ in range(calls):
        expected = theirs(*args, **kwargs)
        result = run(module, *args, **kwargs)
        assert same(expected, result)
    assert same(dict(theirs.state_dict()), dict(module.state_dict()))
    return run


def test_nested_modules_buffers_and_attributes():
    module = Block().eval()
    run = run_module(module, X, scale=2.0)
    # self.calls is a number that changes at each call: a guard on its value, so a graph for each
    assert module.calls == 2
    assert module.last.shape == X.shape
    assert "linear" in run.graphs[0].code


def test_batch_norm_trains():
    run = run_module(Counter().train(), X)
    assert len(run.graphs) == 1


def test_train_and_eval_are_two_variants():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    run = Run(type(module).forward)
    run(module, X)
    module.train()
    run(module, X)
    module.eval()
    run(module, X)
    assert len(run.graphs) == 2


def test_hooks_are_inlined_and_guarded():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = Run(type(module).__call__)
    plain = run(module, X)
    handle = module[0].register_forward_hook(lambda m, args, out: out * 2)
    pre = module[1].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    assert same(module(X), run(module, X))
    handle.remove()
    pre.remove()
    assert same(plain, run(module, X))
    assert len(run.graphs) == 2


def test_parameters_are_inputs_with_a_role():
    module = nn.Linear(3, 3)
    run = Run(type(module).forward)
    run(module, X)
    roles = {n.name: facts(n).role.value for n in run.graphs[0].graph.nodes if n.op == "placeholder"}
    assert sorted(roles.values()) == ["parameter", "parameter", "user"]


def test_replaced_parameter_is_used():
    module = nn.Linear(3, 3)
    run = Run(type(module).forward)
    run(module, X)
    module.weight = nn.Parameter(torch.ones(3, 3))
    assert same(module(X), run(module, X))
    assert len(run.graphs) == 1


def test_shared_parameters():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    run = run_module(module, X)
    inputs = [n for n in run.graphs[0].graph.nodes if n.op == "placeholder"]
    assert len(inputs) == 4


def test_no_grad_and_enable_grad():
    weight = nn.Parameter(torch.ones(3))

    def f(x):
        with torch.no_grad():
            y = x * weight
            off = torch.is_grad_enabled()
            with torch.enable_grad():
                z = y * weight
        return y, z, off, torch.is_grad_enabled()

    run = Run(f)
    y, z, off, on = run(X)
    assert (y.requires_grad, z.requires_grad, off, on) == (False, True, False, True)
    assert torch.is_grad_enabled()


def test_no_grad_as_decorator():
    weight = nn.Parameter(torch.ones(3))

    @torch.no_grad()
    def g(x):
        return x * weight

    def f(x):
        return g(x), x * weight

    run = Run(f, fullgraph=True)
    a, b = run(X)
    assert not a.requires_grad and b.requires_grad


def test_grad_mode_left_changed_is_replayed():
    def f(x):
        torch.set_grad_enabled(False)
        return x + 1

    run = Run(f)
    try:
        run(X)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_autocast():
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
            with torch.autocast("cpu", enabled=False):
                z = x @ x.T
        return y, z, x @ x.T

    check(f, X)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("outer", [False, True])
def test_grad_mode_in_inference_mode_is_as_the_program_has_it(outer):
    """Nothing gets a history there, and a function leaves grad mode as it found it."""

    def inside(x):
        with torch.enable_grad():
            y = x * 2
        return y, y.requires_grad, y.is_inference(), torch.is_grad_enabled()

    def outside(x):
        y = x * 2
        return y, y.requires_grad, y.is_inference(), torch.is_grad_enabled()

    for program in (inside, outside):
        told = []
        for run in (program, braze.compile(program)):
            with torch.inference_mode(), torch.set_grad_enabled(outer):
                told.append((*run(torch.ones(3, requires_grad=True))[1:], torch.is_grad_enabled()))
        assert told[0] == told[1] == (False, True, outer, outer)


def test_an_error_where_grad_mode_is_on_in_inference_mode_is_the_programs():
    def program(x):
        with torch.enable_grad():
            x.register_hook(lambda g: g * 2)

    with torch.inference_mode(), pytest.raises(RuntimeError, match="doesn't require gradient"):
        braze.compile(program)(torch.ones(3))


def test_inference_mode():
    def f(x):
        with torch.inference_mode():
            y = x + 1
            inside = torch.is_inference_mode_enabled()
        return y, inside, torch.is_inference_mode_enabled()

    run = check(f, X)
    assert run(X)[0].is_inference()


def test_state_is_guarded():
    def f(x):
        return x @ x.T + torch.ones(2, 2)

    run = Run(f)
    run(X)
    with torch.no_grad():
        run(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(X).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert run(X).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(run.graphs) == 4


def set_benchmark(on):
    """Once PyTorch's own test helpers are imported, its flags refuse to be set otherwise."""
    with torch.backends.__allow_nonbracketed_mutation():
        torch.backends.cudnn.benchmark = on


#: what tells a setting, what sets it, and two values of it
ASKED = {
    "threads": (torch.get_num_threads, torch.set_num_threads, 1, 2),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest", "high"),
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, True, False),
    "anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False, True),
    "cudnn": (lambda: torch.backends.cudnn.benchmark, set_benchmark, False, True),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_a_setting_that_is_asked_for_behind_a_change_of_another_is_guarded(name):
    ask, put, usual, other = ASKED[name]

    def program(x):
        with torch.no_grad():
            y = x + 1
        return y * 100 if ask() == other else y

    compiled, before = braze.compile(program, backend="eager"), ask()
    try:
        for value in (usual, other, usual):
            put(value)
            torch.testing.assert_close(compiled(X), program(X))
    finally:
        put(before)


def test_a_precision_that_is_set_to_what_it_is_already_is_set_again_where_it_is_another():
    products = torch.backends.cuda.matmul

    def program(x):
        products.fp32_precision = "ieee"
        return x + 1

    compiled, before = braze.compile(program, backend="eager"), products.fp32_precision
    try:
        for found in ("ieee", "tf32"):
            products.fp32_precision = found
            compiled(X)
            assert products.fp32_precision == "ieee"
    finally:
        products.fp32_precision = before


def test_a_setting_that_the_program_itself_has_set_is_not_guarded():
    def program(x):
        before = torch.backends.cuda.flash_sdp_enabled()
        torch.backends.cuda.enable_flash_sdp(False)
        made = x * 2 if torch.backends.cuda.flash_sdp_enabled() else x + 1
        torch.backends.cuda.enable_flash_sdp(before)
        return made

    assert same(check(program, X)(X), X + 1)


def test_is_compiling_is_true_inside():
    import braze

    def f(x):
        return x + 1, torch.compiler.is_compiling(), braze.is_compiling()

    assert Run(f)(X)[1:] == (True, True)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_sizes_are_guarded(size):
    def f(x):
        return x.new_zeros(x.shape[0], 2), x.shape[0]

    run = Run(f)
    run(X)
    assert same(f(torch.ones(size)), run(torch.ones(size)))


def test_messages_are_given_after_the_graph():
    import warnings

    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x + 1

    run = Run(f, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(X)
        run(X)
    assert len(caught) == 2


def test_an_attribute_that_a_module_makes_at_its_first_use_is_there_for_the_guards(tmp_path, monkeypatch):
    """Operators of ``torch.ops``, and names that a package imports when they are asked for."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "makes_late.py").write_text(
        "def __getattr__(name):\n"
        "    if name != 'scale':\n        raise AttributeError(name)\n"
        "    globals()[name] = 3.0\n    return 3.0\n"
    )
    import makes_late

    library = torch.library.Library("first_use", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("first_use::twice", torch.empty_like, lib=library)

    @braze.compile(fullgraph=True)
    def f(x):
        return torch.ops.first_use.twice(x) * makes_late.scale

    before = trace.COUNTERS["captures"]
    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 6.0))
    assert trace.COUNTERS["captures"] - before == 1
    assert not hasattr(makes_late, "other")
