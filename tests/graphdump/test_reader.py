"""The reader on dumps that MindSpore wrote, and on trees of the layouts that only Ascend writes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import real_dumps

from msprobe.dump.errors import DumpError
from msprobe.graphdump import GraphDump

NAME = "Add.Default_Add-op{n}.0.0.{time}.output.0.DefaultFormat.Float32.npy"


def copy_of(dump: Path, target: Path) -> Path:
    """A dump that can be changed: the framework's files are read-only."""
    shutil.copytree(dump, target)
    for folder, _, files in os.walk(target):
        Path(folder).chmod(0o700)
        for name in files:
            Path(folder, name).chmod(0o600)
    return target


@pytest.mark.parametrize("make", [real_dumps.alexnet, real_dumps.branches, real_dumps.faulty])
def test_every_operator_has_its_own_files_as_the_data_flow_proves(make):
    """The proof needs no name: what an operator took in is, byte for byte, what its producer gave out."""
    dump = GraphDump(make())
    assert dump.notes == ()
    compared = 0
    for operator in dump.operators:
        for slot, source in dump.producers(operator):
            if isinstance(source, str) or not source.in_files:
                continue
            for tensor in dump.select_tensors([operator], io="input", slot=slot):
                given = dump.select_tensors([source], iteration=tensor.iteration, io="output")
                contents = [dump.value(output).tobytes() for output in given]
                assert not contents or dump.value(tensor).tobytes() in contents, (operator.name, slot)
                compared += bool(contents)
    assert compared >= 10
    unexplained = [one.in_files for one in dump.operators if one.node is None and one.type != "Parameter"]
    assert unexplained == []


def test_operators_with_swapped_numbers_are_matched():
    """In this dump the files' Mul-op0 is not the graph's Mul-op0, though both have a Mul-op0, -op1 and -op2."""
    dump = GraphDump(real_dumps.branches())
    first = {one.name: one.in_files for one in dump.operators if one.graph == 0 and one.type == "Mul"}
    assert first == {
        "Expand/_Muls/Mul-op0": "Expand__Muls_Mul-op2",
        "Expand/_Muls/Mul-op1": "Expand__Muls_Mul-op0",
        "Expand/_Muls/Mul-op2": "Expand__Muls_Mul-op1",
    }


def test_one_line_of_alexnet_has_its_forward_and_both_backward_operators():
    dump = GraphDump(real_dumps.alexnet())
    found = dump.select_nodes(line="x = self.conv3(x)")
    number = [
        place for place, text in enumerate(real_dumps.ALEXNET.read_text().splitlines(), 1) if "self.conv3(x)" in text
    ]
    assert found == dump.select_nodes(line=f"train_alexnet.py:{number[-1]}")
    assert [(one.type, one.node.backward) for one in found if one.node] == [
        ("Conv2D", False),
        ("Conv2DBackpropInput", True),
        ("Conv2DBackpropFilter", True),
    ]
    shapes = [dump.value(dump.select_tensors([one], iteration=1, io="output")[0]).shape for one in found]
    assert shapes == [(4, 48, 3, 3), (4, 32, 3, 3), (48, 32, 3, 3)]


def test_statistics_are_numpys_in_float64():
    dump = GraphDump(real_dumps.alexnet())
    for tensor in dump.select_tensors(iteration=0)[:40]:
        array, found = np.load(tensor.path), dump.statistics(tensor)
        if array.dtype == bool or array.size == 0:
            continue
        wide = array.astype(np.float64)
        assert (found.max, found.min, found.shape) == (wide.max(), wide.min(), array.shape)
        np.testing.assert_allclose(
            [found.mean, found.norm], [wide.mean(), np.sqrt((wide**2).sum())], rtol=1e-12, atol=1e-18
        )


def test_order_and_history_are_the_frameworks():
    dump = GraphDump(real_dumps.branches())
    assert dump.order(0, 2) == ("Expand/_Muls/Mul-op4",)
    assert dump.history(0, 0) == (0, 1)
    assert dump.history(0, 1) is None
    assert dump.order(7, 0) is None
    assert {one.name for one in dump.operators if not one.in_files} == {"Default/Sin-op0"}


def test_files_with_over_long_names_are_found_through_mapping_csv():
    dump = GraphDump(real_dumps.branches())
    (tanh,) = dump.select_nodes(type="tanh", name="inner-")
    files = [tensor.file for tensor in dump.select_tensors([tanh], iteration=0)]
    assert len(files) == 2
    assert all(name.split(".")[0].isdecimal() for name in files)


def test_bfloat16_is_readable():
    dump = GraphDump(real_dumps.faulty())
    (tensor,) = dump.select_tensors(iteration=1, io="output", slot=0, operators=dump.select_nodes(line="ms.bfloat16"))
    assert dump.value(tensor).dtype == ml_dtypes.bfloat16
    assert dump.value(tensor).astype(np.float32).tolist() == [1, 2, 3, 5]


def test_a_dump_of_one_chosen_operator_is_matched_as_in_the_whole_dump():
    whole = GraphDump(real_dumps.branches())
    part = GraphDump(real_dumps.branches("dump_mode=1", 'kernels=["Expand/_Muls/Mul-op0"]'))
    (operator,) = [one for one in part.operators if one.in_files and one.type == "Mul"]
    (same,) = [one for one in whole.operators if one.name == operator.name and one.graph == operator.graph]
    assert (operator.name, operator.in_files) == ("Expand/_Muls/Mul-op1", "Expand__Muls_Mul-op0")
    outputs = [
        dump.value(dump.select_tensors([one], iteration=1, io="output")[0])
        for dump, one in ((part, operator), (whole, same))
    ]
    assert outputs[0].tolist() == outputs[1].tolist()


def test_one_may_point_at_a_rank_or_at_an_iteration():
    whole = real_dumps.faulty()
    for path in (whole / "rank_0", whole / "rank_0" / "Faulty" / "0" / "1"):
        dump = GraphDump(path)
        assert dump.select_nodes(line="self.burst(scaled")[0].linked
        assert dump.notes == ()
    assert dump.iterations == (1,)


def test_without_text_the_pb_file_is_used(tmp_path):
    path = copy_of(real_dumps.faulty(), tmp_path / "dump")
    expected = [(one.name, one.in_files) for one in GraphDump(path).operators]
    (path / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.ir").unlink()
    dump = GraphDump(path)
    assert [(one.name, one.in_files) for one in dump.operators] == expected
    assert dump.select_nodes(line="self.burst(scaled")[0].type == "Mul"
    assert dump.notes == ()


def test_without_any_graph_names_remain_and_it_says_so(tmp_path):
    path = copy_of(real_dumps.faulty(), tmp_path / "dump")
    shutil.rmtree(path / "rank_0" / "graphs")
    dump = GraphDump(path)
    assert dump.select_nodes(type="TopK")[0].name == "Default_TopK-op0"
    assert dump.select_nodes(line="self.burst(scaled") == ()
    assert dump.notes == (
        "rank 0 has no graphs/ms_output_trace_code_graph_*.ir or .pb: its operators have only the names of their "
        "files, without source lines, shapes or neighbours",
    )


def test_a_damaged_graph_gives_a_note_and_the_rest_is_read(tmp_path):
    path = copy_of(real_dumps.faulty(), tmp_path / "dump")
    (path / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.ir").unlink()
    broken = path / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.pb"
    broken.write_bytes(b"\xff" * 50)
    dump = GraphDump(path)
    assert dump.select_nodes(type="TopK")[0].name == "Default_TopK-op0"
    (note,) = dump.notes
    assert note.startswith(f"cannot read {broken}: not a graph message")


STATISTICS = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
    "Max Value,Min Value,L2Norm Value,MD5\n"
    'Add,Default_Add-op0,0,0,100,output,0,16,Float32,"(2,2)",3,-1,4.5,aa\n'
    'Add,Default/Add-op1,0,0,200,output,0,16,Float32,"(2,2)",inf,-1,inf,bb\n'
    "Add,broken,0,0,200,output,none\n"
)


def test_statistic_csv_alone_is_a_dump(tmp_path):
    place = tmp_path / "rank_3" / "Net" / "0" / "5"
    place.mkdir(parents=True)
    (place / "statistic.csv").write_text(STATISTICS)
    dump = GraphDump(tmp_path)
    first, second = dump.tensors
    assert (first.rank, first.net, first.iteration, first.operator) == (3, "Net", 5, "Default_Add-op0")
    found = dump.statistics(first)
    assert (found.shape, found.max, found.min, found.norm, found.count) == ((2, 2), 3, -1, 4.5, None)
    assert (found.finite, dump.statistics(second).finite) == (True, False)
    assert second.operator == "Default_Add-op1"
    with pytest.raises(DumpError, match="has only statistics of"):
        dump.value(first)
    assert any("a row without Op Name, IO or Slot was skipped" in note for note in dump.notes)


def test_rows_and_files_of_the_same_tensor_are_one(tmp_path):
    place = tmp_path / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    (place / "statistic.csv").write_text(STATISTICS)
    np.save(place / NAME.format(n=0, time=100), np.float32([[3, -1], [0, 0]]))
    dump = GraphDump(tmp_path)
    assert [(tensor.operator, bool(tensor.file), bool(tensor.row)) for tensor in dump.tensors] == [
        ("Default_Add-op0", True, True),
        ("Default_Add-op1", False, True),
    ]


@pytest.mark.parametrize(
    ("folder", "rank", "net", "graph", "iteration"),
    [
        ("rank_2/Net/1/7", 2, "Net", 1, 7),
        ("rank_2/Net/1/constants", 2, "Net", 1, None),
        ("rank_2/20260101120000/step_7", 2, "20260101120000", 0, 7),
        ("2/Net_graph_1/1/7", 2, "Net", 1, 7),
        ("20260101120000/2/Net/1/7", 2, "Net", 1, 7),
        ("20230131172437/1/0", 1, "0", 0, 0),
    ],
)
def test_every_documented_tree_is_understood(tmp_path, folder, rank, net, graph, iteration):
    (tmp_path / folder).mkdir(parents=True)
    np.save(tmp_path / folder / NAME.format(n=0, time=100), np.zeros(2, np.float32))
    (tensor,) = GraphDump(tmp_path).tensors
    assert (tensor.rank, tensor.net, tensor.graph, tensor.iteration) == (rank, net, graph, iteration)


def test_a_plain_directory_of_tensors_is_read_with_a_note(tmp_path):
    np.save(tmp_path / NAME.format(n=0, time=100), np.zeros(2, np.float32))
    np.save(tmp_path / "mine.npy", np.zeros(2))
    dump = GraphDump(tmp_path)
    assert len(dump.tensors) == 1
    assert dump.notes[:2] == (
        "1 .npy files do not have the name of a dump file and were skipped",
        f"{tmp_path} is not a rank/net/graph/iteration directory: read as rank 0, graph 0, iteration 0",
    )


def test_raw_streams_of_o2_are_read_flat(tmp_path):
    place = tmp_path / "rank_0" / "20260101" / "step_0"
    place.mkdir(parents=True)
    values = np.array([1, -2, 3.5], ml_dtypes.bfloat16)
    (place / "Sub.Default_Sub-op0.10.10.1735011096427368.input.0.ND.BF16").write_bytes(values.tobytes())
    (place / "Sub.Default_Sub-op0.10.10.1735011096427368.input.1.ND.INT4").write_bytes(bytes([0xF1]))
    (place / "Sub.Default_Sub-op0.10.10.1735011096427368.input.2.ND.FLOAT").write_bytes(b"12345")
    dump = GraphDump(tmp_path)
    first, second, third = dump.tensors
    assert dump.value(first).tobytes() == values.tobytes()
    assert dump.value(second).tolist() == [1, -1]
    with pytest.raises(DumpError, match="5 bytes, which is not a multiple of the size of float32"):
        dump.value(third)


def test_a_directory_without_a_dump_is_refused(tmp_path):
    with pytest.raises(DumpError, match="is not a graph-mode dump"):
        GraphDump(tmp_path)
    with pytest.raises(DumpError, match="is not a directory"):
        GraphDump(tmp_path / "none")


def test_linked_directories_are_skipped_with_a_note(tmp_path):
    np.save(tmp_path / NAME.format(n=0, time=100), np.zeros(2, np.float32))
    (tmp_path / "rank_0").symlink_to(real_dumps.faulty() / "rank_0", target_is_directory=True)
    dump = GraphDump(tmp_path)
    assert len(dump.tensors) == 1
    assert dump.notes[0] == "1 directories are links and were skipped: give a link itself to read it"
    assert len(GraphDump(tmp_path / "rank_0").tensors) == 90


def test_two_dumps_under_one_directory_are_not_mixed(tmp_path):
    for name in ("first", "second"):
        place = tmp_path / name / "rank_0" / "Net" / "0" / "0"
        place.mkdir(parents=True)
        np.save(place / NAME.format(n=0, time=100), np.zeros(2, np.float32))
    with pytest.raises(DumpError, match="more than one dump of rank 0"):
        GraphDump(tmp_path)


def test_converted_async_files_are_read_by_the_same_reader(tmp_path):
    import async_samples as samples

    from msprobe.graphdump.files.convert import Request, convert_all, plan

    source = tmp_path / "async" / "0" / "Net_graph_1" / "1" / "4"
    source.mkdir(parents=True)
    data = samples.dump_file(outputs=[(samples.op_output(1, 0, (2,), 8), np.float32([1, 2]).tobytes())])
    (source / "Add.Default_Add-op1.2.161243956333802").write_bytes(data)
    list(convert_all(plan(tmp_path / "async", tmp_path / "out", True)[0], Request(sync_names=True)))
    dump = GraphDump(tmp_path / "out")
    (tensor,) = dump.tensors
    assert (tensor.rank, tensor.net, tensor.graph, tensor.iteration, tensor.label) == (0, "Net", 1, 4, "output.0")
    assert dump.value(tensor).tolist() == [1, 2]
