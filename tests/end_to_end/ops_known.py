"""Where compiled operators differ from eager, and why. An entry that starts to pass fails its test until it is removed."""

from __future__ import annotations

#: "operator variant dtype" -> reason
KNOWN: dict[str, str] = {}

#: operators whose samples break the graph (numbers drawn from eager's generators, sizes that the data tell) or run as captured:
#: alone, as the others' calls would not make one graph with theirs. One that is missing costs time, nothing else.
ALONE = frozenset(
    """
    allclose argwhere as_strided_scatter bernoulli bincount cauchy combinations corrcoef cov equal
    exponential fft.ifft fft.ihfft fft.ihfftn geometric istft item linalg.lstsq linalg.lstsq.grad_oriented
    log_normal masked_select multinomial narrow nn.functional.alpha_dropout nn.functional.ctc_loss
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.feature_alpha_dropout.with_train nn.functional.feature_alpha_dropout.without_train
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.gaussian_nll_loss
    nn.functional.multi_head_attention_forward nn.functional.one_hot nn.functional.rrelu
    nn.functional.scaled_dot_product_attention nonzero normal normal.in_place normal.number_mean pca_lowrank
    rand_like randint randint_like randn_like repeat_interleave svd_lowrank tensor_split to_sparse uniform
    unique unique_consecutive
    """.split()
)
