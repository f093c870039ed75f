"""Programs in which another tracer meets compiled functions and modules: each run with ``braze.compile`` and without.

Run as a script, since what ``torch.compile`` changes in a process stays so: prints, for each program by name, what came
out either way.
"""

from __future__ import annotations

import builtins
import json
import re
import time
import warnings

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze import native
from braze.api import backend_of_dynamo
from braze.capture.dispatch.other_tracers import tell_of_builtins, usual_builtins
from braze.support import log
from tests.helpers import logged

X = torch.arange(8.0).view(2, 4) / 8
PROGRAMS = {}


def as_it_is(fn):
    return fn


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 2


def keyword(x, *, n=2):
    return x * n


class Parts(nn.Module):
    """A module whose submodules and a function in it are compiled."""

    def __init__(self, c):
        super().__init__()
        self.first, self.second = c(nn.Linear(4, 4)), c(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.function = c(plain)

    def forward(self, x):
        return self.function(self.second(self.first(x)))


def parts(c):
    torch.manual_seed(0)
    return Parts(c)


def whole(c):
    return c(parts(as_it_is))


def nested(c):
    g = c(plain)
    g(X)
    return lambda x: g(x) * 2


def compiled(fn):
    return braze.compile(fn, backend="aot_eager")


def dynamo(fn, **words):
    return torch.compile(fn, backend="eager", **words)


@program
def fx_function(c):
    return torch.fx.symbolic_trace(c(plain)).code, torch.fx.symbolic_trace(c(keyword)).code


@program
def fx_around(c):
    return torch.fx.symbolic_trace(nested(c)).code


@program
def fx_modules(c):
    return [torch.fx.symbolic_trace(m).code for m in (parts(c), whole(c), c(parts(c)))]


@program
def script_trace(c):
    module = whole(c)
    module(X)
    traced = torch.jit.trace(module, X)
    return str(traced.inlined_graph), traced(X * 2), module(X * 3)


@program
def script_trace_around(c):
    return [str(torch.jit.trace(f, X).inlined_graph) for f in (c(plain), nested(c), parts(c))]


@program
def script(c):
    module = nn.Sequential(c(nn.Linear(4, 4)), nn.ReLU())
    scripted = [torch.jit.script(f) for f in (c(plain), c(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), module)]
    return [str(s.graph) for s in scripted], type(module[0]).__name__


@program
def export_strict(c):
    return [torch.export.export(m, (X,), strict=True).graph_module.code for m in (parts(c), whole(c))]


@program
def export_not_strict(c):
    return [torch.export.export(m, (X,), strict=False).graph_module.code for m in (parts(c), whole(c))]


@program
def operators_traced(c):
    return make_fx(c(plain), tracing_mode="symbolic")(X).code, make_fx(parts(c))(X).code


@program
def fakes(c):
    function = c(plain)
    function(X)
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    outside = function(fake), function(X), function(fake)
    with mode:
        return outside, function(fake)


@program
def operators_watched(c):
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    function = c(plain)
    function(X)
    with Watch():
        result = function(X)
    return result, seen, function(X)


@program
def dynamo_whole(c):
    functions = c(plain), nested(c), parts(c), whole(c), c(parts(as_it_is).forward)
    return [dynamo(f, fullgraph=True)(X) for f in functions]


@program
def dynamo_inside(c):
    functions = [c(dynamo(plain)), c(dynamo(parts(as_it_is)))]
    return [[f(X * n) for n in range(3)] for f in functions]


@program
def dynamo_inside_and_around(c):
    found = []
    for outer, inner in ((c, dynamo), (dynamo, c)):
        for made in (plain, parts(as_it_is)):
            f = outer(inner(outer(inner(made))))
            found += [f(X), f(X * 2), f(torch.ones(3, 4))]
    return found, whole(c)(X)


@program
def dynamo_broken_around(c):
    g = c(plain)

    def around(x):
        x = x + 1
        time.perf_counter()
        x = g(x)
        print(end="")
        return g(x)

    f = dynamo(around)
    return f(X), f(X * 2), g(X), f(X)


@program
def dynamo_in_a_break(c):
    g = c(plain)
    d = dynamo(lambda x: g(x) + 1)

    def around(x):
        x = d(x + 1)
        time.perf_counter()
        return g(x)

    f = c(around)
    return f(X), f(X * 2), d(X), f(X)


@program
def dynamo_around_a_step(c):
    module = whole(c)
    optimizer = torch.optim.AdamW(module.parameters())
    if c is compiled:
        optimizer = braze.compile_optimizer(optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = module(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = dynamo(step)
    loss = module(X).sum()
    dynamo(lambda t: t.backward())(loss)
    return [f(X) for _ in range(3)], step(X)


@program
def compiled_in_dynamo(c):
    def around(x):
        return c(plain)(x) * 2

    return dynamo(around)(X), c(around)(X)


@program
def class_changed(c):
    torch.manual_seed(0)
    module = c(nn.Linear(4, 4))
    module(X)
    parametrizations.weight_norm(module)
    return module(X), type(module).__name__, sorted(module.state_dict()), module.weight


@program
def below_dynamo(c):
    """What Dynamo captures is compiled by the function that PyTorch finds under the name "braze", or left as it is."""
    backend = "eager" if c is as_it_is else backend_of_dynamo
    model = torch.compile(parts(as_it_is), backend=backend)
    found = [model(X), model(X[:1])]
    sum(y.sum() for y in found).backward()
    turned = torch.compile(lambda x: x.add_(1).mul(len(x)), backend=backend)
    return found, model.first.weight.grad, [turned(torch.ones(n)) for n in (2, 3, 5)]


def told_of_builtins():
    """What is told of the builtins that an export replaces, and of one that the program replaces later."""
    model = braze.compile(nn.Linear(4, 4))
    native.watch_builtins(vars(builtins), usual_builtins, tell_of_builtins)  # as if nothing had been told yet
    log.forget_warnings()
    with logged() as of_export:
        torch.export.export(model, (X,))
    own, builtins.max = builtins.max, lambda *given: 0
    with logged() as of_the_program:
        model(X)
    builtins.max = own
    return of_export, of_the_program


def shown(value):
    if isinstance(value, torch.Tensor):
        if isinstance(value, torch._subclasses.FakeTensor):
            return f"fake {tuple(value.shape)}"
        return [tuple(value.shape), round(value.detach().double().sum().item(), 4), value.requires_grad]
    if isinstance(value, (tuple, list)):
        return [shown(v) for v in value]
    return re.sub(r"0x[0-9a-f]+|_?__torch_mangle_\d+\.?|#.*", "", str(value))


def outcome(fn, c):
    torch._dynamo.reset()
    try:
        return shown(fn(c))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = {name: (outcome(fn, as_it_is), outcome(fn, compiled)) for name, fn in PROGRAMS.items()}
    print(json.dumps(found | {told_of_builtins.__name__: told_of_builtins()}))
