"""Which calls meta functions may let pass that eager refuses."""

from __future__ import annotations

import math
import operator

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.graph.fakes.fakes import FakeMode
from braze.graph.fakes.probe import is_doubtful, tried

#: type of elements -> the least and the greatest number that it has a place for
TYPES = {
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int64: (-(2**63), 2**63 - 1),
    torch.float16: (-65504.0, 65504.0),
    torch.float8_e4m3fn: (-448.0, 448.0),
}
NUMBERS = [0, 1, 6, 7, -1, 127, 128, 255, 256, -129, 449, 65505, 2**63, -(2**63) - 1, 10**400, -(10**400)]
NUMBERS += [0.0, -0.0, 1e-31, 1e-30, 6.0, 6.5, -0.5, 1e300]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_number_without_a_place_in_the_tensors_type_is_doubtful(dtype):
    low, high = TYPES[dtype]
    x = torch.zeros(2, dtype=dtype)
    for number in NUMBERS:
        assert is_doubtful("add", (x, number), {}) is not (low <= number <= high), number
        assert is_doubtful("full", ((2,), number), {"dtype": dtype}) is not (low <= number <= high), number


def test_nan_and_infinity_have_a_place_and_do_not_hide_what_has_none():
    x = torch.zeros(2, dtype=torch.uint8)
    for number in (math.nan, math.inf, -math.inf):
        assert not is_doubtful("add", (x, number), {})
        assert is_doubtful("clamp", (x, number, 256), {})
        assert is_doubtful("clamp", (x, -1, number), {})


def test_true_and_complex_numbers_are_no_bounds():
    assert not is_doubtful("add", (torch.zeros(2, dtype=torch.bool), 1000), {})
    assert not is_doubtful("add", (torch.zeros(2, dtype=torch.complex64), 10**400), {})
    assert not is_doubtful("add", (torch.zeros(2, dtype=torch.uint8), True), {})


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_only_divisions_doubt_zeros(zero):
    x = torch.zeros(2, dtype=torch.int64)
    assert is_doubtful("__floordiv__", (x, zero), {})
    assert not is_doubtful("__floordiv__", (x, 3), {})
    assert not is_doubtful("add", (x, zero), {})


def test_differences_refuse_truth_values_and_sums_such_factors():
    x = torch.zeros(2)
    assert is_doubtful("sub", (x, True), {}) and is_doubtful("rsub", (x, False), {})
    assert is_doubtful("add", (x, x), {"alpha": True})
    assert not is_doubtful("add", (x, True), {}) and not is_doubtful("mul", (x, True), {})


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "refused",
    [lambda x, n: x - (n > 3), lambda x, n: (n > 3) - x, lambda x, n: x.sub_(n > 3), lambda x, n: torch.add(x, 1, alpha=n > 3)],
    ids=["sub", "rsub", "sub_", "alpha"],
)  # fmt: skip
def test_the_truth_of_a_comparison_is_refused_where_eager_refuses_it(refused, dynamic):
    compiled = braze.compile(refused, dynamic=dynamic)
    for n in (3, 4, 5):
        for call in (refused, compiled):
            with pytest.raises(RuntimeError, match=r"bool tensor|Boolean"):
                call(torch.ones(3), n)


#: calls of a tensor whose type decides whether there is a kernel, or whether it is an index
REFUSED = {
    "index_select": (lambda x, i: torch.index_select(x, 0, i), (2,)),
    "index_add": (lambda x, i: x.index_add(0, index=i, source=x[:2]), (2,)),
    "index_copy_": (lambda x, i: x.clone().index_copy_(0, i, x[:2]), (2,)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (2,)),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x[:2], "prod"), (2,)),
    "put": (lambda x, i: x.put(i, x.view(-1)[:2]), (2,)),
    "setitem": (lambda x, i: operator.setitem(x.clone(), i, 1.0), (4,)),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), (4,)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, target=i), (4,)),
    "std": (lambda x, i: i.std(), (3,)),
    "layer_norm": (lambda x, i: F.layer_norm(i, (3,)), (2, 3)),
    "avg_pool2d": (lambda x, i: F.avg_pool2d(i, 2), (1, 4, 4)),
    "interpolate": (lambda x, i: F.interpolate(i, scale_factor=2.0), (1, 1, 4)),
    "cross": (lambda x, i: torch.linalg.cross(x, i), (4, 3)),
    "topk": (lambda x, i: torch.topk(i, 1), (3,)),
    "median": (lambda x, i: i.median(), (3,)),
    "mm": (lambda x, i: torch.mm(i, i), (3, 3)),
    "weight of layer_norm": (lambda x, i: F.layer_norm(x, (3,), i), (3,)),
    "bias of layer_norm": (lambda x, i: F.layer_norm(x, (3,), x[0], i), (3,)),
    "weight of another length": (lambda x, i: F.layer_norm(x, (3,), i), (2,)),
    "weight of batch_norm": (lambda x, i: F.batch_norm(x, x[0], x[1], weight=i), (3,)),
    "mask of masked_scatter": (lambda x, i: x.masked_scatter(i, x), (4, 3)),
    "index_put": (lambda x, i: x.index_put((torch.tensor([0]),), i), (1, 3)),
    "scores of nll_loss": (lambda x, i: F.nll_loss(i, torch.tensor([0, 1])), (2, 3)),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(i, torch.tensor([0, 1])), (2, 3)),
    "normal": (lambda x, i: torch.normal(i, x), (4, 3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_alone_refuse_for_the_type_of_an_argument_reaches_a_handler_of_the_program(name):
    call, shape = REFUSED[name]

    def handled(x, i):
        try:
            call(x, i)
        except (RuntimeError, IndexError) as error:
            return str(error)
        return "works"

    floats = (torch.float32, torch.float64, torch.bfloat16)
    for dtype in (*floats, torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64):
        braze.reset()
        given = torch.arange(12.0).view(4, 3), torch.zeros(shape, dtype=dtype)
        assert braze.compile(handled, backend="eager")(*given) == handled(*given), dtype


def test_indices_and_masks_are_not_doubted():
    """Nor what they are read from and written to, however large."""
    x, floats = torch.zeros(3, 3), torch.zeros(3)
    for index in (torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)):
        assert not is_doubtful("setitem", (x, index, 1.0), {})
        assert not is_doubtful("setitem", (x, (slice(None), index), floats), {})
    assert not is_doubtful("scatter_", (x, 0, torch.zeros(3, 3, dtype=torch.int64), x), {})
    assert not is_doubtful("cross_entropy", (x, torch.zeros(3, dtype=torch.int64), floats), {})
    assert not is_doubtful("sort", (torch.zeros(3, dtype=torch.int64),), {})
    assert not is_doubtful("layer_norm", (x.half(), (3,), floats, floats), {})


#: writes of a tensor into a part of itself, or over what the call reads
OVERLAPPING = {
    "copied into its row": lambda x: x[0].copy_(x),
    "out is its row": lambda x: torch.add(x, x, out=x[0]),
    "out is itself turned": lambda x: torch.mul(x, x, out=x.t()),
    "added to what lies beside": lambda x: x.view(-1)[1:].add_(x.view(-1)[:-1]),
    "out is itself": lambda x: torch.add(x, x, out=x),
    "written beside itself": lambda x: operator.setitem(x, slice(1, None), x[:-1]),
    "added to itself": lambda x: x.add_(x),
    "added turned": lambda x: operator.iadd(x, x.t()),
    "added to the row beside": lambda x: x[1].add_(x[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_is_refused_for_its_memory_is_refused_in_eagers_words_inside_the_programs_handler(name, dynamic):
    def handled(x):
        try:
            OVERLAPPING[name](x)
        except RuntimeError as error:
            return str(error)
        return x

    compiled = braze.compile(handled, backend="aot_eager", dynamic=dynamic)
    for n in (3, 4):
        found, wanted = (call(torch.arange(float(n * n)).view(n, n)) for call in (compiled, handled))
        assert type(found) is type(wanted) and str(found) == str(wanted)


@pytest.mark.parametrize(
    "write", [torch.Tensor.add_, torch.Tensor.copy_, lambda x, y: torch.add(y, 1, out=x)]
)
def test_whether_parts_overlap_is_told_anew_at_each_size(write):
    def handled(x, n):
        try:
            write(x[:n], x[4 : 4 + n])
        except RuntimeError:
            return x + 100
        return x

    for sizes in ((6, 3, 5, 2), (3, 2, 6, 5)):
        compiled = braze.compile(handled, backend="aot_eager", dynamic=True)
        for n in sizes:
            assert torch.equal(compiled(torch.arange(16.0), n), handled(torch.arange(16.0), n)), n


X, W, FIRST = torch.ones(2, 4), torch.ones(4, 4, dtype=torch.float64), torch.zeros(1, 2, 4)
GATES, AT = torch.ones(16, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
LAYER = (False, 1, 0.0, False, False, False)
OF_TWO_TYPES = {
    "rnn_tanh_cell": lambda: torch.rnn_tanh_cell(X, X, W, W),
    "rnn_relu_cell": lambda: torch.rnn_relu_cell(X, X.double(), W.float(), W.float()),
    "gru_cell": lambda: torch.gru_cell(X, X, GATES[:12], GATES[:12]),
    "lstm_cell": lambda: torch.lstm_cell(X, (X, X.double()), GATES, GATES),
    "rnn_tanh": lambda: torch.rnn_tanh(X[None], FIRST[:, :2], [W, W], *LAYER),
    "rnn_relu": lambda: torch.rnn_relu(X[None], FIRST[:, :2], [W, W], *LAYER),
    "gru": lambda: torch.gru(X[None], FIRST[:, :2].double(), [GATES[:12].float(), GATES[:12].float()], *LAYER),
    "lstm": lambda: torch.lstm(X[None], (FIRST[:, :2], FIRST[:, :2]), [GATES, GATES], *LAYER),
    "linalg.matmul": lambda: torch.linalg.matmul(X, W),
    "addbmm": lambda: torch.addbmm(X, X[None], W[None]),
    "attention": lambda: F.multi_head_attention_forward(
        X[:, None], X[:, None], X[:, None], 4, 2, GATES[:12], GATES[:12, 0], None, None, False, 0.0, W, W[0]
    ),
    "embedding_bag": lambda: F.embedding_bag(AT[None], X, per_sample_weights=W[:1, :2], mode="sum"),
    "nll_loss": lambda: F.nll_loss(X, AT, W[0]),
    "cross_entropy": lambda: F.cross_entropy(X, AT, weight=W[0]),
    "index_add": lambda: X.index_add(0, AT, W[:2]),
    "index_copy": lambda: X.index_copy(0, index=AT, source=W[:2]),
    "put": lambda: X.put(AT, W[0, :2]),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TWO_TYPES)
def test_no_graph_calls_what_eager_refuses_for_its_types(name):
    """Metadata let these pass: then the graph would fail in each call, after what it has written."""
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.name for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    refused = OF_TWO_TYPES[name]
    told = []
    for call in (
        braze.compile(lambda x: refused().sum() + x, backend=backend),
        lambda x: refused().sum() + x,
    ):
        with pytest.raises(RuntimeError) as caught:
            call(X)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert not any(name.rpartition(".")[2] in node for nodes in graphs for node in nodes), graphs


def test_indices_and_lengths_beside_floats_of_one_type_are_not_doubtful():
    weights = [torch.ones(12, 4), torch.ones(12, 4)]
    lengths = torch.tensor([2, 1])
    assert not is_doubtful("gru", (X, lengths, FIRST, weights, *LAYER[:-1]), {})
    assert not is_doubtful("embedding_bag", (AT, X), {})
    assert not is_doubtful("index_add", (X, 0, AT, X), {})
    assert not is_doubtful("nll_loss", (X, AT), {})
    assert is_doubtful("nll_loss", (X, AT), {"weight": W[0]})


def test_what_a_call_is_given_twice_is_one_tensor_where_it_is_tried():
    """PyTorch's ``tril`` with ``out=`` of other strides, which is not what it reads, writes beyond that: the process died while tracing."""
    fake = FakeMode().fake(torch.zeros(8, 4, 4, 3).permute(3, 2, 1, 0))
    given = []

    def called(x, others, *, out):
        given.extend([x, *others, out])

    assert tried(called, (fake, [fake, fake[1:]]), {"out": fake}) is True
    first, second, part, out = given
    assert first is second is out and part is not first
    assert part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
