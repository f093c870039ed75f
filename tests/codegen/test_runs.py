"""Launches on a GPU that stand one behind the other are one call of the host module, which takes no more memory for that."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
import torch.nn.functional as F

import braze
from braze import native, pipeline
from braze.codegen.host.runs import Run
from braze.runtime.call import loader
from braze.runtime.call.loader import Runtime, load_host
from braze.runtime.memory.arena import ArenaPool
from tests.aot.cuda_fakes import CTX, partition_on_gpu

LEAN = dataclasses.replace(CTX, lean=True, consumes=True)


def host_of(function, *shapes, ctx=CTX):
    inputs = [torch.ones(shape) for shape in shapes]
    plan = pipeline.lower_graph(partition_on_gpu(function, inputs, ctx=ctx), ctx)
    return pipeline.generate_code(pipeline.schedule_program(plan, ctx), ctx)


def calls(source):
    """What the host module calls of kernels and operators, in order."""
    body = source.partition("def call(inputs):")[2]
    return re.findall(r"^ +((?:run|triton|op)_\w+)\(", body, re.M)


def rows(source):
    """How many launches each run has."""
    texts = re.findall(r"run_\d+ = runtime\.run\(\(\n(.*?)\n +\), \d+, \d+\)", source, re.S)
    return [text.count("(triton_") for text in texts]


def means(x):
    for _ in range(3):
        x = x - x.mean(0)
        x = x - x.mean(1, keepdim=True)
    return x


def test_launches_in_a_row_are_one_call():
    source = host_of(means, (64, 64)).source
    assert calls(source) == ["run_0"] and rows(source) == [6]


def test_one_launch_is_called_by_itself():
    source = host_of(lambda x: x + 1, (64, 64)).source
    assert len(calls(source)) == 1 and calls(source)[0].startswith("triton_") and "runtime.run" not in source


def test_a_call_of_an_operator_ends_a_run():
    source = host_of(lambda x, w: means(means(x) @ w), (256, 256), (256, 256)).source
    assert calls(source) == ["run_0", "op_mm_out_0", "run_1"] and rows(source) == [6, 6]


def test_attention_that_drops_nothing_draws_nothing():
    """It needs not wait for a recording to end."""

    def attention(chance):
        shape = (2, 4, 16, 8)
        return host_of(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=chance), shape, shape, shape
        ).source

    assert 'operator("aten.scaled_dot_product_attention.default", False)' in attention(0.0)
    assert ", False)" not in attention(0.5)


def test_a_product_sees_its_weight_turned_without_a_view_of_pytorchs():
    """And an input that lies otherwise; what lies as it is wanted has no layout."""
    source = host_of(
        lambda x, w, v: torch.nn.functional.linear(x, w) @ v, (2, 3, 64), (32, 64), (32, 8)
    ).source
    body = source.partition("def call(inputs):")[2]
    assert "as_strided" not in body.partition("return (")[0]
    products = re.findall(r"runtime\.product\(.*\)", source)
    assert products[0] == ('runtime.product("aten.mm.out", (((6, 64), (64, 1), 0), ((64, 32), (1, 64), 0)))')


def test_an_operator_that_reads_sees_a_view_that_is_none_of_pytorchs():
    def f(x, w):
        return torch.nn.functional.conv2d(x.view(2, 4, 8, 8), w)

    source = host_of(f, (2, 4, 64), (4, 4, 3, 3)).source
    assert "view_0 = runtime.view(((2, 4, 8, 8), " in source and "view_0(" in source


def test_an_operator_that_writes_is_given_pytorchs_view():
    """Whose writes the tensor's own counter of versions notes."""

    def f(x, places, values):
        x.view(-1).put_(places, values)
        return x + 1

    inputs = [torch.ones(4, 4), torch.zeros(2, dtype=torch.int64), torch.ones(2)]
    plan = pipeline.lower_graph(partition_on_gpu(f, inputs, ctx=CTX), CTX)
    source = pipeline.generate_code(pipeline.schedule_program(plan, CTX), CTX).source
    assert re.search(r"op_put__default_0\(as_strided\(\w+, \(16,\), \(1,\)\), ", source)


def test_the_first_write_to_an_input_ends_a_run():
    """What is raised before it is of a call that may be run again."""

    def f(x, n):
        y = means(x)
        n.mul_(2)
        return y, means(y.t() * 2).sum(0)

    source = host_of(f, (64, 64), (64,)).source
    first, _, behind = source.partition("def call(inputs):")[2].partition("try:")
    run, write = calls(source)
    assert run == "run_0" and f"{run}(" in first
    assert write.startswith("triton_poi_fused_mul") and f"{write}(" in behind and "note_written" in behind


def test_each_launch_of_a_run_gets_its_own_arguments(monkeypatch):
    """As if it had been called by itself: with recording functions for the launchers."""

    def launched():
        seen, places = [], {}

        def launcher(name):
            return lambda *args: seen.append(
                (name, [places.setdefault(a.data_ptr(), len(places)) for a in args])
            )

        host = host_of(lambda x: (means(x), x.sum(0)), (64, 64))
        runtime = Runtime(None, ArenaPool(), {k.name: launcher(k.name) for k in host.kernels})
        load_host("g", host.source.replace(", device='cuda:0'", ""), runtime)([torch.ones(64, 64)])
        return seen, rows(host.source)

    together, found = launched()
    monkeypatch.setattr(Run, "takes", lambda self, allocations: False)
    alone, none = launched()
    assert together == alone and found == [len(alone)] and not none


def peak(source):
    """The most bytes at once of what the call allocates and lets go of."""
    live, most = {}, 0
    body = source.partition("def call(inputs):")[2]
    for line in body.splitlines():
        for name in re.findall(r"\w+", line.partition("del ")[2]) if line.strip().startswith("del ") else ():
            live.pop(name, None)
        found = re.match(r" +(\w+) = .*empty_strided\((\([\d, ]+\)), .*torch\.float32", line)
        if found:
            live[found[1]] = 4 * math.prod(int(n) for n in re.findall(r"\d+", found[2]))
        most = max(most, sum(live.values()))
    return most


def test_a_run_has_no_more_memory_at_once_than_its_launches_alone(monkeypatch):
    def f(x):
        for _ in range(4):
            x = torch.softmax(x.t() - x.mean(1, keepdim=True), 0).exp()
            x = x - x.mean(0)
        return x

    shape, peaks = (2048, 2048), {}
    rule = Run.takes
    for how, takes in {"rule": rule, "alone": lambda *_: False, "always": lambda *_: True}.items():
        monkeypatch.setattr(Run, "takes", takes)
        source = host_of(f, shape, ctx=LEAN).source
        peaks[how] = peak(source), rows(source)
    assert peaks["rule"][0] == peaks["alone"][0] < peaks["always"][0]
    assert not peaks["alone"][1] and peaks["rule"][1] and sum(peaks["rule"][1]) < sum(peaks["always"][1])


def test_memory_that_is_wanted_behind_a_release_ends_a_run():
    run = Run("run_0")
    assert run.takes(["y = empty_strided()"]) and run.takes([])
    run.after.append("del x")
    assert run.takes([]) and not run.takes(["y = empty_strided()"])


@pytest.mark.parametrize("wanted", [True, False])
def test_the_option_says_whether_launches_become_a_graph(monkeypatch, wanted):
    seen = []

    class Noted(Runtime):
        def __init__(self, *args):
            super().__init__(*args)
            seen.append(self)

    monkeypatch.setattr(loader, "Runtime", Noted)
    x = torch.ones(7)
    assert torch.equal(braze.compile(lambda x: x * 2 + 1, options={"launch_graphs": wanted})(x), x * 2 + 1)
    made = []
    monkeypatch.setattr(native, "DeviceRun", lambda *args: made.append(args))
    launcher = native.DeviceLauncher(1, 0, print, print, {}, (), ())
    seen[0].run(((launcher, (0,)), (launcher, (0,))), 1, 0)
    assert [args[1:] for args in made] == [(1, 0, wanted)]
    seen[0].run(((launcher, (0,)), (print, (0,))), 1, 0)
    assert len(made) == 1, "what is no launch of the driver's is called"
