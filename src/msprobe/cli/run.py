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
from msprobe.frameworks.versions import UnsupportedVersion

if TYPE_CHECKING:
    from msprobe.config import Settings

EPILOG = """example:
  msprobe run -o golden train.py --epochs 1          levels L0 and L1 of the first two steps, statistics
  msprobe run -o golden --step 0-1,5 --level mix --task tensor --only 'layers.3.*' train.py
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
_WITH_VALUE = ("-o", "--output", "--config", "--step", "--level", "--task", "--rank", "--only")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe run [-o DIR] [--step N-M] [--level L] [--task T] [--rank N-M] [--only NAME] [--config FILE]\n"
        "                   SCRIPT ...\n"
        "       msprobe run [options] -m MODULE ...\n"
        "       msprobe run --watch [FILE] SCRIPT ..."
    )
    parser.epilog = EPILOG
    parser.add_argument("-o", "--output", metavar="DIR", help="where the dump goes (default: ./dump_path)")
    parser.add_argument("--config", metavar="FILE", help="config.json; the other options override it")
    parser.add_argument("--step", metavar="N,N-M", help="only these steps (default without --config: 0-1)")
    parser.add_argument("--level", metavar="L", help="L0, L1, L2 or mix (default without --config: mix)")
    parser.add_argument("--task", metavar="T", help="statistics, tensor, structure, … (default: statistics)")
    parser.add_argument("--rank", metavar="N,N-M", help="only these ranks")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only these calls: a name, or a pattern such as 'layers.3.*'"
    )
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
    options = ("--watch", *_WITH_VALUE)
    for place, word in enumerate(words[: script_place(words, options)]):
        if word == "--watch" and not "".join(words[place + 1 : place + 2]).endswith(".json"):
            words = [*words[:place], "--watch=", *words[place + 1 :]]
    return split_module(words, options)


def split_module(words: Sequence[str], options: Sequence[str]) -> Sequence[str]:
    """Splits `-mMODULE` into two words, so that argparse leaves all later words to the module."""
    for place, word in enumerate(words[: script_place(words, options)]):
        if word.startswith("-m") and word != "-m":
            return [*words[:place], "-m", word[2:], *words[place + 1 :]]
    return words


def script_place(words: Sequence[str], options: Sequence[str]) -> int:
    """The place of the script: the first word that is neither an option nor the value of one of `options`."""
    for place, word in enumerate(words):
        if word == "-m" or (not word.startswith("-") and (not place or words[place - 1] not in options)):
            return place
    return len(words)


def run(args: argparse.Namespace) -> int:
    from msprobe.config import load
    from msprobe.dump.layout import check_writable

    if args.framework == "mindspore":
        return _refuse("only for PyTorch scripts; in a MindSpore script use PrecisionDebugger")
    if args.watch is not None:
        from msprobe.watch.settings import load as load_watch

        settings: Any = load_watch(args.watch or None)
        given = [name for name in _WITH_VALUE if getattr(args, _name_of(name), None)]
        if given:
            return _refuse(f"{given[0]} has no effect with --watch; put its settings into the FILE of --watch")
    else:
        default = args.config is None
        settings = load(
            "pytorch",
            args.config,
            task=args.task,
            dump_path=args.output,
            level=args.level or ("mix" if default else None),
            step=_listed(args.step) or ([0, 1] if default else None),
            rank=_listed(args.rank),
            only=args.only or (),
        )
        refused = _explain_refusal(settings)
        if refused:
            return _refuse(refused)
        if settings.rank is None:
            check_writable(settings.dump_path)
    try:
        start = find_start(args)
    except ScriptError as error:
        return _refuse(str(error))
    imports = _CollectImports(settings, watches=args.watch is not None)
    imports.watch()
    atexit.register(imports.say_result)  # the threads of the script have ended by then
    run_as_main(start)
    return 0


def collect_here(config: str) -> None:
    """Collects in this process, which is about to run a script. `msprobe check` starts such processes."""
    import logging

    from msprobe.config import load

    logging.getLogger("msprobe").setLevel(logging.WARNING)
    _CollectImports(load("pytorch", config), watches=False).watch()


def _name_of(option: str) -> str:
    return "output" if option == "-o" else option.lstrip("-")


def _listed(text: Optional[str]) -> Optional[list[str]]:
    return [part.strip() for part in text.split(",")] if text else None


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
        self.refused = False
        """Whether a framework is too old."""
        self._acts = {"torch": self._after_torch_import, "mindspore": self._after_mindspore_import}

    def watch(self) -> None:
        for name in list(self._acts):
            if name in sys.modules:  # a start-up file such as sitecustomize imported it
                self._act(self._acts.pop(name))
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

    def _act(self, act: Callable[[], None]) -> None:
        try:
            act()
        except UnsupportedVersion as error:
            self.refused = True
            print(f"{error}.", file=sys.stderr)
            raise SystemExit(2) from None

    def _act_after_import(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def execute_then_act(module: types.ModuleType) -> None:
            del loader.exec_module
            execute(module)
            act = self._acts.pop(name, None)
            if act is not None:
                self._act(act)

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

    def say_result(self) -> None:
        if self._driver is not None:
            self._driver.say_result()
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
