"""One call serves any module: dispatch, padding, replay, slicing; nothing is changed but the speed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from braze import forward_context, serve
from braze.serving import BatchDescriptor, CUDAGraphMode
from braze.support.errors import UserError

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
pytestmark = pytest.mark.usefixtures("simulated")


class Rows(nn.Module):
    """Each row by itself; ``runs`` counts how often Python ran it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 8)
        self.linear = nn.Linear(8, 8)
        self.runs = 0

    def forward(self, input_ids, positions):
        self.runs += 1
        return torch.tanh(self.linear(self.embed(input_ids) + positions[:, None]))


SIZES = [1, 2, 4, 8]
LEVEL0 = dict(level=0, cudagraph_mode="FULL", capture_sizes=SIZES, max_num_seqs=8, max_num_batched_tokens=32)


def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 32, (n,)), torch.randint(0, 9, (n,))


def test_calls_of_all_sizes_give_what_the_module_gives_and_replay():
    model = Rows()
    m = serve(model, **LEVEL0)
    m(*batch(3))
    runs = model.runs
    for n in (1, 2, 3, 5, 8, 4):
        inputs = batch(n)
        found = m(*inputs)
        assert model.runs == runs
        expected = model(*inputs)
        runs = model.runs
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)
    stats = m.stats()
    assert dict(stats.replayed) == {"FULL": 7}
    assert stats.captured == len(SIZES)
    assert (stats.real_tokens, stats.padded_tokens) == (26, 31)
    assert dict(stats.histogram)[8] == 1


def test_a_batch_over_the_largest_runs_unrecorded_and_says_why():
    m = serve(Rows(), **LEVEL0)
    inputs = batch(9)
    torch.testing.assert_close(m(*inputs), m.model(*inputs))
    assert dict(m.stats().unrecorded) == {"9 tokens are more than 8, the most that is recorded": 1}


def test_none_records_nothing():
    m = serve(Rows(), **{**LEVEL0, "cudagraph_mode": "NONE", "capture_sizes": "auto"})
    inputs = batch(3)
    torch.testing.assert_close(m(*inputs), m.model(*inputs))
    assert (m.stats().captured, m.stats().bytes) == (0, 0)
    assert m.explain(3) == "3 tokens run unrecorded and unpadded: cudagraph_mode is NONE"


def test_outputs_are_kept_as_long_as_one_likes():
    m = serve(Rows(), **LEVEL0)
    inputs = [batch(n) for n in (3, 4, 3, 1, 4)]
    outputs = [m(*x) for x in inputs]
    for x, y in zip(inputs, outputs):
        torch.testing.assert_close(y, m.model(*x))


def test_borrowed_outputs_are_valid_until_the_next_call():
    m = serve(Rows(), outputs="borrow", **LEVEL0)
    first = batch(4)
    m(*first)
    one = m(*first)
    torch.testing.assert_close(one, m.model(*first))
    m(*batch(4))
    assert not torch.equal(one, m.model(*first))


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_results_are_of_the_callers_mode(around):
    m = serve(Rows(), **LEVEL0)
    for n in (3, 20):  # replayed, and not
        with around():
            y = m(*batch(n))
            y += 1
            assert y.is_inference() == torch.is_inference_mode_enabled()
            assert not y.requires_grad
    assert dict(m.stats().replayed) == {"FULL": 1}


def test_steps_of_any_mode_take_the_same_recordings():
    class Model(nn.Module):
        def forward(self, input_ids, positions):
            return torch.sin(input_ids + positions)

    words = dict(dynamic={"input_ids": 0, "positions": 0}, capture_sizes=[4], max_num_seqs=8)
    m = serve(Model(), level=3, cudagraph_mode="PIECEWISE", **words)
    held = []
    for around in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with around():
            m(*batch(3))
        held.append((m.stats().bytes, m.stats().captured))
    assert held[0] == held[1] == held[2]
    assert dict(m.stats().replayed) == {"PIECEWISE": 3}


def test_decode_only_leaves_mixed_batches_unrecorded():
    m = serve(Rows(), **{**LEVEL0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    with forward_context(num_reqs=2):
        inputs = batch(5)
        torch.testing.assert_close(m(*inputs), m.model(*inputs))
    with forward_context(uniform_q=1):
        m(*batch(5))
    stats = m.stats()
    assert dict(stats.replayed) == {"FULL": 1}
    assert dict(stats.unrecorded) == {"a mixed batch is not recorded under FULL_DECODE_ONLY": 1}


def test_speculative_decoding_has_sizes_of_its_own():
    m = serve(Rows(), num_speculative_tokens=2, **{**LEVEL0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    with forward_context(uniform_q=3):
        inputs = batch(9)
        torch.testing.assert_close(m(*inputs), m.model(*inputs))
    assert m.dispatch(9, q=3).descriptor == BatchDescriptor(12, 4, 3)
    assert m.dispatch(3).descriptor == BatchDescriptor(4, 4, 1)


def test_variants_have_recordings_of_their_own():
    m = serve(Rows(), variants=(None, "adapter"), **LEVEL0)
    with forward_context(variant="adapter"):
        m(*batch(2))
    assert m.stats().captured == 2 * len(SIZES)
    assert m.dispatch(2, variant="adapter").descriptor.variant == "adapter"


def test_capture_takes_an_example_before_the_first_call():
    m = serve(Rows(), **LEVEL0)
    with pytest.raises(UserError) as error:
        m.capture()
    assert error.value.code == "BZ7311"
    assert m.capture(*batch(2)).captured == len(SIZES)
    runs = m.model.runs
    m(*batch(2))
    assert m.model.runs == runs


def test_dispatch_is_pure():
    m = serve(Rows(), **LEVEL0)
    m(*batch(1))
    before = m.stats()
    assert m.dispatch(5) == m.dispatch(5)
    assert m.dispatch(5).descriptor.num_tokens == 8
    assert m.stats() == before
    assert m.explain(5) == "5 tokens replay FULL, any batch, of 8 tokens (3 of padding)"


def test_explain_tells_the_mode_and_the_configuration():
    text = serve(Rows(), **LEVEL0).explain()
    assert text.startswith("cudagraph_mode: FULL\n")
    assert "cudagraph_capture_sizes" in text


def test_sizes_are_suggested_from_what_was_called(tmp_path):
    m = serve(Rows(), **{**LEVEL0, "capture_sizes": [1, 2, 4, 8]})
    for _ in range(20):
        m(*batch(5))
        m(*batch(3))
    found = m.suggest_sizes(2)
    assert (found.sizes, found.keep_default) == ((3, 5), False)
    m.stats().write_traffic(tmp_path / "traffic")
    other = serve(
        Rows(),
        **{**LEVEL0, "capture_sizes": f"traffic:{tmp_path / 'traffic'}", "cuda_graph_sizes": [1, 2, 4, 8]},
    )
    assert other.config.graph_bs == (3, 5)


def test_steps_of_requests_that_decode_several_tokens_count_their_requests():
    """As capture sizes do: a size of 3 holds 3 requests of 3 tokens."""
    words = {**LEVEL0, "cudagraph_mode": "FULL_DECODE_ONLY", "num_speculative_tokens": 2}
    m = serve(Rows(), **{**words, "capture_sizes": [1, 2, 4, 8]})
    for _ in range(20):
        with forward_context(uniform_q=3):
            m(*batch(9))
    with forward_context(num_reqs=2):
        m(*batch(7))
    assert m.stats().histogram == ((3, 20), (7, 1))
    assert m.suggest_sizes(2).sizes == (3, 7)


def test_results_may_be_nested_and_of_requests():
    class Model(nn.Module):
        def forward(self, x, ends):
            y = x * 2
            return {"rows": y, "last": y[ends], "pair": (y + 1, 7)}

    from braze.serving import Slot

    m = serve(Model(), slots={"ends": Slot(unit="requests")}, **LEVEL0)
    x, ends = torch.randn(5), torch.tensor([1, 4])
    for _ in range(2):
        with forward_context(num_reqs=2):
            found = m(x, ends)
        assert found["rows"].equal(x * 2)
        assert found["last"].equal((x * 2)[ends])
        assert found["pair"][0].equal(x * 2 + 1)
        assert found["pair"][1] == 7


def test_tensors_that_do_not_vary_may_lie_anywhere():
    class Model(nn.Module):
        def forward(self, x, scale):
            return x * scale

    m = serve(Model(), dynamic={"x": 0}, **LEVEL0)
    for _ in range(4):
        x, scale = torch.randn(3), torch.randn(1)
        assert m(x, scale).equal(x * scale)


def test_a_call_with_another_number_replays_nothing():
    class Model(nn.Module):
        def forward(self, x, scale, mask=None):
            return x * scale if mask is None else x * mask

    m = serve(Model(), dynamic={"x": 0, "mask": 0}, **LEVEL0)
    x = torch.randn(3)
    for scale in (2, 2, 3, 2):
        assert m(x, scale).equal(x * scale)
    assert m(x, 2, x).equal(x * x)
    stats = m.stats()
    assert dict(stats.replayed) == {"FULL": 3}
    assert dict(stats.unrecorded) == {
        "argument 'scale' is not as in the recordings: 3, not 2": 1,
        "argument 'mask' is given, unlike in the recordings": 1,
    }


def test_named_arguments_and_another_dimension():
    class Model(nn.Module):
        def forward(self, x, *, bias):
            return x + bias

    m = serve(Model(), dynamic={"x": 1, "bias": 0}, **LEVEL0)
    for n in (2, 3, 8):
        x, bias = torch.randn(4, n), torch.randn(n)
        assert m(x, bias=bias).equal(x + bias)


def test_dummies_leave_the_modules_buffers_alone():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return x * 2

    m = serve(Model(), **LEVEL0)
    for _ in range(3):
        m(torch.randn(3))
    assert m.model.seen == 3


def test_what_cannot_be_recorded_runs_as_it_is_and_says_why():
    class Model(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    m = serve(Model(), dynamic={"x": 0}, **LEVEL0)
    x = torch.ones(3)
    assert m(x).equal(x * 3)
    stats = m.stats()
    assert stats.captured == 0
    assert len(stats.failures) == len(SIZES)
    assert "no recording of this size" in stats.unrecorded[0][0]
    assert "FULL of 8" in m.explain()


def test_a_size_that_fails_takes_the_next_larger():
    class Model(nn.Module):
        def forward(self, x):
            if len(x) == 4:
                raise RuntimeError("no size of four")
            return x * 2

    m = serve(Model(), **LEVEL0)
    x = torch.randn(3)
    assert m(x).equal(x * 2)
    assert m.dispatch(3).descriptor.num_tokens == 8
    assert [name for name, _ in m.stats().failures] == ["FULL 4"]
    assert "no size of four" in m.stats().failures[0][1]


def test_calls_that_make_no_batch_are_refused():
    m = serve(Rows(), **LEVEL0)
    for code, said, inputs in (
        ("BZ7307", dict(uniform_q=2), batch(3)),
        ("BZ7307", dict(num_reqs=9), batch(3)),
        ("BZ7308", dict(), (batch(3)[0], batch(2)[1])),
    ):
        with pytest.raises(UserError) as error, forward_context(**said):
            m(*inputs)
        assert error.value.code == code


def test_outputs_that_vary_with_neither_tokens_nor_requests_are_refused():
    class Model(nn.Module):
        def forward(self, x):
            return x.repeat(2)

    m = serve(Model(), **LEVEL0)
    with pytest.raises(UserError) as error:
        m(torch.randn(3))
    assert error.value.code == "BZ7309"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("BZ7101", dict(cudagraph_capture_size=[1])),
        ("BZ7103", dict(outputs="mine")),
        ("BZ7103", dict(dynamic={"input_idz": 0})),
        ("BZ7102", dict(level=0, cudagraph_mode="PIECEWISE")),
    ],
)
def test_words_that_cannot_be_are_refused(code, words):
    with pytest.raises(UserError) as error:
        serve(Rows(), **words)
    assert error.value.code == code


def test_recordings_are_made_anew_after_a_reset():
    m = serve(Rows(), **LEVEL0)
    m(*batch(3))
    m.reset_recordings()
    assert m.stats().captured == 0
    inputs = batch(3)
    torch.testing.assert_close(m(*inputs), m.model(*inputs))
    assert m.stats().captured == len(SIZES)


def test_it_is_a_module_of_the_served_one():
    m = serve(Rows(), **LEVEL0)
    assert set(m.state_dict()) == {f"model.{name}" for name in m.model.state_dict()}


# -- results and arguments that are not simply rows -----------------------------------------------------


class Counted(nn.Module):
    """Rows, how many there are, and a number that is always the same."""

    def forward(self, x):
        return x + 1, x.shape[0], {"as a float": float(x.shape[0]), "always": 7, "said": "no"}


def test_a_number_that_counts_the_step_counts_it_without_padding():
    m = serve(Counted(), **LEVEL0)
    for n in (3, 5, 8, 20):
        _, number, rest = m(torch.zeros(n))
        assert (number, rest) == (n, {"as a float": float(n), "always": 7, "said": "no"})
        assert isinstance(number, int) and isinstance(rest["as a float"], float)
    assert dict(m.stats().replayed) == {"FULL": 3}


@pytest.mark.parametrize(
    "made", [lambda x: x.shape[0] * 2, lambda x: x.shape[0] > 4, lambda x: f"{x.shape[0]} rows"]
)
def test_what_follows_from_the_padded_size_in_another_way_is_refused(made):
    class Model(nn.Module):
        def forward(self, x):
            return x, made(x)

    with pytest.raises(UserError, match="BZ7309"):
        serve(Model(), **LEVEL0)(torch.zeros(3))


class Writes(nn.Module):
    """Writes to a row for each token, and to a total that is no row."""

    def forward(self, rows, total):
        rows[:, :1].mul_(2)
        total.add_(1)
        return rows.sum(1) + total


@pytest.mark.parametrize("verify", ["off", "always"])
@pytest.mark.parametrize(
    "words",
    [
        dict(level=0, cudagraph_mode="FULL"),
        dict(level=3, cudagraph_mode="PIECEWISE"),
        dict(level=2, cudagraph_mode="FULL_DECODE_ONLY"),
    ],
    ids=str,
)
def test_the_caller_finds_what_the_model_has_written_to_its_arguments(words, verify):
    words = dict(words, capture_sizes=SIZES, max_num_seqs=8, max_num_batched_tokens=32, verify=verify)
    m = serve(Writes(), dynamic={"rows": 0}, **words)
    total, expected_total = torch.zeros(1), torch.zeros(1)
    for n in (3, 8, 1, 5, 20, 3):
        rows = torch.randn(n, 4)
        expected_rows = rows.clone()
        found = m(rows, total)
        expected = Writes()(expected_rows, expected_total)
        torch.testing.assert_close((found, rows, total), (expected, expected_rows, expected_total))
    assert sum(dict(m.stats().replayed).values()) == 5
    assert m.stats().mismatches == ()


def test_a_tail_that_the_model_writes_to_is_filled_again():
    """The rows of padding are looked up: what a step has left there names no row of the table."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 2)

        def forward(self, ids):
            found = self.table(ids)
            ids.add_(100)
            return found

    m = serve(Model(), **LEVEL0)
    for n in (3, 5, 3, 7, 2):
        ids = torch.arange(n)
        found = m(ids)
        torch.testing.assert_close(found, m.model.table(torch.arange(n)))
        assert ids.tolist() == list(range(100, 100 + n))
