"""Conversion of whole files and trees: names, types, failures, and input that means harm."""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import stat
import struct
from pathlib import Path
from typing import Any

import async_samples as samples
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe.cli import main
from msprobe.graphdump import GraphDump
from msprobe.graphdump.files.convert import Job, Request, convert_all, convert_file, plan
from msprobe.graphdump.files.datatypes import TYPES
from msprobe.graphdump.files.step_directories import arrange_steps

NAME = "BNTrainingUpdate.Default_network-YoloWithLossCell_BNTrainingUpdate-op5489.137.1608983934774491"


def conv_file() -> tuple[bytes, np.ndarray, np.ndarray]:
    """One operator: a feature map in NC1HWC0, a weight in FRACTAL_Z, an int32 ND output."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 20, 3, 5)).astype(np.float16)
    w = rng.standard_normal((18, 20, 3, 3)).astype(np.float16)
    stored_x, stored_w = samples.lay_out_nc1hwc0(x), samples.lay_out_fractal_z(w)
    data = samples.dump_file(
        inputs=[
            (samples.op_input(2, 3, stored_x.shape, stored_x.nbytes, x.shape), stored_x.tobytes()),
            (samples.op_input(2, 4, stored_w.shape, stored_w.nbytes, w.shape), stored_w.tobytes()),
        ],
        outputs=[(samples.op_output(7, 2, (3,), 12), np.arange(3, dtype="<i4").tobytes())],
    )
    return data, x, w


def converted(source: Path, out: Path, **request: object) -> list:
    return list(convert_all(plan(source, out, bool(request.get("sync_names")))[0], Request(**request)))


def names_in(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_a_file_becomes_one_npy_a_tensor_named_after_it(tmp_path):
    data, x, w = conv_file()
    (tmp_path / NAME).write_bytes(data)
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target="NCHW")
    assert outcome.errors == outcome.notes == []
    assert names_in(tmp_path / "out") == [
        f"{NAME}.input.0.2x20x3x5.npy",
        f"{NAME}.input.1.18x20x3x3.npy",
        f"{NAME}.output.0.3.npy",
    ]
    for path, expected in zip(outcome.written, (x, w, np.arange(3, dtype=np.int32))):
        loaded = np.load(path, allow_pickle=False)
        assert loaded.dtype == expected.dtype
        assert loaded.tobytes() == expected.tobytes()
        assert path.stat().st_mode & 0o777 == 0o640


SEED_004 = (
    "BNTrainingUpdate.Default_network-YoloWithLossCell_yolo_network-YOLOV3DarkNet53_feature_map-YOLOv3_"
    "backblock0-YoloBlock_conv3-SequentialCell_1-BatchNorm2d_BNTrainingUpdate-op5489.137.1608983934774491"
)


def test_the_command_of_seed_004_gives_its_twelve_files(tmp_path, monkeypatch, capsys):
    """As written there, without `msaccucmp.py`; the feature map is 2x20x3x5 and not 30x1024x17x17."""
    large = np.random.default_rng(3).standard_normal((2, 20, 3, 5)).astype(np.float16)
    small = np.arange(20, dtype=np.float16).reshape(1, 20, 1, 1)

    def stored(describe: Any, array: Any) -> tuple[bytes, bytes]:
        laid = samples.lay_out_nc1hwc0(array)
        return describe(2, 3, laid.shape, laid.nbytes, array.shape), laid.tobytes()

    inputs = [stored(samples.op_input, array) for array in (large, *[small] * 6)]
    outputs = [stored(samples.op_output, array) for array in (large, *[small] * 4)]
    monkeypatch.chdir(tmp_path)
    Path(SEED_004).write_bytes(samples.dump_file(inputs=inputs, outputs=outputs))
    assert main(f"convert -d {SEED_004} -out ./output -f NCHW -t npy".split()) == 0
    assert names_in(tmp_path / "output") == [
        *(f"{SEED_004}.input.{n}.{'1x20x1x1' if n else '2x20x3x5'}.npy" for n in range(7)),
        *(f"{SEED_004}.output.{n}.{'1x20x1x1' if n else '2x20x3x5'}.npy" for n in range(5)),
    ]
    assert np.array_equal(np.load(f"output/{SEED_004}.input.0.2x20x3x5.npy"), large)
    assert np.array_equal(np.load(f"output/{SEED_004}.output.4.1x20x1x1.npy"), small)


@pytest.mark.parametrize(
    ("number", "lay_out", "shape", "target"),
    [
        (3, samples.lay_out_nc1hwc0, (2, 20, 3, 5), "NCHW"),
        (4, samples.lay_out_fractal_z, (18, 20, 3, 2), "NCHW"),
        (29, samples.lay_out_fractal_nz, (3, 20, 35), "ND"),
        (32, samples.lay_out_ndc1hwc0, (2, 20, 3, 4, 5), "NCDHW"),
        (33, samples.lay_out_fractal_z_3d, (18, 20, 2, 3, 2), "NCDHW"),
    ],
)
@pytest.mark.parametrize("data_type", [1, 2, 3, 8, 17, 27, 35])
def test_every_layout_comes_back_bit_exact_from_a_file(tmp_path, number, lay_out, shape, target, data_type):
    kind = TYPES[data_type]
    raw = np.random.default_rng(number).integers(0, 256, (*shape, kind.dtype.itemsize), np.uint8)
    array = raw.view(kind.dtype).reshape(shape)
    stored = lay_out(array)
    described = samples.op_output(data_type, number, stored.shape, stored.nbytes, shape)
    (tmp_path / NAME).write_bytes(samples.dump_file(outputs=[(described, stored.tobytes())]))
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target=target, kind="bin")
    assert outcome.errors == outcome.notes == []
    (written,) = outcome.written
    assert written.name == f"{NAME}.output.0.{'x'.join(map(str, shape))}.{kind.name}.bin"
    assert written.read_bytes() == array.tobytes()


def test_without_a_format_the_stored_layout_is_kept(tmp_path):
    data, _, _ = conv_file()
    (tmp_path / NAME).write_bytes(data)
    converted(tmp_path / NAME, tmp_path / "out", inputs=frozenset({0}))
    assert names_in(tmp_path / "out") == [f"{NAME}.input.0.2x2x3x5x16.npy"]


@pytest.mark.parametrize("number", sorted(TYPES))
def test_every_type_is_saved_as_something_that_numpy_loads(tmp_path, number):
    kind = TYPES[number]
    raw = np.random.default_rng(number).integers(0, 2, kind.bytes_of(16), np.uint8)
    data = samples.dump_file(outputs=[(samples.op_output(number, 0, (16,), raw.size), raw.tobytes())])
    (tmp_path / NAME).write_bytes(data)
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out")
    loaded = np.load(outcome.written[0], allow_pickle=False)
    expected = {"bfloat16": "float32", "int4": "int8", "uint1": "uint8"}.get(kind.name, kind.name)
    assert loaded.dtype.name == ("float32" if "float8" in expected else expected)
    if kind.name == "bfloat16" or "float8" in kind.name:
        np.testing.assert_array_equal(loaded, raw.view(getattr(ml_dtypes, kind.name)).astype(np.float32))


def test_bin_keeps_the_bytes_and_names_the_type(tmp_path):
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    data = samples.dump_file(outputs=[(samples.op_output(27, 2, (2,), 4), values.tobytes())])
    (tmp_path / NAME).write_bytes(data)
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", kind="bin")
    assert names_in(tmp_path / "out") == [f"{NAME}.output.0.2.bfloat16.bin"]
    assert outcome.written[0].read_bytes() == values.tobytes()


@pytest.mark.parametrize("number", sorted(TYPES))
def test_pt_files_are_what_torch_loads(tmp_path, number):
    import torch

    kind = TYPES[number]
    raw = np.random.default_rng(number).integers(0, 2, kind.bytes_of(16), np.uint8)
    data = samples.dump_file(outputs=[(samples.op_output(number, 0, (2, 8), raw.size), raw.tobytes())])
    (tmp_path / NAME).write_bytes(data)
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", kind="pt")
    assert outcome.errors == []
    tensor = torch.load(outcome.written[0], weights_only=True)
    expected = {"int4": "int8", "uint1": "uint8"}.get(kind.name, kind.name)
    assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{expected}", (2, 8))
    if kind.bits >= 8:
        assert bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()) == raw.tobytes()


def test_one_bad_tensor_does_not_keep_the_others_from_being_written(tmp_path):
    good = (samples.op_output(1, 2, (2,), 8), b"\0" * 8)
    bad = (samples.op_output(1, 3, (2,), 8), b"\0" * 8)
    (tmp_path / NAME).write_bytes(samples.dump_file(outputs=[bad, good]))
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target="NCHW")
    assert names_in(tmp_path / "out") == [f"{NAME}.output.1.2.npy"]
    assert outcome.errors == ["output.0: NC1HWC0 has 5 dimensions, the stored shape (2,) has 1"]


def test_a_tree_keeps_its_shape_and_leaves_other_files_alone(tmp_path):
    data, _, _ = conv_file()
    source = tmp_path / "dump"
    for folder in ("rank_0/Net/0/0", "rank_1/Net/0/0"):
        (source / folder).mkdir(parents=True)
        (source / folder / NAME).write_bytes(data)
        (source / folder / "statistic.csv").write_text("Op Type\n")
    outcomes = converted(source, tmp_path / "out", target="NCHW", outputs=frozenset({0}))
    assert [outcome.errors for outcome in outcomes] == [[], []]
    assert names_in(tmp_path / "out") == [f"rank_{rank}/Net/0/0/{NAME}.output.0.3.npy" for rank in (0, 1)]


@pytest.mark.parametrize(
    "folder", ["0/Net_graph_7/7/3", "20260101/0/Net/7/3", "rank_0/Net/7/3"], ids=["r1.5", "acl", "sync"]
)
@pytest.mark.parametrize("below", [False, True], ids=["whole", "one directory"])
def test_sync_layout_writes_names_and_directories_of_a_sync_dump(tmp_path, folder, below):
    data, _, _ = conv_file()
    (tmp_path / "dump" / folder).mkdir(parents=True)
    (tmp_path / "dump" / folder / NAME).write_bytes(data)
    source = tmp_path / "dump" / folder if below else tmp_path / "dump"
    converted(source, tmp_path / "out", target="NCHW", sync_names=True)
    stem = NAME.replace(".137.", ".137.0.")
    assert names_in(tmp_path / "out") == [
        f"rank_0/Net/7/3/{stem}.input.0.NCHW.Float16.npy",
        f"rank_0/Net/7/3/{stem}.input.1.NCHW.Float16.npy",
        f"rank_0/Net/7/3/{stem}.output.0.ND.Int32.npy",
    ]


ACL_TREE = """\
1/0/Add.Add.45.0.1675157077183551
1/0/Cast.trans_Cast_0.31.0.1675157077159449
1/1701737061/Cast.trans_Cast_2.35.0.1675157077166214
1/25/NPUClearFloatStatus.NPUClearFloatStatus.26.0.1675157077150342
"""


def test_the_tree_of_an_acl_dump_in_seed_003_is_read(tmp_path, capsys):
    """{dump_path}/{time}/{deviceid}/{model_id}, with names from the document. `msprobe graph` says how to get there."""
    data, _, _ = conv_file()
    for name in ACL_TREE.split():
        place = tmp_path / "dump" / "20230131172437" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    assert main(["graph", "check", str(tmp_path / "dump")]) == 2
    assert f"msprobe convert -d {tmp_path / 'dump'} -out DIRECTORY --layout sync" in capsys.readouterr().err
    command = ["convert", "-d", str(tmp_path / "dump"), "-out", str(tmp_path / "out"), "--layout", "sync"]
    assert main(command) == 0
    found = {(one.rank, one.net, one.type, one.operator) for one in GraphDump(tmp_path / "out").tensors}
    assert found == {
        (1, "0", "Add", "Add"),
        (1, "0", "Cast", "trans_Cast_0"),
        (1, "1701737061", "Cast", "trans_Cast_2"),
        (1, "25", "NPUClearFloatStatus", "NPUClearFloatStatus"),
    }


def test_an_acl_tree_without_iterations_is_iteration_0(tmp_path):
    data, _, _ = conv_file()
    (tmp_path / "dump/20260101/1/Model").mkdir(parents=True)
    (tmp_path / "dump/20260101/1/Model" / NAME).write_bytes(data)
    converted(tmp_path / "dump", tmp_path / "out", outputs=frozenset({0}), sync_names=True)
    assert names_in(tmp_path / "out") == [f"rank_1/Model/0/0/{NAME.replace('.137.', '.137.0.')}.output.0.ND.Int32.npy"]


def test_names_too_long_for_a_file_are_mapped(tmp_path):
    data, _, _ = conv_file()
    name = "Conv2D." + "x" * 212 + ".1.1.1608983934774491"
    (tmp_path / name).write_bytes(data)
    (outcome,) = converted(tmp_path / name, tmp_path / "out", outputs=frozenset({0}), inputs=frozenset({1}))
    assert outcome.errors == []
    rows = (tmp_path / "out" / "mapping.csv").read_text().split()
    assert [row.split(",")[1] for row in rows] == [f"{name}.input.1.18x2x16x16.npy"]
    short = rows[0].split(",")[0]
    assert re.fullmatch(r"\d{32}\.npy", short)
    assert np.load(tmp_path / "out" / short).shape == (18, 2, 16, 16)


def test_a_mapped_input_name_is_used_for_the_outputs(tmp_path):
    data, _, _ = conv_file()
    (tmp_path / ("1" * 32)).write_bytes(data)
    (tmp_path / "mapping.csv").write_text(f"{'1' * 32},{NAME}\n")
    converted(tmp_path / ("1" * 32), tmp_path / "out", outputs=frozenset({0}))
    assert names_in(tmp_path / "out") == [f"{NAME}.output.0.3.npy"]


def test_a_mapping_that_points_elsewhere_is_not_followed(tmp_path):
    data, _, _ = conv_file()
    (tmp_path / ("1" * 32)).write_bytes(data)
    (tmp_path / "mapping.csv").write_text(f"{'1' * 32},../../evil\n")
    converted(tmp_path / ("1" * 32), tmp_path / "out", outputs=frozenset({0}))
    assert names_in(tmp_path / "out") == [f"{'1' * 32}.output.0.3.npy"]


def test_an_empty_slot_is_noted_and_padding_that_stays_is_noted(tmp_path):
    stored = np.zeros((1, 1, 1, 1, 16), np.float16)
    data = samples.dump_file(
        inputs=[(samples.op_input(0, 2, (), 0), b"")],
        outputs=[(samples.op_output(2, 3, stored.shape, stored.nbytes), stored.tobytes())],
    )
    (tmp_path / NAME).write_bytes(data + b"tail")
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target="NCHW")
    assert outcome.errors == []
    assert outcome.notes == [
        "4 bytes after the last tensor are ignored",
        "input.0: no data was dumped",
        "output.0: the original shape is unknown, so the padding stays (give it with -s)",
    ]
    converted(tmp_path / NAME, tmp_path / "out", target="NCHW", shape=(1, 9, 1, 1))
    assert f"{NAME}.output.0.1x9x1x1.npy" in names_in(tmp_path / "out")


def test_a_given_shape_is_used_or_refused_never_ignored(tmp_path):
    stored = np.zeros((1, 1, 1, 1, 16), np.float16)
    data = samples.dump_file(
        outputs=[
            (samples.op_output(1, 2, (), 24), np.arange(6, dtype="<f4").tobytes()),
            (samples.op_output(2, 3, stored.shape, stored.nbytes), stored.tobytes()),
        ]
    )
    (tmp_path / NAME).write_bytes(data)
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target="NCHW", shape=(2, 3), outputs=frozenset({0}))
    assert [path.name for path in outcome.written] == [f"{NAME}.output.0.2x3.npy"]
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", shape=(16,))
    assert outcome.errors == [
        "output.0: cannot reshape the stored shape (6,) to (16,)",
        "output.1: -s needs -f for a tensor in NC1HWC0",
    ]


def test_an_unknown_format_is_kept_but_not_laid_out_anew(tmp_path):
    described = samples.op_output(1, 28, (2,), 8)
    (tmp_path / NAME).write_bytes(samples.dump_file(outputs=[(described, b"\0" * 8)]))
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out")
    assert (len(outcome.written), outcome.errors) == (1, [])
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target="NCHW")
    assert outcome.errors == ["output.0: FORMAT_28 cannot be converted to NCHW"]


def test_grouped_weights_are_refused_not_guessed(tmp_path):
    stored = np.zeros((9, 1, 16, 16), np.float16)
    described = samples.op_output(2, 4, stored.shape, stored.nbytes, (16, 16, 3, 3), sub_format=4)
    (tmp_path / NAME).write_bytes(samples.dump_file(outputs=[(described, stored.tobytes())]))
    (outcome,) = converted(tmp_path / NAME, tmp_path / "out", target="NCHW")
    assert outcome.errors == ["output.0: FRACTAL_Z in 4 groups is not supported"]


def too_long(*_: object) -> None:
    raise TimeoutError("the conversion hangs")


@contextlib.contextmanager
def at_most(megabytes: int):
    """An address space that a huge allocation does not fit in, and an end to anything that hangs."""
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(120)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, before[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)


SEED = conv_file()[0]
HEADER = struct.unpack("<Q", SEED[:8])[0] + 8
mutations = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete"]), st.integers(0, HEADER + 8), st.integers(0, 255)),
    min_size=1,
    max_size=12,
)


def mutated(changes: list[tuple[str, int, int]]) -> bytes:
    data = bytearray(SEED)
    for kind, at, value in changes:
        if kind == "set":
            data[at] = value
        elif kind == "insert":
            data.insert(at, value)
        else:
            del data[at]
    return bytes(data)


def outcome_is_clear(data: bytes, tmp_path: Path, request: Request) -> None:
    source, out = tmp_path / NAME, tmp_path / "out"
    source.write_bytes(data)
    with at_most(512):
        outcome = convert_file(Job(source, NAME, out), request)
    assert outcome.written or outcome.errors or outcome.notes or len(data) > 8
    assert all(error.strip() for error in outcome.errors)
    assert {path.name for path in tmp_path.iterdir()} <= {NAME, "out"}
    for path in outcome.written:
        assert path.parent == out
        np.load(path, allow_pickle=False)
        path.unlink()
    assert not list(out.iterdir()) if out.exists() else True


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations, st.sampled_from([None, "NCHW", "HWCN", "ND", "NCDHW"]))
def test_mutated_files_give_a_clear_outcome_and_nothing_else(tmp_path, changes, target):
    outcome_is_clear(mutated(changes), tmp_path, Request(target=target))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_random_bytes_give_a_clear_outcome_and_nothing_else(tmp_path, data):
    outcome_is_clear(data, tmp_path, Request(target="NCHW"))


dimension = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 45),
    st.integers(0, 45),
    st.lists(dimension, max_size=7),
    st.one_of(st.none(), st.lists(dimension, max_size=7)),
    st.integers(0, 600),
)
def test_well_formed_messages_with_any_numbers_give_a_clear_outcome(tmp_path, data_type, form, shape, original, size):
    described = samples.op_output(data_type, form, shape, size, original)
    outcome_is_clear(samples.dump_file(outputs=[(described, b"\1" * size)]), tmp_path, Request(target="NCHW"))


def acl_dump_of_one_operator(rank: Path, step: int, **files: bytes) -> None:
    place = rank / "20241224113136" / "0" / "network" / "1" / str(step)
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / f"{name}.Default_network-TrainOneStepCell_{name}-op0.0.10.1735011096403740").write_bytes(content)


def test_files_of_ascend_become_the_step_directories_of_the_guide(tmp_path: Path) -> None:
    """Seed 000, 8.1: jit_level O2."""
    floats, half = np.array([[1.5, -2.0]], np.float32), np.array([1, -2, 3.5], ml_dtypes.bfloat16)
    cast = samples.dump_file(
        inputs=[
            (samples.op_input(1, 2, [1, 2], 8), floats.tobytes()),
            (samples.op_input(27, 2, [3], 6), half.tobytes()),
        ],
        outputs=[(samples.op_output(7, 2, [2], 8), np.array([7, 8], np.int32).tobytes())],
    )
    rank = tmp_path / "rank_0"
    acl_dump_of_one_operator(rank, 0, Cast=cast, Bad=b"no dump")
    acl_dump_of_one_operator(rank, 1, Cast=cast)
    arranged = arrange_steps(rank)
    stem = "Cast.Default_network-TrainOneStepCell_Cast-op0.0.10.1735011096403740"
    names = [f"{stem}.input.0.ND.FLOAT.npy", f"{stem}.input.1.ND.BF16", f"{stem}.output.0.ND.INT32.npy"]
    for step in ("step_0", "step_1"):
        assert sorted(path.name for path in (rank / "20241224113136" / step).iterdir()) == names
    assert arranged.written == 6
    ((kept, reason),) = arranged.kept
    assert kept.read_bytes() == b"no dump"
    assert "Bad" in kept.name
    assert reason
    assert not (rank / "20241224113136" / "0" / "network" / "1" / "1").exists()
    place = rank / "20241224113136" / "step_1"
    assert np.load(place / names[0]).tolist() == [[1.5, -2.0]]
    assert (place / names[1]).read_bytes() == half.tobytes()
    first = next(one for one in GraphDump(place).tensors if one.label == "input.1")
    assert GraphDump(place).value(first).tolist() == half.tolist()
    assert stat.S_IMODE((place / names[0]).stat().st_mode) == 0o640
    assert arrange_steps(rank).written == 0
