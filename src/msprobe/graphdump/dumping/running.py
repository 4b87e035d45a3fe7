"""Puts a dump in place for one training process: the framework's configuration, and the worker beside it."""

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
from msprobe.graphdump.dumping.dump_settings import DumpSettings, load_settings
from msprobe.graphdump.dumping.framework_side import NO_KERNEL, prepare, remarks
from msprobe.graphdump.dumping.worker import Job
from msprobe.processes import python_command, python_environment

VARIABLE = "MINDSPORE_DUMP_CONFIG"
DISK_BUDGET = 2 << 30
LEAST_BUDGET = 64 << 20  # what a fast disk takes while the worker is not looking


def rank_here() -> int:
    """The rank that a launcher gave this process; 0 without one."""
    for name in ("RANK_ID", "MS_NODE_ID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def is_scheduler() -> bool:
    """Whether this is msrun's scheduler: it runs the script as far as communication.init() and is no rank."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


@dataclass
class Prepared:
    """A checked configuration whose framework side is written; `variable` is for the training's environment."""

    settings: DumpSettings
    written: str
    staging: Path
    variable: str

    def start(self, pid: int, budget: int, may_pause: bool, by_steps: bool = False) -> Running:
        job = Job(self.settings, self.written, str(self.staging), budget, pid, may_pause, by_steps)
        command = python_command("from msprobe.graphdump.dumping.worker import main; sys.exit(main())")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=python_environment(), text=True
        )
        running = Running(process, self.settings, budget, by_steps)
        running.send(job.to_json())
        return running


def prepared(config: Union[str, os.PathLike[str]]) -> Optional[Prepared]:
    """Check and lay out everything; None where this rank is not to be dumped. Raises ConfigError."""
    return lay_out(load_settings(config), os.fspath(config), Path(config).read_text(encoding="utf-8"))


def lay_out(settings: DumpSettings, source: str, written: str) -> Optional[Prepared]:
    """`prepared`, for settings that were checked already; `written` is kept with the dump as its configuration."""
    if is_scheduler():
        return None
    rank = rank_here()
    for remark in remarks(settings, rank):
        notices.inform(remark)
    if rank not in settings.support_device:
        return None
    staging, variable = prepare(settings, source, rank)
    return Prepared(settings, written, staging, str(variable))


class Running:
    """The worker's process."""

    def __init__(
        self, process: subprocess.Popen[str], settings: DumpSettings, budget: int, by_steps: bool = False
    ) -> None:
        self._process = process
        self._by_steps = by_steps
        self._settings = settings
        self._budget = budget

    def resume_if_it_ends(self, process: subprocess.Popen[bytes]) -> None:
        """A worker that is killed must not leave the training held."""

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
        """Wait for the last files and tell what there is. `failure` is the text of what ended the training."""
        try:
            if failure is not None:
                self.send(json.dumps({"failed": failure}))
            text, _ = self._process.communicate()
        except BrokenPipeError:
            text = ""
        if not text.strip():
            notices.warn(
                f"the dump's worker ended early (code {self._process.wait()}): {self._settings.path} is not complete."
            )
            return {}
        told: dict[str, Any] = json.loads(text)
        if self._settings.kernels == (NO_KERNEL,):
            notices.inform(f"graphs and execution orders, without values, are in {self._settings.path}")
            return told
        if self._by_steps and not told["tensors"]:
            return told  # no compiled region ran: nothing to tell
        for note in told["notes"]:
            notices.inform(note + ".")
        counts = f"tensors: {told['tensors']}, rows of statistic.csv: {told['rows']}, tensor files: {told['kept']}"
        notices.inform(f"{counts}; in {self._settings.path}")
        self._tell_disk(told["paused"], told["peak"])
        if not told["tensors"] and self._settings.op_debug_mode == 0:
            notices.warn("nothing was dumped: no graph ran in the iterations wanted, or no operator was chosen.")
        return told

    def _tell_disk(self, paused: int, peak: int) -> None:
        if not (self._settings.op_debug_mode or not self._settings.keeps_tensors or self._settings.sample_mode):
            return  # the files stay: they are what was asked for
        if peak > self._budget:
            notices.warn(f"files in passing took up to {peak} bytes, over the disk budget of {self._budget}.")
        elif paused:
            notices.inform(f"the training was held {paused} times; files in passing took up to {peak} bytes.")
