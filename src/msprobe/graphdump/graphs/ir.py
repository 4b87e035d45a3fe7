"""The final execution graph: operators, their inputs, shapes and source lines.

A `Graph` comes from the .ir text (this module) or from the .pb file (graph_pb.py). The parser knows three forms of the
text: that of r1.5, that of the 2.x documentation, and that of 2.10. It skips all other lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Callable, Optional, Union

Shape = tuple[int, ...]

# Nodes that only pass values on: they run no kernel, and a search for producers skips them.
TRANSPARENT = frozenset({"Depend", "Load", "TupleGetItem", "UpdateState"})
NOT_EXECUTED = TRANSPARENT | {"MakeTuple", "Return", "Partial", "Switch", "SwitchLayer"}

_BLOCK = re.compile(r"(async\s+def|def|class|if|elif|else|for|while|with|try|except|finally|@)\b|@")


@dataclass(frozen=True)
class SourceLine:
    """One frame of the stack of an operator. The statement covers the lines `first` to `last`."""

    file: str
    first: int
    last: int
    text: str

    @property
    def is_installed(self) -> bool:
        """Whether this is code of an installed package, such as MindSpore."""
        return "/site-packages/" in self.file or "/dist-packages/" in self.file

    def is_at(self, file: str, line: int) -> bool:
        """Whether this statement covers `line`. A block (def, if, for) covers only its first line."""
        if self.file != file and not self.file.endswith("/" + file):
            return False
        last = self.first if _BLOCK.match(self.text) else self.last
        return self.first <= line <= last


@dataclass(frozen=True)
class Spec:
    """The declared type of one input or output. `shape` is None if it is not a tensor. `format` is the format on the
    device, empty for the host."""

    dtype: str
    shape: Optional[Shape]
    format: str = ""

    def __str__(self) -> str:
        shape = "" if self.shape is None else f"({', '.join(map(str, self.shape))})"
        return " ".join(filter(None, (self.dtype, self.format, shape)))


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of an operator on the host and, if the graph has them, on the device."""

    host_inputs: tuple[Spec, ...] = ()
    host_outputs: tuple[Spec, ...] = ()
    device_inputs: tuple[Spec, ...] = ()
    device_outputs: tuple[Spec, ...] = ()


@dataclass(frozen=True)
class Node:
    """One operator. `inputs` are keys of other nodes, `%name` of parameters, or the text of constants.

    `declared` is the signature, or its lines of text. A large graph has thousands of nodes; the text is parsed only
    for those that need it.
    """

    key: str
    type: str
    full_name: str
    inputs: tuple[str, ...]
    declared: Union[Signature, tuple[str, ...]] = ()
    lines: tuple[SourceLine, ...] = ()
    backward: bool = False

    @cached_property
    def signature(self) -> Signature:
        return self.declared if isinstance(self.declared, Signature) else _signature(self.declared)


@dataclass(frozen=True)
class Graph:
    """The nodes in the order of the file, which is topological."""

    nodes: tuple[Node, ...]

    @cached_property
    def by_key(self) -> dict[str, Node]:
        return {node.key: node for node in self.nodes}

    def origin(self, key: str) -> str:
        """The source of the value `key`, past nodes that run no kernel: the key of a node, or the text of a
        parameter or constant."""
        passed: set[str] = set()
        while key not in passed:
            passed.add(key)
            node = self.by_key.get(key)
            if node is None or node.type not in TRANSPARENT or not node.inputs:
                break
            key = node.inputs[0]
        return key

    def producer(self, key: str) -> Optional[Node]:
        """The node whose kernel produces the value `key`, or None."""
        node = self.by_key.get(self.origin(key))
        return node if node is not None and node.type not in NOT_EXECUTED else None

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """Node key to the executed nodes that use its value."""
        found: dict[str, dict[str, Node]] = {}
        for node in self.nodes:
            if node.type in NOT_EXECUTED:
                continue
            for key in node.inputs:
                source = self.producer(key)
                if source is not None:
                    found.setdefault(source.key, {})[node.key] = node
        return {key: tuple(nodes.values()) for key, nodes in found.items()}


_ENDS_A_NODE = re.compile(r"%\d+\(|Return\(|\}|subgraph @")
_NESTED = re.compile(r"[(\[{\"]")
_HEADER = re.compile(r"\s*%(?P<key>\d+)\([^=]*\)\s*=\s*(?P<type>[^\s(]+)\(")
_NAME = re.compile(r"\s*(?:#|:)\s*(?:Fullname with scope:|full_name_with_scope:)?\s*\((?P<name>[^<>()]+/[^<>()]+)\)\s*")
_LINE = re.compile(
    r"\s*#\s*(?:- )?In file (?P<file>.+?)"
    r"(?:\((?P<old>\d{1,9})\)|:(?P<first>\d{1,9})(?:~(?P<last>\d{1,9}))?(?:, \d+~\d+)?)"
    r"/(?P<text>.*?)/?\s*"
)
_DEVICE = re.compile(r"<(?P<dtype>\w+?)x(?P<format>\w+)\[const vector\][\[{](?P<shape>[\d, -]*)[\]}]>")
_SHAPE = re.compile(r"\(([\d, -]*)\)|\[const vector\]\[([\d, -]*)\]")


@dataclass
class _UnfinishedNode:
    """A node whose lines are still being read."""

    key: str
    type: str
    inputs: tuple[str, ...]
    full_name: str = ""
    signatures: list[str] = field(default_factory=list)
    lines: list[SourceLine] = field(default_factory=list)
    backward: bool = False

    def finish(self) -> Node:
        backward = self.backward or self.full_name.startswith("Gradients/")
        texts, lines = tuple(self.signatures), tuple(self.lines)
        return Node(self.key, self.type, self.full_name, self.inputs, texts, lines, backward)


def _signature(texts: tuple[str, ...]) -> Signature:
    """The signature from the first line for the host and the last line for the device."""
    host: tuple[tuple[Spec, ...], tuple[Spec, ...]] = ((), ())
    device: tuple[tuple[Spec, ...], tuple[Spec, ...]] = ((), ())
    for text in texts:
        if _DEVICE.search(text):
            device = _sides(text, _device_specs)
        elif host == ((), ()):
            host = _sides(text, _host_specs)
    return Signature(*host, *device)


def parse_text(text: str) -> Graph:
    """The graph in the text of an .ir file. Each subgraph numbers its keys from the start; from the second subgraph on,
    our keys begin with its number."""
    nodes: list[Node] = []
    node: Optional[_UnfinishedNode] = None
    subgraphs = 0
    for line in text.splitlines():
        stripped = line.lstrip()
        if _ENDS_A_NODE.match(stripped):
            if node is not None:
                nodes.append(node.finish())
            subgraphs += stripped.startswith("subgraph @")
            header = _HEADER.match(stripped)
            node = None if header is None else _open(header, stripped, f"{subgraphs}:" if subgraphs > 1 else "")
        elif node is not None:
            _add(node, stripped)
    if node is not None:
        nodes.append(node.finish())
    return Graph(tuple(nodes))


def _open(header: re.Match[str], line: str, prefix: str) -> _UnfinishedNode:
    kind = header["type"]
    kind = kind[len("PrimFunc_") :] if kind.startswith("PrimFunc_") else kind
    inputs = tuple(_key(part, prefix) for part in _arguments(line, header.end()))
    return _UnfinishedNode(prefix + header["key"], kind, inputs)


def _add(node: _UnfinishedNode, line: str) -> None:
    if line.startswith("#") and "In file " in line:
        source = source_line(line)
        if source is not None:
            node.lines.append(source)
    elif line.startswith(": (<"):
        node.signatures.append(line)
    elif line.startswith("# Corresponding forward"):
        node.backward = True
    elif not node.full_name and line[:1] in ("#", ":"):
        name = _NAME.fullmatch(line)
        if name is not None:
            node.full_name = name["name"]


@lru_cache(maxsize=1 << 16)
def source_line(text: str) -> Optional[SourceLine]:
    """Parses `# In file F(175)/ code/` (older) or `# In file F:175~176, 4~20/ code/`; None for other text."""
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    first = int(match["old"] or match["first"])
    return SourceLine(match["file"], first, int(match["last"] or first), match["text"].strip())


def _key(argument: str, prefix: str) -> str:
    """`%12` to `12`, `%para9_conv3.weight` to `%conv3.weight`; constants stay as they are."""
    if argument.startswith("%para"):
        return re.sub(r"^%para\d+_", "%", argument)
    if argument.startswith("%") and argument[1:].isdecimal():
        return prefix + argument[1:]
    return argument


def _arguments(line: str, start: int) -> Iterator[str]:
    """The comma-separated arguments from `start` to the closing bracket."""
    simple = line[start : line.find(")", start)]
    if not _NESTED.search(simple) and line.find(")", start) > start:
        yield from (part.strip() for part in simple.split(","))
        return
    depth, begin, quoted = 0, start, False
    for position in range(start, len(line)):
        letter = line[position]
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "([{":
            depth += 1
        elif letter in ")]}" and depth:
            depth -= 1
        elif letter in ",)" and depth == 0:
            argument = line[begin:position].strip()
            if argument:
                yield argument
            if letter == ")":
                return
            begin = position + 1


def _sides(text: str, parse: Callable[[str], Iterator[Spec]]) -> tuple[tuple[Spec, ...], tuple[Spec, ...]]:
    """The two sides of the last arrow. r1.5 also writes arrows between inputs: all parts but the last are inputs."""
    *inputs, outputs = text.split(" -> ")
    if not inputs:
        return (), ()
    return tuple(spec for side in inputs for spec in parse(side)), tuple(parse(outputs))


def _numbers(text: str) -> Shape:
    return tuple(int(number) for number in re.findall(r"-?\d{1,18}", text))


def _device_specs(side: str) -> Iterator[Spec]:
    for match in _DEVICE.finditer(side):
        yield Spec(match["dtype"], _numbers(match["shape"]), match["format"])


def _host_specs(side: str) -> Iterator[Spec]:
    """Parses `<Tensor[Float32], (4, 3)>`. A tuple of tensors (`Tuple[Tensor[Float32]*2]`) gives one spec each."""
    for item in re.findall(r"<(.*?)>(?=, <|\)|$)", side):
        found = re.findall(r"Tensor\[(\w+)\](?:\*(\d{1,4}))?", item)
        dtypes = [dtype for dtype, times in found for _ in range(int(times or 1))]
        if not dtypes:
            yield Spec(item.split(",")[0], None)
            continue
        shapes = [_numbers(round_ or square) for round_, square in _SHAPE.findall(item)]
        for index, dtype in enumerate(dtypes):
            yield Spec(dtype, shapes[index] if index < len(shapes) else None)
