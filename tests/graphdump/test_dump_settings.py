"""data_dump.json: both generations are read; thirty-odd bad files, each with its message; nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe.config.errors import ConfigError
from msprobe.graphdump.dumping.devices import (
    ASCEND,
    CPU,
    GPU,
    find_device,
    is_for_framework,
    is_selected,
    make_ascend_config,
    write_ascend_config,
)
from msprobe.graphdump.dumping.dump_settings import CATEGORIES, load_settings, parse_settings
from msprobe.graphdump.dumping.framework_config import list_remarks
from msprobe.graphdump.dumping.running import prepare_dump

COMMON, E2E = "common_dump_settings", "e2e_dump_settings"
CURRENT = {
    COMMON: {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": "/absolute_path",
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": ["Default/Conv-op12"],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "statistic_category": ["max", "min", "l2norm"],
    },
    E2E: {"enable": True, "trans_flag": True, "stat_calc_mode": "host"},
}
OLD = {
    COMMON: {
        "dump_mode": 0,
        "path": "/absolute_path",
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "input_output": 0,
        "kernels": ["Default/Conv-op12"],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "op_debug_mode": 2,
    }
}


def test_the_examples_of_both_generations_are_read():
    now = parse_settings(CURRENT, "now", {})
    assert (now.iteration, now.saved_data, now.enable, now.statistics) == ("0|5-8|100-120", "tensor", True, ())
    old = parse_settings(OLD, "old", {})
    assert (old.op_debug_mode, old.enable, old.statistic_category) == (2, False, ("max", "min", "l2norm"))


def test_blanks_in_iteration_and_an_empty_path_are_understood():
    value = {COMMON: {"path": "", "iteration": " 0 | 5-8 |100 - 120"}}
    settings = parse_settings(value, "x", {"MS_DIAGNOSTIC_DATA_PATH": "/data"})
    assert (settings.path, settings.iteration) == ("/data/debug_dump", "0|5-8|100-120")


def test_a_variable_that_the_framework_would_refuse_is_refused_before_the_script_starts():
    with pytest.raises(ConfigError, match=r'MS_DIAGNOSTIC_DATA_PATH: found "/tmp/a.b"; MindSpore allows only letters'):
        parse_settings({COMMON: {}}, "x", {"MS_DIAGNOSTIC_DATA_PATH": "/tmp/a.b"})


def test_every_statistic_goes_with_every_other():
    value = {COMMON: {"path": "/d", "saved_data": "full", "statistic_category": list(CATEGORIES)}}
    assert parse_settings(value, "x", {}).statistics == tuple(CATEGORIES)


def bad(section: str = COMMON, **keys: object) -> object:
    value: dict[str, dict[str, object]] = {COMMON: {"path": "/dump", "net_name": "N"}, E2E: {"enable": True}}
    value[section].update(keys)
    return value


BAD = [
    ([], "file: found []; allowed: an object with common_dump_settings"),
    ({}, "common_dump_settings: this section is missing; add it, at least with net_name and path"),
    ({COMMON: 3}, "common_dump_settings: found 3; allowed: an object"),
    ({COMMON: {"path": "/d"}, "e2e_dump_setting": {}}, 'did you mean "e2e_dump_settings"?'),
    (bad(op_debug_mod=0), 'common_dump_settings.op_debug_mod: unknown key; allowed: "op_debug_mode"'),
    (bad(E2E, enabled=True), 'e2e_dump_settings.enabled: unknown key; allowed: "enable"'),
    (bad(op_debug_mode=5), "op_debug_mode: found 5; allowed: an integer from 0 to 4"),
    (bad(op_debug_mode="3"), 'op_debug_mode: found "3"; allowed: an integer'),
    (bad(dump_mode=3), "dump_mode: found 3; allowed: an integer from 0 to 2"),
    (bad(dump_mode=True), "dump_mode: found true; allowed: an integer"),
    (bad(path="./x"), 'path: found "./x"; allowed: an absolute path'),
    (bad(path=""), "path: it is empty and MS_DIAGNOSTIC_DATA_PATH is not"),
    (bad(path="/a b"), 'path: found "/a b"; MindSpore allows only letters, digits, -, _ and / in this path'),
    (bad(path=7), "path: found 7; allowed: an absolute path"),
    (bad(net_name="../up"), 'net_name: found "../up"; allowed: letters, digits, _ and -'),
    (bad(net_name=""), 'net_name: found ""; allowed: letters'),
    (
        bad(iteration=3),
        'iteration: found 3; allowed: "all", or numbers and ranges such as "0 | 5-8 | 100-120"; did you',
    ),
    (bad(iteration="8-5"), 'iteration: found "8-5"; allowed: "all"'),
    (bad(iteration="0,1"), 'iteration: found "0,1"; allowed: "all"'),
    (bad(iteration="0||1"), 'iteration: found "0||1"; allowed: "all"'),
    (bad(saved_data="statistics"), 'saved_data: found "statistics"; allowed: "tensor", "statistic", "full"; did you'),
    (bad(input_output=3), "input_output: found 3; allowed: an integer from 0 to 2"),
    (bad(kernels="Conv"), 'kernels: found "Conv"; allowed: a list of names'),
    (bad(kernels=["name-regex(()"], dump_mode=1), 'kernels[0]: found "name-regex(()"; not a regular expression'),
    (bad(dump_mode=1), "kernels with dump_mode: kernels is () and dump_mode is 1; dump_mode 1 saves the operators in"),
    (bad(support_device=[]), "support_device: found []; allowed: a list of device numbers"),
    (bad(support_device=["0"]), 'support_device: found ["0"]; allowed: a list of device numbers'),
    (bad(statistic_category=["norm"]), 'statistic_category[0]: found "norm"; allowed: "max", "min"'),
    (bad(statistic_category=[]), "statistic_category: found []; allowed: a list of some of"),
    (bad(overflow_number=-1, op_debug_mode=3), "overflow_number: found -1; allowed: an integer from 0"),
    (bad(initial_iteration=-3), "initial_iteration: found -3; allowed: an integer from 0"),
    (bad(op_debug_mode=4, iteration="0"), "iteration with op_debug_mode: iteration is '0' and op_debug_mode is 4"),
    (bad(op_debug_mode=3, saved_data="full"), "saved_data with op_debug_mode: saved_data is 'full' and op_debug_mode"),
    (bad(op_debug_mode=3, input_output=1), "input_output with op_debug_mode: input_output is 1 and op_debug_mode is 3"),
    (bad(op_debug_mode=4, input_output=0), "input_output with op_debug_mode: input_output is 0 and op_debug_mode is 4"),
    (bad(E2E, enable="true"), 'enable: found "true"; allowed: true, false; did you mean true?'),
    (bad(E2E, stat_calc_mode="gpu"), 'stat_calc_mode: found "gpu"; allowed: "host", "device"'),
    (bad(E2E, device_stat_precision_mode="mid"), 'device_stat_precision_mode: found "mid"; allowed: "high", "low"'),
    (bad(E2E, sample_mode=2), "sample_mode: found 2; allowed: an integer from 0 to 1"),
    (bad(E2E, sample_num=0), "sample_num: found 0; allowed: an integer from 1"),
    (
        bad(E2E, save_kernel_args=True, enable=False),
        "save_kernel_args with enable: save_kernel_args is True and enable",
    ),
]


@pytest.mark.parametrize(("value", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_a_bad_file_gives_its_message(value: object, message: str):
    with pytest.raises(ConfigError) as caught:
        parse_settings(value, "data_dump.json", {})
    assert message in str(caught.value)
    assert str(caught.value).startswith("data_dump.json: 1 problem\n")


@pytest.mark.parametrize("value", [value for value, _ in BAD], ids=[message[:40] for _, message in BAD])
def test_a_bad_file_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object):
    monkeypatch.delenv("MS_DIAGNOSTIC_DATA_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "data_dump.json"
    config.write_text(json.dumps(value).replace('"/dump"', json.dumps(str(tmp_path / "dump"))))
    with pytest.raises(ConfigError):
        prepare_dump(config, CPU)
    assert list(tmp_path.iterdir()) == [config]


def test_statistics_of_the_device_are_four_only():
    value = {
        COMMON: {"path": "/d", "saved_data": "full", "statistic_category": ["max", "md5"]},
        E2E: {"stat_calc_mode": "device"},
    }
    with pytest.raises(ConfigError, match=r"statistic_category with stat_calc_mode: .*only max, min, avg, l2norm"):
        parse_settings(value, "x", {})


def test_sampling_needs_mode_0_and_one_error_has_all_problems():
    value = {COMMON: {"path": "/d", "op_debug_mode": 3, "dump_mode": 9}, E2E: {"sample_mode": 1}}
    with pytest.raises(ConfigError) as caught:
        parse_settings(value, "x", {})
    assert [problem.path for problem in caught.value.problems] == [
        "common_dump_settings.dump_mode",
        "sample_mode with op_debug_mode",
    ]


@pytest.mark.parametrize(
    ("text", "message"), [("{", "the file ends too early"), ('{"a": 1,}', "a comma after the last")]
)
def test_a_file_that_is_not_json_gives_its_place(tmp_path: Path, text: str, message: str):
    path = tmp_path / "data_dump.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings(path)
    with pytest.raises(ConfigError, match="this file does not exist"):
        load_settings(tmp_path / "none.json")


def test_the_script_is_not_started_and_nothing_is_left_behind(tmp_path: Path):
    out = tmp_path / "out"
    config = tmp_path / "data_dump.json"
    config.write_text(json.dumps({COMMON: {"path": str(out), "iteration": 3}}))
    script = tmp_path / "train.py"
    script.write_text("print('started')\n")
    command = [sys.executable, "-m", "msprobe", "graph", "dump", "--config", str(config), str(script)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "common_dump_settings.iteration: found 3" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data_dump.json", "train.py"]


def test_overflow_number_without_overflow_mode_is_a_notice():
    settings = parse_settings(bad(overflow_number=2), "data_dump.json", {})
    assert list_remarks(settings, 0, CPU) == ["overflow_number is ignored: it needs op_debug_mode 3, and that is 0."]


def test_on_ascend_the_framework_gets_what_only_the_device_can_do(tmp_path: Path):
    asynchronous = parse_settings({COMMON: {"path": str(tmp_path), "iteration": "0 | 2"}}, "x", {})
    statistics = {"saved_data": "statistic", "statistic_category": ["max", "avg"]}
    on_device = parse_settings(
        {COMMON: {"path": "/d", **statistics}, E2E: {"enable": True, "stat_calc_mode": "device"}}, "x", {}
    )
    overflow = parse_settings(
        {COMMON: {"path": "/d", "op_debug_mode": 3, "overflow_number": 5}, E2E: {"enable": True}}, "x", {}
    )
    for settings in (asynchronous, on_device, overflow):
        assert is_for_framework(settings, ASCEND)
        assert not is_for_framework(settings, CPU)
        assert not is_for_framework(settings, GPU)
    tensors = parse_settings(CURRENT, "x", {})
    assert not is_for_framework(tensors, ASCEND)
    assert make_ascend_config(asynchronous)[E2E]["enable"] is False
    made = make_ascend_config(on_device)
    assert made[E2E]["stat_calc_mode"] == "device"
    assert (made[COMMON]["saved_data"], made[COMMON]["statistic_category"]) == ("statistic", ["max", "avg"])
    made = make_ascend_config(overflow)[COMMON]
    assert (made["op_debug_mode"], made["overflow_number"]) == (3, 5)
    written = write_ascend_config(asynchronous, "x", 1)
    assert written.name == "kernel_kbyk_dump_1.json"
    assert json.loads(written.read_text())[COMMON]["iteration"] == "0|2"
    assert written.stat().st_mode & 0o777 <= 0o640
    assert parse_settings(json.loads(written.read_text()), "x", {}).iteration == "0|2"


def test_the_kind_of_device_is_found_by_its_nodes(tmp_path: Path):
    assert find_device(tmp_path) == CPU
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert find_device(tmp_path) == GPU
    (tmp_path / "davinci_manager").touch()
    assert find_device(tmp_path) == GPU
    (tmp_path / "davinci0").touch()
    assert find_device(tmp_path) == ASCEND


def test_support_device_selects_on_devices_only():
    settings = parse_settings({COMMON: {"path": "/d", "support_device": [1, 2]}, E2E: {"enable": True}}, "x", {})
    assert [is_selected(settings, rank, ASCEND) for rank in range(3)] == [False, True, True]
    assert [is_selected(settings, rank, CPU) for rank in range(3)] == [True, True, True]
    assert list_remarks(settings, 0, ASCEND) == ["rank 0 is not in support_device (1, 2): this rank dumps nothing."]
    (said,) = list_remarks(settings, 0, CPU)
    assert said.startswith("support_device (1, 2) has no effect on a CPU")
