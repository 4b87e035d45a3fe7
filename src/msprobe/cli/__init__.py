"""The command `msprobe`: finds the verb, imports only that verb, and turns errors into exit codes.

A verb is one module in this package with `add_arguments(parser)` and `run(args) -> int`. It has `split_words(words)` if
argparse cannot read the command line as it is. Exit codes: 0 done, same, or nothing found; 1 differs, found, or some
failed; 2 failed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from typing import Optional

try:
    from msprobe import __version__
except ImportError:  # a package that lost its __init__.py is still importable, without any name in it
    raise SystemExit(
        "msprobe is incomplete or mixed with mindstudio-probe, which installs into the same directory. To repair it: "
        "pip uninstall -y mindstudio-probe msprobe-precision; pip install msprobe-precision"
    ) from None

VERBS = (
    ("run", "run a training script with the debugger, without editing it"),
    ("again", "run a script twice: does it repeat itself, bit for bit? If not, where and why"),
    ("prove", "run a script with the golden result in place of one call: is it really the cause?"),
    ("replay", "run one recorded call again: is it deterministic, and how exact is it?"),
    ("show", "show a dump: steps, ranks, records, dtypes, anomalies, largest norms"),
    ("recover", "finish a dump after a crash, from its journal"),
    ("compare", "compare two dumps and find where the difference starts"),
    ("rows", "list the rows of a comparison by filter, in pages"),
    ("baseline", "keep the numbers of a good run, for msprobe check"),
    ("check", "run a command again: are its numbers still those of a baseline?"),
    ("view", "show a dump, two dumps, results or a running job in the browser"),
    ("watch", "show trends and alarms of a watched run: what began first, and where"),
    ("rollout", "check the log-probs of a rollout, and dump the trainer's side for its tokens"),
    ("weights", "compare the weights of two checkpoints, or of a checkpoint and an engine"),
    ("precision", "estimate which layers a low-precision format (fp8, mxfp8, nvfp4 ...) would damage"),
    ("overflow", "find the first call that produced NaN or infinity"),
    ("compiled", "run a script and check its torch.compile regions: wrong, or only rounded differently?"),
    ("run_ut", "check the accuracy of each API in a dump"),
    ("api_precision_compare", "second stage of run_ut: compare the results of two devices"),
    ("graph", "make and read MindSpore graph-mode dumps: dump, find, op, order, check"),
    ("doctor", "show what is installed here, and what stands in the way"),
    ("completion", "print the completion script of a shell: bash, zsh or fish"),
    ("mcp", "serve coding agents: a Model Context Protocol server over stdio"),
    ("skill", "print one page that teaches a coding agent to find a numerical fault"),
    ("schema", "print the JSON Schema of what a verb prints with --json"),
    ("convert", "convert asynchronous dump files of Ascend to npy, bin or pt"),
)
FRAMEWORKS = ("pytorch", "mindspore")
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns the exit code. argparse raises SystemExit for --help and usage errors."""
    name = "msprobe"
    if sys.stderr is None:  # standard error is closed, and other code prints there without a check
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 open until the process ends
    try:
        parser = _parser()
        args = parser.parse_args(argv)
        if args.verb is None:
            parser.print_help()
            return 2
        if args.verb not in _available():
            parser.error(_explain_unknown(args.verb))
        name = f"msprobe {args.verb}"
        if sys.stdout is None and args.verb != "run":  # only a training script can run without standard output
            print(f"{name}: standard output is closed.", file=sys.stderr)
            return 2
        code = _run(args.verb, args.rest, args.framework)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader closed the pipe
        return BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and _output_fails():
            _drop_output()
            print(f"{name}: cannot write to standard output: {error.strerror or error}.", file=sys.stderr)
        elif _is_for_the_user(error):
            from msprobe.report.terminal import print_lines

            print_lines(f"{name}: {error}".splitlines(), bold=False, stream=sys.stderr)
        else:
            traceback.print_exc()
        return 2


def _explain_unknown(verb: str) -> str:
    import difflib

    near = difflib.get_close_matches(verb, _available(), n=1)
    return f"unknown verb {verb!r}; " + (
        f"did you mean {near[0]}?" if near else f"choose from {', '.join(_available())}"
    )


def _output_fails() -> bool:
    """Whether standard output cannot be written."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Redirects standard output to /dev/null: otherwise the interpreter reports an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(verb: str, rest: Sequence[str], framework: Optional[str]) -> int:
    module = importlib.import_module(f"msprobe.cli.{verb}")
    about = dict(VERBS)[verb]
    parser = argparse.ArgumentParser(
        prog=f"msprobe {verb}",
        description=f"{about[0].upper()}{about[1:]}" + ("" if about.endswith("?") else "."),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    words = module.split_words(rest) if hasattr(module, "split_words") else rest
    ends_with_script = any(act.nargs in (argparse.REMAINDER, argparse.PARSER) for act in parser._actions)
    # A NAME may stand behind options; parse_args gives it up at the first one.
    args = parser.parse_args(words) if ends_with_script else parser.parse_intermixed_args(words)
    args.framework = framework
    return int(module.run(args))


def _available() -> dict[str, str]:
    """The verbs whose module is installed, found without importing any of them."""
    return {name: text for name, text in VERBS if importlib.util.find_spec(f"msprobe.cli.{name}")}


def _parser() -> argparse.ArgumentParser:
    verbs = _available()
    width = max(len(name) for name in verbs)
    room = max(shutil.get_terminal_size().columns - width - 6, 20)  # as argparse wraps the options
    parted = {name: textwrap.wrap(text, room) for name, text in verbs.items()}
    listed = "\n".join(
        f"  {word:<{width}}  {part}"
        for name, parts in parted.items()
        for word, part in zip([name, *[""] * (len(parts) - 1)], parts)
    )
    parser = argparse.ArgumentParser(
        prog="msprobe",
        usage="msprobe [-h] [--version] [-f {pytorch,mindspore}] VERB ...",
        description="Find the first call whose numbers are wrong in a training run.",
        epilog=f"verbs:\n{listed}\n\nexample:\n  msprobe show ./dump_path\n  msprobe VERB --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msprobe {__version__} (msprobe-precision)")
    parser.add_argument("-f", "--framework", choices=FRAMEWORKS, help="optional; must match the dump")
    parser.add_argument("verb", nargs="?", metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _is_for_the_user(error: Exception) -> bool:
    from msprobe.config.errors import ConfigError
    from msprobe.dump.errors import DumpError

    return isinstance(error, (DumpError, ConfigError))
