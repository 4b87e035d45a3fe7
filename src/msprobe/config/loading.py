"""From JSON values and constructor arguments to `Settings`: read all values, check all rules, build or refuse.

Only the section of the chosen task is used. The file may have sections of other tasks, as the packaged file has.
`load` checks their keys and values, but not their combinations, and gives no hints about keys without effect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msprobe.config.errors import ConfigError, Problem, show, show_found, suggest
from msprobe.config.kinds import MOST_NUMBERS, Formats, Words
from msprobe.config.read import Members, read
from msprobe.config.rules import Situation, check_rules, modes_of
from msprobe.config.schema import COMMON, FOREIGN, PYTORCH, SECTIONS, Key, name_modes
from msprobe.config.settings import SECTION_TYPES, Settings

_COMMON = {key.name: key for key in COMMON}
_SECTIONS = {task: {key.name: key for key in keys} for task, keys in SECTIONS.items()}
_SECTION_KEYS = {name for keys in _SECTIONS.values() for name in keys}


_ARGUMENT, _CALL = "argument ", "PrecisionDebugger(…)"


def load(
    framework: str,
    config_path: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: object = None,
    rank: object = None,
    only: Sequence[str] = (),
    graph_mode: bool | None = None,
) -> Settings:
    """The settings of one run. Arguments override the file. Without a file, `load` reads the packaged config.json.
    `only` is the `list` of the task.

    `graph_mode` selects one of MindSpore's two modes. None means "not known yet": then a value is accepted if
    either mode accepts it. Raises ConfigError with every problem, ValueError for an unknown framework.
    """
    modes = modes_of(framework, graph_mode)
    forgiven: list[str] = []
    source, document = read(config_path, forgiven)
    if not isinstance(document, dict):
        expected = f"allowed: an object, {{ ... }}, with keys such as {show('task')}"
        raise ConfigError(source, [Problem("top level", show_found(document), expected)])
    given = {"task": task, "dump_path": _as_text(dump_path), "level": level, "step": _as_list(step), "rank": rank}
    loading = _Loading(modes, {name: value for name, value in given.items() if value is not None})
    loading.warnings += [f"{source}: {remark}" for remark in forgiven]
    loading.read_document(document)
    loading.read_arguments()
    loading.read_only(only)
    settings = loading.build(framework)
    if settings is None:
        of_arguments = all(problem.path.startswith(_ARGUMENT) for problem in loading.problems)
        raise ConfigError(_CALL if of_arguments else source, loading.problems)
    return settings


class _Loading:
    """What has been read so far. `refused` holds the names of keys whose value cannot be used."""

    def __init__(self, modes: tuple[str, ...], arguments: Mapping[str, object]) -> None:
        self.modes = modes
        self.arguments = arguments
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.common: dict[str, Any] = {}
        self.sections: dict[str, dict[str, Any]] = {}
        self.paths: dict[str, str] = {}
        self.strays: dict[str, list[str]] = {}
        self.refused: dict[str, set[str]] = {"": set()}

    def read_document(self, document: dict[str, object]) -> None:
        self._report_repeated(document, "")
        for name, value in document.items():
            if name in _COMMON:
                if not _is_unset(value):
                    self.paths[name] = name
                self._read(_COMMON[name], value, name, self.common, self.refused[""])
            elif name in _SECTIONS:
                self._read_section(name, value)
            elif name in FOREIGN[""]:
                self.warnings.append(f"{name} has no effect in msprobe: {FOREIGN[''][name]}")
            else:
                self._report_unknown(name, "", [*_COMMON, *_SECTIONS])

    def read_arguments(self) -> None:
        for name, value in self.arguments.items():
            self.paths[name] = f"{_ARGUMENT}{name}"
            self.refused[""].discard(name)
            self.common.pop(name, None)
            self._read(_COMMON[name], value, f"{_ARGUMENT}{name}", self.common, self.refused[""])

    def read_only(self, names: Sequence[str]) -> None:
        """Replaces the filters of the task by these names."""
        if not names:
            return
        task = str(self.common.get("task", _COMMON["task"].default))
        keys = _SECTIONS.get(task, {})
        if "list" not in keys:
            self.problems.append(Problem(f"{_ARGUMENT}only", "no effect", f"task {show(task)} takes no names"))
            return
        values = self.sections.setdefault(task, {})
        values.pop("scope", None)
        self._read(keys["list"], list(names), f"{_ARGUMENT}only", values, self.refused.setdefault(task, set()))

    def _read_section(self, task: str, section: object) -> None:
        values = self.sections.setdefault(task, {})
        refused = self.refused.setdefault(task, set())
        if _is_unset(section):
            return
        if not isinstance(section, dict):
            self.problems.append(
                Problem(task, show_found(section), f"allowed: an object with the keys of task {show(task)}")
            )
            return
        self._report_repeated(section, f"{task}.")
        keys = _SECTIONS[task]
        for name, value in section.items():
            if name in keys:
                self._read(keys[name], value, f"{task}.{name}", values, refused)
            elif name in _SECTION_KEYS or name in FOREIGN["*"]:
                if not _is_unset(value):
                    self.strays.setdefault(task, []).append(name)
            else:
                self._report_unknown(name, f"{task}.", list(keys))

    def _read(self, key: Key, value: object, path: str, into: dict[str, Any], refused: set[str]) -> None:
        if _is_unset(value):
            return
        before = len(self.problems)
        parsed = key.kind.parse(value, path, self.problems)
        if len(self.problems) > before:
            refused.add(key.name)
        else:
            into[key.name] = parsed

    def _report_repeated(self, members: dict[str, object], prefix: str) -> None:
        for name in members.repeated if isinstance(members, Members) else ():
            expected = "allowed: each key once; keep only the one you want"
            self.problems.append(Problem(f"{prefix}{_name(name)}", "found more than once", expected))

    def _report_unknown(self, name: str, prefix: str, known: list[str]) -> None:
        meant = suggest(name, known)
        if not prefix and name in _SECTION_KEYS:
            tasks = [task for task in _SECTIONS if name in _SECTIONS[task]]
            meant = " or ".join(show(f"{task}.{name}") for task in tasks)
        elif prefix and name in _COMMON:
            meant = f"{show(name)} at the top level"
        expected = f"allowed: {', '.join(known)}"
        self.problems.append(Problem(f"{prefix}{_name(name)}", "unknown key", expected, meant))

    def build(self, framework: str) -> Settings | None:
        """Adds defaults, checks the rules, adds hints. Returns None if there is any problem."""
        common = self._with_defaults(COMMON, self.common)
        task, level = common["task"], common["level"]
        if "task" in self.refused[""]:
            return None
        if "dump_path" not in self.common and "dump_path" not in self.refused[""] and task != "run_ut":
            expected = "give the directory to write to, in the file or as argument dump_path"
            self.problems.append(Problem("dump_path", "missing", expected))
        section = self._with_defaults(SECTIONS[task], self.sections.get(task, {}))
        refused = self.refused.get(task, set())
        if "level" not in self.refused[""]:
            named = {**self.paths, **{name: f"{task}.{name}" for name in self.sections.get(task, {})}}
            now = Situation(self.modes, task, level, {**section, "task": task, "level": level}, named)
            self.problems.extend(check_rules(now, refused))
        if self.problems:
            return None
        self._add_hints(task, level, section)
        return Settings(
            framework=framework,
            section=SECTION_TYPES[task](**section),
            warnings=tuple(dict.fromkeys(self.warnings)),
            **common,
        )

    def _with_defaults(self, keys: tuple[Key, ...], given: dict[str, Any]) -> dict[str, Any]:
        values = {}
        for key in keys:
            if key.name in given or key.default is None:
                values[key.name] = given.get(key.name)
            else:
                values[key.name] = () if key.default == [] else key.kind.parse(key.default, key.name, self.problems)
        return values

    def _add_hints(self, task: str, level: str, section: dict[str, Any]) -> None:
        """Warns about known keys that have no effect here; this is not an error."""
        keys = [(key, key.name, self.common) for key in COMMON]
        keys += [(key, f"{task}.{key.name}", self.sections.get(task, {})) for key in SECTIONS[task]]
        for key, path, given in keys:
            selects_all = isinstance(key.kind, Words) and given.get(key.name) == (key.kind.exclusive,)
            if key.name not in given or selects_all:
                continue
            if not any(key.acts(mode, level) for mode in self.modes):
                self.warnings.append(
                    f"{path} has no effect on {name_modes(self.modes)} at level {level}: it acts {key.where()}"
                )
            elif key.switch and not section[key.switch]:
                self.warnings.append(f"{path} has no effect while {task}.{key.switch} is false")
        if isinstance(self.common.get("precision"), Formats) and (task != "statistics" or level in ("L2", "debug")):
            where = 'task "statistics" at level L0, L1 and mix'
            self.warnings.append(f"precision.formats has no effect here: it acts with {where}")
        for name in self.strays.get(task, ()):
            tasks = [other for other in _SECTIONS if name in _SECTIONS[other]]
            reason = f": it is a key of {', '.join(tasks)}" if tasks else f" in msprobe: {FOREIGN['*'][name]}"
            self.warnings.append(f"{task}.{name} has no effect{reason}")
        if self.common.get("enable_dataloader") and PYTORCH in self.modes:
            self.warnings.append("enable_dataloader is deprecated: use start(), stop() and step(), or `msprobe run`")
        online = section.get("online_run_ut") or section.get("is_online")
        if online and section["nfs_path"] and section["port"]:
            self.warnings.append(f"{task}.host and {task}.port have no effect: {task}.nfs_path overrides them")


def _is_unset(value: object) -> bool:
    return isinstance(value, (str, list)) and value in ("", [], [""])


def _as_text(path: object) -> object:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _as_list(step: object) -> object:
    if isinstance(step, (tuple, set, frozenset)) or (isinstance(step, range) and len(step) <= MOST_NUMBERS):
        return list(step)
    return step


def _name(name: str) -> str:
    """A key as part of a path, quoted unless it is a plain word."""
    return name if name.isidentifier() and len(name) <= 60 else show(name)
