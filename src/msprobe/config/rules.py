"""Rules about combinations: values that are right one by one and wrong together.

A rule names the keys that it reads. It is checked only if all of them have a usable value, so that one mistake
gives one problem. Each problem says what is allowed instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from msprobe.config.errors import Problem, list_allowed, show, show_found
from msprobe.config.schema import DYNAMIC, EAGER, GRAPH, MATRIX, MINDSPORE, PYTORCH, SUMMARY_MODES, name_modes


@dataclass(frozen=True)
class Situation:
    """What a rule can read: the value of each key (the default if not given) and its path for messages."""

    modes: tuple[str, ...]
    task: str
    level: str
    values: Mapping[str, Any]
    paths: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def wrong(self, key: str, why: str, expected: str) -> Problem:
        """A problem at `key`. The message says so if the value is the default."""
        default = "" if key in self.paths else " (the default)"
        return Problem(self.path(key), f"{show_found(_plain(self[key]))}{default}{why}", expected)

    def path(self, key: str) -> str:
        return self.paths.get(key, key if key in ("task", "level") else f"{self.task}.{key}")

    @property
    def place(self) -> str:
        return name_modes(self.modes)

    @property
    def graph_only(self) -> bool:
        return self.modes == (GRAPH,)


Check = Callable[[Situation], Iterator[Problem]]


@dataclass(frozen=True)
class Rule:
    """A check for every task that has all of `keys`, or for `tasks` only."""

    keys: tuple[str, ...]
    check: Check
    tasks: tuple[str, ...] = ()


def modes_of(framework: str, graph_mode: bool | None) -> tuple[str, ...]:
    """The modes that the settings can be for. MindSpore has two; both count if `graph_mode` is None."""
    if framework == "pytorch" and not graph_mode:
        return (PYTORCH,)
    if framework == "mindspore":
        return MINDSPORE if graph_mode is None else (GRAPH,) if graph_mode else (DYNAMIC,)
    raise ValueError(
        f"framework {framework!r}, graph_mode {graph_mode!r}: use pytorch or mindspore; pytorch has no graph mode"
    )


def _task_and_level(now: Situation) -> Iterator[Problem]:
    tasks = [task for task in MATRIX[EAGER[0]] if any(task in MATRIX[mode] for mode in now.modes)]
    if now.task not in tasks:
        yield now.wrong("task", f" on {now.place}", list_allowed(tasks))
        return
    levels = [
        level
        for level in MATRIX[PYTORCH]["statistics"]
        if any(level in MATRIX[mode].get(now.task, ()) for mode in now.modes)
    ]
    if now.level not in levels:
        yield now.wrong("level", f" with task {show(now.task)} on {now.place}", list_allowed(levels))


def _scope_or_list(now: Situation) -> Iterator[Problem]:
    if now["scope"] and now["list"]:
        yield now.wrong("scope", f" together with {now.path('list')}", "allowed: one of the two; empty the other")


def _scope_length(now: Situation) -> Iterator[Problem]:
    wanted = 1 if now.modes == (PYTORCH,) and now.level == "L2" else 2
    acts = now.level != "debug" and not (now.graph_only and now.level == "L2")
    if now["scope"] and acts and len(now["scope"]) != wanted:
        if wanted == 1:
            yield now.wrong("scope", " at level L2 on PyTorch", "allowed: exactly one API name")
        else:
            yield now.wrong("scope", "", "allowed: two names, the first and the last of a range")


def _graph_data_mode(now: Situation) -> Iterator[Problem]:
    allowed = (("all",), ("input",), ("output",))
    if now.graph_only and now.level == "L2" and now["data_mode"] not in allowed:
        expected = "allowed: " + ", ".join(show(list(words)) for words in allowed)
        yield now.wrong("data_mode", f" at level L2 on {GRAPH}", expected)


def _statistic_names(now: Situation) -> Iterator[Problem]:
    if isinstance(now["summary_mode"], tuple) and GRAPH not in now.modes:
        yield now.wrong("summary_mode", f" on {now.place}", list_allowed(SUMMARY_MODES))


def _bin(now: Situation) -> Iterator[Problem]:
    if now["file_format"] == "bin" and now.level == "L1" and now.modes != (PYTORCH,):
        yield now.wrong("file_format", " at level L1", 'allowed: "npy" at L1; "bin" at level L2')


def _backward_input(now: Situation) -> Iterator[Problem]:
    acts = now.modes == (PYTORCH,) and now.level == "L2"
    if not acts or not now["backward_input"]:
        return
    named = now["scope"] or now["list"]
    if len(named) != 1 or not named[0].endswith(".backward"):
        expected = f"name exactly one backward call in {now.path('scope')} or {now.path('list')}, "
        yield now.wrong("backward_input", "", expected + "such as Tensor.__mul__.10.backward")


def _fuzz_device(now: Situation) -> Iterator[Problem]:
    if now["fuzz_device"] == "cpu" and now["pert_mode"] != "to_cpu":
        yield now.wrong("pert_mode", ' with fuzz_device "cpu"', 'allowed: "to_cpu"; or fuzz_device "npu"')
    if now["fuzz_device"] != "cpu" and now["pert_mode"] == "to_cpu":
        yield now.wrong("fuzz_device", ' with pert_mode "to_cpu"', 'allowed: "cpu"; or another pert_mode')


def _fix(now: Situation) -> Iterator[Problem]:
    if now["handler_type"] != "fix":
        return
    if now["fuzz_stage"] != "forward":
        yield now.wrong("fuzz_stage", ' with handler_type "fix"', 'allowed: "forward"; or handler_type "check"')
    if now["if_preheat"]:
        yield now.wrong("if_preheat", ' with handler_type "fix"', 'allowed: false; or handler_type "check"')


def _online_address(now: Situation) -> Iterator[Problem]:
    switch, needed = ("is_online", ("port",)) if now.task == "run_ut" else ("online_run_ut", ("host", "port"))
    if now[switch] and not now["nfs_path"]:
        missing = [key for key in needed if now[key] is None]
        if missing:
            expected = f"give nfs_path, or host and port (missing: {', '.join(missing)})"
            yield now.wrong(switch, " without an address of the other side", expected)


_TLS = ("tls_cert", "tls_key", "tls_ca")


def _tls_files(now: Situation) -> Iterator[Problem]:
    """With some of them only, a connection could be in plain text where its user expects TLS."""
    given = [key for key in _TLS if now[key] is not None]
    missing = [key for key in _TLS if now[key] is None]
    if given and missing:
        yield now.wrong(given[0], f" without {' and '.join(missing)}", f"allowed: all of {', '.join(_TLS)}, or none")


def _plain(value: object) -> object:
    """A parsed value as the file would have it."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


RULES = (
    Rule((), _task_and_level),
    Rule(("scope", "list"), _scope_or_list),
    Rule(("scope",), _scope_length, ("statistics", "tensor", "structure")),
    Rule(("data_mode",), _graph_data_mode),
    Rule(("summary_mode",), _statistic_names),
    Rule(("file_format",), _bin),
    Rule(("backward_input", "scope", "list"), _backward_input),
    Rule(("fuzz_device", "pert_mode"), _fuzz_device),
    Rule(("handler_type", "fuzz_stage", "if_preheat"), _fix),
    Rule(("online_run_ut", "nfs_path", "host", "port"), _online_address),
    Rule(("is_online", "nfs_path", "port"), _online_address),
    Rule(_TLS, _tls_files),
)


def check_rules(now: Situation, refused: set[str]) -> Iterator[Problem]:
    """The problems of all broken rules. Rules that read a key in `refused` are not checked."""
    for rule in RULES:
        applies = now.task in rule.tasks if rule.tasks else all(key in now.values for key in rule.keys)
        if applies and not refused.intersection(rule.keys):
            yield from rule.check(now)
