"""Damaged and hostile files for every reader: DumpError or a result, and nothing else.

python tests/fuzz/fuzz_readers.py [SECONDS] [SEED]     `make fuzz`: every reader in turn, for so much CPU time

A file that a reader accepts is changed at random (bytes, or one value of its JSON) and read again. An exception that
is not meant for the user is a finding, and so are more than 20 seconds of CPU time or 8 GB of memory for one file; it
is printed with the seed that makes it again.
"""

from __future__ import annotations

import resource
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import collected_targets
import dump_targets
import other_targets
import parallel_targets
import store_targets
from fuzzing import Target, fuzz

MEMORY = 8 << 30


def make_targets(directory: Path) -> list[Target]:
    parts = {"dumps": dump_targets, "others": other_targets, "parallel": parallel_targets, "runs": collected_targets,
             "stores": store_targets}  # fmt: skip
    return [target for name, part in parts.items() for target in part.make_targets(directory / name)]


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for jobs in the background
    seconds, first = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        targets = make_targets(Path(directory))
        for target in targets:
            target.accept()  # its file as it is
            target.tidy()
        sys.stdout.flush()
        tried, findings = fuzz(targets, seconds, first)
    for name, count in tried.items():
        print(f"{count:>8,}  {name}")
    print(
        f"{tried.total():>8,}  files, {findings} findings, seeds from {first}, {time.process_time():,.0f} s of CPU time"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
