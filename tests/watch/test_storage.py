"""The database: crash-safe, small, bounded, quick to query; exports and comparisons read it back."""

from __future__ import annotations

import csv
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from msprobe.cli import main
from msprobe.dump.errors import DumpError
from msprobe.messages import Message
from msprobe.pytorch import Monitor
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.reading.run import Run
from msprobe.watch.store import ABSENT, ALARMS_WITHOUT_MESSAGES, Store
from msprobe.watch.targets import SCALAR, Target

SCRIPT = Path(__file__).with_name("train_until_killed.py")
STATISTICS = ("norm", "max", "nan")


def made(path, steps, targets=100, largest=1 << 30, alarm_at=()):
    store = Store(path / "watch.sqlite", {}, largest, None)
    store.add([(Target("grad", f"layer{n}", n), STATISTICS) for n in range(targets)])
    for step in range(steps):
        numbers = np.full(targets * 3, float(step))
        alarms = [Alarm(step, "nan", "grad", "layer3", "…", position=3)] if step in alarm_at else []
        store.write(step, numbers, alarms)
    store.close()
    return path


def test_everything_up_to_the_last_step_survives_a_kill(tmp_path):
    training = subprocess.Popen([sys.executable, str(SCRIPT), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    last = -1
    for line in training.stdout:
        last = int(line)
        if last == 12:
            os.kill(training.pid, signal.SIGKILL)
            break
    training.wait()
    run = Run(tmp_path)
    assert run.ranks[0].steps()[: last + 1] == list(range(last + 1))
    assert len(run.ranks[0].curve("scalar", "loss", "value")[0]) >= last + 1


def test_a_number_takes_at_most_40_bytes(tmp_path):
    path = made(tmp_path, 500)
    size = sum(file.stat().st_size for file in path.iterdir())
    assert size / (500 * 300) < 40


def test_files_are_closed_to_others(tmp_path):
    path = made(tmp_path / "new", 2)
    assert path.stat().st_mode & 0o777 == 0o750
    assert (path / "watch.sqlite").stat().st_mode & 0o777 == 0o640


def test_a_million_numbers_are_queried_quickly(tmp_path):
    began = time.process_time()
    path = made(tmp_path, 3500, alarm_at=(17,))
    written = time.process_time()
    run = Run(path)
    steps, values = run.ranks[0].curve("grad", "layer42", "norm")
    alarms = run.alarms()
    asked = time.process_time()
    assert (len(steps), values[7], alarms[0].step) == (3500, 7.0, 17)
    assert asked - written < (written - began) / 2  # benchmarks/watch.py measures the time itself


def test_memory_does_not_grow_with_steps(tmp_path):
    """Allocated memory after 400 steps and after 700: what grows by more than 4 bytes a step would be seen.

    The interpreter's cache of attribute names is emptied first: it alone varies by up to 60 bytes a step, because numpy
    and torch make new strings for their look-ups.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": "all"})
    x, sizes = torch.randn(2, 4), {}
    tracemalloc.start()
    try:
        for step in range(701):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
            if step in (400, 700):
                sys._clear_type_cache()
                gc.collect()
                sizes[step] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        monitor.close()
    assert (sizes[700] - sizes[400]) / 300 < 4, sizes


def test_old_steps_are_thinned_and_the_surroundings_of_an_alarm_stay(tmp_path):
    path = made(tmp_path, 2000, largest=1_000_000, alarm_at=(100,))
    run = Run(path)
    steps = run.ranks[0].steps()
    assert (path / "watch.sqlite").stat().st_size < 2_000_000
    assert set(range(84, 117)) <= set(steps)
    assert steps[-64:] == list(range(1936, 2000))
    assert len(steps) < 600


def test_a_run_that_goes_on_keeps_what_was_before_its_first_step(tmp_path):
    made(tmp_path, 10)
    store = Store(tmp_path / "watch.sqlite", {}, 1 << 30, keep_before=6)
    store.write(6, np.full(300, 60.0))
    store.close()
    steps, values = Run(tmp_path).ranks[0].curve("grad", "layer0", "norm")
    assert steps.tolist() == list(range(7))
    assert values[-1] == 60


def test_an_alarm_keeps_its_message(tmp_path):
    said = Message("alarm.at", step=1, target=Message("target.loss"), what=Message("alarm.loss_nan", loss="nan"))
    store = Store(tmp_path / "watch.sqlite", {}, 1 << 30, None)
    store.write(1, np.empty(0), [Alarm(1, "nan", SCALAR, "loss", said)])
    store.close()
    (alarm,) = Run(tmp_path).alarms()
    assert (alarm.sentence, alarm.as_json()["message"]) == (said, said.as_json())
    with sqlite3.connect(tmp_path / "watch.sqlite") as database:
        database.execute("UPDATE alarms SET sentence = 'something else'")
    database.close()
    (alarm,) = Run(tmp_path).alarms()
    assert (alarm.sentence, "message" in alarm.as_json()) == ("something else", False)


def test_a_run_of_an_older_msprobe_is_read_and_goes_on(tmp_path, capsys):
    """Its alarms are text without messages."""
    made(tmp_path, 4, targets=1, alarm_at=(1,))
    file = tmp_path / "watch.sqlite"
    with sqlite3.connect(file) as database:
        rows = [row[:-1] for row in database.execute("SELECT * FROM alarms")]
        database.execute("DROP TABLE alarms")
        database.execute(ALARMS_WITHOUT_MESSAGES)
        database.executemany(f"INSERT INTO alarms VALUES ({', '.join('?' * 11)})", rows)
    database.close()
    assert main(["watch", str(tmp_path), "--json"]) == 1
    (alarm,) = json.loads(capsys.readouterr().out)["alarms"]
    assert "message" not in alarm
    store = Store(file, {}, 1 << 30, keep_before=3)
    store.add_alarms([Alarm(3, "nan", SCALAR, "loss", Message("alarm.loss_nan", loss="nan"))])
    store.close()
    old, new = Run(tmp_path).alarms()
    assert (old.sentence, new.as_json()["message"]["id"]) == (alarm["sentence"], "alarm.loss_nan")


def test_a_new_run_sets_the_old_one_aside(tmp_path):
    made(tmp_path, 10)
    made(tmp_path, 3)
    assert Run(tmp_path).ranks[0].steps() == [0, 1, 2]
    assert len(list(tmp_path.glob("old-*/watch.sqlite"))) == 1


def test_absent_numbers_are_not_nan(tmp_path):
    store = Store(tmp_path / "watch.sqlite", {}, 1 << 30, None)
    store.add([(Target("grad", "a"), ("norm",)), (Target("grad", "b"), ("norm",))])
    store.write(0, np.array([np.nan, ABSENT[0]]))
    store.close()
    rank = Run(tmp_path).ranks[0]
    assert len(rank.curve("grad", "a", "norm")[1]) == 1
    assert len(rank.curve("grad", "b", "norm")[1]) == 0


@pytest.mark.parametrize("content", [b"", b"no database" * 100])
def test_a_damaged_file_is_one_clear_error(tmp_path, content, capsys):
    (tmp_path / "watch.sqlite").write_bytes(content)
    with pytest.raises(DumpError, match=r"watch\.sqlite"):
        Run(tmp_path)
    assert main(["watch", str(tmp_path)]) == 2


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 2
    assert "has no watch*.sqlite" in capsys.readouterr().err


def test_csv_has_a_row_for_each_target_and_step(tmp_path):
    path = made(tmp_path, 3, targets=2)
    assert main(["watch", "export", str(path), "--csv", "-o", str(tmp_path / "out")]) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "rank.csv").open()))
    assert [(row["step"], row["kind"], row["name"], row["norm"]) for row in rows][-1] == ("2", "grad", "layer1", "2.0")
    assert len(rows) == 6


def test_tensorboard_reads_what_was_exported(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = made(tmp_path, 5, targets=2)
    assert main(["watch", "export", str(path), "--tensorboard"]) == 0
    events = EventAccumulator(str(path / "export" / "tensorboard" / "rank"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("grad/layer1/norm")] == [(n, n) for n in range(5)]


def test_parquet_reads_what_was_exported(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = made(tmp_path, 3, targets=2)
    assert main(["watch", "export", str(path), "--parquet"]) == 0
    table = parquet.read_table(path / "export" / "rank.parquet").to_pydict()
    assert table["norm"] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def curves(path, factor, noise_seed):
    noise = np.random.RandomState(noise_seed)
    store = Store(path / "watch.sqlite", {}, 1 << 30, None)
    store.add([(Target("grad", name, n), ("norm",)) for n, name in enumerate("ab")])
    for step in range(80):
        usual = 1 + 0.05 * noise.randn(2)
        usual[1] *= factor if step >= 40 else 1
        store.write(step, usual)
    store.close()
    return str(path)


def test_comparing_finds_where_two_noisy_runs_part(tmp_path, capsys):
    one, other = curves(tmp_path / "a", 1, 1), curves(tmp_path / "b", 1.5, 2)
    assert main(["watch", "compare", one, other]) == 1
    said = capsys.readouterr().out
    parted = said.split("First difference beyond noise: ")[1]
    assert parted.startswith("step 4")
    assert "grad/b" in parted


def test_runs_that_differ_by_noise_alone_do_not_part(tmp_path, capsys):
    one, other = curves(tmp_path / "a", 1, 1), curves(tmp_path / "b", 1, 2)
    assert main(["watch", "compare", one, other]) == 0
    assert "No curve diverges beyond its noise" in capsys.readouterr().out


def test_the_same_run_is_the_same(tmp_path, capsys):
    one, other = curves(tmp_path / "a", 1, 1), curves(tmp_path / "b", 1, 1)
    assert main(["watch", "compare", one, other]) == 0
    assert "Both runs are the same" in capsys.readouterr().out


HARMS = {
    "statistics": "UPDATE targets SET statistics = NULL",
    "unknown statistics": "UPDATE targets SET statistics = 'norm,=1+1'",
    "column": "UPDATE targets SET first = -5",
    "far column": "UPDATE targets SET first = 1 << 60",
    "kind of a target": "UPDATE targets SET kind = 'gra'",
    "kind of an alarm": "UPDATE alarms SET kind = 'gra'",
    "shape": "UPDATE targets SET shape = '{'",
    "sizes": "UPDATE targets SET shape = '[\"a\"]'",
    "numbers": "UPDATE steps SET numbers = 'text'",
    "time": "UPDATE steps SET time = 'noon'",
    "one huge step": "UPDATE steps SET numbers = zeroblob(100000000) WHERE step = 1",
    "around": "UPDATE alarms SET around = '[5]'",
    "sentence": "UPDATE alarms SET sentence = x'ff'",
    "message": "UPDATE alarms SET message = '['",
    "settings": "INSERT INTO meta VALUES ('alarms', '[]')",
    "no table": "DROP TABLE steps",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_database_is_one_sentence(tmp_path, capsys, harm):
    path = made(tmp_path, 2000, targets=3, alarm_at=(1,))
    assert main(["watch", str(path)]) == 1
    with sqlite3.connect(path / "watch.sqlite") as database:
        database.execute(HARMS[harm])
    database.close()
    capsys.readouterr()
    codes = [
        main(["watch", str(path)]),
        main(["watch", "export", str(path), "--csv"]),
        main(["watch", "compare", str(path), str(path)]),
    ]
    assert 2 in codes
    for line in capsys.readouterr().err.splitlines():
        assert line.startswith("msprobe watch: ")
        assert "watch.sqlite" in line


def test_a_pipe_or_a_link_in_the_place_of_a_database_is_refused(tmp_path, capsys):
    outside = made(tmp_path / "outside", 2)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/watch.sqlite").symlink_to(outside / "watch.sqlite")
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped/watch.sqlite")
    for name in ("linked", "piped"):
        assert main(["watch", str(tmp_path / name)]) == 2
        assert "is not a regular file in this directory" in capsys.readouterr().err


def test_an_exported_name_is_never_a_formula(tmp_path):
    store = Store(tmp_path / "watch.sqlite", {}, 1 << 30, None)
    store.add([(Target("grad", "=1+1", 0), STATISTICS)])
    store.write(0, np.ones(3))
    store.close()
    assert main(["watch", "export", str(tmp_path), "--csv"]) == 0
    assert "grad,'=1+1," in (tmp_path / "export/rank.csv").read_text()
