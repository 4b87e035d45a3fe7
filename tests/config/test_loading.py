"""What good configurations become: values, defaults, arguments that win, hints about keys without effect."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msprobe.config import ConfigError, Settings, load
from msprobe.config.read import PACKAGED
from msprobe.config.schema import COMMON, FOREIGN, FOREIGN_TASKS, MATRIX, SECTIONS
from msprobe.config.settings import SECTION_TYPES


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    def write_and_load(config: object, framework: str = "pytorch", **arguments: Any) -> Settings:
        path = tmp_path / "config.json"
        if isinstance(config, dict):
            config = {"dump_path": "d", **config}
        path.write_text(json.dumps(config), encoding="utf-8")
        return load(framework, path, **arguments)

    return write_and_load


def test_without_a_file_the_packaged_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load("pytorch")
    assert (settings.task, settings.level, settings.dump_path) == ("statistics", "L1", tmp_path / "dump_path")
    assert (settings.rank, settings.step, settings.seed, settings.is_deterministic) == (
        None,
        None,
        None,
        None,
    )
    assert (settings.async_dump, settings.extra_info, settings.precision) == (False, True, "high")


@pytest.mark.parametrize("task", SECTIONS)
@pytest.mark.parametrize("level", ["L0", "L1", "L2", "mix", "debug"])
@pytest.mark.parametrize(
    ("framework", "graph_mode", "mode"),
    [
        ("pytorch", None, "PyTorch"),
        ("mindspore", False, "MindSpore dynamic graph"),
        ("mindspore", True, "MindSpore graph mode"),
    ],
)
def test_the_packaged_file_gives_no_warning_wherever_its_task_runs(
    framework: str, graph_mode: bool | None, mode: str, task: str, level: str
) -> None:
    if level in MATRIX[mode].get(task, ()):
        settings = load(framework, task=task, level=level, graph_mode=graph_mode)
        assert (settings.task, settings.level, settings.warnings) == (task, level, ())
        assert type(settings.section) is SECTION_TYPES[task]
    else:
        with pytest.raises(ConfigError):
            load(framework, task=task, level=level, graph_mode=graph_mode)


def test_the_packaged_file_states_the_defaults(loaded: Any) -> None:
    packaged = json.loads(PACKAGED.read_text(encoding="utf-8"))
    for task in SECTIONS:
        assert load("pytorch", task=task).section == loaded({"task": task}).section
        assert task in packaged


def test_a_missing_section_means_its_defaults(loaded: Any) -> None:
    section = loaded({"task": "tensor", "tensor": ""}).section
    assert section == loaded({"task": "tensor"}).section == loaded({"task": "tensor", "tensor": {}}).section
    assert (section.scope, section.list, section.data_mode, section.file_format) == ((), (), ("all",), "npy")
    assert (section.online_run_ut, section.host, section.port, section.backward_input) == (
        False,
        None,
        None,
        (),
    )
    run_ut = loaded({"task": "run_ut"}).section
    assert (run_ut.rank_list, run_ut.host, run_ut.error_data_path) == (
        frozenset([0]),
        "127.0.0.1",
        Path.cwd(),
    )


def test_every_field_of_the_settings_is_a_key_and_every_key_a_field() -> None:
    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    assert names(Settings) == {key.name for key in COMMON} | {"framework", "section", "warnings"}
    for task, keys in SECTIONS.items():
        assert names(SECTION_TYPES[task]) == {key.name for key in keys}


def test_arguments_win_over_the_file(loaded: Any) -> None:
    config = {"task": "tensor", "level": "L0", "step": [7], "dump_path": "/from/file"}
    settings = loaded(config, task="statistics", level="mix", step=["0-2", 5], dump_path=Path("/from/argument"))
    assert (settings.task, settings.level) == ("statistics", "mix")
    assert (settings.step, settings.dump_path) == (frozenset([0, 1, 2, 5]), Path("/from/argument"))


def test_an_empty_step_argument_means_all_steps(loaded: Any) -> None:
    assert loaded({"step": [3]}, step=[]).step is None
    assert loaded({"step": [3]}).step == frozenset([3])


@pytest.mark.parametrize("step", [(1, 2), range(1, 3), {1, 2}, [1, "2"], ["1-2"]])
def test_a_step_argument_may_be_any_plain_collection(loaded: Any, step: object) -> None:
    assert loaded({}, step=step).step == frozenset([1, 2])


def test_a_dump_path_argument_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    assert load("pytorch", str(path), dump_path="/d").dump_path == Path("/d")


def test_a_file_with_a_path_alone_has_the_defaults_of_the_guide(loaded: Any) -> None:
    settings = loaded({})
    assert (settings.task, settings.level, settings.rank, settings.step) == ("statistics", "L1", None, None)
    section = loaded({"task": "free_benchmark"}).section
    assert (section.fuzz_device, section.pert_mode, section.handler_type) == ("npu", "improve_precision", "check")
    assert (section.fuzz_level, section.fuzz_stage, section.if_preheat) == ("L1", "forward", False)
    assert (section.preheat_step, section.max_sample) == (15, 20)
    assert loaded({"task": "overflow_check"}).section.overflow_nums == 1
    assert loaded({"task": "run_ut"}).section.rank_list == frozenset([0])


def test_paths_may_hold_blanks_and_any_language(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded({"dump_path": "./my dump/数据 é"}).dump_path == tmp_path / "my dump/数据 é"


@pytest.mark.parametrize("unset", ["", [], [""]])
def test_empty_values_mean_unset(loaded: Any, unset: object) -> None:
    keys = {key.name: unset for key in COMMON if key.name != "dump_path"}
    settings = loaded({**keys, "tensor": {key.name: unset for key in SECTIONS["tensor"]}}, task="tensor")
    assert settings == loaded({}, task="tensor")


def test_ranks_and_steps_are_expanded_and_counted_once(loaded: Any) -> None:
    settings = loaded({"rank": [0, "2", "4-6", 5], "step": ["0-0", "10-12"]})
    assert settings.rank == frozenset([0, 2, 4, 5, 6])
    assert settings.step == frozenset([0, 10, 11, 12])


def test_preheat_accepts_the_words_of_the_guide(loaded: Any) -> None:
    config = {"task": "free_benchmark", "free_benchmark": {"if_preheat": "true", "preheat_step": 3}}
    settings = loaded(config)
    assert (settings.section.if_preheat, settings.section.preheat_step, settings.warnings) == (True, 3, ())


def test_one_data_mode_may_stand_without_a_list(loaded: Any) -> None:
    assert loaded({"statistics": {"data_mode": "backward"}}).section.data_mode == ("backward",)


def test_backward_input_is_one_path_or_several(loaded: Any) -> None:
    for value in ("/g.pt", ["/g.pt"]):
        config = {
            "task": "tensor",
            "level": "L2",
            "tensor": {"list": ["Torch.mul.0.backward"], "backward_input": value},
        }
        assert loaded(config).section.backward_input == (Path("/g.pt"),)


def test_graph_mode_takes_statistic_names(loaded: Any) -> None:
    config = {"level": "L2", "statistics": {"summary_mode": ["max", "l2norm", "max"]}}
    assert loaded(config, "mindspore", graph_mode=True).section.summary_mode == ("max", "l2norm")


def test_free_benchmark_takes_any_number_of_scope_names_on_pytorch(loaded: Any) -> None:
    for names in (["Torch.matmul.0"], ["a.0", "b.1", "c.2"]):
        section = {"free_benchmark": {"scope": names}}
        assert loaded({"task": "free_benchmark", **section}).section.scope == tuple(names)


def test_to_cpu_goes_with_cpu_and_may_fix(loaded: Any) -> None:
    section = {"fuzz_device": "cpu", "pert_mode": "to_cpu", "handler_type": "fix"}
    assert loaded({"task": "free_benchmark", "free_benchmark": section}).section.handler_type == "fix"


def test_the_online_check_takes_a_shared_directory_or_an_address(loaded: Any) -> None:
    shared = loaded({"task": "tensor", "tensor": {"online_run_ut": True, "nfs_path": "/nfs"}})
    assert (shared.section.nfs_path, shared.warnings) == (Path("/nfs"), ())
    keys = {
        "host": "10.0.0.1",
        "port": 9000,
        "secret_file": "/s",
        "tls_cert": "/c",
        "tls_key": "/k",
        "tls_ca": "/a",
    }
    by_address = loaded({"task": "tensor", "tensor": {"online_run_ut": True, **keys}})
    assert (by_address.section.port, by_address.section.tls_ca, by_address.warnings) == (9000, Path("/a"), ())
    receiving = loaded({"task": "run_ut", "run_ut": {"is_online": True, "port": 9000, "rank_list": ["0-1"]}})
    assert (receiving.section.host, receiving.section.rank_list) == ("127.0.0.1", frozenset([0, 1]))


HINTS: list[tuple[str, dict[str, object], list[str]]] = [
    ("mindspore", {"seed": 1}, ["seed has no effect on MindSpore at level L1: it acts on PyTorch"]),
    (
        "mindspore",
        {"is_deterministic": True, "enable_dataloader": True},
        [
            "is_deterministic has no effect on MindSpore at level L1: it acts on PyTorch",
            "enable_dataloader has no effect on MindSpore at level L1: it acts on PyTorch",
        ],
    ),
    (
        "pytorch",
        {"acl_config": "acl.json"},
        ["acl_config has no effect on PyTorch at level L1: it acts on PyTorch at level L2"],
    ),
    (
        "pytorch",
        {"enable_dataloader": True},
        ["enable_dataloader is deprecated: use start(), stop() and step(), or `msprobe run`"],
    ),
    (
        "pytorch",
        {"task": "overflow_check", "overflow_check": {"check_mode": "all"}},
        ["overflow_check.check_mode has no effect on PyTorch at level L1: it acts on MindSpore graph mode"],
    ),
    (
        "pytorch",
        {"level": "debug", "statistics": {"list": ["relu"], "data_mode": ["all"]}},
        ["statistics.list has no effect on PyTorch at level debug: it acts at level L0, L1, L2, mix"],
    ),
    (
        "pytorch",
        {"task": "tensor", "tensor": {"file_format": "bin", "backward_input": "/g.pt"}},
        [
            "tensor.backward_input has no effect on PyTorch at level L1: it acts on PyTorch at level L2",
            "tensor.file_format has no effect on PyTorch at level L1: it acts on MindSpore at level L2",
        ],
    ),
    (
        "pytorch",
        {"task": "tensor", "tensor": {"port": 8000}},
        ["tensor.port has no effect while tensor.online_run_ut is false"],
    ),
    (
        "pytorch",
        {"task": "tensor", "tensor": {"online_run_ut": True, "nfs_path": "/n", "host": "h", "port": 8000}},
        ["tensor.host and tensor.port have no effect: tensor.nfs_path overrides them"],
    ),
    (
        "pytorch",
        {"statistics": {"file_format": "npy", "overflow_nums": 3}},
        [
            "statistics.file_format has no effect: it is a key of tensor",
            "statistics.overflow_nums has no effect: it is a key of overflow_check",
        ],
    ),
    (
        "pytorch",
        {"risk_level": "ALL", "statistics": {"device": "host"}},
        [
            "risk_level has no effect in msprobe: APIs are chosen in support_wrap_ops.yaml",
            "statistics.device has no effect in msprobe: statistics are computed on the device of the tensor",
        ],
    ),
    ("pytorch", {"tensor": {"file_format": "npy"}, "overflow_check": {"check_mode": "all"}}, []),
]


@pytest.mark.parametrize(("framework", "config", "expected"), HINTS, ids=[str(config) for _, config, _ in HINTS])
def test_a_known_key_without_effect_gives_a_warning(
    loaded: Any, framework: str, config: dict[str, object], expected: list[str]
) -> None:
    assert list(loaded(config, framework).warnings) == expected


@pytest.mark.parametrize("name", FOREIGN[""])
def test_keys_of_mindstudio_probe_load_with_a_warning(loaded: Any, name: str) -> None:
    warnings = loaded({name: {"any": ["thing"]}}).warnings
    assert warnings == (f"{name} has no effect in msprobe: {FOREIGN[''][name]}",)


@pytest.mark.parametrize(("task", "remedy"), FOREIGN_TASKS)
def test_tasks_of_mindstudio_probe_are_refused_with_a_remedy(loaded: Any, task: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded({"task": task})
    (problem,) = caught.value.problems
    assert str(problem) == f'task: msprobe has no task "{task}" of mindstudio-probe; {remedy}'


def test_a_key_of_mindstudio_probe_that_is_ours_at_the_top_level_loads_in_a_section(loaded: Any) -> None:
    (warning,) = loaded({"statistics": {"precision": "high"}}, "mindspore").warnings
    assert warning == "statistics.precision has no effect in msprobe: use the key precision at the top level"


def test_graph_mode_that_is_not_known_yet_accepts_what_either_mode_accepts(loaded: Any) -> None:
    assert loaded({"level": "L2", "statistics": {"summary_mode": ["max"]}}, "mindspore").warnings == ()
    assert loaded({"task": "overflow_check", "overflow_check": {"check_mode": "aicore"}}, "mindspore").warnings == ()


def test_settings_and_errors_travel_between_processes(loaded: Any) -> None:
    settings = loaded({"task": "tensor"})
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(ConfigError) as caught:
        loaded({"level": "L9"})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)


def test_loading_imports_no_framework() -> None:
    code = (
        "import sys, msprobe.config; msprobe.config.load('mindspore', dump_path='d');"
        "print([name for name in ('torch', 'mindspore', 'numpy', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
