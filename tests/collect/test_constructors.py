"""The line that makes a module, found in the class around it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe.collect.constructors import made_lines, note_constructors
from msprobe.collect.parallel import RunHeader
from msprobe.dump.stack_frames import Frame, parse_frame


class Leaf:
    def __init__(self, size: int = 1) -> None:
        self.size = size


class Other(Leaf):
    pass


class Adapter:
    """Stands in the place of a different module, as an adapter of peft does."""


def make(size: int) -> Leaf:
    return Other(size)


class Several(list[Any]):
    """Stands for a list of modules of a framework."""


class Base:
    def __init__(self) -> None:
        self.inherited = Leaf(3)


class Model(Base):
    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.plain = Leaf(2)
        self.long = Leaf(
            size=4,
        )
        self.first, self.second = Leaf(5), Leaf(6)
        self.typed: Leaf = Leaf(7)
        self.layers = Several([Leaf(8), Leaf(9)])
        if wide:
            self.chosen: Any = Leaf(10)
        else:
            self.chosen = Other(11)
        if wide:
            self.unclear = Leaf(12)
        else:
            self.unclear = Leaf(13)
        setattr(self, "hid" + "den", Leaf(14))
        if self.plain == self.long:
            pass
        self.build()
        given = Leaf(16)
        self.given = given
        self.made = make(16)
        self.adapted = Leaf(17)
        vars(self)["adapted"] = Adapter()

    def build(self) -> None:
        self.later = Leaf(15)


def named(model: Any) -> Iterator[tuple[str, Any]]:
    for name, one in vars(model).items():
        yield f"Module.{name}.{type(one).__name__}", one
        if isinstance(one, Several):
            for number, each in enumerate(one):
                yield f"Module.{name}.{number}.{type(each).__name__}", each


def found() -> dict[str, Frame]:
    model = Model()
    parsed = {name: parse_frame(text) for name, text in made_lines([model], "Module", named(model)).items()}
    return {name: frame for name, frame in parsed.items() if frame is not None}


TEXTS = {
    "Module.inherited.Leaf": "self.inherited = Leaf(3)",
    "Module.plain.Leaf": "self.plain = Leaf(2)",
    "Module.long.Leaf": "self.long = Leaf(size=4)",
    "Module.first.Leaf": "self.first, self.second = Leaf(5), Leaf(6)",
    "Module.second.Leaf": "self.first, self.second = Leaf(5), Leaf(6)",
    "Module.typed.Leaf": "self.typed: Leaf = Leaf(7)",
    "Module.layers.Several": "self.layers = Several([Leaf(8), Leaf(9)])",
    "Module.layers.*.Leaf": "self.layers = Several([Leaf(8), Leaf(9)])",
    "Module.chosen.Other": "self.chosen = Other(11)",
    "Module.later.Leaf": "self.later = Leaf(15)",
    "Module.made.Other": "self.made = make(16)",
}


def test_each_module_has_its_line_and_only_if_it_is_sure() -> None:
    frames = found()
    assert {name: frame.text for name, frame in frames.items()} == TEXTS
    assert {frame.file for frame in frames.values()} == {__file__}
    lines = Path(__file__).read_text().splitlines()
    assert all(lines[frame.line - 1].strip() and frame.text.startswith(lines[frame.line - 1].strip())
               for frame in frames.values())  # fmt: skip
    assert frames["Module.later.Leaf"].function == "build"


def test_several_models_have_numbers() -> None:
    models = [Model(), Base()]
    titled = [("Module.0.plain.Leaf", models[0].plain), ("Module.1.inherited.Leaf", models[1].inherited)]  # type: ignore[attr-defined]
    lines = made_lines(models, "Module", titled)
    assert [text.rpartition("\n ")[2] for text in lines.values()] == [
        "self.plain = Leaf(2)",
        "self.inherited = Leaf(3)",
    ]


def test_a_failure_stays_here() -> None:
    written: list[Any] = []
    faults: list[str] = []

    def broken() -> Iterator[tuple[str, Any]]:
        raise RuntimeError("no names")
        yield "", None

    fault: Callable[[str, str], None] = lambda place, trace: faults.append(trace)  # noqa: E731
    note_constructors(RunHeader(written.append), [Model()], "Module", broken(), fault)
    assert not written
    assert "no names" in faults[0]


@pytest.mark.parametrize("source", ["class Made:\n    def __init__(self):\n        self.x = 1\n"])
def test_a_class_without_a_file_has_no_lines(source: str) -> None:
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec(source, space)
    assert made_lines([space["Made"]()], "Module", [("Module.x.Leaf", Leaf())]) == {}


SCRIPT = """
import sys
from msprobe.collect.constructors import made_lines

class Net:
    pass

def adapted(net, size):
    return net

def main():
    local = Net()
    print(made_lines([local], "Module", []))

net = Net()
net = adapted(
    net,
    size=3,
)
print(made_lines([net], "Module", []))
net = None
main()
"""


def test_a_model_is_made_where_the_script_binds_its_name(tmp_path: Path) -> None:
    """The last statement that has run; a model of a function has none where several lines call its class."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    bound, local = map(ast.literal_eval, done.stdout.splitlines())
    frame = parse_frame(bound["Module"])
    assert frame is not None
    assert (frame.line, frame.function, frame.text) == (16, "<module>", "net = adapted(net, size=3)")
    assert local == {}
