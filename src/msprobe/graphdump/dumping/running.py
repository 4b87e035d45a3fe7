"""Starts a dump for one training process: writes MindSpore's configuration and starts the worker process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.collect import notices
from msprobe.graphdump.dumping.devices import is_for_framework, is_selected, write_ascend_config
from msprobe.graphdump.dumping.dump_settings import DumpSettings, load_settings
from msprobe.graphdump.dumping.framework_config import NO_KERNEL, list_remarks, prepare
from msprobe.graphdump.dumping.worker import Job
from msprobe.system.processes import python_command, python_environment

VARIABLE = "MINDSPORE_DUMP_CONFIG"
DISK_BUDGET = 2 << 30
LEAST_BUDGET = 64 << 20  # what a fast disk can receive between two checks of the worker


def rank_here() -> int:
    """The rank that a launcher gave this process; 0 without one."""
    for name in ("RANK_ID", "MS_NODE_ID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def is_scheduler() -> bool:
    """Whether this process is msrun's scheduler. It runs the script up to communication.init() and has no rank."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


@dataclass
class PreparedDump:
    """A checked configuration. MindSpore's part is written; `variable` belongs in the environment of the training."""

    settings: DumpSettings
    written: str
    staging: Path
    variable: str

    def start(self, pid: int, budget: int, may_pause: bool, by_steps: bool = False) -> DumpRun:
        job = Job(self.settings, self.written, str(self.staging), budget, pid, may_pause, by_steps)
        command = python_command("from msprobe.graphdump.dumping.worker import main; sys.exit(main())")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=python_environment(), text=True
        )
        running = DumpRun(process, self.settings, budget, by_steps)
        running.send(job.to_json())
        return running


def prepare_dump(config: Union[str, os.PathLike[str]], device: str) -> Union[PreparedDump, FrameworkDump, None]:
    """Checks the configuration and creates the directories; None if this rank dumps nothing. Raises ConfigError."""
    settings = load_settings(config)
    return leave_to_framework(settings, os.fspath(config), device) or lay_out(
        settings, os.fspath(config), Path(config).read_text(encoding="utf-8"), device
    )


@dataclass
class FrameworkDump:
    """A dump that MindSpore makes alone. `variable` belongs in the environment of the training."""

    variable: str


def leave_to_framework(settings: DumpSettings, source: str, device: str) -> Optional[FrameworkDump]:
    """Writes MindSpore's configuration if the settings ask for what only MindSpore can do on this device."""
    rank = rank_here()
    if is_scheduler() or not is_for_framework(settings, device) or not is_selected(settings, rank, device):
        return None
    variable = write_ascend_config(settings, source, rank)
    notices.inform(
        f"MindSpore itself dumps to {settings.path} on {device}; `msprobe graph` and `msprobe convert` read it."
    )
    return FrameworkDump(str(variable))


def lay_out(settings: DumpSettings, source: str, written: str, device: str) -> Optional[PreparedDump]:
    """As `prepare_dump`, for settings that were already checked. The dump keeps `written` as its configuration."""
    if is_scheduler():
        return None
    rank = rank_here()
    for remark in list_remarks(settings, rank, device):
        notices.inform(remark)
    if not is_selected(settings, rank, device):
        return None
    staging, variable = prepare(settings, source, rank)
    return PreparedDump(settings, written, staging, str(variable))


class DumpRun:
    """A dump in progress: the worker process."""

    def __init__(
        self, process: subprocess.Popen[str], settings: DumpSettings, budget: int, by_steps: bool = False
    ) -> None:
        self._process = process
        self._by_steps = by_steps
        self._settings = settings
        self._budget = budget
        self.expects_tensors = not by_steps
        self.matched: Optional[list[str]] = None
        """The entries of `kernels` that selected an operator, after the end of the dump."""

    def resume_if_it_ends(self, process: subprocess.Popen[bytes]) -> None:
        """Resumes the training if the worker is killed while the training is paused."""

        def watch() -> None:
            self._process.wait()
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)

        threading.Thread(target=watch, daemon=True).start()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self, failure: Optional[str] = None) -> dict[str, Any]:
        """Waits for the last files and logs the summary. `failure` is the text of the exception, if any."""
        try:
            if failure is not None:
                self.send(json.dumps({"failed": failure}))
            text, _ = self._process.communicate()
        except BrokenPipeError:
            text = ""
        if not text.strip():
            notices.warn(
                f"the dump worker ended early (exit code {self._process.wait()}): {self._settings.path} is incomplete."
            )
            return {}
        summary: dict[str, Any] = json.loads(text)
        self.matched = summary["matched"]
        if self._settings.kernels == (NO_KERNEL,):
            notices.inform(f"graphs and execution orders, without values, are in {self._settings.path}")
            return summary
        if not summary["tensors"] and self._by_steps:
            if self.expects_tensors:
                notices.warn("nothing was dumped: no compiled region or optimizer ran in the wanted steps.")
            return summary
        for note in summary["notes"]:
            notices.inform(note + ".")
        counts = "tensors: {tensors}, rows of statistic.csv: {rows}, tensor files: {kept}".format_map(summary)
        notices.inform(f"{counts}; in {self._settings.path}")
        self._log_disk_use(summary["paused"], summary["peak"])
        if not summary["tensors"] and self._settings.op_debug_mode == 0:
            notices.warn("nothing was dumped: no graph ran in the selected iterations, or no operator was selected.")
        return summary

    def _log_disk_use(self, paused: int, peak: int) -> None:
        if not (self._settings.op_debug_mode or not self._settings.keeps_tensors or self._settings.sample_mode):
            return  # all files stay: none is temporary
        if peak > self._budget:
            notices.warn(f"temporary files took up to {peak} bytes, more than the disk budget of {self._budget}.")
        elif paused:
            notices.inform(f"the training was paused {paused} times; temporary files took up to {peak} bytes.")
