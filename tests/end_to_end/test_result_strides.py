"""Results lie in memory as eager's do, for inputs of unusual layouts; and have its types."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.helpers import logged

F = torch.nn.functional


def normalized(x):
    return F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])), F.batch_norm(
        x, None, None, training=True
    )


CASES = {
    "a window of a copy": (lambda x: x.clone()[::3, :, 0, -1], [(7, 3, 2, 4)]),
    "a view to the shape that it has": (lambda x: (x.flatten()[None] + 1)[:, 2:].view(1, 2), [(4, 1)]),
    "clamp of truth values": (lambda x, low: (x > 0).clamp(low > 0), [(2, 1), (1, 1, 2)]),
    "zeta of integers": (
        lambda x, y: torch.special.zeta(x.long() + 2, y.long() + 1),
        [(4, 5), (5, 1, 4, 5)],
    ),
    "losses one by one": (
        lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
        [(5, 5), (5, 5)],
    ),
    "xlogy": (torch.xlogy, [(3, 4), (4, 3)]),
    "logaddexp": (torch.logaddexp, [(4, 5), (5, 4, 3)]),
    "heaviside": (torch.heaviside, [(3, 1, 1), (5, 4, 3)]),
    "heaviside of integers": (lambda x, y: torch.heaviside(x.long(), y.long()), [(3, 1, 1), (5, 4, 3)]),
    "xlog1py": (torch.special.xlog1py, [(3, 4), (4, 3)]),
    "a power of a number": (lambda x: 2**x, [(3, 4)]),
    "logsigmoid": (F.logsigmoid, [(3, 4, 2)]),
    "rrelu": (F.rrelu, [(2, 2, 8)]),
    "columns of few windows": (lambda x: F.unfold(x, (1, 2)), [(2, 2, 1, 1)]),
    "angles of complex numbers": (lambda x: torch.complex(x, -x).angle(), [(4, 3, 2)]),
    "isin": (lambda x: torch.isin(x, torch.tensor([1, 2])), [(4, 3, 2)]),
    "channel_shuffle": (lambda x: torch.channel_shuffle(x, 2), [(2, 4, 4)]),
    "channel_shuffle of pictures": (
        lambda x: torch.channel_shuffle(x.contiguous(memory_format=torch.channels_last), 2),
        [(5, 4, 4, 2)],
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), [(5, 2, 2)]),
    "nearest-exact": (lambda x: F.interpolate(x, size=3, mode="nearest-exact"), [(5, 2, 2)]),
    "linear": (lambda x: F.interpolate(x, size=3, mode="linear"), [(5, 2, 2)]),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2), [(2, 3, 4), (4, 3, 2)]),
    "conv1d of turned weights": (lambda x, w: F.conv1d(x, w.mT.contiguous().mT), [(2, 3, 4), (4, 3, 2)]),
    "batch_norm of rows": (normalized, [(3, 4)]),
    "batch_norm of sequences": (normalized, [(2, 4, 3)]),
    "batch_norm of pictures": (normalized, [(5, 3, 2, 4)]),
}


def operands(sizes, turned):
    """One of the operands, or a half of them, runs the other way."""
    given = [torch.rand(size) for size in sizes]
    order = list(range(given[-1].dim()))[::-1]
    given[-1] = given[-1].permute(order)
    if turned and len(given) == 1:
        given[0] = given[0].mT if given[0].dim() > 1 else given[0]
    return given[::-1] if turned and len(given) > 1 else given


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_are_eagers(dynamic):
    """Of all cases in one graph, each with operands of its own, which are turned one way here and the other way there."""

    def program(given):
        return {case: fn(*given[case]) for case, (fn, _) in CASES.items()}

    given = {case: operands(sizes, (i + dynamic) % 2) for i, (case, (_, sizes)) in enumerate(CASES.items())}
    with logged() as said:
        found = braze.compile(program, dynamic=dynamic, options={"verify": 2})(given)
    assert not [message for message in said if "runs as captured" in message]
    for case, wanted in program(given).items():
        for ours, theirs in zip(
            *((r if isinstance(r, tuple) else (r,)) for r in (found[case], wanted)), strict=True
        ):
            assert ours.stride() == theirs.stride(), case
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_loops_over_no_elements_lie_as_eagers(dynamic):
    """Row by row, whatever the strides of what has none are."""

    def fn(x):
        part = x[..., 2::4]
        return part.sin(), part * part, part > 0, part.double()

    for x in (torch.rand(1, 5, 2).expand(3, 5, 2), torch.rand(6, 2, 1), torch.rand(2, 5, 3).permute(2, 1, 0)):
        found, wanted = braze.compile(fn, dynamic=dynamic)(x), fn(x)
        assert [y.stride() for y in found] == [y.stride() for y in wanted]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
@pytest.mark.parametrize("by", [{"scale_factor": 2}, {"size": 4}])
def test_strides_that_a_program_asks_for_are_those_of_the_kernel_where_sizes_vary(mode, by):
    """PyTorch's own form of an interpolation in Python lays a turned sequence out as it lies, its kernel row by row."""

    def fn(x):
        made = F.interpolate(x, mode=mode, **by)
        return made.as_strided(made.shape, made.stride())

    x = torch.rand(8, 2, 3).movedim(-1, 0)
    found = braze.compile(fn, dynamic=True)(x)
    assert found.stride() == fn(x).stride()
    torch.testing.assert_close(found, fn(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", [(2, 8, 4, 4), (1, 8, 6, 4), (1, 1, 2, 1), (1, 8, 0, 4)])
def test_a_written_view_of_complex_numbers_lies_as_in_eager(size, dynamic):
    """What loops do not compute with is ATen's to copy, where a result's strides are told by another formula than those of what it is a view of."""

    def fn(x):
        x.unflatten(2, (-1, 2)).add_(1)
        parts = x.unflatten(2, (-1, 2))
        parts.mul_(2)
        return parts, parts.mT

    for step in (1, 2):
        whole = torch.rand(*size[:-1], size[-1] * step) * (1 - 2j)
        x, y = whole.clone()[..., ::step], whole.clone()[..., ::step]
        found, wanted = braze.compile(fn, dynamic=dynamic)(x), fn(y)
        assert torch.equal(x, y)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs)


PICTURES = [
    lambda x: x.roll(1, -1),
    lambda x: x.roll((1, 2), (0, 1)),
    lambda x: x.roll(1),
    lambda x: x.roll(0, 1),
    lambda x: x.roll(x.shape[1], 1),
    lambda x: torch.cat([x, x[:, :1]], 1),
    lambda x: torch.cat([x, x.contiguous()], 1),
    lambda x: torch.channel_shuffle(x, 2),
    lambda x: torch.channel_shuffle(x, 4),
    lambda x: F.group_norm(x, 2).roll(1, 1),
    lambda x: F.instance_norm(x).roll(1, 1),
]


@pytest.mark.parametrize("dynamic", [False, True])
def test_pictures_stay_channels_last_where_eagers_do(dynamic):
    """In turn two pictures and one."""
    two = torch.rand(2, 5, 6, 3).contiguous(memory_format=torch.channels_last)
    one = torch.rand(1, 5, 6, 3).contiguous(memory_format=torch.channels_last)

    def program(given):
        return [fn(x) for fn, x in zip(PICTURES, given)]

    compiled = braze.compile(program, dynamic=dynamic, options={"verify": 2})
    for lie in (lambda x: x[:, 1:].clone(), lambda x: x[:, 1:]):
        given = [lie((two, one)[(i + dynamic) % 2].clone()) for i in range(len(PICTURES))]
        for found, wanted in zip(compiled(given), program(given), strict=True):
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat([x, x]),
        lambda x: torch.channel_shuffle(x, 2),
        lambda x: F.conv2d(x, torch.ones(2, 4, 1, 1)),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_channel_that_is_repeated_is_no_innermost_one(fn, dynamic):
    x = torch.rand(2, 1, 6, 3).expand(2, 4, 6, 3)
    found, wanted = braze.compile(fn, dynamic=dynamic, options={"verify": 2})(x), fn(x)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("groups", [1, 2])
def test_shuffled_channels_have_memory_of_their_own(groups):
    """Also where they stay in their order; what requires grad, too."""
    x = torch.rand(16, 2, 2, requires_grad=True) * 1
    found = braze.compile(torch.channel_shuffle, options={"verify": 2})(x, groups)
    assert found.data_ptr() != x.data_ptr()
    assert found.stride() == x.stride()
    assert found.grad_fn is not None


@pytest.mark.parametrize("dynamic", [False, True])
def test_shuffled_channels_of_volumes_and_of_nothing_lie_as_eagers(dynamic):
    def fn(*given):
        return [torch.channel_shuffle(x, 2) for x in given]

    volumes = torch.rand(2, 2, 3, 6, 4).movedim(-1, 1)
    given = volumes, volumes[:, :, :0], torch.rand(2, 4, 5, 3)[..., 3:], torch.rand(2, 0, 4).mT
    found = braze.compile(fn, dynamic=dynamic, options={"verify": 2})(*given)
    for ours, theirs in zip(found, fn(*given), strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.equal(theirs)


def test_what_is_joined_of_nothing_has_the_common_type():
    nothing = torch.zeros(0, dtype=torch.bool), torch.zeros(0)
    assert braze.compile(torch.cat, options={"verify": 2})(nothing).dtype is torch.float32


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("graded", [False, True])
def test_rows_that_are_normalized_and_kept_count_of_lie_as_eagers(training, graded):
    """Of sizes that change, running statistics among what is written."""

    def fn(x, mean, var):
        return F.batch_norm(x, mean, var, training=training)

    compiled = braze.compile(fn, options={"verify": 2})
    for rows, columns in ((5, 3), (2, 2), (4, 6)):
        x = torch.rand(columns, rows).t().requires_grad_(graded)
        ours, theirs = ((torch.zeros(columns), torch.ones(columns)) for _ in range(2))
        found, wanted = compiled(x, *ours), fn(x, *theirs)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close((found, *ours), (wanted, *theirs))


@pytest.mark.parametrize("dynamic", [False, True])
def test_ldexp_of_an_integer_has_the_type_of_the_power(dynamic):
    """Of sizes that are symbols, too, where the power has none."""
    x, half = torch.arange(3, dtype=torch.int16), torch.tensor(2.0, dtype=torch.half)
    found = braze.compile(torch.ldexp, dynamic=dynamic)(x, half)
    assert found.dtype is torch.half
    torch.testing.assert_close(found, torch.ldexp(x, half))


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_of_two_numbers_has_the_type_of_its_target(backend, reduction):
    """PyTorch 2.11's fakes promote numbers without dims."""

    def fn(x, target):
        return F.binary_cross_entropy_with_logits(x, target, reduction=reduction)

    x, target = torch.tensor(0.5), torch.tensor(1.0, dtype=torch.bfloat16)
    compiled = braze.compile(fn, backend=backend, options={"verify": 2, "numerics": "eager"})
    for operands in ((x, target), (target, x)):
        found, wanted = compiled(*operands), fn(*operands)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_huber_loss_has_the_type_of_its_input(backend, dynamic, reduction):
    """Eager writes it into memory like its input's, and refuses whole numbers."""

    def fn(x, target):
        return F.huber_loss(x, target, reduction=reduction)

    compiled = braze.compile(fn, backend=backend, dynamic=dynamic, options={"verify": 2, "numerics": "eager"})
    column = torch.tensor([[0.25], [3.0]])
    for x, target in (
        (column.half(), column - 1),
        (column.bfloat16().t(), torch.ones(2, 2)),
        (torch.tensor(0.5), torch.ones((), dtype=torch.double)),
        (torch.tensor(0.5, dtype=torch.bfloat16), torch.zeros(3)),
        (column, column.long()),
    ):
        found, wanted = compiled(x, target), fn(x, target)
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
        torch.testing.assert_close(found, wanted)
    refused = []
    for call in (fn, compiled):
        with pytest.raises(RuntimeError) as caught:
            call(column.long(), column)
        refused.append(str(caught.value))
    assert refused[1] == refused[0]


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
@pytest.mark.parametrize("sizes", [((), ()), ((), (3,)), ((3,), (3,)), ((3,), ())])
def test_ldexp_by_integers_has_eagers_type(dtype, sizes):
    x, exponent = torch.rand(sizes[0], dtype=dtype), torch.ones(sizes[1], dtype=torch.int64)
    found, wanted = braze.compile(torch.ldexp, options={"verify": 2})(x, exponent), torch.ldexp(x, exponent)
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted)


OF_REPEATED = {
    "select": lambda x: x.select_scatter(x.select(0, 0), -2, -1),
    "slice": lambda x: x.slice_scatter(x[:2], 0, 0, 2),
    "diagonal": lambda x: x.diagonal_scatter(x.diagonal() * 2),
    "norm of one": lambda x: x[:, :1].norm(dim=-1),
    "norm of one, kept": lambda x: torch.linalg.vector_norm(x[:, :1], 1, -1, keepdim=True),
    "norm as doubles": lambda x: torch.linalg.vector_norm(x.t()[:1], 2, 0, dtype=torch.float64),
}


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("name", OF_REPEATED)
def test_parts_of_what_is_repeated_and_norms_over_one_element_lie_as_in_eager(name, backend):
    """On PyTorch 2.11 its fakes of these have strides of 0, and a dim too many."""
    fn = OF_REPEATED[name]
    for x in (torch.randn(6, 1).expand(6, 3), torch.randn(6, 3)):
        ours, theirs = braze.compile(fn, backend=backend)(x), fn(x)
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("name", ["select", "slice", "diagonal"])
def test_parts_of_what_is_repeated_lie_as_in_eager_at_varying_sizes(name):
    fn = OF_REPEATED[name]
    compiled = braze.compile(fn, dynamic=True, options={"verify": 2})
    for x in (torch.randn(6, 1).expand(6, 3), torch.randn(1, 17).expand(4, 17), torch.randn(5, 3)):
        ours, theirs = compiled(x), fn(x)
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("fn", [torch.logaddexp, torch.logaddexp2])
def test_results_over_two_types_and_turned_operands_lie_as_in_eager(fn):
    def called(x, y):
        return fn(x[:, None], y[None])

    rows, turned = torch.rand(4, 9), torch.rand(9, 9).t()
    compiled = braze.compile(called, options={"verify": 2})
    for x, y in ((rows, turned.half()), (rows, turned), (rows.half(), turned)):
        ours, theirs = compiled(x, y), called(x, y)
        assert (ours.stride(), ours.dtype) == (theirs.stride(), theirs.dtype)
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("fn", [torch.fmax, torch.fmin, torch.hypot, torch.maximum])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_results_of_a_repeated_column_and_a_turned_matrix_lie_as_in_eager(fn, dtype):
    """PyTorch's fakes compute halves in float32, of copies that lie otherwise."""
    compiled = braze.compile(fn, options={"verify": 2})
    column, turned = torch.ones(4, 1, dtype=dtype).expand(4, 4), torch.ones(4, 4, dtype=dtype).t()
    for x, y in ((column, turned), (turned, column), (column.t(), turned)):
        ours, theirs = compiled(x, y), fn(x, y)
        assert (ours.stride(), ours.dtype) == (theirs.stride(), theirs.dtype)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)


@pytest.mark.parametrize("fn", [torch.logaddexp, torch.add, torch.nn.functional.l1_loss])
def test_what_a_broadcast_over_varying_sizes_gives_lies_as_in_eager(fn):
    def called(x, y):
        whole = fn(x, y, reduction="none") if fn is torch.nn.functional.l1_loss else fn(x, y)
        return whole, whole[1:2].contiguous()

    compiled = braze.compile(called, dynamic=True, options={"verify": 2})
    for n in (2, 3):
        x, y = torch.rand(n), torch.rand(n, 2, 4).permute(2, 1, 0)
        for ours, theirs in zip(compiled(x, y), called(x, y), strict=True):
            assert ours.stride() == theirs.stride()
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [lambda x: x == x, lambda x: x * 2, lambda x: x.isfinite(), torch.abs])
def test_what_is_padded_of_pictures_of_one_row_lies_as_in_eager(fn, dynamic):
    """Strides of dims of one element decide whether a picture's channels are taken to be innermost."""

    def padded(x):
        v = fn(x)
        return v, torch.constant_pad_nd(v, (-1, 1))

    compiled = braze.compile(padded, dynamic=dynamic, options={"verify": 2})
    for n in (3, 5):
        x = torch.randn(n, 1, 4, 1).permute(3, 2, 1, 0)
        for ours, theirs in zip(compiled(x), padded(x), strict=True):
            assert ours.stride()[3] == theirs.stride()[3]
            assert ours.stride()[1] == theirs.stride()[1]
            assert torch.equal(ours, theirs)


def test_attention_without_heads_asks_no_kernel(tmp_path, monkeypatch):
    """Some divide by the number of heads (PyTorch 2.11 dies of that), and strides that mean nothing decide which ATen takes."""

    def attended(x):
        y = x[..., None, :] * 2
        return F.scaled_dot_product_attention(y, y, y)

    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    x = torch.randn(1, 0, 2).permute(2, 1, 0)
    assert braze.compile(attended)(x).shape == attended(x).shape
    (traced,), (loops,) = tmp_path.glob("*graph_aten.py"), tmp_path.glob("*graph_loops.py")
    assert "aten.scaled_dot_product_attention.default(" in traced.read_text()
    assert "scaled_dot_product_attention.default" not in loops.read_text()


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_what_is_looked_up_in_one_row_of_what_is_turned_lies_as_in_eager(dynamic):
    def called(x):
        one = x[:1]
        x.sub_(1)
        return one[:, torch.tensor([0, 0])], x[:, torch.tensor([0, 1])]

    compiled = braze.compile(called, dynamic=dynamic, options={"verify": 2})
    for n in (3, 5):
        x = torch.randn(2, 2, n).permute(2, 1, 0)
        for ours, theirs in zip(compiled(x.clone()), called(x.clone()), strict=True):
            assert ours.stride()[1:] == theirs.stride()[1:]
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_tensors_bound_lies_as_in_eager(backend):
    """Operands tell the order of some dims each, and none of all."""

    def called(x, low):
        return x[:, -1:].clamp(low), x[:, -1:].clamp(max=low), x[:, -1:].clamp(low.double(), low)

    compiled = braze.compile(called, backend=backend, options={"verify": 2})
    for n in (2, 1, 3):
        x, low = torch.randn(3, 3, n).permute(2, 1, 0), torch.ones(3, 3, dtype=torch.int64)
        for ours, theirs in zip(compiled(x, low), called(x, low), strict=True):
            assert (ours.stride()[1:], ours.dtype) == (theirs.stride()[1:], theirs.dtype)
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_what_is_broadcast_with_numbers_put_for_none_lies_as_in_eager(dtype, backend):
    """``nan_to_num`` keeps strides of dims of one element, by which a broadcast orders its own."""

    def fn(x):
        return torch.fmax(x, x.nan_to_num().movedim(0, -2))

    for x in (torch.ones(2, 1, 1, dtype=dtype), torch.ones(1, 1, 2, dtype=dtype).permute(2, 1, 0)):
        found = braze.compile(fn, backend=backend, options={"verify": 2})(x)
        assert found.stride() == fn(x).stride()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_volumes_that_pictures_are_made_of_are_normalized_into_eagers_strides(backend):
    """Row by row where one channel was put before those of a picture that are innermost."""

    def fn(x):
        return F.batch_norm(x, None, None, training=True)

    pictures = torch.rand(5, 9, 4, 3).contiguous(memory_format=torch.channels_last)
    for x in (pictures.unsqueeze(1), pictures.unsqueeze(2)):
        found = braze.compile(fn, backend=backend, options={"verify": 2})(x)
        assert found.stride() == fn(x).stride()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("graded", [False, True])
def test_what_moves_running_statistics_is_normalized_into_eagers_strides(graded, backend):
    """Volumes made of pictures, and rows whose dims of one element point elsewhere."""

    def fn(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    pictures = torch.rand(5, 9, 4, 3).contiguous(memory_format=torch.channels_last)
    rows = torch.rand(60).as_strided((3, 2, 1), (2, 1, 9))
    compiled = braze.compile(fn, backend=backend, dynamic=False, options={"verify": 2})
    for x in (pictures.unsqueeze(1), pictures.unsqueeze(2), rows, rows.mT):
        x = x.detach().requires_grad_(graded)
        ours, theirs = ((torch.zeros(x.shape[1]), torch.ones(x.shape[1])) for _ in range(2))
        found, wanted = compiled(x, *ours), fn(x, *theirs)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close((found, *ours), (wanted, *theirs))


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_one_picture_whose_channels_are_innermost_is_normalized_so(backend):
    """Whatever the stride of the one picture is, as after ``unsqueeze``; of sizes that change, too."""

    def fn(x):
        return F.batch_norm(x.unsqueeze(0), None, None, training=True).swapaxes(0, -1)

    compiled = braze.compile(fn, backend=backend, options={"verify": 2})
    for sizes in ((3, 8, 1), (3, 16, 1), (3, 3, 3), (5, 2, 4)):
        x = torch.rand(sizes).movedim(-1, 0)
        found, wanted = compiled(x), fn(x)
        ours, theirs = ([s for s, n in zip(t.stride(), t.shape) if n > 1] for t in (found, wanted))
        assert ours == theirs
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_max_pool_of_turned_sequences_lies_as_in_eager(backend, grad):
    """Without a gradient the CPU has a kernel of its own, whose results are row by row; with one they lie as the operand."""

    def pooled(x):
        y = F.max_pool1d((x * 2).transpose(1, 2), 2)
        return y, y + (1 if y.is_contiguous() else 2)

    compiled = braze.compile(pooled, backend=backend, options={"verify": 2})
    for sizes in ((4, 8, 5), (4, 9, 12), (4, 6, 9)):
        x = torch.randn(sizes, requires_grad=grad)
        for ours, theirs in zip(compiled(x), pooled(x), strict=True):
            assert ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.fmod(2),
        lambda x: 1 - x,
        lambda x: x.clone(),
        lambda x: x.flip(0),
        lambda x: x.sort(-1)[0],
        lambda x: F.hardshrink(x),
        lambda x: x.tril(),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_joined_with_a_row_that_was_turned_lies_as_in_eager(fn, dynamic):
    """A dim of one element has a stride, by which a broadcast orders its dims."""

    def program(x):
        return torch.tensor([1.0, 2.0, 3.0]).kron(fn(x).t())

    compiled = braze.compile(program, dynamic=dynamic, options={"verify": 2})
    for x in (torch.rand(1, 8), torch.rand(8, 1).t(), torch.rand(1, 9), torch.rand(9, 1).t()):
        found, wanted = compiled(x), program(x)
        assert found.stride() == wanted.stride()
        assert torch.equal(found, wanted)


OF_WINDOWS = {
    "glu": lambda x: F.glu(x.unfold(0, 4, 1), 0).abs() * 0 + 1,
    "glu along the windows": lambda x: F.glu(x.unfold(0, 4, 1), -1),
    "filled at a constant place": lambda x: x.as_strided((4, 3, 3), (9, 1, 6)).index_fill(
        0, torch.tensor([0]), 1.0
    ),
    "filled with a tensor": lambda x: x.as_strided((4, 3, 3), (9, 1, 6)).index_fill(
        0, torch.tensor([0]), x[0, 0]
    ),
    "one_hot": lambda x: F.one_hot(x.as_strided((4, 3, 2), (2, 6, 7)).long(), 60),
}


@pytest.mark.parametrize("case", OF_WINDOWS)
@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_what_is_made_of_windows_are_eagers_and_so_is_what_the_program_is_told(
    case, backend, dynamic
) -> None:
    """A view by these strides shows the same numbers, also where an operand is a constant of the program."""

    def program(x):
        made = OF_WINDOWS[case](x)
        return made, made.stride(), made.as_strided(made.shape, made.stride()) + 1

    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    for rows in (9, 9, 11):
        x = torch.arange(6.0 * rows).reshape(6, rows).t()
        (ours, told, seen), (theirs, known, wanted) = compiled(x), program(x)
        assert ours.stride() == theirs.stride() and told == known and seen.stride() == wanted.stride()
        torch.testing.assert_close(seen, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
def test_truth_values_turned_across_a_dim_of_one_element_lie_as_in_eager(dynamic):
    """Clamped by a tensor, as the dim of one element and the next, which lie one apart, tell an order."""

    def program(x):
        both = torch.stack([x, x])
        return both.swapaxes(0, -1).clamp(both.amax(-1))

    given = torch.ones(1, 1, dtype=torch.bool)
    assert braze.compile(program, dynamic=dynamic)(given).stride() == program(given).stride()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "pad",
    [
        lambda x: (0, -x.shape[-1] % 4),
        lambda x: (0, 0),
        lambda x: (-1, 0, 0, -1),
        lambda x: (0, x.shape[-1] - 8),
    ],
)
def test_what_nothing_is_padded_to_lies_as_it_did(pad, dynamic, backend):
    """PyTorch cuts it then, and copies what is left."""

    def padded(x):
        y = torch.nn.functional.pad(x, pad(x))
        return y, torch.einsum("...i,...i->...", y, y)

    compiled = braze.compile(padded, backend=backend, dynamic=dynamic)
    pictures = torch.arange(512.0).reshape(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    turned = [
        torch.arange(360.0).reshape(shape).movedim(-1, 0) for shape in ((9, 8, 5), (9, 5, 8), (8, 9, 5))
    ]
    for x in (*turned, pictures, torch.arange(720.0).reshape(5, 9, 16)[..., ::2]):
        for ours, theirs in zip(compiled(x), padded(x), strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("size", [(0, 4, 4), (2, 0, 4, 4), (0, 3, 4, 4), (3, 0, 4), (3, 4, 0), (2, 3, 0, 0)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_picture_of_no_elements_is_not_unshuffled_on_a_processor(size, turned, backend, dynamic):
    """Eager's kernel copies it as it is, in its sizes."""

    def unshuffled(x):
        made = F.pixel_unshuffle(x + 1, 2)
        return made, made

    x = torch.zeros(size)
    x = x.mT if turned else x
    found = braze.compile(unshuffled, backend=backend, dynamic=dynamic, options={"verify": 2})(x)
    wanted = unshuffled(x)
    assert found[0] is found[1]
    assert (found[0].shape, found[0].stride()) == (wanted[0].shape, wanted[0].stride())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("rows", [1, 2])
def test_what_a_hook_is_put_on_keeps_its_strides(backend, rows):
    """Also those of a dim of one element, by which what follows is laid out."""
    convolution = torch.nn.Conv2d(8, 8, 3, padding=1)

    def hooked(x):
        h = convolution(x)
        h.register_hook(lambda g: g * 0.5)
        return h * 1

    x = torch.randn(rows, 8, 6, 6).to(memory_format=torch.channels_last)
    found, wanted = braze.compile(hooked, backend=backend)(x), hooked(x)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("order", [(2, 1, 0), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("rows", [slice(None), slice(2, -1)])
def test_what_is_looked_up_beside_dims_of_one_element_lies_as_eagers(
    rows: slice, order: tuple[int, ...], backend: str
) -> None:
    """By their strides eager's loop orders the others, where they are those of no row."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:, [0, 0]], x[[0, 0, 0]], x[..., [0, 0]], x.index_select(1, torch.tensor([0, 0]))

    x = torch.arange(20).view(1, 1, 20)[..., rows].permute(order)
    ours = braze.compile(program, backend=backend, dynamic=True)(x)
    for mine, its in zip(ours, program(x), strict=True):
        assert torch.equal(mine, its)
        assert mine.stride() == its.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(
    ("dims", "pad"),
    [
        (4, (1, 1, 1, 1)),
        (4, (4, 0, -1, 3)),
        (5, (1, 1, 1, 1, 1, 1)),
        (4, (1, 1, 1, 1, 0, 0)),
        (4, (5, 1, 1, 1)),
    ],
)
def test_pictures_that_are_padded_with_what_is_there_lie_as_eagers(
    dims: int, pad: tuple[int, ...], mode: str, channels: int, dynamic: bool
) -> None:
    """With their channels innermost, in which six pads take the first dim of four for channels, too."""
    if mode == "reflect" and max(pad) >= 5:
        pytest.skip("eager refuses it")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = torch.randn(2, channels, *[5] * (dims - 2)).contiguous(memory_format=formats[dims])

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, pad, mode=mode)

    mine, its = braze.compile(program, dynamic=dynamic)(x), program(x)
    assert torch.equal(mine, its)
    assert mine.stride() == its.stride()
