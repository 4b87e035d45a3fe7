"""The standard of each API in the second stage, and its limits.

The families are our own, by what an API computes: a sum of products is judged in units of the last place, a copy bit by
bit, an elementwise function with fixed thresholds, everything else in comparison with the second device.
"""

from __future__ import annotations

from typing import Optional

BINARY, ULP, THOUSANDTH, ABSOLUTE, BENCHMARK = (
    "binary consistency",
    "ULP error",
    "thousandth error",
    "absolute threshold",
    "benchmark",
)

_ULP = """matmul mm bmm addmm addbmm baddbmm addmv mv linear einsum __matmul__ __rmatmul__ addr dot vdot inner outer
tensordot chain_matmul linalg.multi_dot linalg.matmul linalg.vecdot bilinear dense bidense batch_dot tensor_dot vecdot
MatMul BatchMatMul Dense"""
_THOUSANDTH = """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc
conv3d_transpose Conv2D Conv2DTranspose Conv3D Conv3DTranspose"""
_BINARY = """abs __abs__ absolute neg __neg__ negative positive relu relu_ relu6 clamp clamp_ clamp_min clamp_max clip
hardtanh threshold cat concat concatenate stack hstack vstack dstack gather index_select masked_select masked_fill
masked_fill_ where take take_along_dim embedding one_hot roll flip tril triu max min maximum minimum fmax fmin amax amin
aminmax argmax argmin sort argsort topk kthvalue median mode max_pool1d max_pool2d max_pool3d pad constant_pad_nd
repeat repeat_interleave tile clone contiguous copy_ fill_ zero_ eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__
__ge__ equal isnan isinf isfinite logical_and logical_or logical_not logical_xor sign sgn floor ceil round trunc
diag diagonal unfold fold pixel_shuffle pixel_unshuffle channel_shuffle to float half bfloat16 double int long bool
type type_as scatter index_fill index_copy cast astype gather_d gather_elements gather_nd select reduce_max reduce_min
argmax_with_value argmin_with_value ReLU ReLU6 Gather GatherD GatherNd Select Concat Stack Cast Transpose Reshape Tile
MaxPool MaxPool3D Argmax Argmin ReduceMax ReduceMin OneHot Pad ExpandDims Squeeze"""
_ABSOLUTE = """add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ mul mul_ __mul__ __rmul__ __imul__
div div_ __truediv__ __rtruediv__ __itruediv__ pow __pow__ __rpow__ sqrt rsqrt square reciprocal exp expm1 exp2 log
log1p log2 log10 sigmoid tanh gelu silu mish softplus elu selu celu leaky_relu prelu logsigmoid hardswish hardsigmoid
sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh erf erfc lerp addcmul addcdiv tensor_add tensor_sub
tensor_mul tensor_div tensor_pow tensor_exp bias_add multiply subtract divide Add Sub Mul Div RealDiv BiasAdd Pow Sqrt
Rsqrt Square Exp Log Sigmoid Tanh GeLU Gelu Mish Elu Erf"""

FAMILIES = {
    **dict.fromkeys(_ABSOLUTE.split(), ABSOLUTE),
    **dict.fromkeys(_BINARY.split(), BINARY),
    **dict.fromkeys(_THOUSANDTH.split(), THOUSANDTH),
    **dict.fromkeys(_ULP.split(), ULP),
}
_LIMITS = {"float32": 32.0, "float16": 1.0, "bfloat16": 1.0}


def family(api: str) -> str:
    """The family of an API. For a Primitive, `conv2d.Conv2D`, the class decides."""
    return FAMILIES.get(api) or FAMILIES.get(api.rpartition(".")[2], BENCHMARK)


def standard_of(api: str, dtype: str) -> str:
    """The standard for an output. Integers and bools must be equal, whatever the API."""
    if dtype not in ("float16", "bfloat16", "float32", "float64"):
        return BINARY
    found = family(api)
    return BENCHMARK if found == ULP and dtype not in _LIMITS else found


def ulp_limit(api: str, dtype: str) -> Optional[float]:
    """The limit in units of the last place; None if they are not counted."""
    return _LIMITS.get(dtype) if family(api) == ULP else None
