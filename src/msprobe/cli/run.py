"""`msprobe run`: runs a training script with the debugger, without editing it.

The script runs in this process as with `python SCRIPT`. msprobe does not import torch before the script does, so
environment variables that the script sets before that import work. At the end of that import the debugger is
installed; `msprobe.pytorch.driver` drives it.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from msprobe.collect import notices
from msprobe.config.errors import ConfigError

if TYPE_CHECKING:
    from msprobe.config import Settings

EPILOG = """example:
  msprobe run --config config.json train.py --epochs 1
  msprobe run --config config.json -m mypackage.train --epochs 1
  torchrun --nproc_per_node 2 -m msprobe run --config config.json train.py
  msprobe run --watch train.py                       statistics and alarms of every step: msprobe watch ./watch
  msprobe run --watch monitor.json train.py
  all words after SCRIPT or MODULE are arguments of the script. A step begins when the model is called and ends
  with the next optimizer.step(); a script without an optimizer is one step. Only for PyTorch scripts.
exit code: that of the script; 2 if the configuration is wrong (the script does not start)"""
OWN = str(Path(__file__).resolve().parents[1]) + os.sep
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe run [--config FILE | --watch [FILE]] SCRIPT ...\n       msprobe run [--config FILE] -m MODULE ..."
    )
    parser.epilog = EPILOG
    parser.add_argument("--config", metavar="FILE", help="config.json; without it the packaged default is used")
    parser.add_argument(
        "--watch",
        nargs="?",
        const="",
        metavar="FILE",
        help="watch the run instead of dumping it; FILE is the monitor's config, a .json file",
    )
    add_script(parser)


def add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, as python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def split_words(words: Sequence[str]) -> Sequence[str]:
    """Gives `--watch` an empty FILE if the next word is not a file."""
    options = ("--config", "--watch")
    for place, word in enumerate(words[: _script_place(words, options)]):
        if word == "--watch" and not "".join(words[place + 1 : place + 2]).endswith(".json"):
            words = [*words[:place], "--watch=", *words[place + 1 :]]
    return split_module(words, options)


def split_module(words: Sequence[str], options: Sequence[str]) -> Sequence[str]:
    """Splits `-mMODULE` into two words, so that argparse leaves all later words to the module."""
    for place, word in enumerate(words[: _script_place(words, options)]):
        if word.startswith("-m") and word != "-m":
            return [*words[:place], "-m", word[2:], *words[place + 1 :]]
    return words


def _script_place(words: Sequence[str], options: Sequence[str]) -> int:
    """The place of the script: the first word that is neither an option nor the value of one of `options`."""
    for place, word in enumerate(words):
        if word == "-m" or (not word.startswith("-") and (not place or words[place - 1] not in options)):
            return place
    return len(words)


def run(args: argparse.Namespace) -> int:
    from msprobe.config import load

    if args.framework == "mindspore":
        return _refuse("only for PyTorch scripts; in a MindSpore script use PrecisionDebugger")
    if args.watch is not None:
        from msprobe.watch.settings import load as load_watch

        settings: Any = load_watch(args.watch or None)
    else:
        settings = load("pytorch", args.config)
        refused = _explain_refusal(settings)
        if refused:
            return _refuse(refused)
    try:
        start = find_start(args)
    except ScriptError as error:
        return _refuse(str(error))
    imports = _CollectImports(settings, watches=args.watch is not None)
    imports.watch()
    atexit.register(imports.warn_if_nothing_ran)  # the threads of the script have ended by then
    run_as_main(start)
    return 0


def _explain_refusal(settings: Settings) -> str:
    """Why these settings do not work with a script that was not edited; "" if they do."""
    if settings.level == "debug":
        return 'level "debug" needs calls of save() in the script; use another level'
    if settings.task == "run_ut":
        return 'task "run_ut" collects nothing; to check a dump, use msprobe run_ut -api_info DUMP'
    return ""


def _refuse(message: str) -> int:
    print(f"msprobe run: {message}.", file=sys.stderr)
    return 2


class ScriptError(Exception):
    """The command line names no script that can run."""


def find_start(args: argparse.Namespace) -> Callable[[], None]:
    """The script or module of the command line, ready to run."""
    command = args.script[args.script[:1] == ["--"] :] if args.module is None else args.module
    if not command:
        raise ScriptError("give a SCRIPT, or -m MODULE, after the options of msprobe")
    try:
        return start_script(command) if args.module is None else start_module(command)
    except OSError as error:
        raise ScriptError(f"cannot read {command[0]}: {error.strerror or error}") from None


def run_as_main(start: Callable[[], None]) -> None:
    """Runs the script. Exit codes pass through; the traceback of an exception starts at the frame of the script."""
    try:
        start()
    except (Exception, KeyboardInterrupt) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith((OWN, "<frozen", runpy.__file__)):
            trace = trace.tb_next
        if trace is None and isinstance(error, ImportError):  # MODULE does not exist, or is a package without __main__
            print(f"{sys.executable}: {error}", file=sys.stderr)
        else:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


def start_script(command: Sequence[str]) -> Callable[[], None]:
    """As `python SCRIPT args…`: sets sys.argv, sys.path[0] and a new `__main__` with `__file__`."""
    path = os.path.abspath(command[0])  # noqa: PTH100 resolve() would follow links, and python does not
    source = Path(path).read_bytes()

    def start() -> None:
        main = types.ModuleType("__main__")
        vars(main).update(
            __file__=path,
            __cached__=None,
            __builtins__=builtins,
            __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        )
        sys.modules["__main__"] = main
        _set_first_path(str(Path(path).resolve().parent))
        sys.argv = list(command)
        exec(compile(source, path, "exec", dont_inherit=True), vars(main))

    return start


def start_module(command: Sequence[str]) -> Callable[[], None]:
    """As `python -m MODULE args…`."""

    def start() -> None:
        _set_first_path(str(Path.cwd()))
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)

    return start


def _set_first_path(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = directory


class ScriptImports(importlib.abc.MetaPathFinder):
    """Acts after the script has imported a framework. A script that only searches for torch does not import it."""

    def __init__(self) -> None:
        self._acts = {"torch": self._after_torch_import, "mindspore": self._after_mindspore_import}

    def watch(self) -> None:
        for name in list(self._acts):
            if name in sys.modules:  # a start-up file such as sitecustomize imported it
                self._acts.pop(name)()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        act = self._acts.pop(fullname, None)
        if act is None:
            return None
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._acts[fullname] = act
        if spec is not None and spec.loader is not None:
            self._act_after_import(fullname, spec.loader)
        return spec

    def _act_after_import(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def execute_then_act(module: types.ModuleType) -> None:
            del loader.exec_module
            execute(module)
            act = self._acts.pop(name, None)
            if act is not None:
                act()

        loader.exec_module = execute_then_act

    def _after_torch_import(self) -> None:
        """The script has imported torch."""

    def _after_mindspore_import(self) -> None:
        """The script has imported mindspore."""


class _CollectImports(ScriptImports):
    """Installs the debugger, or the monitor."""

    def __init__(self, settings: Any, watches: bool) -> None:
        """`settings` are those of the debugger, or of the monitor if it `watches`."""
        super().__init__()
        self._settings = settings
        self._watches = watches
        self._driver: Any = None

    def warn_if_nothing_ran(self) -> None:
        if self._driver is not None:
            self._driver.warn_if_nothing_ran()
        elif "torch" in self._acts and "mindspore" in self._acts:  # for mindspore there was a warning already
            notices.warn("nothing was collected: the script never imported torch.")

    def _after_torch_import(self) -> None:
        from msprobe.collect.run.lifecycle import UsageError
        from msprobe.pytorch.driver import StepDriver

        if self._watches:
            from msprobe.pytorch.watch.driver import WatchDriver

            self._driver = WatchDriver(self._settings)
            self._driver.install()
            return
        try:
            driver = StepDriver(self._settings)
        except (UsageError, ConfigError) as error:
            raise SystemExit(_refuse(str(error).rstrip("."))) from None
        driver.install()
        self._driver = driver

    def _after_mindspore_import(self) -> None:
        notices.warn(
            "the script imports mindspore: `msprobe run` collects only PyTorch calls. For MindSpore use "
            "PrecisionDebugger in the script."
        )
