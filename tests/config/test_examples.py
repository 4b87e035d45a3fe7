"""The field's own configurations load: every example of the configuration guide, word for word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from msprobe.config import load

DATA = Path(__file__).parent / "data"
TRAILING_COMMA = "seed003_11_mindspore_dynamic_tensor.json"
PREHEAT = (
    "free_benchmark.preheat_step has no effect while free_benchmark.if_preheat is false",
    "free_benchmark.max_sample has no effect while free_benchmark.if_preheat is false",
)
FILE_FORMAT = ("tensor.file_format has no effect on PyTorch at level L2: it acts on MindSpore at level L2",)
WARNINGS = {
    "seed003_01_pytorch_free_benchmark.json": PREHEAT,
    "seed003_13_pytorch_l2_forward.json": FILE_FORMAT,
    "seed003_14_pytorch_l2_backward.json": FILE_FORMAT,
}
EXAMPLES = sorted(path.name for path in DATA.glob("seed003_[0-9]*.json"))
FRAGMENTS = json.loads((DATA / "seed003_fragments.json").read_text(encoding="utf-8"))
CASES = [(task, member) for task, members in FRAGMENTS.items() for member in members]


def mode_of(name: str) -> tuple[str, bool | None]:
    if "pytorch" in name:
        return "pytorch", None
    return "mindspore", "_graph_" in name


def test_all_fourteen_examples_are_here() -> None:
    assert len(EXAMPLES) == 14


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != TRAILING_COMMA])
def test_an_example_loads_and_says_what_has_no_effect(name: str) -> None:
    framework, graph_mode = mode_of(name)
    settings = load(framework, DATA / name, graph_mode=graph_mode)
    assert settings.dump_path == Path("/home/data_dump")
    assert settings.task in name or "_l2_" in name
    assert settings.warnings == WARNINGS.get(name, ())


def test_the_example_with_a_trailing_comma_is_accepted_with_a_warning() -> None:
    settings = load("mindspore", DATA / TRAILING_COMMA, graph_mode=False)
    (warning,) = settings.warnings
    assert warning.endswith("line 11, column 29: a comma after the last item is ignored; remove it")
    assert settings.task == "tensor"


def test_the_backward_example_keeps_its_gradient_file() -> None:
    settings = load("pytorch", DATA / "seed003_14_pytorch_l2_backward.json")
    assert settings.section.backward_input == (Path("Tensor.__mul__.10.backward.input.0.pt").absolute(),)
    assert settings.acl_config == Path("acl_config.json").absolute()


def test_the_forward_example_has_no_gradient_file() -> None:
    assert load("pytorch", DATA / "seed003_13_pytorch_l2_forward.json").section.backward_input == ()


@pytest.mark.parametrize(("task", "member"), CASES, ids=[f"{task} {json.dumps(member)}" for task, member in CASES])
def test_each_setting_that_the_tables_give_as_an_example_loads(tmp_path: Path, task: str, member: Any) -> None:
    config = {"dump_path": "/home/data_dump"}
    config.update(member if task == "common" else {"task": task, task: member})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    load("pytorch", file, graph_mode=None)
