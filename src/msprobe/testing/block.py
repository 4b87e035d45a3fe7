"""One block of a test: collected, and saved or checked. Under torchrun, rank 0 does this for all ranks."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from msprobe import __version__
from msprobe.baseline import Baseline, Store
from msprobe.baseline.changed_lines import current_commit
from msprobe.baseline.machine import machine_of
from msprobe.baseline.result import CheckResult, check_dump
from msprobe.config import load
from msprobe.dump.errors import DumpError
from msprobe.dump.layout import make_directory
from msprobe.dump.reader import open_dump
from msprobe.pytorch.driver import collecting
from msprobe.report.check_answer import answer_lines

MOST_LINES = 10


@dataclass(frozen=True)
class Block:
    """What a test asked for. `said` is the name in messages; `is_other_layout`: the baseline is never saved here.
    `steps` is how many optimizer steps are collected; None: all."""

    name: str
    said: str
    is_other_layout: bool
    directory: Path
    root: Path
    test: str
    tolerance: str
    steps: Optional[int]
    update: bool

    def make_directory(self) -> Path:
        """An empty directory; the ranks of one torchrun get the same one."""
        if _is_alone():
            return Path(tempfile.mkdtemp(prefix="msprobe_numerics_"))
        job = "|".join(os.environ.get(key, "") for key in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
        word = hashlib.blake2b(f"{os.getppid()}|{job}|{self.test}|{self.said}".encode(), digest_size=8).hexdigest()
        place = Path(tempfile.gettempdir(), f"msprobe_numerics_{os.getuid()}", word)
        _wait_for_ranks()
        if _rank() == 0:
            own_directory(place.parent)
            shutil.rmtree(place, ignore_errors=True)
            make_directory(place)
        _wait_for_ranks()
        own_directory(place.parent)
        return place

    @contextmanager
    def collect(self, work: Path) -> Iterator[None]:
        """Collects the block into `dump` in this directory."""
        settings = {
            "task": "statistics",
            "level": "mix",
            "dump_path": str(work / "dump"),
            "step": list(range(self.steps or 0)),
            "statistics": {"summary_mode": "md5"},
        }
        config = work / f"config{_rank()}.json"
        config.write_text(json.dumps(settings))
        logger = logging.getLogger("msprobe")
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            with collecting(load("pytorch", str(config))):
                yield
        except BaseException:
            _remove(work)
            raise
        finally:
            logger.setLevel(level)


def own_directory(place: Path) -> Path:
    """Makes a directory that only this user can write to. All users know its name, and one may have made it first."""
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise DumpError(f"{place} is not a directory of this user alone. Remove it, or set TMPDIR.")
    return place


def check_block(block: Block, dump: Path) -> str:
    """Saves or checks the dump of a block. Returns why the test fails, or an empty text; the same on every rank."""
    answer = dump.parent / "answer"
    _wait_for_ranks()
    try:
        if _rank() == 0:
            try:
                failure = _save_or_check(block, dump)
            except DumpError as error:
                failure = f"numerics {block.said!r}: {error}"
            answer.write_text(failure, encoding="utf-8")
        _wait_for_ranks()
        failure = answer.read_text(encoding="utf-8")
        _wait_for_ranks()
    finally:
        _remove(dump.parent)
    return failure


def _save_or_check(block: Block, dump: Path) -> str:
    if not dump.is_dir():
        raise DumpError("nothing was collected: the block calls no torch.nn.Module with parameters.")
    store = Store(block.directory)
    if block.update and not block.is_other_layout:
        machine = machine_of(open_dump(dump).ranks[0].run)
        now = time.strftime("%Y-%m-%d", time.gmtime())
        steps = sorted({rank.step or 0 for rank in open_dump(dump).ranks})
        commit, command = current_commit(block.root), ["pytest", block.test]
        store.save(
            Baseline(block.name, machine, command, commit, now, __version__, None, steps, None, 0, None, ""),
            dump,
            block.root,
        )
        return ""
    if block.name not in store.names():
        how = "on one device " if block.is_other_layout else ""
        raise DumpError(f"There is no baseline {block.name!r} in {block.directory}. Run {how}pytest --numerics-update")
    golden, other = dump.parent / "golden", block.is_other_layout
    result = check_dump(store, block.name, dump, golden, block.tolerance, other_layout=other)
    return "" if result.answer.passed else _failure(block, result)


def _failure(block: Block, result: CheckResult) -> str:
    """The origin, in ten lines."""
    head, *rest = answer_lines(result)
    remedy = "" if block.is_other_layout else " If this is intended: pytest --numerics-update"
    return "\n".join([f"numerics {block.said!r}: {head}", *rest[:-1][: MOST_LINES - 2], f"{rest[-1]}.{remedy}"])


def _rank() -> int:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() and "WORLD_SIZE" in os.environ else 0


def _is_alone() -> bool:
    return os.environ.get("WORLD_SIZE", "1") == "1"


def _wait_for_ranks() -> None:
    if _is_alone():
        return
    import torch

    if not torch.distributed.is_initialized():
        raise DumpError("numerics under torchrun needs torch.distributed.init_process_group before the block.")
    torch.distributed.barrier()


def _remove(work: Path) -> None:
    if _rank() == 0:
        shutil.rmtree(work, ignore_errors=True)
