"""Two runs into one dump_path never mix: the older one is moved to `{dump_path}.old-{time}/`.

The ranks of one run start at the same moment and share the directory. So a rank must know whether the files there are
old, or were written a second ago by another rank of the same run. A small register in dump_path, protected by a file
lock, lists the processes of the current run.

A process joins that run if its place is free, and either one launcher started both or a member is still alive.
Otherwise a new run begins and the older files are moved away, except the directories of members that are alive. While a
run of another job writes there, nothing is moved: the later run goes to `{dump_path}/run-2`, which has its own
register.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from msprobe.dump import layout

LOCK = ".msprobe_run.lock"
OTHER_HOST_SECONDS = 600.0
LARGEST_REGISTER = 64 << 20
JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_PORT",
    "MS_SCHED_PORT",
    "WORLD_SIZE",
    "MS_WORKER_NUM",
)

Log = Callable[[object, str], None]
Member = dict[str, Any]
Run = dict[str, Member]


class Claim(NamedTuple):
    """Where this process writes. `root` is dump_path or a directory in it; `moved` is the new place of an older run."""

    root: Path
    moved: Optional[Path]


def archive_older_run(dump_path: Path, rank: Optional[int] = None, again: bool = False) -> Claim:
    """Registers this process and moves the dump of an older run.

    Call it once for each run, when the rank is known and before the first directory is created. `again`: this process
    has already written there, for an earlier run. Raises OSError if dump_path cannot be written.
    """
    top = _absolute(dump_path)
    layout.make_directory(top)
    place, me = layout.rank_name(rank), _this_process()
    with _locked(top):
        runs = {root: _read_register(root) for root in _roots(top)}
        mine = next((root for root, run in runs.items() if _is_same(run.get(place), me)), None)
        if mine is not None:
            own = _move_steps(mine, keep=set(runs[mine]) - {place}) if again else None
            return Claim(_as_given(dump_path, top, mine), own)
        free = [root for root, run in runs.items() if not _is_in_use(run, place, me)]
        root = next((root for root in free if _has_other_rank(runs[root], place, me)), free[0])
        layout.make_directory(root)
        run, moved = runs[root], None
        if place in run or not _has_other_rank(run, place, me):
            run = {name: one for name, one in run.items() if name != place and _may_live(one)}
            moved = _move_steps(root, keep=set(run))
        layout.write_file(root / layout.REGISTER, [json.dumps({**run, place: me}).encode()])
    return Claim(_as_given(dump_path, top, root), moved)


def move_old_rank_directory(rank_dir: Path, log: Log) -> None:
    """Moves a rank directory that already has a dump, so that a writer starts with an empty one."""
    used = (layout.JOURNAL, *layout.RESULTS, layout.TENSORS)
    if not os.path.lexists(rank_dir) or not any((rank_dir / name).exists() for name in used):
        return
    rank_dir = _absolute(rank_dir)
    root = layout.dump_root(rank_dir)
    inside = rank_dir.relative_to(root)
    old = _move(root, [inside])
    log(("aside", rank_dir), f"{rank_dir} already had a dump; it was moved to {old / inside}.")


def move_old_directory(dump_path: Path, inside: Path) -> Path:
    """Moves one directory of an older run (path relative to dump_path). Returns its new place."""
    return _move(_absolute(dump_path), [inside])


def _roots(top: Path) -> Iterator[Path]:
    """dump_path, the directories in it that parallel runs have made, and one that does not exist yet."""
    yield top
    number = 2
    while True:
        root = top / f"run-{number}"
        if (root / layout.REGISTER).exists():
            yield root
        elif not root.exists():  # otherwise it belongs to the user
            yield root
            return
        number += 1


def _as_given(dump_path: Path, top: Path, root: Path) -> Path:
    return dump_path / root.relative_to(top)


def _is_same(one: Optional[Member], me: Member) -> bool:
    return one is not None and one["host"] == me["host"] and one["process"] == me["process"]


def _is_in_use(run: Run, place: str, me: Member) -> bool:
    """Whether another job writes there: it has other variables, or a living process in the place of this one.

    A process in this place on another host counts as dead: the rank was started again elsewhere.
    """
    living = {name: one for name, one in run.items() if _may_live(one)}
    if any(one["job"] != me["job"] for one in living.values()):
        return True
    return bool(place in living and living[place]["host"] == me["host"])


def _has_other_rank(run: Run, place: str, me: Member) -> bool:
    return any(_is_same_run(one, me) for name, one in run.items() if name != place)


def _is_same_run(one: Member, me: Member) -> bool:
    if one["job"] != me["job"]:
        return False
    return _may_live(one) or (one["host"] == me["host"] and one["launcher"] == me["launcher"])


def _may_live(one: Member) -> bool:
    """Whether a member's process runs; on another host, which cannot be checked, whether it is recent."""
    if one["host"] == socket.gethostname():
        return bool(one["process"]) and one["process"] == _process(one["process"][0])
    return bool(abs(time.time() - one["since"]) < OTHER_HOST_SECONDS)


def _this_process() -> Member:
    return {
        "host": socket.gethostname(),
        "process": _process(os.getpid()),
        "launcher": _process(os.getppid()),
        "job": "|".join(os.environ.get(name, "") for name in JOB_VARIABLES),
        "since": time.time(),
    }


def _process(pid: int) -> list[int]:
    """A pid and its start time, because a pid is used again; [] if there is no such process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return [] if words[0] in "ZX" else [pid, int(words[19])]  # an ended process may still wait for its parent
    except (OSError, ValueError, IndexError):
        return [] if Path("/proc/self/stat").exists() else _process_without_proc(pid)


def _process_without_proc(pid: int) -> list[int]:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return []
    except OSError:
        pass  # a process of another user: it is alive
    return [pid, 0]


def _read_register(root: Path) -> Run:
    """The members of the registered run; anything that is not a member is ignored."""
    try:
        run = json.loads(_read_plain_file(root / layout.REGISTER))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(run, dict):
        return {}
    return {place: one for place, one in run.items() if layout.is_rank_name(place) and _is_member(one)}


def _read_plain_file(path: Path) -> bytes:
    fd = layout.open_file(str(path), os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_REGISTER:
            raise ValueError(f"{path} is not a register")
        return file.read()


def _is_member(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(key), str) for key in ("host", "job"))
        and all(_is_process(one.get(key)) for key in ("process", "launcher"))
        and isinstance(one.get("since"), float)
    )


def _is_process(value: Any) -> bool:
    """What `_process` gives: a pid and a time, or nothing."""
    return isinstance(value, list) and len(value) in (0, 2) and all(type(one) is int for one in value)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    fd = layout.open_file(str(root / LOCK), os.O_RDWR | os.O_CREAT)
    try:
        layout.lock(fd)
        yield
    finally:
        os.close(fd)


def _move_steps(root: Path, keep: set[str]) -> Optional[Path]:
    """Moves every rank directory that has a dump and is not kept. Returns the directory above them."""
    old: list[Path] = []
    parents = [root / name for name in layout.MODE_PARENTS]
    for base in (root, *parents):
        for step in _steps(base):
            children = list(step.iterdir())
            ranks = [child for child in children if child.name not in keep and _is_rank_dump(child)]
            old += [step] if ranks and len(ranks) == len(children) else ranks
    if not old:
        return None
    moved = _move(root, [path.relative_to(root) for path in old])
    for parent in parents:
        if any(parent in path.parents for path in old):
            with contextlib.suppress(OSError):  # not empty
                parent.rmdir()
    return moved


def _is_rank_dump(path: Path) -> bool:
    """Whether this directory is a dump of msprobe: a user may have an own `step1000` in dump_path."""
    if not layout.is_rank_name(path.name) or not path.is_dir():
        return False
    inside = {child.name for child in path.iterdir()}
    return not inside or not inside.isdisjoint((layout.JOURNAL, *layout.RESULTS, layout.TENSORS, layout.ERRORS))


def _steps(base: Path) -> list[Path]:
    if not base.is_dir():
        return []
    return sorted(path for path in base.iterdir() if layout.parse_step(path.name) is not None and path.is_dir())


def _move(root: Path, old: list[Path]) -> Path:
    """Moves paths inside root to a directory next to it; if that is another disk or not allowed, to `old-{time}` in it.

    The target directory is always new, so that two older runs do not mix either.
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
    return Path(os.path.abspath(path))  # noqa: PTH100 resolve() would follow a symbolic link of the user
