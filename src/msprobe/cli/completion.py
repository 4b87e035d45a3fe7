"""`msprobe completion`: the completion script of a shell. Verbs and options come from the parsers themselves."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator

EPILOG = """examples:
  msprobe completion bash >> ~/.bashrc
  msprobe completion zsh  >> ~/.zshrc
  msprobe completion fish > ~/.config/fish/completions/msprobe.fish"""
Options = dict[str, str]
"""The options of a verb, each with its help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    from msprobe.cli import VERBS

    known = {verb: dict(_options(verb)) for verb, _ in VERBS}
    print(_fish(dict(VERBS), known) if args.shell == "fish" else _bash(known, zsh=args.shell == "zsh"), end="")
    return 0


def _options(verb: str) -> Iterator[tuple[str, str]]:
    parser = argparse.ArgumentParser(prog=f"msprobe {verb}")
    importlib.import_module(f"msprobe.cli.{verb}").add_arguments(parser)
    waiting = [parser]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((name, "") for name in action.choices)
                waiting += action.choices.values()
            elif not action.option_strings and action.choices:
                yield from ((str(name), "") for name in action.choices)
            for option in action.option_strings:
                if len(option) > 2 and action.help != argparse.SUPPRESS:
                    yield option, (action.help or "").replace("%", "")


def _bash(known: dict[str, Options], zsh: bool) -> str:
    cases = "\n".join(
        f"    {verb}) words={_words(options, dashes=True)} names={_words(options, dashes=False)} ;;"
        for verb, options in known.items()
    )
    head = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""# completion of msprobe, made by: msprobe completion {"zsh" if zsh else "bash"}
{head}_msprobe() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="" names=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(known)} --version --help" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) [ "$COMP_CWORD" -eq 2 ] && COMPREPLY=($(compgen -W "$names" -- "$current")) ;;
  esac
}}
complete -o default -o bashdefault -F _msprobe msprobe
"""


def _words(options: Options, dashes: bool) -> str:
    return shlex.quote(" ".join(word for word in options if word.startswith("-") == dashes))


def _fish(about: dict[str, str], known: dict[str, Options]) -> str:
    lines = ["# completion of msprobe, made by: msprobe completion fish"]
    for verb, text in about.items():
        lines.append(f"complete -c msprobe -n __fish_use_subcommand -a {verb} -d {_quote(text)}")
    for verb, options in known.items():
        for option, text in options.items():
            kind = "-l" if option.startswith("--") else "-o"
            place = f"-n '__fish_seen_subcommand_from {verb}' "
            word = f"{kind} {option.lstrip('-')}" if option.startswith("-") else f"-a {option}"
            lines.append(f"complete -c msprobe {place}{word}" + (f" -d {_quote(text)}" if text else ""))
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """A word for fish: a quote inside single quotes needs a backslash there."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
