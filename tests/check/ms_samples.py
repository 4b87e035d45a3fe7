"""A call of each API of the MindSpore support list, as small as it can be.

`SAMPLES` has, by name, what a generic call does not fit, `GENERIC` the rest; the first that this version of MindSpore
takes on this device is the sample. Floats lie in (0.1, 0.9), inside the domain of nearly every function.
"""

from __future__ import annotations

from typing import Any, Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor

_random = np.random.RandomState(3)


def f(*shape: int) -> Any:
    return Tensor(_random.uniform(0.1, 0.9, shape).astype(np.float32))


def i(*values: Any, dtype: Any = ms.int64) -> Any:
    return Tensor(np.array(values), dtype)


def b(*shape: int) -> Any:
    return Tensor(_random.rand(*shape) > 0.5)


def c(*shape: int) -> Any:
    return Tensor((_random.rand(*shape) + 1j * _random.rand(*shape)).astype(np.complex64))


def spd() -> Any:
    a = _random.rand(3, 3)
    return Tensor((a @ a.T + 3 * np.eye(3)).astype(np.float32))


Sample = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Sample:
    return args, kwargs


GENERIC: list[Callable[[], Sample]] = [
    lambda: call(f(3, 4)),
    lambda: call(f(3, 4), f(3, 4)),
    lambda: call(f(3, 4), f(3, 4), f(3, 4)),
    lambda: call(f(3, 4), 1),
    lambda: call(f(3, 4), 0.5),
    lambda: call(i([1, 2, 3], [3, 5, 6]), i([1, 2, 2], [1, 1, 2])),
    lambda: call(i(1, 2, 3)),
    lambda: call(f(2, 4, 6, 6)),
    lambda: call(f(2, 4, 6)),
    lambda: call((f(3, 4), f(3, 4))),
    lambda: call(f(4), f(4)),
    lambda: call(f(3, 4), f(4)),
    lambda: call(spd()),
    lambda: call(c(3, 4)),
    lambda: call(b(3, 4), b(3, 4)),
    lambda: call(b(3, 4)),
    lambda: call(f(2, 3, 4), f(2, 4, 3)),
    lambda: call(f(3, 4), (4, 3)),
    lambda: call(f(3, 4), 0, 1),
    lambda: call(f(1, 2, 6, 6), 2),
    lambda: call((3, 4)),
    lambda: call(5),
]


def p(*shape: int) -> Any:
    return ms.Parameter(f(*shape), name="p")


_INDEX = [lambda: call(f(3, 4), 1, i([0, 1], [1, 2], [2, 0]))]
_SCATTER = [
    lambda: call(f(3, 4), 1, i([0, 1], [1, 2], [2, 0]), f(3, 2)),
    lambda: call(f(3, 4), i([0], [2]), f(2, 4)),
    lambda: call(p(3, 4), i(0, 2, dtype=ms.int32), f(2, 4)),
]
_SCATTER_ND = [
    lambda: call(f(3, 4), i([0], [2], dtype=ms.int32), f(2, 4)),
    lambda: call(p(3, 4), i([0], [2], dtype=ms.int32), f(2, 4)),
]
_SEGMENT = [lambda: call(f(4, 3), i(0, 1, 1, 0, dtype=ms.int32), 2)]
_SHAPE = [lambda: call(f(1, 4), (3, 4)), lambda: call((3, 4))]
_WINDOW = [lambda: call(i(5)[0]), lambda: call(5)]
_CONV2 = [lambda: call(f(1, 3, 6, 6), f(4, 3, 3, 3)), lambda: call(f(1, 3, 6, 6), f(3, 4, 3, 3))]
_CONV3 = [lambda: call(f(1, 3, 4, 4, 4), f(4, 3, 2, 2, 2)), lambda: call(f(1, 3, 4, 4, 4), f(3, 4, 2, 2, 2))]
_POOL1 = [lambda: call(f(1, 2, 6), 2)]
_POOL2 = [lambda: call(f(1, 2, 6, 6), 2), lambda: call(f(1, 2, 6, 6), (2, 2))]
_POOL3 = [lambda: call(f(1, 2, 4, 4, 4), 2), lambda: call(f(1, 2, 4, 4, 4), (2, 2, 2)), lambda: call(f(1, 2, 4, 4, 4))]
_CLASSES = [lambda: call(f(3, 4), i(0, 1, 3, dtype=ms.int32)), lambda: call(f(3, 4), i(0, 1, 3))]
_UNPOOL = [lambda: call(f(1, 1, 2), i([[0, 2]]), 2), lambda: call(f(1, 1, 2, 2), i([[[0, 2], [8, 10]]]), 2)]

SAMPLES: dict[str, list[Callable[[], Sample]]] = {
    "__getitem__": [lambda: call(f(3, 4), (slice(0, 2), 1))],
    "__setitem__": [lambda: call(f(3, 4), (slice(0, 2), 1), 0.5)],
    "__matmul__": [lambda: call(f(3, 4), f(4, 2))],
    "__rmatmul__": [lambda: call(f(4, 2), f(3, 4))],
    "accumulate_n": [lambda: call([f(3, 4), f(3, 4)])],
    "adaptive_avg_pool1d": _POOL1,
    "adaptive_max_pool1d": _POOL1,
    "adaptive_avg_pool2d": _POOL2,
    "adaptive_max_pool2d": _POOL2,
    "adaptive_avg_pool3d": _POOL3,
    "adaptive_max_pool3d": _POOL3,
    "add_layer_norm": [lambda: call(f(3, 4), f(3, 4), f(4), f(4))],
    "add_rms_norm": [lambda: call(f(3, 4), f(3, 4), f(4))],
    "addbmm": [lambda: call(f(3, 4), f(2, 3, 5), f(2, 5, 4))],
    "addcdiv": [lambda: call(f(3, 4), f(3, 4), f(3, 4)), lambda: call(f(3), f(3), f(3), f(1))],
    "addmm": [lambda: call(f(3, 4), f(3, 5), f(5, 4))],
    "addmm_": [lambda: call(f(3, 4), f(3, 5), f(5, 4))],
    "addmv": [lambda: call(f(3), f(3, 4), f(4))],
    "addr": [lambda: call(f(3, 4), f(3), f(4))],
    "addr_": [lambda: call(f(3, 4), f(3), f(4))],
    "affine_grid": [lambda: call(f(1, 2, 3), (1, 2, 4, 4))],
    "arange": [lambda: call(0, 5, 1)],
    "assign": [lambda: call(p(3, 4), f(3, 4))],
    "assign_add": [lambda: call(p(3, 4), f(3, 4))],
    "assign_sub": [lambda: call(p(3, 4), f(3, 4))],
    "astype": [lambda: call(f(3, 4), ms.float16)],
    "avg_pool1d": _POOL1,
    "avg_pool2d": _POOL2,
    "avg_pool3d": _POOL3,
    "baddbmm": [lambda: call(f(2, 3, 4), f(2, 3, 5), f(2, 5, 4))],
    "bartlett_window": _WINDOW,
    "blackman_window": _WINDOW,
    "batch_norm": [
        lambda: call(f(4, 3, 2, 2), f(3), f(3), f(3), f(3)),
        lambda: call(f(4, 3, 2, 2), f(3), f(3), f(3), f(3), True),
    ],
    "batch_norm_elemt": [lambda: call(f(4, 3), f(3), f(3), f(3), f(3), 1e-5)],
    "batch_norm_stats": [lambda: call(f(4, 3), 1e-5)],
    "batch_to_space_nd": [lambda: call(f(4, 1, 1, 1), [2, 2], [[0, 0], [0, 0]])],
    "bidense": [lambda: call(f(3, 4), f(3, 5), f(2, 4, 5))],
    "binary_cross_entropy_with_logits": [lambda: call(f(3, 4), f(3, 4), f(3, 4), f(3, 4))],
    "bincount": [lambda: call(i(1, 2, 2, 0))],
    "bmm": [lambda: call(f(2, 3, 4), f(2, 4, 3))],
    "bounding_box_decode": [lambda: call(f(2, 4), f(2, 4), (8, 8))],
    "broadcast_to": _SHAPE,
    "bucketize": [lambda: call(f(3, 4), [0.2, 0.5])],
    "cast": [lambda: call(f(3, 4), ms.float16)],
    "channel_shuffle": [lambda: call(f(1, 4, 2, 2), 2)],
    "check_valid": [lambda: call(f(3, 4), f(3))],
    "cholesky": [lambda: call(spd())],
    "cholesky_inverse": [lambda: call(spd())],
    "cholesky_solve": [lambda: call(f(3, 2), spd())],
    "choose": [lambda: call(i(0, 1, 1, dtype=ms.int32), [f(3), f(3)])],
    "clamp": [lambda: call(f(3, 4), 0.3, 0.6)],
    "clamp_": [lambda: call(f(3, 4), 0.3, 0.6)],
    "clip": [lambda: call(f(3, 4), 0.3, 0.6)],
    "clip_by_value": [lambda: call(f(3, 4), 0.3, 0.6)],
    "col2im": [
        lambda: call(f(1, 2, 4, 9), i(4, 4, dtype=ms.int32), [2, 2], [1, 1], [0, 0], [1, 1]),
    ],
    "conv1d": [lambda: call(f(1, 3, 6), f(4, 3, 3))],
    "conv2d": _CONV2,
    "conv3d": _CONV3,
    "conv3d_transpose": _CONV3,
    "conv_tbc": [lambda: call(f(6, 2, 3), f(2, 3, 4), f(4))],
    "conv_transpose2d": list(reversed(_CONV2)),
    "cosine_embedding_loss": [lambda: call(f(3, 4), f(3, 4), i(1, -1, 1))],
    "crop_and_resize": [lambda: call(f(1, 4, 4, 2), f(1, 4), i(0, dtype=ms.int32), (2, 2))],
    "cross": [lambda: call(f(2, 3), f(2, 3))],
    "cross_entropy": _CLASSES,
    "ctc_greedy_decoder": [lambda: call(f(4, 2, 3), i(4, 4, dtype=ms.int32))],
    "ctc_loss": [
        lambda: call(f(5, 2, 4), i([1, 2], [2, 3], dtype=ms.int32), i(5, 5, dtype=ms.int32), i(2, 2, dtype=ms.int32))
    ],
    "cummax": [lambda: call(f(3, 4), 1)],
    "cummin": [lambda: call(f(3, 4), 1)],
    "cumprod": [lambda: call(f(3, 4), 1)],
    "cumsum": [lambda: call(f(3, 4), 1)],
    "deformable_conv2d": [
        lambda: call(f(1, 1, 4, 4), f(1, 1, 2, 2), f(1, 12, 3, 3), (2, 2), (1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1)),
    ],
    "dense": [lambda: call(f(3, 4), f(2, 4), f(2))],
    "diagonal_scatter": [lambda: call(f(3, 3), f(3))],
    "dot": [lambda: call(f(4), f(4)), lambda: call(f(3, 4), f(4, 2))],
    "dropout3d": [lambda: call(f(1, 2, 4, 4, 4))],
    "eigvals": [lambda: call(spd())],
    "einsum": [lambda: call("ij,jk->ik", f(3, 4), f(4, 2))],
    "embedding": [lambda: call(i([0, 2], [1, 1]), f(4, 3)), lambda: call(f(4, 3), i(0, 2))],
    "expand": _SHAPE,
    "fill": [lambda: call(ms.float32, (3, 4), 0.5)],
    "fill_": [lambda: call(f(3, 4), 0.5)],
    "fill_diagonal": [lambda: call(f(3, 4), 0.5)],
    "fill_diagonal_": [lambda: call(f(3, 4), 0.5)],
    "fills": [lambda: call(f(3, 4), 0.5)],
    "flip": [lambda: call(f(3, 4), (0,)), lambda: call(f(3, 4), 0)],
    "fmin": [lambda: call(f(3, 4), f(3, 4))],
    "fold": [
        lambda: call(f(1, 8, 9), (4, 4), (2, 2)),
        lambda: call(f(1, 8, 9), i(4, 4, dtype=ms.int32), (2, 2)),
    ],
    "fractional_max_pool2d": [lambda: call(f(1, 2, 6, 6), 2, (3, 3))],
    "fractional_max_pool3d": [lambda: call(f(1, 2, 6, 6, 6), (2, 2, 2), (3, 3, 3))],
    "full": [lambda: call((3, 4), 0.5)],
    "full_like": [lambda: call(f(3, 4), 0.5)],
    "gamma": [lambda: call((2,), f(2), f(2))],
    "gather": [
        lambda: call(f(3, 4), 1, i([0, 1], [1, 2], [2, 0])),
        lambda: call(f(3, 4), i(0, 2, dtype=ms.int32), 0),
    ],
    "gather_d": _INDEX,
    "gather_elements": _INDEX,
    "gather_nd": [lambda: call(f(3, 4), i([0, 1], [2, 3], dtype=ms.int32))],
    "gaussian_nll_loss": [lambda: call(f(3, 4), f(3, 4), f(3, 4))],
    "geqrf": [lambda: call(f(3, 3))],
    "grid_sample": [lambda: call(f(1, 2, 4, 4), f(1, 3, 3, 2))],
    "group_norm": [lambda: call(f(2, 4, 3, 3), 2, f(4), f(4)), lambda: call(f(2, 4, 3, 3), 2)],
    "hamming_window": _WINDOW,
    "hann_window": _WINDOW,
    "histc": [lambda: call(f(12), 4), lambda: call(f(12), 4, 0.0, 1.0)],
    "igamma": [lambda: call(f(3, 4), f(3, 4))],
    "index_add": [
        lambda: call(f(3, 4), 0, i(0, 2, dtype=ms.int32), f(2, 4)),
        lambda: call(p(3, 4), i(0, 2, dtype=ms.int32), f(2, 4), 0),
    ],
    "index_add_": [lambda: call(f(3, 4), 0, i(0, 2), f(2, 4))],
    "index_copy_": [lambda: call(f(3, 4), 0, i(0, 2), f(2, 4))],
    "index_fill": [lambda: call(f(3, 4), 0, i(0, 2, dtype=ms.int32), 0.5)],
    "index_fill_": [lambda: call(f(3, 4), 0, i(0, 2), 0.5)],
    "index_put": [lambda: call(f(3, 4), (i(0, 2), i(1, 1)), f(2))],
    "index_put_": [lambda: call(f(3, 4), (i(0, 2), i(1, 1)), f(2))],
    "index_select": [lambda: call(f(3, 4), 0, i(0, 2)), lambda: call(f(3, 4), 0, i(0, 2, dtype=ms.int32))],
    "inplace_add": [lambda: call(f(3, 4), f(2, 4), (0, 2))],
    "inplace_sub": [lambda: call(f(3, 4), f(2, 4), (0, 2))],
    "inplace_update": [lambda: call(f(3, 4), f(2, 4), (0, 2))],
    "inplace_index_add": [lambda: call(p(3, 4), i(0, 2, dtype=ms.int32), f(2, 4), 0)],
    "interpolate": [
        lambda: call(f(1, 2, 4, 4), (6, 6), mode="bilinear"),
        lambda: call(f(1, 2, 4, 4), size=(6, 6), mode="nearest"),
    ],
    "upsample": [lambda: call(f(1, 2, 4, 4), (6, 6), mode="bilinear")],
    "intopk": [lambda: call(f(3, 4), i(0, 1, 3, dtype=ms.int32), 2)],
    "inv": [lambda: call(spd()), lambda: call(f(3, 4))],
    "inverse": [lambda: call(spd())],
    "kl_div": [lambda: call(f(3, 4), f(3, 4))],
    "kthvalue": [lambda: call(f(3, 4), 2)],
    "l1_loss": [lambda: call(f(3, 4), f(3, 4))],
    "laplace": [lambda: call((2,), f(2), f(2))],
    "layer_norm": [lambda: call(f(3, 4), (4,), f(4), f(4))],
    "lerp": [lambda: call(f(3, 4), f(3, 4), 0.3)],
    "linspace": [lambda: call(0.0, 1.0, 5)],
    "log_matrix_determinant": [lambda: call(spd())],
    "logspace": [lambda: call(0.0, 1.0, 5)],
    "logsumexp": [lambda: call(f(3, 4), 1)],
    "lp_pool1d": [lambda: call(f(1, 2, 6), 2.0, 2)],
    "lp_pool2d": [lambda: call(f(1, 2, 6, 6), 2.0, 2)],
    "lstsq": [lambda: call(f(3, 3), f(3, 2))],
    "lu_solve": [lambda: call(f(3, 2), spd(), i(1, 2, 3, dtype=ms.int32))],
    "lu_unpack": [lambda: call(spd(), i(1, 2, 3, dtype=ms.int32))],
    "masked_fill": [lambda: call(f(3, 4), b(3, 4), 0.5), lambda: call(f(3, 4), b(3, 4), f(1)[0])],
    "masked_fill_": [lambda: call(f(3, 4), b(3, 4), 0.5)],
    "masked_scatter": [lambda: call(f(3, 4), b(3, 4), f(12))],
    "masked_scatter_": [lambda: call(f(3, 4), b(3, 4), f(12))],
    "masked_select": [lambda: call(f(3, 4), b(3, 4))],
    "matmul": [lambda: call(f(3, 4), f(4, 2))],
    "matrix_diag_part": [lambda: call(f(3, 4), i(0, dtype=ms.int32)[0], f(1)[0])],
    "matrix_exp": [lambda: call(spd())],
    "matrix_set_diag": [lambda: call(f(3, 4), f(3))],
    "matrix_solve": [lambda: call(spd(), f(3, 2))],
    "max_pool2d": _POOL2,
    "max_pool3d": _POOL3,
    "max_unpool1d": _UNPOOL,
    "max_unpool2d": list(reversed(_UNPOOL)),
    "max_unpool3d": [lambda: call(f(1, 1, 1, 1, 1), i([[[[0]]]]), 2)],
    "mirror_pad": [lambda: call(f(3, 4), i([1, 1], [1, 1], dtype=ms.int32), "REFLECT")],
    "mm": [lambda: call(f(3, 4), f(4, 2))],
    "mse_loss": [lambda: call(f(3, 4), f(3, 4))],
    "multi_margin_loss": _CLASSES,
    "multilabel_margin_loss": [lambda: call(f(2, 3), i([0, 1, -1], [2, -1, -1], dtype=ms.int32))],
    "multinomial": [lambda: call(f(4), 2)],
    "mv": [lambda: call(f(3, 4), f(4))],
    "nanquantile": [lambda: call(f(3, 4), 0.5)],
    "narrow": [lambda: call(f(3, 4), 1, 1, 2)],
    "nll_loss": _CLASSES,
    "norm": [lambda: call(f(3, 4))],
    "normal": [lambda: call((2, 3), f(1), f(1)), lambda: call(f(3), f(3))],
    "one_hot": [lambda: call(i(0, 1, 3), 4), lambda: call(i(0, 1, 3, dtype=ms.int32), 4)],
    "orgqr": [lambda: call(f(3, 3), f(3))],
    "ormqr": [lambda: call(f(3, 3), f(3), f(3, 2))],
    "outer": [lambda: call(f(3), f(4))],
    "pad": [lambda: call(f(3, 4), (1, 1)), lambda: call(f(1, 3, 4), [1, 1])],
    "padding": [lambda: call(f(3, 1), 4)],
    "permute": [lambda: call(f(3, 4), (1, 0))],
    "pixel_shuffle": [lambda: call(f(1, 4, 2, 2), 2)],
    "pixel_unshuffle": [lambda: call(f(1, 1, 4, 4), 2)],
    "poisson": [lambda: call((2,), f(2))],
    "polygamma": [lambda: call(i(1)[0], f(3, 4))],
    "prelu": [lambda: call(f(2, 3, 4), f(3))],
    "put_": [lambda: call(f(3, 4), i(0, 2), f(2))],
    "quantile": [lambda: call(f(3, 4), 0.5)],
    "rand": [lambda: call(2, 3)],
    "randint": [lambda: call(0, 5, (2, 3))],
    "randint_like": [lambda: call(i(1, 2, 3), 0, 5)],
    "randn": [lambda: call(2, 3)],
    "randperm": [lambda: call(5)],
    "random_gamma": [lambda: call(i(2, dtype=ms.int32), f(2))],
    "random_poisson": [lambda: call(i(2, dtype=ms.int32), f(2))],
    "uniform_candidate_sampler": [lambda: call(i([1], [3]), 1, 2, True, 4)],
    "log_uniform_candidate_sampler": [lambda: call(i([1], [3]), 1, 2, True, 4)],
    "range": [lambda: call(0, 5, 1)],
    "renorm": [lambda: call(f(3, 4), 2, 0, 0.5)],
    "repeat": [lambda: call(f(3, 4), 2)],
    "repeat_elements": [lambda: call(f(3, 4), 2)],
    "repeat_interleave": [lambda: call(f(3, 4), 2, 0), lambda: call(f(3, 4), 2)],
    "reverse": [lambda: call(f(3, 4), (0,))],
    "reverse_sequence": [lambda: call(f(3, 4), i(2, 3, 1), 1), lambda: call(f(3, 4), i(2, 3, 1), 1, 0)],
    "rms_norm": [lambda: call(f(3, 4), f(4))],
    "roll": [lambda: call(f(3, 4), 1, 0)],
    "rot90": [lambda: call(f(3, 4), 1, (0, 1)), lambda: call(f(3, 4), 1, [0, 1])],
    "scatter": _SCATTER,
    "scatter_": _SCATTER,
    "scatter_add": _SCATTER,
    "scatter_add_": _SCATTER,
    **dict.fromkeys(("scatter_div", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub"), _SCATTER[1:]),
    "scatter_update": _SCATTER[1:],
    "scatter_nd": [lambda: call(i([0], [2], dtype=ms.int32), f(2, 4), (3, 4))],
    **{f"scatter_nd_{one}": _SCATTER_ND for one in ("add", "div", "max", "min", "mul", "sub")},
    **{f"tensor_scatter_{one}": _SCATTER_ND for one in ("add", "div", "max", "min", "mul", "sub")},
    "tensor_scatter_elements": [lambda: call(f(3, 4), i([0, 1], [1, 2], [2, 0], dtype=ms.int32), f(3, 2), 1)],
    "searchsorted": [lambda: call(Tensor([[0.1, 0.3, 0.6]], ms.float32), f(1, 2))],
    "select": [lambda: call(b(3, 4), f(3, 4), f(3, 4)), lambda: call(f(3, 4), 0, 1)],
    "select_scatter": [lambda: call(f(3, 4), f(4), 0, 1)],
    "slice": [lambda: call(f(3, 4), (0, 1), (2, 2))],
    "slice_scatter": [lambda: call(f(3, 4), f(3, 2), 1, 0, 2)],
    "soft_margin_loss": [lambda: call(f(3, 4), f(3, 4))],
    "space_to_batch_nd": [lambda: call(f(1, 1, 2, 2), [2, 2], [[0, 0], [0, 0]])],
    "sparse_segment_mean": [lambda: call(f(3, 4), i(0, 2, dtype=ms.int32), i(0, 0, dtype=ms.int32))],
    "split": [lambda: call(f(4, 3), 2)],
    "stack": [lambda: call((f(3), f(3))), lambda: call([f(3), f(3)])],
    "stft": [lambda: call(f(32), 8)],
    "strided_slice": [lambda: call(f(3, 4), (0, 1), (2, 4), (1, 2))],
    "take": [lambda: call(f(3, 4), i(0, 2)), lambda: call(f(3, 4), i(0, 2, dtype=ms.int32), 0)],
    "tensor_dot": [lambda: call(f(3, 4), f(4, 2), 1)],
    "threshold": [lambda: call(f(3, 4), 0.5, 0.0)],
    "threshold_": [lambda: call(f(3, 4), 0.5, 0.0)],
    "tile": [lambda: call(f(3, 4), (2, 1))],
    "to": [lambda: call(f(3, 4), ms.float16)],
    "topk": [lambda: call(f(3, 4), 2)],
    "top_k": [lambda: call(f(3, 4), 2)],
    "transpose": [lambda: call(f(3, 4), (1, 0)), lambda: call(f(3, 4), 0, 1)],
    "triangular_solve": [lambda: call(f(3, 2), spd())],
    "tril_indices": [lambda: call(3, 4)],
    "triu_indices": [lambda: call(3, 4)],
    "triplet_margin_loss": [lambda: call(f(3, 4), f(3, 4), f(3, 4)), lambda: call(f(3, 4), f(3, 4), f(3, 4), i(1)[0])],
    "unfold": [lambda: call(f(1, 2, 4, 4), 2), lambda: call(f(3, 4), 1, 2, 1)],
    "uniform": [lambda: call((2, 3), f(1), f(1) + 1), lambda: call(f(3), 0.0, 1.0)],
    **{f"unsorted_segment_{one}": _SEGMENT for one in ("max", "min", "prod", "sum")},
    "where": [lambda: call(b(3, 4), f(3, 4), f(3, 4)), lambda: call(f(3, 4), b(3, 4), f(3, 4))],
    "zeros": [lambda: call((3, 4))],
    "ones": [lambda: call((3, 4))],
}


def samples_of(title: str) -> list[Callable[[], Sample]]:
    """What to try for `Mint.gather`, in order."""
    return [*SAMPLES.get(title.rpartition(".")[2], ()), *GENERIC]
