"""A call of each API of the PyTorch support list, as small as it can be.

`SAMPLES` has, by name, what a generic call does not fit, `GENERIC` the rest; the first that this version of torch takes
is the sample. Floats lie in (0.1, 0.9), inside the domain of nearly every function.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

Sample = tuple[tuple[Any, ...], dict[str, Any]]
Make = Callable[[], Sample]


def call(*args: Any, **kwargs: Any) -> Sample:
    return args, kwargs


def f(*shape: int) -> Any:
    return torch.rand(shape) * 0.8 + 0.1


def i(*values: Any) -> Any:
    return torch.tensor(values)


def b(*shape: int) -> Any:
    return torch.rand(shape) > 0.5


def c(*shape: int) -> Any:
    return torch.complex(f(*shape), f(*shape))


GENERIC: list[Make] = [
    lambda: call(f(3, 4)),
    lambda: call(f(3, 4), f(3, 4)),
    lambda: call(f(3, 4), f(3, 4), f(3, 4)),
    lambda: call(f(3, 4), 1),
    lambda: call(f(3, 4), 0.5),
    lambda: call(f(3, 3)),
    lambda: call(f(3, 3), f(3, 3)),
    lambda: call(f(3), f(3)),
    lambda: call(f(3)),
    lambda: call(i(1, 2, 3), i(1, 1, 2)),
    lambda: call(i(1, 2, 3)),
    lambda: call(b(3, 4), b(3, 4)),
    lambda: call([f(3, 4), f(3, 4)]),
    lambda: call([f(3, 4), f(3, 4)], [f(3, 4), f(3, 4)]),
    lambda: call([f(3, 4), f(3, 4)], [f(3, 4), f(3, 4)], [f(3, 4), f(3, 4)]),
    lambda: call([f(3, 4), f(3, 4)], 0.5),
    lambda: call(f(3, 4), 0, i(0, 2, 1)),
    lambda: call(f(3, 4), 0, 1),
    lambda: call(f(2, 3, 4), f(2, 4, 5)),
    lambda: call(f(3, 5), f(3, 4), f(4, 5)),
    lambda: call(f(3), f(3, 4), f(4)),
    lambda: call(f(2, 4, 6, 6), 2),
    lambda: call(f(2, 4, 6), 2),
    lambda: call(f(2, 2, 6, 6, 6), 2),
    lambda: call(c(3, 4)),
    lambda: call(f(4, 4), 1, 2),
]


def spd() -> Any:
    """A symmetric matrix with positive eigenvalues."""
    made = torch.rand(3, 3)
    return made @ made.T + 3 * torch.eye(3)


def norm(*rest: Any) -> Make:
    """Weight, bias, running mean and running variance of three channels."""
    return lambda: call(f(2, 3, 4), f(3), f(3), f(3), f(3), *rest)


def conv(dims: int, *rest: Any) -> Make:
    return lambda: call(f(2, 3, *[5] * dims), f(4, 3, *[3] * dims), f(4), *rest)


def transposed(dims: int) -> Make:
    return lambda: call(f(2, 3, *[5] * dims), f(3, 4, *[3] * dims), f(4))


def convolution(*rest: Any) -> Make:
    return lambda: call(f(2, 3, 5, 5), f(4, 3, 3, 3), f(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1, *rest)


def dropout() -> Sample:
    return call(f(20, 30), 0.5, True)


def rnn_weights(gates: int) -> list[Any]:
    return [f(4 * gates, 3), f(4 * gates, 4), f(4 * gates), f(4 * gates)]


def rnn(gates: int) -> Make:
    """Input, state, weights, has biases, layers, dropout, train, both directions, batch first."""
    return lambda: call(f(5, 2, 3), f(1, 2, 4), rnn_weights(gates), True, 1, 0.0, False, False, False)


def cell(gates: int) -> Make:
    return lambda: call(f(2, 3), f(2, 4), *rnn_weights(gates))


def scattered(*rest: Any) -> Make:
    return lambda: call(f(3, 4), 0, i([0, 1, 2, 0], [1, 2, 0, 1]), *rest)


def unpool(dims: int) -> Sample:
    pooled = getattr(torch.nn.functional, f"max_pool{dims}d_with_indices")
    return call(*pooled(f(1, 2, *[4] * dims), 2), 2)


_ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
_SGD = {
    "weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip
_ROWS = i(0, 2, 1)
_CLASSES = i(0, 2, 1)
# By name, in place or not; a key with its prefix goes before one without.
SAMPLES: dict[str, Make] = {
    "_batch_norm_impl_index": norm(True, 0.1, 1e-5, False),
    "_convolution": convolution(False, False, True, False),
    "_fused_adagrad": lambda: call([f(3, 4)], [f(3, 4)], [f(3, 4)], [torch.tensor(1.0)], lr=0.1, lr_decay=0.0,
                                   weight_decay=0.0, eps=1e-8, maximize=False),
    "_fused_adam": lambda: call([f(3, 4)], [f(3, 4)], [f(3, 4)], [f(3, 4)], [], [torch.tensor(1.0)], **_ADAM),
    "_fused_adamw": lambda: call([f(3, 4)], [f(3, 4)], [f(3, 4)], [f(3, 4)], [], [torch.tensor(1.0)], **_ADAM),
    "_fused_sgd": lambda: call([f(3, 4)], [f(3, 4)], [f(3, 4)], **_SGD),
    "_grouped_mm": lambda: call(f(2, 16, 16).bfloat16(), f(2, 16, 16).bfloat16()),
    "_softmax_backward_data": lambda: call(f(3, 4), f(3, 4), 1, torch.float32),
    "addbmm": lambda: call(f(3, 5), f(2, 3, 4), f(2, 4, 5)),
    "addr": lambda: call(f(3, 4), f(3), f(4)),
    "affine_grid": lambda: call(f(2, 2, 3), [2, 3, 4, 4]),
    "affine_grid_generator": lambda: call(f(2, 2, 3), [2, 3, 4, 4], False),
    "Torch.alpha_dropout": dropout,
    "as_strided_copy": lambda: call(f(3, 4), [2, 2], [4, 1]),
    "as_strided_scatter": lambda: call(f(3, 4), f(2, 2), [2, 2], [4, 1]),
    "baddbmm": lambda: call(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    "Functional.batch_norm": lambda: call(f(2, 3, 4), f(3), f(3), f(3), f(3), True),
    "Torch.batch_norm": norm(True, 0.1, 1e-5, False),
    "bilinear": lambda: call(f(2, 3), f(2, 4), f(5, 3, 4), f(5)),
    "cholesky": lambda: call(spd()),
    "choose_qparams_optimized": lambda: call(f(8), 8, 10, 0.5, 8),
    "constant_pad_nd": lambda: call(f(3, 4), [1, 2], 0.5),
    "conv1d": conv(1), "conv2d": conv(2), "conv3d": conv(3),
    "conv_tbc": lambda: call(f(5, 2, 3), f(3, 3, 4), f(4), 1),
    "conv_transpose1d": transposed(1), "conv_transpose2d": transposed(2), "conv_transpose3d": transposed(3),
    "convolution": convolution(),
    "cosine_embedding_loss": lambda: call(f(3, 4), f(3, 4), i(1, -1, 1)),
    "ctc_loss": lambda: call(f(6, 2, 5).log_softmax(2), i([1, 2, 3], [2, 1, 4]), i(6, 6), i(3, 3)),
    "diagonal_scatter": lambda: call(f(3, 3), f(3)),
    "Torch.dropout": dropout,
    "einsum": lambda: call("ij,jk->ik", f(3, 4), f(4, 5)),
    "Functional.embedding": lambda: call(_ROWS, f(4, 5)),
    "Torch.embedding": lambda: call(f(4, 5), _ROWS),
    "Functional.embedding_bag": lambda: call(i([0, 2], [1, 3]), f(4, 5)),
    "Torch.embedding_bag": lambda: call(f(4, 5), i(0, 2, 1, 3), i(0, 2)),
    "embedding_renorm": lambda: call(f(4, 5), _ROWS, 0.5, 2.0),
    "expand_copy": lambda: call(f(3, 1), [3, 4]),
    "fake_quantize_per_channel_affine": lambda: call(f(3, 4), f(3), torch.zeros(3, dtype=torch.int32), 0, 0, 255),
    "fake_quantize_per_tensor_affine": lambda: call(f(3, 4), 0.1, 0, 0, 255),
    "Torch.feature_alpha_dropout": lambda: call(f(20, 30, 4), 0.5, True),
    "Torch.feature_dropout": lambda: call(f(20, 30, 4), 0.5, True),
    "flip": lambda: call(f(3, 4), [0, 1]),
    "float_power_": lambda: call(f(3, 4).double(), 2.0),
    "fold": lambda: call(f(1, 12, 4), (3, 3), (2, 2)),
    "fractional_max_pool2d": lambda: call(f(1, 2, 6, 6), 2, output_size=3),
    "fractional_max_pool2d_with_indices": lambda: call(f(1, 2, 6, 6), 2, output_size=3),
    "fractional_max_pool3d": lambda: call(f(1, 2, 6, 6, 6), 2, output_size=3),
    "fractional_max_pool3d_with_indices": lambda: call(f(1, 2, 6, 6, 6), 2, output_size=3),
    "fused_moving_avg_obs_fake_quant": lambda: call(
        f(3, 4), i(1), i(1), torch.tensor([0.0]), torch.tensor([1.0]), f(1), torch.zeros(1, dtype=torch.int32),
        0.01, 0, 255, 0),
    "gather": lambda: call(f(3, 4), 0, i([0, 1, 2, 0], [1, 2, 0, 1])),
    "grid_sample": lambda: call(f(1, 2, 4, 4), f(1, 3, 3, 2), align_corners=False),
    "grid_sampler": lambda: call(f(1, 2, 4, 4), f(1, 3, 3, 2), 0, 0, False),
    "grid_sampler_2d": lambda: call(f(1, 2, 4, 4), f(1, 3, 3, 2), 0, 0, False),
    "grid_sampler_3d": lambda: call(f(1, 2, 4, 4, 4), f(1, 3, 3, 3, 3), 0, 0, False),
    "gru": rnn(3), "gru_cell": cell(3),
    "index_add": lambda: call(f(3, 4), 0, _ROWS, f(3, 4)),
    "index_copy": lambda: call(f(3, 4), 0, _ROWS, f(3, 4)),
    "index_fill": lambda: call(f(3, 4), 0, _ROWS, 0.5),
    "index_put": lambda: call(f(3, 4), (_ROWS,), f(3, 4)),
    "index_reduce": lambda: call(f(3, 4), 0, _ROWS, f(3, 4), "mean"),
    "Functional.instance_norm": lambda: call(f(2, 3, 4)),
    "Torch.instance_norm": norm(True, 0.1, 1e-5, False),
    "istft": lambda: call(c(5, 4), 8, window=torch.ones(8)),
    "Functional.layer_norm": lambda: call(f(3, 4), [4], f(4), f(4)),
    "layer_norm": lambda: call(f(3, 4), [4], f(4), f(4)),
    "linalg.cholesky": lambda: call(spd()),
    "linalg.householder_product": lambda: call(f(4, 3), f(3)),
    "linalg.ldl_solve": lambda: call(*torch.linalg.ldl_factor(spd()), f(3, 2)),
    "linalg.lu_solve": lambda: call(*torch.linalg.lu_factor(spd()), f(3, 2)),
    "linalg.multi_dot": lambda: call([f(3, 4), f(4, 5), f(5, 2)]),
    "linalg.solve_triangular": lambda: call(spd().triu(), f(3, 2), upper=True),
    "linalg.tensorinv": lambda: call(f(4, 2, 2), 1),
    "linalg.tensorsolve": lambda: call(f(2, 2, 4), f(2, 2)),
    "linear_cross_entropy": lambda: call(f(3, 4), f(5, 4), _CLASSES),
    "lp_pool2d": lambda: call(f(1, 2, 6, 6), 2.0, 2),
    "lp_pool3d": lambda: call(f(1, 2, 6, 6, 6), 2.0, 2),
    "lstm": lambda: call(f(5, 2, 3), (f(1, 2, 4), f(1, 2, 4)), rnn_weights(4), True, 1, 0.0, False, False, False),
    "lstm_cell": lambda: call(f(2, 3), (f(2, 4), f(2, 4)), *rnn_weights(4)),
    "lu_solve": lambda: call(f(3, 2), *torch.linalg.lu_factor(spd())),
    "lu_unpack": lambda: call(*torch.linalg.lu_factor(spd())),
    "masked_fill": lambda: call(f(3, 4), b(3, 4), 0.5),
    "masked_scatter": lambda: call(f(3, 4), b(3, 4), f(3, 4)),
    "max_unpool1d": lambda: unpool(1), "max_unpool2d": lambda: unpool(2), "max_unpool3d": lambda: unpool(3),
    "multi_head_attention_forward": lambda: call(
        f(3, 2, 4), f(3, 2, 4), f(3, 2, 4), 4, 2, f(12, 4), f(12), None, None, False, 0.0, f(4, 4), f(4)),
    "multi_margin_loss": lambda: call(f(3, 4), _CLASSES),
    "multilabel_margin_loss": lambda: call(f(2, 3), i([0, 2, -1], [1, -1, 0])),
    "mv": lambda: call(f(3, 4), f(4)),
    "narrow_copy": lambda: call(f(3, 4), 0, 1, 2),
    "native_batch_norm": norm(True, 0.1, 1e-5),
    "native_dropout": dropout,
    "native_group_norm": lambda: call(f(2, 4, 5), f(4), f(4), 2, 4, 5, 2, 1e-5),
    "native_layer_norm": lambda: call(f(3, 4), [4], f(4), f(4), 1e-5),
    "nll_loss": lambda: call(f(3, 4), _CLASSES),
    "nonzero_static": lambda: call(f(3, 4), size=5),
    "orgqr": lambda: call(f(4, 3), f(3)),
    "ormqr": lambda: call(f(4, 3), f(3), f(4, 2)),
    "pad": lambda: call(f(3, 4), [1, 2]),
    "permute_copy": lambda: call(f(3, 4), [1, 0]),
    "Torch.poisson_nll_loss": lambda: call(f(3, 4), f(3, 4), True, False, 1e-8, 1),
    "Torch.polygamma": lambda: call(1, f(3, 4)),
    "special.polygamma": lambda: call(1, f(3, 4)),
    "prelu": lambda: call(f(3, 4), f(4)),
    "put": lambda: call(f(3, 4), i(0, 5), f(2)),
    "renorm": lambda: call(f(3, 4), 2.0, 0, 0.5),
    "rms_norm": lambda: call(f(3, 4), [4], f(4)),
    "rnn_relu": rnn(1), "rnn_relu_cell": cell(1), "rnn_tanh": rnn(1), "rnn_tanh_cell": cell(1),
    "scatter": scattered(0.5),
    "scatter_add": lambda: call(f(3, 4), 0, i([0, 1, 2, 0], [1, 2, 0, 1]), f(2, 4)),
    "scatter_reduce": lambda: call(f(3, 4), 0, i([0, 1, 2, 0], [1, 2, 0, 1]), f(2, 4), "sum"),
    "select_scatter": lambda: call(f(3, 4), f(4), 0, 1),
    "split_with_sizes_copy": lambda: call(f(3, 4), [1, 3], 1),
    "stft": lambda: call(f(32), 8, window=torch.ones(8), return_complex=True),
    "tile": lambda: call(f(3, 4), [2, 1]),
    "unfold_copy": lambda: call(f(6), 0, 3, 1),
    "unravel_index": lambda: call(_ROWS, (3, 4)),
    "view_as_complex_copy": lambda: call(f(3, 2)),
    "view_copy": lambda: call(f(3, 4), [4, 3]),
    "type": lambda: call(f(3, 4), torch.float64),
    "Tensor.where": lambda: call(f(3, 4), b(3, 4), f(3, 4)),
}  # fmt: skip


# Those without a sample, by the reason.
NOT_CALLED: dict[str, tuple[str, ...]] = {
    "sparse tensors cannot be made from statistics": (
        "coalesce", "ccol_indices_copy", "col_indices_copy", "crow_indices_copy", "row_indices_copy", "indices_copy",
        "values_copy", "hspmm", "smm", "sspaddmm", "sparse_mask", "native_norm"),
    "quantized tensors and packed weights cannot be made from statistics": (
        "int_repr", "quantize_per_channel", "quantize_per_tensor", "quantize_per_tensor_dynamic",
        "quantized_batch_norm", "quantized_gru_cell", "quantized_lstm_cell", "quantized_max_pool1d",
        "quantized_max_pool2d", "quantized_max_pool3d", "quantized_rnn_relu_cell", "quantized_rnn_tanh_cell",
        "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation", "fbgemm_linear_int8_weight",
        "fbgemm_linear_int8_weight_fp32_activation", "fbgemm_pack_quantized_matrix"),
    "its scales must fit its data, and statistics do not show that": (
        "_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
    "one of its arguments is a Python function, and a dump has only its name": ("apply_", "map_", "map2_"),
    "it runs only on the accelerator of one vendor": (
        "cuda", "xpu", "batch_norm_backward_elemt", "batch_norm_backward_reduce", "batch_norm_elemt",
        "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_stats",
        "batch_norm_update_stats", "miopen_batch_norm", "miopen_convolution", "miopen_convolution_add_relu",
        "miopen_convolution_relu", "miopen_convolution_transpose", "miopen_depthwise_convolution", "miopen_rnn"),
}  # fmt: skip


def samples_of(title: str) -> list[Make]:
    """What to try for an API, best first: `Torch.relu`."""
    name = title.partition(".")[2]
    for key in (title, title.rstrip("_"), name, name.rstrip("_")):
        if key in SAMPLES:
            return [SAMPLES[key]]
    return GENERIC
