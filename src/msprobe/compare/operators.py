"""What is known about operators: which write to their arguments, return views, reorder elements, keep statistics.

One table for all of compare. A word is the last part of an API's name (`add_` of `Tensor.add_`).
"""

from __future__ import annotations

_IN_PLACE = {
    "__setitem__", "setitem", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__imatmul__",
}  # fmt: skip
FILLING = frozenset(
    [
        "copy_", "uniform_", "normal_", "zero_", "fill_", "random_", "bernoulli_", "exponential_", "cauchy_",
        "log_normal_", "geometric_", "trunc_normal_", "_foreach_copy_", "_foreach_zero_", "set_", "resize_",
    ]
)  # fmt: skip
"""Calls that overwrite all of their first argument without reading it."""
UNINITIALISED = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "empty_permuted", "emptylike"])
"""Calls whose result is memory that was not written yet."""
VIEWS = frozenset(
    [
        "__getitem__", "view", "reshape", "transpose", "permute", "narrow", "select", "expand", "squeeze", "unsqueeze",
        "chunk", "split", "contiguous", "to", "t", "flatten", "view_as", "detach", "unbind", "slice", "as_strided",
    ]
)  # fmt: skip
"""Calls that only select or move elements of their first argument."""
REORDERS = frozenset(
    [
        "cat", "concat", "concatenate", "stack", "repeat", "repeat_interleave", "tile", "flip", "roll", "gather",
        "index_select", "sort", "hstack", "vstack",
    ]
)  # fmt: skip
"""Calls whose result may have the same statistics for a different order of its elements."""
MIXES = frozenset(
    [
        "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum", "conv1d",
        "conv2d", "conv3d", "conv_transpose2d", "bilinear", "dense", "batchmatmul", "scaled_dot_product_attention",
        "lstm", "gru", "rnn_tanh", "cross_entropy", "nll_loss",
    ]
)  # fmt: skip
"""Calls that combine elements of different places: the statistics of their result show the order of their inputs."""
MASKS = frozenset(
    ["relu", "relu_", "masked_fill", "masked_fill_", "where", "dropout", "clamp", "hardtanh", "relu6", "threshold"]
)
"""Calls whose backward returns each gradient unchanged, or drops it."""
RECEIVING = frozenset(
    [
        "all_gather", "all_gather_into_tensor", "_all_gather_base", "reduce_scatter", "reduce_scatter_tensor",
        "_reduce_scatter_base", "recv", "irecv", "scatter", "gather", "all_to_all", "all_to_all_single", "broadcast",
    ]
)  # fmt: skip
"""Collectives that write their first argument."""
RANDOM = (
    "dropout", "bernoulli", "rand", "randn", "randint", "randperm", "multinomial", "normal", "uniform", "rrelu",
    "gumbel_softmax", "exponential",
)  # fmt: skip
"""The beginnings of the names of calls that draw random numbers."""
_KEEP_STATISTICS = frozenset(["batch_norm", "instance_norm", "native_batch_norm"])
COMMUTATIVE = frozenset(["add", "mul", "eq", "ne", "maximum", "minimum", "logical_and", "logical_or"])


def word_of(key: str) -> str:
    """`Tensor.add_` -> `add_`."""
    return key.rpartition(".")[2]


def writes_first(key: str) -> bool:
    """Whether a call of this name changes its first argument in place."""
    word = word_of(key)
    return word in _IN_PLACE or (word.endswith("_") and not word.startswith("__"))


def keeps_statistics(key: str) -> bool:
    """Whether it updates running statistics that it is given."""
    return word_of(key) in _KEEP_STATISTICS


def draws(key: str) -> bool:
    return word_of(key).strip("_").lower().startswith(RANDOM)


UPDATE = "Update."
LOSS = "Loss"
BUFFER = "is_buffer"
"""A member of a tensor: it is no parameter, but a buffer before or after the step."""


def is_derived(key: str) -> bool:
    """Whether it is no call, but a result of the step: the loss, or a parameter before and after its update."""
    return key == LOSS or key.startswith(UPDATE)
