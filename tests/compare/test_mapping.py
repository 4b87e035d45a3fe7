"""Mapping files in the field's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written import call, scalar, tensor, write_dump

from msprobe.compare import compare
from msprobe.compare.align.mapping import load_mappings
from msprobe.dump.errors import DumpError


def pairs(tmp_path: Path, target: dict[str, Any], golden: dict[str, Any], **files: str) -> dict[str, str]:
    """Row names of the target by those of the golden run that they were compared with, under mapping files."""
    write_dump(tmp_path / "target", target, framework="mindspore")
    write_dump(tmp_path / "golden", golden)
    written: dict[str, Any] = {}
    for kind, text in files.items():
        path = tmp_path / f"{kind}.yaml"
        path.write_text(text)
        written[kind] = path if kind == "data" else str(path)
    result = compare(tmp_path / "target", tmp_path / "golden", mapping=load_mappings(**written))
    return {
        row.target_name: row.golden_name for _, row in result.rows() if row.target_name and row.golden_name
    }  # fmt: skip


def test_an_api_mapping_moves_arguments_and_outputs(tmp_path: Path) -> None:
    target = {"Functional.odd.0.forward": call(tensor(1.0), scalar(3), tensor(2.0, [4]), output=tensor(5.0))}
    golden = {"Torch.strange.0.forward": call(tensor(2.0, [4]), tensor(1.0), output=tensor(5.0))}
    text = "- ms_api: Functional.odd\n  pt_api: Torch.strange\n  ms_args: [0, 2]\n  pt_args: [1, 0]\n"
    found = pairs(tmp_path, target, golden, api=text + "  ms_outputs: [0]\n  pt_outputs: [0]\n")
    assert found == {
        "Functional.odd.0.forward.input.0": "Torch.strange.0.forward.input.1",
        "Functional.odd.0.forward.input.2": "Torch.strange.0.forward.input.0",
        "Functional.odd.0.forward.output.0": "Torch.strange.0.forward.output.0",
    }


def test_one_api_mapping_a_document_as_the_field_writes_them(tmp_path: Path) -> None:
    text = "ms_api: A.x\npt_api: B.x\n---\nms_api: A.y\npt_api: B.y\nms_args:\n- 0\npt_args:\n- 0\n"
    (tmp_path / "api.yaml").write_text(text)
    mapping = load_mappings(api=str(tmp_path / "api.yaml"))
    assert mapping is not None
    assert {ours: rule.golden for ours, rule in mapping.apis.items()} == {"A.x": "B.x", "A.y": "B.y"}


def test_a_cell_mapping_renames_modules_and_their_gradients(tmp_path: Path) -> None:
    target = {
        "Cell.fc2.Dense.forward.0": call(tensor(1.0), output=tensor(2.0)),
        "Cell.fc2.Dense.parameters_grad": {"weight": [tensor(3.0)]},
    }
    golden = {
        "Module.head.Linear.forward.0": call(tensor(1.0), output=tensor(2.0)),
        "Module.head.Linear.parameters_grad": {"weight": [tensor(3.0)]},
    }
    found = pairs(tmp_path, target, golden, cell="fc2.Dense: head.Linear\n")
    assert found["Cell.fc2.Dense.forward.0.output.0"] == "Module.head.Linear.forward.0.output.0"
    assert found["Cell.fc2.Dense.parameters_grad.weight"] == "Module.head.Linear.parameters_grad.weight"


def test_a_data_mapping_pairs_single_items(tmp_path: Path) -> None:
    target = {"Functional.flash.4.forward": call(tensor(1.0), tensor(2.0), output=tensor(3.0))}
    golden = {"NPU.fusion.7.forward": call(tensor(2.0), tensor(1.0), output=tensor(3.0))}
    text = (
        "Functional.flash.4.forward.input.0: NPU.fusion.7.forward.input.1\n"
        "Functional.flash.4.forward.input.1: NPU.fusion.7.forward.input.0\n"
        "Functional.flash.4.forward.output.0: NPU.fusion.7.forward.output.0\n"
    )
    found = pairs(tmp_path, target, golden, data=text)
    assert found["Functional.flash.4.forward.input.0"] == "NPU.fusion.7.forward.input.1"
    assert found["Functional.flash.4.forward.input.1"] == "NPU.fusion.7.forward.input.0"


def test_a_layer_mapping_goes_by_the_class_that_holds_the_attribute(tmp_path: Path) -> None:
    one = call(tensor(1.0), output=tensor(2.0))
    two = call(tensor(3.0), output=tensor(4.0))
    target = {
        "Cell.network.layers.0.proj.Dense.forward.0": one,
        "Cell.network.layers.0.Attention.forward.0": one,
        "Cell.network.head.proj.Dense.forward.0": two,
        "Cell.network.head.Head.forward.0": two,
    }
    golden = {
        "Module.module.layers.0.dense.Linear.forward.0": one,
        "Module.module.layers.0.Attention.forward.0": one,
        "Module.module.head.proj.Linear.forward.0": two,
        "Module.module.head.Head.forward.0": two,
    }
    text = "TopLayer:\n  network: module\nAttention:\n  proj: dense\n"
    found = pairs(tmp_path, target, golden, layer=text)
    dense = "Module.module.layers.0.dense.Linear.forward.0.output.0"
    assert found["Cell.network.layers.0.proj.Dense.forward.0.output.0"] == dense
    proj = "Module.module.head.proj.Linear.forward.0.output.0"
    assert found["Cell.network.head.proj.Dense.forward.0.output.0"] == proj


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("api", "- ms_api: A.x\n", "lacks ms_api or pt_api"),
        ("api", "- {ms_api: A, pt_api: B, ms_args: [0], pt_args: []}\n", "same length"),
        ("cell", "- a\n- b\n", "must be a mapping"),
        ("cell", "a: [unclosed\n", "is not YAML"),
        ("layer", "TopLayer: 3\n", "must be a mapping"),
        ("cell", "!!python/object/apply:os.system ['true']\n", "is not YAML"),
    ],
)
def test_a_wrong_mapping_says_what_is_wrong(tmp_path: Path, kind: str, text: str, message: str) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    with pytest.raises(DumpError, match=message):
        load_mappings(**{kind: str(path)})  # type: ignore[arg-type]
