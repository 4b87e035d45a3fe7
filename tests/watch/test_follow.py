"""`msprobe watch DIR --follow`: alarms as they come, from a run that goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import torch

from json_schemas import check_schema
from msprobe.pytorch import Monitor


def heed_interrupts() -> None:
    """A job in the background ignores them otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_alarm_is_printed_while_the_run_goes_on(tmp_path, options):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path)})
    monitor.step(loss=1.0)
    command = [sys.executable, "-m", "msprobe", "watch", str(tmp_path), "--follow", *options]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    try:
        first = reader.stdout.readline()
        assert json.loads(first)["alarms"] == [] if options else "Alarms: none" in first
        if not options:
            assert "step" in reader.stdout.readline()
        monitor.step(loss=float("nan"))
        came = reader.stdout.readline()
        if options:
            alarm = json.loads(came)
            check_schema("watch-alarm", alarm)
            assert {"step": 1, "rank": 0, "rule": "nan", "target": "loss"}.items() <= alarm.items()
            assert alarm["message"]["id"] == "alarm.at"
            assert alarm["message"]["arguments"]["what"]["arguments"] == {"loss": "nan", "usual": "1"}
        else:
            assert came == "step 1  rank 0  nan  At step 1 the loss is nan; it was about 1.\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(60) == 1
    finally:
        reader.kill()
        reader.wait()
        monitor.close()
