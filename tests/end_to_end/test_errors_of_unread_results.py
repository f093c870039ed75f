"""An operator that refuses what its tensors hold raises as in eager, though nobody reads what it gives."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import braze
from tests.aot.recording import compile_aot, targets
from tests.helpers import logged

PLACES = torch.tensor([0, 9])
NONE = torch.zeros(3, 3)
NAN = NONE * float("nan")

REFUSED = {
    "index": lambda x: x[PLACES],
    "searchsorted": lambda x: torch.searchsorted(x, x, sorter=x.long() + 9),
    "searchsorted_for_a_number": lambda x: torch.searchsorted(x.detach(), 2.0, sorter=x.long() - 9),
    "index_of_rows": lambda x: x.view(2, 2)[:, PLACES],
    "gather": lambda x: x.gather(0, PLACES),
    "index_select": lambda x: x.index_select(0, PLACES),
    "take": lambda x: x.take(PLACES),
    "take_along_dim": lambda x: x.take_along_dim(PLACES),
    "embedding": lambda x: F.embedding(PLACES, x[:, None]),
    "embedding_bag": lambda x: F.embedding_bag(PLACES, x[:, None], torch.tensor([0])),
    "scatter": lambda x: x.scatter(0, PLACES, 1.0),
    "scatter_add": lambda x: x.scatter_add(0, PLACES, x[:2]),
    "scatter_reduce": lambda x: x.scatter_reduce(0, PLACES, x[:2], "amax"),
    "index_add": lambda x: x.index_add(0, PLACES, x[:2]),
    "index_copy": lambda x: x.index_copy(0, PLACES, x[:2]),
    "index_fill": lambda x: x.index_fill(0, PLACES, 1),
    "index_put": lambda x: x.index_put((PLACES,), x[:2]),
    "index_reduce": lambda x: x.index_reduce(0, PLACES, x[:2], "mean"),
    "put": lambda x: x.put(PLACES, x[:2]),
    "masked_scatter": lambda x: x.masked_scatter(x == x, x[:1]),
    "bincount": lambda x: torch.bincount(torch.tensor([-1, 2]) * x[1].long()),
    "one_hot": lambda x: F.one_hot(PLACES * x[1].long(), 3),
    "histc": lambda x: torch.histc(x / 0),
    "nll_loss": lambda x: F.nll_loss(x[None], torch.tensor([7])),
    "nll_loss_of_pictures": lambda x: F.nll_loss(x.view(1, 4, 1, 1), torch.tensor([[[7]]])),
    "cross_entropy": lambda x: F.cross_entropy(x[None], torch.tensor([7])),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[None], torch.tensor([7])),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x[None], torch.tensor([[7, 0, 0, 0]])),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x + 3, x.detach()),
    "inv": lambda x: torch.linalg.inv(NONE * x[0]),
    "solve": lambda x: torch.linalg.solve(NONE * x[0], NONE),
    "cholesky": lambda x: torch.linalg.cholesky(NONE - x[3]),
    "cholesky_of_old": lambda x: torch.cholesky(NONE - x[3]),
    "eigh": lambda x: torch.linalg.eigh(NAN * x[0]),
    "eig": lambda x: torch.linalg.eig(NAN * x[0]),
    "svd": lambda x: torch.linalg.svd(NAN * x[0]),
    "svd_of_a_rank": lambda x: torch.linalg.matrix_rank(NAN * x[0]),
    "pinv": lambda x: torch.linalg.pinv(NAN * x[0]),
    "max_unpool": lambda x: F.max_unpool1d(x[None, None, :2], torch.tensor([[[0, 99]]]), 2),
    "lu_unpack": lambda x: torch.lu_unpack(NONE * x[0], torch.tensor([9, 9, 9], dtype=torch.int32)),
    "floor_divide": lambda x: x.long() // (x.long() * 0),
    "remainder": lambda x: x.long() % (x.long() * 0),
}


def unread(operator):
    def program(x):
        operator(x)
        return x.sin() * 2

    return program


def read_in_part(operator):
    """Of what the operator gives the metadata are read, and a result of it that is written afterwards."""

    def program(x):
        made = operator(x)
        first = made[0] if isinstance(made, tuple) else made
        made = first.clone().zero_()
        return x.sin() * first.dim() + made.numel()

    return program


def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:  # the type and the words are compared
        return type(error), str(error).split("\n")[0][:60]


@pytest.fixture(autouse=True)
def _no_words_of_deprecation():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("operator", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("form", [unread, read_in_part])
def test_an_operator_that_refuses_its_tensors_raises_whoever_reads_its_result(operator, backend, form):
    program, x = form(operator), torch.arange(4.0)
    theirs = outcome(program, x)
    assert isinstance(theirs, tuple)
    assert outcome(braze.compile(program, backend=backend), x) == theirs


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("operator", REFUSED.values(), ids=REFUSED)
def test_so_it_does_where_gradients_are_asked_for_and_sizes_vary(operator, dynamic, backend):
    program, x = unread(operator), torch.arange(4.0, requires_grad=True)
    theirs = outcome(program, x)
    assert isinstance(theirs, tuple)
    assert outcome(braze.compile(program, backend=backend, dynamic=dynamic), x) == theirs


def written(x, i):
    y = x[i]
    y.add_(1)
    return x * 2


def in_a_checkpoint(x, i):
    def inner(x):
        x[i]
        return x.sin()

    return checkpoint(inner, x, use_reentrant=False) * 2


def read_once_of_two(x, i):
    x[i]
    return x[i] * 2


def read_by_what_nobody_reads(x, i):
    x[i].sum().exp()
    return x * 3


def read_for_its_shape(x, i):
    return x + torch.zeros_like(x[i]).sum()


def without_gradients(x, i):
    with torch.no_grad():
        x[i]
    return x * 3


TRUTHS, NAMED = torch.tensor([True, False, True, True]), torch.arange(4)
UNFIT = {
    "kthvalue_of_truths": lambda x: TRUTHS.logical_and(x > 0).kthvalue(1),
    "relu_of_truths": lambda x: F.relu(x > 1),
    "negative_power_of_integers": lambda x: (NAMED + x.long()) ** -1,
    "negative_power_in_place": lambda x: (NAMED + x.long()).pow_(-1),
    "norm_in_integers": lambda x: torch.linalg.vector_norm(x, dtype=torch.int64),
    "norms_of_lists": lambda x: torch._foreach_norm([x.long()]),
    "norm_of_a_narrower_type": lambda x: torch.linalg.vector_norm(x.double(), dtype=torch.float32),
    "nansum_of_complex_numbers": lambda x: torch.nansum(x + 1j),
    "extreme_of_complex_numbers": lambda x: (x + 1j).max(0),
    "complex_full": lambda x: x.new_full((2,), 1j),
    "complex_factor": lambda x: torch.addmm(x[:1], x[None], x[:, None], beta=1j),
    "fraction_of_integers": lambda x: torch.add(x.long(), x.long(), alpha=0.5),
    "sort_by_no_dim": lambda x: x.sort(5),
    "mask_of_another_size": lambda x: x.clone().index_put_((TRUTHS[:2],), x[0]),
    "polygamma": lambda x: torch.polygamma(-1, x),
    "boundaries_of_two_dims": lambda x: torch.bucketize(x, x.view(2, 2)),
    "side": lambda x: torch.searchsorted(x, x, side="up"),
    "convolution_of_no_channels": lambda x: torch.conv1d(x[None, None], torch.ones(0, 1, 2)),
    "negative_padding": lambda x: torch.conv1d(x[None, None], torch.ones(1, 1, 2), padding=-1),
    "pool_of_nothing": lambda x: F.adaptive_avg_pool2d(x.view(1, 2, 2)[:, :0], 2),
    "picture_of_no_columns": lambda x: F.interpolate(x.view(1, 1, 2, 2)[..., :0], (2, 2), mode="bilinear"),
    "beyond_its_memory": lambda x: x.as_strided((3, 3), (3, 1)),
    "negative_beta": lambda x: F.smooth_l1_loss(x, x, beta=-1),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("operator", UNFIT.values(), ids=UNFIT)
def test_an_operator_that_kernels_alone_refuse_raises_whoever_reads_its_result(operator, dynamic, backend):
    """Meta functions let these pass, and the graph needs nothing of them."""
    for grad in (False, True):
        program, x = unread(operator), torch.arange(4.0, requires_grad=grad)
        theirs = outcome(program, x)
        assert isinstance(theirs, tuple)
        assert outcome(braze.compile(program, backend=backend, dynamic=dynamic), x) == theirs


def test_what_nobody_reads_and_eager_computes_is_left_out():
    def program(x):
        x.sort(0)
        (x > 1).long() ** 2
        x.clone().mul_(3).sum()
        return x * 2

    assert len(kernels(program, torch.arange(4.0))) == 1


PROGRAMS = [written, in_a_checkpoint, read_once_of_two, read_by_what_nobody_reads, read_for_its_shape, without_gradients]  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_places_that_do_not_exist_are_refused_and_others_give_eagers_gradients(
    program, grad, dynamic, backend
):
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    found = []
    for call in (program, compiled):
        x = torch.arange(4.0, dtype=torch.float64, requires_grad=grad)
        made = call(x, torch.tensor([0, 2]))
        if grad:
            made.sum().backward()
        found.append((made.detach(), x.grad))
        with pytest.raises(IndexError, match=r"out of (bounds|range)"):
            call(x, PLACES)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_class_that_is_none_is_refused_beside_gradients_too(grad, dynamic, backend):
    def program(x, i):
        return F.one_hot(input=i, num_classes=3) + x.sum()

    compiled, x = braze.compile(program, backend=backend, dynamic=dynamic), torch.ones(4, requires_grad=grad)
    assert torch.equal(compiled(x, torch.tensor([0, 2])), program(x, torch.tensor([0, 2])))
    for places in (PLACES, torch.tensor([-1, 0])):
        assert outcome(compiled, x, places) == outcome(program, x, places)


def kernels(program, *args):
    explained = braze.explain(program)(*args)
    return list(explained.kernels)


def test_an_unread_look_up_is_a_kernel_only_where_a_place_may_not_exist():
    def known(x):
        x[torch.arange(2)]
        x.gather(0, torch.arange(2))
        x.index_put((x > 1,), torch.tensor(0.0))
        return x * 2

    def given(x, i):
        x[i]
        return x * 2

    assert len(kernels(known, torch.arange(4.0))) == 1
    assert len(kernels(given, torch.arange(4.0), torch.tensor([1, 2]))) == 2


def test_the_backward_runs_nothing_for_an_error_that_the_forward_has_had():
    def program(x, i):
        x.take(i)
        x[i].exp()
        return x.tanh() * x.sum()

    inputs = [torch.ones(4, requires_grad=True), torch.tensor([1, 2])]
    part, _ = compile_aot(program, inputs, grad=True)
    assert part.backward is not None
    assert {"aten.take.default", "aten.index.Tensor"} <= set(targets(part))
    backward = {str(n.target) for n in part.backward.graph.graph.nodes}
    assert not {"aten.take.default", "aten.index.Tensor"} & backward


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_what_a_program_asserts_of_its_tensors_is_checked(backend):
    def program(x):
        torch._assert_async(x[0], "begins with nothing")
        return x + 1

    compiled = braze.compile(program, backend=backend)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert outcome(compiled, torch.zeros(2)) == outcome(program, torch.zeros(2))
    assert isinstance(outcome(program, torch.zeros(2)), tuple)


def of_an_input(x, write):
    part = x[..., -1]
    write(part)
    part.as_strided((2,), (4,), 2)
    return x * 1


def of_what_is_made(x, write):
    whole = x * 3
    part = whole[..., -1]
    write(part)
    part.as_strided((2,), (4,), 2)
    return whole


def of_two_parts(x, write):
    part, other = x[..., -1], x[:1]
    other.zero_()
    write(part)
    part.as_strided((2,), (4,), 2)
    return x[::2]


def of_a_view_of_what_is_written(x, write):
    part = x[..., -1]
    write(part)
    part.reshape(-1).as_strided((2,), (4,), 2)
    return x * 1


WRITES = {
    "out": lambda part: torch.mul(part, 2, out=part),
    "in_place": lambda part: part.mul_(2),
    "copied": lambda part: part.copy_(part + 1),
    "data": lambda part: part.data.add_(1),
}


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "program", [of_an_input, of_what_is_made, of_two_parts, of_a_view_of_what_is_written]
)
def test_an_unread_view_of_memory_that_was_written_sees_all_of_it(program, write, dynamic, backend):
    """What is written is computed as a value of its own, which has no memory beside its elements."""
    for size in ((15,), (1, 5, 3), (2,)):
        compiled = braze.compile(program, backend=backend, dynamic=dynamic)
        x, y = torch.ones(size), torch.ones(size)
        with logged() as said:
            theirs, ours = outcome(program, x, write), outcome(compiled, y, write)
        if isinstance(theirs, tuple):  # of two elements
            assert ours == theirs
        else:
            torch.testing.assert_close((ours, y), (theirs, x))
            assert not any("BZ6013" in each for each in said)
