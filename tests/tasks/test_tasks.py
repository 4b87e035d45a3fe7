"""A task is found by its name in the configuration, and says what a run records, saves and reports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from msprobe.collect.run.lifecycle import UsageError
from msprobe.collect.task import find_hooks
from msprobe.config import load
from msprobe.config.schema import MATRIX
from msprobe.stats import CRC, LOW_PRECISION, ORDER, STATS, XOR
from msprobe.tasks import make_task, refuse_other_tasks, task_names


def settings(path, task, level="L1", **section):
    file = path / "config.json"
    file.write_text(json.dumps({"task": task, "level": level, "dump_path": str(path / "dump"), task: section}))
    return load("pytorch", str(file))


def made(path, task, level="L1", **section):
    return make_task(settings(path, task, level, **section))


def test_every_task_of_the_configuration_that_collects_has_a_folder():
    assert {*task_names(), "run_ut"} == {task for tasks in MATRIX.values() for task in tasks}


@pytest.mark.parametrize("name", task_names())
def test_a_task_has_the_name_of_its_folder(tmp_path, name):
    task = made(tmp_path, name)
    assert (task.name, type(task).__module__) == (name, f"msprobe.tasks.{name}")


def test_a_framework_without_the_hooks_of_a_task_does_not_run_it_as_plain_recording(tmp_path):
    with pytest.raises(NotImplementedError, match=r'msprobe.report.overflow_check is missing: task "overflow_check"'):
        find_hooks("msprobe.report", made(tmp_path, "overflow_check"), print)
    assert find_hooks("msprobe.report", made(tmp_path, "statistics"), print) is print
    for package in ("msprobe.pytorch.tasks", "msprobe.mindspore.tasks"):
        for name in ("overflow_check", "free_benchmark"):
            assert find_hooks(package, made(tmp_path, name), print) is not print


@pytest.mark.parametrize(
    ("section", "flags"),
    [
        ({}, STATS | ORDER),
        ({"summary_mode": "md5"}, STATS | CRC),
        ({"summary_mode": "xor"}, XOR),
    ],
)
def test_a_task_says_which_statistics_its_records_have(tmp_path, section, flags):
    assert made(tmp_path, "statistics", **section).statistics == flags


def test_low_precision_is_asked_for_by_its_key(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"task": "statistics", "precision": "low", "dump_path": str(tmp_path / "dump")}))
    assert make_task(load("pytorch", str(file))).statistics == STATS | ORDER | LOW_PRECISION


def test_the_check_of_a_dump_is_not_a_task_that_collects(tmp_path):
    with pytest.raises(UsageError, match="collects nothing: use the command msprobe run_ut"):
        refuse_other_tasks(settings(tmp_path, "run_ut"))


def test_only_the_folder_of_the_task_is_imported(tmp_path):
    settings(tmp_path, "structure")
    code = (
        "import sys; from msprobe.config import load; from msprobe.tasks import make_task;"
        f"make_task(load('pytorch', {str(tmp_path / 'config.json')!r}));"
        "print(*sorted(m for m in sys.modules if m.startswith('msprobe.tasks.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["msprobe.tasks.structure"]


@pytest.mark.parametrize(
    ("name", "section", "files"),
    [
        ("structure", {}, False),
        ("statistics", {}, False),
        ("statistics", {"tensor_list": ["relu"]}, ("relu",)),
        ("tensor", {}, True),
        ("overflow_check", {}, True),
        ("free_benchmark", {}, False),
    ],
)
def test_a_task_says_which_tensors_get_files(tmp_path, name, section, files):
    task = made(tmp_path, name, **section)
    assert task.files == files
    assert task.selection().saves("Functional.relu.0.forward") == bool(files)
    directory = tmp_path / "step0" / "rank"
    assert (task.make_head("pytorch", directory).dump_data_dir is not None) == bool(files)


def test_the_size_of_the_parameters_is_known_only_where_they_are_saved(tmp_path):
    assert made(tmp_path, "tensor", "mix").describe_files(10) == ("full tensors", 20)
    assert made(tmp_path, "tensor", "L1").describe_files(10) == ("full tensors", 0)
    assert made(tmp_path, "statistics", "mix", tensor_list=["relu"]).describe_files(10) == (
        "the tensors of tensor_list",
        0,
    )
    assert made(tmp_path, "overflow_check", "mix").describe_files(10) is None


def test_structure_records_no_data(tmp_path):
    assert [name for name in task_names() if not made(tmp_path, name).with_data] == ["structure"]


def test_free_benchmark_takes_scope_as_names_of_calls_not_as_a_range(tmp_path):
    names = ["Functional.relu.0.forward", "Functional.linear.0.forward"]
    benchmark = made(tmp_path, "free_benchmark", scope=names).selection()
    statistics = made(tmp_path, "statistics", scope=names).selection()
    calls = [names[0], "Torch.add.0.forward", names[1]]
    assert [benchmark.enter(call) for call in calls] == [True, False, True]
    assert [statistics.enter(call) for call in calls] == [True, True, True]
