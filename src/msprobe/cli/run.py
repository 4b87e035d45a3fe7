"""`msprobe run`: a training script under the debugger, without editing it.

The script runs in this process as `python SCRIPT` would run it. Until it imports torch itself, nothing
heavy is imported: variables that it sets before that import still count. The debugger is put in place
at the end of that import, and `msprobe.pytorch.driver` drives it.
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
  everything after SCRIPT or MODULE goes to the script. A step begins when the model is called and ends with the
  next optimizer.step(); a script without an optimizer is one step. Collects PyTorch scripts.
exit code: the script's own; 2 when the configuration is wrong, and then the script is not started"""
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
        help="watch the run instead of dumping it; FILE is a monitor's config and ends with .json",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, as python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def separated(words: Sequence[str]) -> Sequence[str]:
    """`-mMODULE` in two words, as argparse needs it for all that follows to be the module's."""
    for place, word in enumerate(words):
        if word.startswith("-m") and word != "-m":
            return [*words[:place], "-m", word[2:], *words[place + 1 :]]
        if word == "--watch" and not "".join(words[place + 1 : place + 2]).endswith(".json"):
            return [*words[:place], "--watch=", *words[place + 1 :]]
        if not word.startswith("-") and words[place - 1 : place] not in (["--config"], ["--watch"]):
            break
    return words


def run(args: argparse.Namespace) -> int:
    from msprobe.config import load

    command = args.script[args.script[:1] == ["--"] :] if args.module is None else args.module
    if not command:
        return _refuse("give a SCRIPT, or -m MODULE; options of msprobe stand before it")
    if args.framework == "mindspore":
        return _refuse("only PyTorch scripts can be run without editing them; on MindSpore use PrecisionDebugger")
    if args.watch is not None:
        from msprobe.watch.settings import load as load_watch

        settings: Any = load_watch(args.watch or None)
    else:
        settings = load("pytorch", args.config)
        refused = _refused(settings)
        if refused:
            return _refuse(refused)
    try:
        start = _script(command) if args.module is None else _module(command)
    except OSError as error:
        return _refuse(f"{command[0]} cannot be read: {error.strerror or error}")
    imports = _Imports(settings, watches=args.watch is not None)
    imports.watch()
    atexit.register(imports.tell_if_nothing_ran)  # threads that the script started have ended by then
    _as_main(start)
    return 0


def _refused(settings: Settings) -> str:
    """Why these settings cannot drive a script that was not edited; "" when they can."""
    if settings.level == "debug":
        return 'level "debug" collects what save() is given, and without editing there is no save()'
    if settings.task == "run_ut":
        return 'task "run_ut" checks a dump and collects nothing: use msprobe run_ut -api_info DUMP'
    return ""


def _refuse(message: str) -> int:
    print(f"msprobe run: {message}.", file=sys.stderr)
    return 2


def _as_main(start: Callable[[], None]) -> None:
    """Runs it to its own end: exit codes pass, an exception is shown as Python shows it, from the script's frame on."""
    try:
        start()
    except (Exception, KeyboardInterrupt) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith((OWN, "<frozen", runpy.__file__)):
            trace = trace.tb_next
        if trace is None and isinstance(error, ImportError):  # MODULE is not there, or is a package without __main__
            print(f"{sys.executable}: {error}", file=sys.stderr)
        else:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


def _script(command: Sequence[str]) -> Callable[[], None]:
    """What `python SCRIPT args…` does: sys.argv, sys.path[0], and a fresh `__main__` with its `__file__`."""
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


def _module(command: Sequence[str]) -> Callable[[], None]:
    """What `python -m MODULE args…` does."""

    def start() -> None:
        _set_first_path(str(Path.cwd()))
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)

    return start


def _set_first_path(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = directory


class _Imports(importlib.abc.MetaPathFinder):
    """Notices when the script has imported a framework. Asking whether torch is installed is no import."""

    def __init__(self, settings: Any, watches: bool) -> None:
        """`settings` are the debugger's, or the monitor's where it `watches`."""
        self._settings = settings
        self._watches = watches
        self._driver: Any = None
        self._acts = {"torch": self._torch_is_here, "mindspore": self._mindspore_is_here}

    def watch(self) -> None:
        for name in list(self._acts):
            if name in sys.modules:  # somebody's start-up file imported it
                self._acts.pop(name)()
        sys.meta_path.insert(0, self)

    def tell_if_nothing_ran(self) -> None:
        if self._driver is not None:
            self._driver.tell_if_nothing_ran()
        elif "torch" in self._acts and "mindspore" in self._acts:  # what is not done with mindspore was told
            notices.warn("nothing was collected: the script never imported torch.")

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

    def _torch_is_here(self) -> None:
        from msprobe.collect.lifecycle import UsageError
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

    def _mindspore_is_here(self) -> None:
        notices.warn(
            "the script imports mindspore: `msprobe run` collects only what it does with PyTorch. For MindSpore use "
            "PrecisionDebugger in the script."
        )
