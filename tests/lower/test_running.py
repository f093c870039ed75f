"""Running sums on a GPU are calls of our kernels; interpreted here."""

import pytest
import torch

from braze import pipeline
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.loops.interpret import interpret

OURS = "braze.running.default"
ROWS = (300, 256)


def lowered(f, *inputs):
    """The calls, the number of loops, and the results beside the function's."""
    program = pipeline.lower_graph(partition_on_gpu(f, list(inputs)), CTX)
    found = interpret(program, list(inputs))
    wanted = f(*inputs)
    for made, want in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5)
    calls = [s for s in program.steps if isinstance(s, ExternCall)]
    return [c.target for c in calls], len(program.steps) - len(calls), [c.args[-1] for c in calls]


def numbers(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("f", [torch.cumsum, torch.logcumsumexp], ids=lambda f: f.__name__)
def test_sums(f, dim):
    assert lowered(lambda x: f(x, dim) * 2, numbers(*ROWS))[:2] == ([OURS], 1)


def test_products():
    assert lowered(lambda x: x.cumprod(0), numbers(*ROWS).clamp(0.9, 1.1))[:2] == ([OURS], 0)


def test_whole_numbers_are_read_as_they_are():
    x = numbers(*ROWS) > 1
    assert lowered(lambda t: t.cumsum(1) - 1, x)[:2] == ([OURS], 1)
    assert lowered(lambda t: t.cumsum(1, dtype=torch.int64), x.int())[:2] == ([OURS], 0)
    assert lowered(lambda t: t.cumsum(1, dtype=torch.int32), x.int())[:2] == (["aten.cumsum.default"], 0)


def test_a_mask_is_counted_as_it_lies_in_memory():
    x = numbers(*ROWS) > 1
    assert lowered(lambda t: t.long().cumsum(1) - 1, x)[:2] == ([OURS], 1)


def test_types_that_are_asked_for():
    x = numbers(*ROWS) * 10
    assert lowered(lambda t: t.cumsum(1, dtype=torch.float64), x)[:2] == ([OURS], 1)
    assert lowered(lambda t: t.cumsum(1, dtype=torch.int64), x)[:2] == ([OURS], 1)


@pytest.mark.parametrize("shape", [(8, 8), (1 << 17,), (0, 7), ()])
def test_few_numbers_and_one_line_are_atens(shape):
    assert OURS not in lowered(lambda x: x.cumsum(-1), torch.ones(shape))[0]


def test_sums_from_the_end_are_one_walk():
    calls, loops, backwards = lowered(lambda x: x.flip(1).cumsum(1).flip(1), numbers(*ROWS))
    assert (calls, loops, backwards) == ([OURS], 0, [True])


def test_sums_from_the_end_that_others_read_too():
    def program(x):
        turned = x.flip(1)
        ran = turned.cumsum(1)
        return ran.flip(1), ran + 1, ran.flip(0), turned

    made = pipeline.lower_graph(partition_on_gpu(program, [numbers(*ROWS)]), CTX)
    assert len({o.buffer for o in made.outputs}) == 4
    lowered(program, numbers(*ROWS))


def text(f, *inputs, dynamic=False):
    """The host module."""
    partition = partition_on_gpu(f, list(inputs), dynamic=dynamic)
    return pipeline.generate_code(
        pipeline.schedule_program(pipeline.lower_graph(partition, CTX), CTX), CTX
    ).source


def test_each_call_of_known_sizes_is_worked_out_once_and_by_itself():
    """In the host module: a call has a variable of its own, where its tensors are laid out alike each time."""

    made = text(lambda x: (x.cumsum(0), x.cumsum(1)), numbers(*ROWS))
    assert made.count('runtime.operator_once("braze.running.out")') == 2
    assert "runtime.operator(" not in made


def test_a_call_of_sizes_that_vary_is_worked_out_anew_each_time():
    """What was worked out for one size walks the lines of that one."""
    made = text(lambda x: x.cumsum(1), numbers(*ROWS), dynamic=True)
    assert 'runtime.operator("braze.running.out")' in made
    assert "runtime.operator_once(" not in made


def test_a_running_sum_of_nothing_but_negative_zeros_is_zero():
    """Eager's kernels on a GPU begin at 0; a line that is alone is a library's, which does not."""
    for shape, negative in (((4, 3), False), ((3,), True)):
        x = torch.full(shape, -0.0)
        for dim in range(x.dim()):
            partition = partition_on_gpu(lambda t, dim=dim: t.cumsum(dim), [x])
            (made,) = interpret(pipeline.lower_graph(partition, CTX), [x])
            assert bool(made.signbit().any()) is negative
