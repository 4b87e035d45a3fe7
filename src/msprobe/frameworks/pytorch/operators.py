"""How Python operators on a PyTorch tensor reach a TorchFunctionMode: ``x + y`` arrives as ``Tensor.add``."""

from __future__ import annotations

# Operator -> the method as which it arrives. All others arrive under their own name: `__rsub__`, `__pow__`,
# `__rtruediv__`, `__floordiv__`, `__eq__`, `__and__`, `__invert__`, `__getitem__`, ...
ARRIVES_AS = {
    "__add__": "add",
    "__radd__": "add",
    "__iadd__": "add_",
    "__sub__": "sub",
    "__isub__": "sub_",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__imul__": "mul_",
    "__matmul__": "matmul",
    "__div__": "div",
    "__truediv__": "div",
    "__itruediv__": "div_",
    "__ifloordiv__": "floor_divide_",
    "__mod__": "remainder",
    "__imod__": "remainder_",
    "__gt__": "gt",
    "__ge__": "ge",
    "__lt__": "lt",
    "__le__": "le",
    "__ne__": "ne",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
    "__neg__": "neg",
    "__pos__": "positive",
    "__abs__": "abs",
}
