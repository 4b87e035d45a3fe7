"""Templates: what is known of a tapped call while its graph is compiled.

A template is one side (inputs, outputs) of the calls of a Cell: JSON text with gaps for the texts of the tensors.
`Describe` makes it: an operator that MindSpore evaluates during compilation. The compiler passes it the types of its
arguments and replaces it by its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol, Union

from mindspore._c_expression import typing as kinds
from mindspore.ops.primitive import PrimitiveWithInfer

from msprobe.collect.records.values import Values, quoted
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import dtypes

Member = tuple[Any, Any, Any]  # value (None if it is known only at run time), type, shape
_VALUES = Values(TensorTexts(0, None))


@dataclass(frozen=True)
class Slot:
    """One tensor of a template. If its values cannot be read, `row` is None and `text` is the complete text."""

    path: str
    row: Optional[dtypes.Dtype]
    shape: tuple[int, ...]
    text: str


@dataclass
class CallTemplate:
    number: int
    title: str
    side: str
    slots: list[Slot] = field(default_factory=list)
    parts: list[Union[str, int]] = field(default_factory=list)
    dictionary_with_none: bool = False

    @property
    def shown(self) -> int:
        """The number of tensors whose values the taps pass on."""
        return sum(slot.row is not None for slot in self.slots)

    def fill(self, texts: dict[int, str]) -> str:
        """The JSON text of this side; null for a tensor without a text."""
        return "".join(part if isinstance(part, str) else self.text_of(part, texts) for part in self.parts)

    def text_of(self, slot: int, texts: dict[int, str]) -> str:
        return self.slots[slot].text or texts.get(slot, "null")


class Places(Protocol):
    """Makes the constant that tells a tap which tensor it has. It is never an int: 0 means "no tap"."""

    def __call__(self, template: CallTemplate, slot: int) -> Any: ...


class CallTemplates:
    """All templates by number. A graph that is compiled for several shapes has templates for each."""

    def __init__(self) -> None:
        self._made: list[CallTemplate] = []

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, number: int) -> CallTemplate:
        return self._made[number]

    @property
    def titles(self) -> set[str]:
        return {template.title for template in self._made}

    def new(self, title: str, side: str) -> CallTemplate:
        template = CallTemplate(len(self._made), title, side)
        self._made.append(template)
        return template

    def find_without_tensors(self, title: str, side: str) -> Optional[CallTemplate]:
        """The newest template of a side that has no tensors. No tap runs there that could name the template."""
        for template in reversed(self._made):
            if (template.title, template.side, template.shown) == (title, side, 0):
                return template
        return None

    def of_parameter(self, title: str, name: str, parameter: Any) -> CallTemplate:
        """A template for the gradient of one parameter."""
        template = self.new(title, "parameters_grad")
        _TemplateWriter(template, lambda template, slot: slot).write(
            None, kinds.TensorType(parameter.dtype), parameter.shape, name
        )
        return template


class Describe(PrimitiveWithInfer):
    """Makes a template of one side of a call and returns the places of its tensors.

    The result is (whether the side can be rebuilt from its members, the places in the same structure).
    """

    def __init__(
        self, templates: CallTemplates, place: Places, title: str, side: str, names: Sequence[str] = ()
    ) -> None:
        super().__init__("msprobe_describe")
        self.set_const_prim(True)
        self.add_prim_attr("msprobe", f"{title} {side}")  # without it MindSpore reuses the result for another Cell
        self._templates = templates
        self._place = place
        self._title = title
        self._side = side
        self._names = names

    def __infer__(self, given: dict[str, Any]) -> dict[str, Any]:
        template = self._templates.new(self._title, self._side)
        writer = _TemplateWriter(template, self._place)
        value, kind, shape = given["value"], given["dtype"], given["shape"]
        if self._names:
            members = _members(value, kind, shape)
            places = tuple(writer.write_mapping(list(zip(self._names, members)), ""))
        elif self._side == "input":
            args, kwargs = _members(value, kind, shape)
            template.parts.append('"input_args": ')
            first = writer.write(*args, "")
            template.parts.append(', "input_kwargs": ')
            places = (first, writer.write(*kwargs, ""))
        else:
            (result,) = _members(value, kind, shape)
            is_tuple = isinstance(result[1], tuple)
            template.parts.append('"output": ')
            places = (writer.write(*result, ""),) if is_tuple else (writer.write_list([result], "")[0],)
        return {"dtype": None, "shape": None, "value": (not template.dictionary_with_none, places)}


class _TemplateWriter:
    """Writes one template. Each method returns the places of what it wrote."""

    def __init__(self, template: CallTemplate, place: Places) -> None:
        self._template = template
        self._place = place

    def write(self, value: Any, kind: Any, shape: Any, path: str) -> Any:
        parts = self._template.parts
        if isinstance(value, dict):
            items = list(zip(value, _members(list(value.values()), kind, shape)))
            return dict(zip(value, self.write_mapping(items, path)))
        if isinstance(kind, (tuple, list)):
            return type(kind)(self.write_list(_members(value, kind, shape), path))
        if isinstance(kind, kinds.TensorType):
            return self._tensor(kind, shape, path)
        if kind is not None and value is None:
            parts.append(f'{{"type": {quoted(str(kind))}}}')  # a number that is known only at run time
        else:
            parts.append(_VALUES.value(value, ""))
        return 0

    def write_list(self, members: list[Member], path: str) -> list[Any]:
        parts = self._template.parts
        places = []
        parts.append("[")
        for number, member in enumerate(members):
            if number:
                parts.append(", ")
            value, kind, shape = member
            places.append(self.write(value, kind, shape, _join(path, number)))
        parts.append("]")
        return places

    def write_mapping(self, items: list[tuple[Any, Member]], path: str) -> list[Any]:
        parts = self._template.parts
        places = []
        parts.append("{")
        for number, (name, member) in enumerate(items):
            parts.append(f"{', ' if number else ''}{quoted(str(name))}: ")
            value, kind, shape = member
            if kind is None:
                self._template.dictionary_with_none = True
            places.append(self.write(value, kind, shape, _join(path, name)))
        parts.append("}")
        return places

    def _tensor(self, kind: Any, shape: Any, path: str) -> Any:
        template = self._template
        name = str(kind.element_type())
        row = dtypes.BY_MINDSPORE.get(name)
        sizes = tuple(shape)
        text = ""
        if row is None or any(size <= 0 for size in sizes):  # unknown type, empty, or a dynamic shape
            known = [size if size >= 0 else None for size in sizes]
            numbers = '"Max": null, "Min": null, "Mean": null, "Norm": null'
            text = f'{{"type": "mindspore.Tensor", "dtype": "{name}", "shape": {_json(known)}, {numbers}}}'
            row = None
        slot = len(template.slots)
        template.slots.append(Slot(path, row, sizes, text))
        template.parts.append(slot)
        return self._place(template, slot) if row is not None else 0


def _members(value: Any, kind: Any, shape: Any) -> list[Member]:
    values = value if value is not None else [None] * len(kind)
    return list(zip(values, kind, shape))


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _json(sizes: list[Optional[int]]) -> str:
    return "[" + ", ".join("null" if size is None else str(size) for size in sizes) + "]"
