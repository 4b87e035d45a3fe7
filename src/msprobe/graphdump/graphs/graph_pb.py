"""Reads the execution graph from ms_output_trace_code_graph_{g}.pb, if there is no .ir text.

The .pb file has the same operators, names, edges and source lines. It does not have the shapes and formats on the
device, nor the types of inputs: the type of an input is the output type of its producer.
"""

from __future__ import annotations

from typing import Any, Optional

from google.protobuf.message import DecodeError

from msprobe.graphdump.files.schema import message_class
from msprobe.graphdump.graphs.ir import Graph, Node, Signature, Spec, source_line

_TYPES = {
    1: "Bool",
    2: "Int8",
    3: "Int16",
    4: "Int32",
    5: "Int64",
    6: "UInt8",
    7: "UInt16",
    8: "UInt32",
    9: "UInt64",
    10: "Float16",
    11: "Float32",
    12: "Float64",
    13: "String",
    46: "BFloat16",
}
_TENSOR, _TUPLE, _LIST = 14, 31, 32


def parse_pb(data: bytes) -> Graph:
    """The graph in the bytes of a .pb file. Raises ValueError for other bytes."""
    try:
        graph = message_class("graph_ir.proto", "Model").FromString(data).graph
    except DecodeError as error:
        raise ValueError(f"not a graph message ({error})") from None
    outputs: dict[str, tuple[Spec, ...]] = {item.name: _specs(item.type) for item in graph.parameters}
    outputs.update((item.name, _specs(item.output_type)) for item in graph.node)
    parameters = {item.name for item in graph.parameters}
    return Graph(tuple(_node(item, outputs, parameters) for item in graph.node))


def _node(item: Any, outputs: dict[str, tuple[Spec, ...]], parameters: set[str]) -> Node:
    names = [entry.name for entry in item.input]
    inputs: list[Optional[Spec]] = [next(iter(outputs.get(name, ())), None) for name in names]
    lines = [source_line(text) for text in item.source_address.splitlines()]
    return Node(
        key=item.name,
        type=item.op_type,
        full_name=item.full_name,
        inputs=tuple(f"%{name}" if name in parameters else name for name in names),
        declared=Signature(tuple(spec or Spec("", None) for spec in inputs), outputs[item.name]),
        lines=tuple(line for line in reversed(lines) if line is not None),
        backward=item.full_name.startswith("Gradients/") or "# Corresponding forward" in item.source_address,
    )


def _specs(kind: Any) -> tuple[Spec, ...]:
    """The tensors in a type. The file has no shapes of tensors inside a tuple: they are None."""
    if kind.data_type == _TENSOR:
        tensor = kind.tensor_type
        return (Spec(_name(tensor.elem_type), tuple(dim.size for dim in tensor.shape.dim)),)
    if kind.data_type in (_TUPLE, _LIST):
        inner = (spec for element in kind.sequence_type.elem_types for spec in _specs(element))
        return tuple(Spec(spec.dtype, spec.shape or None) for spec in inner)
    return (Spec(_TYPES.get(kind.data_type, ""), None),)


def _name(number: int) -> str:
    return _TYPES.get(number, f"type {number}")
