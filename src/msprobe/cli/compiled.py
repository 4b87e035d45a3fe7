"""`msprobe compiled`: runs a script and checks each region that torch.compile compiles, forward and backward.

The script runs in this process as with `python SCRIPT`. Each region runs compiled, eager and in fp64 on the inputs that
the script gives it; `msprobe.pytorch.compiled.check` does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msprobe.cli.outputs import check_outputs
from msprobe.cli.run import ScriptError, ScriptImports, add_script, find_start, run_as_main, split_module

EPILOG = """example:
  msprobe compiled train.py --epochs 1
  msprobe compiled -o ./check -m mypackage.train
  all words after SCRIPT or MODULE are arguments of the script. Each graph is checked at its first call, and again for
  other input shapes (three in all). Reproducers of wrong nodes go to DIR. Only for PyTorch scripts.
exit code: 0 nothing is wrong, 1 a compiled region is wrong, 2 failed or no region was checked;
  the script's if it fails"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe compiled [-o DIR] [--json] SCRIPT ...\n       msprobe compiled [-o DIR] [--json] -m MODULE ..."
    )
    parser.epilog = EPILOG
    parser.add_argument(
        "-o", "--output", metavar="DIR", default="./compiled_check", help="for reproducers; default ./compiled_check"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON; the script prints to stderr")
    add_script(parser)


def split_words(words: Sequence[str]) -> Sequence[str]:
    return split_module(words, ("-o", "--output"))


def run(args: argparse.Namespace) -> int:
    if args.framework == "mindspore":
        return _refuse("only for PyTorch scripts: torch.compile is PyTorch's")
    try:
        start = find_start(args)
    except ScriptError as error:
        return _refuse(str(error))
    check_outputs((), Path(args.output))
    imports = _CheckImports(Path(args.output), args.json)
    imports.watch()
    code = 0
    with _printing_to_stderr() if args.json else nullcontext():
        try:
            run_as_main(start)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        imports.end()
    return code or imports.conclude()


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What the script prints goes to standard error, also that of its C code and of processes that it starts."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class _CheckImports(ScriptImports):
    """Installs the check after the script has imported torch."""

    def __init__(self, directory: Path, as_json: bool) -> None:
        super().__init__()
        self._directory = directory
        self._as_json = as_json
        self._session: Any = None

    def _after_torch_import(self) -> None:
        from msprobe.pytorch.compiled.check.session import CheckSession

        self._session = CheckSession(self._directory)
        self._session.install()

    def end(self) -> None:
        """Runs the checks that still wait for a backward pass."""
        if self._session is not None:
            self._session.remove()

    def conclude(self) -> int:
        from msprobe.report.json_output import print_json

        if self._session is None:
            return 2 if self.refused else _refuse("the script never imported torch")
        answer = self._session.answer
        if self._as_json:
            print_json("compiled", answer.summary())
        else:
            print(answer)
        if not answer.checked:
            return 2
        return 0 if answer.ok else 1


def _refuse(message: str) -> int:
    print(f"msprobe compiled: {message}.", file=sys.stderr)
    return 2
