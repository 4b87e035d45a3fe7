"""What the graph's text says of an operator beyond its edges: attributes, constant inputs, its name in files.

MindSpore on CPU numbers operators anew when it runs them (see matching.py): the n-th node of a scope and type
is `-op{n}` in file names, counted on from graph to graph. A dump that is still being written has to know a
file's operator at once, so the numbering is computed here from the graphs alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from msprobe.graphdump.files.names import as_in_file
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
class Described:
    """One operator: `constants` are the input slots that the graph itself gives a tensor for, `outputs` how many
    tensors come out, `marked` whether mindspore.set_dump chose it."""

    type: str
    full_name: str
    arguments: dict[str, str]
    constants: tuple[int, ...]
    outputs: int
    marked: bool


def describe(text: str) -> list[Described]:
    """The operators of an .ir text that run a kernel, in the order in which it lists them."""
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
        for slot, value in enumerate(inputs):
            if not value.startswith("%") and not _CONSTANT.match(value):
                arguments[f"input.{slot}"] = _plain(value)
        constants = tuple(slot for slot, value in enumerate(inputs) if _CONSTANT.match(value))
        count = max((line["outputs"].count("<") for line in _OUTPUTS.finditer(body)), default=0)
        marked = _plain(attributes.get("dump", "")).lower() == "true"
        found.append(Described(kind, name["name"], arguments, constants, count, marked))
    return found


class Numbering:
    """File spellings of the operators of graph after graph."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}

    def names(self, operators: list[Described]) -> dict[str, Described]:
        result = {}
        for operator in operators:
            match = _NUMBERED.fullmatch(as_in_file(operator.full_name))
            if match is None:
                result[as_in_file(operator.full_name)] = operator
                continue
            number = self._counted.get(match["base"], 0)
            self._counted[match["base"]] = number + 1
            result[f"{match['base']}-op{number}"] = operator
        return result


def _split(body: str) -> tuple[list[str], str]:
    """The arguments up to the bracket that closes them, and what follows."""
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
    """Letters outside of quotes, with the depth of brackets after them."""
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
