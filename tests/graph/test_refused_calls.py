"""Calls that eager refuses for their dims, sizes and types, and PyTorch's fakes let pass, raise eager's error."""

import pytest
import torch
import torch.nn.functional as F

import braze

aten = torch.ops.aten

REFUSED = {
    "slices_of_another_shape": lambda x: torch.slice_scatter(x, x, 0, 0, 2),
    "a_slice_of_another_rank": lambda x: torch.slice_scatter(x, x[0], 0, 0, 2),
    "slices_of_no_dim": lambda x: torch.slice_scatter(x, x[:2], 5, 0, 2),
    "slices_in_no_steps": lambda x: torch.slice_scatter(x, x[:2], 0, 0, 2, 0),
    "a_part_of_another_shape": lambda x: torch.select_scatter(x, x[:, 0], 0, 0),
    "a_part_of_no_dim": lambda x: torch.select_scatter(x, x[0], dim=4, index=0),
    "a_part_of_another_rank": lambda x: torch.select_scatter(x, x[0, 0], 0, 0),
    "a_diagonal_of_another_length": lambda x: torch.diagonal_scatter(x, x[0]),
    "a_diagonal_that_is_none": lambda x: torch.diagonal_scatter(x, x[0, :3], 9),
    "a_diagonal_of_one_dim": lambda x: torch.diagonal_scatter(x, x[:, 0], 0, 0, 0),
    "a_diagonal_of_no_dim": lambda x: torch.diagonal_scatter(x, x[:, 0], 0, 0, 5),
    "gather_of_no_dim": lambda x: x.gather(2, torch.zeros(2, 2).long()),
    "flip_twice": lambda x: x.flip(0, -2),
    "flip_of_no_dim": lambda x: x.flip(5),
    "squeeze_twice": lambda x: x.squeeze((0, 0)),
    "sort_of_no_dim": lambda x: x.sort(5)[0],
    "softmax_of_no_dim": lambda x: x.softmax(5),
    "log_softmax_of_no_dim": lambda x: x[0, 0].log_softmax(1),
    "cummax_of_no_dim": lambda x: x[0, 0].cummax(1)[0],
    "tril_of_a_row": lambda x: x[0].tril(),
    "triu_of_a_number": lambda x: x[0, 0].triu(),
    "norm_of_a_narrower_type": lambda x: torch.linalg.vector_norm(x.double(), dtype=torch.float32),
    "windows_of_negative_sizes": lambda x: x.unfold(0, -1, 1),
    "celu": lambda x: F.celu(x, 0.0),
    "a_picture_of_nothing": lambda x: F.interpolate(x[None], 0),
    "no_groups": lambda x: torch.native_group_norm(x, None, None, 3, 4, 1, 0, 1e-5),
    "complex_sums_in_place": lambda x: x.clone().add_(x * 1j),
    "complex_differences_in_place": lambda x: x.clone().sub_(x * 1j),
    "infinity_in_integers": lambda x: x.long().fill_(float("inf")),
    "a_complex_number_in_floats": lambda x: x.clone().fill_diagonal_(1j),
    "a_complex_factor": lambda x: torch.add(x, x, alpha=1j),
    "a_factor_that_is_none": lambda x: torch.add(x, x, alpha=None),
    "more_numbers_than_rows": lambda x: torch.addmv(x[0], x[:1], x[0]),
    "a_matrix_added_to_a_vector": lambda x: torch.addmv(x, x, x[0]),
    "one_number_in_place_of_no_rows": lambda x: x[0, :1].clone().addmv_(x[:0], x[0]),
    "more_columns_than_a_product_has": lambda x: torch.addmm(x[0], x, x[:, :1]),
    "slopes_of_integers": lambda x: F.prelu(x.long(), x[0].long()),
    **{
        f"a_picture_of_nothing_by_its_factor_{mode}": lambda x, mode=mode: F.interpolate(
            x[None, None], scale_factor=0.1, mode=mode
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    },
    "a_line_of_nothing_by_its_factor": lambda x: F.interpolate(x[None], scale_factor=0.1),
    "a_room_of_nothing_by_its_factor": lambda x: F.interpolate(x[None, None, None], scale_factor=0.1),
    "padding_beyond": lambda x: F.embedding(torch.tensor([0, 1]), x, padding_idx=3),
    "padding_before": lambda x: F.embedding(torch.tensor([0, 1]), x, padding_idx=-4),
    "weights_of_losses": lambda x: F.binary_cross_entropy_with_logits(x, x, weight=x[0, :3]),
    "weights_of_more_losses": lambda x: F.binary_cross_entropy_with_logits(x, x, weight=torch.stack([x, x])),
    "weights_of_positives": lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=x[0, :3]),
    "weights_of_more_channels": lambda x: F.batch_norm(x, x[0], x[0].exp(), x[:, 0]),
    "biases_of_more_channels": lambda x: F.batch_norm(x, x[0], x[0].exp(), x[0], x[:, 0]),
    "variances_of_more_channels": lambda x: F.batch_norm(x, x[0], x[:, 0].exp()),
}


def outcome(call, x):
    try:
        return call(x)
    except Exception as error:  # the type and the words are compared
        return type(error), str(error)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", ["alone", "between", "unread", "caught"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_fakes_let_pass_is_refused_as_in_eager(name, form, dynamic, grad, capfd):
    call = REFUSED[name]

    def caught(x):
        y = x.exp()
        try:
            call(y)
        except Exception:
            return y + 1
        return y

    forms = {"alone": call, "between": lambda x: call(x * 2).sin(), "unread": lambda x: (call(x), x * 2)[1]}
    program = forms.get(form, caught)
    x = torch.rand(3, 4, requires_grad=grad)
    theirs, ours = outcome(program, x), outcome(braze.compile(program, dynamic=dynamic), x)
    if form == "caught":
        torch.testing.assert_close(ours, theirs)
    else:
        assert isinstance(theirs, tuple) and ours == theirs
    told = capfd.readouterr().err
    assert "runs eagerly, as captured" not in told, "no fault of the compiler's"


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_eager_takes_is_taken(dynamic):
    """Beside each of those, with negative dims, of parts that are beyond, and of types that grow."""

    def program(x):
        return (
            torch.slice_scatter(x, x[:1], 0, 2, 9),
            torch.slice_scatter(x, x[:, 1:3], -1, -3, -1),
            torch.select_scatter(x, x[:, 0], -1, -1),
            torch.diagonal_scatter(x, x[0, :2], 2, -2, -1),
            torch.diagonal_scatter(x, x[0, :0], 4),
            x.gather(-1, torch.zeros(2, 2).long()),
            x.flip(0, -1),
            x.squeeze((0, -1)),
            x[0, 0].softmax(-1),
            x.sort(dim=-2)[0],
            torch.linalg.vector_norm(x, dtype=torch.float64),
            torch.add(x, x * 1j, alpha=1j),
            x.clone().add_(x.double()),
            F.interpolate(x[None], 2),
            F.interpolate(x[None, None], scale_factor=0.5),
            F.embedding(torch.tensor([0, 1]), x, padding_idx=-3),
            F.binary_cross_entropy_with_logits(x, x, weight=x[:, :1], pos_weight=x[0]),
            F.batch_norm(x, x[0], x[0].exp(), x[0], x[1]),
            F.prelu(x, x[0]),
        )

    x = torch.rand(3, 4)
    for ours, theirs in zip(braze.compile(program, dynamic=dynamic)(x), program(x), strict=True):
        torch.testing.assert_close(ours, theirs)
