"""`msprobe graph dump` and `graph_dump()` on a network that trains three steps in graph mode on CPU.

One test a row of the feature table in docs/graph_dump.md; every run must leave the losses as they are without.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import real_dumps

from msprobe.graphdump import GraphDump
from msprobe.graphdump.check import Limits, check
from msprobe.graphdump.dumping import policies
from msprobe.graphdump.dumping.dump_settings import CATEGORIES
from msprobe.graphdump.dumping.raised import prepare_place, read_raised, write_raised
from msprobe.graphdump.dumping.summary import DumpSummary
from msprobe.graphdump.graphs.failed_operator import _inputs_of

SCRIPT = real_dumps.NETS / "trained.py"
E2E = ("enable", "trans_flag", "stat_calc_mode", "sample_mode", "sample_num", "save_kernel_args")
_kept = tempfile.TemporaryDirectory(prefix="msprobe-graph-")


class Run:
    """One run of the script: its dump and what it said."""

    def __init__(
        self, words: tuple[str, ...], keys: dict[str, object], options: tuple[str, ...] = (), script: Path = SCRIPT
    ) -> None:
        self.top = Path(tempfile.mkdtemp(dir=_kept.name, prefix="d"))
        self.out = self.top / "out"
        e2e = {"enable": True, **{key: value for key, value in keys.items() if key in E2E}}
        common = {key: value for key, value in keys.items() if key not in E2E}
        self.config = self.top / "data_dump.json"
        value = {"common_dump_settings": {"path": str(self.out), "net_name": "N", **common}, "e2e_dump_settings": e2e}
        self.config.write_text(json.dumps(value))
        words = tuple(word.replace("CONFIG", str(self.config)) for word in words)
        command = [sys.executable, str(script), *words]
        if not any(word.startswith("script:") for word in words):
            command[1:1] = ["-m", "msprobe", "graph", "dump", "--config", str(self.config), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
        over = threading.Event()
        self.disk = 0
        watching = threading.Thread(target=self._watch, args=(over,))
        watching.start()
        try:
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=self.top)
        finally:
            over.set()
            watching.join()
        self.code, self.losses, self.errors = ended.returncode, ended.stdout.splitlines(), ended.stderr

    def _watch(self, over: threading.Event) -> None:
        """The disk space that temporary files take, measured from outside."""
        while not over.wait(0.005):
            total = 0
            for place, _, files in os.walk(self.out / "msprobe_staging"):
                for name in files:
                    with contextlib.suppress(OSError):  # gone in between
                        total += Path(place, name).stat().st_size
            self.disk = max(self.disk, total)

    @functools.cached_property
    def dump(self) -> GraphDump:
        assert self.code == 0, self.errors
        assert not (self.out / "msprobe_staging").exists()
        return GraphDump(self.out)

    @property
    def files(self) -> list[str]:
        return [tensor.file for tensor in self.dump.tensors if tensor.file]


@functools.cache
def bare() -> list[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@functools.cache
def full() -> Run:
    categories = list(CATEGORIES)
    return Run(
        (), {"saved_data": "full", "statistic_category": categories, "save_kernel_args": True, "iteration": "0 | 2"}
    )


def rows(run: Run, iteration: int) -> list[dict[str, str]]:
    with (run.out / f"rank_0/N/0/{iteration}/statistic.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_whole_network_is_dumped_and_the_losses_stay():
    run = full()
    assert run.losses == bare()
    assert run.dump.iterations == (0, 2)
    assert {"MatMul", "LayerNorm", "LayerNormGrad", "ApplyMomentum", "Parameter"} <= {t.type for t in run.dump.tensors}
    assert run.dump.notes == ()


def test_every_statistic_is_numpys_on_the_tensor_of_the_same_run():
    run = full()
    seen = halves = 0
    for tensor in run.dump.tensors:
        if tensor.iteration is None or tensor.row is None:
            continue
        array = np.load(tensor.path)  # numpy itself reads every file, bfloat16 as float32
        wide = array.astype(np.float64)
        row = tensor.row
        assert array.dtype == np.float32 or tensor.dtype != "BFloat16"
        halves += tensor.dtype == "BFloat16"
        raw = array.astype(ml_dtypes.bfloat16) if tensor.dtype == "BFloat16" else array
        assert row["MD5"] == hashlib.md5(raw.tobytes()).hexdigest()
        assert row["Data Size"] == str(raw.nbytes)
        assert row["Shape"] == "(" + ",".join(map(str, array.shape)) + ")"
        as_number = {"True": 1.0, "False": 0.0}
        for column, value in (("Max Value", wide.max()), ("Min Value", wide.min())):
            assert as_number.get(row[column]) == value or float(row[column]) == value
        assert float(row["Avg Value"]) == pytest.approx(wide.mean(), rel=1e-12, abs=1e-12)
        assert float(row["L2Norm Value"]) == pytest.approx(np.linalg.norm(wide.reshape(-1)), rel=1e-12)
        counts = {
            "Count": wide.size,
            "Negative Zero Count": (wide < 0).sum(),
            "Positive Zero Count": (wide > 0).sum(),
            "NaN Count": np.isnan(wide).sum(),
            "Negative Inf Count": np.isneginf(wide).sum(),
            "Positive Inf Count": np.isposinf(wide).sum(),
            "Zero Count": (wide == 0).sum(),
        }
        assert {column: int(row[column]) for column in counts} == counts
        seen += 1
    assert seen == len(rows(run, 0)) + len(rows(run, 2)) > 300
    assert halves > 2


def test_constants_and_operator_arguments_are_there_once():
    run = full()
    constants = [t for t in run.dump.tensors if t.iteration is None]
    assert {t.operator for t in constants} >= {"data-0", "data-1"}
    values = [np.load(t.path) for t in constants]
    assert any(np.array_equal(value, np.arange(16, dtype=np.float32).reshape(4, 4)) for value in values)
    assert any(np.array_equal(value, np.eye(3, dtype=np.float32)) for value in values)
    (first,) = (op for op in run.dump.select_nodes(type="MatMul") if op.name.endswith("first-Dense/MatMul-op0"))
    (file,) = run.out.rglob("MatMul.*_first-Dense_MatMul-op0.json")
    assert file.parent == run.out / "rank_0/N/0/0"
    assert {"transpose_a": "False", "transpose_b": "True"}.items() <= json.loads(file.read_text()).items()
    assert run.dump.arguments(first)["transpose_b"] == "True"


def test_graphs_orders_and_the_users_file_exist_and_other_users_cannot_read_them():
    run = full()
    rank = run.out / "rank_0"
    assert json.loads((rank / ".dump_metadata/data_dump.json").read_text()) == json.loads(run.config.read_text())
    assert run.dump.order(0, 0) is not None
    assert run.dump.history(0, 0) == (0, 1, 2) or run.dump.history(0, 0) == (0, 2)
    assert (rank / "graphs/ms_output_trace_code_graph_0.ir").is_file()
    for path in (rank, *rank.rglob("*")):
        assert path.stat().st_mode & 0o027 == 0, path


def test_statistics_alone_leave_no_tensor_and_keep_the_disk_budget():
    run = Run(("wide",), {"saved_data": "statistic", "enable": False}, ("--disk-budget", "64MB"))
    assert run.files == []
    assert all(tensor.row is not None for tensor in run.dump.tensors)
    assert "enable is not true" in run.errors
    said = re.search(r"temporary files took up to (\d+) bytes(, more than the disk budget)?", run.errors)
    assert said is not None, run.errors
    # On a busy machine the worker may come too late to pause the training in time: then the answer says so.
    assert (int(said[1]) > 64 << 20) == (said[2] is not None)
    assert sum(int(row["Data Size"]) for row in rows(run, 0)) > 64 << 20  # a step writes several times the budget
    assert run.disk > 0


def test_a_budget_below_the_least_is_refused(tmp_path: Path):
    command = [sys.executable, "-m", "msprobe", "graph", "dump", "--disk-budget", "63MB", "train.py"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2
    assert "'63MB' is not a size of at least 64MB; write 500MB or 2GB" in ended.stderr


def test_overflow_saves_the_operators_that_overflow_and_stops_at_the_number():
    run = Run(("burst",), {"op_debug_mode": 3, "overflow_number": 2})
    operators = {tensor.operator for tensor in run.dump.tensors if tensor.iteration is not None}
    assert len(operators) == 2
    assert {tensor.iteration for tensor in run.dump.tensors} <= {1, None}
    found = check(run.dump, Limits(), ["overflow"], run.dump.tensors)
    assert {finding.operator.in_files for finding in found.findings} == operators
    assert {t.io for t in run.dump.tensors if t.operator in operators} == {"input", "output"}


def test_the_operator_that_raises_has_its_inputs_saved():
    run = Run(("raise",), {"op_debug_mode": 4})
    assert run.code == 1
    assert "Cholesky expects symmetric positive definite" in run.errors
    assert "Cholesky.Default_network-Trained_Cholesky-op0 raised." in run.errors
    (tensor,) = GraphDump(run.out).tensors
    assert (tensor.type, tensor.label, tensor.iteration) == ("Cholesky", "input.0", 2)
    assert np.array_equal(np.load(tensor.path), -np.eye(3, dtype=np.float32))


@pytest.mark.parametrize("words", [(), ("caught",), ("caught", "script:CONFIG")])
def test_an_input_of_the_graph_is_saved_for_the_operator_that_raises(words):
    """A label out of range: no operator has read it before. The script may catch the exception."""
    run = Run(words, {"op_debug_mode": 4}, script=real_dumps.NETS / "labels.py")
    assert run.code == (0 if words else 1), run.errors
    assert ("the value of 'index' must be in" in run.errors) == (not words)
    assert "GatherD.Default_GatherD-op0 raised." in run.errors
    assert len(run.losses) == 2
    saved = {tensor.label: tensor for tensor in GraphDump(run.out).tensors}
    assert {(tensor.type, tensor.iteration) for tensor in saved.values()} == {("GatherD", 2)}
    assert np.load(saved["input.2"].path).tolist() == [[0], [1], [9]]
    assert np.load(saved["input.0"].path).shape == (3, 3)


def test_without_an_exception_nothing_is_saved():
    run = Run((), {"op_debug_mode": 4})
    assert run.losses == bare()
    assert "no graph raised an exception: nothing was saved." in run.errors
    assert not run.files


def test_inputs_of_graphs_with_the_same_names_are_not_mixed_up(tmp_path):
    place = prepare_place(tmp_path)
    for text, value in (("For 'Gather', an index", 1), ("Cholesky expects", 2), ("in the previous step", 3)):
        write_raised(place, text, [("x", np.array([value], np.int32))])
    raised = read_raised(tmp_path)
    found = {kind: _inputs_of(SimpleNamespace(type=kind), raised) for kind in ("Gather", "Cholesky", "Add")}
    assert [int(np.load(found[kind]["x"])[0]) for kind in ("Gather", "Cholesky")] == [1, 2]
    assert found["Add"] == {}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([("Cholesky.a", {})], "Cholesky.a raised"),
        ([("Cholesky.a", {0: None, 2: None})], "Cholesky.a (unknown: input 0, 2) raised"),
        ([("Cholesky.a", {}), ("Add.b", {1: None})], "one of these raised: Cholesky.a, Add.b (unknown: input 1)"),
    ],
)
def test_operators_that_were_ready_are_not_said_to_have_raised(tmp_path, monkeypatch, found, said):
    """The text of an exception that names no operator, such as that of a run after one that failed."""
    monkeypatch.setattr(policies, "find_failed_inputs", lambda *_: iter(found))
    summary = DumpSummary()
    staging = SimpleNamespace(root=tmp_path, text=lambda *_: "", operators=lambda *_: {}, discard=lambda _: None)
    policy = policies.ExceptionPolicy(SimpleNamespace(settings=None, staging=staging, summary=summary))
    policy.take(SimpleNamespace(rank=0, graph=0, iteration=2))
    policy.finish("An error occurred in the previous step")
    assert summary.notes == [said]


def test_set_dump_chooses_and_names_that_are_too_long_are_mapped():
    run = Run(("mark", "long"), {"dump_mode": 2, "iteration": "1", "saved_data": "full"})
    short = {file[: -len(".npy")] for file in run.files if re.fullmatch(r"\d+\.npy", file)}  # MindSpore's numbers
    with next(run.out.rglob("1/mapping.csv")).open(newline="") as file:
        mapped = dict(csv.reader(file))
    assert short
    assert short == set(mapped)
    assert all(len(name) > 255 and name.endswith(".npy") for name in mapped.values())
    assert all(tensor.row is not None for tensor in run.dump.tensors if tensor.iteration is not None)
    assert run.dump.notes == ()
    assert run.losses == bare()
    assert all("second-Dense" in tensor.operator for tensor in run.dump.tensors if tensor.iteration is not None)
    assert {"MatMul", "BiasAdd"} <= {tensor.type for tensor in run.dump.tensors}


def test_kernels_are_names_of_the_graph_types_and_expressions():
    """The framework runs the graph's Cast-op3 and others under different numbers; the graph's are meant."""
    names = [name for name in full().dump.order(0, 0) or () if "norm-LayerNorm/Cast-op" in name]
    wanted = [names[0], "biasadd", "name-regex(.*/optimizer-Momentum/AssignAdd.*)"]
    keys = {"dump_mode": 1, "kernels": wanted, "iteration": "10", "initial_iteration": 10, "input_output": 2}
    run = Run((), keys)
    assert run.dump.iterations == (10,)
    assert {tensor.io for tensor in run.dump.tensors} == {"output"}
    chosen = {op.name for op in run.dump.operators if op.in_files and op.type != "Parameter"}
    assert {name for name in chosen if "/Cast-op" in name} == {names[0]}
    kinds = {tensor.type for tensor in run.dump.tensors}
    assert kinds == {"Cast", "BiasAdd", "BiasAddGrad", "AssignAdd"}


BOTH = {"input", "output"}


@pytest.mark.parametrize(
    ("sides", "iterations", "saved"),
    [
        ((0, BOTH), ("1", (1,)), ("tensor", True, False)),
        ((1, {"input"}), ("0-1", (0, 1)), ("statistic", False, True)),
        ((2, {"output"}), ("all", (0, 1, 2)), ("full", True, True)),
    ],
    ids=["0 1 tensor", "1 0-1 statistic", "2 all full"],
)
def test_each_value_of_sides_iterations_and_saved_data(sides, iterations, saved):
    """Each run has one value of input_output, iteration and saved_data: (what is written, what it must give)."""
    keys = {"input_output": sides[0], "iteration": iterations[0], "saved_data": saved[0]}
    run = Run((), {"dump_mode": 1, "kernels": ["MatMul"], **keys})
    found = [tensor for tensor in run.dump.tensors if tensor.iteration is not None]
    assert {tensor.type for tensor in found} == {"MatMul"}
    assert {tensor.io for tensor in found} == sides[1]
    assert run.dump.iterations == iterations[1]
    assert all(bool(tensor.file) == saved[1] and (tensor.row is not None) == saved[2] for tensor in found)
    assert any(file.endswith(".npy") for file in run.files) == saved[1]
    assert run.losses == bare()


def test_a_name_of_the_graph_alone_selects_that_operator():
    (name,) = [name for name in full().dump.order(0, 0) or () if "norm-LayerNorm/Cast-op" in name][:1]
    run = Run((), {"dump_mode": 1, "kernels": [name], "iteration": "0"})
    assert {op.name for op in run.dump.operators if op.in_files and op.type != "Parameter"} == {name}


def test_samples_are_evenly_spaced_and_statistics_are_of_the_whole():
    run = Run((), {"saved_data": "full", "sample_mode": 1, "sample_num": 3, "iteration": "0"})
    whole = {(t.operator, t.label): np.load(t.path) for t in full().dump.tensors if t.iteration == 0}
    seen = 0
    for tensor in run.dump.tensors:
        if tensor.iteration is None:
            continue
        array = np.load(tensor.path)
        original = whole[tensor.operator, tensor.label].reshape(-1)
        assert array.size == min(3, original.size)
        assert array[0] == original[0]
        assert tensor.row is not None
        assert float(tensor.row["Max Value"].replace("True", "1").replace("False", "0")) == original.max()
        seen += array.size == 3
    assert seen > 50


def test_raw_bytes_are_the_tensors_with_shape_and_type_in_the_name():
    """Two compilations may number operators of one kind differently: any of the kind may match."""
    run = Run((), {"file_format": "bin", "saved_data": "full", "iteration": "0"})
    whole = {}
    for tensor in full().dump.tensors:
        whole.setdefault((tensor.type, tensor.label, tensor.iteration), []).append(np.load(tensor.path))
    halves = 0
    for tensor in run.dump.tensors:
        assert tensor.file.endswith(".bin")
        assert tensor.path.stat().st_mode & 0o777 == 0o640
        array = run.dump.value(tensor)
        halves += array.dtype == ml_dtypes.bfloat16
        assert array.shape == run.dump.statistics(tensor).shape
        of_its_kind = [one for one in whole[tensor.type, tensor.label, tensor.iteration] if one.shape == array.shape]
        assert any(array.astype(one.dtype).tobytes() == one.tobytes() for one in of_its_kind), tensor.file
        assert tensor.iteration is None or tensor.row is not None
    assert halves
    assert any(tensor.iteration is None for tensor in run.dump.tensors)
    assert run.losses == bare()


def test_tensors_are_byte_for_byte_those_of_the_frameworks_own_dump(tmp_path: Path):
    """The framework alone, and the same script with ours: what statistics are compared with is the framework's."""
    out = tmp_path / "theirs"
    config = tmp_path / "data_dump.json"
    common = {"op_debug_mode": 0, "dump_mode": 0, "path": str(out), "net_name": "N", "iteration": "0|2"}
    common.update(saved_data="tensor", input_output=0, kernels=[], support_device=[0])
    config.write_text(json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True}}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3", "MINDSPORE_DUMP_CONFIG": str(config)}
    command = [sys.executable, str(SCRIPT)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ended.stdout.splitlines() == bare()
    theirs, ours = GraphDump(out), full().dump

    def tensors(dump: GraphDump) -> dict[tuple[object, ...], np.ndarray]:
        found = (tensor for tensor in dump.tensors if tensor.iteration is not None)
        return {(one.graph, one.iteration, one.operator, one.label): dump.value(one) for one in found}

    left, right = tensors(theirs), tensors(ours)
    assert left.keys() == right.keys()
    for key, array in left.items():
        assert array.astype(right[key].dtype).tobytes() == right[key].tobytes(), key  # bfloat16 is float32 in ours


def test_support_device_has_no_effect_on_a_cpu(tmp_path: Path):
    config, script, out = tmp_path / "c.json", tmp_path / "train.py", tmp_path / "out"
    config.write_text(json.dumps({"common_dump_settings": {"path": str(out), "support_device": [1, 2]}}))
    script.write_text("import os, sys\nprint(os.environ.get('MINDSPORE_DUMP_CONFIG'), sys.argv[1:])\nsys.exit(7)\n")
    command = [sys.executable, "-m", "msprobe", "graph", "dump", "--config", str(config), str(script), "--epochs", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 7
    assert "msprobe_staging" in ended.stdout
    assert "['--epochs', '1']" in ended.stdout
    assert "support_device (1, 2) has no effect on a CPU" in ended.stderr


def test_a_script_may_start_it_and_gets_an_error_if_it_is_too_late():
    run = Run(("script:CONFIG",), {"saved_data": "statistic", "iteration": "1"})
    assert run.losses == bare()
    assert run.dump.iterations == (1,)
    assert run.files == []
    late = Run(("script:CONFIG", "late"), {"saved_data": "statistic"})
    assert late.code == 1
    assert "graph_dump() is too late: a graph is already compiled." in late.errors
    assert not late.out.exists()


def test_a_killed_run_leaves_whole_rows_of_all_that_ran():
    run = Run(("script:CONFIG", "kill"), {"saved_data": "statistic"})
    assert run.code == -9
    deadline = time.monotonic() + 30
    while (run.out / "msprobe_staging").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not (run.out / "msprobe_staging").exists()
    whole = {(row["Op Name"], row["IO"], row["Slot"]) for row in rows(full(), 0)}
    for iteration in (0, 1):
        found = rows(run, iteration)
        assert all(None not in row.values() and None not in row for row in found)
        assert {(row["Op Name"], row["IO"], row["Slot"]) for row in found} == whole


def test_a_dump_that_is_there_already_is_not_mixed_with_another():
    run = full()
    command = [sys.executable, "-m", "msprobe", "graph", "dump", "--config", str(run.config), str(SCRIPT)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "rank_0/N exists already; remove it or choose another path" in ended.stderr
