"""The configuration of a monitor: a dict or a JSON file, checked completely before training starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.config.errors import ConfigError, Problem, list_allowed, show_found, suggest
from msprobe.config.read import read
from msprobe.config.schema import FORMATS
from msprobe.watch.targets import GRAD, GRAD_LOCAL, HEALTH_KINDS, KINDS, QUANTISATION, STATISTICS, WEIGHT

LOW_PRECISION = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
WRITERS = ("tensorboard", "wandb", "mlflow")
EVERYTHING = "all"
DUMP_TASKS = ("statistics", "tensor")
DUMP_LEVELS = ("L0", "L1", "mix")


@dataclass(frozen=True)
class DumpSettings:
    """What an alarm starts: a PrecisionDebugger dump of the next `steps` steps, at most `limit` times a run."""

    steps: int = 1
    limit: int = 3
    task: str = "statistics"
    level: str = "mix"


@dataclass(frozen=True)
class ReplaySettings:
    """Every n-th step is repeated, to find silent data corruption."""

    every: int = 500


@dataclass(frozen=True)
class LogitSettings:
    """The target `attention_logits`: every n-th watched step has the exact maximum; 0: none has, only the bound."""

    exact_every: int = 10


@dataclass(frozen=True)
class QuantisationSettings:
    """The target `quantisation`: measured in every n-th watched step, for each format."""

    formats: tuple[str, ...] = ("mxfp8",)
    every: int = 10


@dataclass(frozen=True)
class WatchSettings:
    """All keys of the configuration, with defaults filled in. `ranks` None: all ranks. `dump` None: no dump."""

    dump_path: Path = Path("./watch")
    targets: tuple[str, ...] = (WEIGHT, GRAD)
    statistics: tuple[str, ...] = ("norm", "max", "nan")
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    start: int = 0
    every: int = 1
    times: Optional[int] = None
    ranks: Optional[frozenset[int]] = None
    low_precision: Optional[str] = None
    alarms: Mapping[str, Any] = field(default_factory=dict)
    dump: Optional[DumpSettings] = None
    max_megabytes: float = 256
    writers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    check_ranks: bool = False
    replay: Optional[ReplaySettings] = None
    attention_logits: LogitSettings = LogitSettings()
    quantisation: QuantisationSettings = QuantisationSettings()

    def wants(self, step: int) -> bool:
        number = step - self.start
        if number < 0 or number % self.every:
            return False
        return self.times is None or number // self.every < self.times

    def wants_each(self, step: int, every: int) -> bool:
        """Whether a watched step is one of every n-th; false if `every` is 0."""
        return every > 0 and (step - self.start) // self.every % every == 0


Config = Union[Mapping[str, Any], WatchSettings, str, "os.PathLike[str]", None]


def load(config: Config) -> WatchSettings:
    """Raises ConfigError with every problem."""
    if isinstance(config, WatchSettings):
        return config
    source = "the monitor's config"
    if isinstance(config, Mapping):
        value: object = config
    elif config is None:
        value = {}
    else:
        source, value = read(config)
    if not isinstance(value, Mapping):
        raise ConfigError(source, [Problem("config", show_found(value), "expected: an object with keys")])
    reading = _Reading(value)
    settings = reading.settings()
    if reading.problems:
        raise ConfigError(source, reading.problems)
    return settings


class _Reading:
    """Reads one key after another and collects the problems."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self.problems: list[Problem] = []

    def settings(self) -> WatchSettings:
        self._check_keys(tuple(WatchSettings.__dataclass_fields__))
        default = WatchSettings()
        low = self._choice("low_precision", tuple(LOW_PRECISION), None)
        statistics = self._words("statistics", STATISTICS, default.statistics)
        needs = {"underflow", "saturation"}.intersection(statistics)
        if needs and low is None and "low_precision" not in self._given:
            remedy = f"give low_precision, the dtype they refer to: {list_allowed(LOW_PRECISION)}"
            self._wrong("statistics", f"{sorted(needs)[0]} without low_precision", remedy)
        if low is not None and "statistics" not in self._given:
            statistics = (*statistics, "underflow", "saturation")
        return WatchSettings(
            dump_path=self._path(default.dump_path),
            targets=self._targets(default.targets),
            statistics=statistics,
            include=self._names("include", default.include),
            exclude=self._names("exclude", default.exclude),
            start=self._whole("start", 0, default.start) or 0,
            every=self._whole("every", 1, default.every) or 1,
            times=self._whole("times", 1, None),
            ranks=self._ranks(),
            low_precision=low,
            alarms=self._alarms(),
            dump=self._dump(),
            max_megabytes=self._megabytes(default.max_megabytes),
            writers=self._writers(),
            check_ranks=self._flag("check_ranks"),
            replay=self._replay(),
            attention_logits=self._logits(),
            quantisation=self._quantisation(),
        )

    def _wrong(self, path: str, what: str, expected: str, meant: str = "") -> None:
        self.problems.append(Problem(path, what, expected, meant))

    def _refuse(self, key: str, expected: str, meant: str = "") -> None:
        self._wrong(key, show_found(self._given[key]), expected, meant)

    def _get(self, key: str) -> Any:
        return self._given.get(key)

    def _path(self, default: Path) -> Path:
        value = self._get("dump_path")
        if value is None:
            return default
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            self._refuse("dump_path", "expected: a directory")
            return default
        return Path(os.fspath(value)).expanduser()

    def _words(self, key: str, known: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._get(key)
        if value is None:
            return default
        if value == EVERYTHING:
            low = self._get("low_precision") is not None or key != "statistics"
            return known if low else tuple(word for word in known if word not in ("underflow", "saturation"))
        if not isinstance(value, (list, tuple)) or not value:
            self._refuse(key, f'expected: "all", or a list of: {", ".join(known)}')
            return default
        for word in value:
            if word not in known:
                self._wrong(key, show_found(word), list_allowed(known), suggest(str(word), known))
        return tuple(word for word in known if word in value)

    def _targets(self, default: tuple[str, ...]) -> tuple[str, ...]:
        if self._get("targets") == EVERYTHING:
            return tuple(kind for kind in KINDS if kind not in HEALTH_KINDS)
        chosen = self._words("targets", KINDS, default)
        for key in ("attention_logits", QUANTISATION):
            if key in self._given and key not in chosen:
                self._wrong(key, "given, but targets does not contain it", f'add "{key}" to targets')
        if QUANTISATION in chosen:  # its rule compares the noise with the gradient that the backward pass leaves
            chosen = tuple(kind for kind in KINDS if kind in chosen or kind == GRAD_LOCAL)
        return chosen

    def _names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
            self._refuse(key, 'expected: a list of patterns such as "blocks.0.*"')
            return default
        return tuple(value)

    def _whole(self, key: str, least: int, default: Optional[int]) -> Optional[int]:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._refuse(key, f"expected: an integer of at least {least}")
            return default
        return value

    def _flag(self, key: str) -> bool:
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            self._refuse(key, "expected: true or false")
        return value is True

    def _choice(self, key: str, known: tuple[str, ...], default: Optional[str]) -> Optional[str]:
        value = self._get(key)
        if value is not None and value not in known:
            self._refuse(key, list_allowed(known), suggest(str(value), known))
            return default
        return default if value is None else str(value)

    def _ranks(self) -> Optional[frozenset[int]]:
        value = self._get("ranks")
        if value is None or value == []:
            return None
        whole = isinstance(value, (list, tuple)) and all(type(one) is int and one >= 0 for one in value)
        if not whole:
            self._refuse("ranks", "expected: a list of ranks such as [0, 8]; an empty list means all")
            return None
        return frozenset(value)

    def _megabytes(self, default: float) -> float:
        value = self._get("max_megabytes")
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
            self._refuse("max_megabytes", "expected: a number of at least 1, the size of one rank's file")
            return default
        return float(value)

    def _alarms(self) -> Mapping[str, Any]:
        from msprobe.watch.alarms.rules import DEFAULTS, without_any

        value = self._get("alarms")
        if value is None or value is True:
            return {}
        if value is False:
            return without_any()
        if not isinstance(value, Mapping):
            self._refuse("alarms", "expected: true, false, or an object with a rule's name and its setting")
            return {}
        for rule, setting in value.items():
            if rule not in DEFAULTS:
                self._wrong(f"alarms.{rule}", "unknown rule", list_allowed(DEFAULTS), suggest(str(rule), DEFAULTS))
                continue
            numeric = isinstance(setting, (int, float)) and not isinstance(setting, bool)
            if not isinstance(setting, bool) and not (numeric and setting > 0):
                self._wrong(f"alarms.{rule}", show_found(setting), "expected: true, false, or its threshold, above 0")
        return dict(value)

    def _dump(self) -> Optional[DumpSettings]:
        value = self._get("dump")
        if value is None or value is False:
            return None
        if value is True:
            return DumpSettings()
        known, default = tuple(DumpSettings.__dataclass_fields__), DumpSettings()
        with self._below("dump", known, "true, false, or an object with steps, limit, task, level") as below:
            return DumpSettings(
                steps=below._whole("steps", 1, default.steps) or 1,
                limit=below._whole("limit", 1, default.limit) or 1,
                task=below._choice("task", DUMP_TASKS, default.task) or "",
                level=below._choice("level", DUMP_LEVELS, default.level) or "",
            )

    def _replay(self) -> Optional[ReplaySettings]:
        value = self._get("replay")
        if value is None or value is False:
            return None
        if value is True:
            return ReplaySettings()
        with self._below("replay", ("every",), 'true, false, or an object such as {"every": 500}') as below:
            return ReplaySettings(below._whole("every", 1, ReplaySettings.every) or 1)

    def _logits(self) -> LogitSettings:
        with self._below("attention_logits", ("exact_every",), 'an object such as {"exact_every": 10}') as below:
            return LogitSettings(below._whole("exact_every", 0, LogitSettings.exact_every) or 0)

    def _quantisation(self) -> QuantisationSettings:
        known, default = ("formats", "every"), QuantisationSettings()
        with self._below(QUANTISATION, known, 'an object such as {"formats": ["mxfp8"], "every": 10}') as below:
            formats = below._words("formats", FORMATS, default.formats)
            return QuantisationSettings(formats, below._whole("every", 1, default.every) or 1)

    @contextlib.contextmanager
    def _below(self, name: str, known: tuple[str, ...], expected: str) -> Iterator[_Reading]:
        """Reads the object that a key has; its problems get the name of the key."""
        value = self._get(name)
        if value is not None and not isinstance(value, Mapping):
            self._refuse(name, f"expected: {expected}")
        below = _Reading(value if isinstance(value, Mapping) else {})
        below._check_keys(known)
        yield below
        self.problems += [Problem(f"{name}.{p.path}", p.found, p.expected, p.nearest) for p in below.problems]

    def _check_keys(self, known: Sequence[str]) -> None:
        for key in self._given:
            if key not in known:
                self._wrong(str(key), "unknown key", list_allowed(known), suggest(str(key), known))

    def _writers(self) -> Mapping[str, Mapping[str, Any]]:
        value = self._get("writers")
        if value is None:
            return {}
        if isinstance(value, (list, tuple)):
            value = {name: {} for name in value if isinstance(name, str)}
        if not isinstance(value, Mapping):
            self._refuse("writers", f"expected: a list of {', '.join(WRITERS)}, or an object with their options")
            return {}
        for name, options in value.items():
            if name not in WRITERS:
                self._wrong(f"writers.{name}", "unknown writer", list_allowed(WRITERS), suggest(str(name), WRITERS))
            elif not isinstance(options, Mapping):
                self._wrong(f"writers.{name}", show_found(options), "expected: an object with the writer's options")
        return {name: dict(options) for name, options in value.items() if isinstance(options, Mapping)}
