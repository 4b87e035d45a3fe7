"""Details of the operators in a graph text: attributes, constant inputs, names in files.

MindSpore on CPU renumbers operators when it runs them (see matching.py): the n-th node of a scope and type is `-op{n}`
in file names, counted over all graphs. While a dump is being written, msprobe must know the operator of a file at
once. So this module computes the numbers from the graphs alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from msprobe.graphdump.files.names import spell_for_file
from msprobe.graphdump.graphs.arguments import ARGUMENTS
from msprobe.graphdump.graphs.ir import NOT_EXECUTED

_HEADER = re.compile(r"^  ?%\d+\([^=\n]*\)\s*=\s*(?P<type>[^\s(]+)\(", re.MULTILINE)
_NAME = re.compile(
    r"^\s*(?:#|:)\s*(?:Fullname with scope:|full_name_with_scope:)?\s*\((?P<name>[^<>()\n]+/[^<>()\n]+)\)", re.MULTILINE
)
_OUTPUTS = re.compile(r"^\s*: \(.*\) -> \((?P<outputs>.*)\)\s*$", re.MULTILINE)
_NUMBERED = re.compile(r"(?P<base>.*)-op\d+")
_TYPED = re.compile(r"(?:[A-Z][A-Za-z]*\d*)\((?P<value>[^()]*)\)")
_CONSTANT = re.compile(r"Tensor\(shape=\[")
_LONGEST_NODE = 1 << 20


@dataclass(frozen=True)
class OperatorDetails:
    """One operator. `constants` are the input slots with a constant tensor in the graph, `outputs` is the number of
    output tensors, `marked` is true if mindspore.set_dump selected it."""

    type: str
    full_name: str
    arguments: dict[str, str]
    constants: tuple[int, ...]
    outputs: int
    marked: bool


def describe(text: str) -> list[OperatorDetails]:
    """The operators of an .ir text that run a kernel, in the order of the text."""
    found = []
    headers = list(_HEADER.finditer(text))
    for header, end in zip(headers, [match.start() for match in headers[1:]] + [len(text)]):
        kind = header["type"]
        kind = kind[len("PrimFunc_") :] if kind.startswith("PrimFunc_") else kind
        body = text[header.end() : min(end, header.end() + _LONGEST_NODE)]
        name = _NAME.search(body)
        if kind in NOT_EXECUTED or name is None:
            continue
        inputs, rest = _split(body)
        attributes = _attributes(rest)
        arguments = {key: _plain(value) for key, value in attributes.items() if not key.startswith("IsFeatureMap")}
        names = ARGUMENTS.get(kind, ())
        for slot, value in enumerate(inputs):
            if not value.startswith("%") and not _CONSTANT.match(value):
                arguments[names[slot] if slot < len(names) else f"input.{slot}"] = _plain(value)
        constants = tuple(slot for slot, value in enumerate(inputs) if _CONSTANT.match(value))
        count = max((line["outputs"].count("<") for line in _OUTPUTS.finditer(body)), default=0)
        marked = _plain(attributes.get("dump", "")).lower() == "true"
        found.append(OperatorDetails(kind, name["name"], arguments, constants, count, marked))
    return found


class Numbering:
    """Computes the names in files of all operators, graph after graph."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}

    def name_operators(self, operators: list[OperatorDetails]) -> dict[str, OperatorDetails]:
        result = {}
        for operator in operators:
            match = _NUMBERED.fullmatch(spell_for_file(operator.full_name))
            if match is None:
                result[spell_for_file(operator.full_name)] = operator
                continue
            number = self._counted.get(match["base"], 0)
            self._counted[match["base"]] = number + 1
            result[f"{match['base']}-op{number}"] = operator
        return result


def _split(body: str) -> tuple[list[str], str]:
    """The arguments up to the closing bracket, and the text after it."""
    parts: list[str] = []
    begin = 0
    for position, letter, depth in _outside(body):
        if letter == ")" and depth < 0:
            return [part for part in (*parts, body[begin:position].strip()) if part], body[position + 1 :]
        if letter == "," and depth == 0:
            parts.append(body[begin:position].strip())
            begin = position + 1
    return parts, ""


def _outside(text: str) -> Iterator[tuple[int, str, int]]:
    """The characters outside of quotes, each with the bracket depth after it."""
    depth, quoted = 0, False
    for position, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        if quoted:
            continue
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        yield position, letter, depth


def _attributes(rest: str) -> dict[str, str]:
    line = rest.split("\n", 1)[0] if "\n      :" not in rest else rest[: rest.index("\n      :")]
    start = line.find("primitive_attrs: {")
    if start < 0:
        return {}
    inside = line[start + len("primitive_attrs: {") :]
    pairs, begin = [], 0
    for position, letter, depth in _outside(inside):
        if depth < 0 or (letter == "," and depth == 0):
            pairs.append(inside[begin:position])
            begin = position + 1
        if depth < 0:
            break
    halves = (pair.split(":", 1) for pair in pairs if ":" in pair)
    return {key.strip(): " ".join(value.split()) for key, value in halves}


def _plain(value: str) -> str:
    """`Bool(1)` to True, `I64(3)` to 3, quoted text without its quotes."""
    if value.startswith("Bool("):
        return "True" if value == "Bool(1)" else "False"
    return _TYPED.sub(lambda match: match["value"], value).strip('"')
