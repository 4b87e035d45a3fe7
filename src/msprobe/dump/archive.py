"""Two runs into one dump_path never mix: the older one is moved to `{dump_path}.old-{time}/`.

The ranks of one run start at the same moment and share the directory, so a rank has to know whether
what it finds there is old or was made a second ago by a sister. A small register in dump_path, changed
under a file lock, lists the processes of the current run. A process joins that run when its place is
free and either one launcher started both or a member still lives; otherwise a new run begins and what
is there is moved away, except the directories of members that live.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from msprobe.dump import layout

LOCK = ".msprobe_run.lock"
OTHER_HOST_SECONDS = 600.0
JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_PORT",
    "MS_SCHED_PORT",
    "WORLD_SIZE",
    "MS_WORKER_NUM",
)

Tell = Callable[[object, str], None]
Member = dict[str, Any]


def archive_older_run(dump_path: Path, rank: Optional[int] = None) -> Optional[Path]:
    """Registers this process and moves what an older run left; returns where it went, or None.

    Call it once a process, when the rank is known and before the first directory is made. Raises
    OSError where dump_path cannot be written.
    """
    root = _absolute(dump_path)
    layout.make_directory(root)
    place, me = layout.rank_name(rank), _this_process()
    with _locked(root):
        run = _read_register(root)
        if run.get(place, {}).get("process") == me["process"]:
            return None
        moved = None
        if place in run or not any(_is_sister(one, me) for one in run.values()):
            run = {name: one for name, one in run.items() if name != place and _may_live(one)}
            moved = _move_steps(root, keep=set(run))
        layout.write_file(root / layout.REGISTER, [json.dumps({**run, place: me}).encode()])
    return moved


def set_aside(rank_dir: Path, tell: Tell) -> None:
    """Moves a rank directory that already has a dump in it, so that a writer starts with an empty one."""
    used = (layout.JOURNAL, *layout.RESULTS, layout.TENSORS)
    if not any((rank_dir / name).exists() for name in used):
        return
    rank_dir = _absolute(rank_dir)
    root = layout.dump_root(rank_dir)
    inside = rank_dir.relative_to(root)
    old = _move(root, [inside])
    tell(("aside", rank_dir), f"{rank_dir} already held a dump; it was moved to {old / inside}.")


def put_aside(dump_path: Path, inside: Path) -> Path:
    """Moves one directory of an older run, named from dump_path on; returns what it is in now."""
    return _move(_absolute(dump_path), [inside])


def _is_sister(one: Member, me: Member) -> bool:
    if one.get("job") != me["job"]:
        return False
    return _may_live(one) or (one.get("host") == me["host"] and one.get("launcher") == me["launcher"])


def _may_live(one: Member) -> bool:
    """Whether a member's process runs; on another host, where nobody can look, whether it is recent."""
    if one.get("host") == socket.gethostname():
        process = one.get("process")
        return isinstance(process, list) and len(process) == 2 and process == _process(process[0])
    since = one.get("since")
    return isinstance(since, (int, float)) and abs(time.time() - since) < OTHER_HOST_SECONDS


def _this_process() -> Member:
    return {
        "host": socket.gethostname(),
        "process": _process(os.getpid()),
        "launcher": _process(os.getppid()),
        "job": "|".join(os.environ.get(name, "") for name in JOB_VARIABLES),
        "since": time.time(),
    }


def _process(pid: int) -> list[int]:
    """A pid and when it started, because a pid is used again; [] where there is no such process."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text()
        return [pid, int(text.rpartition(")")[2].split()[19])]
    except (OSError, ValueError, IndexError):
        return [] if Path("/proc/self/stat").exists() else _process_without_proc(pid)


def _process_without_proc(pid: int) -> list[int]:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return []
    except OSError:
        pass  # another user's: it lives
    return [pid, 0]


def _read_register(root: Path) -> dict[str, Member]:
    try:
        run = json.loads((root / layout.REGISTER).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(run, dict):
        return {}
    return {place: one for place, one in run.items() if isinstance(one, dict)}


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    fd = layout.open_file(str(root / LOCK), os.O_RDWR | os.O_CREAT)
    try:
        layout.lock(fd)
        yield
    finally:
        os.close(fd)


def _move_steps(root: Path, keep: set[str]) -> Optional[Path]:
    """Moves every rank directory that is not kept; returns the directory above them all."""
    old: list[Path] = []
    for base in (root, *(root / name for name in layout.MODE_PARENTS)):
        for step in _steps(base):
            children = list(step.iterdir())
            ranks = [child for child in children if child.name not in keep]
            old += [step] if len(ranks) == len(children) else ranks
    if not old:
        return None
    moved = _move(root, [path.relative_to(root) for path in old])
    for name in layout.MODE_PARENTS:
        with contextlib.suppress(OSError):  # not empty, or not there
            (root / name).rmdir()
    return moved


def _steps(base: Path) -> list[Path]:
    if not base.is_dir():
        return []
    return sorted(path for path in base.iterdir() if layout.parse_step(path.name) is not None and path.is_dir())


def _move(root: Path, old: list[Path]) -> Path:
    """Moves paths inside root to beside it; where that is another disk or not allowed, to `old-{time}` in it.

    The directory they go to is always a new one, so that two older runs do not mix either.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    beside, within = root.with_name(f"{root.name}.old-{stamp}"), root / f"old-{stamp}"
    try:
        return _move_to(_unused(beside), root, old)
    except OSError:
        left = [path for path in old if (root / path).exists()]
        return _move_to(_unused(within), root, left)


def _move_to(target: Path, root: Path, old: list[Path]) -> Path:
    try:
        for path in old:
            layout.make_directory((target / path).parent)
            (root / path).rename(target / path)
    except OSError:
        with contextlib.suppress(OSError):
            target.rmdir()
        raise
    return target


def _unused(target: Path) -> Path:
    candidate, number = target, 1
    while candidate.exists():
        number += 1
        candidate = target.with_name(f"{target.name}-{number}")
    return candidate


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 resolve() would follow a symbolic link of the user's
