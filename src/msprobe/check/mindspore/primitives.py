"""The Primitives of Cells that compute: `Primitive.conv2d.Conv2D` is created again from its recorded attributes.

The list is closed. It has no Primitives that write files or summaries, run Python or graphs, communicate with other
processes, or update weights, whatever a dump says.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

from mindspore import ops

from msprobe.check.core import arguments
from msprobe.check.core.generate import NotMade
from msprobe.dump.record_keys import INPUT_ARGS, INPUT_KWARGS

_LISTED = """ACos Abs Acosh AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D Add AddN Addcdiv Addcmul
ArgMaxWithValue ArgMinWithValue Argmax Argmin Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D BCEWithLogitsLoss
BatchMatMul BatchNorm BiasAdd BinaryCrossEntropy BitwiseAnd BitwiseOr BitwiseXor BroadcastTo Cast CeLU Ceil Concat
Conv2D Conv2DTranspose Conv3D Conv3DTranspose Cos Cosh CumProd CumSum Cummax Cummin Dense DepthToSpace Diag DiagPart
Div DivNoNan Dropout Dropout2D Dropout3D Einsum Elu EmbeddingLookup Equal Erf Erfc Erfinv Exp ExpandDims Expm1
FastGeLU FastGelu Flatten Floor FloorDiv FloorMod GLU Gather GatherD GatherNd GeLU Gelu Greater GreaterEqual
GridSampler2D HShrink HSigmoid HSwish Identity IndexAdd Inv IsFinite IsInf IsNan KLDivLoss L2Loss L2Normalize LRN
LayerNorm Lerp Less LessEqual Lgamma Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LogicalXor MaskedFill
MaskedSelect MatMul MaxPool MaxPool3D MaxPoolWithArgmaxV2 Maximum Minimum MirrorPad Mish Mod Mul MultiMarginLoss
MultilabelMarginLoss NLLLoss Neg NonZero NotEqual OneHot OnesLike PReLU Pad PadV3 Pow ReLU ReLU6 RealDiv Reciprocal
ReduceAll ReduceAny ReduceMax ReduceMean ReduceMin ReduceProd ReduceStd ReduceSum Reshape ResizeBicubic
ResizeBilinearV2 ResizeLinear1D ResizeNearestNeighbor ResizeNearestNeighborV2 ReverseSequence ReverseV2 Rint RmsNorm
Roll Round Rsqrt ScatterNd SeLU Select Sigmoid SigmoidCrossEntropyWithLogits Sign Sin Sinh Slice SmoothL1Loss
SoftMarginLoss SoftShrink Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign Sort SpaceToDepth
SparseSoftmaxCrossEntropyWithLogits Split Sqrt Square SquaredDifference Squeeze Stack StridedSlice Sub Tan Tanh
TensorScatterAdd TensorScatterUpdate Tile TopK Transpose Tril TripletMarginLoss Triu Trunc UnsortedSegmentSum Unstack
Xdivy Xlogy ZerosLike"""
LISTED = frozenset(_LISTED.split())
RANDOM = frozenset(("Dropout", "Dropout2D", "Dropout3D"))
_NAME = re.compile(r"[A-Za-z_]\w{0,63}\Z", re.ASCII)


def class_of(title: str) -> Optional[str]:
    """`Primitive.conv2d.Conv2D` -> the class Conv2D, if it is in the list and this MindSpore has it."""
    prefix, _, rest = title.partition(".")
    name = rest.rpartition(".")[2]
    return name if prefix == "Primitive" and name in LISTED and hasattr(ops, name) else None


def make(name: str, attributes: Any) -> Callable[..., Any]:
    """Creates the Primitive with these recorded attributes. Raises NotMade."""
    if not isinstance(attributes, dict):
        raise NotMade("the dump does not have the Primitive's attributes: it was made by an older msprobe")
    read = arguments.read({INPUT_ARGS: [], INPUT_KWARGS: attributes})
    if read.tensors or not all(_NAME.match(key) for key in read.kwargs):
        raise NotMade("the attributes of the Primitive are not plain values")
    plain = {key: _tuples(value) for key, value in read.kwargs.items()}
    made: Callable[..., Any] = getattr(ops, name)(**plain)
    return made


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
