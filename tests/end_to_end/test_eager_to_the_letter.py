"""What random programs showed to differ from eager in memory, types and signs: who shares it, which type, the zero that is negative."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import braze
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


def memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal numbers of equal signs, zeros too, and nan where nan is."""
    assert ours.dtype is theirs.dtype
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
    assert torch.equal(ours.signbit()[~ours.isnan()], theirs.signbit()[~theirs.isnan()])


@pytest.mark.parametrize("shape", [(7, 1), (1,), (4, 3)])
@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.unfold(0, 1, 1).clone(),
        lambda x: x.unfold(-1, 1, 1).to(torch.float32, copy=True),
        lambda x: x.view(-1).unfold(0, 1, 1).clone()[..., 0],
    ],
)
def test_a_copy_of_windows_is_memory_of_its_own(copy, shape):
    x = torch.ones(shape)
    made = braze.compile(copy)(x)
    assert memory(copy(x)) != memory(x)
    assert memory(made) != memory(x)


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize(
    "move",
    [
        lambda x: torch.channel_shuffle(x, 2),
        lambda x: torch.native_channel_shuffle(x, 1),
        lambda x: F.pixel_shuffle(x, 1),
        lambda x: F.pixel_unshuffle(x, 1),
    ],
)
def test_what_a_kernel_makes_anew_is_no_view(move, backend):
    """PyTorch's fakes follow compositions of views there."""

    def program(x):
        y = move(x)
        x.mul_(2)
        return y, y.view(-1).add_(1)

    x, theirs = torch.arange(8.0).view(2, 2, 2, 1), torch.arange(8.0).view(2, 2, 2, 1)
    ours = braze.compile(program, backend=backend)(x)
    for a, b in zip((*ours, x), (*program(theirs), theirs), strict=True):
        assert torch.equal(a, b)
    assert memory(ours[0]) != memory(x)


def written_in_parts(x):
    x[..., -1] = 5.0
    return x.as_strided((2,), (2,), 3) + 0, x.as_strided((2,), (3,), 4)[1:] * 2


def written_by_places(x):
    x[torch.tensor([0])] = -1.0
    seen = x.as_strided((2,), (2,), 3)
    x.mul_(2)
    seen.add_(1)
    return seen + 0, x * 2, x.as_strided((3,), (1,), 5) + 1


def scattered(x):
    y = torch.select_scatter(x, x[:, 0] - 1, 1, -1)
    return y.as_strided((2,), (2,), 5) + 0, y * 2


def scattered_and_written(x):
    y = torch.slice_scatter(x, x[:2] * 0 - 1, 0, 0, 2)
    seen = y.as_strided((2,), (2,), 5)
    seen.add_(100)
    return y, seen


@pytest.mark.parametrize("lying", [((2, 2), (1, 1)), ((3, 3), (2, 2)), ((2, 2, 2), (1, 1, 4))], ids=str)
def test_what_is_written_shows_at_all_that_share_its_place(lying):
    """Two dims of one size and one stride share memory, too."""
    x = torch.arange(12.0).as_strided(*lying)

    def f(x):
        row = torch.slice_scatter(x, x[:1] * 0 - 50, 0, 0, 1)
        return row, torch.select_scatter(x, x[0] * 0 - 50, 0, 0), torch.diagonal_scatter(x, x.diagonal() - 50)

    for ours, eager in zip(braze.compile(f)(x), f(x), strict=True):
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()


@pytest.mark.parametrize("program", [written_in_parts, written_by_places, scattered, scattered_and_written])
@pytest.mark.parametrize("begin", [0, 3])
def test_a_window_counts_from_where_memory_starts_after_a_write(program, begin):
    """The input begins inside its memory, what a write makes of it at the start of its own."""
    start = torch.arange(42.0)
    x, theirs = start.clone()[begin:].view(-1, 3), start.clone()[begin:].view(-1, 3)
    ours = braze.compile(program)(x)
    for a, b in zip((*ours, x), (*program(theirs), theirs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_of_several_results_turned_in_place(dynamic):
    def program(x):
        places = x.cummin(-1).indices
        places.swapaxes_(0, -1)
        return places, places + 1

    compiled = braze.compile(program, dynamic=dynamic)
    for shape in ((4, 3, 5), (2, 6, 3)):
        x = torch.arange(float(torch.Size(shape).numel())).neg().reshape(shape)
        for a, b in zip(compiled(x), program(x), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize(
    "exponent", [torch.tensor(-1), torch.tensor([2, 3]), torch.tensor(2.0, dtype=torch.double)]
)
@pytest.mark.parametrize("x", [torch.tensor(3.0), torch.tensor([3.0, 5.0]), torch.tensor(3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_ldexp_has_the_type_of_what_it_scales(x, exponent, dtype):
    x = x.to(dtype) if x.is_floating_point() else x
    same_bits(braze.compile(torch.ldexp)(x, exponent), torch.ldexp(x, exponent))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.einsum("bij,bkj->bik", x, x),
        lambda x: torch.inner(x[0], x[0]),
        lambda x: torch.chain_matmul(x[0], x[0].T),
        lambda x: F.nll_loss(x[0], torch.zeros(3, dtype=torch.int64)),
        lambda x: F.pad(x, (1, 2), mode="replicate"),
    ],
)
def test_autocast_casts_the_parts_of_composites_in_inference_too(fn, dtype):
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return fn(x)

    x = torch.arange(36.0).view(2, 3, 6).div(4).to(dtype)
    same_bits(braze.compile(program)(x), program(x))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("made", [{"scale_factor": 2}, {"scale_factor": 1.3}, {"size": 7}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_interpolated_under_autocast_lies_as_in_eager(mode, made, dtype, dynamic):
    compiled = braze.compile(F.interpolate, backend="aot_eager", dynamic=dynamic)
    with torch.autocast("cpu"):
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
            x = torch.arange(60.0).view(3, 4, 5).to(dtype).permute(order)
            result, eager = compiled(x, mode=mode, **made), F.interpolate(x, mode=mode, **made)
            same_bits(result, eager)
            assert result.stride() == eager.stride()


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows of one number each; of the last, all but the first are the mean, and one is a zero."""
    return torch.tensor([[-0.0] * 9, [0.0] * 9, [1.0] * 9, [-1.5] * 9, [4.0, -4.0, *[-0.0] * 7]], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x, one: F.layer_norm(x, (9,)),
        lambda x, one: F.layer_norm(x, (9,), one),
        lambda x, one: F.layer_norm(x, (9,), None, one * 0),
        lambda x, one: F.group_norm(x, 1),
        lambda x, one: F.rms_norm(x, (9,)),
        lambda x, one: F.rms_norm(x, (9,), one),
        lambda x, one: F.batch_norm(x.T, one[:5] * 0, one[:5]),
        lambda x, one: F.batch_norm(x.T, None, None, training=True),
        lambda x, one: F.batch_norm(x.T, None, None, one[:5], training=True),
        lambda x, one: F.instance_norm(x[None]),
    ],
)
def test_zeros_of_normalized_rows_have_eagers_signs(norm, dtype):
    x, one = rows(dtype), torch.ones(9, dtype=dtype)
    ours, theirs = braze.compile(norm)(x, one), norm(x, one)
    zero = (theirs == 0) & (ours == 0)
    assert zero.any()
    assert torch.equal(ours[zero].signbit(), theirs[zero].signbit())


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0, 2])
@pytest.mark.parametrize("op", [torch.add, torch.sub, torch.rsub])
def test_zeros_of_sums_with_a_factor_have_eagers_signs(op, alpha):
    x = torch.tensor([-0.0, -0.0, 0.0, 0.0, -0.0]).repeat(5)
    y = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0]).repeat(5)

    def program(x, y):
        return op(x, y, alpha=alpha), op(x, y.int(), alpha=int(alpha)), op(x.int(), y.int(), alpha=int(alpha))

    for a, b in zip(braze.compile(program)(x, y), program(x, y), strict=True):
        same_bits(a, b) if a.is_floating_point() else torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("order", [1, 2, 3, float("inf")])
def test_the_norm_of_one_number_is_its_size(order, dynamic):
    def program(x):
        return torch.linalg.vector_norm(x, order, 0), x[0, 0].norm(order), x[:, :1].norm(order, (0, 1))

    x = torch.tensor([[1e30, -1e-30, 0.0, -0.0, float("nan"), float("-inf")]])
    for a, b in zip(braze.compile(program, dynamic=dynamic)(x), program(x), strict=True):
        same_bits(a, b)


def test_as_strided_beyond_an_input_is_held_to_the_memory_of_each_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((5,), (1,)).sigmoid()

    compiled = braze.compile(program)
    longer = torch.arange(8.0)
    assert torch.equal(compiled(longer[:2]), program(longer[:2]))
    for x in (torch.arange(2.0), longer[6:]):  # this memory ends before
        with pytest.raises(RuntimeError, match="requiring a storage size"):
            program(x)
        with pytest.raises(RuntimeError, match="requiring a storage size"):
            compiled(x)
    assert torch.equal(compiled(longer[1:3]), program(longer[1:3]))


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x & 7,
        lambda x: 3 | x,
        lambda x: x ^ x,
        lambda x: 1 << x,
        lambda x: torch.gcd(x, x),
        lambda x: x.long() & 1.5,
    ],
    ids=["and", "or", "xor", "shift", "gcd", "and_by_a_float"],
)
def test_what_only_whole_numbers_have_is_refused_for_floats_as_in_eager(operation, backend):
    def program(x):
        try:
            return operation(x)
        except NotImplementedError as error:
            return str(error)

    with logged() as messages:
        made = braze.compile(program, backend=backend)(torch.ones(3))
    assert made == program(torch.ones(3)) and "not implemented for 'Float'" in made
    assert not [m for m in messages if "BZ9" in m or "BZ6013" in m]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    ("turn", "marks"),
    [
        (lambda x: x[1:].t_(), True),
        (lambda x: (x * 2)[1:].t_(), False),
        (lambda x: x.data.t_(), False),
        (lambda x: x.view(-1).unsqueeze_(0).exp(), True),
        (lambda x: x.view(-1).squeeze_().mul_(2), True),
    ],
    ids=["view", "of_a_result", "data", "between", "written"],
)
def test_an_argument_of_which_a_view_is_turned_in_place_is_marked_as_written(turn, marks, backend):
    compiled = braze.compile(turn, backend=backend)
    for grad in (False, True):
        for run in (turn, compiled):
            x = torch.ones(3, 2).requires_grad_(grad) * 1
            run(x)
            assert (x._version > 0) is marks


#: what makes a result whose memory a graph sees through views
SEEN_THROUGH = {
    "written_turned": lambda x: _written_turned(x.tanh()),
    "product": lambda x: F.linear(x.expand(2, 3, 3), torch.ones(3, 3)),
    "turned": lambda x: x.cumsum(0).t(),
    "of_aten": lambda x: torch.linalg.inv(x + torch.eye(3)).mT,
}


def _written_turned(x: torch.Tensor) -> torch.Tensor:
    x.t().add_(3)
    return x


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("grad", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("make", SEEN_THROUGH.values(), ids=SEEN_THROUGH)
def test_a_result_without_gradients_is_written_with_them_where_eager_lets_it(make, grad, backend):
    """A graph runs without gradients: where that gives a view, autograd let nobody write to it with them."""
    w = torch.full((), 2.0, requires_grad=True)
    answers = []
    for run in (make, braze.compile(make, backend=backend)):
        with torch.set_grad_enabled(grad):
            made = run(torch.rand(3, 3, generator=torch.Generator().manual_seed(0)))
        try:
            answers.append(made.mul_(w).detach())
        except RuntimeError as error:
            answers.append(str(error))
    if isinstance(answers[0], str):
        assert all("A view was created in no_grad mode" in answer for answer in answers)
    else:
        torch.testing.assert_close(*answers)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "part",
    [lambda x: x.split(1)[0], lambda x: x.unbind()[3].view(1), lambda x: x.chunk(70)[1]],
    ids=["split", "unbind", "chunk"],
)
def test_one_of_many_parts_is_refused_as_in_eager_once_the_whole_was_written(part, backend):
    """Parts of which few are read are made alone, and autograd follows writes to what one operation makes alone."""

    def written_after(x):
        whole = x.sin()
        seen = part(whole)
        whole.mul_(2)
        return seen

    def written_before(x):
        return part(x.sin().mul_(2))

    x = torch.ones(70, requires_grad=True)
    with logged() as messages:
        late = braze.compile(written_after, backend=backend)(x)
        early = braze.compile(written_before, backend=backend)(x)
    assert len([m for m in messages if "BZ2030" in m]) == 1
    for seen in (late, written_after(x)):
        with pytest.raises(RuntimeError, match="is a view and its base or another view of its base"):
            seen.sum().backward()
    early.sum().backward()
    assert x.grad.count_nonzero() == 1


def first_of_many(x):
    y = x.sin()
    return y.split(1)[0], y


def made_without_gradients(x):
    y = x.sin()
    with torch.no_grad():
        part = y[1:]
    return part


def of_one_made_without_gradients(x):
    y = x.sin()
    with torch.no_grad():
        part = y[1:]
    return part[:2]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.sin().split(35)[0],
        lambda x: x.sin().unbind()[3],
        lambda x: x.sin().chunk(2)[1][4:],
        lambda x: x.sin().split(1)[0].mul_(2),
        lambda x: x.view(70).split(1)[2],
        lambda x: x.sin().tensor_split(70)[3],
        first_of_many,
        made_without_gradients,
        of_one_made_without_gradients,
    ],
)
def test_a_view_that_autograd_lets_nobody_write_is_refused_where_it_is_returned_alone(program, backend):
    """One of several, in a call or behind it, of few or many, one of which was made without gradients; what ``tensor_split`` makes alone may be written."""
    weight = torch.ones((), requires_grad=True)
    for x in (torch.ones(70, requires_grad=True), torch.ones(70)):
        if not x.requires_grad and program not in (made_without_gradients, of_one_made_without_gradients):
            continue
        found = []
        for call in (program, braze.compile(program, backend=backend)):
            try:
                result = call(x)
                (result[0] if isinstance(result, tuple) else result).mul_(weight)
                found.append("")
            except RuntimeError as error:
                found.append(str(error))
        assert found[1] == found[0]


@pytest.mark.parametrize("grad", [False, True], ids=["without", "with"])
@pytest.mark.parametrize(
    ("shuffle", "shape"),
    [
        (lambda x: (torch.channel_shuffle(x, 2), x * 2), (2, 0, 0)),
        (lambda x: (F.pixel_shuffle(x, 1), x * 2), (1, 0, 2, 2)),
        (lambda x: (F.pixel_shuffle(x, 1), x * 2), (1, 1, 2, 2)),
    ],
    ids=["channels", "pixels", "pixels_with_elements"],
)
def test_what_is_shuffled_is_no_view_though_it_has_no_elements(shuffle, shape, grad):
    compiled = braze.compile(shuffle)
    for run in (shuffle, compiled):
        made, _ = run(torch.zeros(shape, requires_grad=grad))
        assert not made._is_view()
        made.add_(1)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(0.5), lambda x: x.mul_(torch.ones(3)), lambda x: x.mul_(2), lambda x: x.mul_(3j),
        lambda x: x.mul_(torch.tensor(2.5)), lambda x: x.logit_(), lambda x: x.logit_(0.1), lambda x: x.ldexp_(x),
    ],
)  # fmt: skip
def test_what_does_not_fit_where_it_is_written_is_refused(write, dynamic, backend):
    def told(call, x):
        try:
            call(x)
        except RuntimeError as error:
            return str(error)
        return x.dtype, repr(x.tolist())

    compiled = braze.compile(write, backend=backend, dynamic=dynamic)
    for dtype in (torch.int64, torch.bool, torch.uint8, torch.float32):
        numbers = torch.arange(3).to(dtype)
        assert told(compiled, numbers.clone()) == told(write, numbers.clone())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (3, 4)])
def test_a_matrix_times_a_vector_of_another_type_is_of_the_vectors_or_refused(shape, dynamic):
    """Before PyTorch 2.13 eager multiplies two types where there is nothing to multiply."""

    def multiplied(a, x):
        return a @ x

    def added(a, x):
        return torch.addmv(x.new_ones(a.shape[0]), a, x)

    def told(call, a, x):
        try:
            made = call(a, x)
        except RuntimeError as error:
            return str(error)
        return made.dtype, made.tolist()

    for fn in (multiplied, added):
        compiled = braze.compile(fn, dynamic=dynamic)
        for one, other in itertools.permutations((torch.float32, torch.float64, torch.int64), 2):
            given = torch.ones(shape, dtype=one), torch.ones(shape[1], dtype=other)
            with logged() as messages:
                assert told(compiled, *given) == told(fn, *given)
            assert not [m for m in messages if "BZ90" in m]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("batch", "channels"), [(0, 0), (2, 0), (0, 2)])
def test_a_convolution_of_no_channels_is_of_both_types(batch, channels, dynamic):
    """Eager multiplies two types there; PyTorch's rule took the input's before 2.13 (`tensors` 4200003796)."""
    compiled = braze.compile(torch.nn.functional.conv1d, dynamic=dynamic)
    for one, other in itertools.permutations((torch.float16, torch.float32, torch.float64), 2):
        for size in (8, 9):
            given = torch.ones(batch, channels, size, dtype=one), torch.ones(3, channels, 2, dtype=other)
            made, its = compiled(*given), torch.nn.functional.conv1d(*given)
            assert made.dtype is its.dtype and torch.equal(made, its)


@pytest.mark.parametrize("dynamic", [False, True])
def test_statistics_that_nobody_reads_have_the_type_of_the_kernels(dynamic):
    """Of an input in half and statistics in whole floats PyTorch's fakes say half (`rare` 6950000943)."""

    def f(x):
        torch.nn.functional.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]))
        return x.as_strided((x.shape[0] // 2,), (2,))

    x = torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)
    with logged() as said:
        assert torch.equal(braze.compile(f, dynamic=dynamic)(x), f(x))
    assert not said


PARTS_OF_COPIES = [
    lambda x: x.clone()[1:],
    lambda x: x.clone()[1],
    lambda x: x.clone().t()[1:],
    lambda x: x.clone().diagonal(1),
    lambda x: x.clone().unbind(1)[2],
    lambda x: x.clone().chunk(2)[1],
    lambda x: x.clone().view(2, 8)[1, 2:],
    lambda x: x.to(torch.float32, copy=True)[2:],
    lambda x: (x * 2)[1:],
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", PARTS_OF_COPIES)
def test_a_part_of_a_copy_lies_in_the_memory_of_the_whole(function, grad, dynamic):
    """Whoever gets it may look at the rest, from where the memory begins."""
    x = torch.arange(16.0).view(4, 4).requires_grad_(grad)
    theirs = function(x)
    ours = braze.compile(function, dynamic=dynamic, options={"verify": 1})(x)
    assert ours.storage_offset() == theirs.storage_offset()
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes() == 64
    whole = ((4, 4), (4, 1), 0)
    assert torch.equal(ours.detach().as_strided(*whole), theirs.detach().as_strided(*whole))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("exponent", [torch.tensor(3), torch.tensor([[1], [2]]), torch.tensor([1 - 2j, 0.5])])
@pytest.mark.parametrize(
    "x", [torch.tensor([1 + 2j, -3j]), torch.tensor([1 + 2j, -3j], dtype=torch.complex128), torch.arange(2)]
)
def test_ldexp_of_complex_numbers_keeps_both_parts(x, exponent, dynamic):
    wanted = torch.ldexp(x, exponent)
    found = braze.compile(torch.ldexp, dynamic=dynamic)(x, exponent)
    assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("exponent", [True, False])
@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([True, False]),
        torch.tensor(True),
        torch.tensor([2, -3, 0], dtype=torch.int8),
        torch.tensor([2.5, -0.0]),
        torch.tensor([float("nan"), 7.0]).half(),
        torch.tensor([1 + 2j]),
        torch.ones(0, dtype=torch.bool),
    ],
)
def test_a_power_by_a_truth_value_has_the_type_of_what_is_raised(x, exponent):
    """Of truth values, too: PyTorch's fakes count the exponent as an integer there."""
    for power in (lambda x: torch.pow(x, exponent), lambda x: x**exponent):
        found, wanted = braze.compile(power)(x), power(x)
        assert found.dtype is wanted.dtype
        assert found.tolist() == pytest.approx(wanted.tolist(), abs=0, rel=0, nan_ok=True)


@pytest.mark.parametrize("eps", [0.0, 0.5, 0.7, 1.0])
def test_limits_of_logit_that_lie_the_wrong_way_round_are_asked_in_eagers_order(eps):
    x = torch.linspace(-0.2, 1.2, 37, dtype=torch.float64, requires_grad=True)
    wanted, found = torch.logit(x, eps), braze.compile(lambda x: torch.logit(x, eps))(x)
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=0)
    theirs, ours = (torch.autograd.grad(each.sum(), x)[0] for each in (wanted, found))
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)


@pytest.mark.parametrize("eps", [None, 0.01, 0.3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logit_rounds_in_half_types_where_eager_does(dtype, eps):
    """After each of its steps, on a processor; by default nowhere within, which is nearer to the number."""
    x = torch.linspace(-0.2, 1.2, 4096).to(dtype)
    wanted, exact = torch.logit(x, eps), torch.logit(x.double(), eps)
    rounded = braze.compile(lambda x: torch.logit(x, eps), options={"numerics": "eager"})(x)
    torch.testing.assert_close(rounded, wanted, rtol=0, atol=0, equal_nan=True)
    ours = braze.compile(lambda x: torch.logit(x, eps))(x)
    known = exact.isfinite() & wanted.isfinite()
    off, theirs = ((each.double() - exact)[known].abs().max() for each in (ours, wanted))
    assert off <= theirs


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3), (0, 3)])
def test_attention_whose_weights_nobody_needs_gives_none(sizes, needed, backend):
    """PyTorch's fakes give an empty tensor there."""
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def program(x):
        with torch.no_grad():
            y, weights = attention(x, x, x, need_weights=needed)
        return (y if weights is None else y * 100), weights

    x = torch.randn(*sizes, 8)
    with logged() as messages:
        ours, theirs = braze.compile(program, backend=backend)(x), program(x)
    torch.testing.assert_close(ours, theirs)
    assert not any("BZ6013" in message for message in messages)
