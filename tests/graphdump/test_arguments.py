"""The table of argument names is MindSpore's own, and save_kernel_args writes these names."""

from __future__ import annotations

import inspect

from mindspore.ops.auto_generate import gen_ops_prim

from msprobe.graphdump.graphs.arguments import ARGUMENTS
from msprobe.graphdump.graphs.attributes import describe

TEXT = """
  %1([CNode]1) = PrimFunc_MatMul(%0, %2, Bool(0), Bool(1)) {instance name: matmul} primitive_attrs: {}
      : (<Tensor[Float32], (2, 3)>, <Tensor[Float32], (4, 3)>, <Bool, NoShape>, <Bool, NoShape>) -> (<Tensor[Float32], (2, 4)>)
      # Fullname with scope: (Default/MatMul-op0)
"""  # noqa: E501


def names_of(kind: type) -> list[str]:
    try:
        of_call = inspect.signature(kind.__call__).parameters
        of_init = inspect.signature(kind.__init__).parameters
    except ValueError:  # a class written in C
        return []
    call = [name for name in of_call if name not in ("self", "args", "kwargs")]
    init = [name for name in of_init if name not in ("self", "args", "kwargs")]
    return [*call, *init] if call and init else []


def test_the_table_is_that_of_the_installed_mindspore():
    kinds = {name: kind for name, kind in vars(gen_ops_prim).items() if inspect.isclass(kind)}
    assert {name: names for name, kind in kinds.items() if (names := names_of(kind))} == ARGUMENTS


def test_the_arguments_of_matmul_have_the_names_of_the_guide():
    (operator,) = describe(TEXT)
    assert operator.arguments == {"transpose_a": "False", "transpose_b": "True"}
