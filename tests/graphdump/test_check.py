"""Seeded faults are found, each at its place and only there; a clean training run has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import real_dumps

from msprobe.graphdump import GraphDump
from msprobe.graphdump.check import Limits, check

NAME = "Relu.Default_Relu-op0.0.0.{time}.{io}.{slot}.DefaultFormat.Float32.npy"


def found(dump: GraphDump, iteration: int, **limits: object) -> dict[str, set[tuple[str, str]]]:
    """Kind to (line of code or parameter's name, role)."""
    result: dict[str, set[tuple[str, str]]] = {}
    for finding in check(dump, Limits(**limits)).findings:
        if finding.tensor.iteration == iteration:
            line = finding.operator.line
            text = line.text.split(" =")[0] if line else finding.operator.name
            result.setdefault(finding.kind, set()).add((text, finding.role))
    return result


def test_every_seeded_fault_is_found_at_its_line_and_nothing_else():
    dump = GraphDump(real_dumps.faulty())
    assert found(dump, 0) == {
        "overflow": {("burst", "producer"), ("later", "propagator")},
        "too large": {("large", "")},
        "too small": {("small", "")},
        "all zero": {("nothing", "")},
    }
    assert found(dump, 1)["unchanged"] == {("nothing", ""), ("steady", ""), ("scale", "")}


def test_a_clean_training_run_has_no_findings():
    checked = check(GraphDump(real_dumps.alexnet()))
    assert checked.findings == ()
    assert checked.judged > 150


def test_thresholds_decide():
    dump = GraphDump(real_dumps.faulty())
    relaxed = found(dump, 1, too_large=1e9, too_small=1e-13)
    assert "too large" not in relaxed
    assert "too small" not in relaxed
    assert {text for text, _ in found(dump, 1, range_of="float16")["out of range"]} == {"large"}
    assert {text for text, _ in found(dump, 1, unchanged=0.5)["unchanged"]} > {"nothing", "steady", "scale"}


def save(directory: Path, iteration: int, **tensors: object) -> None:
    place = directory / "rank_0" / "Net" / "0" / str(iteration)
    place.mkdir(parents=True, exist_ok=True)
    for order, (label, values) in enumerate(tensors.items()):
        io, slot = label.split("_")
        np.save(place / NAME.format(time=100 + order, io=io, slot=slot), np.float32(values))


def role(directory: Path) -> str:
    (finding,) = check(GraphDump(directory), kinds=["overflow"]).findings
    return finding.role


def test_without_a_graph_the_dumped_inputs_decide_who_made_an_overflow(tmp_path):
    save(tmp_path / "made", 0, input_0=[1, 2], output_0=[1, np.inf])
    assert role(tmp_path / "made") == "producer"
    save(tmp_path / "passed", 0, input_0=[1, np.nan], output_0=[1, np.nan])
    assert role(tmp_path / "passed") == "propagator"
    save(tmp_path / "unknown", 0, output_0=[1, -np.inf])
    assert role(tmp_path / "unknown") == "unknown"
    save(tmp_path / "inputs", 0, input_0=[1, -np.inf])
    assert role(tmp_path / "inputs") == "unknown"


def test_an_input_without_any_dump_leaves_the_producer_unknown(tmp_path):
    save(tmp_path, 0, output_0=[1, np.inf])
    graphs = tmp_path / "rank_0" / "graphs"
    graphs.mkdir()
    (graphs / "ms_output_trace_code_graph_0.ir").write_text(
        "  %0(a) = MakeTuple(%para1_x)\n      # Fullname with scope: (Default/MakeTuple-op0)\n"
        "  %1(b) = Relu(%0, I64(1))\n      # Fullname with scope: (Default/Relu-op0)\n"
    )
    dump = GraphDump(tmp_path)
    (relu,) = dump.select_nodes(type="Relu")
    assert dump.producers(relu) == ((0, "%Default/MakeTuple-op0"), (1, "I64(1)"))
    assert role(tmp_path) == "unknown"


def test_statistics_alone_are_enough(tmp_path):
    header = (
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
        "Max Value,Min Value,L2Norm Value\n"
    )
    for iteration in (0, 1):
        place = tmp_path / "rank_0" / "Net" / "0" / str(iteration)
        place.mkdir(parents=True)
        rows = [
            f'A,A-op0,0,0,1,output,0,8,Float32,"(2,)",{"nan" if iteration else 1},0,1',
            'B,B-op0,0,0,2,output,0,8,Float32,"(2,)",0,0,0',
            'C,C-op0,0,0,3,output,0,8,Float32,"(2,)",2,1,2.2360679',
            'D,D-op0,0,0,4,output,0,8,Int32,"(2,)",0,0,0',
        ]
        (place / "statistic.csv").write_text(header + "\n".join(rows))
    dump = GraphDump(tmp_path)
    assert [(f.kind, f.operator.name, f.tensor.iteration) for f in check(dump).findings] == [
        ("all zero", "B-op0", 0),
        ("overflow", "A-op0", 1),
        ("all zero", "B-op0", 1),
        ("unchanged", "B-op0", 1),
        ("unchanged", "C-op0", 1),
    ]


def test_a_norm_alone_can_show_an_overflow_and_a_mean_alone_cannot(tmp_path):
    place = tmp_path / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    header = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Avg Value,L2Norm Value\n"
    rows = ['A,A-op0,0,0,1,output,0,8,Float32,"(2,)",1,nan', 'B,B-op0,0,0,2,output,0,8,Float32,"(2,)",1,']
    (place / "statistic.csv").write_text(header + "\n".join(rows))
    checked = check(GraphDump(tmp_path))
    assert [(f.kind, f.operator.name, f.detail) for f in checked.findings] == [
        ("overflow", "A-op0", "mean 1, norm nan")
    ]
    assert checked.judged == 1


def test_a_constant_may_be_zero(tmp_path):
    place = tmp_path / "rank_0" / "Net" / "0" / "constants"
    place.mkdir(parents=True)
    np.save(place / "Parameter.data-1.0.0.5.output.0.DefaultFormat.Float32.npy", np.zeros(3, np.float32))
    assert check(GraphDump(tmp_path)).findings == ()


def test_a_value_beyond_the_devices_type_is_out_of_range(tmp_path):
    """The network says float32, the device computes in float16: 70000 cannot have been there."""
    save(tmp_path, 0, output_0=[1, 70000])
    graphs = tmp_path / "rank_0" / "graphs"
    graphs.mkdir()
    (graphs / "ms_output_trace_code_graph_0.ir").write_text(
        "  %0(a) = Relu(%para1_x)\n"
        "      : (<Tensor[Float32], (2)>) -> (<Tensor[Float32], (2)>)\n"
        "      : (<Float16xNC1HWC0[const vector]{2}>) -> (<Float16xNC1HWC0[const vector]{2}>)\n"
        "      # Fullname with scope: (Default/Relu-op0)\n"
    )
    (finding,) = check(GraphDump(tmp_path)).findings
    assert (finding.kind, finding.detail) == ("out of range", "max |x| 70000 > 65504, the largest float16")


@pytest.mark.parametrize(("share", "kinds"), [(1.0, []), (0.5, ["all zero"])])
def test_the_share_of_zeros_is_a_threshold(tmp_path, share, kinds):
    save(tmp_path, 0, output_0=[0, 0, 0, 1])
    assert [finding.kind for finding in check(GraphDump(tmp_path), Limits(zero_share=share)).findings] == kinds


def test_single_elements_may_stay_as_they_are(tmp_path):
    for iteration in (0, 1):
        save(tmp_path, iteration, output_0=[0.01])
    assert check(GraphDump(tmp_path)).findings == ()
