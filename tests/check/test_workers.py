"""A call that crashes, hangs or takes all memory fails alone; an interrupted check continues."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import train

from msprobe.check.core.framework import NotCallable
from msprobe.check.core.generate import NotMade, make
from msprobe.check.core.plan import make_plan
from msprobe.check.pytorch.resolve import Callables
from msprobe.cli import main
from msprobe.dump.names import parse_api_name

TRAPS = """
import os, time, torch
library = torch.library.Library("traps", "DEF")
for name in ("crash", "hang", "leave", "fine"):
    library.define(f"{name}(Tensor x) -> Tensor")
library.impl("crash", lambda x: os.kill(os.getpid(), 11), "CPU")
library.impl("hang", lambda x: time.sleep(600), "CPU")
library.impl("leave", lambda x: os._exit(3), "CPU")
library.impl("fine", lambda x: x * 2, "CPU")
"""


def tensor(shape: list[int], **members: Any) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, "Max": 1.0, "Min": -1.0, **members}


def written(path: Path, records: dict[str, Any]) -> Path:
    """A dump as it may come from anywhere."""
    rank = path / "dump" / "step0" / "rank"
    rank.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (rank / "dump.json").write_text(json.dumps({**head, "data": records}))
    return path / "dump"


def call(*args: Any) -> dict[str, Any]:
    return {"input_args": list(args), "input_kwargs": {}, "output": []}


def text(value: object) -> dict[str, Any]:
    return {"type": "str", "value": str(value)}


def results(directory: Path) -> dict[str, list[str]]:
    (file,) = directory.glob("accuracy_checking_result_*.csv")
    return {row[0]: row[1:] for row in list(csv.reader(file.open()))[1:]}


def test_a_call_that_ends_or_stops_its_process_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traps.py").write_text(TRAPS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    names = ["fine", "crash", "fine", "hang", "fine", "leave", "fine"]
    records = {f"Ops.traps.{name}.{n}.forward": call(tensor([4])) for n, name in enumerate(names)}
    dump = written(tmp_path, records)
    out = tmp_path / "out"
    command = ["run_ut", "-api_info", str(dump), "-o", str(out), "--jobs", "1", "--timeout", "5", "--import", "traps"]
    assert main(command) == 1
    found = results(out)
    assert len(found) == len(names)
    assert all(found[f"Ops.traps.fine.{n}"][0] == "pass" for n in (0, 2, 4, 6))
    assert "SIGSEGV" in found["Ops.traps.crash.1"][2]
    assert "within 5 s" in found["Ops.traps.hang.3"][2]
    assert "code 3" in found["Ops.traps.leave.5"][2]


def test_a_dump_from_anywhere_reaches_nothing_but_the_support_list(tmp_path: Path) -> None:
    hostile = {
        "Torch.load.0.forward": call({"type": "str", "value": "/etc/passwd"}),
        "Torch.hub.load.0.forward": call({"type": "str", "value": "x"}),
        "Torch.from_file.0.forward": call(text(tmp_path / "made"), {"type": "bool", "value": True}),
        "Aten.from_file.0.forward": call(text(tmp_path / "made"), {"type": "bool", "value": True}),
        "Ops.load_library.x.0.forward": call({"type": "str", "value": "/tmp/x.so"}),
        "Ops.__class__.mro.0.forward": call(),
        "Tensor.__reduce__.0.forward": call(tensor([2])),
        "os.system.0.forward": call({"type": "str", "value": f"touch {tmp_path}/made"}),
        "Torch.relu.0.forward": call(tensor([1 << 40, 1 << 40])),
        "Torch.relu.1.forward": call(tensor([-5])),
        "Torch.relu.2.forward": call(tensor([2], data_name="../../../../etc/passwd")),
        "Torch.relu.3.forward": call(tensor([2], data_name="evil.pt")),
        "Torch.relu.4.forward": call({"type": "builtins.object"}),
        "Torch.relu.5.forward": {"input_args": "x", "output": 5},
        "Torch.relu.6.forward": call(tensor([2], dtype="torch.load")),
        "Tensor.repeat.0.forward": call(tensor([1000]), {"type": "int", "value": 10**10}),
        "Torch.relu.7.forward": call(tensor([3])),
    }  # fmt: skip
    dump = written(tmp_path, hostile)
    data = dump / "step0" / "rank" / "dump_tensor_data"
    data.mkdir()

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save(Evil(), data / "evil.pt")
    out = tmp_path / "out"
    assert main(["run_ut", "-api_info", str(dump), "-o", str(out), "--jobs", "1"]) == 0
    found = results(out)
    assert len(found) == len(hostile)
    assert [name for name, row in found.items() if row[0] != "SKIP"] == ["Torch.relu.7"]
    assert all(row[2] for name, row in found.items() if row[0] == "SKIP"), found
    assert not (tmp_path / "made").exists()


def test_a_stopped_check_continues(tmp_path: Path) -> None:
    dump = train(tmp_path, "gpt", steps=3)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "msprobe",
        "run_ut",
        "-api_info",
        str(dump / "step0"),
        "-o",
        str(out),
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = list(out.glob("accuracy_checking_result_*.csv"))
        if files and files[0].read_text().count("\n") > 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (file,) = out.glob("accuracy_checking_result_*.csv")
    with file.open("a") as torn:
        torn.write("Torch.torn.0,pa")
    before = results(out)
    assert main([*command[3:], "-csv_path", str(file)]) == 0
    after = results(out)
    assert list(before)[:3] == list(after)[:3]
    assert "Torch.torn.0" not in after
    (details,) = out.glob("accuracy_checking_details_*.csv")
    names = [row[0] for row in csv.reader(details.open())]
    assert len(names) == len(set(names))
    assert len(after) == 16


def test_an_interrupt_from_the_terminal_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(60)\n")
    written(tmp_path, {"Torch.relu.0.forward": call(tensor([2]))})
    command = [sys.executable, "-m", "msprobe", "run_ut", "-api_info", "dump", "-o", "out", "--import", "slow"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, logged = process.communicate(timeout=30)
    assert process.returncode == 130
    assert logged.count("\n") == 1
    assert "interrupted. Continue with -csv_path out/accuracy_checking_result_" in logged


def test_failing_calls_leave_their_data_where_the_configuration_says(tmp_path: Path) -> None:
    dump = train(tmp_path / "run", "handmade")
    rank = dump / "step0" / "rank"
    content = json.loads((rank / "dump.json").read_text())
    (silu,) = (name for name in content["data"] if name.startswith("Functional.silu") and name.endswith("forward"))
    item = content["data"][silu]["output"][0]
    item["data_name"] = content["data"][silu]["input_args"][0]["data_name"]  # a kernel that does nothing
    (rank / "dump.json").write_text(json.dumps(content))
    config = tmp_path / "config.json"
    section = {"white_list": ["silu", "softmax"], "black_list": ["softmax"], "error_data_path": str(tmp_path / "kept")}
    config.write_text(json.dumps({"task": "run_ut", "run_ut": section}))
    out = tmp_path / "out"
    command = ["run_ut", "-api_info", str(dump), "-o", str(out), "-config", str(config), "-save_error_data"]
    assert main([*command, "--jobs", "1"]) == 1
    assert list(results(out)) == [silu.rpartition(".")[0]]
    (kept,) = (tmp_path / "kept").glob("*/*")
    files = {file.name.partition("silu.0.")[2] for file in kept.iterdir()}
    assert {"forward.input.0.pt", "forward.output.0.golden.pt", "forward.output.0.device.pt"} <= files
    assert torch.load(next(kept.glob("*input.0.pt")), weights_only=True).shape == (3, 10, 48)
    assert all(file.stat().st_mode & 0o777 == 0o640 for file in kept.iterdir())


def test_the_lists_and_the_filter_choose_calls() -> None:
    records = {
        f"Torch.{name}.{n}.forward": call(tensor([n // 2 + 1])) for n in range(4) for name in ("mm", "exp", "sin")
    }

    def planned(white: list[str], black: list[str], once: bool = False) -> set[str]:
        return {task.call for task in make_plan(records, white, black, once).tasks}

    assert len(planned([], [])) == 12
    assert planned(["exp"], []) == {f"Torch.exp.{n}" for n in range(4)}
    assert planned(["exp"], ["sin"]) == planned(["exp"], [])
    assert planned(["exp", "mm"], ["mm"]) == planned(["exp"], [])
    assert planned(["exp"], [], once=True) == {"Torch.exp.0", "Torch.exp.2"}
    assert make_plan(records, ["exq"], []).notes == ["'exq' in the white or black list matches no API of this dump."]


def test_inputs_are_made_from_statistics() -> None:
    made = make(tensor([1000], Max=3.0, Min=-2.0), "seed")
    assert made[0] == -2.0
    assert made[-1] == 3.0
    assert -2.0 <= made.min() <= made.max() <= 3.0
    assert (made == make(tensor([1000], Max=3.0, Min=-2.0), "seed")).all()
    assert make(tensor([3], Max=float("inf"), Min=0.0), "s")[-1] == float("inf")
    assert make({**tensor([9]), "dtype": "torch.int64", "Max": 7, "Min": 7}, "s").tolist() == [7] * 9
    assert make({**tensor([2]), "dtype": "torch.bool", "Max": True, "Min": True}, "s").all()
    assert make(tensor([0], Max=None, Min=None), "s").shape == (0,)
    with pytest.raises(NotMade):
        make(tensor([1 << 50]), "s")


def test_names_are_read_strictly() -> None:
    assert parse_api_name("Functional.conv2d.12.forward") == ("Functional", "conv2d", 12, "forward")
    assert parse_api_name("Torch.linalg.norm.0.backward") == ("Torch", "linalg.norm", 0, "backward")
    for odd in ("Module.a.Linear.forward.0", "conv2d.0.forward", "Torch..0.forward", "Torch.a/b.0.forward", ""):
        assert parse_api_name(odd) is None
    with pytest.raises(NotCallable):
        Callables().find("Torch.load")


def test_every_task_reports_a_module_that_a_worker_cannot_import() -> None:
    """Online a framework is loaded at its first task: the second must not run without the user's operators."""
    code = """if True:
        from msprobe.check.core.worker import _Worker
        settings = {"device": "cpu", "error_data": None, "imports": ["no_such_module"], "memory": 0}
        worker = _Worker(settings)
        for _ in range(2):
            print(worker.answer({"framework": "pytorch"})["message"])
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    logged = ended.stdout.splitlines()
    assert len(logged) == 2
    assert all("ModuleNotFoundError: No module named 'no_such_module'" in line for line in logged)
