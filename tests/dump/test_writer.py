"""The directory has exactly what collecting writes, whatever happens to the disk or the process."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe.dump import layout
from msprobe.dump.reader import open_dump
from msprobe.dump.writing.writer import Head, Payload, RankWriter, Worker

HEAD = Head("statistics", "mix", "pytorch")
ARRAY = np.arange(6, dtype=np.float32)


class LoggedMessages(list[str]):
    def __call__(self, message: str) -> None:
        self.append(message)


@pytest.fixture
def logged() -> LoggedMessages:
    return LoggedMessages()


@pytest.fixture
def worker(logged: LoggedMessages) -> Iterator[Worker]:
    made = Worker(log=logged)
    yield made
    made.close()


def directory(tmp_path: Path, step: int = 0) -> Path:
    return layout.rank_directory(tmp_path / "dump", step, None)


def payload(array: np.ndarray[Any, Any] = ARRAY, kind: str = "pt") -> Payload:
    return Payload(array.dtype.name, array.shape, array.copy(), kind)


def test_the_json_files_have_the_order_and_form_that_the_field_expects(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.stack(0, ["File a.py, line 1, in f, \n x"])
    writer.begin(1, "Module.m.Net.forward.0", None, 0, '"input_args": [1], "input_kwargs": {}')
    writer.begin(2, "Functional.relu.0.forward", "Module.m.Net.forward.0", 0, '"input_args": []')
    writer.begin(3, "Functional.gelu.0.forward", "Module.m.Net.forward.0", 0, '"input_args": []')
    writer.end(2, '"output": [NaN]')
    writer.drop(3)
    writer.end(1, '"output": [-Infinity]')
    writer.record("Functional.relu.0.backward", None, None, '"input": []')
    writer.debug("x.0.debug", "[1, null]")
    done = writer.finish()
    assert (done.records, done.errors) == (4, 0)
    assert (directory(tmp_path) / "dump.json").read_text() == (
        '{\n "task": "statistics",\n "level": "mix",\n "framework": "pytorch",\n "dump_data_dir": null,\n "data": {\n'
        '  "Functional.relu.0.forward": {"input_args": [], "output": [NaN]},\n'
        '  "Module.m.Net.forward.0": {"input_args": [1], "input_kwargs": {}, "output": [-Infinity]},\n'
        '  "Functional.relu.0.backward": {"input": []}\n }\n}'
    )
    assert json.loads((directory(tmp_path) / "stack.json").read_text()) == {
        "0": [["Functional.relu.0.forward", "Module.m.Net.forward.0"], ["File a.py, line 1, in f, \n x"]]
    }
    assert json.loads((directory(tmp_path) / "construct.json").read_text()) == {
        "Functional.relu.0.forward": "Module.m.Net.forward.0",
        "Module.m.Net.forward.0": None,
        "Functional.relu.0.backward": None,
    }
    assert json.loads((directory(tmp_path) / "debug.json").read_text())["data"] == {"x.0.debug": [1, None]}


@pytest.mark.parametrize(
    ("head", "files", "construct"),
    [
        (Head("statistics", "L1", "pytorch"), {"dump.json", "stack.json", "construct.json"}, "{}"),
        (Head("statistics", "mix", "pytorch", extra_info=False), {"dump.json"}, None),
        (Head("statistics", "debug", "pytorch"), {"debug.json"}, None),
    ],
)
def test_each_level_gets_the_files_that_belong_to_it(
    tmp_path: Path, worker: Worker, head: Head, files: set[str], construct: str | None
) -> None:
    writer = RankWriter(directory(tmp_path), head, worker)
    if head.level == "debug":
        writer.debug("a.0.debug", "1")
    else:
        writer.record("a", "b", None, "")
    writer.finish()
    made = {file.name for file in directory(tmp_path).iterdir()}
    assert made == files | {"journal.jsonl"}
    if construct is not None:
        assert (directory(tmp_path) / "construct.json").read_text() == construct


def test_text_with_line_breaks_and_lone_surrogates_still_makes_sound_lines(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.record("a\nb\ud800", None, None, '"x":\n[1,\n"\ud801"]')
    writer.finish()
    assert open_dump(directory(tmp_path)).ranks[0].records == {"a\nb\ud800": {"x": [1, "\ud801"]}}


def test_repeated_content_is_one_file_under_several_names(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    names = [writer.tensor(f"t.{n}", payload()) for n in range(3)]
    other = writer.tensor("other", payload(ARRAY.reshape(2, 3)))
    linked = writer.link("linked", other)
    assert names == ["t.0.pt", "t.1.pt", "t.2.pt"]
    assert linked == "linked.pt"
    done = writer.finish()
    assert (done.tensors, done.links, done.errors) == (2, 3, 0)
    files = directory(tmp_path) / "dump_tensor_data"
    assert len({(files / name).stat().st_ino for name in names}) == 1
    assert (files / other).stat().st_ino == (files / linked).stat().st_ino
    assert {stat.S_IMODE((files / name).stat().st_mode) for name in (*names, linked)} == {0o440}
    rank = open_dump(directory(tmp_path)).ranks[0]
    assert all(np.array_equal(rank.tensor(name), ARRAY) for name in names)
    assert sorted(file.name for file in files.iterdir()) == sorted([*names, other, linked])


def test_a_name_that_is_written_again_never_changes_what_was_linked_to_it(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.tensor("a", payload(ARRAY))
    writer.tensor("b", payload(ARRAY))
    writer.tensor("a", payload(ARRAY + 1))
    writer.tensor("c", payload(ARRAY))
    writer.tensor("d", payload(ARRAY + 1))
    writer.tensor("d", payload(ARRAY + 1))
    writer.tensor("b", payload(ARRAY + 1))
    writer.tensor("b", payload(ARRAY + 1))
    writer.link("e", "c.pt")
    writer.link("e", "d.pt")
    writer.link("e", "d.pt")
    assert writer.finish().errors == 0
    rank = open_dump(directory(tmp_path)).ranks[0]
    values = {name: float(rank.tensor(f"{name}.pt")[0]) for name in "abcde"}
    assert values == {"a": 1, "b": 1, "c": 0, "d": 1, "e": 1}
    assert not list((directory(tmp_path) / "dump_tensor_data").glob(".*"))


def test_where_links_end_the_content_is_written_again(
    tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(os, "link", refuse)
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.tensor("a", payload())
    writer.tensor("b", payload())
    writer.link("c", "a.pt")
    done = writer.finish()
    assert (done.tensors, done.links, done.errors) == (3, 0, 0)
    rank = open_dump(directory(tmp_path)).ranks[0]
    assert all(np.array_equal(rank.tensor(f"{name}.pt"), ARRAY) for name in "abc")


def test_too_long_names_are_listed_next_to_their_files(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    name = "Module." + "x" * 300
    file_name = writer.tensor(name, payload())
    writer.finish()
    files = directory(tmp_path) / "dump_tensor_data"
    assert (files / file_name).exists()
    assert (files / "mapping.csv").read_text() == f"{file_name},{name}\n"


def test_a_finished_step_that_continues_is_finished_again(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.record("a", None, None, "")
    assert writer.finish().records == 1
    writer.record("b", None, None, "")
    writer.flush()
    assert not (directory(tmp_path) / "dump.json").exists()
    assert list(open_dump(directory(tmp_path)).ranks[0].records) == ["a", "b"]
    assert writer.finish().records == 2
    assert list(open_dump(directory(tmp_path)).ranks[0].records) == ["a", "b"]


def test_a_directory_with_a_dump_is_moved_and_this_is_logged(
    tmp_path: Path, worker: Worker, logged: LoggedMessages
) -> None:
    for value in (1, 2):
        writer = RankWriter(directory(tmp_path), HEAD, worker)
        writer.record("a", None, None, f'"n": {value}')
        writer.finish()
    assert open_dump(directory(tmp_path)).ranks[0].records == {"a": {"n": 2}}
    (old,) = tmp_path.glob("dump.old-*")
    assert open_dump(old).ranks[0].records == {"a": {"n": 1}}
    assert len(logged) == 1
    assert "was moved to" in logged[0]


def test_records_reach_the_file_within_a_second_without_being_asked(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.record("a", None, None, "")
    deadline = time.monotonic() + 20
    journal = directory(tmp_path) / "journal.jsonl"
    while time.monotonic() < deadline and not (journal.exists() and '"record"' in journal.read_text()):
        time.sleep(0.02)
    assert '"record"' in journal.read_text()


def test_a_header_that_comes_while_the_older_one_is_written_is_kept(
    tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RankWriter(tmp_path / "r", HEAD, worker)
    plain = layout.write_file
    newer = {"a": 1, "parallel": {"groups": {"tp": [0, 1]}}}

    def write(path: Path, *rest: Any) -> None:
        plain(path, *rest)
        if path.name == layout.RUN:
            monkeypatch.setattr(layout, "write_file", plain)
            writer.run_header(newer)  # what start() does while the writer's thread is here

    monkeypatch.setattr(layout, "write_file", write)
    writer.run_header({"a": 1})
    writer.flush()
    writer.finish()
    assert json.loads((tmp_path / "r" / layout.RUN).read_text()) == newer


def test_run_header_and_error_log_are_written(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.run_header({"python": "3", "path": Path("x")})
    writer.error("Functional.relu.0.forward", "Traceback\n  boom")
    writer.error("Functional.relu.1.forward", "Traceback\n  boom")
    writer.finish()
    assert open_dump(directory(tmp_path)).ranks[0].run == {"python": "3", "path": "x"}
    log = (directory(tmp_path) / "dump_error_info.log").read_text()
    assert log.count("boom") == 2
    assert "Functional.relu.1.forward" in log


def say_a_lot(writer: RankWriter) -> None:
    for number in range(600):
        writer.begin(number, f"Torch.add.{number}.forward", None, None, '"input_args": ["' + "x" * 200 + '"]')
        data_name = writer.tensor(f"Torch.add.{number}.forward.output.0", payload(ARRAY + number))
        writer.end(number, f'"output": ["{data_name}"]')
    writer.link("again", "Torch.add.599.forward.output.0.pt")
    writer.run_header({"a": 1})
    writer.error("x", "y")
    writer.flush()


def test_a_full_disk_gives_one_message_and_no_exception(tmp_path: Path, worker: Worker, logged: LoggedMessages) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mount)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("cannot mount a small disk here; the next test fills one by a limit")
    try:
        writer = RankWriter(layout.rank_directory(mount, 0, None), HEAD, worker)
        say_a_lot(writer)
        done = writer.finish()
        assert done.errors > 100
        assert len(logged) == 1
        assert "No space left on device" in logged[0]
        assert "Training continues" in logged[0]
        rank = open_dump(mount).ranks[0]
        assert rank.records
        assert all(name.startswith("Torch.add.") for name in rank.records)
        second = RankWriter(layout.rank_directory(mount, 1, None), HEAD, worker)
        say_a_lot(second)
        second.finish()
        assert len(logged) == 1
    finally:
        worker.close()
        subprocess.run(["umount", str(mount)], check=True)


def test_a_file_size_limit_gives_one_message_and_no_exception(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "import test_writer as t\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "logged = t.LoggedMessages()\n"
        "writer = t.RankWriter(t.directory(Path(sys.argv[1])), t.HEAD, t.Worker(log=logged))\n"
        "t.say_a_lot(writer)\n"
        "done = writer.finish()\n"
        "print(len(logged), done.errors > 100, logged[0].splitlines()[0])\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("1 True msprobe cannot write the journal in")
    assert open_dump(tmp_path / "dump").ranks[0].records


def test_an_unwritable_directory_gives_one_message_and_no_exception(
    tmp_path: Path, worker: Worker, logged: LoggedMessages
) -> None:
    (tmp_path / "dump").write_text("a file stands here")
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    say_a_lot(writer)
    done = writer.finish()
    assert done.records == 0
    assert done.errors > 100
    assert len(logged) == 1
    assert "Training continues" in logged[0]
    assert (tmp_path / "dump").read_text() == "a file stands here"


def test_an_internal_error_is_logged_once_and_loses_only_its_own_line(
    tmp_path: Path, worker: Worker, logged: LoggedMessages
) -> None:
    def broken() -> list[str]:
        raise RuntimeError("no source")

    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.stack(0, broken)
    writer.stack(1, broken)
    writer.record("a", None, 0, "")
    assert writer.finish().records == 1
    assert len(logged) == 1
    assert "no source" in logged[0]


def test_a_forked_child_writes_nothing_and_leaves_the_parent_alone(tmp_path: Path, worker: Worker) -> None:
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    writer.record("before", None, None, "")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for number in range(1000):
                writer.record(f"child.{number}", None, None, "")
            writer.tensor("child", payload())
            writer.flush()
            worker.close()
            status = 0 if writer.finish().records == 0 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writer.record("after", None, None, "")
    writer.finish()
    assert list(open_dump(directory(tmp_path)).ranks[0].records) == ["before", "after"]
    assert not (directory(tmp_path) / "dump_tensor_data").exists()


def test_several_threads_may_speak_at_once(tmp_path: Path, worker: Worker) -> None:
    import threading

    writer = RankWriter(directory(tmp_path), HEAD, worker)

    def speak(thread: int) -> None:
        for number in range(2000):
            call = thread * 10_000 + number
            writer.begin(call, f"T.{thread}.{number}", None, None, f'"a": {number}')
            writer.end(call, '"b": 1')

    threads = [threading.Thread(target=speak, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.finish().records == 8000
    records = open_dump(directory(tmp_path)).ranks[0].records
    assert records["T.3.1999"] == {"a": 1999, "b": 1}


def test_the_queue_never_holds_more_bytes_than_its_limit(tmp_path: Path, logged: LoggedMessages) -> None:
    worker = Worker(limit=1 << 20, log=logged)
    writer = RankWriter(directory(tmp_path), HEAD, worker)
    most = 0
    for number in range(200):
        writer.tensor(f"t.{number}", payload(np.full(50_000, number, dtype=np.float32)))
        most = max(most, worker._queued)
    assert most <= 1 << 20
    writer.tensor("larger than the limit", payload(np.zeros(1 << 19, dtype=np.float32)))
    done = writer.finish()
    assert (done.tensors, done.errors) == (201, 0)
    assert worker._queued == 0
    worker.close()


def test_a_script_that_never_finishes_gets_its_files_at_exit(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "import test_writer as t\n"
        "writer = t.RankWriter(t.directory(Path(sys.argv[1])), t.HEAD, t.Worker())\n"
        "writer.record('a', None, None, '')\n"
        "del writer\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    rank = open_dump(tmp_path / "dump").ranks[0]
    assert not rank.unfinished
    assert list(rank.records) == ["a"]


KILLED = """
import sys; sys.path.insert(0, sys.argv[2])
from pathlib import Path
import test_writer as t
writer = t.RankWriter(t.directory(Path(sys.argv[1])), t.Head("tensor", "mix", "pytorch"), t.Worker())
number = 0
while True:
    name = f"Torch.add.{number}.forward"
    writer.begin(number, name, None, None, '"input_args": ["' + "x" * 300 + '"]')
    data_name = writer.tensor(f"{name}.output.0", t.payload(t.ARRAY + number))
    writer.end(number, f'"output": ["{data_name}"]')
    number += 1
    if number % 200 == 0:
        writer.flush()
        print(number, flush=True)
"""


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.3])
def test_after_kill_9_every_flushed_record_and_its_file_is_there(tmp_path: Path, pause: float) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(3):
        flushed = int(process.stdout.readline())
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait(30)
    flushed = int(rest[-1]) if rest else flushed
    rank = open_dump(tmp_path / "dump").ranks[0]
    assert rank.unfinished
    assert rank.troubles == []
    complete = {name: record for name, record in rank.records.items() if "unfinished" not in record}
    assert len(complete) >= flushed
    assert list(complete) == [f"Torch.add.{n}.forward" for n in range(len(complete))]
    for number, record in enumerate(complete.values()):
        assert rank.tensor(record["output"][0])[0] == number


def test_code_on_the_writer_thread_itself_may_log_and_flush(tmp_path: Path, logged: LoggedMessages) -> None:
    worker = Worker(limit=1000, log=logged)
    writer = RankWriter(directory(tmp_path), HEAD, worker)

    def frames() -> list[str]:
        for number in range(300):
            writer.record(f"late.{number}", None, None, "")
        writer.flush()
        return ["File x"]

    writer.stack(0, frames)
    writer.flush()
    assert writer.finish().records == 300
    worker.close()
    assert logged == []
